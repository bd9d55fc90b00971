"""Figures of an explanation with several channels: a heat map of each over one time axis, and what each does.

The cell from −1 to 0 is the last input, that from 0 to 1 the first step ahead: the heat map of a channel that is known
ahead runs past the forecast line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from hrx.errors import HrxError
from hrx.records.channels import ChannelEffect
from hrx.records.explanation import Explanation
from hrx.reports.figures import GUIDE, INK, TRUTH, plain_style
from hrx.reports.heatmap import (
    COLOURS,
    GAMMA,
    draw_forecast,
    heading,
    label_steps,
    label_time,
    new_figure,
)
from hrx.reports.text import clean, counted, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CHANNELS = 6
_LONGEST_NAME = 24


def channels_heatmap(x: Explanation, number: int = 0) -> Figure:
    """Window and forecast of one series, and for each channel its values and what each step reads of them."""
    from matplotlib.colors import PowerNorm

    shown, left = _chosen(x, number)
    largest = max(float(np.nanmax(x.parts[name].matrix[number], initial=0.0)) for name in shown)
    steps, rows = np.asarray(x.steps), len(x.steps)
    with plain_style():
        figure = new_figure((10, 2.6 + 1.75 * len(shown)))
        # The values of the target are those of the window above.
        heights = [2.4, *(height for at, _ in enumerate(shown) for height in (0.8 if at else 0.2, 1.9))]
        grid = figure.add_gridspec(len(heights), 2, height_ratios=heights, width_ratios=(1, 0.02))
        window = figure.add_subplot(grid[0, 0])
        draw_forecast(window, x, number)
        axes, image = window, None
        for place, name in enumerate(shown):
            part = x.parts[name]
            length = part.values.shape[1]
            values = figure.add_subplot(grid[1 + 2 * place, 0], sharex=window)
            edges = np.arange(length + 1) - x.lookback
            if place:
                values.stairs(part.values[number], edges, baseline=None, color=INK, linewidth=0.8)
            else:
                values.set_axis_off()
            axes = figure.add_subplot(grid[2 + 2 * place, 0], sharex=window)
            image = axes.imshow(
                part.matrix[number] / largest if largest > 0 else part.matrix[number],
                cmap=COLOURS,
                norm=PowerNorm(GAMMA, vmin=0, vmax=1),
                extent=(-x.lookback, length - x.lookback, rows + 0.5, 0.5),
                aspect="auto",
            )
            axes.plot(steps - 0.5, np.arange(1, rows + 1), color=GUIDE, linestyle=":")
            label_steps(axes, steps)
            axes.set_ylabel("step")
            values.set_title(_about(x, number, name), fontsize=9, loc="left", pad=2, parse_math=False)
            for one in (values, axes) if place else (axes,):
                one.axvline(0, color=GUIDE, linewidth=1)
                one.spines[["top", "right"]].set_visible(False)
                one.tick_params(labelbottom=False)
        window.tick_params(labelbottom=False)
        axes.tick_params(labelbottom=True)
        window.set_xlim(-x.lookback, x.horizon)
        label_time(axes, x, number)
        assert image is not None
        bar = figure.colorbar(image, cax=figure.add_subplot(grid[1:, 1]))
        bar.set_label("importance over the largest of all channels (square-root colour scale)")
        figure.suptitle(heading(x, number), fontsize=10, parse_math=False)
        texts = [f"not shown: {', '.join(left)}"] if left else []
        if texts := [*texts, *x.notes]:
            figure.supxlabel("; ".join(texts), fontsize=9, color=INK, parse_math=False)
        return figure


def channels_figure(x: Explanation, number: int = 0) -> Figure:
    """Effect of each channel with its error, in the mean of the steps, and its share at each step."""
    if not x.effects:
        raise HrxError("This explanation has one channel. Name covariates: hrx.explain(…, past=[…], future=[…]).")
    effects = sorted(x.effects[number], key=_order)
    names = [f"{shorten(clean(one.name), _LONGEST_NAME)} ({one.role})" for one in effects]
    place = np.arange(len(effects))
    with plain_style():
        figure = new_figure((10, 1.8 + 0.42 * len(effects)))
        bars, shares = figure.subplots(1, 2, sharey=True, width_ratios=(2, 3))
        totals = np.array([one.total for one in effects])
        errors = np.nan_to_num([one.total_error for one in effects])
        colours = [TRUTH if one.read else GUIDE for one in effects]
        bars.barh(place, np.nan_to_num(totals), xerr=errors, color=colours, error_kw={"ecolor": INK, "capsize": 2})
        for at, one in zip(place, effects, strict=True):
            says = "no other block" if not one.measured else f"from step {one.read_from}" if one.read else "not read"
            end = np.nan_to_num(totals[at]) + errors[at]
            bars.annotate(says, (end, at), (4, 0), textcoords="offset points", va="center", fontsize=8)
        bars.set_yticks(place, names)
        bars.invert_yaxis()
        bars.margins(x=0.35)
        bars.set_xlim(left=0)
        bars.set_xlabel("effect: mean squared change,\nas a share of the forecasts' variance")
        image = shares.imshow(
            100 * np.array([one.share for one in effects]), cmap=COLOURS, vmin=0, vmax=100, aspect="auto",
            extent=(0.5, x.horizon + 0.5, len(effects) - 0.5, -0.5),
        )  # fmt: skip
        shares.set_xlabel("forecast step")
        figure.colorbar(image, ax=shares).set_label("share of the step's effects (%)")
        for axes in (bars, shares):
            axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(f"{heading(x, number)}: what each channel does", fontsize=10, parse_math=False)
        return figure


def _order(one: ChannelEffect) -> float:
    return -one.total if one.measured else 0.0


def _chosen(x: Explanation, number: int) -> tuple[list[str], list[str]]:
    """Return the channels that get a heat map, the target first, then by their effects; and the others."""
    totals = {one.name: _order(one) for one in x.effects[number]} if x.effects else {}
    own = x.targets[number]
    ordered = sorted(x.parts, key=lambda name: (name != own, totals.get(name, 0.0)))
    shown = [name for name in ordered if x.parts[name].role != "static"][:MOST_CHANNELS]
    rest = [name for name in ordered if name not in shown]
    named = [_about(x, number, name) for name in rest[:MOST_CHANNELS]]
    return shown, named + ([counted(len(rest) - len(named), "more channel")] if len(rest) > len(named) else [])


def _about(x: Explanation, number: int, name: str) -> str:
    """Name, role and effect of a channel in words."""
    found = {one.name: one for one in x.effects[number]} if x.effects else {}
    text = f"{shorten(clean(name), _LONGEST_NAME)} ({x.parts[name].role})"
    if (one := found.get(name)) is None or not one.measured:
        return text
    if not one.read:
        return f"{text}: not read"
    share = float(pd.Series(one.share).mean())
    since = f" from step {one.read_from}" if one.read_from and one.read_from > 1 else ""
    return f"{text}: read{since}, {'less than 1' if share < 0.01 else f'{100 * share:.0f}'} % of the effects"
