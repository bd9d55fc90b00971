"""Page of `hrx compare`: what changed first, then gates, quantities, and the windows that changed most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hrx.reports.changed import ChangedWindow, lag_name
from hrx.reports.comparison import CheckpointComparison
from hrx.reports.figures import FORECAST, TRUTH, plain_style
from hrx.reports.gates import WORDS, describe_gate
from hrx.reports.heatmap import draw_image, label_steps, new_figure, picture
from hrx.reports.page import made_by, render_page
from hrx.reports.text import clean, counted, percent, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST_NAME = 40
_MOST_LAG_LABELS = 6


def render_comparison(found: CheckpointComparison) -> str:
    """Return the page of a comparison."""
    names = [shorten(clean(side.model), _LONGEST_NAME) for side in (found.base, found.new)]
    heading = f"{names[1]} against {names[0]}"
    gates = [(clean(one.gate.text), WORDS[one.outcome], one.outcome, describe_gate(one)) for one in found.gates]
    windows = []
    for one in found.changed.windows:
        moved = f"forecast shift {percent(one.shift)}, reading overlap {percent(one.overlap)}"
        windows.append((f"{one.dataset}, {one.series}, {one.setting}, window {one.window}", moved, _drawn(one)))
    return render_page(
        "compare.html",
        ("core.js", "page.js"),
        {},
        title=f"{heading} – hrx compare",
        kicker="hrx compare",
        heading=heading,
        facts=f"{counted(found.pairs, 'pair')} of runs in {found.clusters.counted}",
        headline=found.changed.headline,
        verdict=found.verdict,
        tone={0: "yes", 1: "contrary"}.get(int(found.exit), "partly") if found.gates else "none",
        gates=gates,
        tables=found.tables(),
        windows=windows,
        footer=made_by(),
    )


def _drawn(one: ChangedWindow) -> str:
    with plain_style():
        return picture(window_figure(one))


def window_figure(one: ChangedWindow) -> Figure:
    """Both forecasts of one window, and both readings: scored steps by lag bin."""
    figure = new_figure((10, 4.2))
    grid = figure.add_gridspec(2, 2, height_ratios=(2, 3))
    forecasts = figure.add_subplot(grid[0, :])
    steps = np.arange(1, one.base.forecast.shape[1] + 1)
    forecasts.plot(steps, one.base.forecast[one.at], color=TRUTH, label="base")
    forecasts.plot(steps, one.new.forecast[one.at], color=FORECAST, label="new")
    forecasts.set_xlabel("forecast step")
    forecasts.set_ylabel("forecast")
    forecasts.legend(frameon=False)
    for place, (name, side) in enumerate((("base", one.base), ("new", one.new))):
        axes = figure.add_subplot(grid[1, place])
        rows, bins, steps_of = side.rows[one.at], side.bins, np.array(side.steps)[:, None]
        reached = (bins[1:] > steps_of) & (bins[:-1] < steps_of + side.lookback)
        draw_image(axes, np.where(reached, rows, np.nan), (0, rows.shape[1], len(rows) + 0.5, 0.5))
        label_steps(axes, steps_of[:, 0])
        at = np.unique(np.linspace(0, rows.shape[1] - 1, _MOST_LAG_LABELS).round().astype(int))
        axes.set_xticks(at + 0.5, [lag_name(bins[i], bins[i + 1] - 1).split(maxsplit=1)[1] for i in at])
        axes.set_xlabel(f"lag, {name}")
        axes.set_ylabel("forecast step h" if place == 0 else "")
    return figure
