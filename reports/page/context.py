"""The needed context on a page: a table and a chart for each dataset of a ledger, or for one explained series."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from hrx.records.quantities import CutForecasts, NeededContext
from hrx.reports.context import DatasetContext, context_sentence, figure, padding_sentence, ratio, share
from hrx.reports.page import Row, render_macro
from hrx.reports.text import clean, counted

_OUTCOMES = {
    "holds": "needed context: holds",
    "fails": "needed context: fails",
    "impossible": "not possible",
    "whole": "none within the bound",
}
_MOST_CHARTS = 24
_LEAST, _MOST = 1e-4, 10.0
"""Changes that a chart can show; others are drawn at its edge."""
_LEFT, _TOP, _WIDTH, _HEIGHT = 50, 8, 250, 110
_TICKS = (0.001, 0.01, 0.1, 1.0, 10.0)


_HEADS = (
    ("model", ""), ("dataset", ""), ("setting", ""), ("needed", "number"), ("change, older replaced", "number"),
    ("really cut to", "number"), ("change", "number"), ("mse", "number"), ("MASE", "number"), ("time", "number"),
    ("this cut", ""),
)  # fmt: skip
_SERIES_HEADS = (
    ("context", "number"), ("change, older values replaced", "number"), ("cut to", "number"),
    ("change by cutting", "number"), ("mse", "number"), ("MASE", "number"),
)  # fmt: skip


class Chart(NamedTuple):
    """Places in an SVG: labels of both axes, the bound, and lines over the contexts."""

    left: int
    right: int
    bottom: int
    changes: list[tuple[str, str]]
    contexts: list[tuple[str, int]]
    bound: str
    lines: dict[str, str]


class Charts(NamedTuple):
    """The drawn charts by name, and how many are left out."""

    shown: list[tuple[str, Chart]]
    left_out: int


def context_section(models: Sequence[tuple[str, Sequence[DatasetContext]]]) -> Markup:
    """The section of a report on models by label; empty where nothing was measured."""
    rows = [row for label, contexts in models for one in contexts for row in _rows(label, one)]
    named = [
        (f"{label}, {one.dataset} {one.setting}" if len(models) > 1 else f"{one.dataset} {one.setting}", one.mean)
        for label, contexts in models
        for one in contexts
    ]
    if not rows:
        return Markup()
    return render_macro("context.html", "section", rows, _HEADS, _notes(models), _charts(named))


def series_context(found: NeededContext) -> Markup:
    """The part of the page of one explained series."""
    curves = (found.kept, found.change, found.lookbacks, found.cut_change, found.mse, found.mase)
    rows = [
        Row((kept, share(change), lookback, share(cut), figure(mse), figure(mase)))
        for kept, change, lookback, cut, mse, mase in zip(*curves, strict=True)
    ]
    sentence = f"{context_sentence(found)} {padding_sentence([found])}".rstrip()
    whole = (
        f"Needed to keep the forecasts within {share(found.bound)} of their variance: {sentence} Measured on "
        f"{counted(found.windows, 'window')} of the test region; changes are shares of that variance."
    )
    drawn = _charts([("Change of the forecasts", found)])
    return render_macro("context.html", "of_series", whole, _SERIES_HEADS, rows, drawn)


def _rows(label: str, one: DatasetContext) -> Iterator[Row]:
    """The check of the needed context, and the shortest cut where it is another one."""
    mean, (low, high) = one.mean, one.range
    single = f" ({low} to {high})" if low < high else ""
    known = [(mean.needed, mean.at), (mean.next_shorter, mean.at + 1)]
    changes = ", ".join(f"{share(mean.change[at])} at {kept}" for kept, at in known[not mean.at :] if kept is not None)
    about = [label, one.dataset, one.setting, f"{mean.needed}{single}", changes]
    check, shortest = mean.check, mean.shortest_cut
    other = shortest is not None and shortest.lookback not in (mean.lookback, check and check.lookback)
    if check is not None or not other:
        outcome = _OUTCOMES["impossible" if shortest is None else mean.outcome]
        yield Row([*about, *_cut_cells(mean, check), outcome])
    if other:
        yield Row([*about, *_cut_cells(mean, shortest), "shortest cut"])


def _cut_cells(found: NeededContext, cut: CutForecasts | None) -> list[str]:
    """Lookback, change, mse, MASE and time of a cut; dashes where there is none."""
    if cut is None:
        return ["–"] * 5
    pairs = ((found.mse[0], cut.mse), (found.mase[0], cut.mase))
    errors = ["–" if math.isnan(after) else f"{figure(whole)} → {figure(after)}" for whole, after in pairs]
    return [str(cut.lookback), share(cut.change), *errors, ratio(cut.time_ratio)]


def _notes(models: Sequence[tuple[str, Sequence[DatasetContext]]]) -> list[str]:
    """How to read the table, with what limits it."""
    every = [one.mean for _, contexts in models for one in contexts]
    bounds = " or ".join(dict.fromkeys(share(one.bound) for one in every))
    notes = [
        f"Changes are shares of the variance of the forecasts, of which {bounds} counts as none. “Needed” is the "
        "shortest context of a grid (3/4, 1/2, 3/8, … of the lookback) that stays within it together with every longer "
        "one: the true value lies above the next shorter of the grid. In brackets, the range over single series.",
        "Errors are those of the whole lookback → the cut one, on the same windows; times are relative to the whole. "
        "The shortest cut is found by cutting alone: a replaced value can disturb a model more than an absent one.",
    ]
    if any(one.outcome == "fails" for one in every):
        notes.append(
            "“Fails”: the older values are hardly read, but the model needs them, as padding or for statistics."
        )
    for label, contexts in models:
        if padding := padding_sentence(one.mean for one in contexts):
            notes.append(f"{label}: {padding}")
    if reasons := dict.fromkeys(clean(one.refusal) for one in every if one.refusal):
        notes.append(f"Not forecast from: {'; '.join(reasons)}.")
    return notes


def _charts(named: Sequence[tuple[str, NeededContext]]) -> Charts:
    """A chart of both curves for each name."""
    return Charts([(name, _chart(found)) for name, found in named[:_MOST_CHARTS]], len(named[_MOST_CHARTS:]))


def _chart(found: NeededContext) -> Chart:
    contexts = {found.lookback, *(int(kept) for kept in found.kept[2::4])} if found.lookback > 1 else {1}
    return Chart(
        left=_LEFT,
        right=_LEFT + _WIDTH,
        bottom=_TOP + _HEIGHT,
        changes=[(f"{_y(tick) + 4:.1f}", share(tick)) for tick in _TICKS],
        contexts=[(f"{_x(kept, found):.1f}", kept) for kept in contexts],
        bound=f"{_y(found.bound):.1f}",
        lines={
            "replaced": _line(found, zip(found.kept, found.change, strict=True)),
            "cut": _line(found, zip(found.lookbacks, found.cut_change, strict=True)),
        },
    )


def _line(found: NeededContext, points: Iterable[tuple[int, float]]) -> str:
    """The points of a polyline over the contexts shorter than the lookback, whose change is known."""
    known = [(int(at), change) for at, change in points if at < found.lookback and math.isfinite(change)]
    return " ".join(f"{_x(at, found):.1f},{_y(change):.1f}" for at, change in known)


def _x(kept: int, found: NeededContext) -> float:
    return _LEFT + _WIDTH * math.log(kept) / (math.log(found.lookback) or 1.0)


def _y(change: float) -> float:
    shown = min(max(change, _LEAST), _MOST)
    return _TOP + _HEIGHT * math.log(_MOST / shown) / math.log(_MOST / _LEAST)
