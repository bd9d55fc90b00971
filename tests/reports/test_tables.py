"""What a table does with runs: folding, few runs, leakage, missing and impossible numbers."""

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import bootstrap, crowd
from helpers.constructed import runs
from scipy.stats import binomtest

from hrx.errors import HrxError
from hrx.records.quantities import RANK_BINS
from hrx.reports import read, tables
from hrx.reports.published import published_tables
from hrx.reports.table import ReportTable
from hrx.reports.tables import NAMES


def column(table: ReportTable, name: str) -> dict[str, object]:
    index = [one.name for one in table.columns].index(name)
    return {row.key: row.cells[index].value for row in table.rows}


def test_a_group_of_fewer_than_ten_is_marked_and_never_bold() -> None:
    own = [f"T{i}" for i in range(10)]
    frame = pd.concat(
        [runs(9, dataset="few/H", g_own=0.5, series=own[:9]), runs(10, dataset="enough/H", g_own=0.5, series=own)]
    )
    (table,) = tables(frame, ["datasets"], against="published")
    rows = {row.key: row for row in table.rows}
    assert rows["few/H"].cells[0].few
    assert not any(cell.bold for cell in rows["few/H"].cells)
    assert column(table, "significant") == {"few/H": "positive", "enough/H": "positive"}
    assert [cell.bold for cell in rows["enough/H"].cells[:3]] == [False, True, True]
    assert [cell.hue for cell in rows["enough/H"].cells[:3]] == ["", "red", "red"]
    assert "few/H (n<10: few runs)" in table.to_text(120)
    assert "too few runs to compare (n<10: few runs): few/H." in table.note


def test_seeds_are_folded_unless_they_are_pooled() -> None:
    marks = [f"m{i}" for i in range(12)]
    one = runs(12, series_fingerprint=marks, key=[f"{m}a" for m in marks], g_own=0.1, beats_naive=1)
    two = runs(12, series_fingerprint=marks, key=[f"{m}b" for m in marks], g_own=0.4, beats_naive=0, seed=1)
    frame = pd.concat([one, two], ignore_index=True)
    (folded,) = tables(frame, ["models_full"])
    assert column(folded, "g_own")["made-up"] == pytest.approx(0.25)
    assert column(folded, "n") == {"made-up": 12}
    assert column(folded, "beats_naive") == {"made-up": 0.5}
    assert "seeds folded to their mean (24 runs)" in folded.note
    (pooled,) = tables(frame, ["models_full"], fold=False)
    assert column(pooled, "n") == {"made-up": 24}


def test_a_run_stored_with_a_sweep_and_without_counts_once() -> None:
    marks = [f"d{i}" for i in range(12)]
    plain_run = runs(12, series_fingerprint=marks, key=[f"{m}-p" for m in marks], g_own=0.1)
    swept = runs(12, series_fingerprint=marks, key=[f"{m}-s" for m in marks], g_own=0.1, truncation=1, g_own_rank_1=0.0)
    other = runs(12, series_fingerprint=marks, key=[f"{m}-o" for m in marks], g_own=0.4, seed=1)
    (table,) = tables(pd.concat([plain_run, swept, other], ignore_index=True), ["models_full"])
    assert column(table, "n") == {"made-up": 12}
    assert column(table, "g_own")["made-up"] == pytest.approx(0.25)


@pytest.mark.parametrize("name", [*NAMES[:4], "datasets", "estimators", "seeds", "rank"])
def test_every_table_shows_how_many_runs_are_declared_to_be_leaked(name: str) -> None:
    marks = [f"l{i}" for i in range(30)]
    leakage = ["declared"] * 12 + ["none declared"] * 10 + ["unknown"] * 8
    frame = pd.concat(
        [
            runs(30, leakage=leakage, series_fingerprint=marks, key=[f"{m}{seed}" for m in marks], seed=seed,
                 g_own=0.1, g_margin=0.2, g_shuffled=-0.1, rank=1.5)
            for seed in (0, 1)
        ],
        ignore_index=True,
    )  # fmt: skip
    (table,) = tables(frame, [name])
    assert set(column(table, "leaked").values()) == {"12 (8 unknown)"}
    assert "(12 of 30, 8 unknown)" in table.note
    (known,) = tables(frame.assign(leakage="none declared"), [name])
    assert set(column(known, "leaked").values()) == {0}
    for leakage in ("unknown", "possible", None):
        (unknown,) = tables(frame.assign(leakage=leakage), [name])
        assert set(column(unknown, "leaked").values()) == {"unknown"}


def test_bold_means_that_the_series_of_a_dataset_decide_in_either_direction() -> None:
    spread, own = np.linspace(-0.05, 0.05, 40), [f"T{i}" for i in range(40)]
    centres = (
        ("up", 0.2, own),
        ("flat", 0.001, own),
        ("down", -0.2, own),
        ("one", 0.2, "T1"),
        ("five", 0.2, own[:5] * 8),
    )
    frame = pd.concat(
        [runs(40, dataset=name, g_own=centre + spread, series=series) for name, centre, series in centres]
    )
    (table,) = tables(frame, ["datasets"])
    assert {row.key: (row.cells[1].bold, row.cells[1].hue) for row in table.rows} == {
        "up": (True, "red"), "flat": (False, ""), "down": (True, ""), "one": (False, ""), "five": (False, ""),
    }  # fmt: skip
    assert column(table, "evidence_positive")["one"] == "1 of 1 series"
    assert column(table, "evidence_p")["five"] is None
    assert "Of 5 datasets, 3 have six series or more; of these 1 are significantly positive and 1" in table.note


def evidence_of(runs: pd.DataFrame) -> tuple[float, tuple[float | None, float | None], str, float | None]:
    """Median, interval, count and p of the clusters of some runs, by pandas and scipy."""
    values = bootstrap.source_values(runs, "g_own")
    positive, sources = int((values > 0).sum()), runs["dataset"].str.split("/").str[0].nunique()
    unit = "series" if sources == 1 else "sources"
    p = float(binomtest(positive, len(values)).pvalue) if len(values) > 5 else None
    return float(np.median(values)), bootstrap.order_statistics(values), f"{positive} of {len(values)} {unit}", p


def test_every_row_has_the_interval_and_the_sign_test_of_one_value_per_cluster(tmp_path: Path) -> None:
    frame = read(crowd.write(tmp_path / "ledger.db", crowd.records(3000, models=2, datasets=9), 0))
    done = frame[frame["status"] == "done"]
    made = {table.name: table for table in tables(frame, ["models", "datasets", "axes"])}
    groups = {
        "models": dict(iter(done.groupby("model"))),
        "datasets": dict(iter(done.groupby("dataset"))),
        "axes": {
            str(level): one for name in ("horizon", "lookback") for level, one in done.groupby(name) if level < 96
        },
    }
    for name, expected in groups.items():
        rows = {row.key: row for row in made[name].rows}
        found = {key: evidence_of(one) for key, one in expected.items()}
        smallest_first = sorted(found, key=lambda key: found[key][3] or 1.0)
        worst = 0.0
        for place, key in enumerate(smallest_first):
            median, interval, count, p = found[key]
            worst = max(worst, min(1.0, (len(found) - place) * (p or 1.0)))  # Holm, where rows are datasets
            cells = dict(zip([one.name for one in made[name].columns], rows[key].cells, strict=True))
            assert cells["evidence_median"].value == pytest.approx(median)
            assert tuple(cells["evidence_interval"].value) == pytest.approx(interval)
            assert cells["evidence_positive"].value == count
            assert cells["evidence_p"].value == pytest.approx(worst if name == "datasets" else p)


def test_five_sources_have_an_interval_and_no_test_and_four_have_neither() -> None:
    for count, known in ((5, True), (4, False)):
        frame = runs(count, dataset=[f"d{i}/H" for i in range(count)], g_own=[0.1 * i for i in range(count)])
        (table,) = tables(frame, ["models"])
        interval = column(table, "evidence_interval")["made-up"]
        assert (interval == (0.0, pytest.approx(0.4))) if known else interval is None
        assert column(table, "evidence_p")["made-up"] is None
        assert column(table, "evidence_positive")["made-up"] == f"{count - 1} of {count} sources"


def test_seasonal_naive_and_mase_stand_beside_the_naive_forecasts_and_unknown_is_a_dash() -> None:
    seasonal = [0.4] * 5 + [0.6] * 15
    errors = {"mse": 0.5, "mse_zero": 1.0, "mse_last": 0.9, "mse_seasonal": seasonal, "mase": 0.8, "naive_mase": 1.1}
    frame = runs(20, g_own=0.1, **errors)
    (full,) = tables(frame, ["models_full"])
    assert column(full, "beats_seasonal") == {"made-up": 0.75}
    assert column(full, "mase") == {"made-up": 0.8}
    (accuracy,) = tables(frame, ["accuracy"])
    assert [cell.text for cell in accuracy.rows[0].cells] == [
        "nowhere/H", "0.500", "1.000", "0.900", "0.600", "0.800", "1.100", "-", "20", "100%", "75%", "0",
    ]  # fmt: skip
    (old,) = tables(runs(20, g_own=0.1, mse=0.5), ["models_full"])
    cells = dict(zip([one.name for one in old.columns], old.rows[0].cells, strict=True))
    assert (cells["beats_seasonal"].text, cells["mase"].text) == ("-", "-")


def test_the_margin_of_medians_stands_beside_the_median_of_margins() -> None:
    own, shuffled = np.array([0.1] * 6 + [0.5] * 5), np.array([-0.3] * 5 + [0.2] * 6)
    frame = runs(11, g_own=own, g_shuffled=shuffled, g_margin=own - shuffled, rank=1.2)
    for name in ("axes", "estimators"):
        (table,) = tables(frame, [name])
        (value,) = set(column(table, "margin_of_medians").values())
        assert value == pytest.approx(0.1 - 0.2)
        (margin,) = set(column(table, "g_margin").values())
        assert margin == pytest.approx(np.median(own - shuffled))


def test_two_checkpoints_of_one_name_are_reported_apart_by_their_weights() -> None:
    frame = pd.concat([runs(10, fingerprint="a" * 64, g_own=0.1), runs(10, fingerprint="b" * 64, g_own=0.3)])
    (table,) = tables(frame, ["models"])
    labels = [row.cells[0].text for row in table.rows]
    assert labels == ["made-up (weights aaaaaaaaaaaa)", "made-up (weights bbbbbbbbbbbb)", "All zero-shot TSFMs"]
    assert [row.cells[1].text for row in table.rows] == ["+0.100", "+0.300", "+0.200"]


def test_without_names_a_ledger_fills_what_it_can() -> None:
    few = tables(runs(12, g_own=0.1, g_margin=0.2, rank=1.2))
    assert [table.name for table in few] == [*NAMES[:4], "datasets", "estimators", "rank"]


def test_a_table_that_cannot_be_filled_says_what_it_needs() -> None:
    frame = runs(12, g_own=0.1)
    with pytest.raises(HrxError, match="'distance' cannot be filled: it needs runs that scored rows at fixed dis"):
        tables(frame, ["distance"])
    with pytest.raises(HrxError, match="Did you mean 'datasets'"):
        tables(frame, ["dataset"])
    with pytest.raises(HrxError, match="The ledger holds 12 done, scored ones of input_gradient"):
        tables(frame, ["models"], estimator="tsr")
    with pytest.raises(HrxError, match="The ledger holds 3 failed"):
        tables(runs(3, status="failed"))
    with pytest.raises(HrxError, match="The ledger holds no runs"):
        tables(runs(0))


def test_values_that_are_missing_are_left_out_and_counted_out() -> None:
    gains = [0.1] * 11 + [math.nan] * 5
    (table,) = tables(runs(16, g_own=gains), ["models_full"])
    assert column(table, "n") == {"made-up": 11}
    assert column(table, "g_own") == {"made-up": 0.1}


def test_a_sign_is_not_decided_where_the_median_series_is_zero() -> None:
    """Forty positive, five negative, fifty-five of rank one: a sign test without the zeros would say positive."""
    gains, series = [0.1] * 40 + [-0.1] * 5 + [0.0] * 55, [f"T{i}" for i in range(100)]
    for sign in (1, -1):
        (table,) = tables(runs(100, g_own=[sign * gain for gain in gains], series=series), ["datasets"])
        assert column(table, "significant") == {"nowhere/H": "-"}
    (table,) = tables(runs(45, g_own=gains[:45], series=series[:45]), ["datasets"])
    assert column(table, "significant") == {"nowhere/H": "positive"}


def test_the_bins_of_the_rank_table_are_those_that_an_audit_reads_ranks_by() -> None:
    published = published_tables()["rank"].rows
    labels = [f"[{bin.low}, {'∞' if bin.high == math.inf else bin.high})" for bin in RANK_BINS]
    assert [name for _, name in published] == labels
    for cells, found in zip(published.values(), RANK_BINS, strict=True):
        assert (cells["g_own"], cells["positive"]) == (found.g_own, round(100 * found.positive))


def of_every_table(wrong: dict[str, float]) -> pd.DataFrame:
    """Runs that fill every table, of which the first two have `wrong` values."""
    marks, rng = [f"w{i}" for i in range(24)], np.random.default_rng(0)
    measured = [
        "g_own", "g_shuffled", "g_margin", "comprehensiveness", "aopc", "sufficiency", "insertion", "gap_shared",
        "g_own_channel", "matrix_seconds", "forward_seconds", "mse", "mase",
        *(f"g_own_rank_{r}" for r in (1, 2, 4, 8)), *(f"g_distance_{d}" for d in (1, 2, 4, 8, 16, 32)),
    ]  # fmt: skip
    frames = []
    for axis, seed in (("step", 0), ("step", 1), ("whole", 0)):
        columns = {name: rng.lognormal(size=24) for name in measured}
        columns |= {name: 1 + rng.random(24) for name in ("rank", "rank_channel")}
        frame = runs(24, series_fingerprint=marks, domain="Sales", seed=seed, axis=axis, **columns)
        frame.loc[:1, list(wrong)] = list(wrong.values())
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


OF_TRAINED = {"backbones", "benchmarks", "trained_axes", "trained_estimators", "trained_domains"}
OF_ANY_MODEL = [name for name in NAMES if name not in {*OF_TRAINED, "covariates"}]
WRONG = {"g_own": math.inf, "g_margin": 1.7e308, "rank": 1e200, "gap_shared": -math.inf, "matrix_seconds": math.inf,
         "g_own_rank_2": -1.7e308, "g_distance_4": math.inf, "rank_channel": 1.7e308, "aopc": math.nan}  # fmt: skip


def test_impossible_numbers_count_like_missing_ones_in_every_table_and_are_reported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tables(of_every_table(WRONG), OF_ANY_MODEL)
    missing = tables(of_every_table(dict.fromkeys(WRONG, math.nan)), OF_ANY_MODEL)
    remark = (
        " 6 of 72 scored runs hold impossible numbers (infinite, or beyond 1e+100), in g_own, g_margin, "
        "g_own_rank_2, g_distance_4, rank_channel, gap_shared, rank and matrix_seconds: these are left out."
    )
    for one, expected in zip(found, missing, strict=True):
        loaded = json.loads(one.to_json())
        assert loaded.pop("note").replace(remark, "", 1) == expected.note
        assert loaded == {name: value for name, value in json.loads(expected.to_json()).items() if name != "note"}
    counts = {table.name: column(table, "n") for table in found if table.name in ("models_full", "seeds", "cost")}
    assert [set(counted.values()) for counted in counts.values()] == [{22}, {22}, {22}]


def test_the_fraction_of_a_full_gain_too_small_to_divide_by_is_left_out() -> None:
    frame = runs(3, truncation=1, g_own=[0.5, 0.5, 5e-324], g_own_rank_1=[0.25, 0.25, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (table,) = tables(frame, ["truncation"])
    assert column(table, "fraction")["r = 1"] == 0.5
