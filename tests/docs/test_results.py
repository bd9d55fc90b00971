"""docs/results.md: its tables come from the committed records, which hold derived numbers only."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hrx.records.record import COLUMNS, StoredExample
from hrx.reports import tables

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "results"
LARGEST = 1_000_000
"""Bytes of a file of records."""
NUMBER = re.compile(r"[+-]?\d[\d.]*(?:e[+-]?\d+)?")


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("results")


def folded(model: str) -> pd.DataFrame:
    """One row per dataset, series and setting: the mean of the seeds, by pandas alone."""
    frame = pd.read_parquet(RECORDS / f"{model}.parquet")
    done = frame[frame["status"] == "done"]
    by = ["dataset", "series", "lookback", "horizon"]
    return done.groupby(by, as_index=False)[["g_own", "g_shuffled", "g_margin", "beats_naive", "padded"]].mean()


def rows(text: str) -> dict[str, list[str]]:
    """The cells of a Markdown table by the first one of their row."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {line[0].strip("`*"): line[1:] for line in lines}


def first_number(cell: str) -> float:
    found = NUMBER.search(cell)
    assert found, cell
    return float(found[0])


def same(cell: str, value: float) -> bool:
    """Whether a cell shows the number: three decimals, or two digits of a very small one."""
    return bool(np.isclose(first_number(cell), value, atol=0.00051, rtol=0.05 if abs(value) < 0.0005 else 0))


@pytest.mark.parametrize("model", ["ttm-r2", "bolt-mini", "trained"])
def test_records_are_small_and_hold_no_path_and_no_value_of_a_series(model: str) -> None:
    path = RECORDS / f"{model}.parquet"
    assert path.stat().st_size < LARGEST
    frame = pd.read_parquet(path)
    assert set(frame.columns) <= {column.name for column in COLUMNS}
    assert not set(frame.columns) & (set(StoredExample._fields) - {"key"})
    for name in frame.select_dtypes("object"):
        texts = frame[name].dropna().astype(str)
        # One slash separates dataset and frequency, or a file of a library in `rewrites`; a path starts with one.
        assert not texts.str.contains(r"(?:^|[\s\"'=:])/\w|[A-Za-z]:\\|~/", regex=True).any(), name
    for name in ("g_own_steps", "g_margin_steps"):
        assert max(len(json.loads(text)) for text in frame[name].dropna()) <= 8


@pytest.mark.parametrize(
    ("made", "model", "by"), [("ttm_datasets", "ttm-r2", "dataset"), ("bolt_datasets", "bolt-mini", "dataset")]
)
def test_a_row_of_a_dataset_is_its_median_over_configurations(results: Any, made: str, model: str, by: str) -> None:
    shown, frame = rows(results.TABLES[made]()), folded(model)
    assert set(shown) == set(frame[by])
    for name, group in frame.groupby(by):
        n, beats, own, positive, margin = shown[str(name)][:5]
        assert int(first_number(n)) == len(group)
        assert ("few" in n) == (len(group) < 10)
        assert same(own, group["g_own"].median())
        assert same(margin, group["g_margin"].median())
        assert first_number(positive) == pytest.approx(100 * (group["g_own"] > 0).mean(), abs=0.51)
        assert first_number(beats) == pytest.approx(100 * group["beats_naive"].mean(), abs=0.51)
        assert ("[" in own) == (len(group) >= 3), "one or two values have no interval"


def test_horizons_and_lookbacks_stand_beside_the_published_cells(results: Any) -> None:
    frame = folded("ttm-r2")
    stored = json.loads((ROOT / "reports" / "published" / "tables.json").read_text(encoding="utf-8"))["tables"]["axes"]
    published = {(row["section"], row["row"]): row for row in stored["rows"]}
    for made, section, column in (
        ("ttm_horizons", "Horizon H", "horizon"),
        ("ttm_lookbacks", "Lookback L", "lookback"),
    ):
        shown = {name.split(",")[0]: cells for name, cells in reversed(rows(results.TABLES[made]()).items())}
        for level, group in frame.groupby(column):
            n, own, own_there, apart, margin, margin_there, _, positive_there = shown[str(level)]
            there = published[section, str(level)]
            assert int(first_number(n)) == len(group)
            assert same(own, group["g_own"].median())
            assert same(margin, group["g_margin"].median())
            assert same(apart, group["g_own"].median() - group["g_shuffled"].median())
            assert first_number(own_there) == there["g_own"]
            assert first_number(margin_there) == there["g_margin"]
            assert first_number(positive_there) == there["positive"]


def test_padded_runs_are_shown_apart_from_those_at_the_full_context(results: Any) -> None:
    frame = folded("ttm-r2")
    assert (frame["padded"] == 512 - frame["lookback"]).all()
    shown = rows(results.TABLES["ttm_overall"]())
    full = frame[frame["lookback"] == 512]
    assert same(shown["lookback 512 only: not padded"][2], full["g_own"].median())
    beating = full[full["beats_naive"] == 1]
    assert same(shown["lookback 512 only, runs that beat naive"][4], beating["g_margin"].median())


def test_what_the_page_says_agrees_with_the_paper_does(results: Any) -> None:
    """The sentences below "What agrees", each computed again."""
    full = folded("ttm-r2").query("lookback == 512")
    own = full.groupby("horizon")["g_own"].median()
    assert list(own.index) == [24, 48, 96, 192]
    assert own.is_monotonic_increasing
    assert own[24] < 0 < own[48]
    medians = full.groupby("dataset")["g_own"].median()
    there = [results.published_own(dataset) for dataset in medians.index]
    by_rank = pd.Series(there).rank().corr(pd.Series(medians.to_numpy()).rank())
    assert f"{by_rank:.2f} over {len(medians)} datasets" == results.FIGURES["correlation_unpadded"]()


def test_every_place_of_the_page_is_filled_and_an_unknown_one_stops_the_build(results: Any) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    filled = results.fill(page)
    assert "{{" not in filled
    assert "<!-- table" not in filled
    assert filled.count("\n| --- |") == page.count("<!-- table") + page.count("\n| --- |")
    for model in ("ttm-r2", "bolt-mini", "trained"):
        assert f"results/{model}.parquet" in filled
    with pytest.raises(Exception, match="asks for 'ttm_nothing'"):
        results.fill("<!-- table: ttm_nothing -->")


def test_the_records_are_read_by_the_tables_of_the_reports() -> None:
    (table,) = tables(pd.read_parquet(RECORDS / "ttm-r2.parquet"), ["models"], against="published")
    assert table.rows[0].cells[0].value == "TTM-r2"
    assert "zeros" in table.note


def trained() -> pd.DataFrame:
    """One row per backbone, dataset and setting: the mean of the training seeds, by pandas alone."""
    frame = pd.read_parquet(RECORDS / "trained.parquet")
    by = ["backbone", "dataset", "lookback", "horizon"]
    return frame[frame["status"] == "done"].groupby(by, as_index=False)[["g_own", "g_shuffled", "beats_naive"]].mean()


@pytest.mark.parametrize(("made", "by"), [("backbones", "backbone"), ("benchmarks", "dataset")])
def test_trained_backbones_stand_beside_the_published_cells(results: Any, made: str, by: str) -> None:
    stored = json.loads((ROOT / "reports" / "published" / "tables.json").read_text(encoding="utf-8"))["tables"][made]
    published = {row["row"]: row for row in stored["rows"]}
    shown = rows(results.TABLES[f"trained_{made}"]())
    assert set(shown) == set(trained()[by])
    for name, group in trained().groupby(by):
        n, settings, beats, own, own_there, shuffled, shuffled_there, apart, apart_there = shown[str(name)]
        assert int(first_number(n)) == len(group)
        assert int(settings) == group[["lookback", "horizon"]].drop_duplicates().shape[0]
        assert first_number(beats) == pytest.approx(100 * group["beats_naive"].mean(), abs=0.51)
        assert same(own, group["g_own"].median())
        assert same(shuffled, group["g_shuffled"].median())
        assert same(apart, group["g_own"].median() - group["g_shuffled"].median())
        there = published[str(name)]
        found = [first_number(cell) for cell in (own_there, shuffled_there, apart_there)]
        assert found == [there["g_own"], there["g_shuffled"], there["margin_of_medians"]]


def test_the_changes_along_an_axis_are_paired_within_dataset_and_the_other_length(results: Any) -> None:
    linear = trained().query("backbone == 'Linear' and dataset != 'Weather'")
    own = {(row.dataset, row.lookback, row.horizon): row.g_own for row in linear.itertuples()}
    for label, (blocks, change, positive, there) in rows(results.TABLES["trained_axes"]()).items():
        low, high = map(int, re.findall(r"\d+", label))
        pairs = []
        for dataset, lookback, horizon in own:
            start = (dataset, lookback, low) if "H" in label else (dataset, low, horizon)
            if (horizon if "H" in label else lookback) == high and start in own:
                pairs.append(own[dataset, lookback, horizon] - own[start])
        assert int(blocks) == len(pairs) > 0
        assert same(change, float(np.mean(pairs)))
        assert first_number(positive) == pytest.approx(100 * np.mean(np.array(pairs) > 0), abs=0.51)
        assert there == {(24, 720): "+0.260", (48, 512): "+0.408"}.get((low, high), "–")


def test_what_the_page_says_of_trained_backbones_holds_in_their_records(results: Any) -> None:
    frame = trained()
    assert (frame["g_own"] > 0).all()
    for by in ("backbone", "dataset"):
        assert (frame.groupby(by)["g_shuffled"].median() < 0).all()
    own = frame.groupby(["backbone", "dataset"])["g_own"].median().unstack()
    assert (own["ETTh2"] > own["ETTh1"]).all()
    assert (own["Weather"] > own["ETTh2"]).all()
    assert frame.loc[frame["dataset"] == "Weather", "beats_naive"].max() == 0
    changes = [first_number(cells[1]) for cells in rows(results.TABLES["trained_axes"]()).values()]
    assert min(changes) > 0
    assert changes[4:] == sorted(changes[4:]), "with L at every step"


def test_trained_records_fill_the_trained_rows_of_the_zero_shot_tables() -> None:
    frame = pd.read_parquet(RECORDS / "trained.parquet")
    (table,) = tables(frame, ["models"], against="published")
    assert [row.cells[0].value for row in table.rows] == ["Trained backbones"]
    assert table.rows[0].cells[1].value == pytest.approx(frame["g_own"].median())


def test_the_trained_records_say_on_which_rows_each_model_was_trained() -> None:
    frame = pd.read_parquet(RECORDS / "trained.parquet")
    rows_of = {name: group.map(lambda text: json.loads(text)["training_rows"]).unique().tolist()
               for name, group in frame.groupby("dataset")["training"]}  # fmt: skip
    assert rows_of == {"ETTh1": [8640], "ETTh2": [8640], "Weather": [int(0.7 * 52696)]}
    (table,) = tables(frame, ["backbones"])
    assert "training rows are unknown" not in table.note


def test_the_sources_of_the_prose_are_one_value_each(results: Any) -> None:
    frame = folded("ttm-r2")
    kept = frame[frame["beats_naive"] == 1]
    source = kept["dataset"].str.split("/").str[0]
    by_series = kept.groupby([source, kept["dataset"], kept["series"]])["g_margin"].median()
    sources = by_series.groupby(level=0).median()
    assert results.by_source("ttm-r2").startswith(f"`g_margin` {sources.median():+.3f} [")
    assert f"positive in {(sources > 0).sum()} of {len(sources)} sources; `g_own`" in results.by_source("ttm-r2")
