"""Figures of a whole ledger: gains by group with their intervals, gain against rank, deletion curves.

Each function takes records and returns a matplotlib figure; `figures` writes those of a ledger. Whatever differs in
colour differs in marker or dash as well. matplotlib is imported when a figure is drawn, and without pyplot: no display
is needed, and the caller's state stays unchanged.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mode
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from hrx.errors import HrxError
from hrx.records.ledger import Ledger
from hrx.records.quantities import Floats
from hrx.reports.runs import beats_naive, fold_seeds, mask_short, scored_runs
from hrx.reports.statistics import FEW, FEWEST_SIGN, Evidence, evidence, finite, median
from hrx.reports.text import clean, counted, listed, make_directory, shorten, slug, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
INK, FORECAST, TRUTH, GUIDE = "#222222", "#D55E00", "#0072B2", "#888888"  # Okabe and Ito: safe for colour-blind readers
_TIMELESS = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Without the time of writing, the same figure is the same bytes."""
UNIT = "share of the forecasts' variance"
LEAST_BINNED = 2 * FEW
_LONGEST_NAME = 26
_MOST_BINS = 8
_MOST_CURVES = 12
_ROWS = (("own row", TRUTH, "-", "o"), ("shared vector", FORECAST, "--", "s"), ("all rows (mean)", GUIDE, ":", "^"))
_ORDERS = ("most relevant first", "least relevant first")


@contextmanager
def plain_style() -> Iterator[None]:
    """matplotlib's defaults instead of the user's matplotlibrc, and the same bytes every time."""
    from matplotlib import style

    with warnings.catch_warnings(), style.context(["default", {"svg.hashsalt": "hrx", "pdf.fonttype": 42}]):
        # A letter that the font lacks is drawn as a box, which needs no warning.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


def check_format(path: Path) -> None:
    """Refuses a suffix other than those of `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise HrxError(f"{path} has the suffix {path.suffix!r}. Give a file that ends in {' or '.join(FORMATS)}.")


def save(figure: Figure, path: Path) -> Path:
    """Writes a figure in the format of the path's suffix."""
    kind = path.suffix.lower()
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind[1:], metadata=_TIMELESS[kind])
    return write_bytes(path, buffer.getvalue())


class ForestBar(NamedTuple):
    """One line of a forest plot: a group with one value per cluster."""

    label: str
    found: Evidence

    @property
    def few(self) -> bool:
        """Whether it has too few clusters for a verdict on the sign."""
        return self.found.n < FEWEST_SIGN


def beating(frame: pd.DataFrame) -> pd.DataFrame:
    """Scored runs that beat naive, the only ones with a meaningful gain; impossible numbers and short ones are NaN."""
    done = mask_short(scored_runs(frame))
    return done[beats_naive(done)]


def bars(frame: pd.DataFrame, by: str, quantity: str = "g_margin") -> list[ForestBar]:
    """Evidence on a quantity in each group, by falling median cluster; seeds folded."""
    if frame.empty:
        return []
    groups = fold_seeds(frame, [quantity]).groupby(by, sort=False)
    found = [ForestBar(str(label), evidence(one[quantity], one["dataset"], one["series"])) for label, one in groups]
    return sorted((bar for bar in found if bar.found.n), key=lambda bar: -bar.found.interval.point)


def forest(shown: Sequence[ForestBar], quantity: str = "g_margin", title: str = "") -> Figure:
    """A line per group: median cluster, 95 % interval, and what counts. Groups of fewer than six are faint, hollow."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 1.9 + 0.27 * max(1, len(shown))), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    looks: dict[bool, Any] = {
        few: {"color": GUIDE if few else TRUTH, "markerfacecolor": "white" if few else TRUTH} for few in (False, True)
    }
    for row, bar in enumerate(shown):
        axes.plot(bar.found.known[1:], [row, row], color=looks[bar.few]["color"], linewidth=1.0 if bar.few else 1.8)
        axes.plot(bar.found.interval.point, row, "o", markersize=5.5, **looks[bar.few])
    units = listed(sorted({bar.found.unit for bar in shown}, reverse=True)).replace(" and ", " or ")
    for few in sorted({bar.few for bar in shown}):
        label = f"median {units}" + (f" of fewer than {FEWEST_SIGN}" if few else "")
        axes.plot([], [], "o-", markersize=5.5, label=f"{label}, 95 % interval", **looks[few])
    axes.axvline(0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    labels = [shorten(clean(bar.label), _LONGEST_NAME) for bar in shown]
    axes.set_yticks(range(len(shown)), labels, parse_math=False)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    # Centred below the figure: long names leave the axes too narrow for it.
    figure.supxlabel(f"{quantity} ({UNIT})", fontsize=10)
    _legend(figure, *axes.get_legend_handles_labels(), title=title)
    counts = axes.secondary_yaxis("right")
    counts.set_yticks(range(len(shown)), [bar.found.counted for bar in shown])
    counts.tick_params(length=0, labelsize=8)
    # A group of few may have an interval of any width: the axis is that of the large groups.
    if large := [bar for bar in shown if not bar.few] or list(shown):
        ends = finite([end for bar in large for end in bar.found.known])
        axes.set_xlim(*_with_zero(float(ends.min()), float(ends.max())))
    _tidy(axes)
    counts.spines["right"].set_visible(False)
    return figure


def gain_against_rank(frame: pd.DataFrame, quantity: str = "g_margin", subject: str = "") -> Figure:
    """Each configuration's gain against the rank of its matrix, with the medians of bins of equal count."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    points = fold_seeds(frame, ["rank", quantity])[["rank", quantity]].dropna() if len(frame) else pd.DataFrame()
    figure = Figure(figsize=(7.2, 4.4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    beyond = 0
    if len(points):
        rank, gain = (points[name].to_numpy(dtype=np.float64) for name in ("rank", quantity))
        alpha = float(np.clip(60 / len(points), 0.12, 0.7))
        look: dict[str, Any] = {"color": TRUTH, "alpha": alpha, "linewidths": 0, "rasterized": len(points) > 2000}
        axes.scatter(rank, gain, s=12, label="a configuration", **look)
        if len(binned := bin_medians(rank, gain)):
            axes.plot(*binned.T, color=INK, marker="s", markersize=6, linewidth=1.8, label="median of a bin")
        axes.legend(frameon=False)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        low, high = central_limits(gain)
        axes.set_ylim(low, high)
        beyond = int(((gain < low) | (gain > high)).sum())
    axes.axhline(0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xlabel("rank of the explanation matrix (participation ratio)")
    axes.set_ylabel(f"{quantity}\n({UNIT})")
    outside = f", {beyond} of them beyond the axis" if beyond else ""
    counts = f"{counted(len(points), 'configuration')} that {'beats' if len(points) == 1 else 'beat'} naive{outside}"
    heading = f"{quantity} against rank{f', {subject}' if subject else ''}\n{counts}"
    axes.set_title(heading, fontsize=10, loc="left", parse_math=False)
    _tidy(axes)
    return figure


def bin_medians(rank: Floats, gain: Floats) -> Floats:
    """`(B, 2)`: median rank and gain of bins with equally many points, by rank. Empty where there are too few."""
    if len(rank) < LEAST_BINNED:
        return np.empty((0, 2))
    order = np.argsort(rank, kind="stable")
    parts = np.array_split(order, min(_MOST_BINS, len(rank) // FEW))
    return np.array([(median(rank[part]), median(gain[part])) for part in parts])


def central_limits(values: Floats) -> tuple[float, float]:
    """Limits that hold zero and all values; of very many, all but one percent on either side."""
    tail = 1.0 if len(values) > 200 else 0.0
    low, high = np.percentile(values, (tail, 100 - tail))
    return _with_zero(float(low), float(high))


def _with_zero(low: float, high: float) -> tuple[float, float]:
    low, high = min(0.0, low), max(0.0, high)
    room = 0.06 * (high - low) or 1.0
    return low - room, high + room


def deletion_curves(curves: Mapping[str, Floats], title: str = "") -> Figure:
    """How far the forecast moves as more of the lookback is deleted: a row of two panels for each name.

    Each value is `(3, 2, K)`: own row, shared vector, mean of all rows; most and least relevant first; fractions.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    count = max(1, len(curves))
    figure = Figure(figsize=(7.2, 1.2 + 2.3 * count), dpi=150, layout="constrained")
    grid = figure.subplots(count, 2, sharex=True, sharey="row", squeeze=False)
    for panels, (name, lines) in zip(grid, curves.items(), strict=False):
        fractions = np.linspace(0, 1, lines.shape[-1])
        for axes, order, which in zip(panels, _ORDERS, range(2), strict=True):
            for (label, colour, dash, marker), line in zip(_ROWS, lines[:, which], strict=True):
                look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.6}
                axes.plot(fractions, line, dash, label=label, **look)
            heading = f"{shorten(clean(name), _LONGEST_NAME)}\ndeleted {order}"
            axes.set_title(heading, fontsize=9, loc="left", parse_math=False)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
            _tidy(axes)
        panels[0].set_ylabel(f"squared change\n({UNIT})", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("deleted share of the lookback")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    _legend(figure, handles, labels, title=title)
    return figure


def _legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], title: str) -> None:
    """Title and legend above the figure: the layout places a legend's own title, and not a figure's, above it."""
    legend = figure.legend(
        handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9, title=title or None
    )
    legend.get_title().set_parse_math(False)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)


def figures(ledger_path: str | Path, out_dir: str | Path, frame: pd.DataFrame) -> list[Path]:
    """Writes the figures of a ledger with the runs `frame`, in every format. Returns their paths."""
    out = make_directory(Path(out_dir))
    chosen = beating(frame)
    curves = model_curves(ledger_path, frame)
    models = list(dict.fromkeys(frame["model"].astype(str)))
    subject = shorten(clean(models[0]), _LONGEST_NAME) if len(models) == 1 else f"{len(models)} models"
    with plain_style():
        drawn: dict[str, Figure] = {}
        for by in ("model", "dataset"):
            if shown := bars(chosen, by):
                drawn[f"g-margin-by-{by}"] = forest(shown, title=f"g_margin by {by}, {subject}: runs that beat naive")
        if len(chosen):
            drawn["gain-against-rank"] = gain_against_rank(chosen, subject=subject)
        if curves:
            title = f"Deletion curves, {subject}: median of the runs with a stored example"
            drawn["deletion-curves"] = deletion_curves(curves, title)
        for figure in drawn.values():
            # Laid out once for all formats: that takes longer than writing them.
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        about = slug(models[0] if len(models) == 1 else subject)
        return [save(figure, out / f"{about}--{name}{end}") for name, figure in drawn.items() for end in FORMATS]


def model_curves(ledger_path: str | Path, frame: pd.DataFrame) -> dict[str, Floats]:
    """Deletion curves of each model: the median over its stored runs, of its most frequent number of fractions."""
    models = dict(zip(frame["key"].astype(str), frame["model"].astype(str), strict=True))
    found: dict[str, list[Floats]] = {}
    with Ledger.open(ledger_path, create=False) as ledger:
        for key in (key for key in ledger.example_keys() if key in models):
            for example in ledger.examples([key]):
                if example.curves is not None:
                    found.setdefault(models[key], []).append(example.curves)
    medians = {}
    for model, many in list(found.items())[:_MOST_CURVES]:
        usual = mode(one.shape[-1] for one in many)
        medians[model] = np.median([one for one in many if one.shape[-1] == usual], axis=0)
    return medians
