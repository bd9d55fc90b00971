"""The tables of gains: by model, metric, setting, domain and dataset. Columns and order are those of the paper."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from hrx.reports.cells import COUNT, FINE_GAIN, Column, P, Row, Value
from hrx.reports.layout import clean
from hrx.reports.published import ALL_MODELS, published_tables
from hrx.reports.statistics import Described, is_few, trimmed_mean
from hrx.reports.table import Table
from hrx.reports.tables.runs import (
    BEATS_NAIVE,
    G_MARGIN,
    G_OWN,
    LEAKED,
    POSITIVE,
    N,
    Runs,
    positive,
    tail,
    values,
)

SIGNIFICANCE = 0.05
_METRICS = {
    "Comprehensiveness": "comprehensiveness",
    "Sufficiency": "sufficiency",
    "AOPC": "aopc",
    "Insertion": "insertion",
    "g_own": "g_own",
    "g_margin": "g_margin",
}


def models(runs: Runs) -> Table:
    """Median gain of each checkpoint."""
    columns = (Column("model", "Model"), G_OWN, POSITIVE, BEATS_NAIVE, LEAKED)
    rows = []
    for row, group in _by_model(runs.configurations):
        own = values(group, "g_own")
        label = columns[0].cell(row.cells[0].value, n=own.n)
        rows.append(replace(row, cells=(label, G_OWN.cell(own.median, n=own.n), positive(own), *tail(group))))
    title = "Gain g_own by model"
    return Table("models", title, columns, tuple(rows), runs.note(runs.configurations), "tab:fm_models")


def models_full(runs: Runs) -> Table:
    """The same with checkpoint, share that beats naive, and count."""
    columns = (
        Column("model", "Model"),
        Column("checkpoint", "Checkpoint"),
        BEATS_NAIVE,
        G_OWN,
        POSITIVE,
        N,
        LEAKED,
    )
    rows = []
    for row, group in _by_model(runs.configurations):
        own = values(group, "g_own")
        beats, leaked = tail(group)
        cells = (
            columns[0].cell(row.cells[0].value, n=own.n),
            columns[1].cell("" if row.total else str(group["checkpoint"].iloc[0])),
            beats,
            G_OWN.cell(own.median, n=own.n),
            positive(own),
            N.cell(own.n),
            leaked,
        )
        rows.append(replace(row, cells=cells))
    title = "Models in full: checkpoint, naive verdict, gain and count"
    return Table("models_full", title, columns, tuple(rows), runs.note(runs.configurations), "tab:fm_models_full")


def _by_model(frame: pd.DataFrame) -> list[tuple[Row, pd.DataFrame]]:
    """A row with its label alone and its runs, for each checkpoint in the paper's order, then for all of them."""
    groups = [
        (str(group["model_name"].iloc[0]), str(fingerprint), group)
        for (_, fingerprint), group in frame.groupby(["model", "fingerprint"], sort=False, dropna=False)
    ]
    order = {name: index for index, (_, name) in enumerate(published_tables()["models"].rows)}
    groups.sort(key=lambda found: order.get(found[0], len(order)))
    names = [name for name, _, _ in groups]
    column = Column("model", "Model")
    rows = []
    for name, fingerprint, group in groups:
        label = name if names.count(name) == 1 else f"{name} (weights {clean(fingerprint)[:12]})"
        where = (("model", str(group["model"].iloc[0])), ("fingerprint", fingerprint))
        rows.append((Row((column.cell(label),), key=name, where=where), group))
    if len(rows) > 1:
        rows.append((Row((column.cell(ALL_MODELS),), key=ALL_MODELS, total=True), frame))
    return rows


def metrics(runs: Runs) -> Table:
    """The metrics of prior works beside the two gains."""
    columns = (
        Column("metric", "Metric"),
        Column("median", "Median", FINE_GAIN, hue="red"),
        POSITIVE,
        Column("p", "Sign test", P),
        N,
        Column("trimmed_mean", "Trimmed mean (10 %)", FINE_GAIN),
        BEATS_NAIVE,
        LEAKED,
    )
    rows = []
    for label, name in _METRICS.items():
        group = runs.configurations[runs.configurations[name].notna()]
        if group.empty:
            continue
        found = values(group, name)
        cells = (
            columns[0].cell(label, n=found.n),
            columns[1].cell(found.median, n=found.n),
            positive(found),
            columns[3].cell(found.p),
            N.cell(found.n),
            columns[5].cell(trimmed_mean(group[name]), n=found.n),
            *tail(group),
        )
        rows.append(Row(cells, key=label))
    note = runs.note(runs.configurations, "Signed so that positive means that a row per step helps.")
    return Table("metrics", "Metrics of prior works", columns, tuple(rows), note, "tab:fm_std")


def axes(runs: Runs) -> Table:
    """The gain along the horizon and along the lookback."""
    columns = (Column("setting", "Setting"), G_OWN, G_MARGIN, POSITIVE, N, BEATS_NAIVE, LEAKED)
    rows = []
    for section, name in (("Horizon H", "horizon"), ("Lookback L", "lookback")):
        for level, group in runs.configurations.groupby(name, sort=True):
            own, margin = values(group, "g_own"), values(group, "g_margin")
            cells = (
                columns[0].cell(str(level), n=own.n),
                G_OWN.cell(own.median, n=own.n),
                G_MARGIN.cell(margin.median, n=margin.n),
                positive(own),
                N.cell(own.n),
                *tail(group),
            )
            rows.append(Row(cells, key=str(level), section=section, where=((name, int(str(level))),)))
    note = runs.note(runs.configurations, "Positive is that of g_own.")
    return Table("axes", "Gain by horizon and lookback", columns, tuple(rows), note, "tab:fm_axes")


def domains(runs: Runs) -> Table:
    """The gain by the field that the series come from, largest first."""
    columns = (
        Column("domain", "Domain"),
        Column("datasets", "Datasets", COUNT),
        G_OWN,
        POSITIVE,
        N,
        BEATS_NAIVE,
        LEAKED,
    )
    found = []
    known = runs.configurations[runs.configurations["domain_name"] != ""]
    for domain, group in known.groupby("domain_name", sort=True):
        own = values(group, "g_own")
        cells = (
            columns[0].cell(str(domain), n=own.n),
            columns[1].cell(int(group["dataset"].nunique())),
            G_OWN.cell(own.median, n=own.n),
            positive(own),
            N.cell(own.n),
            *tail(group),
        )
        found.append((own.median, Row(cells, key=str(domain))))
    unknown = len(runs.configurations) - len(known)
    without = f"{unknown:,} are on datasets without a known domain and not shown." if unknown else ""
    note = runs.note(known, *filter(None, [without]))
    return Table("domains", "Gain g_own by domain", columns, _descending(found), note, "tab:fm_domains")


def datasets(runs: Runs) -> Table:
    """Every dataset, largest gain first, with its sign test."""
    columns = (
        Column("dataset", "Dataset"),
        replace(G_OWN, heading="Gain"),
        replace(POSITIVE, heading="Pos."),
        N,
        Column("p", "Sign test", P),
        Column("significant", "Significant"),
        BEATS_NAIVE,
        LEAKED,
    )
    found = []
    for dataset, group in runs.configurations.groupby("dataset", sort=True):
        own = values(group, "g_own")
        name = str(group["dataset_name"].iloc[0])
        sign = significant(own)
        cells = (
            columns[0].cell(name, n=own.n),
            columns[1].cell(own.median, n=own.n),
            positive(own),
            N.cell(own.n),
            columns[4].cell(own.p),
            columns[5].cell(sign),
            *tail(group),
        )
        found.append((own.median, Row(cells, key=name, where=(("dataset", str(dataset)),))))
    signs = [str(row.cells[5].value) for _, row in found]
    counted = (
        f"Of {len(found)} datasets, {signs.count('positive')} are significantly positive and "
        f"{signs.count('negative')} significantly negative (two-sided sign test, p < {SIGNIFICANCE})."
    )
    note = runs.note(runs.configurations, counted)
    return Table("datasets", "Gain g_own by dataset", columns, _descending(found), note, "tab:fm_datasets")


def significant(gain: Described) -> Value:
    """`positive` or `negative` where the sign test says so over at least ten runs, else a dash."""
    if is_few(gain.n) or not gain.p < SIGNIFICANCE:
        return "-"
    return "positive" if gain.positive > gain.negative else "negative"


def _descending(found: list[tuple[float, Row]]) -> tuple[Row, ...]:
    """Largest first; a group without a value last."""
    return tuple(row for _, row in sorted(found, key=lambda pair: (pair[0] != pair[0], -pair[0])))
