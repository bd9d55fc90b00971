"""Fills results.md from the committed records in docs/results when the site is built.

`<!-- table: NAME -->` in the page becomes the table of that name, `{{ NAME }}` a single figure. Statistics are those of
`hrx tables`; the published cells are those that `hrx tables --against published` shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from properdocs.exceptions import PluginError
from scipy.stats import spearmanr

from hrx.records.record import DONE, NAMES
from hrx.reports.published import dataset_name, published_tables
from hrx.reports.runs import fold_seeds
from hrx.reports.statistics import describe, is_few
from hrx.reports.summary import summarise
from hrx.reports.text import bracketed, percent, signed

RECORDS = Path(__file__).parent / "results"
CONTEXT = 512
"""Of TTM-r2: at a shorter lookback its library puts zeros before the window."""
FOLDED = ("g_own", "g_shuffled", "g_margin", "rank", "beats_naive", "padded")
_PLACE = re.compile(r"<!-- table: (\w+) -->|\{\{ (\w+) \}\}")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replaces the places of results.md; every other page stays as it is."""
    return fill(markdown) if page.file.src_uri == "results.md" else markdown


def fill(markdown: str) -> str:
    """Page with its tables and figures."""

    def replaced(place: re.Match[str]) -> str:
        name = place[1] or place[2]
        known: dict[str, Callable[[], str]] = TABLES if place[1] else FIGURES
        if name not in known:
            raise PluginError(f"results.md asks for {name!r}, which docs/results.py does not make.")
        return known[name]()

    return _PLACE.sub(replaced, markdown)


@cache
def records(model: str) -> pd.DataFrame:
    """Stored records of a model, with every column of the record; one that they do not have is empty."""
    return pd.read_parquet(RECORDS / f"{model}.parquet").reindex(columns=list(NAMES))


@cache
def configurations(model: str) -> pd.DataFrame:
    """Scored runs of a model with their seeds folded, by dataset."""
    frame = records(model)
    return fold_seeds(frame[frame["status"] == DONE], FOLDED).sort_values("dataset", ignore_index=True)


def unpadded(frame: pd.DataFrame) -> pd.DataFrame:
    """Configurations whose lookback fills the context."""
    return frame[frame["padded"] == 0]


def beating(frame: pd.DataFrame) -> pd.DataFrame:
    """Configurations that beat naive with every seed."""
    return frame[frame["beats_naive"] == 1]


def gain(frame: pd.DataFrame, name: str) -> str:
    """A median with its interval, which fewer than three values do not have."""
    found = describe(frame[name])
    interval = bracketed(found.low, found.high)
    return signed(found.median) + (f"<br>{interval}" if interval != "-" else "")


def count(frame: pd.DataFrame) -> str:
    """How many configurations, and whether they are few."""
    return f"{len(frame)} (few)" if is_few(describe(frame["g_own"]).n) else str(len(frame))


def gains(frame: pd.DataFrame) -> tuple[str, ...]:
    """Cells that most tables share: n, beats naive, g_own, positive, g_margin."""
    own = describe(frame["g_own"])
    beats = percent(float(frame["beats_naive"].mean()))
    return count(frame), beats, gain(frame, "g_own"), percent(own.positive), gain(frame, "g_margin")


def by_source(model: str) -> str:
    """Gains of the runs that beat naive with one value per source: those of the verdict."""
    (summary,) = summarise(records(model), [])
    found = {name: summary.beating_naive.evidence[name] for name in ("g_margin", "g_own")}
    return "; ".join(f"`{name}` {one}, positive in {one.positive} of {one.counted}" for name, one in found.items())


GAINS = ("n", "beats naive", "g_own", "positive", "g_margin")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns after the first are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(name: str, section: str, row: str, column: str) -> str:
    """A published cell; shares are stored in percent."""
    value = published_tables()[name].rows[section, row].get(column)
    if not isinstance(value, (int, float)):
        return "–"
    return f"{value} %" if column in ("positive", "beats_naive") else signed(float(value))


def ttm_overall() -> str:
    every = configurations("ttm-r2")
    groups = {
        "all settings": every,
        "all settings, runs that beat naive": beating(every),
        f"lookback {CONTEXT} only: not padded": unpadded(every),
        f"lookback {CONTEXT} only, runs that beat naive": beating(unpadded(every)),
    }
    rows = [(label, *gains(group)) for label, group in groups.items()]
    there = published_tables()["models_full"].rows["", "TTM-r2"]
    cells = [_cell("models_full", "", "TTM-r2", column) for column in ("beats_naive", "g_own", "positive")]
    paper = ("*published, TTM-r2 on other datasets too*", f"{there['n']:,} runs", *cells, "–")
    return table(("TTM-r2", *GAINS), [*rows, paper])


def ttm_horizons() -> str:
    every = configurations("ttm-r2")
    rows = []
    for horizon, group in every.groupby("horizon"):
        rows.append(_axis("Horizon H", str(horizon), group, str(horizon)))
    at = unpadded(every[every["horizon"] == 96])
    return table(_AXIS_HEAD, [*rows, _axis("", "", at, f"96, lookback {CONTEXT} only")])


def ttm_lookbacks() -> str:
    every = configurations("ttm-r2")
    rows = []
    for lookback, group in every.groupby("lookback"):
        zeros = int(group["padded"].iloc[0])
        label = f"{lookback}, after {zeros} zeros" if zeros else str(lookback)
        rows.append(_axis("Lookback L", str(lookback), group, label))
    return table(("lookback", *_AXIS_HEAD[1:]), rows)


_AXIS_HEAD = (
    "horizon", "n", "g_own", "published", "g_own − g_shuffled", "g_margin", "published", "positive", "published",
)  # fmt: skip


def _axis(section: str, row: str, group: pd.DataFrame, label: str) -> tuple[str, ...]:
    """A level of an axis; published cells, of all eight models, only where a section is given."""
    own, margin, positive = (
        _cell("axes", section, row, column) if section else "–" for column in ("g_own", "g_margin", "positive")
    )
    difference = signed(describe(group["g_own"]).median - describe(group["g_shuffled"]).median)
    shown = percent(describe(group["g_own"]).positive)
    return label, count(group), gain(group, "g_own"), own, difference, gain(group, "g_margin"), margin, shown, positive


def ttm_datasets() -> str:
    rows = []
    for dataset, group in configurations("ttm-r2").groupby("dataset"):
        kept = unpadded(group)
        there = published_own(str(dataset))
        alone = gain(kept, "g_own") if len(kept) else "–"
        rows.append((there, (str(dataset), *gains(group), alone, signed(there))))
    ordered = [cells for _, cells in sorted(rows, key=lambda row: -row[0])]
    return table(("dataset", *GAINS, f"g_own, lookback {CONTEXT}", "published g_own, 8 models"), ordered)


def published_own(dataset: str) -> float:
    """Published median of `g_own` on a dataset, over all eight models."""
    return float(str(published_tables()["datasets"].rows["", dataset_name(dataset)]["g_own"]))


def bolt_overall() -> str:
    every = configurations("bolt-mini")
    groups = {"all settings": every, "all settings, runs that beat naive": beating(every)}
    return table(("bolt-mini", *GAINS), [(label, *gains(group)) for label, group in groups.items()])


def bolt_datasets() -> str:
    groups = configurations("bolt-mini").groupby("dataset")
    return table(("dataset", *GAINS), [(str(dataset), *gains(group)) for dataset, group in groups])


def bolt_settings() -> str:
    groups = configurations("bolt-mini").groupby(["lookback", "horizon"])
    rows = [(f"{lookback}x{horizon}", *gains(group)) for (lookback, horizon), group in groups]
    return table(("setting", *GAINS), rows)


@cache
def trained() -> pd.DataFrame:
    """Scored runs of trained backbones, one row per backbone, dataset and setting: the mean of the training seeds."""
    frame = records("trained")
    by = ["backbone", "dataset", "lookback", "horizon"]
    return frame[frame["status"] == DONE].groupby(by, as_index=False)[list(FOLDED)].mean()


def _beside(name: str, column: str) -> str:
    """Backbones or benchmarks, each beside its published row."""
    rows = []
    for label, group in trained().groupby(column):
        there = [_cell(name, "", str(label), cell) for cell in ("g_own", "g_shuffled")]
        apart = signed(describe(group["g_own"]).median - describe(group["g_shuffled"]).median)
        settings = len(group[["lookback", "horizon"]].drop_duplicates())
        rows.append(
            (str(label), count(group), str(settings), percent(float(group["beats_naive"].mean())), gain(group, "g_own"),
             there[0], gain(group, "g_shuffled"), there[1], apart, _cell(name, "", str(label), "margin_of_medians"))
        )  # fmt: skip
    head = ("n", "settings", "beats naive", "g_own", "published", "g_shuffled", "published")
    return table((column, *head, "g_own − g_shuffled", "published"), rows)


def trained_backbones() -> str:
    return _beside("backbones", "backbone")


def trained_benchmarks() -> str:
    return _beside("benchmarks", "dataset")


def trained_linear() -> str:
    """Median of `g_own` of Linear at each dataset and lookback, a column for each horizon."""
    linear = trained().query("backbone == 'Linear'")
    horizons = sorted(linear["horizon"].unique())
    rows = []
    for (dataset, lookback), group in linear.groupby(["dataset", "lookback"]):
        own = group.set_index("horizon")["g_own"]
        cells = [signed(float(own[horizon])) if horizon in own else "–" for horizon in horizons]
        rows.append((f"{dataset}, L = {lookback}", *cells))
    return table(("Linear", *(f"H = {horizon}" for horizon in horizons)), rows)


def trained_axes() -> str:
    """Paired changes on ETTh1 and ETTh2 from the smallest level to the largest, beside the published ones."""
    linear = trained().query("backbone == 'Linear' and dataset != 'Weather'")
    rows = []
    for axis, label, low, high in (
        ("horizon", "Forecast length H", 24, 720),
        ("lookback", "Lookback length L", 48, 512),
    ):
        other = "lookback" if axis == "horizon" else "horizon"
        wide = linear.pivot_table(index=["dataset", other], columns=axis, values="g_own")
        levels = [level for level in wide.columns if level > low]
        for level in levels:
            change = (wide[level] - wide[low]).dropna()
            there = _cell("trained_axes", label, f"{low} → {high}", "change") if level == high else "–"
            positive = percent(float((change > 0).mean()))
            rows.append((f"{label}, {low} → {level}", str(len(change)), signed(float(change.mean())), positive, there))
    return table(("axis", "blocks", "mean change of g_own", "positive", "published, all backbones"), rows)


def _correlation(kept: Callable[[pd.DataFrame], pd.DataFrame]) -> str:
    """Spearman's correlation of the datasets' medians with the published ones, and the number of datasets."""
    medians = kept(configurations("ttm-r2")).groupby("dataset")["g_own"].median()
    there = [published_own(str(dataset)) for dataset in medians.index]
    return f"{spearmanr(medians, there).statistic:.2f} over {len(medians)} datasets"


def _made(model: str) -> str:
    """Versions and effort of the records."""
    frame = records(model)
    one = {name: ", ".join(map(str, frame[name].dropna().unique())) for name in
           ("hrx_version", "protocol_version", "library", "torch_version", "device", "windows", "draws")}  # fmt: skip
    seeds, day = frame["seed"].nunique(), str(frame["created"].min())[:10]
    return (
        f"{len(frame)} runs, {int((frame['status'] == DONE).sum())} of them scored; {one['windows']} windows, "
        f"{one['draws']} draws, {seeds} seeds; hrx {one['hrx_version']}, protocol {one['protocol_version']}, "
        f"{one['library']}, torch {one['torch_version']}, {one['device']}, {day}"
    )


def _published_runs(model: str) -> str:
    return f"{published_tables()['models_full'].rows['', model]['n']:,}"


def _parity(model: str) -> str:
    return f"{records(model)['parity'].max():.1e}"


def _shuffled() -> str:
    """How many configurations have a positive `g_shuffled`, by backbone."""
    every = trained()
    positive = every[every["g_shuffled"] > 0]
    named = ", ".join(f"{count} of {name}" for name, count in positive["backbone"].value_counts().items())
    return f"{len(positive)} of {len(every)} configurations have a positive one ({named})"


def _share(dataset: str) -> str:
    """Median of `g_own` on a dataset over the published one."""
    ours = describe(trained().query("dataset == @dataset")["g_own"]).median
    return f"{ours / float(str(published_tables()['benchmarks'].rows['', dataset]['g_own'])):.2f}"


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        ttm_overall,
        ttm_horizons,
        ttm_lookbacks,
        ttm_datasets,
        bolt_overall,
        bolt_datasets,
        bolt_settings,
        trained_backbones,
        trained_benchmarks,
        trained_linear,
        trained_axes,
    )
}
FIGURES: dict[str, Callable[[], str]] = {
    "ttm_made": lambda: _made("ttm-r2"),
    "bolt_made": lambda: _made("bolt-mini"),
    "trained_made": lambda: _made("trained"),
    "ttm_parity": lambda: _parity("ttm-r2"),
    "trained_models": lambda: str(records("trained")["fingerprint"].nunique()),
    "trained_parity": lambda: _parity("trained"),
    "trained_shuffled": _shuffled,
    "trained_share_etth1": lambda: _share("ETTh1"),
    "trained_share_etth2": lambda: _share("ETTh2"),
    "published_own": lambda: _cell("models", "", "TTM-r2", "g_own"),
    "published_runs": lambda: _published_runs("TTM-r2"),
    "published_runs_chronos": lambda: _published_runs("Chronos-2"),
    "ttm_sources": lambda: by_source("ttm-r2"),
    "bolt_sources": lambda: by_source("bolt-mini"),
    "correlation": lambda: _correlation(lambda frame: frame),
    "correlation_unpadded": lambda: _correlation(unpadded),
}
