"""Tables of trained backbones: runs whose record names the class of the model.

A checkpoint is trained for one lookback, horizon, depth and seed, so each of them is a configuration of its own here.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from hrx.reports import published
from hrx.reports.runs import SEEDS, TASK, VERSIONS
from hrx.reports.statistics import Interval, student_interval
from hrx.reports.table import GAIN, INTERVAL, Cell, Format, Span, TableColumn
from hrx.reports.tables import scored
from hrx.reports.tables.scored import (
    Content,
    Figure,
    N,
    Recipes,
    ScoredRuns,
    TableGroup,
    by_estimator,
    count_of,
    median_of,
)
from hrx.reports.text import counted

RECIPES = Recipes()
_table = RECIPES.table
_NEEDS = "scored runs of trained backbones, such as those of neuralforecast:DIR"
_INTERVAL = scored.interval_of(TableColumn("g_own_ci", "95% CI", INTERVAL), "g_own")
_SIGNIFICANT = count_of(
    TableColumn("significant", "Significant"), lambda group: "yes" if group.statistics().excludes_zero else "-"
)
_FIGURES = (
    median_of(scored.G_OWN, "g_own"),
    _INTERVAL,
    median_of(scored.G_SHUFFLED, "g_shuffled"),
    median_of(scored.G_MARGIN, "g_margin"),
    scored.MARGIN_OF_MEDIANS,
    N,
    _SIGNIFICANT,
)
"""Columns of the paper's tables by backbone and by benchmark."""
AXES = {"Forecast length H": "horizon", "Lookback length L": "lookback", "Depth (layers)": "depth"}
"""Swept settings: the paper's name of each, and its column."""
_HELD = ("backbone", "training_seed", *VERSIONS, "series", *(name for name in TASK if name not in AXES.values()))
_CHANGE = TableColumn("change", "Paired change", GAIN, hue="red")
VERDICTS = {"Beats naive": 1.0, "Loses to naive": 0.0}


@_table("Trained backbones", "Backbone", _NEEDS, keep_empty=True)
def backbones(runs: ScoredRuns) -> Content:
    groups = {str(name): group for name, group in runs.trained.groupby("backbone_name", sort=True)}
    order = [name for _, name in published.published_tables()["backbones"].rows]
    names = sorted(groups, key=lambda name: order.index(name) if name in order else len(order))
    found = [TableGroup(name, groups[name], where=_same(groups[name], "backbone")) for name in names]
    return found, _FIGURES, runs.note_of_trained(runs.trained, scored.MARGIN_NOTE)


@_table("Trained backbones by benchmark", "Benchmark", _NEEDS, descending=True, keep_empty=True)
def benchmarks(runs: ScoredRuns) -> Content:
    groups = [
        TableGroup(str(name), group, where=_same(group, "dataset"))
        for name, group in runs.trained.groupby("dataset_name", sort=True)
    ]
    return groups, _FIGURES, runs.note_of_trained(runs.trained, scored.MARGIN_NOTE)


def _same(group: pd.DataFrame, column: str) -> tuple[tuple[str, str | int], ...]:
    """Value that a column has in all of the runs, where it has one."""
    values = group[column].unique()
    return ((column, str(values[0])),) if len(values) == 1 else ()


@_table("Paired change in g_own along the swept settings", "Range", f"{_NEEDS}, at two levels of H, L or depth")
def trained_axes(runs: ScoredRuns) -> Content:
    figures = (
        Figure(_CHANGE, _change),
        scored.value_of(TableColumn("change_ci", "95% CI", INTERVAL), lambda group: Span(*_mean(group)[1:])),
        N._replace(column=replace(N.column, heading="Blocks")),
    )
    note = (
        "Each block holds backbone, dataset, series, training seed, protocol and the other two settings fixed; the "
        "change is the mean over blocks of the difference of g_own, with the interval of Student's t."
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
    averaged = [*scored.VERDICTS, "g_own"]
    lows, highs = (one[averaged].groupby(level="block").mean() for one in (at_low, at_high))
    both = highs.index.intersection(lows.index)
    found = at_high[~at_high.index.duplicated()].loc[both]
    change = (highs["g_own"] - lows["g_own"]).loc[both]
    verdicts = ((highs + lows) / 2).loc[both, list(scored.VERDICTS)]
    return found.assign(change=change, **{name: verdicts[name] for name in scored.VERDICTS}).reset_index(drop=True)


def _mean(group: TableGroup) -> Interval:
    """Mean change, with a symmetric interval as the paper's are."""
    return student_interval(group.runs["change"].to_numpy(dtype=np.float64))


def _change(group: TableGroup) -> Cell:
    found = _mean(group)
    return _CHANGE.cell(found.point, n=len(group.runs), significant=found.low > 0 or found.high < 0)


@_table("Estimators by benchmark", "Estimator", _NEEDS)
def trained_estimators(runs: ScoredRuns) -> Content:
    frame = runs.every_estimator[runs.every_estimator["backbone"] != ""]
    plain = Format("number", plus=False)
    gains = (scored.G_OWN, scored.G_SHUFFLED, scored.G_MARGIN)
    figures = [median_of(replace(gain, format=plain), gain.name) for gain in gains]
    groups = [
        replace(group, section=str(name))
        for name, one in frame.groupby("dataset_name", sort=True)
        for group in by_estimator(one, "g_own")
    ]
    return groups, (*figures, scored.MARGIN_OF_MEDIANS, N), runs.note_of_trained(frame, scored.MARGIN_NOTE)


@_table("Gain g_own of trained backbones by domain and naive verdict", "Runs", f"{_NEEDS}, on tslib: data")
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
    figures = (median_of(scored.G_OWN, "g_own"), _INTERVAL, scored.POSITIVE, N)
    return groups, figures, runs.note_of_trained(frame, *notes)
