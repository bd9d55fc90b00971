"""The tables of gains: by model, metric, setting, domain and dataset. Columns and order are those of the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from hrx.reports.published import ALL_MODELS, published_tables
from hrx.reports.runs import GroupStatistics, is_few, trimmed_mean
from hrx.reports.table import COUNT, FINE_GAIN, ReportTable, TableColumn, TableRow
from hrx.reports.tables.scored import (
    BEATS_NAIVE,
    G_MARGIN,
    G_OWN,
    LEAKED,
    POSITIVE,
    SIGN_TEST,
    TAIL,
    TRIMMED_MEAN,
    N,
    ScoredRuns,
    build_row,
    positive,
    statistics,
    tail,
)
from hrx.reports.text import clean

SIGNIFICANCE = 0.05
_METRICS = {
    "Comprehensiveness": "comprehensiveness",
    "Sufficiency": "sufficiency",
    "AOPC": "aopc",
    "Insertion": "insertion",
    "g_own": "g_own",
    "g_margin": "g_margin",
}


def models(runs: ScoredRuns) -> ReportTable:
    """Median gain of each checkpoint."""
    columns = (TableColumn("model", "Model"), G_OWN, POSITIVE, *TAIL)
    rows = []
    for model in _by_model(runs.configurations):
        own = statistics(model.group, "g_own")
        values = (model.label, own.median, positive(own), *tail(model.group))
        rows.append(build_row(columns, values, own.n, key=model.name, total=model.total, where=model.where))
    title = "Gain g_own by model"
    return ReportTable("models", title, columns, tuple(rows), runs.note(runs.configurations), "tab:fm_models")


def models_full(runs: ScoredRuns) -> ReportTable:
    """The same with checkpoint, share that beats naive, and count."""
    columns = (
        *(TableColumn("model", "Model"), TableColumn("checkpoint", "Checkpoint")),
        *(BEATS_NAIVE, G_OWN, POSITIVE, N, LEAKED),
    )
    rows = []
    for model in _by_model(runs.configurations):
        own = statistics(model.group, "g_own")
        beats, leaked = tail(model.group)
        checkpoint = "" if model.total else str(model.group["checkpoint"].iloc[0])
        values = (model.label, checkpoint, beats, own.median, positive(own), own.n, leaked)
        rows.append(build_row(columns, values, own.n, key=model.name, total=model.total, where=model.where))
    title = "Models in full: checkpoint, naive verdict, gain and count"
    return ReportTable("models_full", title, columns, tuple(rows), runs.note(runs.configurations), "tab:fm_models_full")


class ModelGroup(NamedTuple):
    """The configurations of one checkpoint, or of all of them."""

    label: str
    name: str
    group: pd.DataFrame
    where: tuple[tuple[str, str | int], ...] = ()
    total: bool = False


def _by_model(frame: pd.DataFrame) -> list[ModelGroup]:
    """Each checkpoint in the paper's order, then all of them."""
    groups = [
        (str(group["model_name"].iloc[0]), str(fingerprint), group)
        for (_, fingerprint), group in frame.groupby(["model", "fingerprint"], sort=False, dropna=False)
    ]
    order = {name: index for index, (_, name) in enumerate(published_tables()["models"].rows)}
    groups.sort(key=lambda group: order.get(group[0], len(order)))
    names = [name for name, _, _ in groups]
    found = []
    for name, fingerprint, group in groups:
        label = name if names.count(name) == 1 else f"{name} (weights {clean(fingerprint)[:12]})"
        where = (("model", str(group["model"].iloc[0])), ("fingerprint", fingerprint))
        found.append(ModelGroup(label, name, group, where))
    return [*found, ModelGroup(ALL_MODELS, ALL_MODELS, frame, total=True)] if len(found) > 1 else found


def metrics(runs: ScoredRuns) -> ReportTable:
    """The metrics of prior works beside the two gains."""
    columns = (
        *(TableColumn("metric", "Metric"), TableColumn("median", "Median", FINE_GAIN, hue="red")),
        *(POSITIVE, SIGN_TEST, N, TRIMMED_MEAN, *TAIL),
    )
    rows = []
    for label, name in _METRICS.items():
        group = runs.configurations[runs.configurations[name].notna()]
        if group.empty:
            continue
        metric = statistics(group, name)
        trimmed = trimmed_mean(group[name])
        values = (label, metric.median, positive(metric), metric.p, metric.n, trimmed, *tail(group))
        rows.append(build_row(columns, values, metric.n))
    note = runs.note(runs.configurations, "Signed so that positive means that a row per step helps.")
    return ReportTable("metrics", "Metrics of prior works", columns, tuple(rows), note, "tab:fm_std")


def axes(runs: ScoredRuns) -> ReportTable:
    """The gain along the horizon and along the lookback."""
    columns = (TableColumn("setting", "Setting"), G_OWN, G_MARGIN, POSITIVE, N, *TAIL)
    rows = []
    for section, name in (("Horizon H", "horizon"), ("Lookback L", "lookback")):
        for level, group in runs.configurations.groupby(name, sort=True):
            own, margin = statistics(group, "g_own"), statistics(group, "g_margin")
            margin_cell = G_MARGIN.cell(margin.median, n=margin.n)
            values = (str(level), own.median, margin_cell, positive(own), own.n, *tail(group))
            rows.append(build_row(columns, values, own.n, section=section, where=((name, int(str(level))),)))
    note = runs.note(runs.configurations, "Positive is that of g_own.")
    return ReportTable("axes", "Gain by horizon and lookback", columns, tuple(rows), note, "tab:fm_axes")


def domains(runs: ScoredRuns) -> ReportTable:
    """The gain by the domain of the series, largest first."""
    columns = (TableColumn("domain", "Domain"), TableColumn("datasets", "Datasets", COUNT), G_OWN, POSITIVE, N, *TAIL)
    known = runs.configurations[runs.configurations["domain_name"] != ""]

    def rows() -> Iterator[tuple[float, TableRow]]:
        for domain, group in known.groupby("domain_name", sort=True):
            own = statistics(group, "g_own")
            count = int(group["dataset"].nunique())
            values = (str(domain), count, own.median, positive(own), own.n, *tail(group))
            yield own.median, build_row(columns, values, own.n)

    unknown = len(runs.configurations) - len(known)
    without = f"{unknown:,} are on datasets without a known domain and not shown." if unknown else ""
    return ReportTable(
        "domains", "Gain g_own by domain", columns, _descending(rows()), runs.note(known, without), "tab:fm_domains"
    )


def datasets(runs: ScoredRuns) -> ReportTable:
    """Every dataset, largest gain first, with its sign test."""
    columns = (
        *(TableColumn("dataset", "Dataset"), replace(G_OWN, heading="Gain"), replace(POSITIVE, heading="Pos.")),
        *(N, SIGN_TEST, TableColumn("significant", "Significant"), *TAIL),
    )
    found = []
    for dataset, group in runs.configurations.groupby("dataset", sort=True):
        own = statistics(group, "g_own")
        name = str(group["dataset_name"].iloc[0])
        values = (name, own.median, positive(own), own.n, own.p, significant(own), *tail(group))
        found.append((own.median, build_row(columns, values, own.n, where=(("dataset", str(dataset)),))))
    signs = [str(row.cells[5].value) for _, row in found]
    counted = (
        f"Of {len(found)} datasets, {signs.count('positive')} are significantly positive and "
        f"{signs.count('negative')} significantly negative (two-sided sign test, p < {SIGNIFICANCE})."
    )
    note = runs.note(runs.configurations, counted)
    return ReportTable("datasets", "Gain g_own by dataset", columns, _descending(found), note, "tab:fm_datasets")


def significant(gain: GroupStatistics) -> str:
    """`positive` or `negative` where the sign test is significant over at least ten runs, else a dash."""
    if is_few(gain.n) or not gain.p < SIGNIFICANCE:
        return "-"
    return "positive" if gain.positive > gain.negative else "negative"


def _descending(rows: list[tuple[float, TableRow]] | Iterator[tuple[float, TableRow]]) -> tuple[TableRow, ...]:
    """Largest first; a group without a value last."""
    return tuple(row for _, row in sorted(rows, key=lambda pair: (pair[0] != pair[0], -pair[0])))
