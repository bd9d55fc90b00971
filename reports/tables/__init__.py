"""Published tables from stored runs: their groups of runs, columns and order, one function each.

`@_table` lists a function under its name; `trained` has those of trained backbones. Every table ends with the share
that beats naive and the leakage.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd

from hrx.errors import HrxError, unknown
from hrx.records.quantities import DISTANCES, RANK_BINS, TRUNCATIONS
from hrx.reports import published
from hrx.reports.runs import CONFIGURATION, SEEDS, fold_seeds, require_runs
from hrx.reports.statistics import GroupStatistics, is_few, median, trimmed_mean
from hrx.reports.table import (
    COUNT,
    FINE_GAIN,
    GAIN,
    INTERVAL,
    TIMES,
    Cell,
    Format,
    ReportTable,
    ReportTables,
    TableColumn,
)
from hrx.reports.tables import scored, trained
from hrx.reports.tables.scored import (
    POSITIVE,
    SCORED,
    Content,
    Figure,
    N,
    Recipes,
    ScoredRuns,
    TableGroup,
    TableRecipe,
    by_estimator,
    count_of,
    median_of,
    value_of,
)
from hrx.reports.text import clean, counted

SIGNIFICANCE = 0.05
METRICS = {
    "Comprehensiveness": "comprehensiveness", "Sufficiency": "sufficiency", "AOPC": "aopc", "Insertion": "insertion",
    "g_own": "g_own", "g_margin": "g_margin",
}  # fmt: skip
OWN = median_of(scored.G_OWN, "g_own")
MAIN = median_of(scored.G_OWN)
"""Row's quantity in the column of g_own."""
RANK, FINE = Format("number", decimals=2, plus=False), Format("number", decimals=4, plus=False)
ERROR = Format("number", plus=False)
RECIPES = Recipes()
_table = RECIPES.table


def tables(
    frame: pd.DataFrame,
    names: Sequence[str] | str | None = None,
    *,
    against: Literal["published"] | None = None,
    estimator: str = scored.DEFAULT_ESTIMATOR,
    fold: bool = True,
) -> ReportTables:
    """Named tables from the runs of `read(ledger)`; without names, all that the ledger can fill.

    `estimator` selects the runs of all tables that do not compare estimators. Without `fold`, every seed counts as a
    run. `against="published"` puts the paper's value beside each cell.

        print(hrx.tables(hrx.read("my-audit/ledger.db"), ["models"])[0].to_text())
    """
    require_runs(frame, "frame")
    names = [names] if isinstance(names, str) else names
    if wrong := [name for name in names or () if name not in RECIPES]:
        raise HrxError(unknown("table", wrong[0], NAMES))
    runs = ScoredRuns(frame, estimator, fold)
    if estimator != scored.DEFAULT_ESTIMATOR and runs.scored.empty:
        raise HrxError(f"No scored run is of the estimator {estimator!r}. {runs.holdings()}")
    made = {name: _build(name, RECIPES[name], runs) for name in names or NAMES}
    for name in names or ():
        if not made[name].rows:
            raise HrxError(f"The table {name!r} cannot be filled: it needs {RECIPES[name].needs}. {runs.holdings()}")
    filled = [table for table in made.values() if table.rows]
    if not filled:
        raise HrxError(f"No table can be filled: there are no scored runs. {runs.holdings()}")
    return ReportTables(published.beside(table) if against == "published" else table for table in filled)


def _build(name: str, recipe: TableRecipe, runs: ScoredRuns) -> ReportTable:
    groups, figures, note = recipe.content(runs)
    always = (scored.BEATS_NAIVE, scored.BEATS_SEASONAL, scored.LEAKED)
    columns = (*figures, *(figure for figure in always if figure not in figures))
    chosen = [group for group in groups if group.statistics().n or recipe.keep_empty]
    if recipe.descending:
        chosen.sort(key=lambda group: (np.isnan(group.statistics().median), -group.statistics().median))
    rows = tuple(group.row(recipe.label, columns) for group in chosen)
    heads = (recipe.label, *(figure.column for figure in columns))
    there = published.published_tables().get(name)
    return ReportTable(name, recipe.title, heads, rows, note, there.label if there else "")


@_table("Gain g_own by model", "Model", keep_empty=True)
def models(runs: ScoredRuns) -> Content:
    return _by_model(runs.configurations), (OWN, POSITIVE), runs.note(runs.configurations)


@_table("Models in full: checkpoint, naive verdict, gain and count", "Model", keep_empty=True)
def models_full(runs: ScoredRuns) -> Content:
    checkpoint = count_of(
        TableColumn("checkpoint", "Checkpoint"),
        lambda group: "" if group.total else str(group.runs["checkpoint"].iloc[0]),
    )
    mase = median_of(TableColumn("mase", "MASE", ERROR), "mase")
    figures = (checkpoint, scored.BEATS_NAIVE, scored.BEATS_SEASONAL, mase, OWN, POSITIVE, N, scored.LEAKED)
    return _by_model(runs.configurations), figures, runs.note(runs.configurations)


def _by_model(frame: pd.DataFrame) -> list[TableGroup]:
    """Each zero-shot checkpoint in the paper's order, then all of them, then the runs of trained backbones."""
    trained_runs = frame[frame["backbone"] != ""]
    frame = frame[frame["backbone"] == ""]
    found = [
        (str(group["model_name"].iloc[0]), str(fingerprint), group)
        for (_, fingerprint), group in frame.groupby(["model", "fingerprint"], sort=False, dropna=False)
    ]
    order = {name: index for index, (_, name) in enumerate(published.published_tables()["models"].rows)}
    found.sort(key=lambda one: order.get(one[0], len(order)))
    names = [name for name, _, _ in found]
    groups = []
    for name, fingerprint, group in found:
        label = name if names.count(name) == 1 else f"{name} (weights {clean(fingerprint)[:12]})"
        where = (("model", str(group["model"].iloc[0])), ("fingerprint", fingerprint))
        groups.append(TableGroup(label, group, key=name, where=where))
    if len(groups) > 1:
        groups.append(TableGroup(published.ALL_MODELS, frame, total=True))
    return groups if trained_runs.empty else [*groups, TableGroup(published.TRAINED, trained_runs, total=True)]


@_table("Metrics of prior works", "Metric")
def metrics(runs: ScoredRuns) -> Content:
    frame = runs.zero_shot
    middle = median_of(TableColumn("median", "Median", FINE_GAIN, hue="red"))
    trimmed = value_of(
        TableColumn("trimmed_mean", "Trimmed mean (10 %)", FINE_GAIN),
        lambda group: trimmed_mean(group.runs[group.quantity]),
    )
    groups = [TableGroup(label, frame[frame[name].notna()], name) for label, name in METRICS.items()]
    signs = "Signed so that positive means that a row per step helps."
    note = runs.note(frame, runs.left_out, signs, "Comprehensiveness is exactly 8/9 of AOPC, by definition.")
    return groups, (middle, POSITIVE, scored.SIGN_TEST, N, trimmed), note


@_table("Gain by horizon and lookback", "Setting", keep_empty=True)
def axes(runs: ScoredRuns) -> Content:
    groups = [
        TableGroup(str(level), group, section=section, where=((name, int(str(level))),))
        for section, name in (("Horizon H", "horizon"), ("Lookback L", "lookback"))
        for level, group in runs.zero_shot.groupby(name, sort=True)
    ]
    note = runs.note(runs.zero_shot, runs.left_out, "Positive is that of g_own.", scored.MARGIN_NOTE)
    return groups, (OWN, median_of(scored.G_MARGIN, "g_margin"), scored.MARGIN_OF_MEDIANS, POSITIVE, N), note


@_table(
    "Gain g_own by domain", "Domain", f"{SCORED}, on datasets with a known domain", descending=True, keep_empty=True
)
def domains(runs: ScoredRuns) -> Content:
    known = runs.zero_shot[runs.zero_shot["domain_name"] != ""]
    groups = [TableGroup(str(domain), group) for domain, group in known.groupby("domain_name", sort=True)]
    count = count_of(TableColumn("datasets", "Datasets", COUNT), lambda group: int(group.runs["dataset"].nunique()))
    unknown = len(runs.zero_shot) - len(known)
    note = runs.note(
        known, runs.left_out, f"{unknown:,} are on datasets without a known domain and not shown." if unknown else ""
    )
    return groups, (count, OWN, POSITIVE, N), note


@_table("Gain g_own by dataset", "Dataset", descending=True, keep_empty=True)
def datasets(runs: ScoredRuns) -> Content:
    groups = [
        TableGroup(str(group["dataset_name"].iloc[0]), group, where=(("dataset", str(dataset)),))
        for dataset, group in runs.zero_shot.groupby("dataset", sort=True)
    ]
    verdicts = [significant(group.statistics()) for group in groups]
    tested = (
        f"Of {counted(len(groups), 'dataset')}, {verdicts.count('positive')} are significantly positive and "
        f"{verdicts.count('negative')} significantly negative (two-sided sign test, p < {SIGNIFICANCE})."
    )
    figures = (
        median_of(replace(scored.G_OWN, heading="Gain")),
        POSITIVE._replace(column=replace(POSITIVE.column, heading="Pos.")),
        *(N, scored.SIGN_TEST),
        count_of(TableColumn("significant", "Significant"), lambda group: significant(group.statistics())),
    )
    return groups, figures, runs.note(runs.zero_shot, runs.left_out, tested)


def significant(gain: GroupStatistics) -> str:
    """`positive` or `negative` where the sign test is significant over at least ten runs, else a dash."""
    if is_few(gain.n) or not gain.p < SIGNIFICANCE:
        return "-"
    return "positive" if gain.positive > gain.negative else "negative"


@_table(
    "A row per forecast step for each estimator",
    "Estimator",
    "scored runs with one row per forecast step",
    keep_empty=True,
)
def estimators(runs: ScoredRuns) -> Content:
    figures: list[Figure] = []
    for gain in (scored.G_OWN, scored.G_SHUFFLED, scored.G_MARGIN):
        interval = TableColumn(f"{gain.name}_ci", "95% CI", Format("span", plus=False))
        figures.append(median_of(replace(gain, format=Format("number", plus=False)), gain.name))
        figures.append(scored.interval_of(interval, gain.name))
    figures += [scored.MARGIN_OF_MEDIANS, N]
    return by_estimator(runs.every_estimator, "g_margin"), figures, runs.note(runs.every_estimator, scored.MARGIN_NOTE)


@_table(
    "The estimators without the horizon axis",
    "Estimator",
    "runs of an estimator without the horizon axis",
    descending=True,
)
def estimators_plain(runs: ScoredRuns) -> Content:
    gap, interval = TableColumn("gap", "Deletion gap", GAIN, hue="red"), TableColumn("gap_ci", "95% CI", INTERVAL)
    groups = by_estimator(runs.whole, "gap_shared", ("axis", "whole"))
    note = runs.note(runs.whole, "One row for the whole forecast, as each estimator was published.")
    return groups, (median_of(gap), scored.interval_of(interval), N), note


@_table("Cost of each estimator", "Estimator", "runs with the time of their matrix and of a forward pass")
def cost(runs: ScoredRuns) -> Content:
    figures = (median_of(TableColumn("cost", "Cost", TIMES, unit="forward passes")), N)
    note = runs.note(runs.every_estimator, "Median wall time of the matrix over that of one forward pass.")
    return by_estimator(runs.every_estimator, "cost"), figures, note


@_table("Seed reproducibility", "Quantity", f"{SCORED}, with two seeds or more")
def seeds(runs: ScoredRuns) -> Content:
    names = ["g_own", "g_margin", "rank"]
    frame = runs.scored.drop_duplicates([*CONFIGURATION, *SEEDS])
    ids = frame.groupby(list(CONFIGURATION), sort=False, dropna=False).ngroup()
    complete = frame[names].notna().all(axis=1).groupby(ids).transform("all")
    kept = complete & (frame.groupby(ids)["seed"].transform("nunique") > 1)
    folded = runs.named(fold_seeds(frame[kept], scored.FOLDED), frame)
    spreads = frame.loc[kept, names].groupby(ids[kept]).std(ddof=1)
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
        N,
    )
    note = (
        "Over configurations with two seeds or more and with all three quantities. Std (seed) is the mean of the "
        "standard deviations across the seeds of each, Std (configuration) that of the folded values."
    )
    return [TableGroup(name, folded, name) for name in names], figures, runs.note(folded, note)


@_table("Gain by effective rank", "r(E)", name="rank")
def rank(runs: ScoredRuns) -> Content:
    ranks = runs.configurations["rank"].to_numpy(dtype=np.float64)
    # Rounding can put the ratio of a rank-one matrix a little below one: it still belongs to the first bin.
    place = np.digitize(ranks, [rank_bin.low for rank_bin in RANK_BINS[1:]])
    groups = [
        TableGroup(label, runs.configurations[(place == index) & np.isfinite(ranks)])
        for index, (_, label) in enumerate(published.published_tables()["rank"].rows)
    ]
    count = N._replace(column=replace(N.column, heading="Runs"))
    interval = scored.interval_of(TableColumn("g_own_ci", "95% CI", INTERVAL))
    return groups, (count, OWN, interval, POSITIVE), runs.note(runs.configurations)


@_table("Gain of the truncated matrix", "Truncation", "runs that scored truncations of the matrix")
def truncation(runs: ScoredRuns) -> Content:
    group = _measured(runs, *scored.SWEPT_RANKS)
    groups = [TableGroup(f"r = {r}", group, f"g_own_rank_{r}") for r in TRUNCATIONS]
    positive_full = group["g_own"].where(group["g_own"] > 0)
    fraction = value_of(
        TableColumn("fraction", "Fraction of full", RANK), lambda one: median(group[one.quantity] / positive_full)
    )
    note = runs.note(group, "Fraction of full is the median over the runs with a positive full gain.")
    return [*groups, TableGroup("full", group, total=True)], (MAIN, fraction, N), note


@_table("Margin by distance", "Distance", "runs that scored rows at fixed distances")
def distance(runs: ScoredRuns) -> Content:
    group = _measured(runs, *scored.SWEPT_DISTANCES)
    margins = {f"Δ = {d}": group["g_own"] - group[f"g_distance_{d}"] for d in DISTANCES}
    margins["random π"] = group["g_margin"]
    groups = [
        TableGroup(label, group.assign(margin=margin)[margin.notna()], "margin", total=label == "random π")
        for label, margin in margins.items()
    ]
    note = runs.note(group, "A longer distance has fewer runs where the horizon is shorter than it.")
    return groups, (median_of(scored.G_MARGIN), POSITIVE, N), note


@_table("Time axis and channel axis", "Axis", "runs of windows with several variates, scored on the channel axis")
def channels(runs: ScoredRuns) -> Content:
    group = _measured(runs, "g_own_channel")
    effective = TableColumn("rank", "Effective rank", RANK)

    def rank_cell(one: TableGroup) -> Cell:
        # The rank of the channel axis is so near one that two decimals would hide the rest; the paper prints four.
        name, format = ("rank", RANK) if one.label == "Time" else ("rank_channel", FINE)
        return replace(effective.cell(one.statistics(name).median, n=one.statistics().n), format=format)

    groups = [TableGroup("Time", group), TableGroup("Channel", group, "g_own_channel")]
    return groups, (MAIN, Figure(effective, rank_cell), N), runs.note(group)


def _measured(runs: ScoredRuns, *names: str) -> pd.DataFrame:
    """Configurations with a value of any of these."""
    return runs.configurations[runs.configurations[list(names)].notna().any(axis=1)]


@_table("Forecast errors beside the naive ones", "Dataset", f"{SCORED} and an error")
def accuracy(runs: ScoredRuns) -> Content:
    frame = runs.configurations
    several = frame["model_name"].nunique() > 1
    groups = [
        TableGroup(
            str(group["dataset_name"].iloc[0]), group, "mse", section=str(model) if several else "",
            where=(("model", str(group["model"].iloc[0])), ("dataset", str(group["dataset"].iloc[0]))),
        )
        for (model, _), group in frame.groupby(["model_name", "dataset"], sort=False, dropna=False)
    ]  # fmt: skip
    columns = {
        "mse": "MSE", "mse_zero": "MSE of zero", "mse_last": "MSE of last", "mse_seasonal": "MSE of season",
        "mase": "MASE", "naive_mase": "MASE of last", "seasonal_mase": "MASE of season",
    }  # fmt: skip
    figures = [median_of(TableColumn(name, heading, ERROR), name) for name, heading in columns.items()]
    note = (
        "Medians. MSE is on the standardised scale; MASE divides the absolute error by that of seasonal naive before "
        "the test region. Zero, last and season: the forecasts that predict zero, the last value and the last season."
    )
    return groups, [*figures, N], runs.note(frame, note)


RECIPES.update(trained.RECIPES)
NAMES: tuple[str, ...] = tuple(RECIPES)
