"""A calibration as tables beside the published ones, criteria, a verdict and figures.

Time runs as in `hrx.reports.heatmap`: the forecast starts at 0, the lookback lies before it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hrx.records.calibration import GENERATORS, PLANTED, QUANTITIES, Calibration, Example, judge, median_of, verdict
from hrx.reports.cells import TEXT, Cell, Format, TableColumn, TableRow
from hrx.reports.figures import FORECAST, GUIDE, INK, TRUTH, plain_style, save
from hrx.reports.heatmap import draw_image, draw_window, label_steps
from hrx.reports.published import published_ground_truth
from hrx.reports.table import ReportTable
from hrx.reports.tables.scored import DEFAULT_ESTIMATOR
from hrx.reports.text import counted, make_directory, number_or_none, wrap, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN = Format("number", plus=False)
SIGNED = Format("number")
EXPLAINED = Format("number", decimals=4, plus=False)
RANK = Format("number", decimals=2, plus=False)
_MARKS = (("o", TRUTH, "-"), ("s", FORECAST, "--"), ("^", "#009E73", ":"), ("D", INK, "-."))
CONVERGENCE = (
    "Gains on trained models depend on how far training has converged, and on the inputs: compare their directions; "
    "their sizes only under one recipe."
)
LEFT_OUT = "Runs that explain less than 98 % of the held-out variance are left out of every median."


def tables(calibration: Calibration) -> tuple[ReportTable, ...]:
    """Medians of each backbone, each generator, the planted and measured ranks, and the criteria."""
    curves = {backbone: dict(calibration.curve(backbone)) for backbone in calibration.backbones}
    planted = sorted({rank for curve in curves.values() for rank in curve})
    columns = tuple(TableColumn(name, name, RANK) for name in ("planted", *curves))
    rows = (TableRow.of(columns, [rank, *(curve.get(rank) for curve in curves.values())]) for rank in planted)
    title = "Planted effective rank, and the measured one (median)"
    ranks = ReportTable("planted_rank", title, columns, tuple(rows))
    columns = tuple(TableColumn(name, name) for name in ("criterion", "result", "figure"))
    rows = (
        TableRow.of(columns, (one.criterion, "pass" if one.passed else "FAIL", one.figure), section=one.backbone)
        for one in judge(calibration)
    )
    criteria = ReportTable("criteria", "What a sound instrument does", columns, tuple(rows))
    return _medians(calibration), _generators(calibration), ranks, criteria


def render_calibration(calibration: Calibration, width: int = 80) -> str:
    """All tables and the verdict as plain text."""
    parts = [table.to_text(width) for table in tables(calibration)]
    sentence = "\n".join(wrap(f"Verdict: {verdict(judge(calibration))}", width))
    return "\n".join([*parts, sentence]) + "\n"


def calibration_json(calibration: Calibration) -> dict[str, object]:
    """What `hrx calibrate --json` prints, with null medians where no model learned a generator."""
    criteria, cells = judge(calibration), []
    for backbone, generator in product(calibration.backbones, GENERATORS):
        made, evidence = calibration.table(backbone, generator), calibration.evidence(backbone, generator)
        fits = {
            name: min((getattr(run, name) for run in made), default=None) for name in ("least_squares", "explained")
        }
        medians = {name: _median(evidence, name) for name in (*QUANTITIES, "auprc_gap", "measured_rank")}
        counts = {"runs": len(made), "learned": len(evidence)}
        cells.append({"backbone": backbone, "generator": generator, **counts, **fits, **medians})
    return {
        "estimator": calibration.estimator,
        "effort": calibration.effort,
        "recipe": calibration.recipe,
        "backbones": cells,
        "planted_rank": [
            {"backbone": backbone, "planted": point.planted, "measured": point.measured}
            for backbone in calibration.backbones
            for point in calibration.curve(backbone)
        ],
        "channels": [{**asdict(one), "learned": one.learned} for one in calibration.channels],
        "criteria": [one._asdict() for one in criteria],
        "sound": all(one.passed for one in criteria),
        "verdict": verdict(criteria),
    }


def write_calibration(calibration: Calibration, out: Path) -> list[Path]:
    """Tables, trained models and figures in a directory, each file whole or absent. Returns their paths."""
    make_directory(out)
    markdown = "\n".join(table.to_markdown() for table in tables(calibration))
    report = f"# Calibration\n\n{markdown}\n**Verdict:** {verdict(judge(calibration))}\n"
    numbers = json.dumps(calibration_json(calibration), indent=1) + "\n"
    # Every trained model and the exact control, one line each, in full precision.
    runs = (calibration.exact_control, *calibration.results)
    rows = [{"estimator": calibration.estimator, **asdict(run), "learned": run.learned} for run in runs]
    lines = pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")
    texts = {"calibration.md": report, "calibration.json": numbers, "results.csv": lines}
    written = [write_bytes(out / name, text.encode()) for name, text in texts.items()]
    with plain_style():
        for example in calibration.examples:
            figure = draw_example(example, calibration.estimator)
            written.append(save(figure, out / f"{example.result.generator}.png"))
        return [*written, save(draw_ranks(calibration), out / "planted-rank.png")]


def _median(runs: list[Any], name: str) -> float | None:
    return number_or_none(median_of(runs, name))


def _medians(calibration: Calibration) -> ReportTable:
    """One row for each quantity of each backbone, beside the paper's."""
    own = calibration.estimator == DEFAULT_ESTIMATOR
    source = published_ground_truth()["backbones" if own else "estimators"]
    rows = []
    for backbone in calibration.backbones:
        evidence = calibration.evidence(backbone)
        beside = source.rows.get(backbone if own else calibration.estimator, {})
        for name in QUANTITIES:
            kind, _, form = name.partition("_")
            format, words = (SIGNED, name) if kind == "g" else (PLAIN, f"{kind.upper()} {form}")
            cell = Cell(_median(evidence, name), format).beside(beside.get(name))
            rows.append(TableRow((Cell(words), cell), section=f"{backbone}, median of {counted(len(evidence), 'run')}"))
    return ReportTable(
        "calibration",
        f"Constructed ground truth, {calibration.estimator}, {calibration.effort} calibration, "
        f"recipe {calibration.recipe}",
        (TableColumn("quantity", "quantity"), TableColumn("median", "median", PLAIN)),
        tuple(rows),
        note=f"{LEFT_OUT} {CONVERGENCE} Paper: {source.label}, {source.of}.",
        label=source.label,
    )


def _generators(calibration: Calibration) -> ReportTable:
    """Each generator: explained variance, gain, and the gap in AUPRC beside the paper's."""
    gaps = published_ground_truth()["gaps"]
    own = calibration.estimator == DEFAULT_ESTIMATOR
    formats = {"generator": TEXT, "explained": EXPLAINED, "g_own": SIGNED, "auprc_vector": PLAIN}
    formats |= {"auprc_matrix": PLAIN, "auprc_gap": SIGNED}
    columns = tuple(TableColumn(name, name.removeprefix("auprc_"), format) for name, format in formats.items())
    rows = []
    for backbone, generator in product(calibration.backbones, GENERATORS):
        made, evidence = calibration.table(backbone, generator), calibration.evidence(backbone, generator)
        least = min((run.explained for run in made), default=float("nan"))
        medians = [_median(evidence, column.name) for column in columns[2:]]
        *cells, gap = TableRow.of(columns, (generator, least, *medians)).cells
        paper = gaps.rows.get(backbone, {}).get(generator) if own else None
        rows.append(TableRow((*cells, gap.beside(paper)), section=backbone))
    return ReportTable(
        "calibration_generators",
        "By generator: medians, and the least share of the held-out variance that a run explains",
        columns,
        tuple(rows),
        note="vector, matrix, gap: AUPRC. sparsenull is the negative control." + (f" Paper: {gaps.label}." * own),
        label=gaps.label,
    )


def draw_example(example: Example, estimator: str) -> Figure:
    """One window, the answer, the shared vector that a method without a horizon axis returns, and the matrix."""
    from matplotlib.figure import Figure

    run = example.result
    figure = Figure(figsize=(11, 6.4), dpi=120, layout="constrained")
    grid = figure.add_gridspec(2, 4, height_ratios=(2, 4), width_ratios=(1, 1, 1, 0.04))
    window = figure.add_subplot(grid[0, :3])
    draw_window(window, example.x, example.target, example.forecast, of="target of the generator")
    window.set_ylabel("value (unit variance)")
    window.set_xlabel("steps from the start of the forecast (lookback < 0 < forecast)")
    shared = np.broadcast_to(example.matrix.mean(axis=0), example.matrix.shape)
    panels = (
        ("answer: |w(h)| on S(h)", example.answer),
        (f"shared vector Ē for every step\nAUPRC {run.auprc_vector:.3f}", shared),
        (f"matrix E\nAUPRC {run.auprc_matrix:.3f}", example.matrix),
    )
    axes = [figure.add_subplot(grid[1, column]) for column in range(3)]
    rows, lookback = example.matrix.shape
    for one, (title, values) in zip(axes, panels, strict=True):
        image = draw_image(one, values, (-lookback, 0, rows + 0.5, 0.5), top=1)
        label_steps(one, example.steps + 1)
        one.spines[:].set_visible(False)  # they would cover half of the last position
        one.set_title(title, fontsize=10)
        one.set_xlabel("steps from the start of the forecast")
    axes[0].set_ylabel("forecast step h")
    bar = figure.colorbar(image, cax=figure.add_subplot(grid[1, 3]))
    bar.set_label("value / largest value of the panel\n(square-root colour scale)")
    remark = "" if run.learned else "; NOT learned: no evidence"
    figure.suptitle(
        f"{run.generator}, {run.backbone} backbone, {estimator}: L {run.lookback}, H {run.horizon}, "
        f"seed {run.seed}, first window; {100 * run.explained:.2f} % explained{remark}",
        fontsize=10,
    )
    return figure


def draw_ranks(calibration: Calibration) -> Figure:
    """Planted against measured rank: every trained model as a dot, medians as marks that are joined."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    highest = 1.0
    for index, backbone in enumerate(calibration.backbones):
        marker, colour, dash = _MARKS[index % len(_MARKS)]
        made = [run for run in calibration.results if run.backbone == backbone and run.generator == PLANTED]
        learned = [run for run in made if run.learned]
        planted, measured = [run.planted_rank for run in learned], [run.measured_rank for run in learned]
        axes.plot(planted, measured, ".", color=colour, markersize=4)
        curve = np.asarray(calibration.curve(backbone)).reshape(-1, 2)
        # Curves that agree cover each other: larger marks around smaller ones keep all of them visible.
        label = f"{backbone} ({len(learned)} of {len(made)} models learned)"
        axes.plot(*curve.T, dash, color=colour, marker=marker, markersize=6 + 3 * index, fillstyle="none", label=label)
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
