"""Every table from runs that are built to reproduce the published cells."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.constructed import positives, runs, spread, store, values

from hrx.reports import read, tables
from hrx.reports.published import datasets, facts, published_tables
from hrx.reports.table import ReportTable, Span, plain
from hrx.reports.tables import NAMES

PUBLISHED = published_tables()


def made(name: str, *frames: pd.DataFrame) -> ReportTable:
    """The named table beside the published one."""
    (table,) = tables(pd.concat(frames, ignore_index=True), [name], against="published")
    return table


def differences(table: ReportTable, *, missing: int = 0) -> list[str]:
    """Where a table is not the published one: a cell that is absent, prints otherwise or differs, rows out of order."""
    published = PUBLISHED[table.name]
    found, seen = [], 0
    for row in table.rows:
        fields = published.rows[row.section, row.key]
        for column, cell in zip(table.columns, row.cells, strict=True):
            if column.name not in fields:
                continue
            seen += 1
            expected = fields[column.name]
            if isinstance(expected, str):
                same = cell.text == expected
            else:
                wanted = Span(*expected) if isinstance(expected, list) else expected
                printed = f"{expected}%" if column.format.kind == "share" else plain(wanted, cell.format)
                same = cell.text == printed and cell.difference in (0, None) and cell.published is not None
            found += [] if same else [f"{row.key}, {column.name}: {cell.text} and not {expected}"]
    cells = [len(set(fields) - {"row", "section"}) for fields in published.rows.values()]
    if seen != sum(cells[: len(cells) - missing]):
        found.append(f"{seen} cells")
    here = [(row.section, row.key) for row in table.rows]
    if [place for place in published.rows if place in here] != here:
        found.append(f"rows in the order {here}")
    return found


def column(table: ReportTable, name: str) -> dict[str, object]:
    index = [one.name for one in table.columns].index(name)
    return {row.key: row.cells[index].value for row in table.rows}


# Models: one ledger gives both tables and their total. Values between zero and a median, or above one, are free; they
# are put on the published median of all models, so that the pooled median is that.
TOTAL = PUBLISHED["models_full"].rows["", "All zero-shot TSFMs"]


def of_models() -> pd.DataFrame:
    frames = []
    for (_, name), row in PUBLISHED["models_full"].rows.items():
        if name in ("All zero-shot TSFMs", "Trained backbones"):
            continue
        n, g_own = row["n"], row["g_own"]
        own = values(n, g_own, positives(n, row["positive"], g_own),
                     under=TOTAL["g_own"] if g_own > TOTAL["g_own"] else None,
                     over=TOTAL["g_own"] if g_own < TOTAL["g_own"] else None)  # fmt: skip
        beats = (np.arange(n) < round(n * row["beats_naive"] / 100)).astype(int)
        identity = {"model": name.lower(), "checkpoint": CHECKPOINTS[name], "fingerprint": name}
        frames.append(runs(n, **identity, g_own=own, beats_naive=beats))
    return pd.concat(frames[::-1], ignore_index=True)


CHECKPOINTS = {
    "Chronos-2": "amazon/chronos-2",
    "Chronos-Bolt": "amazon/chronos-bolt-base",
    "TimesFM-2.5": "google/timesfm-2.5-200m-pytorch",
    "Moirai-2.0": "Salesforce/moirai-2.0-R-small",
    "Timer": "thuml/timer-base-84m",
    "TimeMoE": "Maple728/TimeMoE-200M",
    "TTM-r2": "ibm-granite/granite-timeseries-ttm-r2",
    "VisionTS": "VisionTS (mae_base)",
}


def test_the_tables_of_models_equal_the_published_ones(tmp_path: Path) -> None:
    frame = read(store(of_models(), tmp_path / "ledger.db"))
    assert differences(made("models", frame), missing=1) == []
    full = made("models_full", frame)
    assert differences(full, missing=1) == []
    checkpoints = column(full, "checkpoint")
    assert {name: checkpoints[name] for name in CHECKPOINTS} == CHECKPOINTS
    assert "Published rows without runs here: Trained backbones." in full.note


def test_the_table_of_metrics_equals_the_published_one() -> None:
    columns = {}
    longest = max(row["n"] for row in PUBLISHED["metrics"].rows.values())
    for (_, name), row in PUBLISHED["metrics"].rows.items():
        measured = np.full(longest, np.nan)
        measured[: row["n"]] = values(row["n"], row["median"], positives(row["n"], row["positive"], row["median"]))
        columns[name.lower()] = measured
    assert differences(made("metrics", runs(longest, **columns))) == []


def of_axes() -> pd.DataFrame:
    """The star of seven settings with the published counts. Free values are put on the medians of the pooled rows."""
    rows = PUBLISHED["axes"].rows
    h96, l512 = rows["Horizon H", "96"], rows["Lookback L", "512"]
    frames = []
    for horizon in (24, 48, 192):
        row = rows["Horizon H", str(horizon)]
        n, own, margin = row["n"], row["g_own"], row["g_margin"]
        over = l512["g_own"] if own < l512["g_own"] else None
        under = l512["g_own"] if own > l512["g_own"] else None
        gains = values(n, own, positives(n, row["positive"], own), under=under, over=over)
        margins = values(n, margin, n, under=min(margin, l512["g_margin"]), over=max(margin, l512["g_margin"]))
        frames.append(runs(n, lookback=512, horizon=horizon, g_own=gains, g_margin=margins))
    for lookback in (96, 192, 320):
        row = rows["Lookback L", str(lookback)]
        n, own, margin = row["n"], row["g_own"], row["g_margin"]
        over, under = max(own, h96["g_own"]), min(own, h96["g_own"])
        gains = values(n, own, positives(n, row["positive"], own), under=under, over=over)
        margins = values(n, margin, n, under=min(margin, h96["g_margin"]), over=max(margin, h96["g_margin"]))
        frames.append(runs(n, lookback=lookback, horizon=96, g_own=gains, g_margin=margins))
    n = h96["n"] - sum(len(frame) for frame in frames[3:])
    assert n == l512["n"] - sum(len(frame) for frame in frames[:3])
    gains = values(n, 0.02, 1370, under=l512["g_own"], over=h96["g_own"])
    margins = values(n, 0.118, n, under=h96["g_margin"], over=l512["g_margin"])
    return pd.concat([*frames, runs(n, lookback=512, horizon=96, g_own=gains, g_margin=margins)], ignore_index=True)


def test_the_table_of_swept_axes_equals_the_published_one() -> None:
    assert differences(made("axes", of_axes())) == []


def test_the_table_of_domains_equals_the_published_one() -> None:
    names = {}
    for one in datasets().values():
        names.setdefault(one.domain, []).append(one.dataset)
    frames = []
    for (_, domain), row in PUBLISHED["domains"].rows.items():
        n, own = row["n"], row["g_own"]
        where = [names[domain][i % len(names[domain])] for i in range(n)]
        # The record's own domain is another: the field is the paper's.
        frames.append(
            runs(n, dataset=where, domain="Elsewhere", g_own=values(n, own, positives(n, row["positive"], own)))
        )
    outside = runs(40, dataset="ETTh1", g_own=1.0)
    table = made("domains", *frames, outside)
    assert differences(table) == []
    assert "40 are on datasets without a known domain" in table.note


def of_datasets() -> pd.DataFrame:
    frames = []
    for one in datasets().values():
        row = PUBLISHED["datasets"].rows["", one.name]
        n, own = row["n"], row["g_own"]
        gains = values(n, own, positives(n, row["positive"], own))
        frames.append(runs(n, dataset=one.dataset or one.name, g_own=gains, g_margin=gains + 0.1, rank=2.0))
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def ledger_of_datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(of_datasets(), tmp_path_factory.mktemp("datasets") / "ledger.db")


def test_the_table_of_datasets_equals_the_published_one_with_its_32_and_15(ledger_of_datasets: Path) -> None:
    table = made("datasets", read(ledger_of_datasets))
    # Datasets with the same printed gain may stand in any order among themselves.
    printed = [row.cells[1].text for row in table.rows]
    assert printed == [f"{row['g_own']:+.3f}" for row in PUBLISHED["datasets"].rows.values()]
    order = {name: index for index, (_, name) in enumerate(PUBLISHED["datasets"].rows)}
    object.__setattr__(table, "rows", tuple(sorted(table.rows, key=lambda row: order[row.key])))
    assert differences(table) == []
    verdicts = list(column(table, "significant").values())
    assert verdicts.count("positive") == facts()["significantly_positive"] == 32
    assert verdicts.count("negative") == facts()["significantly_negative"] == 15
    assert len(verdicts) == facts()["datasets"] == 66
    assert "32 are significantly positive and 15 significantly negative" in table.note


def test_the_same_datasets_are_significant_as_the_reference_says(ledger_of_datasets: Path, real_data: Path) -> None:
    reference = json.loads((real_data / "reference" / "published_tables.json").read_text())["fm_datasets"]
    found = column(made("datasets", read(ledger_of_datasets)), "significant")
    assert found == {
        row["dataset"]: "-" if row["sign_test"] == "not significant" else row["sign_test"] for row in reference
    }


ESTIMATORS = {
    "Saliency": "saliency",
    "Gradient × input": "gradient_x_input",
    "Integrated gradients": "integrated_gradients",
    "Occlusion": "occlusion",
    "Dynamask": "dynamask",
    "ExtremalMask": "extremalmask",
    "ContraLSP": "contralsp",
    "Input gradient": "input_gradient",
    "TSR": "tsr",
}


def test_the_table_of_estimators_equals_the_published_one() -> None:
    frames = []
    for (_, name), row in PUBLISHED["estimators"].rows.items():
        gains = {gain: spread(900, row[gain], *row[f"{gain}_ci"]) for gain in ("g_own", "g_shuffled", "g_margin")}
        frames.append(runs(900, estimator=ESTIMATORS[name], **gains))
    # Runs without the axis are not part of it.
    assert differences(made("estimators", *frames[::-1], runs(50, estimator="tsr", axis="whole", g_own=9.0))) == []


@pytest.mark.slow
def test_the_table_of_plain_estimators_equals_the_published_one() -> None:
    rows = {name: row for (_, name), row in PUBLISHED["estimators_plain"].rows.items()}
    estimators = [ESTIMATORS[name] for name, row in rows.items() for _ in range(row["n"])]
    gaps = np.concatenate([spread(row["n"], row["gap"], *row["gap_ci"]) for row in rows.values()])
    whole = runs(len(gaps), estimator=estimators, axis="whole", gap_shared=gaps)[::-1]
    assert differences(made("estimators_plain", whole, runs(50, estimator="tsr", gap_shared=9.0))) == []


def test_the_table_of_costs_equals_the_published_one() -> None:
    frames = []
    for (_, name), row in PUBLISHED["cost"].rows.items():
        ratio = values(41, row["cost"], 41)
        frames.append(runs(41, estimator=ESTIMATORS[name], matrix_seconds=0.25 * ratio, forward_seconds=0.25))
    unmeasured = runs(20, estimator="occlusion", matrix_seconds=1.0, forward_seconds=0.0)
    table = made("cost", *frames, unmeasured)
    assert differences(table) == []
    assert set(column(table, "n").values()) == {41}


def test_the_table_of_seeds_equals_the_published_one() -> None:
    n = int(facts()["seed_configurations"])
    marks = [f"c{i}" for i in range(n)]
    frames = []
    for seed in range(3):
        columns = {}
        for (_, name), row in PUBLISHED["seeds"].rows.items():
            # Half of the configurations a standard deviation above the mean, half below, one on it; the seeds alike.
            means = row["mean"] + row["std_configuration"] * np.repeat([-1, 0, 1], [n // 2, 1, n // 2])
            columns[name] = means + (seed - 1) * row["std_seed"]
        frames.append(runs(n, seed=seed, series_fingerprint=marks, key=[f"{mark}-{seed}" for mark in marks], **columns))
    incomplete = runs(30, g_own=5.0, g_margin=5.0, rank=5.0)
    table = made("seeds", *frames, incomplete)
    assert differences(table) == []
    assert set(column(table, "n").values()) == {n}


def test_the_table_of_ranks_equals_the_published_one() -> None:
    inside = (1.0, 1.1, 1.3, 1.999, 2.5, 80.0)
    frames = []
    for rank, row in zip(inside, PUBLISHED["rank"].rows.values(), strict=True):
        n, own = row["n"], row["g_own"]
        gains = spread(n, own, *row["g_own_ci"], positive=positives(n, row["positive"], own))
        frames.append(runs(n, rank=rank, g_own=gains))
    assert differences(made("rank", *frames)) == []


def test_the_table_of_truncations_equals_the_published_one() -> None:
    """The median of the fractions is read from the 40 runs with a gain, that of the gains from all 61."""
    rows = PUBLISHED["truncation"].rows
    full = rows["", "full"]["g_own"]
    columns = {"g_own": np.repeat([full, -1.0], [40, 21])}
    for (_, name), row in rows.items():
        if name != "full":
            gain, part = row["g_own"], row["fraction"] * full
            # 22 of the 40 decide their own median; the 21 others lie where the 31st of all falls on the remaining 18.
            others = gain + 1 if gain > part else gain - 1
            columns[f"g_own_rank_{name.removeprefix('r = ')}"] = np.repeat([part, gain, others], [22, 18, 21])
    assert differences(made("truncation", runs(61, truncation=1, **columns), runs(12, g_own=7.0))) == []


def test_the_table_of_distances_equals_the_published_one() -> None:
    n = 200
    columns: dict[str, object] = {"g_own": 0.25}
    for (_, name), row in PUBLISHED["distance"].rows.items():
        margin = values(n, row["g_margin"], positives(n, row["positive"], row["g_margin"]))
        if name == "random π":
            columns["g_margin"] = margin
        else:
            columns[f"g_distance_{name.removeprefix('Δ = ')}"] = 0.25 - margin
    assert differences(made("distance", runs(n, distance=1, **columns), runs(30, g_margin=9.0))) == []


def test_the_table_of_channels_equals_the_published_one() -> None:
    rows = PUBLISHED["channels"].rows
    time_axis, channel = rows["", "Time"], rows["", "Channel"]
    frame = runs(
        21, channels=7, g_own=time_axis["g_own"], rank=time_axis["rank"], g_own_channel=channel["g_own"],
        rank_channel=channel["rank"],
    )  # fmt: skip
    assert differences(made("channels", frame, runs(30, g_own=9.0, rank=9.0))) == []


def test_every_format_of_every_table_holds_a_whole_benchmark(ledger_of_datasets: Path) -> None:
    found = tables(read(ledger_of_datasets), against="published")
    for table in found:
        for render in (table.to_text, table.to_markdown, table.to_latex, table.to_csv, table.to_html, table.to_json):
            assert render()
    (by_dataset,) = [table for table in found if table.name == "datasets"]
    assert sum(column(by_dataset, "n").values()) > 16_000


def test_every_published_table_has_a_recipe() -> None:
    assert set(NAMES) - set(PUBLISHED) == {"accuracy", "trained_estimators"}
    assert set(PUBLISHED) <= set(NAMES)
