"""Figures of one explained forecast: heat map, single steps, importance by lag, waterfall. They work on arrays alone.

`Explanation` in `hrx.records.explanation` calls them; `hrx explain --png` writes the heat map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hrx.errors import HrxError
from hrx.records.quantities import Floats, Ints
from hrx.reports.figures import FORECAST, GUIDE, INK, TRUTH, plain_style
from hrx.reports.heatmap import GUIDED, HEATMAP_SIZE, add_panels, draw_matrix, draw_window
from hrx.reports.text import clean, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_NAME = 60
_DATES = 6
_MOST_SEASONS = 12
_DPI = 120


@dataclass(frozen=True)
class ShownForecast:
    """One forecast with its matrix, as the figures take it."""

    title: str
    x: Floats
    """`(L,)`."""
    forecast: Floats
    """`(H,)`."""
    matrix: Floats
    """`(R, L)`."""
    steps: Ints
    """`(R,)`: the forecast step of each row, from 1."""
    times: pd.Index | None = None
    """`(L + H,)`: of the lookback and the forecast."""
    season: int = 1

    @property
    def heading(self) -> str:
        return shorten(clean(self.title), _LONGEST_NAME)

    def row(self, step: int) -> int:
        """The row of a step."""
        found = np.flatnonzero(self.steps == step)
        if not found.size:
            raise HrxError(
                f"Step {step} has no row in this explanation. Steps count from 1; it has {_listed(self.steps)}."
            )
        return int(found[0])

    def name(self, position: int) -> str:
        """An input by its position, -L to -1, and its time where it has one."""
        if self.times is None:
            return f"position {position}"
        return f"{show_time(self.times[len(self.x) + position])} ({position})"


def show_time(time: Any) -> str:
    """A time without what every time of a day has in common: midnight, seconds, and the zone."""
    if not isinstance(time, pd.Timestamp):
        return str(time)
    text = time.strftime("%Y-%m-%d %H:%M:%S")
    return text.removesuffix(" 00:00:00").removesuffix(":00") if text.endswith(":00") else text


def heatmap_figure(shown: ShownForecast, footing: str = "") -> Figure:
    """Window and forecast, what each step reads, and the shared vector, over one time axis."""
    with plain_style():
        figure = _new_figure(HEATMAP_SIZE)
        panels = add_panels(figure)
        draw_window(panels.window, shown.x, np.empty(0), shown.forecast, guide=GUIDED)
        panels.window.set_ylabel("value")
        draw_matrix(panels, shown.matrix, shown.steps)
        _label_time(panels.shared, shown)
        figure.suptitle(shown.heading, fontsize=10, parse_math=False)
        if footing:
            figure.supxlabel(footing, fontsize=9, color=INK, parse_math=False)
        return figure


def steps_figure(shown: ShownForecast, steps: Sequence[int]) -> Figure:
    """The window, and a panel with the row of each of some forecast steps."""
    if not len(steps):
        raise HrxError("No step is given. Give some, counted from 1, as in plot_steps([1, 12, 24]).")
    rows = [shown.row(step) for step in steps]
    largest = float(np.nanmax(shown.matrix[rows])) if np.isfinite(shown.matrix[rows]).any() else 0.0
    with plain_style():
        figure = _new_figure((10, 2.4 + 1.1 * len(rows)))
        window, *panels = figure.subplots(
            len(rows) + 1, 1, sharex=True, gridspec_kw={"height_ratios": [2.2, *[1] * len(rows)]}
        )
        draw_window(window, shown.x, np.empty(0), shown.forecast)
        window.set_ylabel("value")
        positions = np.arange(-len(shown.x), 0)
        for axes, step, row in zip(panels, steps, rows, strict=True):
            axes.bar(positions + 0.5, shown.matrix[row], width=1.0, color=TRUTH)
            axes.axvline(0, color=GUIDE, linewidth=1)
            axes.axvspan(step - 1, step, color=FORECAST, alpha=0.35, linewidth=0)
            axes.set_ylim(0, 1.05 * largest or 1.0)
            axes.set_ylabel(f"step {step}")
            axes.spines[["top", "right"]].set_visible(False)
        _label_time(panels[-1], shown)
        figure.suptitle(f"{shown.heading}: importance for some forecast steps (orange)", fontsize=10, parse_math=False)
        figure.supylabel("importance, on one scale", fontsize=9)
        return figure


def lag_profile(matrix: Floats, steps: Ints) -> Floats:
    """`(R, L) -> (L,)`: the mean share of a row at the lags 1 to L, over the rows that reach that lag.

    The lag is the distance from an input to the forecast step: from the last input to step 1 it is 1. NaN where no row
    reaches it, or each that does is zero.
    """
    rows, lookback = matrix.shape
    total = matrix.sum(axis=1, keepdims=True)
    shares = matrix / np.where(total > 0, total, np.nan)
    by_lag = np.full((rows, lookback), np.nan)
    for row, step in enumerate(steps):
        # Step h reaches the lags h to h + L - 1; the last position of the row has lag h.
        reached = max(lookback - int(step) + 1, 0)
        by_lag[row, lookback - reached :] = shares[row, ::-1][:reached]
    known = np.isfinite(by_lag)
    counts = known.sum(axis=0)
    sums = np.where(known, by_lag, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def profile_figure(shown: ShownForecast) -> Figure:
    """Importance by lag, with the season and its multiples marked."""
    profile = lag_profile(np.asarray(shown.matrix, dtype=np.float64), shown.steps)
    lags = np.arange(1, len(profile) + 1)
    with plain_style():
        figure = _new_figure((10, 4.2))
        axes = figure.add_subplot()
        axes.plot(lags, 100 * profile, color=TRUTH, linewidth=1.4, marker="." if len(lags) <= 64 else None)
        seasons = range(shown.season, len(profile) + 1, shown.season) if shown.season > 1 else ()
        for number, lag in enumerate(list(seasons)[:_MOST_SEASONS]):
            label = f"season of {shown.season} steps, and its multiples" if not number else None
            axes.axvline(lag, color=FORECAST, linestyle="--", linewidth=1, alpha=0.7, label=label)
        if seasons:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
        axes.set_xlim(len(profile) + 0.5, 0.5)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("lag: steps from the input to the forecast step (the most recent on the right)")
        axes.set_ylabel("share of a row at that lag, mean (%)")
        axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(f"{shown.heading}: importance by lag", fontsize=10, parse_math=False)
        return figure


def waterfall_figure(shown: ShownForecast, step: int, contributions: Floats, base: str, top: int) -> Figure:
    """From the base at the bottom to the forecast of one step at the top, the largest contributions `(L,)` one by one.

    The base is the forecast less all contributions, `base` is its name. Positive contributions point to the right.
    """
    forecast = float(shown.forecast[step - 1])
    order = np.argsort(-np.abs(contributions), kind="stable")
    named, rest = order[:top], order[top:]
    bars = [(f"{shown.x[at]:.4g} = {shown.name(int(at) - len(shown.x))}", float(contributions[at])) for at in named]
    if rest.size:
        bars.append((f"{rest.size} other inputs", float(contributions[rest].sum())))
    start = forecast - float(contributions.sum())
    with plain_style():
        figure = _new_figure((9, 1.8 + 0.36 * len(bars)))
        axes = figure.add_subplot()
        # From the top, as people read it: the largest is the last step to the forecast.
        right = forecast
        for row, (_, value) in enumerate(bars):
            colour = FORECAST if value > 0 else TRUTH
            axes.barh(row, value, left=right - value, color=colour, height=0.72)
            axes.plot([right - value] * 2, [row - 0.4, row + 1.4], color=GUIDE, linewidth=0.7, linestyle=":")
            outer = max(right, right - value)
            axes.annotate(
                f"{value:+.3g}", (outer, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8}, zorder=4,
            )  # fmt: skip
            right -= value
        # Behind the bars, and the labels have a ground of their own, so that neither line crosses a number.
        ends = ((forecast, INK, f"forecast of step {step}"), (start, GUIDE, base))
        for value, colour, name in ends:
            axes.axvline(value, color=colour, linewidth=0.9, linestyle="--", zorder=0.5, label=f"{name}: {value:.4g}")
        axes.set_yticks(range(len(bars)), [label for label, _ in bars], parse_math=False)
        axes.set_ylim(len(bars) - 0.4, -0.6)
        sides = forecast - np.cumsum([0.0, *(value for _, value in bars)])
        room = 0.1 * float(np.ptp(sides)) or 1.0
        axes.set_xlim(sides.min() - room, sides.max() + room)
        axes.set_xlabel("value of the forecast (right, orange: raises it; left, blue: lowers it)")
        axes.spines[["top", "right"]].set_visible(False)
        when = "" if shown.times is None else f", {show_time(shown.times[len(shown.x) + step - 1])}"
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
        figure.suptitle(f"{shown.heading}: step {step}{when}", fontsize=10, parse_math=False)
        return figure


def _label_time(axes: Axes, shown: ShownForecast) -> None:
    """Dates below the last panel where there are some, else positions."""
    if shown.times is None:
        axes.set_xlabel("steps from the start of the forecast (lookback < 0 < forecast)")
        return
    lookback, count = len(shown.x), len(shown.times)
    at = np.unique(np.linspace(0, count - 1, min(_DATES, count)).round().astype(int))
    axes.set_xticks(at - lookback + 0.5, [show_time(shown.times[place]) for place in at])
    axes.set_xlabel(f"time; the forecast starts at {show_time(shown.times[lookback])}")


def _listed(steps: Ints) -> str:
    if len(steps) > 1 and (np.diff(steps) == 1).all():
        return f"{steps[0]} to {steps[-1]}"
    return ", ".join(map(str, steps))


def _new_figure(size: tuple[float, float]) -> Figure:
    """A figure that a notebook shows although it does not come from pyplot."""
    import io

    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return ShownFigure(figsize=size, dpi=_DPI, layout="constrained")
