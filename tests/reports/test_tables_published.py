"""The tables of released models: against pandas on random runs, each cell beside the published one."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import bootstrap
from helpers.constructed import runs
from scipy.stats import binomtest, trim_mean

from hrx.reports import tables
from hrx.reports.cells import Cell, Span
from hrx.reports.published import datasets, published_tables
from hrx.reports.table import ReportTable
from hrx.reports.tables import NAMES

PUBLISHED = published_tables()
CHECKPOINTS = {
    "Chronos-2": "amazon/chronos-2", "TimeMoE": "Maple728/TimeMoE-200M", "VisionTS": "VisionTS (mae_base)",
    "TTM-r2": "ibm-granite/granite-timeseries-ttm-r2",
}  # fmt: skip
DATASETS = ("us_births/D", "m4_hourly", "jena_weather/H", "electricity/H", "sz_taxi/H", "ett1/H")
STAR = ((96, 96), (192, 96), (320, 96), (512, 96), (512, 24), (512, 48), (512, 192))
ESTIMATORS = {
    "Saliency": "saliency", "Gradient × input": "gradient_x_input", "Integrated gradients": "integrated_gradients",
    "Occlusion": "occlusion", "Input gradient": "input_gradient", "TSR": "tsr",
}  # fmt: skip
METRICS = ("comprehensiveness", "sufficiency", "aopc", "insertion")
TRUNCATIONS, DISTANCES = (1, 2, 4, 8), (1, 2, 4, 8, 16, 32)
SWEPT = [f"g_own_rank_{r}" for r in TRUNCATIONS] + [f"g_distance_{d}" for d in DISTANCES]
Rows = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Random runs: two seeds of most cells of the star by input gradients, and some by each of the other estimators."""
    rng, rows = np.random.default_rng(5), []
    cells = list(itertools.product(CHECKPOINTS, DATASETS, STAR, ("input_gradient",), ("step",)))
    others = itertools.product(list(CHECKPOINTS)[:2], DATASETS[:3], STAR[:4], ESTIMATORS.values(), ("step", "whole"))
    cells += [cell for cell in others if cell[3:] != ("input_gradient", "step")]
    for model, dataset, (lookback, horizon), estimator, axis in cells:
        if rng.random() < 0.1:
            continue
        centre = rng.normal(0.05, 0.2)
        for seed in range(2):
            mark = f"{model} {dataset} {lookback}x{horizon} {estimator} {axis}"
            own, shuffled = centre + rng.normal(0, 0.05), rng.normal(-0.1, 0.1)
            rows.append(
                {"key": f"{mark} {seed}", "model": model.lower(), "checkpoint": CHECKPOINTS[model], "seed": seed,
                 "fingerprint": model, "dataset": dataset, "domain": "Elsewhere", "series_fingerprint": dataset,
                 "lookback": lookback, "horizon": horizon, "estimator": estimator, "axis": axis, "g_own": own,
                 "g_shuffled": shuffled, "g_margin": own - shuffled, "rank": 1 + rng.exponential(1.0),
                 "gap_shared": rng.normal(1, 0.3), "beats_naive": int(rng.random() < 0.7),
                 "forward_seconds": 0.25, "matrix_seconds": rng.uniform(1, 100), "g_own_channel": rng.normal(0, 0.1),
                 "rank_channel": 1 + rng.exponential(0.01), **{name: rng.normal() for name in (*METRICS, *SWEPT)}}
            )  # fmt: skip
    table = pd.DataFrame(rows)
    return runs(len(table), **{name: table[name].tolist() for name in table})


CELL = ["model", "dataset", "lookback", "horizon", "estimator", "axis"]
NUMBERS = [
    "g_own", "g_shuffled", "g_margin", "rank", "gap_shared", "beats_naive", "cost", "g_own_channel", "rank_channel",
    *METRICS, *SWEPT,
]  # fmt: skip


def folded(frame: pd.DataFrame, **wanted: str) -> pd.DataFrame:
    """The mean over the seeds of each cell, of the runs with these values."""
    chosen = frame.assign(cost=frame["matrix_seconds"] / frame["forward_seconds"])
    for name, value in ({"estimator": "input_gradient", "axis": "step"} | wanted).items():
        chosen = chosen if value == "any" else chosen[chosen[name] == value]
    return chosen.groupby(CELL)[NUMBERS].mean().reset_index()


def gain(values: pd.Series, name: str = "g_own") -> dict[str, Any]:
    return {name: values.median(), "positive": (values > 0).mean(), "n": len(values)}


def of_models(frame: pd.DataFrame) -> Rows:
    every = folded(frame)
    groups = {name: every[every["model"] == name.lower()] for name in CHECKPOINTS} | {"All zero-shot TSFMs": every}
    return {("", name): gain(one["g_own"]) | {"beats_naive": one["beats_naive"].mean()} for name, one in groups.items()}


def of_metrics(frame: pd.DataFrame) -> Rows:
    labels = {"Comprehensiveness": METRICS[0], "Sufficiency": METRICS[1], "AOPC": METRICS[2], "Insertion": METRICS[3]}
    labels |= {"g_own": "g_own", "g_margin": "g_margin"}
    every = folded(frame)
    return {
        ("", label): gain(every[name], "median")
        | {"p": sign_p(every[name]), "trimmed_mean": trim_mean(every[name], 0.1)}
        for label, name in labels.items()
    }


def sign_p(values: pd.Series) -> float:
    return float(binomtest(int((values > 0).sum()), len(values)).pvalue)


def of_axes(frame: pd.DataFrame) -> Rows:
    sections = {"Horizon H": "horizon", "Lookback L": "lookback"}
    return {
        (section, str(level)): gain(one["g_own"]) | {"g_margin": one["g_margin"].median()}
        for section, name in sections.items()
        for level, one in folded(frame).groupby(name)
    }


def of_domains(frame: pd.DataFrame) -> Rows:
    """The domain of a dataset is the paper's, whatever the record says."""
    every = folded(frame)
    domain = every["dataset"].str.lower().map({one.dataset.lower(): one.domain for one in datasets().values()})
    return {
        ("", str(name)): gain(one["g_own"]) | {"datasets": one["dataset"].nunique()}
        for name, one in every[domain != ""].groupby(domain)
    }


def of_datasets(frame: pd.DataFrame) -> Rows:
    names = {one.dataset.lower(): one.name for one in datasets().values()}
    return {("", names[str(dataset).lower()]): gain(one["g_own"]) for dataset, one in folded(frame).groupby("dataset")}


def of_estimators(frame: pd.DataFrame) -> Rows:
    every = folded(frame, estimator="any")
    names = ("g_own", "g_shuffled", "g_margin")
    return {
        ("", label): {name: one[name].median() for name in names} | {f"{name}_ci": one[name] for name in names}
        for label, estimator in ESTIMATORS.items()
        for one in [every[every["estimator"] == estimator]]
    }


def of_plain_estimators(frame: pd.DataFrame) -> Rows:
    every = folded(frame, estimator="any", axis="whole")
    gaps = {label: every.loc[every["estimator"] == name, "gap_shared"] for label, name in ESTIMATORS.items()}
    return {("", label): {"gap": one.median(), "gap_ci": one, "n": len(one)} for label, one in gaps.items()}


def of_costs(frame: pd.DataFrame) -> Rows:
    every = folded(frame, estimator="any")
    return {
        ("", label): {"cost": every.loc[every["estimator"] == name, "cost"].median()}
        for label, name in ESTIMATORS.items()
    }


def of_seeds(frame: pd.DataFrame) -> Rows:
    mine = frame[(frame["estimator"] == "input_gradient") & (frame["axis"] == "step")]
    by = mine.groupby(CELL)
    return {
        ("", name): {
            "mean": trim_mean(by[name].mean(), 0.1),
            "std_seed": by[name].std(ddof=1).mean(),
            "std_configuration": by[name].mean().std(ddof=1),
            "n": len(by),
        }
        for name in ("g_own", "g_margin", "rank")
    }


def of_ranks(frame: pd.DataFrame) -> Rows:
    every = folded(frame)
    place = pd.cut(every["rank"], [1, 1.1, 1.25, 1.5, 2, 3, np.inf], right=False, labels=False)
    labels = [label for _, label in PUBLISHED["rank"].rows]
    return {("", labels[int(at)]): gain(one["g_own"]) | {"g_own_ci": one["g_own"]} for at, one in every.groupby(place)}


def of_truncations(frame: pd.DataFrame) -> Rows:
    every = folded(frame)
    full = every["g_own"] > 0
    rows = {f"r = {r}": every[f"g_own_rank_{r}"] for r in TRUNCATIONS} | {"full": every["g_own"]}
    return {
        ("", label): {"g_own": one.median(), "fraction": (one[full] / every.loc[full, "g_own"]).median()}
        for label, one in rows.items()
    }


def of_distances(frame: pd.DataFrame) -> Rows:
    every = folded(frame)
    margins = {f"Δ = {d}": every["g_own"] - every[f"g_distance_{d}"] for d in DISTANCES}
    return {("", label): gain(one, "g_margin") for label, one in (margins | {"random π": every["g_margin"]}).items()}


def of_channels(frame: pd.DataFrame) -> Rows:
    every = folded(frame)
    columns = {"Time": ("g_own", "rank"), "Channel": ("g_own_channel", "rank_channel")}
    return {
        ("", axis): {"g_own": every[own].median(), "rank": every[rank].median(), "n": len(every)}
        for axis, (own, rank) in columns.items()
    }


EXPECTED: dict[str, Callable[[pd.DataFrame], Rows]] = {
    "models": of_models, "models_full": of_models, "metrics": of_metrics, "axes": of_axes, "domains": of_domains,
    "datasets": of_datasets, "estimators": of_estimators, "estimators_plain": of_plain_estimators, "cost": of_costs,
    "seeds": of_seeds, "rank": of_ranks, "truncation": of_truncations, "distance": of_distances,
    "channels": of_channels,
}  # fmt: skip


def cells(table: ReportTable) -> dict[tuple[str, str], dict[str, Cell]]:
    names = [column.name for column in table.columns]
    return {(row.section, row.key): dict(zip(names, row.cells, strict=True)) for row in table.rows}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_cell_is_what_pandas_computes_from_the_runs(name: str, frame: pd.DataFrame) -> None:
    (table,) = tables(frame, [name])
    found, expected = cells(table), EXPECTED[name](frame)
    assert set(found) == set(expected)
    for place, row in expected.items():
        shown = found[place]
        for column in set(row) & set(shown):
            value = shown[column].value
            if isinstance(value, Span):
                assert bootstrap.holds(tuple(value), row[column], slack=1e-8)
            else:
                assert value == (row[column] if isinstance(value, str) else pytest.approx(row[column]))
    asked = {column for fields in PUBLISHED[name].rows.values() for column in fields} - {"row", "section"}
    checked = {column for row in expected.values() for column in row}
    assert asked & {column.name for column in table.columns} <= checked


@pytest.mark.parametrize("name", EXPECTED)
def test_beside_a_cell_stands_the_published_one_and_the_difference_of_what_is_printed(
    name: str, frame: pd.DataFrame
) -> None:
    (table,) = tables(frame, [name], against="published")
    seen = 0
    for place, row in cells(table).items():
        fields = PUBLISHED[name].rows.get(place, {})
        for column, cell in row.items():
            stored = fields.get(column)
            if stored is None:
                assert cell.published is None
                continue
            seen += 1
            share = cell.format.kind == "share"
            if isinstance(stored, list):
                assert cell.published == Span(*stored)
            elif isinstance(stored, str):
                assert cell.published == stored
            else:
                assert cell.published == pytest.approx(stored / 100 if share else stored)
            if cell.difference is not None:
                printed = float(cell.text.rstrip("%×"))
                there = float(f"{stored:.1f}" if cell.format.kind == "times" and stored < 9.95 else stored)
                assert cell.difference * (100 if share else 1) == pytest.approx(printed - there, abs=1e-6)
    assert seen > 1


def test_the_rows_stand_in_the_published_order_except_where_the_gain_orders_them(frame: pd.DataFrame) -> None:
    for name in EXPECTED:
        (table,) = tables(frame, [name])
        here = [(row.section, row.key) for row in table.rows]
        if name in ("domains", "datasets", "estimators_plain"):
            column = "gap" if name == "estimators_plain" else "g_own"
            gains = [row[column].value for row in cells(table).values()]
            assert gains == sorted(gains, reverse=True)
        else:
            there = list(PUBLISHED[name].rows)
            known = [place for place in here if place in there]
            assert known == [place for place in there if place in here]
            assert len(known) > 1


def test_checkpoints_are_known_by_their_hub_id(frame: pd.DataFrame) -> None:
    found = cells(tables(frame, ["models_full"])[0])
    assert {name: found["", name]["checkpoint"].value for name in CHECKPOINTS} == CHECKPOINTS


def test_every_format_of_every_table_has_every_row(frame: pd.DataFrame) -> None:
    for table in tables(frame, against="published"):
        rows = len(table.rows)
        assert len(json.loads(table.to_json())["rows"]) == rows
        assert len(table.to_csv().splitlines()) == rows + 1
        assert all(row.cells[0].text in table.to_text(400) for row in table.rows)
        assert table.to_markdown().count("\n| ") >= rows + 2
        assert table.to_html().count("<tr") > rows
        assert table.to_latex().count(r" \\") > rows


def test_every_published_table_has_a_recipe() -> None:
    assert set(NAMES) - set(PUBLISHED) == {"accuracy", "covariates", "trained_estimators"}
    assert set(PUBLISHED) <= set(NAMES)
