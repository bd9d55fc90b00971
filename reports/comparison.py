"""Comparison of two checkpoints: its numbers, verdict and exit code, and its text, Markdown, JUnit XML and JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from xml.etree import ElementTree

import pandas as pd

from hrx.errors import Exit
from hrx.reports.cells import COUNT, FINE_GAIN, GAIN, Format, Span, TableColumn, TableRow, Value
from hrx.reports.changed import Changed
from hrx.reports.gates import (
    GATED,
    WORDS,
    Judged,
    Leniency,
    describe_gate,
    exit_code,
    gate_json,
    interval_json,
    relative_text,
    written,
)
from hrx.reports.page import render
from hrx.reports.runs import PlanProgress
from hrx.reports.statistics import FEWEST_INTERVAL, Evidence, Interval
from hrx.reports.table import ReportTable
from hrx.reports.text import LONGEST, clean, counted, escape_markdown, hanging, listed, number_or_none, shorten, wrap

MIN_CLUSTERS = FEWEST_INTERVAL
LARGEST_SUMMARY = 65_536
"""GitHub's limit of a comment, taken in bytes, which are never fewer than characters."""
_CUT = "\n\nCut here: the whole report is longer than a comment can be. See the text or the JSON.\n"
_LEVEL = Format("number", decimals=4, plus=False)
_MOST_DATASETS = 10


@dataclass(frozen=True)
class ComparedModel:
    """One of the two checkpoints, with the counts of its runs."""

    model: str
    checkpoint: str
    fingerprint: str
    """sha256 of the weights; of a backbone, sha256 over those of all its models."""
    scored: int
    excluded: int
    failed: int
    unpaired: int
    """Scored runs without a partner."""
    impossible: str
    """A sentence about impossible numbers of its scored runs; empty where there are none."""
    failed_checks: tuple[str, ...]
    """Admission checks that failed, each with its figure, its limit and the runs that it excludes."""
    plan: PlanProgress | None = None
    """Stored part of what was planned in its ledger; None where that is not known."""

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "plan": None if self.plan is None else self.plan.as_json()}


@dataclass(frozen=True)
class QuantityChange:
    """Change of one quantity over the pairs that have a value on both sides. NaN where there is none."""

    base: float
    """Median cluster; of a share the share of clusters, of parity the worst run."""
    new: float
    differences: Evidence
    """New less base of each cluster."""
    ratios: Evidence
    """Relative change of each cluster, for quantities that are always positive."""
    pairs: int
    """Pairs of runs; of a gain, those in which both beat naive."""
    n: int
    """Configurations of these pairs."""

    @property
    def difference(self) -> Interval:
        """Of the median cluster, which is not the difference of the two medians."""
        return self.differences.interval

    @property
    def relative(self) -> Interval:
        return self.ratios.interval

    @property
    def disagrees(self) -> bool:
        """Whether the medians move one way and the median change the other."""
        return (self.new - self.base) * self.difference.point < 0


@dataclass(frozen=True)
class CheckpointComparison:
    """Everything that a report shows."""

    base: ComparedModel
    new: ComparedModel
    pairs: int
    both_beat_naive: int
    """Pairs in which both runs beat naive."""
    configurations: int
    clusters: Evidence
    """Of the pairs: sources, or series of the only source; its values mean nothing."""
    quantities: dict[str, QuantityChange]
    gates: tuple[Judged, ...]
    changed: Changed
    """Forecasts and readings, from what the records hold."""
    datasets: pd.DataFrame
    """For each dataset its `pairs`, `n` configurations and changes, that of `mse` relative."""
    min_pairs: int = MIN_CLUSTERS
    """Clusters that a comparison needs."""
    strict: bool = False
    informational: bool = False
    undecided: Leniency | None = None
    """What undecided gates count as; None: exit code 4."""
    apart: tuple[str, ...] = ()
    """Where nothing pairs: the columns in which the two share no value."""

    @property
    def comparable(self) -> bool:
        return self.clusters.n >= self.min_pairs

    @property
    def failed_checks(self) -> list[str]:
        """Admission checks that failed, with the side."""
        sides = (("base", self.base), ("new", self.new))
        return [f"{name} fails {check}" for name, side in sides for check in side.failed_checks]

    @property
    def exit(self) -> Exit:
        """1 a gate or an admission check failed, 4 undecided, 3 runs failed, else 0; always 0 for information only."""
        if self.informational:
            return Exit.DONE
        gates = exit_code(self.gates, self.undecided)
        if self.failed_checks or gates == Exit.GATE_FAILED:
            return Exit.GATE_FAILED
        # Too few clusters stay undecided under --undecided pass: a wrong ledger must not pass.
        if not self.comparable:
            return Exit.NOT_DECIDED
        return Exit.INCOMPLETE if gates == Exit.DONE and self.base.failed + self.new.failed else gates

    def _repr_html_(self) -> str:
        """For a notebook: the verdict, and the tables of `hrx compare`."""
        heading = f"{self.base.model} against {self.new.model}, {counted(self.pairs, 'pair')} of runs"
        lines = [self.changed.headline, self.verdict]
        about = render("notebook.html", title=heading, lines=lines, note="")
        return "".join([about, *(table._repr_html_() for table in self.tables())])

    def __repr__(self) -> str:
        return f"<Comparison of {clean(self.base.model)} and {clean(self.new.model)}: {self.verdict}>"

    def tables(self, most_datasets: int | None = None) -> list[ReportTable]:
        """What changed, every quantity, and the datasets."""
        by_dataset = [datasets(self, most_datasets)] if len(self.datasets) else []
        return [*self.changed.tables(most_datasets), quantities(self), *by_dataset]

    @property
    def verdict(self) -> str:
        """One sentence that begins with `failed`, `undecided`, `passed` or `informational`, the first that applies."""
        failed, undecided, passed = (
            [one.gate.text for one in self.gates if one.outcome == outcome]
            for outcome in ("failed", "undecided", "passed")
        )
        failed = [*self.failed_checks, *failed]
        parts = [f"failed: {listed(failed)}"] if failed else []
        if not self.comparable:
            why = f" They have no {listed(self.apart)} in common." if self.apart else ""
            found = f"{_over(self)}, at least {self.min_pairs} {self.clusters.units} are needed"
            return "; ".join([*parts, f"undecided: {found}"]) + f".{why}{self._stopped}"
        if undecided:
            counts = f" (counts as {self.undecided}ed)" if self.undecided else ""
            parts.append(f"undecided: {listed(undecided)}{counts}")
        if passed:
            whole = "the gate" if len(self.gates) == 1 else f"all {len(self.gates)} gates"
            parts.append(f"passed: {listed(passed) if parts else whole}")
        if not self.gates:
            parts.append("informational: no gate was given")
        if runs := self.base.failed + self.new.failed:
            parts.append(f"incomplete: {counted(runs, 'run')} failed")
        return f"{'; '.join(parts)}; over {_over(self)}.{self._stopped}"

    @property
    def _stopped(self) -> str:
        """A sentence about the sides of which not every planned run is stored."""
        parts = []
        for name, plan in (("base", self.base.plan), ("new", self.new.plan)):
            if plan and not plan.complete:
                parts.append(f"{name} {plan.stored} of {plan.planned}{' or more' if plan.unassigned else ''}")
        return f" Planned runs that are stored: {listed(parts)}." if parts else ""

    def to_text(self, width: int = 80) -> str:
        """For a terminal: both sides, every quantity, the worst datasets, the gates, and the verdict last."""
        sides = [*wrap(_model("base", self.base), width), *wrap(_model("new", self.new), width)]
        about = [*wrap(self.changed.headline, width), "", *sides, *wrap(_pairs(self), width)]
        parts = ["\n".join(about), *(table.to_text(width).rstrip("\n") for table in self.tables(_MOST_DATASETS))]
        if self.gates:
            lines = wrap(f"{_rule(self)}:", width)
            for one in self.gates:
                first, *more = describe_gate(one)
                lines += hanging(f"  {WORDS[one.outcome]:<9}  ", f"{clean(one.gate.text)}: {clean(first)}", width)
                lines += [line for why in more for line in hanging(" " * 13, clean(why), width)]
            parts.append("\n".join(lines))
        parts.append("\n".join(wrap(f"Verdict: {self.verdict}", width)))
        return "\n\n".join(parts) + "\n"

    def to_markdown(self) -> str:
        """For a step summary or a comment, never longer than GitHub's limit."""
        parts = [
            f"### hrx compare: {escape_markdown(f'{self.verdict} {self.changed.headline}')}",
            f"- {escape_markdown(_model('base', self.base))}\n- {escape_markdown(_model('new', self.new))}",
            escape_markdown(_pairs(self)),
        ]
        if self.gates:
            lines = ["| gate | outcome | why |", "| --- | --- | --- |"]
            for one in self.gates:
                outcome = "passed" if one.outcome == "passed" else f"**{WORDS[one.outcome]}**"
                figure = "<br>".join(escape_markdown(line) for line in describe_gate(one))
                lines.append(f"| {escape_markdown(one.gate.text)} | {outcome} | {figure} |")
            parts.append("\n".join([*lines, "", escape_markdown(f"{_rule(self)}.")]))
        parts += [table.to_markdown() for table in self.tables()]
        text = "\n\n".join(parts) + "\n"
        if len(text.encode()) <= LARGEST_SUMMARY:
            return text
        kept = text.encode()[: LARGEST_SUMMARY - len(_CUT.encode())].decode(errors="ignore")
        return kept[: kept.rfind("\n")] + _CUT

    def to_junit(self) -> str:
        """A test case for admission, one for the pairing and one for every gate, with the text report as output.

        An undecided gate is skipped, never passed; a failure where `--undecided fail` says so.
        """
        tags = {"passed": "", "failed": "failure", "undecided": "failure" if self.undecided == "fail" else "skipped"}
        cases = [
            ("admission", "failure" if self.failed_checks else "", "; ".join(self.failed_checks)),
            ("pairs", "" if self.comparable else "failure", _pairs(self)),
        ]
        for one in self.gates:
            why = f"{one.gate.text}: {one.outcome}: {'; '.join(describe_gate(one))}"
            cases.append((one.gate.text, tags[one.outcome], why))
        found = [tag for _, tag, _ in cases]
        counts = {"tests": len(cases), "errors": 0}
        counts |= {"failures": found.count("failure"), "skipped": found.count("skipped")}
        attributes = {"name": "hrx compare", **{name: str(count) for name, count in counts.items()}}
        root = ElementTree.Element("testsuites", attributes)
        suite = ElementTree.SubElement(root, "testsuite", {**attributes, "time": "0"})
        for name, tag, message in cases:
            about = {"classname": "hrx.compare", "name": clean(name), "time": "0"}
            element = ElementTree.SubElement(suite, "testcase", about)
            if tag:
                ElementTree.SubElement(element, tag, {"message": clean(message)}).text = clean(message)
        shown = "\n".join(clean(line) for line in self.to_text().splitlines())
        ElementTree.SubElement(suite, "system-out").text = shown
        return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"

    def as_json(self) -> dict[str, object]:
        """Object of `hrx compare --json`, with null for a missing number."""
        return {
            "changed": self.changed.as_json(),
            "base": self.base.as_json(),
            "new": self.new.as_json(),
            "pairs": self.pairs,
            "configurations": self.configurations,
            "clusters": self.clusters.n,
            "unit": self.clusters.unit,
            "quantities": {name: _change_json(change) for name, change in self.quantities.items()},
            "gates": [gate_json(one) for one in self.gates],
            "verdict": self.verdict,
            "exit": int(self.exit),
        }


def _change_json(change: QuantityChange) -> dict[str, object]:
    levels = {"base": number_or_none(change.base), "new": number_or_none(change.new)}
    moved = change.differences
    counts = {"pairs": change.pairs, "n": change.n, "clusters": moved.n, "rose": moved.positive, "fell": moved.negative}
    relative = {"relative": interval_json(change.relative)} if math.isfinite(change.relative.point) else {}
    return {**levels, **interval_json(change.difference), **counts, "unit": moved.unit, **relative}


def quantities(comparison: CheckpointComparison) -> ReportTable:
    """Every quantity that has a value: base and new over the same pairs, and how far the median cluster moved."""
    units = comparison.clusters.units
    heads = (
        ("quantity", "quantity"), ("n", units, COUNT), ("base", "base", _LEVEL), ("new", "new", _LEVEL),
        ("difference", "paired diff.", FINE_GAIN), ("ci", "interval", Format("span", decimals=4)),
        ("relative", "rel."), ("moved", "up/down"),
    )  # fmt: skip
    columns = tuple(TableColumn(*head) for head in heads)
    rows = []
    for name, change in comparison.quantities.items():
        (point, *ends), moved = change.difference, change.differences
        levels = (change.base, change.new, point)
        if math.isnan(change.base) and math.isnan(change.new):
            continue
        values: tuple[Value, ...] = (name, None, *(written(level, ".1e") for level in levels), Span(*ends), "-", "-")
        if GATED[name] != "worst":
            shown = relative_text(change.relative.point), f"{moved.positive}/{moved.negative}"
            values = (name + _row_note(change), moved.n, *levels, Span(*ends), *shown)
        rows.append(TableRow.of(columns, values, key=name))
    note = (
        f"{comparison.clusters.about} The difference is that of the median {comparison.clusters.unit}, not the "
        f"difference of the medians; up/down counts {units}. Intervals are order statistics, 95 %; of five {units} "
        f"their range, 94 %; of fewer a range that is no interval. beats_naive is the share of {units} of which more "
        "than half of the runs do, parity the worst run of each side. Gains count the pairs in which both runs beat "
        f"naive: {comparison.both_beat_naive} of {counted(comparison.pairs, 'pair')}."
    )
    return ReportTable("quantities", "Every quantity, base and new, over the same pairs", columns, tuple(rows), note)


def _row_note(change: QuantityChange) -> str:
    """Reason where the medians move one way and the median change the other."""
    if not change.disagrees:
        return ""
    moved = change.differences
    if change.new < change.base:
        return f" (median lower, yet {moved.positive} of {moved.counted} rose)"
    return f" (median higher, yet {moved.negative} of {moved.counted} fell)"


def datasets(comparison: CheckpointComparison, most: int | None = None) -> ReportTable:
    """Change on each dataset, largest rise of `mse` first."""
    heads = (
        ("dataset", "dataset"), ("n", "n", COUNT), ("mse", "mse"), ("mean", "mean mse"),
        ("beats_naive", "beats naive"), ("gains", "both beat naive", COUNT), ("g_margin", "g_margin", GAIN),
        ("g_own", "g_own", GAIN),
    )  # fmt: skip
    columns = tuple(TableColumn(*head) for head in heads)
    rows = []
    for dataset, one in comparison.datasets[:most].iterrows():
        errors = (relative_text(one["mse"]), relative_text(one["mean"]))
        naive = (written(100 * one["beats_naive"], "+.0f", " pt"), int(one["gains"]))
        rows.append(TableRow.of(columns, (str(dataset), int(one["n"]), *errors, *naive, one["g_margin"], one["g_own"])))
    rest = len(comparison.datasets) - len(rows)
    note = "Medians over series of the medians over settings; mean mse, beats naive: the change of the dataset's mean."
    more = f" {counted(rest, 'more dataset')}: see the Markdown report." if rest else ""
    title = "Paired changes by dataset, largest rise of mse first"
    return ReportTable("datasets", title, columns, tuple(rows), note + more)


def _model(name: str, side: ComparedModel) -> str:
    model = shorten(clean(side.model), LONGEST)
    runs = f"{side.scored} scored, {side.excluded} excluded, {side.failed} failed"
    alone = f"; {side.unpaired} scored without a partner" if side.unpaired else ""
    remarks = [side.impossible] if side.impossible else []
    remarks += side.plan.sentences() if side.plan else []
    counts = " ".join([f"{runs}{alone}{'.' if remarks else ''}", *remarks])
    return f"{name}: {model} (weights {clean(side.fingerprint)[:12]}): {counts}"


def _over(comparison: CheckpointComparison) -> str:
    """`30 pairs of runs in 8 sources`."""
    return f"{counted(comparison.pairs, 'pair')} of runs in {comparison.clusters.counted}"


def _pairs(comparison: CheckpointComparison) -> str:
    same = " Both are the same weights." if comparison.base.fingerprint == comparison.new.fingerprint else ""
    folded = counted(comparison.configurations, "configuration")
    least = f"at least {comparison.min_pairs} {comparison.clusters.units} are needed"
    return f"{_over(comparison)} ({folded}); {least}.{same}"


def _rule(comparison: CheckpointComparison) -> str:
    how = f"the whole interval over {comparison.clusters.units} lies on one side of the bound"
    return f"Gates ({'strict: the estimate decides' if comparison.strict else f'passed or failed: {how}'})"
