"""The tables about estimators and the matrix: cost, seeds, rank, truncation, distance between rows, channels."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from hrx.audit.ledger.record import DISTANCES, TRUNCATIONS
from hrx.audit.scoring.rank_bins import RANK_BINS
from hrx.reports.published import published_tables
from hrx.reports.runs import CONFIGURATION, SEEDS, fold_seeds, median, trimmed_mean
from hrx.reports.table import GAIN, INTERVAL, TIMES, Cell, Format, ReportTable, TableColumn, Value
from hrx.reports.tables.scored import (
    FINE,
    FOLDED,
    G_MARGIN,
    G_OWN,
    G_OWN_CI,
    G_SHUFFLED,
    POSITIVE,
    RANK,
    SWEPT_DISTANCES,
    SWEPT_RANKS,
    TAIL,
    N,
    ScoredRuns,
    build_row,
    positive,
    span,
    statistics,
    tail,
)

LABELS = {
    "saliency": "Saliency",
    "gradient_x_input": "Gradient × input",
    "integrated_gradients": "Integrated gradients",
    "occlusion": "Occlusion",
    "dynamask": "Dynamask",
    "extremalmask": "ExtremalMask",
    "contralsp": "ContraLSP",
    "input_gradient": "Input gradient",
    "tsr": "TSR",
    "smoothgrad": "SmoothGrad",
}
"""The paper's names of the estimators, in its order."""
_ESTIMATOR = TableColumn("estimator", "Estimator")


def estimators(runs: ScoredRuns) -> ReportTable:
    """What a row per step adds to each estimator."""
    gains = (G_OWN, G_SHUFFLED, G_MARGIN)
    medians = [replace(gain, format=Format("number", plus=False)) for gain in gains]
    intervals = [TableColumn(f"{gain.name}_ci", "95% CI", Format("span", plus=False)) for gain in gains]
    paired = [column for pair in zip(medians, intervals, strict=True) for column in pair]
    columns = (_ESTIMATOR, *paired, N, *TAIL)
    rows = []
    for name, group in _by_estimator(runs.every_estimator):
        found = [statistics(group, gain.name) for gain in gains]
        cells = [
            cell
            for middle, interval, one in zip(medians, intervals, found, strict=True)
            for cell in (middle.cell(one.median, n=one.n), interval.cell(span(one), n=one.n))
        ]
        n = found[-1].n
        values: list[Value | Cell] = [LABELS.get(name, name), *cells, n, *tail(group)]
        rows.append(build_row(columns, values, n, where=(("estimator", name),)))
    title = "A row per forecast step for each estimator"
    return ReportTable("estimators", title, columns, tuple(rows), runs.note(runs.every_estimator), "tab:methods")


def estimators_plain(runs: ScoredRuns) -> ReportTable:
    """The estimators without the horizon axis, best first."""
    gap_column, interval = (
        TableColumn("gap", "Deletion gap", GAIN, hue="red"),
        TableColumn("gap_ci", "95% CI", INTERVAL),
    )
    columns = (_ESTIMATOR, gap_column, interval, N, *TAIL)
    found = []
    for name, group in _by_estimator(runs.whole):
        gap = statistics(group, "gap_shared")
        if gap.n:
            values = (LABELS.get(name, name), gap.median, span(gap), gap.n, *tail(group))
            found.append(
                (-gap.median, build_row(columns, values, gap.n, where=(("estimator", name), ("axis", "whole"))))
            )
    rows = tuple(row for _, row in sorted(found, key=lambda pair: pair[0]))
    note = runs.note(runs.whole, "One row for the whole forecast, as each estimator was published.")
    title = "The estimators without the horizon axis"
    return ReportTable("estimators_plain", title, columns, rows, note, "tab:methods_std")


def cost(runs: ScoredRuns) -> ReportTable:
    """Wall time of the matrix in forward passes of the same model."""
    columns = (_ESTIMATOR, TableColumn("cost", "Cost", TIMES, unit="forward passes"), N, *TAIL)
    rows = []
    for name, group in _by_estimator(runs.every_estimator):
        passes = statistics(group, "cost")
        if passes.n:
            values = (LABELS.get(name, name), passes.median, passes.n, *tail(group))
            rows.append(build_row(columns, values, passes.n, where=(("estimator", name),)))
    note = runs.note(runs.every_estimator, "Median wall time of the matrix over that of one forward pass.")
    return ReportTable("cost", "Cost of each estimator", columns, tuple(rows), note, "tab:methods_cost")


def _by_estimator(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The runs of each estimator, in the paper's order, others after them by name."""
    order = {name: index for index, name in enumerate(LABELS)}
    groups = [(str(name), group) for name, group in frame.groupby("estimator", sort=True)]
    return sorted(groups, key=lambda pair: order.get(pair[0], len(order)))


def seeds(runs: ScoredRuns) -> ReportTable:
    """How far the seeds of one configuration spread, beside how far configurations do."""
    mean = TableColumn("mean", "Trimmed mean (10 %)", GAIN, hue="red")
    within = TableColumn("std_seed", "Std (seed)", FINE)
    across = TableColumn("std_configuration", "Std (configuration)", FINE)
    columns = (TableColumn("quantity", "Quantity"), mean, within, across, N, *TAIL)
    names = ["g_own", "g_margin", "rank"]
    complete, ids = _complete(runs.scored, names)
    folded = fold_seeds(complete, FOLDED)
    means, spreads = folded[names], complete[names].groupby(ids).std(ddof=1)
    n = len(means)
    rows = []
    for name in names if n else ():
        centre = mean.cell(trimmed_mean(means[name]), n=n)
        if name == "rank":
            centre = Cell(centre.value, RANK, faint=centre.faint, few=centre.few)
        spread = float(spreads[name].mean()), float(means[name].std(ddof=1))
        rows.append(build_row(columns, (name, centre, *spread, n, *tail(folded)), n))
    note = (
        "Over configurations with two seeds or more and with all three quantities. Std (seed) is the mean of the "
        "standard deviations across the seeds of each, Std (configuration) that of the folded values."
    )
    return ReportTable("seeds", "Seed reproducibility", columns, tuple(rows), runs.note(folded, note), "tab:seeds")


class CompleteRuns(NamedTuple):
    """Runs of configurations with several seeds and nothing missing, and the configuration of each."""

    runs: pd.DataFrame
    ids: pd.Series[int]


def _complete(frame: pd.DataFrame, names: list[str]) -> CompleteRuns:
    frame = frame.drop_duplicates([*CONFIGURATION, *SEEDS])
    ids = frame.groupby(list(CONFIGURATION), sort=False, dropna=False).ngroup()
    whole = frame[names].notna().all(axis=1).groupby(ids).transform("all")
    several = frame.groupby(ids)["seed"].transform("nunique") > 1
    kept = whole & several
    return CompleteRuns(frame[kept], ids[kept])


def rank(runs: ScoredRuns) -> ReportTable:
    """The gain by the effective rank of the matrix."""
    columns = (TableColumn("rank", "r(E)"), replace(N, heading="Runs"), G_OWN, G_OWN_CI, POSITIVE, *TAIL)
    ranks = runs.configurations["rank"].to_numpy(dtype=np.float64)
    # Rounding can put the ratio of a rank-one matrix a little below one: it still belongs to the first bin.
    place = np.digitize(ranks, [rank_bin.low for rank_bin in RANK_BINS[1:]])
    rows = []
    for index, (_, label) in enumerate(published_tables()["rank"].rows):
        group = runs.configurations[(place == index) & np.isfinite(ranks)]
        own = statistics(group, "g_own")
        if own.n:
            rows.append(build_row(columns, (label, own.n, own.median, span(own), positive(own), *tail(group)), own.n))
    note = runs.note(runs.configurations)
    return ReportTable("rank", "Gain by effective rank", columns, tuple(rows), note, "tab:rankgain")


def truncation(runs: ScoredRuns) -> ReportTable:
    """The gain of the matrix truncated to its leading directions."""
    fraction = TableColumn("fraction", "Fraction of full", RANK)
    columns = (TableColumn("truncation", "Truncation"), G_OWN, fraction, N, *TAIL)
    group = runs.configurations[runs.configurations[list(SWEPT_RANKS)].notna().any(axis=1)]
    positive_full = group["g_own"].where(group["g_own"] > 0)
    rows = []
    names = dict(zip((f"r = {r}" for r in TRUNCATIONS), SWEPT_RANKS, strict=True))
    for label, name in {**names, "full": "g_own"}.items():
        own = statistics(group, name)
        if own.n:
            values = (label, own.median, median(group[name] / positive_full), own.n, *tail(group))
            rows.append(build_row(columns, values, own.n, total=label == "full"))
    note = runs.note(group, "Fraction of full is the median over the runs with a positive full gain.")
    return ReportTable("truncation", "Gain of the truncated matrix", columns, tuple(rows), note, "tab:lowrank")


def distance(runs: ScoredRuns) -> ReportTable:
    """The margin over the row a fixed number of steps away."""
    columns = (TableColumn("distance", "Distance"), G_MARGIN, POSITIVE, N, *TAIL)
    group = runs.configurations[runs.configurations[list(SWEPT_DISTANCES)].notna().any(axis=1)]
    margins = {f"Δ = {d}": group["g_own"] - group[f"g_distance_{d}"] for d in DISTANCES}
    rows = []
    for label, margin in {**margins, "random π": group["g_margin"]}.items():
        rest = group.assign(margin=margin)[margin.notna()]
        moved = statistics(rest, "margin")
        if moved.n:
            values = (label, moved.median, positive(moved), moved.n, *tail(rest))
            rows.append(build_row(columns, values, moved.n, total=label == "random π"))
    note = runs.note(group, "A longer distance has fewer runs where the horizon is shorter than it.")
    return ReportTable("distance", "Margin by distance", columns, tuple(rows), note, "tab:offset")


def channels(runs: ScoredRuns) -> ReportTable:
    """The time axis beside the channel axis, over runs of several variates."""
    effective = TableColumn("rank", "Effective rank", RANK)
    columns = (TableColumn("axis", "Axis"), G_OWN, effective, N, *TAIL)
    group = runs.configurations[runs.configurations["g_own_channel"].notna()]
    # The rank of the channel axis is so near one that two decimals would hide the rest; the paper prints four.
    shown = {"Time": effective, "Channel": replace(effective, format=FINE)}
    rows = []
    for (label, column), suffix in zip(shown.items(), ("", "_channel"), strict=True):
        own = statistics(group, f"g_own{suffix}")
        if own.n:
            rank_cell = column.cell(statistics(group, f"rank{suffix}").median, n=own.n)
            rows.append(build_row(columns, (label, own.median, rank_cell, own.n, *tail(group)), own.n))
    return ReportTable("channels", "Time axis and channel axis", columns, tuple(rows), runs.note(group), "tab:timechan")
