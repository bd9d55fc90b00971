"""The tables about the matrix: how far seeds move it, its rank, its truncations, distance between rows, channels."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from hrx.audit.ledger.record import DISTANCES, TRUNCATIONS
from hrx.audit.scoring.rank_bins import RANK_BINS
from hrx.reports.cells import GAIN, Cell, Column, Format, Row
from hrx.reports.published import published_tables
from hrx.reports.statistics import CONFIGURATION, SEEDS, finite, fold_seeds, trimmed_mean
from hrx.reports.table import Table
from hrx.reports.tables.runs import (
    BEATS_NAIVE,
    FOLDED,
    G_MARGIN,
    G_OWN,
    G_OWN_CI,
    LEAKED,
    POSITIVE,
    N,
    Runs,
    positive,
    span,
    tail,
    values,
)

_RANK = Format("number", decimals=2, plus=False)
_FINE = Format("number", decimals=4, plus=False)


def seeds(runs: Runs) -> Table:
    """How far the seeds of one configuration spread, beside how far configurations do."""
    columns = (
        Column("quantity", "Quantity"),
        Column("mean", "Trimmed mean (10 %)", GAIN, hue="red"),
        Column("std_seed", "Std (seed)", _FINE),
        Column("std_configuration", "Std (configuration)", _FINE),
        N,
        BEATS_NAIVE,
        LEAKED,
    )
    names = ["g_own", "g_margin", "rank"]
    complete, ids = _complete(runs.scored, names)
    folded = fold_seeds(complete, FOLDED)
    means, spreads = folded[names], complete[names].groupby(ids).std(ddof=1)
    rows = []
    for name in names if len(means) else ():
        n = len(means)
        mean = columns[1].cell(trimmed_mean(means[name]), n=n)
        if name == "rank":
            mean = Cell(mean.value, _RANK, faint=mean.faint, few=mean.few)
        cells = (
            columns[0].cell(name, n=n),
            mean,
            columns[2].cell(float(spreads[name].mean()), n=n),
            columns[3].cell(float(means[name].std(ddof=1)), n=n),
            N.cell(n),
            *tail(folded),
        )
        rows.append(Row(cells, key=name))
    note = (
        "Over configurations with two seeds or more, all of which gave the three quantities. Std (seed) is the mean of "
        "the standard deviations across the seeds of each, Std (configuration) that of the folded values."
    )
    return Table("seeds", "Seed reproducibility", columns, tuple(rows), runs.note(folded, note), "tab:seeds")


class Complete(NamedTuple):
    """Runs of configurations with several seeds and nothing missing, and the configuration of each."""

    runs: pd.DataFrame
    ids: pd.Series[int]


def _complete(frame: pd.DataFrame, names: list[str]) -> Complete:
    frame = frame.drop_duplicates([*CONFIGURATION, *SEEDS])
    ids = frame.groupby(list(CONFIGURATION), sort=False, dropna=False).ngroup()
    whole = frame[names].notna().all(axis=1).groupby(ids).transform("all")
    several = frame.groupby(ids)["seed"].transform("nunique") > 1
    kept = whole & several
    return Complete(frame[kept], ids[kept])


def rank(runs: Runs) -> Table:
    """The gain by the effective rank of the matrix."""
    columns = (
        Column("rank", "r(E)"),
        replace(N, heading="Runs"),
        G_OWN,
        G_OWN_CI,
        POSITIVE,
        BEATS_NAIVE,
        LEAKED,
    )
    ranks = runs.configurations["rank"].to_numpy(dtype=np.float64)
    # Rounding can leave the ratio of a rank-one matrix a little below one: it is in the first bin all the same.
    place = np.digitize(ranks, [found.low for found in RANK_BINS[1:]])
    labels = [row for _, row in published_tables()["rank"].rows]
    rows = []
    for index, label in enumerate(labels):
        group = runs.configurations[(place == index) & np.isfinite(ranks)]
        own = values(group, "g_own")
        if own.n:
            cells = (
                columns[0].cell(label, n=own.n),
                columns[1].cell(own.n),
                G_OWN.cell(own.median, n=own.n),
                G_OWN_CI.cell(span(own), n=own.n),
                positive(own),
                *tail(group),
            )
            rows.append(Row(cells, key=label))
    return Table("rank", "Gain by effective rank", columns, tuple(rows), runs.note(runs.configurations), "tab:rankgain")


def truncation(runs: Runs) -> Table:
    """The gain of the matrix cut to its leading directions."""
    columns = (
        Column("truncation", "Truncation"),
        G_OWN,
        Column("fraction", "Fraction of full", _RANK),
        N,
        BEATS_NAIVE,
        LEAKED,
    )
    swept = [f"g_own_rank_{r}" for r in TRUNCATIONS]
    group = runs.configurations[runs.configurations[swept].notna().any(axis=1)]
    positive_full = group["g_own"].where(group["g_own"] > 0)
    rows = []
    for label, name in (*((f"r = {r}", f"g_own_rank_{r}") for r in TRUNCATIONS), ("full", "g_own")):
        found = values(group, name)
        if not found.n:
            continue
        fractions = finite(group[name] / positive_full)
        fraction = float(np.median(fractions)) if len(fractions) else math.nan
        cells = (
            columns[0].cell(label, n=found.n),
            G_OWN.cell(found.median, n=found.n),
            columns[2].cell(fraction, n=found.n),
            N.cell(found.n),
            *tail(group),
        )
        rows.append(Row(cells, key=label, total=label == "full"))
    note = "Fraction of full is the median over the runs whose full gain is positive."
    return Table(
        "truncation", "Gain of the truncated matrix", columns, tuple(rows), runs.note(group, note), "tab:lowrank"
    )


def distance(runs: Runs) -> Table:
    """The margin over the row a fixed number of steps away."""
    columns = (Column("distance", "Distance"), G_MARGIN, POSITIVE, N, BEATS_NAIVE, LEAKED)
    swept = [f"g_distance_{d}" for d in DISTANCES]
    group = runs.configurations[runs.configurations[swept].notna().any(axis=1)]
    margins = {f"Δ = {d}": group["g_own"] - group[f"g_distance_{d}"] for d in DISTANCES}
    rows = []
    for label, margin in {**margins, "random π": group["g_margin"]}.items():
        rest = group.assign(margin=margin)[margin.notna()]
        found = values(rest, "margin")
        if found.n:
            cells = (
                columns[0].cell(label, n=found.n),
                G_MARGIN.cell(found.median, n=found.n),
                positive(found),
                N.cell(found.n),
                *tail(rest),
            )
            rows.append(Row(cells, key=label, total=label == "random π"))
    note = "A longer distance has fewer runs where the horizon is shorter than it."
    return Table("distance", "Margin by distance", columns, tuple(rows), runs.note(group, note), "tab:offset")


def channels(runs: Runs) -> Table:
    """The time axis beside the channel axis, over runs of several variates."""
    columns = (
        Column("axis", "Axis"),
        G_OWN,
        Column("rank", "Effective rank", _RANK),
        N,
        BEATS_NAIVE,
        LEAKED,
    )
    group = runs.configurations[runs.configurations["g_own_channel"].notna()]
    rows = []
    for label, own_name, rank_name in (("Time", "g_own", "rank"), ("Channel", "g_own_channel", "rank_channel")):
        own, rank_of = values(group, own_name), values(group, rank_name)
        if not own.n:
            continue
        # The channel axis sits so near one that two decimals would hide it; the paper prints four.
        shown = replace(columns[2], format=_FINE) if label == "Channel" else columns[2]
        cells = (
            columns[0].cell(label, n=own.n),
            G_OWN.cell(own.median, n=own.n),
            shown.cell(rank_of.median, n=own.n),
            N.cell(own.n),
            *tail(group),
        )
        rows.append(Row(cells, key=label))
    return Table("channels", "Time axis and channel axis", columns, tuple(rows), runs.note(group), "tab:timechan")
