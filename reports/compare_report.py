"""A comparison as terminal text, Markdown for a step summary or a comment, JUnit XML and JSON."""

import math
from typing import NamedTuple
from xml.etree import ElementTree

from hrx.reports.compare import CheckpointComparison, ComparedModel, QuantityChange
from hrx.reports.gates import GATED, DatasetJudged, Judged
from hrx.reports.statistics import FEW, FEW_TEXT, LEVEL, MOST_PAIRS, Interval, Power, is_few
from hrx.reports.table import COUNT, FINE_GAIN, GAIN, Format, ReportTable, Span, TableColumn, TableRow, Value
from hrx.reports.text import LONGEST, clean, counted, escape_markdown, hanging, listed, number_or_none, shorten, wrap

LARGEST_SUMMARY = 65_536
"""GitHub's limit of a comment, taken in bytes, which are never fewer than characters."""
_CUT = "\n\nCut here: the whole report is longer than a comment can be. See the text or the JSON.\n"
_LEVEL = Format("number", decimals=4, plus=False)
_MOST_DATASETS = 10


def text(comparison: CheckpointComparison, width: int = 80) -> str:
    """For a terminal: both sides, every quantity, the worst datasets, the gates, and the verdict last."""
    sides = [*wrap(_model("base", comparison.base), width), *wrap(_model("new", comparison.new), width)]
    parts = ["\n".join([*sides, *wrap(_pairs(comparison), width)]), quantities(comparison).to_text(width).rstrip("\n")]
    if len(comparison.datasets):
        parts.append(datasets(comparison, _MOST_DATASETS).to_text(width).rstrip("\n"))
    if comparison.gates:
        lines = [line for one in comparison.gates for line in _gate_lines(one, width)]
        parts.append("\n".join([*wrap(f"{_rule(comparison)}:", width), *lines]))
        parts += [beyond(one, _MOST_DATASETS).to_text(width).rstrip("\n") for one in comparison.gates if one.datasets]
    parts.append("\n".join(wrap(f"Verdict: {comparison.verdict}", width)))
    return "\n\n".join(parts) + "\n"


def markdown(comparison: CheckpointComparison) -> str:
    """For a step summary or a comment, never longer than GitHub's limit."""
    parts = [
        f"### hrx compare: {escape_markdown(comparison.verdict)}",
        "\n".join(
            f"- {escape_markdown(_model(name, side))}"
            for name, side in (("base", comparison.base), ("new", comparison.new))
        ),
        escape_markdown(_pairs(comparison)),
    ]
    if comparison.gates:
        lines = ["| gate | outcome | figure |", "| --- | --- | --- |"]
        for one in comparison.gates:
            outcome = _outcome(one) if one.outcome == "passed" else f"**{_outcome(one)}**"
            figure = "<br>".join(escape_markdown(line) for line in describe_gate(one))
            lines.append(f"| {escape_markdown(one.gate.text)} | {outcome} | {figure} |")
        parts.append("\n".join([*lines, "", escape_markdown(f"{_rule(comparison)}.")]))
        parts += [beyond(one).to_markdown() for one in comparison.gates if one.datasets]
    parts.append(quantities(comparison).to_markdown())
    if len(comparison.datasets):
        parts.append(datasets(comparison).to_markdown())
    return _bounded("\n\n".join(parts) + "\n")


def _bounded(text: str) -> str:
    """The text, or as many of its lines as fit and a sentence that says so."""
    if len(text.encode()) <= LARGEST_SUMMARY:
        return text
    room = LARGEST_SUMMARY - len(_CUT.encode())
    kept = text.encode()[:room].decode(errors="ignore")
    return kept[: kept.rfind("\n")] + _CUT


class _Case(NamedTuple):
    """A test case of the JUnit report."""

    name: str
    tag: str
    """The element that says it did not pass; empty where it did."""
    message: str


def junit(comparison: CheckpointComparison) -> str:
    """A test case for admission, one for the pairing and one for every gate, with the text report as output.

    An undecided gate is skipped, never passed; a failure where `--undecided fail` says so.
    """
    undecided = "failure" if comparison.undecided == "fail" else "skipped"
    tags = {"passed": "", "failed": "failure", "undecided": undecided}
    failed = comparison.failed_checks
    cases = [
        _Case("admission", "failure" if failed else "", "; ".join(failed)),
        _Case("pairs", "" if comparison.comparable else "failure", _pairs(comparison)),
        *(
            _Case(one.gate.text, tags[one.outcome], f"{one.gate.text}: {one.outcome}: {'; '.join(describe_gate(one))}")
            for one in comparison.gates
        ),
    ]
    found = [case.tag for case in cases]
    counts = {"tests": len(cases), "failures": found.count("failure"), "errors": 0, "skipped": found.count("skipped")}
    attributes = {"name": "hrx compare", **{name: str(count) for name, count in counts.items()}}
    root = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(root, "testsuite", {**attributes, "time": "0"})
    for case in cases:
        about = {"classname": "hrx.compare", "name": clean(case.name), "time": "0"}
        element = ElementTree.SubElement(suite, "testcase", about)
        if case.tag:
            ElementTree.SubElement(element, case.tag, {"message": clean(case.message)}).text = clean(case.message)
    shown = "\n".join(clean(line) for line in text(comparison).splitlines())
    ElementTree.SubElement(suite, "system-out").text = shown
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def as_json(comparison: CheckpointComparison) -> dict[str, object]:
    """The object of `hrx compare --json`, with null for a missing number."""
    return {
        "base": comparison.base.as_json(),
        "new": comparison.new.as_json(),
        "pairs": comparison.pairs,
        "configurations": comparison.configurations,
        "quantities": {name: _change_json(change) for name, change in comparison.quantities.items()},
        "gates": [gate_json(one) for one in comparison.gates],
        "verdict": comparison.verdict,
        "exit": int(comparison.exit),
    }


def gate_json(judged: Judged) -> dict[str, object]:
    """A gate in the JSON of `hrx compare` and `hrx audit`."""
    return {
        "gate": judged.gate.text,
        "outcome": judged.outcome,
        **_interval_json(judged.estimate),
        "n": judged.n,
        "reason": judged.reason,
        "scope": judged.scope,
        "datasets": [_dataset_json(one) for one in judged.datasets],
    }


def _dataset_json(one: DatasetJudged) -> dict[str, object]:
    return {
        **{name: getattr(one, name) for name in ("dataset", "outcome", "beyond", "n", "p", "reason")},
        "median": number_or_none(one.median),
        "mean": number_or_none(one.mean),
        "power": one.power and one.power.now,
        "needed": one.power and one.power.needed,
    }


def _change_json(change: QuantityChange) -> dict[str, object]:
    levels = {"base": number_or_none(change.base), "new": number_or_none(change.new)}
    counts = {name: getattr(change, name) for name in ("pairs", "n", "rose", "fell")}
    relative = {"relative": _interval_json(change.relative)} if math.isfinite(change.relative.point) else {}
    return {**levels, **_interval_json(change.difference), **counts, **relative}


def _interval_json(interval: Interval) -> dict[str, float | None]:
    return dict(zip(("difference", "low", "high"), map(number_or_none, interval), strict=True))


def quantities(comparison: CheckpointComparison) -> ReportTable:
    """Every quantity that has a value: base and new over the same pairs, and the change within a pair."""
    columns = (
        TableColumn("quantity", "quantity"),
        TableColumn("n", "n", COUNT),
        TableColumn("base", "base", _LEVEL),
        TableColumn("new", "new", _LEVEL),
        TableColumn("difference", "paired diff.", FINE_GAIN),
        TableColumn("ci", "95% CI", Format("span", decimals=4)),
        TableColumn("relative", "rel."),
        TableColumn("moved", "up/down"),
    )
    rows = []
    for name, change in comparison.quantities.items():
        if math.isnan(change.base) and math.isnan(change.new):
            continue
        levels: list[Value] = [change.base, change.new, change.difference.point]
        if GATED[name] == "worst":
            levels = [_written(value, ".1e") for value in (change.base, change.new, change.difference.point)]
        interval = Span(change.difference.low, change.difference.high)
        relative = _written(100 * change.relative.point, "+.2f", "%")
        moved = "-" if GATED[name] == "worst" else f"{change.rose}/{change.fell}"
        n = None if GATED[name] == "worst" else change.n
        values = (name + _row_note(name, change), n, *levels, interval, relative, moved)
        rows.append(TableRow.of(columns, values, key=name))
    note = (
        "Base and new are medians over the same n configurations (pairs, seeds folded); the paired difference is the "
        "median of new less base within a pair, which is not the difference of the two medians; up/down counts the "
        "configurations that rose and fell. Intervals are percentile-bootstrap (10,000 resamples), from three "
        "values on. beats_naive is a share, parity the worst run of each side. Gains count the pairs in which both "
        f"runs beat naive: {comparison.both_beat_naive} of {counted(comparison.pairs, 'pair')}."
    )
    return ReportTable("quantities", "Every quantity, base and new, over the same pairs", columns, tuple(rows), note)


def _row_note(name: str, change: QuantityChange) -> str:
    """The reason where the medians move one way and the median pair the other."""
    if GATED[name] == "worst" or not change.disagrees:
        return ""
    if change.new < change.base:
        return f" (median lower, yet {change.rose} of {change.n} rose)"
    return f" (median higher, yet {change.fell} of {change.n} fell)"


def datasets(comparison: CheckpointComparison, most: int | None = None) -> ReportTable:
    """The change on each dataset, largest rise of `mse` first."""
    columns = (
        TableColumn("dataset", "dataset"),
        TableColumn("n", "n", COUNT),
        TableColumn("mse", "mse"),
        TableColumn("mean", "mean mse"),
        TableColumn("beats_naive", "beats naive"),
        TableColumn("gains", "both beat naive", COUNT),
        TableColumn("g_margin", "g_margin", GAIN),
        TableColumn("g_own", "g_own", GAIN),
    )
    rows = []
    for dataset, one in comparison.datasets[:most].iterrows():
        changes = (_percent(one["mse"]), _percent(one["mean"]), _written(100 * one["beats_naive"], "+.0f", " pt"))
        values = (int(one["n"]), *changes, int(one["gains"]), one["g_margin"], one["g_own"])
        rows.append(TableRow.of(columns, (str(dataset), *values)))
    rest = len(comparison.datasets) - len(rows)
    few = f" {FEW_TEXT}." if (comparison.datasets["n"] < FEW).any() else ""
    note = "mse is the median change of a configuration, mean mse the change of the dataset's mean."
    more = f" {counted(rest, 'more dataset')}: see the Markdown report." if rest else ""
    title = "Paired changes by dataset, largest rise of mse first"
    return ReportTable("datasets", title, columns, tuple(rows), note + few + more)


def beyond(judged: Judged, most: int | None = None) -> ReportTable:
    """The datasets beyond the bound of a gate, or without a pair, with their tests; those that fail it first."""
    quantity = judged.gate.quantity
    columns = (
        TableColumn("dataset", "dataset"),
        TableColumn("outcome", "outcome"),
        TableColumn("median", quantity),
        TableColumn("mean", f"mean {quantity}"),
        TableColumn("beyond", "beyond"),
        TableColumn("p", "p (Holm)", Format("p")),
        TableColumn("power", "power"),
        TableColumn("needed", "n for 80 %"),
    )
    rows = []
    for one in judged.datasets[:most]:
        if one.reason:
            values: tuple[Value, ...] = (f"{one.dataset} ({one.reason})", one.outcome, *["-"] * 3, None, "-", "-")
        else:
            share = f"{one.beyond} of {one.n}"
            power = ("-", "-") if one.power is None else (f"{100 * one.power.now:.0f}%", _needed(one.power))
            values = (one.dataset, _outcome(one), _percent(one.median), _percent(one.mean), share, one.p, *power)
        rows.append(TableRow.of(columns, values))
    rest = len(judged.datasets) - len(rows)
    note = (
        "beyond counts configurations. A dataset fails the gate where its one-sided sign test, corrected over all "
        f"{judged.tested} datasets, has p at most {LEVEL:g}. power: how likely this n decides if further "
        "configurations are alike."
    )
    more = f" {counted(rest, 'more dataset')}: see the Markdown report." if rest else ""
    title = f"Datasets beyond {judged.gate.text}: {_counts(judged)} of {judged.tested}"
    return ReportTable("beyond", title, columns, tuple(rows), note + more)


def _needed(power: Power) -> str:
    return f">{MOST_PAIRS:,}" if power.needed is None else f"{power.needed:,}"


def _counts(judged: Judged) -> str:
    """`2 failed and 3 undecided`."""
    found = [one.outcome for one in judged.datasets]
    return listed(f"{found.count(outcome)} {outcome}" for outcome in ("failed", "undecided") if outcome in found)


def _written(value: float, format: str, unit: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:{format}}{unit}"


def _model(name: str, side: ComparedModel) -> str:
    model = shorten(clean(side.model), LONGEST)
    runs = f"{side.scored} scored, {side.excluded} excluded, {side.failed} failed"
    alone = f"; {side.unpaired} scored without a partner" if side.unpaired else ""
    remarks = [side.impossible] if side.impossible else []
    remarks += side.plan.sentences() if side.plan else []
    counts = " ".join([f"{runs}{alone}{'.' if remarks else ''}", *remarks])
    return f"{name}: {model} (weights {clean(side.fingerprint)[:12]}): {counts}"


def _pairs(comparison: CheckpointComparison) -> str:
    same = " Both are the same weights." if comparison.base.fingerprint == comparison.new.fingerprint else ""
    few = f" ({FEW_TEXT})" if is_few(comparison.configurations) else ""
    folded = f"{counted(comparison.configurations, 'configuration')}{few}"
    found = f"{counted(comparison.pairs, 'pair')} of runs in {folded}"
    return f"{found}; at least {counted(comparison.min_pairs, 'pair')} are needed.{same}"


def _rule(comparison: CheckpointComparison) -> str:
    if comparison.strict:
        return "Gates (strict: the estimate decides, overall and on each dataset)"
    return (
        "Gates (passed or failed: the whole 95 % interval lies on one side of the bound; a relative change is also "
        "tested on each dataset)"
    )


def _outcome(judged: Judged | DatasetJudged) -> str:
    return "FAILED" if judged.outcome == "failed" else judged.outcome


def _gate_lines(judged: Judged, width: int) -> list[str]:
    first, *more = describe_gate(judged)
    lines = hanging(f"  {_outcome(judged):<9}  ", f"{clean(judged.gate.text)}: {first}", width)
    return [*lines, *(line for one in more for line in hanging(" " * 13, clean(one), width))]


def describe_gate(judged: Judged) -> list[str]:
    """The figure of a gate, why it is undecided, and how many datasets lie beyond its bound."""
    figure = f"{_figure(judged)}, {judged.scope}" if judged.scope else _figure(judged)
    reason = [judged.reason] if judged.reason and not math.isnan(judged.estimate.point) else []
    broken = [f"beyond the bound on single datasets: {_counts(judged)} of {judged.tested}"] if judged.datasets else []
    return [figure, *reason, *broken]


def _percent(change: float) -> str:
    """A relative change; `from 0` where base is zero."""
    return "from 0" if math.isinf(change) else _written(100 * change, "+.2f", "%")


def _figure(judged: Judged) -> str:
    point, low, high = judged.estimate
    if math.isnan(point):
        return "no value"
    gate = judged.gate
    if GATED[gate.quantity] == "worst":
        return f"worst {point:.1e}"
    scale, decimals, unit = 1.0, 4, ""
    if gate.relative or GATED[gate.quantity] == "share":
        scale, decimals, unit = 100.0, 2, "%" if gate.relative or gate.absolute else " pt"
    plus = "" if gate.absolute else "+"
    shown, *ends = (f"{scale * value + 0.0:{plus}.{decimals}f}" for value in (point, low, high))
    interval = f"[{', '.join(ends)}]" if math.isfinite(low) else "no interval"
    return f"{shown}{unit} {interval}, n={judged.n}"
