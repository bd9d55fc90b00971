"""Figures of explanations: the heat map of a run or of an explained series, single steps, importance by lag, waterfall.

All panels of a heat map share one time axis: position −1 of the lookback is the cell from −1 to 0, forecast step 1 the
cell from 0 to 1, so that the forecast starts at 0.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hrx.errors import HrxError
from hrx.records.explanation import Explanation, show_time
from hrx.records.ledger import Ledger, StoredExample
from hrx.records.quantities import Floats, Ints
from hrx.records.reading import lag_profile
from hrx.records.record import DONE, Record
from hrx.reports.figures import FORECAST, GUIDE, INK, TRUTH, check_format, plain_style, save
from hrx.reports.text import clean, counted, file_stem, make_directory, shorten, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "cividis"
HEATMAP_SIZE = (10, 7.2)
GUIDED = "below: the step that each row explains"
GAMMA = 0.5
BRIGHT = 0.99
"""Quantile of a matrix that its colours end at."""
_DIMMEST = 0.05
"""Part of the largest value that they end at where nearly all others are zero."""
_MOST_COLUMNS = 900
_STEEP = 10
_LONGEST_NAME, _SHORTEST_NAME = 40, 8
_LONGEST_HEADING = 60
_TITLE_SHARE = 0.96
_MOST_STEP_LABELS = 8
_DATES = 6
_MOST_SEASONS = 12
_DPI = 120
_POSITIONS = "steps from the start of the forecast (lookback < 0 < forecast)"


def heatmaps(
    ledger_path: str | Path, out_dir: str | Path, keys: Collection[str] | None = None, most: int | None = None
) -> list[Path]:
    """One PNG per model and dataset with a stored example, at most `most` of them. Returns their paths.

    Of several examples it is one that beats naive, if there is one, of the largest setting. `keys` selects some of the
    ledger's runs.
    """
    out = make_directory(Path(out_dir))
    chosen: dict[tuple[str, str, str], Record] = {}
    with Ledger.open(ledger_path, create=False) as ledger:
        stored = set(ledger.example_keys())
        for record in ledger.records(stored if keys is None else stored.intersection(keys)):
            if record.status == DONE:
                subject = (str(record.model), str(record.fingerprint), str(record.dataset))
                chosen[subject] = min(chosen.get(subject, record), record, key=_preference)
        names = {
            subject: file_stem(str(one.model), str(one.dataset), str(one.series), f"{one.lookback}x{one.horizon}")
            for subject, one in chosen.items()
        }
        written: list[Path] = []
        for subject, one in sorted(chosen.items(), key=lambda item: _preference(item[1])) if most else chosen.items():
            if most is not None and len(written) >= most:
                break
            name = names[subject]
            if list(names.values()).count(name) > 1:
                name += f"-{hashlib.sha256(json.dumps(subject).encode()).hexdigest()[:8]}"
            for example in ledger.examples([one.key]):  # none where it is damaged
                written.append(heatmap(example, one, out / f"{name}.png"))
    return written


def _preference(record: Record) -> tuple[bool, int]:
    """Orders the examples of a dataset: a gain is meaningful only where the run beats naive."""
    return record.beats_naive != 1, -(record.lookback or 0) * (record.horizon or 0)


def heatmap(stored: StoredExample, record: Record, path: Path) -> Path:
    """Draws the example of one run to `path`, PNG, SVG or PDF by its suffix. Returns the path."""
    check_format(path)
    with plain_style():
        return save(draw(stored, record), path)


def draw(stored: StoredExample, record: Record) -> Figure:
    """Window and forecast, heat map, shared vector, all over the same steps."""
    figure = new_figure(HEATMAP_SIZE)
    window, shared = _draw_panels(figure, stored.matrix, row_steps(stored, record.scored_steps))
    draw_window(window, stored.x, stored.truth, stored.forecast, guide=GUIDED)
    window.set_ylabel("standardised value")
    shared.set_xlabel(_POSITIONS)
    for longest in range(_LONGEST_NAME, _SHORTEST_NAME - 1, -4):
        # Names are shortened until the title fits; one between dollar signs is not a formula.
        text = figure.suptitle("\n".join(title(record, longest)), fontsize=10, parse_math=False)
        if text.get_window_extent().width <= _TITLE_SHARE * figure.bbox.width:
            break
    figure.supxlabel("\n".join(footing(record)), fontsize=9, color=INK, parse_math=False)
    return figure


def _draw_panels(figure: Figure, values: Floats, steps: Ints, by_row: bool = False) -> tuple[Axes, Axes]:
    """Draw the rows `(R, L)` of the forecast steps `(R,)`, from 1, and the shared vector below them.

    Return the empty axes of the window above them, and the lowest axes; all have one time axis.
    """
    grid = figure.add_gridspec(3, 2, height_ratios=(3, 5, 0.45), width_ratios=(1, 0.02))
    window = figure.add_subplot(grid[0, 0])
    matrix, shared = (figure.add_subplot(grid[row, 0], sharex=window) for row in (1, 2))
    rows, lookback = values.shape
    image = draw_image(matrix, over_rows(values) if by_row else values, (-lookback, 0, rows + 0.5, 0.5))
    label_steps(matrix, steps)
    matrix.set_ylabel("forecast step h")
    for axes in (matrix, shared):
        axes.axvline(0, color=GUIDE, linewidth=1)
        axes.spines[["top", "right"]].set_visible(False)
    # Under the forecast the panel is empty: a dotted line leads from each row to the step that it explains.
    matrix.plot(steps - 0.5, np.arange(1, rows + 1), color=GUIDE, linestyle=":", marker="." if rows == 1 else None)
    draw_image(shared, values.mean(axis=0, keepdims=True), (-lookback, 0, 1.5, 0.5))
    shared.set_yticks([1], ["shared\nvector Ē"])
    bar = figure.colorbar(image, cax=figure.add_subplot(grid[1, 1]), extend="max")
    over = "E / the row's max" if by_row else "E / max E"
    bar.set_label(f"importance: {over}, below it Ē / max Ē\n(square-root scale that ends at the 99th percentile)")
    for axes in (window, matrix):
        axes.tick_params(labelbottom=False)
    return window, shared


def title(record: Record, longest: int = _LONGEST_NAME) -> tuple[str, str]:
    """Return the example's names, each in at most `longest` columns, and the gains of the whole run."""

    def name(column: str) -> str:
        return shorten(clean(getattr(record, column)), longest)

    heading = f"{name('model')} on {name('dataset')}, series {name('series')}"
    verdict = "beats naive" if record.beats_naive == 1 else "does not beat naive: gains are not meaningful"
    gains = ", ".join(f"{gain} {signed(getattr(record, gain))}" for gain in ("g_own", "g_margin"))
    windows = f"first of {counted(record.windows or 0, 'window')}"
    return heading, f"L {record.lookback}, H {record.horizon}, {windows}; run {verdict}; {gains}"


def footing(record: Record) -> tuple[str, ...]:
    """Below the heat map: the run's error beside the naive ones, and how far back its rows reach."""
    lines = []
    if None not in (record.mse, record.mse_zero, record.mse_last):
        mse, zero, last = (f"{error:.3g}" for error in (record.mse, record.mse_zero, record.mse_last))
        season = "unknown" if record.mse_seasonal is None else f"{record.mse_seasonal:.3g}"
        naive = f"of predicting the mean {zero}, of repeating the last value {last}, the last season {season}"
        lines.append(f"mean squared error {mse}; {naive}")
    if record.effective_lookback is not None:
        reach = f"effective lookback {record.effective_lookback:.0f} of {record.lookback} steps"
        lines.append(f"{reach}: 90 % of a row's mass on average")
    return tuple(lines)


def row_steps(stored: StoredExample, scored_steps: str | None) -> Ints:
    """Return the forecast step of each row, from 1: all of them, or the scored ones where only these were estimated."""
    rows, horizon = len(stored.matrix), len(stored.forecast)
    scored = json.loads(scored_steps or "[]") if rows != horizon else []
    return np.asarray(scored, dtype=np.int64) + 1 if len(scored) == rows else np.arange(1, rows + 1)


def draw_window(axes: Axes, x: Floats, truth: Floats, forecast: Floats, *, of: str = "", guide: str = "") -> None:
    """Draw the lookback `(L,)`, and truth and forecast `(H,)` after it; `of` says whose truth it is, if any."""
    before, after = np.arange(-len(x), 0) + 0.5, np.arange(len(forecast)) + 0.5
    # A horizon of one step has no line to draw, only a point.
    marker = "." if len(after) == 1 else None
    axes.plot(before, x, color=INK, linewidth=0.9, label="lookback")
    if len(truth):
        axes.plot(after, truth, color=TRUTH, linewidth=1.2, marker=marker, label=of or "truth")
    axes.plot(after, forecast, color=FORECAST, linewidth=1.6, linestyle="--", marker=marker, label="forecast")
    axes.axvline(0, color=GUIDE, linewidth=1)
    if guide:
        axes.plot([], [], color=GUIDE, linestyle=":", label=guide)
    axes.set_xlim(-len(x), len(forecast))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, borderaxespad=0.1)
    axes.spines[["top", "right"]].set_visible(False)


def label_steps(axes: Axes, steps: Ints) -> None:
    """Labels some of the rows with their forecast steps, counted from 1."""
    at = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_STEP_LABELS)).round().astype(int))
    axes.set_yticks(at + 1, [str(step) for step in steps[at]])


def draw_image(axes: Axes, values: Floats, extent: tuple[float, float, float, float], top: float | None = None) -> Any:
    """Draw the values over their maximum on a square-root colour scale; those that are not finite stay empty.

    The colours end at `top`, by default at the `BRIGHT` quantile, since one cell may outshine all others.
    """
    from matplotlib.colors import PowerNorm

    shown = np.ma.masked_invalid(np.asarray(values, dtype=np.float64))
    largest = float(shown.max()) if shown.count() else 0.0
    shown = shown / largest if largest > 0 else shown
    if top is None:
        top = max(float(np.quantile(shown.compressed(), BRIGHT)), _DIMMEST) if shown.count() else 1.0
    return axes.imshow(
        shown,
        cmap=COLOURS,
        norm=PowerNorm(GAMMA, vmin=0, vmax=top),
        extent=extent,
        aspect="auto",
        # A position is at most one pixel column, unless they are very many: neighbours must not be averaged.
        interpolation="nearest" if shown.shape[1] <= _MOST_COLUMNS else None,
        interpolation_stage="data",
    )


def over_rows(values: Floats) -> Floats:
    """`(R, L)`: each row over its own maximum."""
    largest = np.nanmax(values, axis=-1, keepdims=True, initial=0.0)
    return np.asarray(np.divide(values, largest, out=np.zeros_like(values), where=largest > 0))


def heatmap_figure(
    x: Explanation,
    number: int = 0,
    *,
    by_row: bool = False,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
) -> Figure:
    """Window and forecast of one series, what each step reads, and the shared vector, over one time axis.

    `by_row` divides each row by its own maximum. The matrix alone is drawn into `ax`.
    """
    with plain_style():
        values, steps = np.asarray(x.matrix[number], dtype=np.float64), np.asarray(x.steps)
        if ax is not None:
            draw_image(ax, over_rows(values) if by_row else values, (-x.lookback, 0, len(values) + 0.5, 0.5))
            label_steps(ax, steps)
            label_time(ax, x, number)
            ax.set_xlim(-x.lookback, 0)
            ax.set_ylabel("forecast step h")
            return cast("Figure", ax.figure)
        figure = new_figure(figsize or HEATMAP_SIZE)
        window, shared = _draw_panels(figure, values, steps, by_row)
        draw_forecast(window, x, number)
        label_time(shared, x, number)
        figure.suptitle(heading(x, number), fontsize=10, parse_math=False)
        if x.notes:
            figure.supxlabel("; ".join(x.notes), fontsize=9, color=INK, parse_math=False)
        return figure


def draw_forecast(axes: Axes, x: Explanation, number: int, guide: str = GUIDED) -> None:
    """Draw the window and forecast of one series, with a band between the outer quantiles where they are known.

    Of a spread, which is no value of the series, the median stands in its place.
    """
    levels = sorted(x.quantiles)
    line = x.quantiles.get(0.5, np.full_like(x.forecast, np.nan)) if ":" in x.output else x.forecast
    if len(levels) > 1:
        low, high = (x.quantiles[level][number] for level in (levels[0], levels[-1]))
        at = np.arange(x.horizon) + 0.5
        axes.fill_between(
            at, low, high, color=FORECAST, alpha=0.2, linewidth=0, label=f"{levels[0]:g} to {levels[-1]:g}"
        )
    draw_window(axes, x.x[number], np.empty(0), line[number], guide=guide)
    axes.set_ylabel("value")


def steps_figure(
    x: Explanation, steps: Sequence[int], number: int = 0, figsize: tuple[float, float] | None = None
) -> Figure:
    """Draw the window of one series, and a panel with the row of each of some forecast steps, counted from 1."""
    if not len(steps):
        raise HrxError("No step is given. Give some, counted from 1, as in plot_steps([1, 12, 24]).")
    rows = x.matrix[number, [x.row(step) for step in steps]]
    largest = float(np.nanmax(rows)) if np.isfinite(rows).any() else 0.0
    with plain_style():
        figure = new_figure(figsize or (10, 2.4 + 1.1 * len(rows)))
        window, *panels = figure.subplots(
            len(rows) + 1, 1, sharex=True, gridspec_kw={"height_ratios": [2.2, *[1] * len(rows)]}
        )
        draw_forecast(window, x, number, guide="")
        edges = np.arange(-x.lookback, 1)
        # One value may outshine all others.
        steep = largest > _STEEP * float(np.nanquantile(rows, BRIGHT)) if largest else False
        for axes, step, row in zip(panels, steps, rows, strict=True):
            # An outline too: a filled bar of one pixel would be pale.
            axes.stairs(np.nan_to_num(row), edges, fill=True, facecolor=TRUTH, edgecolor=TRUTH, linewidth=0.8)
            axes.axvline(0, color=GUIDE, linewidth=1)
            axes.axvspan(step - 1, step, color=FORECAST, alpha=0.35, linewidth=1)
            if steep:
                axes.set_yscale("function", functions=(np.sqrt, np.square))
            axes.set_ylim(0, 1.05 * largest or 1.0)
            axes.set_ylabel(f"step {step}")
            axes.spines[["top", "right"]].set_visible(False)
        label_time(panels[-1], x, number)
        text = f"{heading(x, number)}: importance for some forecast steps (orange)"
        figure.suptitle(text, fontsize=10, parse_math=False)
        figure.supylabel(f"importance, on one {'square-root ' if steep else ''}scale", fontsize=9)
        return figure


def profile_figure(
    x: Explanation, number: int = 0, ax: Axes | None = None, figsize: tuple[float, float] | None = None
) -> Figure:
    """Importance by lag for one series, with the season and its multiples marked."""
    profile = lag_profile(x.matrix[number], x.steps)
    lags, season = np.arange(1, len(profile) + 1), x.seasons[number]
    with plain_style():
        axes = new_figure(figsize or (10, 4.2)).add_subplot() if ax is None else ax
        axes.plot(lags, 100 * profile, color=TRUTH, linewidth=1.4, marker="." if len(lags) <= 64 else None)
        seasons = range(season, len(profile) + 1, season) if season > 1 else ()
        for count, lag in enumerate(list(seasons)[:_MOST_SEASONS]):
            label = f"season of {season} steps, and its multiples" if not count else None
            axes.axvline(lag, color=FORECAST, linestyle="--", linewidth=1, alpha=0.7, label=label)
        if seasons:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
        axes.set_xlim(len(profile) + 0.5, 0.5)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("lag: steps from the input to the forecast step (the most recent on the right)")
        axes.set_ylabel("share of a row at that lag, mean (%)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(f"{heading(x, number)}: importance by lag", fontsize=10, loc="left", parse_math=False)
        return cast("Figure", axes.figure)


def waterfall_figure(x: Explanation, step: int, number: int = 0, top: int = 10) -> Figure:
    """From the base at the bottom to the forecast of one step at the top, the `top` largest contributions one by one.

    The base is the forecast less all contributions. Positive contributions point to the right.
    """
    contributions, base = _contributions(x, step, number)
    forecast = float(x.forecast[number, step - 1])
    order = np.argsort(-np.abs(contributions), kind="stable")
    named, rest = order[:top], order[top:]
    times = x.times[number]
    places = {at: f"position {at - x.lookback}" for at in named}
    if times is not None:
        places = {at: f"{show_time(times.inputs[at])} ({at - x.lookback})" for at in named}
    bars = [(f"{x.x[number, at]:.4g} = {place}", float(contributions[at])) for at, place in places.items()]
    if rest.size:
        bars.append((f"{rest.size} other inputs", float(contributions[rest].sum())))
    start = forecast - float(contributions.sum())
    with plain_style():
        figure = new_figure((9, 1.8 + 0.36 * len(bars)))
        axes = figure.add_subplot()
        # From the top, as people read it: the largest is the last step to the forecast.
        sides = forecast - np.cumsum([0.0, *(value for _, value in bars)])
        draw_bars(axes, bars, sides)
        # Behind the bars, and the labels have a ground of their own, so that neither line crosses a number.
        for value, colour, name in ((forecast, INK, f"forecast of step {step}"), (start, GUIDE, base)):
            axes.axvline(value, color=colour, linewidth=0.9, linestyle="--", zorder=0.5, label=f"{name}: {value:.4g}")
        when = "" if times is None else f", {show_time(times.forecasts[step - 1])}"
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
        figure.suptitle(f"{heading(x, number)}: step {step}{when}", fontsize=10, parse_math=False)
        return figure


def draw_bars(axes: Axes, bars: Sequence[tuple[str, float]], sides: Floats) -> None:
    """Draw a row for each label and value; row `i` lies between `sides[i]` and `sides[i + 1]`."""
    for row, (_, value) in enumerate(bars):
        colour = FORECAST if value > 0 else TRUTH
        near, far = sides[row], sides[row + 1]
        axes.barh(row, value, left=(near + far - value) / 2, color=colour, height=0.72)
        axes.plot([far, far], [row - 0.4, row + 1.4], color=GUIDE, linewidth=0.7, linestyle=":")
        axes.annotate(
            f"{value:+.3g}", (max(near, far), row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8}, zorder=4,
        )  # fmt: skip
    axes.set_yticks(range(len(bars)), [label for label, _ in bars], parse_math=False)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    room = 0.1 * float(np.ptp(sides)) or 1.0
    axes.set_xlim(sides.min() - room, sides.max() + room)
    axes.set_xlabel("value of the forecast (right, orange: raises it; left, blue: lowers it)")
    axes.spines[["top", "right"]].set_visible(False)


def _contributions(x: Explanation, step: int, number: int) -> tuple[Floats, str]:
    """Return the contributions `(L,)` of the inputs to the forecast of one step, and what they are added to."""
    row, base = x.row(step), "forecast less the contributions"
    if x.signed is None:
        raise HrxError(
            f"A waterfall needs contributions with a sign, and {x.method.estimator} has none. Explain with "
            "estimator='integrated_gradients', or with the input gradient."
        )
    contributions = np.asarray(x.signed[number, row], dtype=np.float64)
    if x.method.sign == "slope":
        return contributions * (x.x[number] - x.x[number].mean()), base
    if x.method.estimator == "integrated_gradients":
        base = "forecast of a flat window at the mean"
    return contributions, base


def heading(x: Explanation, number: int) -> str:
    which = f", series {number + 1} of {len(x)}" if len(x) > 1 else ""
    output = "" if x.output == "point" else f", {'spread ' if ':' in x.output else ''}{x.output}"
    title = f"{x.model.name} on {x.items[number]}{which}{output}, by {x.method.estimator}"
    return shorten(clean(title), _LONGEST_HEADING)


def label_time(axes: Axes, x: Explanation, number: int) -> None:
    """Dates below the last panel where there are some, else positions."""
    if (known := x.times[number]) is None:
        axes.set_xlabel(_POSITIONS)
        return
    times = known.inputs.append(known.forecasts)
    at = np.unique(np.linspace(0, len(times) - 1, min(_DATES, len(times))).round().astype(int))
    axes.set_xticks(at - x.lookback + 0.5, [show_time(times[place]) for place in at])
    axes.set_xlabel(f"time; the forecast starts at {show_time(times[x.lookback])}")


def picture(figure: Figure) -> str:
    """A figure as the address of an image in HTML."""
    return f"data:image/png;base64,{base64.b64encode(_png(figure)).decode('ascii')}"


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def new_figure(size: tuple[float, float]) -> Figure:
    """A figure that a notebook shows although it does not come from pyplot."""
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        _repr_png_ = _png

    return ShownFigure(figsize=size, dpi=_DPI, layout="constrained")
