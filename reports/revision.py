"""Figures of a revision: how its parts lead from the old forecast of one date to the new, and all dates at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hrx.records.explanation import show_time
from hrx.reports.figures import FORECAST, GUIDE, INK, plain_style
from hrx.reports.heatmap import draw_bars, new_figure
from hrx.reports.text import clean, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hrx.records.revision import Revision

_MOST_LABELS = 10
_LONGEST_HEADING = 90


def waterfall(r: Revision, date: Any = None, top: int = 10) -> Figure:
    """From the old forecast of a date, at the top, to the new: drift, the `top` largest contributions, the rest."""
    at = r.place(date)
    bars = [("drift: its own forecasts read as values", float(r.drift[at]))]
    if r.dropped is not None:
        bars.append((f"{len(r.arrived)} oldest values dropped", float(r.dropped[at])))
    named = np.sort(np.argsort(-np.abs(r.news[at]), kind="stable")[:top])
    bars += [
        (f"{show_time(r.arrived[n])}: {r.values[n]:.4g}, expected {r.expected[n]:.4g}", float(r.news[at, n]))
        for n in named
    ]
    if others := len(r.arrived) - len(named):
        bars.append((f"{others} other new values", float(r.news[at].sum() - r.news[at, named].sum())))
    bars.append(("remainder", float(r.remainder[at])))
    old, new = float(r.old[at]), float(r.new[at])
    with plain_style():
        figure = new_figure((9, 1.8 + 0.36 * len(bars)))
        axes = figure.add_subplot()
        draw_bars(axes, bars, old + np.cumsum([0.0, *(value for _, value in bars)]))
        before, after = map(show_time, r.origins)
        for value, colour, name in ((old, GUIDE, f"forecast from {before}"), (new, INK, f"forecast from {after}")):
            axes.axvline(value, color=colour, linewidth=0.9, linestyle="--", zorder=0.5, label=f"{name}: {value:.4g}")
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
        figure.suptitle(f"{_heading(r)}: revision of {show_time(r.dates[at])}", fontsize=10, parse_math=False)
        return figure


def calendar(r: Revision) -> Figure:
    """Both forecasts of each date, and below them what each new value and each other part adds to its revision."""
    rows = [("drift", r.drift), *([] if r.dropped is None else [("dropped history", r.dropped)])]
    rows += [(show_time(time), r.news[:, n]) for n, time in enumerate(r.arrived)]
    rows.append(("remainder", r.remainder))
    parts = np.stack([values for _, values in rows])
    largest = float(np.abs(parts).max()) or 1.0
    with plain_style():
        figure = new_figure((10, 4.2 + 0.16 * min(len(rows), 40)))
        grid = figure.add_gridspec(2, 2, height_ratios=(2, 1 + 0.12 * min(len(rows), 40)), width_ratios=(1, 0.02))
        forecasts = figure.add_subplot(grid[0, 0])
        panel = figure.add_subplot(grid[1, 0], sharex=forecasts)
        steps, (before, after) = np.arange(len(r)) + 0.5, map(show_time, r.origins)
        marker = "." if len(r) == 1 else None
        forecasts.plot(steps, r.old, color=GUIDE, linestyle="--", marker=marker, label=f"forecast from {before}")
        forecasts.plot(steps, r.new, color=FORECAST, marker=marker, label=f"forecast from {after}")
        forecasts.fill_between(steps, r.old, r.new, color=FORECAST, alpha=0.15, linewidth=0)
        forecasts.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0.1)
        forecasts.set_ylabel("forecast")
        forecasts.tick_params(labelbottom=False)
        forecasts.spines[["top", "right"]].set_visible(False)
        image = panel.imshow(
            parts, cmap="PuOr_r", vmin=-largest, vmax=largest, aspect="auto", interpolation=None,
            extent=(0, len(r), len(rows), 0),
        )  # fmt: skip
        _label(panel, [name for name, _ in rows], [show_time(date) for date in r.dates])
        panel.set_ylabel("part of the revision; times are\nthose of the new values")
        panel.set_xlabel("date that is forecast")
        figure.colorbar(image, cax=figure.add_subplot(grid[1, 1])).set_label("adds to the forecast")
        figure.suptitle(f"{_heading(r)}: what moved the forecasts", fontsize=10, parse_math=False)
        return figure


def _label(axes: Axes, rows: list[str], columns: list[str]) -> None:
    """Name some of the rows and columns, the parts that are not news among them."""
    parts = [n for n, name in enumerate(rows) if name in ("drift", "dropped history", "remainder")]
    news = [n for n in range(len(rows)) if n not in parts]
    some = [news[n] for n in _spaced(len(news), _MOST_LABELS)]
    axes.set_yticks([n + 0.5 for n in sorted(parts + some)], [rows[n] for n in sorted(parts + some)], fontsize=8)
    at = _spaced(len(columns), 6)
    axes.set_xticks([n + 0.5 for n in at], [columns[n] for n in at])


def _spaced(count: int, most: int) -> list[int]:
    return sorted({round(n) for n in np.linspace(0, count - 1, min(count, most))})


def _heading(r: Revision) -> str:
    return shorten(clean(f"{r.model.name} on {r.item}"), _LONGEST_HEADING)
