"""The summaries of `hrx.reports.summary` as terminal text, and in a notebook."""

import math
from collections.abc import Iterator, Sequence

from hrx.reports.context import context_lines
from hrx.reports.notebook import facts_html, table_html
from hrx.reports.reasons import INDENT, reason_lines
from hrx.reports.statistics import FEW_TEXT, GroupStatistics
from hrx.reports.summary import GAINS, GainGroup, MedianMase, ModelSummary
from hrx.reports.text import (
    bracketed,
    clean,
    counted,
    escape_html,
    hanging,
    number_or_none,
    percent,
    render_table,
    shorten,
    signed,
)

_NARROWEST = 40
_GAIN_HEADS = ("median", "95 % interval", "positive", "sign test p")
_TWO_INTERVALS = "The table's intervals take each run as independent; the verdict's do not."


def render(summaries: Sequence[ModelSummary], width: int = 80) -> str:
    """All summaries as terminal text, in lines of at most `width` columns (never fewer than 40)."""
    if not summaries:
        return "The ledger holds no runs.\n"
    width = max(width, _NARROWEST)
    return "\n".join("\n".join(_lines(summary, width)) + "\n" for summary in summaries)


def notebook_html(summary: ModelSummary) -> str:
    """The verdict first, then the facts and the gains of both groups."""
    groups = (("all scored runs", summary.scored), ("runs that beat naive", summary.beating_naive))
    rows = [
        (f"{name}, {title} ({_size(group)})", *_gain_row(name, getattr(group, name))[1:])
        for title, group in groups
        for name in GAINS
    ]
    facts = [f"{label}: {fact}" for label, fact in _facts(summary)]
    gains = table_html(("gain", *_GAIN_HEADS), rows) if summary.done else ""
    gains += f"<p>{escape_html(_TWO_INTERVALS)}</p>" if _has_two_intervals(summary) else ""
    return facts_html(_name(summary), [f"Verdict: {clean(summary.verdict)}", *facts]) + gains


def _lines(summary: ModelSummary, width: int) -> Iterator[str]:
    yield shorten(_name(summary), width)
    for label, fact in _facts(summary):
        yield from hanging(f"{INDENT}{label:<10}", fact, width)
    if summary.done:
        yield ""
        yield from _gain_table(summary, width)
    yield ""
    yield from hanging(f"{INDENT}Verdict: ", clean(summary.verdict), width)
    yield from context_lines(summary.contexts, width)
    yield from reason_lines("Excluded", summary.exclusions, width)
    yield from reason_lines("Failed", summary.failures, width)


_ADMITTED = {True: "yes", False: "no", None: "unknown: no run was scored, and none failed a check"}


def _name(summary: ModelSummary) -> str:
    model, checkpoint = clean(summary.model), clean(summary.checkpoint)
    weights = f"weights {clean(summary.fingerprint)[:12]}"
    return f"{model} ({weights})" if model == checkpoint else f"{model} ({checkpoint}, {weights})"


def _facts(summary: ModelSummary) -> Iterator[tuple[str, str]]:
    worst = "" if math.isnan(summary.parity) else f", worst parity {summary.parity:.1e}"
    yield "admitted", _ADMITTED[summary.admitted] + worst
    yield "runs", f"{summary.runs}: {summary.done} scored, {summary.excluded} excluded, {summary.failed} failed"
    if summary.done:
        share = percent(summary.beats_naive)
        beat = "beats" if 1 in (summary.beating_naive.runs, summary.done) else "beat"
        of = f"of {counted(summary.done, 'scored run')}"
        yield "naive", f"{summary.beating_naive.runs} {of} {beat} both naive forecasts ({share})"
        yield "seasonal", _seasonal_fact(summary)
        yield "MASE", _mase_fact(summary.mase)
    if (rank := number_or_none(summary.rank)) is not None:
        yield "rank", f"{rank:.2f} (median)"


def _seasonal_fact(summary: ModelSummary) -> str:
    found, among = summary.seasonal, summary.seasonal_beating_naive
    if not found.known:
        return "unknown: these records have no error of seasonal naive"
    beat = "beats" if 1 in (found.beating, found.known) else "beat"
    missing = f", unknown for {summary.done - found.known} more" if found.known < summary.done else ""
    both = f"; {among.beating} of the {among.known} that beat naive" if among.known else ""
    of = f"of {counted(found.known, 'scored run')}"
    return f"{found.beating} {of} {beat} seasonal naive ({percent(found.share)}){missing}{both}"


def _mase_fact(mase: MedianMase) -> str:
    if math.isnan(mase.model):
        return "unknown: these records have none"
    return f"{_scaled(mase.model)} (median); last value {_scaled(mase.naive)}, seasonal naive {_scaled(mase.seasonal)}"


def _scaled(mase: float) -> str:
    return f"{mase:.2f}" if mase >= 0.1 else f"{mase:.2g}"


def _gain_table(summary: ModelSummary, width: int) -> Iterator[str]:
    headers = ("gain", *_GAIN_HEADS)
    groups = (("all scored runs", summary.scored), ("runs that beat naive", summary.beating_naive))
    rows = [_gain_row(name, getattr(group, name)) for _, group in groups for name in GAINS]
    head, rule, *lines = render_table(headers, rows, width - len(INDENT)).splitlines()
    yield from (INDENT + head, INDENT + rule)
    for index, (title, group) in enumerate(groups):
        yield from hanging(INDENT, f"{title} ({_size(group)})", width)
        yield from (INDENT + line for line in lines[index * len(GAINS) : (index + 1) * len(GAINS)])
    if _has_two_intervals(summary):
        yield from hanging(INDENT, _TWO_INTERVALS, width)


def _has_two_intervals(summary: ModelSummary) -> bool:
    """Whether the verdict has an interval, which differs from that of the table."""
    return summary.beating_naive.runs > 0 and not math.isnan(summary.beating_naive.clustered["g_margin"].low)


def _gain_row(name: str, gain: GroupStatistics) -> tuple[str, ...]:
    interval = bracketed(gain.low, gain.high)
    p = "-" if not gain.n else "<0.001" if gain.p < 0.001 else f"{gain.p:.3f}"
    return name, signed(gain.median), interval, percent(gain.positive), p


def _size(group: GainGroup) -> str:
    if not group.runs:
        return "none"
    size = f"{FEW_TEXT}, n={group.n}" if group.few else f"n={group.n}"
    return size if group.configurations == group.runs else f"{size}, seeds of {counted(group.runs, 'run')} folded"
