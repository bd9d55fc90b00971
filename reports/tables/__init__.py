"""Published tables from stored runs: their groups of runs, columns and order, one function each.

`@table` lists a function under its name. Every table ends with the share that beats naive and the leakage. A trained
backbone is a run whose record names the class of its model; its checkpoints are trained for one lookback, horizon,
depth and seed, so each of them is a configuration of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from hrx.errors import HrxError, unknown
from hrx.records.quantities import DISTANCES, GAINS, RANK_BINS, TRUNCATIONS
from hrx.reports import published
from hrx.reports.cells import COUNT, FINE_GAIN, GAIN, INTERVAL, Cell, Format, P, Span, TableColumn, Value
from hrx.reports.covariates import FOLDED, POINT, ChannelSummary, channel_rows, summarise_channels
from hrx.reports.runs import CONFIGURATION, SEEDS, TASK, VERSIONS, as_runs
from hrx.reports.statistics import FEWEST_INTERVAL, Interval, median, student_interval, trimmed_mean
from hrx.reports.table import ReportTable, ReportTables
from hrx.reports.tables import scored
from hrx.reports.tables.scored import (
    POSITIVE,
    SCORED,
    Content,
    Figure,
    N,
    ScoredRuns,
    TableGroup,
    by_estimator,
    count_of,
    interval_of,
    median_of,
    table,
    value_of,
)
from hrx.reports.text import clean, counted

_SIDES = {1: "positive", 0: "-", -1: "negative"}
_HOLM = "The sign test takes one value per series of a dataset, with Holm's correction over the datasets (p < 0.05)."
METRICS = {
    "Comprehensiveness": "comprehensiveness", "Sufficiency": "sufficiency", "AOPC": "aopc", "Insertion": "insertion",
    "g_own": "g_own", "g_margin": "g_margin",
}  # fmt: skip
OWN = median_of(scored.G_OWN, "g_own")
MAIN = median_of(scored.G_OWN)
"""Row's quantity in the column of g_own."""
RANK, FINE = Format("number", decimals=2, plus=False), Format("number", decimals=4, plus=False)
ERROR = Format("number", plus=False)
_TRAINED = "scored runs of trained backbones, such as those of neuralforecast:DIR"
AXES = {"Forecast length H": "horizon", "Lookback length L": "lookback", "Depth (layers)": "depth"}
"""Swept settings of trained backbones: the paper's name of each, and its column."""
_HELD = ("backbone", "training_seed", *VERSIONS, "series", *(name for name in TASK if name not in AXES.values()))
_CHANGE = TableColumn("change", "Paired change", GAIN, hue="red")
VERDICTS = {"Beats naive": 1.0, "Loses to naive": 0.0}


def tables(
    frame: pd.DataFrame | str | Path,
    names: Sequence[str] | str | None = None,
    *,
    against: Literal["published"] | None = None,
    estimator: str = scored.DEFAULT_ESTIMATOR,
    fold: bool = True,
) -> ReportTables:
    """Named tables from the runs of a ledger, its path or frame of `read`; without names, all that the ledger can fill.

    `estimator` selects the runs of all tables that do not compare estimators. Without `fold`, every seed counts as a
    run. `against="published"` puts the paper's value beside each cell.

        hrx.tables("my-audit/ledger.db", ["models"])[0].to_frame()
    """
    frame = as_runs(frame, "frame")
    names = [names] if isinstance(names, str) else names
    if wrong := [name for name in names or () if name not in scored.RECIPES]:
        raise HrxError(unknown("table", wrong[0], NAMES))
    runs = ScoredRuns(frame, estimator, fold)
    if estimator != scored.DEFAULT_ESTIMATOR and runs.scored.empty:
        raise HrxError(f"No scored run is of the estimator {estimator!r}. {runs.holdings()}")
    made = {name: _build(name, scored.RECIPES[name], runs) for name in names or NAMES}
    if empty := [name for name in names or () if not made[name].rows]:
        raise HrxError(
            f"The table {empty[0]!r} cannot be filled: it needs {scored.RECIPES[empty[0]].needs}. {runs.holdings()}"
        )
    filled = [one for one in made.values() if one.rows]
    if not filled:
        raise HrxError(f"No table can be filled: there are no scored runs. {runs.holdings()}")
    return ReportTables(published.beside(one) if against == "published" else one for one in filled)


def _build(name: str, recipe: scored.TableRecipe, runs: ScoredRuns) -> ReportTable:
    groups, figures, note = recipe.content(runs)
    found = scored.EVIDENCE if recipe.evidence else ()
    columns = tuple(dict.fromkeys((*figures, *found, scored.BEATS_NAIVE, scored.BEATS_SEASONAL, scored.LEAKED)))
    note = f"{note} {scored.EVIDENCE_NOTE}" if found else note
    chosen = [group for group in groups if group.statistics().n or recipe.keep_empty]
    if recipe.descending:
        chosen.sort(key=lambda group: (np.isnan(group.statistics().median), -group.statistics().median))
    rows = tuple(group.row(recipe.label, columns) for group in chosen)
    heads = (recipe.label, *(figure.column for figure in columns))
    there = published.published_tables().get(name)
    return ReportTable(name, recipe.title, heads, rows, note, there.label if there else "")


@table("Gain g_own by model", "Model", keep_empty=True)
def models(runs: ScoredRuns) -> Content:
    return _by_model(runs.configurations), (OWN, POSITIVE), runs.note(runs.configurations)


@table("Models in full: checkpoint, naive verdict, gain and count", "Model", keep_empty=True, evidence=False)
def models_full(runs: ScoredRuns) -> Content:
    def named(group: TableGroup) -> str:
        return "" if group.total else str(group.runs["checkpoint"].iloc[0])

    checkpoint = count_of(TableColumn("checkpoint", "Checkpoint"), named)
    mase = median_of(TableColumn("mase", "MASE", ERROR), "mase")
    figures = (checkpoint, scored.BEATS_NAIVE, scored.BEATS_SEASONAL, mase, OWN, POSITIVE, N, scored.LEAKED)
    return _by_model(runs.configurations), figures, runs.note(runs.configurations)


def _by_model(frame: pd.DataFrame) -> list[TableGroup]:
    """Each zero-shot checkpoint in the paper's order, then all of them, then the runs of trained backbones."""
    trained_runs, frame = frame[frame["backbone"] != ""], frame[frame["backbone"] == ""]
    groups = []
    for (model, fingerprint), group in frame.groupby(["model", "fingerprint"], sort=False, dropna=False):
        where = (("model", str(model)), ("fingerprint", str(fingerprint)))
        groups.append(TableGroup(str(group["model_name"].iloc[0]), group, where=where))
    groups = _in_order(groups, "models")
    names = [group.label for group in groups]
    groups = [
        replace(group, label=f"{group.label} (weights {clean(group.where[1][1])[:12]})", key=group.label)
        if names.count(group.label) > 1
        else group
        for group in groups
    ]
    if len(groups) > 1:
        groups.append(TableGroup(published.ALL_MODELS, frame, total=True))
    return groups if trained_runs.empty else [*groups, TableGroup(published.TRAINED, trained_runs, total=True)]


def _in_order(groups: list[TableGroup], table: str) -> list[TableGroup]:
    """Groups in the order of a published table, others after them."""
    order = [name for _, name in published.published_tables()[table].rows]
    return sorted(groups, key=lambda group: order.index(group.label) if group.label in order else len(order))


def _groups(frame: pd.DataFrame, by: str, column: str) -> list[TableGroup]:
    """A group for each value of `by`; its records are those with the value that `column` has, where it has one."""
    groups = [TableGroup(str(name), runs) for name, runs in frame.groupby(by, sort=True)]
    one = {group.label: group.runs[column].unique() for group in groups}
    return [replace(g, where=((column, str(one[g.label][0])),)) if len(one[g.label]) == 1 else g for g in groups]


@table("Metrics of prior works", "Metric")
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


@table("Gain by horizon and lookback", "Setting", keep_empty=True)
def axes(runs: ScoredRuns) -> Content:
    groups = [
        TableGroup(str(level), group, section=section, where=((name, int(str(level))),))
        for section, name in (("Horizon H", "horizon"), ("Lookback L", "lookback"))
        for level, group in runs.zero_shot.groupby(name, sort=True)
    ]
    note = runs.note(runs.zero_shot, runs.left_out, "Positive is that of g_own.", scored.MARGIN_NOTE)
    return groups, (OWN, median_of(scored.G_MARGIN, "g_margin"), scored.MARGIN_OF_MEDIANS, POSITIVE, N), note


@table("Gain g_own by domain", "Domain", f"{SCORED}, on datasets with a known domain", descending=True, keep_empty=True)
def domains(runs: ScoredRuns) -> Content:
    known = runs.zero_shot[runs.zero_shot["domain_name"] != ""]
    groups = [TableGroup(str(domain), group) for domain, group in known.groupby("domain_name", sort=True)]
    count = count_of(
        TableColumn("datasets", "Datasets", Format("count")), lambda group: int(group.runs["dataset"].nunique())
    )
    unknown = len(runs.zero_shot) - len(known)
    others = f"{unknown:,} are on datasets without a known domain and not shown." if unknown else ""
    return groups, (count, OWN, POSITIVE, N), runs.note(known, runs.left_out, others)


@table("Gain g_own by dataset", "Dataset", descending=True, keep_empty=True)
def datasets(runs: ScoredRuns) -> Content:
    groups = _groups(runs.zero_shot, "dataset", "dataset")
    groups = scored.corrected([replace(g, label=str(g.runs["dataset_name"].iloc[0])) for g in groups], "g_own")
    tested, sides = sum(group.p() is not None for group in groups), [group.side() for group in groups]
    decided = f"{sides.count(1)} are significantly positive and {sides.count(-1)} significantly negative"
    sentence = f"Of {counted(len(groups), 'dataset')}, {tested} have six series or more; of these {decided}. {_HOLM}"
    figures = (
        median_of(replace(scored.G_OWN, heading="Gain")),
        POSITIVE._replace(column=replace(POSITIVE.column, heading="Pos.")),
        N,
        count_of(TableColumn("significant", "Significant"), lambda group: _SIDES[group.side()]),
    )
    return groups, figures, runs.note(runs.zero_shot, runs.left_out, sentence)


_ONE_ROW = "scored runs with one row per forecast step"


@table("A row per forecast step for each estimator", "Estimator", _ONE_ROW, keep_empty=True)
def estimators(runs: ScoredRuns) -> Content:
    figures: list[Figure] = []
    for gain in scored.GAIN_COLUMNS:
        interval = TableColumn(f"{gain.name}_ci", "95% CI over runs", Format("span", plus=False))
        figures += [median_of(replace(gain, format=ERROR), gain.name), interval_of(interval, gain.name)]
    note = runs.note(runs.every_estimator, scored.MARGIN_NOTE, scored.shared_note(runs.every_estimator))
    return by_estimator(runs.every_estimator, "g_margin"), [*figures, scored.MARGIN_OF_MEDIANS, N], note


_NO_AXIS = "runs of an estimator without the horizon axis"


@table("The estimators without the horizon axis", "Estimator", _NO_AXIS, descending=True)
def estimators_plain(runs: ScoredRuns) -> Content:
    gap, interval = (
        TableColumn("gap", "Deletion gap", GAIN, hue="red"),
        TableColumn("gap_ci", "95% CI over runs", INTERVAL),
    )
    groups = by_estimator(runs.whole, "gap_shared", ("axis", "whole"))
    note = runs.note(runs.whole, "One row for the whole forecast, as each estimator was published.")
    return groups, (median_of(gap), interval_of(interval), N), note


@table(
    "Cost of each estimator", "Estimator", "runs with the time of their matrix and of a forward pass", evidence=False
)
def cost(runs: ScoredRuns) -> Content:
    figures = (median_of(TableColumn("cost", "Cost", Format("times"), unit="forward passes")), N)
    note = runs.note(runs.every_estimator, "Median wall time of the matrix over that of one forward pass.")
    return by_estimator(runs.every_estimator, "cost"), figures, note


@table("Seed reproducibility", "Quantity", f"{SCORED}, with two seeds or more", evidence=False)
def seeds(runs: ScoredRuns) -> Content:
    names = ["g_own", "g_margin", "rank"]
    frame = runs.scored.drop_duplicates([*CONFIGURATION, *SEEDS])
    ids = frame.groupby(list(CONFIGURATION), sort=False, dropna=False).ngroup()
    complete = frame[names].notna().all(axis=1).groupby(ids).transform("all")
    kept = complete & (frame.groupby(ids)["seed"].transform("nunique") > 1)
    folded = runs.named(frame[kept], fold=True)
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


@table("Gain by effective rank", "r(E)", name="rank")
def rank(runs: ScoredRuns) -> Content:
    ranks = runs.configurations["rank"].to_numpy(dtype=np.float64)
    # Rounding can put the ratio of a rank-one matrix a little below one: it still belongs to the first bin.
    place = np.digitize(ranks, [rank_bin.low for rank_bin in RANK_BINS[1:]])
    groups = [
        TableGroup(label, runs.configurations[(place == index) & np.isfinite(ranks)])
        for index, (_, label) in enumerate(published.published_tables()["rank"].rows)
    ]
    count = N._replace(column=replace(N.column, heading="Runs"))
    interval = interval_of(TableColumn("g_own_ci", "95% CI over runs", INTERVAL))
    return groups, (count, OWN, interval, POSITIVE), runs.note(runs.configurations)


@table("Gain of the truncated matrix", "Truncation", "runs that scored truncations of the matrix")
def truncation(runs: ScoredRuns) -> Content:
    group = _measured(runs, *scored.SWEPT_RANKS)
    groups = [TableGroup(f"r = {r}", group, f"g_own_rank_{r}") for r in TRUNCATIONS]
    positive_full = group["g_own"].where(group["g_own"] > 0)
    fraction = value_of(
        TableColumn("fraction", "Fraction of full", RANK), lambda one: median(group[one.quantity] / positive_full)
    )
    note = runs.note(group, "Fraction of full is the median over the runs with a positive full gain.")
    return [*groups, TableGroup("full", group, total=True)], (MAIN, fraction, N), note


@table("Margin by distance", "Distance", "runs that scored rows at fixed distances")
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


@table("Time axis and channel axis", "Axis", "runs of windows with several variates, scored on the channel axis")
def channels(runs: ScoredRuns) -> Content:
    group = _measured(runs, "g_own_channel")
    effective = TableColumn("rank", "Effective rank", RANK)

    def rank_cell(one: TableGroup) -> Cell:
        # The rank of the channel axis is so near one that two decimals would hide the rest; the paper prints four.
        name, format = ("rank", RANK) if one.label == "Time" else ("rank_channel", FINE)
        return replace(effective.cell(one.statistics(name).median, n=one.statistics().n), format=format)

    groups = [TableGroup("Time", group), TableGroup("Channel", group, "g_own_channel")]
    return groups, (MAIN, Figure(effective, rank_cell), N), runs.note(group)


_OF_CHANNELS = (
    "Share: of the effects of all channels, mean of the scored steps. Change: error under the treatment over that with "
    "the channel as it is, less one; above 0 the channel helps. Share and change are those of the median series, with "
    "an interval from five series on; helps or hurts is said from six, by the sign test with Holm's correction over "
    "the channels of a model."
)


@table(
    "What each channel does, and whether it helps", "Channel", "scored runs with covariates", keep_empty=True,
    evidence=False,
)  # fmt: skip
def covariates(runs: ScoredRuns) -> Content:
    """A row for each channel, by model, dataset and output."""

    def fold(group: pd.DataFrame) -> pd.DataFrame:
        return runs.named(group, also=FOLDED)

    audited = runs.scored[runs.scored[["channel_effects", "channels_left_out"]].notna().any(axis=1)]
    found: dict[str, ChannelSummary] = {}
    groups = []
    for (model, fingerprint), rows in channel_rows(audited).groupby(["model", "fingerprint"], sort=False):
        for one in summarise_channels(rows, ("dataset",), fold):
            first = one.runs.iloc[0]
            section = f"{first['model_name']}, {first['dataset_name']}"
            section += "" if one.output == POINT else f", output {one.output}"
            where = (("model", str(model)), ("fingerprint", str(fingerprint)), ("dataset", str(first["dataset"])))
            groups.append(TableGroup(one.name, one.runs, "share", str(len(found)), section, where))
            found[groups[-1].key] = one

    def figure(name: str, heading: str, format: Format, value: Callable[[ChannelSummary], Value]) -> Figure:
        return count_of(TableColumn(name, heading, format), lambda group: value(found[group.key]))

    number, span = Format("number", decimals=2, plus=False), Format("span", decimals=2, plus=False)
    figures = (
        figure("role", "Role", Format(), lambda one: one.role or None),
        figure("kind", "Kind", Format(), lambda one: one.kind or None),
        figure("n", "n", COUNT, lambda one: len(one.runs)),
        figure("share", "Share", number, lambda one: one.evidence("share").interval.point),
        figure("share_interval", "95% interval", span, lambda one: _interval_of_channel(one, "share")),
        figure("read", "Read", Format(), lambda one: one.read),
        figure("helps", "Does it help", Format(), lambda one: one.help or None),
        figure("treatment", "Treatment", Format(), lambda one: one.treatment or None),
        figure("change", "Change of MSE", GAIN, lambda one: one.evidence("change").interval.point),
        figure("change_interval", "95% interval of it", INTERVAL, lambda one: _interval_of_channel(one, "change")),
        figure("p", "p", P, lambda one: one.corrected),
    )
    return groups, figures, runs.note(runs.named(audited), _OF_CHANNELS)


def _interval_of_channel(one: ChannelSummary, quantity: str) -> Value:
    """From five clusters on; that of five covers 94 %."""
    found = one.evidence(quantity)
    return Span(*found.interval[1:]) if found.n >= FEWEST_INTERVAL else None


def _measured(runs: ScoredRuns, *names: str) -> pd.DataFrame:
    """Configurations with a value of any of these."""
    return runs.configurations[runs.configurations[list(names)].notna().any(axis=1)]


@table("Forecast errors beside the naive ones", "Dataset", f"{SCORED} and an error", evidence=False)
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


_OWN_INTERVAL = interval_of(TableColumn("g_own_ci", "95% CI over runs", INTERVAL), "g_own")
_OF_TRAINED = (
    *(OWN, _OWN_INTERVAL, median_of(scored.G_SHUFFLED, "g_shuffled"), median_of(scored.G_MARGIN, "g_margin")),
    *(scored.MARGIN_OF_MEDIANS, N),
    count_of(TableColumn("significant", "Significant"), lambda group: "yes" if group.side("g_own") else "-"),
)
"""Columns of the paper's tables by backbone and by benchmark."""


@table("Trained backbones", "Backbone", _TRAINED, keep_empty=True)
def backbones(runs: ScoredRuns) -> Content:
    groups = _groups(runs.trained, "backbone_name", "backbone")
    return _in_order(groups, "backbones"), _OF_TRAINED, runs.note_of_trained(runs.trained, scored.MARGIN_NOTE)


@table("Trained backbones by benchmark", "Benchmark", _TRAINED, descending=True, keep_empty=True)
def benchmarks(runs: ScoredRuns) -> Content:
    groups = scored.corrected(_groups(runs.trained, "dataset_name", "dataset"), *GAINS)
    return groups, _OF_TRAINED, runs.note_of_trained(runs.trained, scored.MARGIN_NOTE, _HOLM)


@table("Paired change in g_own along the swept settings", "Range", f"{_TRAINED}, at two levels of H, L or depth")
def trained_axes(runs: ScoredRuns) -> Content:
    def mean(group: TableGroup) -> Interval:
        """Mean change, with a symmetric interval as the paper's are."""
        return student_interval(group.runs["change"].to_numpy(dtype=np.float64))

    def change(group: TableGroup) -> Cell:
        point = mean(group).point
        return _CHANGE.cell(point, n=len(group.runs), significant=group.side() * point > 0)

    figures = (
        Figure(_CHANGE, change),
        value_of(TableColumn("change_ci", "95% CI over runs", INTERVAL), lambda group: Span(*mean(group)[1:])),
        N._replace(column=replace(N.column, heading="Blocks")),
    )
    note = (
        "Each block holds backbone, dataset, series, training seed, protocol and the other two settings fixed; the "
        "change is the mean over blocks of the difference of g_own, with the interval of Student's t over blocks."
    )
    groups = [group for section, axis in AXES.items() for group in _contrasts(runs.trained, section, axis)]
    return groups, figures, runs.note_of_trained(runs.trained, note)


def _contrasts(frame: pd.DataFrame, section: str, axis: str) -> Iterator[TableGroup]:
    """Blocks of each level against the smallest one, and of the paper's two levels."""
    levels = sorted(int(level) for level in frame[axis].dropna().unique())
    theirs = [row.split(" → ") for name, row in published.published_tables()["trained_axes"].rows if name == section]
    pairs = [(levels[0], level) for level in levels[1:]]
    pairs += [(int(low), int(high)) for low, high in theirs if {int(low), int(high)} <= set(levels)]
    for low, high in sorted(set(pairs)):
        yield TableGroup(f"{low} → {high}", paired_changes(frame, axis, low, high), "change", section=section)


def paired_changes(frame: pd.DataFrame, axis: str, low: int, high: int) -> pd.DataFrame:
    """One row per block that has runs at both levels of an axis, with `change`, the gain at `high` less that at `low`.

    Several checkpoints of one block and level, as without a training seed in the record, are averaged first. The other
    columns are those of the run at `high`, except verdicts and leakage, which are means over both ends.
    """
    held = [*_HELD, *(name for name in AXES.values() if name != axis), *(name for name in SEEDS if name in frame)]
    ends = frame[frame[axis].isin([low, high]) & frame["g_own"].notna()]
    block = ends.groupby(held, sort=False, dropna=False).ngroup()
    at_low, at_high = (
        ends[(ends[axis] == level).to_numpy(dtype=bool)].assign(block=block).set_index("block") for level in (low, high)
    )
    averaged = [*scored.FOLDED_VERDICTS, "g_own"]
    lows, highs = (one[averaged].groupby(level="block").mean() for one in (at_low, at_high))
    both = highs.index.intersection(lows.index)
    found = at_high[~at_high.index.duplicated()].loc[both]
    change = (highs["g_own"] - lows["g_own"]).loc[both]
    verdicts = ((highs + lows) / 2).loc[both, list(scored.FOLDED_VERDICTS)]
    return found.assign(change=change, **{name: verdicts[name] for name in scored.FOLDED_VERDICTS}).reset_index(
        drop=True
    )


@table("Estimators by benchmark", "Estimator", _TRAINED)
def trained_estimators(runs: ScoredRuns) -> Content:
    frame = runs.every_estimator[runs.every_estimator["backbone"] != ""]
    figures = [median_of(replace(gain, format=ERROR), gain.name) for gain in scored.GAIN_COLUMNS]
    shared = scored.shared_note(frame)
    groups = [
        replace(group, section=str(name))
        for name, one in frame.groupby("dataset_name", sort=True)
        for group in by_estimator(one, "g_own")
    ]
    return groups, (*figures, scored.MARGIN_OF_MEDIANS, N), runs.note_of_trained(frame, scored.MARGIN_NOTE, shared)


@table("Gain g_own of trained backbones by domain and naive verdict", "Runs", f"{_TRAINED}, on tslib: data")
def trained_domains(runs: ScoredRuns) -> Content:
    frame, there = runs.trained, published.benchmarks()
    groups = []
    for section in dict.fromkeys(section for section, _ in published.published_tables()["trained_domains"].rows):
        inside = frame[frame["dataset_name"].isin([name for name in there if section in published.sections(name)])]
        groups.append(TableGroup("All", inside, section=section))
        if section != "Financial":
            groups += [
                TableGroup(label, inside[inside["beats_naive"] == verdict], section=section)
                for label, verdict in VERDICTS.items()
            ]
    split = ~frame["beats_naive"].isin(list(VERDICTS.values()))
    outside = ~frame["dataset_name"].isin(there)
    notes = (
        f"{counted(int(outside.sum()), 'configuration')} on other data not shown." if outside.any() else "",
        f"{counted(int(split.sum()), 'configuration')} whose seeds disagree on the naive verdict, or without one, in "
        "neither part." if split.any() else "",
    )  # fmt: skip
    figures = (OWN, _OWN_INTERVAL, POSITIVE, N)
    return groups, figures, runs.note_of_trained(frame, *notes)


NAMES: tuple[str, ...] = tuple(scored.RECIPES)
