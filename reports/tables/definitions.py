"""The paper's tables: their groups of runs, columns and order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from hrx.audit.ledger.record import DISTANCES, TRUNCATIONS
from hrx.audit.scoring.quantities import RANK_BINS
from hrx.reports.published import ALL_MODELS, published_tables
from hrx.reports.runs import CONFIGURATION, SEEDS, GroupStatistics, fold_seeds, is_few, median, trimmed_mean
from hrx.reports.table import COUNT, FINE_GAIN, GAIN, INTERVAL, TIMES, Cell, Format, ReportTable, TableColumn
from hrx.reports.tables import scored
from hrx.reports.tables.scored import (
    LEAKED,
    POSITIVE,
    TAIL,
    Figure,
    N,
    ScoredRuns,
    TableGroup,
    build_table,
    count_of,
    interval_of,
    median_of,
    value_of,
)
from hrx.reports.text import clean

SIGNIFICANCE = 0.05
METRICS = {
    "Comprehensiveness": "comprehensiveness", "Sufficiency": "sufficiency", "AOPC": "aopc", "Insertion": "insertion",
    "g_own": "g_own", "g_margin": "g_margin",
}  # fmt: skip
ESTIMATORS = {
    "saliency": "Saliency", "gradient_x_input": "Gradient × input", "integrated_gradients": "Integrated gradients",
    "occlusion": "Occlusion", "dynamask": "Dynamask", "extremalmask": "ExtremalMask", "contralsp": "ContraLSP",
    "input_gradient": "Input gradient", "tsr": "TSR", "smoothgrad": "SmoothGrad",
}  # fmt: skip
"""The paper's names of the estimators, in its order."""
OWN = median_of(scored.G_OWN, "g_own")
MAIN = median_of(scored.G_OWN)
"""The row's quantity in the column of g_own."""
MODEL, ESTIMATOR = TableColumn("model", "Model"), TableColumn("estimator", "Estimator")
RANK, FINE = Format("number", decimals=2, plus=False), Format("number", decimals=4, plus=False)


def models(runs: ScoredRuns) -> ReportTable:
    """Median gain of each checkpoint."""
    groups, note = _by_model(runs.configurations), runs.note(runs.configurations)
    return build_table("models", "Gain g_own by model", "tab:fm_models", MODEL, (OWN, POSITIVE, *TAIL), groups, note)


def models_full(runs: ScoredRuns) -> ReportTable:
    """The same with checkpoint, share that beats naive, and count."""
    checkpoint = count_of(
        TableColumn("checkpoint", "Checkpoint"),
        lambda group: "" if group.total else str(group.runs["checkpoint"].iloc[0]),
    )
    figures = (checkpoint, scored.BEATS_NAIVE, OWN, POSITIVE, N, LEAKED)
    title = "Models in full: checkpoint, naive verdict, gain and count"
    groups, note = _by_model(runs.configurations), runs.note(runs.configurations)
    return build_table("models_full", title, "tab:fm_models_full", MODEL, figures, groups, note)


def _by_model(frame: pd.DataFrame) -> list[TableGroup]:
    """Each checkpoint in the paper's order, then all of them."""
    found = [
        (str(group["model_name"].iloc[0]), str(fingerprint), group)
        for (_, fingerprint), group in frame.groupby(["model", "fingerprint"], sort=False, dropna=False)
    ]
    order = {name: index for index, (_, name) in enumerate(published_tables()["models"].rows)}
    found.sort(key=lambda one: order.get(one[0], len(order)))
    names = [name for name, _, _ in found]
    groups = []
    for name, fingerprint, group in found:
        label = name if names.count(name) == 1 else f"{name} (weights {clean(fingerprint)[:12]})"
        where = (("model", str(group["model"].iloc[0])), ("fingerprint", fingerprint))
        groups.append(TableGroup(label, group, key=name, where=where))
    return [*groups, TableGroup(ALL_MODELS, frame, total=True)] if len(groups) > 1 else groups


def metrics(runs: ScoredRuns) -> ReportTable:
    """The metrics of prior works beside the two gains."""
    frame = runs.configurations
    groups = [TableGroup(label, frame[frame[name].notna()], name) for label, name in METRICS.items()]
    middle = median_of(TableColumn("median", "Median", FINE_GAIN, hue="red"))
    trimmed = value_of(
        TableColumn("trimmed_mean", "Trimmed mean (10 %)", FINE_GAIN),
        lambda group: trimmed_mean(group.runs[group.quantity]),
    )
    figures = (middle, POSITIVE, scored.SIGN_TEST, N, trimmed, *TAIL)
    note = runs.note(frame, "Signed so that positive means that a row per step helps.")
    label = TableColumn("metric", "Metric")
    return build_table("metrics", "Metrics of prior works", "tab:fm_std", label, figures, groups, note, drop_empty=True)


def axes(runs: ScoredRuns) -> ReportTable:
    """The gain along the horizon and along the lookback."""
    groups = [
        TableGroup(str(level), group, section=section, where=((name, int(str(level))),))
        for section, name in (("Horizon H", "horizon"), ("Lookback L", "lookback"))
        for level, group in runs.configurations.groupby(name, sort=True)
    ]
    figures = (OWN, median_of(scored.G_MARGIN, "g_margin"), POSITIVE, N, *TAIL)
    note = runs.note(runs.configurations, "Positive is that of g_own.")
    label = TableColumn("setting", "Setting")
    return build_table("axes", "Gain by horizon and lookback", "tab:fm_axes", label, figures, groups, note)


def domains(runs: ScoredRuns) -> ReportTable:
    """The gain by the domain of the series, largest first."""
    known = runs.configurations[runs.configurations["domain_name"] != ""]
    groups = [TableGroup(str(domain), group) for domain, group in known.groupby("domain_name", sort=True)]
    count = count_of(TableColumn("datasets", "Datasets", COUNT), lambda group: int(group.runs["dataset"].nunique()))
    unknown = len(runs.configurations) - len(known)
    note = runs.note(known, f"{unknown:,} are on datasets without a known domain and not shown." if unknown else "")
    label, figures = TableColumn("domain", "Domain"), (count, OWN, POSITIVE, N, *TAIL)
    return build_table(
        "domains", "Gain g_own by domain", "tab:fm_domains", label, figures, groups, note, descending=True
    )


def datasets(runs: ScoredRuns) -> ReportTable:
    """Every dataset, largest gain first, with its sign test."""
    groups = [
        TableGroup(str(group["dataset_name"].iloc[0]), group, where=(("dataset", str(dataset)),))
        for dataset, group in runs.configurations.groupby("dataset", sort=True)
    ]
    verdicts = [significant(group.statistics()) for group in groups]
    counted = (
        f"Of {len(groups)} datasets, {verdicts.count('positive')} are significantly positive and "
        f"{verdicts.count('negative')} significantly negative (two-sided sign test, p < {SIGNIFICANCE})."
    )
    figures = (
        median_of(replace(scored.G_OWN, heading="Gain")),
        Figure(replace(POSITIVE.column, heading="Pos."), POSITIVE.cell),
        *(N, scored.SIGN_TEST),
        count_of(TableColumn("significant", "Significant"), lambda group: significant(group.statistics())),
        *TAIL,
    )
    label, note = TableColumn("dataset", "Dataset"), runs.note(runs.configurations, counted)
    return build_table(
        "datasets", "Gain g_own by dataset", "tab:fm_datasets", label, figures, groups, note, descending=True
    )


def significant(gain: GroupStatistics) -> str:
    """`positive` or `negative` where the sign test is significant over at least ten runs, else a dash."""
    if is_few(gain.n) or not gain.p < SIGNIFICANCE:
        return "-"
    return "positive" if gain.positive > gain.negative else "negative"


def estimators(runs: ScoredRuns) -> ReportTable:
    """What a row per step adds to each estimator."""
    figures: list[Figure] = []
    for gain in (scored.G_OWN, scored.G_SHUFFLED, scored.G_MARGIN):
        interval = TableColumn(f"{gain.name}_ci", "95% CI", Format("span", plus=False))
        figures.append(median_of(replace(gain, format=Format("number", plus=False)), gain.name))
        figures.append(interval_of(interval, gain.name))
    groups, note = _by_estimator(runs.every_estimator, "g_margin"), runs.note(runs.every_estimator)
    title = "A row per forecast step for each estimator"
    return build_table("estimators", title, "tab:methods", ESTIMATOR, [*figures, N, *TAIL], groups, note)


def estimators_plain(runs: ScoredRuns) -> ReportTable:
    """The estimators without the horizon axis, best first."""
    gap, interval = TableColumn("gap", "Deletion gap", GAIN, hue="red"), TableColumn("gap_ci", "95% CI", INTERVAL)
    figures = (median_of(gap), interval_of(interval), N, *TAIL)
    groups = [
        replace(group, where=(*group.where, ("axis", "whole"))) for group in _by_estimator(runs.whole, "gap_shared")
    ]
    note = runs.note(runs.whole, "One row for the whole forecast, as each estimator was published.")
    title, label = "The estimators without the horizon axis", "tab:methods_std"
    return build_table(
        "estimators_plain", title, label, ESTIMATOR, figures, groups, note, descending=True, drop_empty=True
    )


def cost(runs: ScoredRuns) -> ReportTable:
    """Wall time of the matrix in forward passes of the same model."""
    figures = (median_of(TableColumn("cost", "Cost", TIMES, unit="forward passes")), N, *TAIL)
    note = runs.note(runs.every_estimator, "Median wall time of the matrix over that of one forward pass.")
    groups, title = _by_estimator(runs.every_estimator, "cost"), "Cost of each estimator"
    return build_table("cost", title, "tab:methods_cost", ESTIMATOR, figures, groups, note, drop_empty=True)


def _by_estimator(frame: pd.DataFrame, quantity: str) -> Iterator[TableGroup]:
    """The runs of each estimator, in the paper's order, others after them by name."""
    order = list(ESTIMATORS)
    groups = {str(name): group for name, group in frame.groupby("estimator", sort=True)}
    for name in sorted(groups, key=lambda name: order.index(name) if name in ESTIMATORS else len(order)):
        yield TableGroup(ESTIMATORS.get(name, name), groups[name], quantity, where=(("estimator", name),))


def seeds(runs: ScoredRuns) -> ReportTable:
    """How far the seeds of one configuration spread, beside how far configurations do."""
    names = ["g_own", "g_margin", "rank"]
    complete = _complete(runs.scored, names)
    folded = fold_seeds(complete.runs, scored.FOLDED)
    spreads = complete.runs[names].groupby(complete.ids).std(ddof=1)
    mean = TableColumn("mean", "Trimmed mean (10 %)", GAIN, hue="red")

    def centre(group: TableGroup) -> Cell:
        cell = mean.cell(trimmed_mean(folded[group.quantity]), n=len(folded))
        return replace(cell, format=RANK, bold=False) if group.quantity == "rank" else cell

    within = TableColumn("std_seed", "Std (seed)", FINE)
    across = TableColumn("std_configuration", "Std (configuration)", FINE)
    figures = (
        Figure(mean, centre),
        value_of(within, lambda group: float(spreads[group.quantity].mean())),
        value_of(across, lambda group: float(folded[group.quantity].std(ddof=1))),
        *(N, *TAIL),
    )
    note = (
        "Over configurations with two seeds or more and with all three quantities. Std (seed) is the mean of the "
        "standard deviations across the seeds of each, Std (configuration) that of the folded values."
    )
    groups, label = [TableGroup(name, folded, name) for name in names], TableColumn("quantity", "Quantity")
    note, title = runs.note(folded, note), "Seed reproducibility"
    return build_table("seeds", title, "tab:seeds", label, figures, groups, note, drop_empty=True)


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
    ranks = runs.configurations["rank"].to_numpy(dtype=np.float64)
    # Rounding can put the ratio of a rank-one matrix a little below one: it still belongs to the first bin.
    place = np.digitize(ranks, [rank_bin.low for rank_bin in RANK_BINS[1:]])
    groups = [
        TableGroup(label, runs.configurations[(place == index) & np.isfinite(ranks)])
        for index, (_, label) in enumerate(published_tables()["rank"].rows)
    ]
    count = Figure(replace(N.column, heading="Runs"), N.cell)
    figures = (count, OWN, interval_of(TableColumn("g_own_ci", "95% CI", INTERVAL)), POSITIVE, *TAIL)
    label, note = TableColumn("rank", "r(E)"), runs.note(runs.configurations)
    return build_table("rank", "Gain by effective rank", "tab:rankgain", label, figures, groups, note, drop_empty=True)


def truncation(runs: ScoredRuns) -> ReportTable:
    """The gain of the matrix truncated to its leading directions."""
    group = _swept(runs, scored.SWEPT_RANKS)
    names = dict(zip((f"r = {r}" for r in TRUNCATIONS), scored.SWEPT_RANKS, strict=True))
    groups = [TableGroup(label, group, name) for label, name in names.items()]
    groups.append(TableGroup("full", group, total=True))
    positive_full = group["g_own"].where(group["g_own"] > 0)
    fraction = value_of(
        TableColumn("fraction", "Fraction of full", RANK), lambda one: median(group[one.quantity] / positive_full)
    )
    label, figures = TableColumn("truncation", "Truncation"), (MAIN, fraction, N, *TAIL)
    note = runs.note(group, "Fraction of full is the median over the runs with a positive full gain.")
    title = "Gain of the truncated matrix"
    return build_table("truncation", title, "tab:lowrank", label, figures, groups, note, drop_empty=True)


def distance(runs: ScoredRuns) -> ReportTable:
    """The margin over the row a fixed number of steps away."""
    group = _swept(runs, scored.SWEPT_DISTANCES)
    margins = {f"Δ = {d}": group["g_own"] - group[f"g_distance_{d}"] for d in DISTANCES}
    margins["random π"] = group["g_margin"]
    groups = [
        TableGroup(label, group.assign(margin=margin)[margin.notna()], "margin", total=label == "random π")
        for label, margin in margins.items()
    ]
    label, figures = TableColumn("distance", "Distance"), (median_of(scored.G_MARGIN), POSITIVE, N, *TAIL)
    note = runs.note(group, "A longer distance has fewer runs where the horizon is shorter than it.")
    return build_table("distance", "Margin by distance", "tab:offset", label, figures, groups, note, drop_empty=True)


def _swept(runs: ScoredRuns, names: Iterable[str]) -> pd.DataFrame:
    return runs.configurations[runs.configurations[list(names)].notna().any(axis=1)]


def channels(runs: ScoredRuns) -> ReportTable:
    """The time axis beside the channel axis, over runs of several variates."""
    group = runs.configurations[runs.configurations["g_own_channel"].notna()]
    effective = TableColumn("rank", "Effective rank", RANK)

    def rank_cell(one: TableGroup) -> Cell:
        # The rank of the channel axis is so near one that two decimals would hide the rest; the paper prints four.
        name, format = ("rank", RANK) if one.label == "Time" else ("rank_channel", FINE)
        return replace(effective.cell(one.statistics(name).median, n=one.statistics().n), format=format)

    groups = [TableGroup("Time", group), TableGroup("Channel", group, "g_own_channel")]
    label, figures = TableColumn("axis", "Axis"), (MAIN, Figure(effective, rank_cell), N, *TAIL)
    title, note = "Time axis and channel axis", runs.note(group)
    return build_table("channels", title, "tab:timechan", label, figures, groups, note, drop_empty=True)
