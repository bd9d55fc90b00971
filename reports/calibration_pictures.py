"""The pictures of a calibration: for each generator the answer, the shared vector and the matrix; the planted ranks.

Time runs as in `hrx.reports.heatmap`: the forecast starts at 0, the lookback lies before it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hrx.audit.calibration.generators import PLANTED
from hrx.audit.calibration.results import Calibration, Example
from hrx.reports.drawing import FORECAST, GUIDE, INK, TRUTH, plain_style, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "cividis"
GAMMA = 0.5
_MARKS = (("o", TRUTH, "-"), ("s", FORECAST, "--"), ("^", "#009E73", ":"), ("D", INK, "-."))
_MOST_STEP_LABELS = 8

Floats = npt.NDArray[np.float64]


def pictures(calibration: Calibration, out: Path) -> list[Path]:
    """A PNG for each generator and one of the planted ranks, in a directory that exists. Returns their paths."""
    with plain_style():
        written = [
            save(draw_example(example, calibration.estimator), out / f"{example.trial.generator}.png")
            for example in calibration.examples
        ]
        return [*written, save(draw_ranks(calibration), out / "planted-rank.png")]


def draw_example(example: Example, estimator: str) -> Figure:
    """One window, the answer, what a method without a horizon axis returns, and the matrix."""
    from matplotlib.figure import Figure

    trial = example.trial
    figure = Figure(figsize=(11, 6.4), dpi=120, layout="constrained")
    grid = figure.add_gridspec(2, 4, height_ratios=(2, 4), width_ratios=(1, 1, 1, 0.04))
    _draw_window(figure.add_subplot(grid[0, :3]), example)
    shared = np.broadcast_to(example.matrix.mean(axis=0), example.matrix.shape)
    panels = (
        ("answer: |w(h)| on S(h)", example.answer),
        (f"shared vector Ē for every step\nAUPRC {trial.auprc_vector:.3f}", shared),
        (f"matrix E\nAUPRC {trial.auprc_matrix:.3f}", example.matrix),
    )
    axes = [figure.add_subplot(grid[1, column]) for column in range(3)]
    images = [_draw_matrix(one, values, example.steps) for one, (_, values) in zip(axes, panels, strict=True)]
    for one, (title, _) in zip(axes, panels, strict=True):
        one.set_title(title, fontsize=10)
        one.set_xlabel("steps from the start of the forecast")
    axes[0].set_ylabel("forecast step h")
    bar = figure.colorbar(images[-1], cax=figure.add_subplot(grid[1, 3]))
    bar.set_label("value / largest value of the panel\n(square-root colour scale)")
    read = "" if trial.learned else "; NOT learned: no evidence"
    figure.suptitle(
        f"{trial.generator}, {trial.backbone} backbone, {estimator}: L {trial.lookback}, H {trial.horizon}, "
        f"seed {trial.seed}, first window; {100 * trial.explained:.2f} % explained{read}",
        fontsize=10,
    )
    return figure


def _draw_window(axes: Axes, example: Example) -> None:
    before = np.arange(-len(example.x), 0) + 0.5
    after = np.arange(len(example.target)) + 0.5
    axes.plot(before, example.x, color=INK, linewidth=0.9, label="lookback")
    axes.plot(after, example.target, color=TRUTH, linewidth=1.4, label="target of the generator")
    axes.plot(after, example.forecast, color=FORECAST, linewidth=1.4, linestyle="--", label="forecast of the backbone")
    axes.axvline(0, color=GUIDE, linewidth=1)
    axes.set_xlim(-len(example.x), len(example.target))
    axes.set_ylabel("value (unit variance)")
    axes.set_xlabel("steps from the start of the forecast (lookback < 0 < forecast)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, borderaxespad=0.1)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_matrix(axes: Axes, values: Floats, steps: npt.NDArray[np.int64]) -> Any:
    from matplotlib.colors import PowerNorm

    rows, lookback = values.shape
    largest = float(values.max())
    image = axes.imshow(
        values / largest if largest > 0 else values,
        cmap=COLOURS,
        norm=PowerNorm(GAMMA, vmin=0, vmax=1),
        extent=(-lookback, 0, rows + 0.5, 0.5),
        aspect="auto",
        # A position is one column of the picture or less: neighbours must not be averaged away.
        interpolation="nearest",
    )
    at = np.unique(np.linspace(0, rows - 1, min(rows, _MOST_STEP_LABELS)).round().astype(int))
    axes.set_yticks(at + 1, [str(step + 1) for step in steps[at]])
    axes.spines[:].set_visible(False)  # they would cover half of the last position, which every step reads
    return image


def draw_ranks(calibration: Calibration) -> Figure:
    """Planted against measured rank: every trained model as a dot, medians as marks that are joined."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    highest = 1.0
    for index, backbone in enumerate(calibration.backbones):
        marker, colour, dash = _MARKS[index % len(_MARKS)]
        made = [trial for trial in calibration.trials if trial.backbone == backbone and trial.generator == PLANTED]
        learned = [trial for trial in made if trial.learned]
        planted, measured = [trial.planted_rank for trial in learned], [trial.measured_rank for trial in learned]
        axes.plot(planted, measured, ".", color=colour, markersize=4)
        curve = np.asarray(calibration.curve(backbone)).reshape(-1, 2)
        axes.plot(
            *curve.T,
            color=colour,
            linestyle=dash,
            marker=marker,
            # Curves that agree lie on each other: larger marks around smaller ones keep all of them in sight.
            markersize=6 + 3 * index,
            fillstyle="none",
            label=f"{backbone} ({len(learned)} of {len(made)} models learned)",
        )
        highest = max([highest, *planted, *measured])
    axes.plot([0, highest + 1], [0, highest + 1], color=GUIDE, linewidth=0.8, zorder=0, label="measured = planted")
    axes.set_xlim(0, highest + 1)
    axes.set_ylim(0, highest + 1)
    axes.set_aspect("equal")
    axes.set_xlabel("planted effective rank (directions)")
    axes.set_ylabel("measured effective rank of E (directions)")
    axes.set_title(f"Recovering a planted rank, {calibration.estimator}", fontsize=10)
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
