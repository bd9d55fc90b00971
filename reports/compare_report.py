"""A comparison as terminal text, Markdown for a step summary or a comment, JUnit XML and JSON."""

import math
from dataclasses import asdict
from xml.etree import ElementTree

from hrx.reports.compare import CheckpointComparison, ComparedModel, QuantityChange
from hrx.reports.gates import GATED, Judged
from hrx.reports.runs import FEW_TEXT, Interval, is_few
from hrx.reports.table import COUNT, FINE_GAIN, GAIN, Format, ReportTable, Span, TableColumn, TableRow, Value
from hrx.reports.text import LONGEST, clean, escape_markdown, number_or_none, shorten, wrap

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
        lines = [f"  {_outcome(one):<10}  {clean(one.gate.text)}: {_figure(one)}" for one in comparison.gates]
        parts.append("\n".join([f"{_rule(comparison)}:", *lines]))
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
            outcome = _outcome(one) if one.passed else f"**{_outcome(one)}**"
            lines.append(f"| {escape_markdown(one.gate.text)} | {outcome} | {escape_markdown(_figure(one))} |")
        parts.append("\n".join([*lines, "", escape_markdown(f"{_rule(comparison)}.")]))
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


def junit(comparison: CheckpointComparison) -> str:
    """A test case for every gate and one for the pairing, with the text report as output."""
    gates = [(one.gate.text, one.passed, f"{one.gate.text}: {_figure(one)}") for one in comparison.gates]
    cases = [("pairs", comparison.comparable, _pairs(comparison)), *gates]
    failures = sum(passed is False for _, passed, _ in cases)
    errors = sum(passed is None for _, passed, _ in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors), "skipped": "0"}
    root = ElementTree.Element("testsuites", {"name": "hrx compare", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "hrx compare", **counts, "time": "0"})
    for name, passed, message in cases:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "hrx.compare", "name": clean(name), "time": "0"})
        if not passed:
            tag = "error" if passed is None else "failure"
            ElementTree.SubElement(case, tag, {"message": clean(message)}).text = clean(message)
    shown = "\n".join(clean(line) for line in text(comparison).splitlines())
    ElementTree.SubElement(suite, "system-out").text = shown
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def as_json(comparison: CheckpointComparison) -> dict[str, object]:
    """The object of `hrx compare --json`, with null for a missing number."""
    return {
        "base": asdict(comparison.base),
        "new": asdict(comparison.new),
        "pairs": comparison.pairs,
        "configurations": comparison.configurations,
        "quantities": {name: _change_json(change) for name, change in comparison.quantities.items()},
        "gates": [
            {"gate": one.gate.text, "passed": one.passed, **_interval_json(one.estimate)} for one in comparison.gates
        ],
        "verdict": comparison.verdict,
        "exit": int(comparison.exit),
    }


def _change_json(change: QuantityChange) -> dict[str, object]:
    levels = {"base": number_or_none(change.base), "new": number_or_none(change.new)}
    relative = {"relative": _interval_json(change.relative)} if math.isfinite(change.relative.point) else {}
    return {**levels, **_interval_json(change.difference), "pairs": change.pairs, **relative}


def _interval_json(interval: Interval) -> dict[str, float | None]:
    return dict(zip(("difference", "low", "high"), map(number_or_none, interval), strict=True))


def quantities(comparison: CheckpointComparison) -> ReportTable:
    """Every quantity that has a value, before, after and the paired difference."""
    columns = (
        TableColumn("quantity", "quantity"),
        TableColumn("base", "base", _LEVEL),
        TableColumn("new", "new", _LEVEL),
        TableColumn("difference", "difference", FINE_GAIN),
        TableColumn("ci", "95% CI", Format("span", decimals=4)),
        TableColumn("relative", "relative"),
        TableColumn("pairs", "pairs", COUNT),
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
        rows.append(TableRow.of(columns, (name, *levels, interval, relative, change.pairs), key=name))
    note = (
        "Differences are new less base within a pair, seeds folded to their mean; median and percentile-bootstrap "
        "interval (10,000 resamples) over configurations. beats_naive is a share, parity the worst run of each side. "
        "A gain is meaningful only where the forecasts beat naive ones."
    )
    return ReportTable("quantities", "Every quantity, base and new", columns, tuple(rows), note)


def datasets(comparison: CheckpointComparison, most: int | None = None) -> ReportTable:
    """The difference on each dataset, largest loss of `g_margin` first."""
    columns = (
        TableColumn("dataset", "dataset"),
        TableColumn("g_margin", "g_margin", GAIN),
        TableColumn("g_own", "g_own", GAIN),
        TableColumn("mse", "mse"),
        TableColumn("beats_naive", "beats naive"),
        TableColumn("pairs", "pairs", COUNT),
    )
    rows = []
    for dataset, one in comparison.datasets[:most].iterrows():
        mse, points = _written(100 * one["mse"], "+.2f", "%"), _written(100 * one["beats_naive"], "+.0f", " pt")
        pairs = int(one["pairs"])
        cells = TableRow.of(columns[1:], (one["g_margin"], one["g_own"], mse, points, pairs)).cells
        rows.append(TableRow((columns[0].cell(str(dataset), n=pairs), *cells)))
    rest = len(comparison.datasets) - len(rows)
    note = f"{rest} more are in the Markdown report." if rest else ""
    title = "Paired differences by dataset, largest loss of g_margin first"
    return ReportTable("datasets", title, columns, tuple(rows), note)


def _written(value: float, format: str, unit: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:{format}}{unit}"


def _model(name: str, side: ComparedModel) -> str:
    model = shorten(clean(side.model), LONGEST)
    runs = f"{side.scored} scored, {side.excluded} excluded, {side.failed} failed"
    alone = f"; {side.unpaired} scored without a partner" if side.unpaired else ""
    remark = f". {side.impossible}" if side.impossible else ""
    return f"{name}: {model} (weights {clean(side.fingerprint)[:12]}): {runs}{alone}{remark}"


def _pairs(comparison: CheckpointComparison) -> str:
    same = " Both are the same weights." if comparison.base.fingerprint == comparison.new.fingerprint else ""
    few = f" ({FEW_TEXT})" if is_few(comparison.configurations) else ""
    folded = f"{comparison.configurations} configurations{few}"
    return f"{comparison.pairs} pairs of runs in {folded}; at least {comparison.min_pairs} pairs are needed.{same}"


def _rule(comparison: CheckpointComparison) -> str:
    if comparison.strict:
        return "Gates (strict: one fails when the estimate lies on the wrong side)"
    return "Gates (one fails only when the whole 95 % interval lies on the wrong side)"


def _outcome(judged: Judged) -> str:
    return {True: "passed", False: "FAILED", None: "not judged"}[judged.passed]


def _figure(judged: Judged) -> str:
    point, low, high = judged.estimate
    if math.isnan(point):
        return "no value"
    gate = judged.gate
    if GATED[gate.quantity] == "worst":
        return f"worst {point:.1e}"
    if gate.relative or GATED[gate.quantity] == "share":
        unit = "%" if gate.relative else " pt"
        return f"{100 * point:+.2f}{unit} [{100 * low:+.2f}, {100 * high:+.2f}]"
    return f"{point:+.4f} [{low:+.4f}, {high:+.4f}]"
