"""Summaries and tables as plain text for a terminal. Colour is the command line's business."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from hrx.reports.layout import clean, columns, pad, shorten, wrap
from hrx.reports.statistics import FEW_TEXT
from hrx.reports.summary import GAINS, Group, ModelSummary
from hrx.reports.words import number_or_none, percent, signed

Cell = str | int | float | None

_GAP = "  "
_INDENT = "  "
_NARROWEST = 40
_NARROWEST_COLUMN = 4
_MOST_LINES = 3
"""A cell that needs more lines loses its middle."""
_MOST_REASONS = 8
_NUMBER = re.compile(r"[<>]?[+\-−]?\d[\d.,]*(e[+\-]?\d+|\^-?\d+)?( ?%|×| pt)?|\[[^\[\]]*\d\]")


def render(summaries: Sequence[ModelSummary], width: int = 80) -> str:
    """Every summary, one below the other, in lines of at most `width` columns (never fewer than 40)."""
    if not summaries:
        return "The ledger holds no runs.\n"
    width = max(width, _NARROWEST)
    return "\n".join("\n".join(_model(summary, width)) + "\n" for summary in summaries)


def _model(summary: ModelSummary, width: int) -> Iterator[str]:
    yield shorten(_name(summary), width)
    for label, text in _facts(summary):
        yield from _hanging(f"{_INDENT}{label:<10}", text, width)
    if summary.done:
        yield ""
        yield from _gains(summary, width)
    yield ""
    yield from _hanging(f"{_INDENT}Verdict: ", clean(summary.verdict), width)
    yield from _reasons("Excluded", summary.exclusions, width)
    yield from _reasons("Failed", summary.failures, width)


def _name(summary: ModelSummary) -> str:
    model, checkpoint = clean(summary.model), clean(summary.checkpoint)
    weights = f"weights {clean(summary.fingerprint)[:12]}"
    return f"{model} ({weights})" if model == checkpoint else f"{model} ({checkpoint}, {weights})"


def _facts(summary: ModelSummary) -> Iterator[tuple[str, str]]:
    worst = "" if math.isnan(summary.parity) else f", worst parity {summary.parity:.1e}"
    yield "admitted", ("yes" if summary.admitted else "no") + worst
    yield (
        "runs",
        f"{summary.runs}: {summary.done} scored, {summary.excluded} excluded, {summary.failed} failed",
    )
    if summary.done:
        share = percent(summary.beats_naive)
        yield "naive", f"{summary.beating_naive.runs} of {summary.done} scored runs beat both naive forecasts ({share})"
    if (rank := number_or_none(summary.rank)) is not None:
        yield "rank", f"{rank:.2f} (median)"


def _gains(summary: ModelSummary, width: int) -> Iterator[str]:
    headers = ("gain", "median", "95 % interval", "positive", "sign test p")
    groups = (("all scored runs", summary.scored), ("runs that beat naive", summary.beating_naive))
    rows = [row for _, group in groups for row in _gain_rows(group)]
    head, rule, *lines = render_table(headers, rows, width - len(_INDENT)).splitlines()
    yield from (_INDENT + head, _INDENT + rule)
    each = len(lines) // len(groups)
    for index, (title, group) in enumerate(groups):
        yield from _hanging(_INDENT, f"{title} ({_size(group)})", width)
        yield from (_INDENT + line for line in lines[index * each : (index + 1) * each])


def _gain_rows(group: Group) -> Iterator[tuple[str, ...]]:
    for name in GAINS:
        gain = getattr(group, name)
        interval = f"[{signed(gain.low)}, {signed(gain.high)}]" if gain.n else "-"
        p = "-" if not gain.n else "<0.001" if gain.p < 0.001 else f"{gain.p:.3f}"
        yield name, signed(gain.median), interval, percent(gain.positive), p


def _size(group: Group) -> str:
    if not group.runs:
        return "none"
    size = f"{FEW_TEXT}, n={group.n}" if group.few else f"n={group.n}"
    return size if group.configurations == group.runs else f"{size}, seeds of {group.runs} runs folded"


def _reasons(title: str, reasons: dict[str, int], width: int) -> Iterator[str]:
    """Runs by kind of reason, which is what stands before its first colon; the most frequent ones with an example."""
    if not reasons:
        return
    yield ""
    total = sum(reasons.values())
    yield f"{_INDENT}{title} ({total} run{'s' if total > 1 else ''})"
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        kinds.setdefault(reason.partition(":")[0], []).append(reason)
    counted = {kind: sum(reasons[reason] for reason in alike) for kind, alike in kinds.items()}
    ordered = sorted(counted, key=lambda kind: -counted[kind])
    for kind in ordered[:_MOST_REASONS]:
        alike = f" (and {len(kinds[kind]) - 1} more like it)" if len(kinds[kind]) > 1 else ""
        text = clean(kinds[kind][0]) + alike
        yield from _hanging(f"{_INDENT}{counted[kind]:>6}  ", text, width, most=_MOST_LINES)
    if rest := ordered[_MOST_REASONS:]:
        runs = sum(counted[kind] for kind in rest)
        others = f"for {len(rest)} other reason{'s' if len(rest) > 1 else ''}"
        yield from _hanging(f"{_INDENT}{runs:>6}  ", others, width)


def _hanging(lead: str, text: str, width: int, most: int | None = None) -> Iterator[str]:
    """`lead` and the wrapped text, whose further lines start below its first."""
    room = width - columns(lead)
    for index, line in enumerate(_fold(text, room, most)):
        yield (lead if index == 0 else " " * columns(lead)) + line


def _fold(text: str, width: int, most: int | None) -> list[str]:
    """Wrapped lines, at most so many: a text that needs more loses its middle, by half a line at a time."""
    if most is None:
        return wrap(text, width)
    for halves in range(2 * most, 1, -1):
        lines = wrap(shorten(text, halves * width // 2), width)
        if len(lines) <= most:
            return lines
    return [shorten(text, width)]


def render_table(headers: Sequence[str], rows: Iterable[Sequence[Cell]], width: int = 80) -> str:
    """A plain table in at most `width` columns: numbers to the right, text to the left and wrapped where it must be.

    A cell is text, a number, a truth value or None. Wrapped cells take up to three lines, then lose their middle.
    With so many columns that four characters each do not fit, the table is wider than asked for.
    """
    cells = [[_shown(cell) for cell in row] for row in rows]
    names = [clean(header) for header in headers]
    count = len(names)
    right = [_is_numeric([row[i] for row in cells]) for i in range(count)]
    wanted = [max(columns(line[i]) for line in [names, *cells]) for i in range(count)]
    widths = _fit(wanted, right, width - len(_GAP) * (count - 1))
    lines = [*_row(names, widths, right), _GAP.join("-" * one for one in widths)]
    for row in cells:
        lines += _row(row, widths, right)
    return "".join(line.rstrip() + "\n" for line in lines)


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return clean(cell)


def _is_numeric(cells: Sequence[str]) -> bool:
    known = [cell for cell in cells if cell not in ("", "-", "nan", "inf", "-inf")]
    return bool(known) and all(_NUMBER.fullmatch(cell) for cell in known)


def _fit(wanted: Sequence[int], right: Sequence[bool], room: int) -> list[int]:
    """Column widths that sum to at most `room`: the widest text column gives way first, numbers last of all."""
    widths = list(wanted)
    for shrinks in ([not one for one in right], [True] * len(widths)):
        cap = room
        while sum(widths) > room and cap > _NARROWEST_COLUMN:
            cap -= 1
            widths = [min(one, cap) if may else one for one, may in zip(widths, shrinks, strict=True)]
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    folded = [_fold(cell, width, _MOST_LINES) for cell, width in zip(cells, widths, strict=True)]
    for index in range(max(map(len, folded), default=0)):
        parts = (lines[index] if index < len(lines) else "" for lines in folded)
        yield _GAP.join(pad(part, w, right=r) for part, w, r in zip(parts, widths, right, strict=True))
