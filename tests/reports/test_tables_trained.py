"""The tables of trained backbones: against pandas and slow loops on constructed runs, beside the published cells."""

import itertools
import json
import math
import statistics
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.constructed import runs
from scipy.stats import ttest_1samp

from hrx.cli.main import main
from hrx.reports import compare, tables
from hrx.reports.cells import Span
from hrx.reports.published import SWEPT, backbone_name, backbones, benchmarks, published_tables
from hrx.reports.table import ReportTable
from hrx.reports.tables import AXES, NAMES

CLASSES = {"DLinear": "DLinear", "VanillaTransformer": "Transformer", "iTransformer": "ITransformer", "NHITS": "NHITS"}
DATASETS = {"ETTh1": "ETTh1", "Weather": "Weather", "finance/log_price": "Finance", "finance/log_return": "Finance_ret"}


def grid(drop: float = 0.0) -> pd.DataFrame:
    """Random runs of four classes on four datasets, each checkpoint of one setting, depth and training seed.

    Two seeds of the windows per checkpoint; a share `drop` of the checkpoints is absent.
    """
    rng, rows = np.random.default_rng(3), []
    levels = ((48, 512), (24, 96, 720), (1, 6), (1, 2))
    for name, dataset, lookback, horizon, depth, seed in itertools.product(CLASSES, DATASETS, *levels):
        if rng.random() < drop or (name == "DLinear" and depth == 6):
            continue
        depth = None if name == "DLinear" else depth
        mark = f"{name}-{dataset}-{lookback}-{horizon}-{depth}-{seed}"
        rows += [
            {"backbone": name, "depth": depth, "training_seed": seed, "fingerprint": mark, "model": f"m:{mark}",
             "dataset": dataset, "series": "OT", "series_fingerprint": dataset, "lookback": lookback, "seed": shift,
             "horizon": horizon, "domain": "Finance" if "/" in dataset else "General", "key": f"{mark}/{shift}",
             "beats_naive": int(rng.random() < 0.7), "g_own": rng.normal(0.1, 0.3), "g_shuffled": rng.normal(-0.1, 0.2)}
            for shift in (0, 1)
        ]  # fmt: skip
    table = pd.DataFrame(rows)
    table["g_margin"] = table["g_own"] - table["g_shuffled"]
    return runs(len(table), **{name: table[name].tolist() for name in table})


def made(frame: pd.DataFrame, name: str, **options: Any) -> ReportTable:
    (table,) = tables(frame, [name], **options)
    return table


def cells(table: ReportTable) -> dict[tuple[str, str], dict[str, object]]:
    """The values of each row by column, by section and name of the row."""
    names = [column.name for column in table.columns]
    return {
        (row.section, row.key): dict(zip(names, (cell.value for cell in row.cells), strict=True)) for row in table.rows
    }


def folded(frame: pd.DataFrame) -> pd.DataFrame:
    """The mean over the seeds of the windows of each checkpoint."""
    by = frame.groupby(["backbone", "dataset", "fingerprint"])
    return by[["g_own", "g_shuffled", "g_margin", "beats_naive"]].mean().reset_index()


@pytest.mark.parametrize(
    ("name", "column", "names"), [("backbones", "backbone", CLASSES), ("benchmarks", "dataset", DATASETS)]
)
def test_the_tables_by_backbone_and_benchmark_hold_the_medians_of_pandas(
    name: str, column: str, names: dict[str, str]
) -> None:
    frame = grid(drop=0.2)
    table = made(frame, name)
    found, expected = cells(table), folded(frame).groupby(column)
    assert {key for _, key in found} == set(names.values())
    for group, key in names.items():
        row, one = found["", key], expected.get_group(group)
        for quantity in ("g_own", "g_shuffled", "g_margin"):
            assert row[quantity] == pytest.approx(one[quantity].median())
        assert row["margin_of_medians"] == pytest.approx(one["g_own"].median() - one["g_shuffled"].median())
        assert (row["n"], row["beats_naive"]) == (len(one), pytest.approx(one["beats_naive"].mean()))
        assert row["significant"] == "-"  # of four datasets with one series each
        clusters = one.assign(source=one["dataset"].str.split("/").str[0]).groupby(["source", "dataset"])["g_own"]
        by_source = clusters.median().groupby(level=0).median()
        assert row["evidence_median"] == pytest.approx(by_source.median())
    order = [key for _, key in found]
    if name == "backbones":
        assert order == ["Transformer", "DLinear", "ITransformer", "NHITS"]
    else:
        assert order == sorted(order, key=lambda key: -found["", key]["g_own"])


@pytest.mark.parametrize("section", AXES)
def test_a_paired_change_equals_a_slow_loop_over_the_blocks(section: str) -> None:
    frame, axis = grid(drop=0.3), AXES[section]
    found = {key: row for (place, key), row in cells(made(frame, "trained_axes")).items() if place == section}
    one = folded(frame).merge(frame.drop_duplicates("fingerprint")[["fingerprint", *AXIS_COLUMNS]], on="fingerprint")
    records = one.to_dict("records")
    levels = {"horizon": [(24, 96), (24, 720)], "lookback": [(48, 512)], "depth": [(1, 6)]}[axis]
    assert list(found) == [f"{low} → {high}" for low, high in levels]
    for low, high in levels:
        changes = [
            b["g_own"] - a["g_own"]
            for a in records
            for b in records
            if (a[axis], b[axis]) == (low, high)
            and all(same(a[name], b[name]) for name in ("backbone", "dataset", *AXIS_COLUMNS) if name != axis)
        ]
        row = found[f"{low} → {high}"]
        assert row["n"] == len(changes) > 10
        assert row["change"] == pytest.approx(statistics.fmean(changes))
        assert row["change_ci"] == pytest.approx(tuple(ttest_1samp(changes, 0).confidence_interval(0.95)))


AXIS_COLUMNS = ("horizon", "lookback", "depth", "training_seed")


def same(first: object, second: object) -> bool:
    return first == second or (pd.isna(first) and pd.isna(second))


def test_checkpoints_without_a_training_seed_are_averaged_within_their_block() -> None:
    gains = {24: (0.1, 0.3), 720: (0.6, 1.0)}
    rows = [(horizon, gain) for horizon, pair in gains.items() for gain in pair]
    frame = runs(
        4, backbone="DLinear", horizon=[h for h, _ in rows], g_own=[g for _, g in rows], series_fingerprint="s",
        fingerprint=list("abcd"), lookback=96,
    )  # fmt: skip
    row = cells(made(frame, "trained_axes"))["Forecast length H", "24 → 720"]
    assert (row["n"], row["change"]) == (1, pytest.approx(0.8 - 0.2))
    assert all(math.isnan(end) for end in row["change_ci"])


def test_the_domains_are_split_by_the_naive_verdict_and_seeds_that_disagree_are_in_neither_part() -> None:
    frame = grid()
    table = made(frame, "trained_domains")
    found, one = cells(table), folded(frame)
    parts = {
        "General": one[one["dataset"].isin(["ETTh1", "Weather"])],
        "Financial": one[one["dataset"].str.startswith("finance")],
        "Log price": one[one["dataset"] == "finance/log_price"],
        "Log return": one[one["dataset"] == "finance/log_return"],
    }
    expected = {(name, "All"): part for name, part in parts.items()}
    for name, part in parts.items():
        if name != "Financial":
            expected[name, "Beats naive"] = part[part["beats_naive"] == 1]
            expected[name, "Loses to naive"] = part[part["beats_naive"] == 0]
    assert {place: row["n"] for place, row in found.items()} == {place: len(part) for place, part in expected.items()}
    for place, part in expected.items():
        assert found[place]["g_own"] == pytest.approx(part["g_own"].median())
    disagreeing = int((one["beats_naive"] == 0.5).sum())
    assert disagreeing > 0
    assert f"{disagreeing} configurations whose seeds disagree" in table.note


def test_the_estimators_by_benchmark_hold_the_medians_of_pandas() -> None:
    frame = pd.concat([grid(drop=0.5), grid().assign(estimator="occlusion", g_own=lambda one: one["g_own"] / 2)])
    zero_shot = runs(12, g_own=9.0, dataset="ETTh1")
    table = made(pd.concat([frame, zero_shot], ignore_index=True), "trained_estimators", against="published")
    found = cells(table)
    for (dataset, estimator), group in frame.groupby(["dataset", "estimator"]):
        label = {"occlusion": "Occlusion", "input_gradient": "Input gradient"}[estimator]
        one = folded(group)
        row = found.pop((DATASETS[dataset], label))
        assert (row["n"], row["g_own"]) == (len(one), pytest.approx(one["g_own"].median()))
    assert not found
    assert table.note.endswith("The paper has no such table.")


def test_trained_runs_fill_their_row_of_the_zero_shot_tables_and_no_other() -> None:
    frame = grid()
    zero_shot = pd.concat(
        [runs(12, fingerprint=one * 64, model=one, dataset="ETTh1", g_own=0.5) for one in "ab"], ignore_index=True
    )
    both = pd.concat([frame, zero_shot], ignore_index=True)
    found = cells(made(both, "models_full"))
    assert list(found) == [("", "a"), ("", "b"), ("", "All zero-shot TSFMs"), ("", "Trained backbones")]
    assert (found["", "All zero-shot TSFMs"]["n"], found["", "All zero-shot TSFMs"]["g_own"]) == (24, 0.5)
    row = found["", "Trained backbones"]
    assert (row["n"], row["g_own"]) == (len(folded(frame)), pytest.approx(folded(frame)["g_own"].median()))
    table = made(both, "datasets")
    assert {key: row["n"] for (_, key), row in cells(table).items()} == {"ETTh1": 24}
    assert f"Without {len(folded(frame))} configurations of trained backbones." in table.note
    alone = made(frame, "models", against="published")
    ((cell, *_),) = [[cell for cell in row.cells if cell.published is not None] for row in alone.rows]
    assert (cell.published, alone.rows[0].cells[-1].value) == (
        0.143,
        "3/26 backbones +1, 4/15 benchmarks, 6/36 settings",
    )


def beside(**changes: object) -> tuple[object, object]:
    """What stands beside g_own of DLinear on ETTh1, and what the table says about it."""
    about: dict[str, object] = {
        "backbone": "DLinear",
        "dataset": "ETTh1",
        "domain": "General",
        "lookback": 96,
        "horizon": 96,
    }
    frame = runs(12, **(about | {"g_own": 0.2, "g_shuffled": 0.0, "g_margin": 0.2} | changes))
    estimator = str(changes.get("estimator", "input_gradient"))
    row = made(frame, "backbones", against="published", estimator=estimator).rows[0]
    return row.cells[1].published, row.cells[-1].value


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (0.172, "1/15 benchmarks, 1/36 settings")),
        ({"backbone": "dlinear"}, (0.172, "1/15 benchmarks, 1/36 settings")),
        ({"backbone": "NHITS"}, (None, "not in the paper")),
        ({"dataset": "mine/H"}, (None, "not comparable: 0/15 benchmarks +1, 1/36 settings")),
        ({"domain": ""}, (None, "not comparable: 0/15 benchmarks +1, 1/36 settings")),
        ({"lookback": 100}, (None, "not comparable: 1/15 benchmarks, 0/36 settings +1")),
        ({"area": "morf"}, (None, "not comparable: 1/15 benchmarks, 1/36 settings, other protocol: area morf")),
        ({"estimator": "tsr"}, (None, "not comparable: 1/15 benchmarks, 1/36 settings, other protocol: estimator tsr")),
        ({"channels": 7}, (None, "not comparable: 1/15 benchmarks, 1/36 settings, other protocol: variates 7")),
    ],
)  # fmt: skip
def test_a_published_cell_stands_beside_runs_of_the_same_kind_only(
    changes: Any, expected: tuple[object, object]
) -> None:
    assert beside(**changes) == expected


def test_a_benchmark_that_was_not_opened_with_its_official_split_is_marked() -> None:
    frame = runs(12, backbone="DLinear", dataset="ETTh1", domain="", g_own=0.2)
    assert list(cells(made(frame, "benchmarks"))) == [("", "ETTh1 (not the official split)")]


def test_a_zero_shot_run_of_another_estimator_has_no_difference_to_the_published_one() -> None:
    about = {"checkpoint": "amazon/chronos-2", "dataset": "us_births/D", "lookback": 512, "horizon": 96, "g_own": 0.1}
    row = made(runs(12, **about, estimator="tsr"), "models", against="published", estimator="tsr").rows[0]
    assert (row.cells[1].published, row.cells[1].difference) == (0.07, None)
    assert row.cells[-1].value == "1/66 datasets, 1/7 settings, other protocol: estimator tsr"


def test_the_published_tables_are_of_26_backbones_and_15_benchmarks() -> None:
    rows = published_tables()["backbones"].rows
    assert {name for _, name in rows} == set(backbones().values())
    assert (len(rows), len(benchmarks()), len(SWEPT)) == (26, 15, 36)
    assert [backbone_name(one) for one in ("iTransformer", "Nonstationary_Transformer", "KAN")] == [
        "ITransformer", "Nonstat. Trans.", "KAN",
    ]  # fmt: skip
    for name in ("backbones", "benchmarks", "trained_axes", "trained_estimators", "trained_domains"):
        for row in published_tables()[name].rows.values() if name in published_tables() else ():
            for column, value in row.items():
                if column.endswith("_ci"):
                    assert Span(*value).low <= row[column.removesuffix("_ci")] <= Span(*value).high


def test_the_note_says_where_the_training_rows_are_unknown_and_that_seeds_of_training_are_models() -> None:
    frame = grid()
    unknown = made(frame, "backbones")
    sentence = f"{len(frame)} of {len(frame)} scored runs are of a model whose training rows are unknown"
    assert sentence in unknown.note
    assert sentence in made(frame.drop(columns="training", errors="ignore"), "backbones").note
    assert "seeds folded to their mean" in unknown.note
    assert "A training seed makes a model of its own." in unknown.note
    stated = made(frame.assign(training=json.dumps({"training_rows": 8640}))[frame["seed"] == 0], "backbones")
    assert "unknown:" not in stated.note
    assert "n counts configurations, one seed each." in stated.note
    assert str(stated) == stated.to_text()


def test_the_help_of_the_verb_names_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tables", "--help"])
    shown = capsys.readouterr().out
    assert [name for name in NAMES if name not in shown] == []


def test_records_of_an_earlier_hrx_without_the_column_of_the_backbone_are_compared() -> None:
    frame = runs(12).drop(columns=["backbone", "training", "depth", "training_seed"], errors="ignore")
    assert compare(frame, frame).base.scored == 12
