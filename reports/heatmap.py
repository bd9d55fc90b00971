"""The heat map of one run: its example window with the forecast, and below it what each forecast step reads.

All panels share one time axis: position −1 of the lookback is the cell from −1 to 0, forecast step 1 the cell from 0 to
1, so that the forecast starts at 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hrx.records.ledger import Ledger, StoredExample
from hrx.records.quantities import Floats, Ints
from hrx.records.record import DONE, Record
from hrx.reports.figures import FORECAST, GUIDE, INK, TRUTH, check_format, plain_style, save
from hrx.reports.text import clean, counted, make_directory, shorten, signed, slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "cividis"
HEATMAP_SIZE = (10, 7.2)
GUIDED = "below: the step that each row explains"
GAMMA = 0.5
_LONGEST_NAME, _SHORTEST_NAME = 40, 8
_TITLE_SHARE = 0.96
_MOST_STEP_LABELS = 8


def heatmaps(ledger_path: str | Path, out_dir: str | Path, keys: Collection[str] | None = None) -> list[Path]:
    """One PNG per model and dataset with a stored example. Returns their paths.

    Of several examples it is one that beats naive, if there is one, of the largest setting. `keys` selects some of the
    ledger's runs.
    """
    out = make_directory(Path(out_dir))
    subjects: dict[tuple[str, str, str], list[Record]] = {}
    with Ledger.open(ledger_path, create=False) as ledger:
        stored = set(ledger.example_keys())
        for record in ledger.records(stored if keys is None else stored.intersection(keys)):
            if record.status == DONE:
                subject = (str(record.model), str(record.fingerprint), str(record.dataset))
                subjects.setdefault(subject, []).append(record)
        chosen = {subject: min(records, key=_preference) for subject, records in subjects.items()}
        names = {
            subject: speaking_name(str(one.model), str(one.dataset), str(one.series), f"{one.lookback}x{one.horizon}")
            for subject, one in chosen.items()
        }
        written = []
        for subject, one in chosen.items():
            name = names[subject]
            if list(names.values()).count(name) > 1:
                name += f"-{hashlib.sha256(json.dumps(subject).encode()).hexdigest()[:8]}"
            written.append(heatmap(ledger.examples([one.key])[0], one, out / f"{name}.png"))
    return written


def _preference(record: Record) -> tuple[bool, int]:
    """Orders the examples of a dataset: a gain is meaningful only where the run beats naive."""
    return record.beats_naive != 1, -(record.lookback or 0) * (record.horizon or 0)


def speaking_name(*names: str) -> str:
    """The file name, without a suffix, of a picture, from model, dataset, series and setting, or other names.

    For example `bolt-mini--co2-w--co2--512x96`.
    """
    return "--".join(map(slug, names))


def heatmap(stored: StoredExample, record: Record, path: str | Path) -> Path:
    """Draws the example of one run to `path`, PNG, SVG or PDF by its suffix. Returns the path."""
    path = Path(path)
    check_format(path)
    with plain_style():
        return save(draw(stored, record), path)


def draw(stored: StoredExample, record: Record) -> Figure:
    """The figure: window and forecast, heat map, shared vector, all over the same steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=HEATMAP_SIZE, dpi=120, layout="constrained")
    panels = add_panels(figure)
    draw_window(panels.window, stored.x, stored.truth, stored.forecast, guide=GUIDED)
    panels.window.set_ylabel("standardised value")
    draw_matrix(panels, stored.matrix, row_steps(stored, record.scored_steps))
    panels.shared.set_xlabel("steps from the start of the forecast (lookback < 0 < forecast)")
    for longest in range(_LONGEST_NAME, _SHORTEST_NAME - 1, -4):
        # Names are shortened until the title fits; one between dollar signs is not a formula.
        text = figure.suptitle("\n".join(title(record, longest)), fontsize=10, parse_math=False)
        if text.get_window_extent().width <= _TITLE_SHARE * figure.bbox.width:
            break
    figure.supxlabel("\n".join(footing(record)), fontsize=9, color=INK, parse_math=False)
    return figure


class HeatmapPanels(NamedTuple):
    """The axes of a heat map, over the same steps."""

    window: Axes
    matrix: Axes
    shared: Axes
    colours: Axes


def add_panels(figure: Figure) -> HeatmapPanels:
    """Adds the empty panels of a heat map to a figure."""
    grid = figure.add_gridspec(3, 2, height_ratios=(3, 5, 0.45), width_ratios=(1, 0.02))
    window = figure.add_subplot(grid[0, 0])
    matrix, shared = (figure.add_subplot(grid[row, 0], sharex=window) for row in (1, 2))
    return HeatmapPanels(window, matrix, shared, figure.add_subplot(grid[1, 1]))


def draw_matrix(panels: HeatmapPanels, values: Floats, steps: Ints) -> None:
    """The rows `(R, L)` of the forecast steps `(R,)`, counted from 1, the shared vector below them, and the colours."""
    rows, lookback = values.shape
    matrix, shared = panels.matrix, panels.shared
    image = draw_image(matrix, values, (-lookback, 0, rows + 0.5, 0.5))
    label_steps(matrix, steps)
    matrix.set_ylabel("forecast step h")
    for axes in (matrix, shared):
        axes.axvline(0, color=GUIDE, linewidth=1)
        axes.spines[["top", "right"]].set_visible(False)
    # Under the forecast the panel is empty: a dotted line leads from each row to the step that it explains.
    matrix.plot(steps - 0.5, np.arange(1, rows + 1), color=GUIDE, linestyle=":", marker="." if rows == 1 else None)
    draw_image(shared, values.mean(axis=0, keepdims=True), (-lookback, 0, 1.5, 0.5))
    shared.set_yticks([1], ["shared\nvector Ē"])
    bar = matrix.figure.colorbar(image, cax=panels.colours)
    bar.set_label("importance: E / max E, below it Ē / max Ē\n(square-root colour scale)")
    for axes in (panels.window, matrix):
        axes.tick_params(labelbottom=False)


def title(record: Record, longest: int = _LONGEST_NAME) -> tuple[str, str]:
    """The example's names, each in at most `longest` columns, and the gains of the whole run."""

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
    """The forecast step of each row, from 1: all of them, or the scored ones where only these were estimated."""
    rows, horizon = len(stored.matrix), len(stored.forecast)
    if rows != horizon:
        scored = json.loads(scored_steps or "[]")
        if len(scored) == rows:
            return np.asarray(scored, dtype=np.int64) + 1
    return np.arange(1, rows + 1)


def draw_window(axes: Axes, x: Floats, truth: Floats, forecast: Floats, *, of: str = "", guide: str = "") -> None:
    """The lookback `(L,)`, and truth and forecast `(H,)` after it; `of` says whose truth it is, if any."""
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
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, borderaxespad=0.1)
    axes.spines[["top", "right"]].set_visible(False)


def label_steps(axes: Axes, steps: Ints) -> None:
    """Labels some of the rows with their forecast steps, counted from 1."""
    at = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_STEP_LABELS)).round().astype(int))
    axes.set_yticks(at + 1, [str(step) for step in steps[at]])


def draw_image(
    axes: Axes, values: Floats, extent: tuple[float, float, float, float], interpolation: str | None = None
) -> Any:
    """The values over their maximum on a square-root colour scale; those that are not finite stay empty."""
    from matplotlib.colors import PowerNorm

    shown = np.ma.masked_invalid(np.asarray(values, dtype=np.float64))
    largest = float(shown.max()) if shown.count() else 0.0
    return axes.imshow(
        shown / largest if largest > 0 else shown,
        cmap=COLOURS,
        norm=PowerNorm(GAMMA, vmin=0, vmax=1),
        extent=extent,
        aspect="auto",
        interpolation=interpolation,
        interpolation_stage="data",
    )
