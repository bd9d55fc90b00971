"""Every table from runs that were made to reproduce the published cells, and what a table does with other runs."""

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.constructed import positives, runs, spread, store, values

from hrx.audit.scoring.rank_bins import RANK_BINS
from hrx.errors import HrxError
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


def test_a_group_of_fewer_than_ten_is_marked_and_never_bold() -> None:
    frame = pd.concat([runs(9, dataset="few/H", g_own=0.5), runs(10, dataset="enough/H", g_own=0.5)])
    (table,) = tables(frame, ["datasets"], against="published")
    rows = {row.key: row for row in table.rows}
    assert rows["few/H"].cells[0].few
    assert not any(cell.bold for cell in rows["few/H"].cells)
    assert column(table, "significant") == {"few/H": "-", "enough/H": "positive"}
    assert [cell.bold for cell in rows["enough/H"].cells[:3]] == [False, True, True]
    assert "few/H (n<10: few runs)" in table.to_text(120)
    assert "too few runs to compare (n<10: few runs): few/H." in table.note


def test_seeds_are_folded_unless_they_are_pooled() -> None:
    marks = [f"m{i}" for i in range(12)]
    one = runs(12, series_fingerprint=marks, key=[f"{m}a" for m in marks], g_own=0.1, beats_naive=1)
    two = runs(12, series_fingerprint=marks, key=[f"{m}b" for m in marks], g_own=0.4, beats_naive=0, seed=1)
    frame = pd.concat([one, two], ignore_index=True)
    (folded,) = tables(frame, ["models_full"])
    assert folded.rows[0].cells[3].value == pytest.approx(0.25)
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
    assert set(column(table, "leaked").values()) == {12}
    assert "(12 of 30)" in table.note


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


def test_every_format_of_every_table_holds_a_whole_benchmark(ledger_of_datasets: Path) -> None:
    found = tables(read(ledger_of_datasets), against="published")
    for table in found:
        for render in (table.to_text, table.to_markdown, table.to_latex, table.to_csv, table.to_html, table.to_json):
            assert render()
    (by_dataset,) = [table for table in found if table.name == "datasets"]
    assert sum(column(by_dataset, "n").values()) > 16_000


def test_every_published_table_has_a_recipe() -> None:
    assert set(PUBLISHED) == set(NAMES)


def test_exact_zeros_do_not_turn_a_significant_gain_round() -> None:
    """Forty positive, five negative, fifty-five of rank one: fewer than half are positive, hardly any negative."""
    gains = [0.1] * 40 + [-0.1] * 5 + [0.0] * 55
    (table,) = tables(runs(100, g_own=gains, g_margin=gains), ["datasets"])
    assert column(table, "significant") == {"nowhere/H": "positive"}
    (table,) = tables(runs(100, g_own=[-gain for gain in gains]), ["datasets"])
    assert column(table, "significant") == {"nowhere/H": "negative"}


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
        "g_own_channel", "matrix_seconds", "forward_seconds",
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


WRONG = {"g_own": math.inf, "g_margin": 1.7e308, "rank": 1e200, "gap_shared": -math.inf, "matrix_seconds": math.inf,
         "g_own_rank_2": -1.7e308, "g_distance_4": math.inf, "rank_channel": 1.7e308, "aopc": math.nan}  # fmt: skip


def test_impossible_numbers_count_like_missing_ones_in_every_table_and_are_reported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tables(of_every_table(WRONG), NAMES)
    missing = tables(of_every_table(dict.fromkeys(WRONG, math.nan)), NAMES)
    remark = (
        " 6 of 72 scored runs hold impossible numbers (infinite, or beyond 1e+100), in g_own, g_margin, "
        "g_own_rank_2, g_distance_4, rank_channel, gap_shared, rank and matrix_seconds: these are left out."
    )
    for one, expected in zip(found, missing, strict=True):
        loaded = json.loads(one.to_json())
        assert loaded.pop("note") == expected.note + remark
        assert loaded == {name: value for name, value in json.loads(expected.to_json()).items() if name != "note"}
    counts = {table.name: column(table, "n") for table in found if table.name in ("models_full", "seeds", "cost")}
    assert [set(counted.values()) for counted in counts.values()] == [{22}, {22}, {22}]


def test_the_fraction_of_a_full_gain_too_small_to_divide_by_is_left_out() -> None:
    frame = runs(3, truncation=1, g_own=[0.5, 0.5, 5e-324], g_own_rank_1=[0.25, 0.25, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (table,) = tables(frame, ["truncation"])
    assert column(table, "fraction")["r = 1"] == 0.5
