"""The benchmarks run and compare equal results. No test depends on a duration."""

import importlib
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers.records import record

from hrx.adapters import Forecaster, from_module
from hrx.audit.runner.plan import Setting
from hrx.records.record import COLUMNS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "benchmarks"
SMALL = Setting(32, 8)


@pytest.fixture
def benchmark_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmark_of(name): the module, with one turn of each call."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "path", [*sys.path])  # which the benchmarks extend

    def imported(name: str) -> Any:
        module = importlib.import_module(name)
        if hasattr(module, "fastest"):
            side_by_side = importlib.import_module("side_by_side")
            monkeypatch.setattr(module, "fastest", lambda calls, **_: side_by_side.fastest(calls, turns=1))
        return module

    return imported


@pytest.fixture
def model() -> Forecaster:
    torch.manual_seed(0)
    return from_module(torch.nn.Linear(32, 8), name="linear")


def test_every_benchmark_is_described_and_every_command_names_one(benchmark_of: Any) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(\w+\.py)` \|", page, re.M))
    files = {file.name for file in FOLDER.glob("*.py")} - {"run.py", "side_by_side.py"}
    assert described == files
    run = {command[0] for command in benchmark_of("run").BENCHMARKS.values()}
    assert run == files - {"memory_of_opening.py", "report_size.py", "corridors.py"}


def test_rows_are_compared_with_every_method_that_gives_the_same_rows(benchmark_of: Any, model: Forecaster) -> None:
    jacobian_rows = benchmark_of("jacobian_rows")
    line = jacobian_rows.measure("linear", model, SMALL, windows=3)
    assert all(line[method] > 0 for method in ("captum per step", "16 replicas", "jacrev"))
    expected = torch.eye(8, 32).expand(3, -1, -1)
    assert not jacobian_rows.agrees(lambda: torch.ones(3, 8, 32), expected)
    assert jacobian_rows.agrees(lambda: -expected, expected)


def test_a_run_is_compared_with_a_direct_implementation_that_gives_the_same_number(
    benchmark_of: Any, model: Forecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_run = benchmark_of("one_run")
    line = one_run.measure("linear", model, SMALL)
    assert line["forecasts"] <= 4 * 4 * 127
    assert line["seconds"] > 0
    assert line["hrx / floor"] > 0
    monkeypatch.setattr(one_run, "directly", lambda *arguments: 1e3)
    with pytest.raises(AssertionError, match="by definition"):
        one_run.measure("linear", model, SMALL)


def _margins(values: list[float], beats: list[int]) -> pd.DataFrame:
    """Records of one configuration each, 254 perturbed forecasts a run."""
    runs = [
        record(f"{i}", model="m", fingerprint="f", dataset="d", series=f"{i}", series_fingerprint=f"{i}", lookback=96,
               horizon=24, seed=0, g_margin=value, beats_naive=beat, forecasts=254, series_windows=64)
        for i, (value, beat) in enumerate(zip(values, beats, strict=True))
    ]  # fmt: skip
    kinds = {column.name: "float64" for column in COLUMNS if column.kind == "REAL"}
    return pd.DataFrame([asdict(run) for run in runs]).astype(kinds)


def test_a_verdict_costs_the_runs_until_its_interval_stays_narrow(benchmark_of: Any) -> None:
    cost = benchmark_of("cost_of_verdict")
    # The interval of n equal values has no width; a wide first part is left behind once equal values dominate.
    wide, narrow = [-1.0, 1.0] * 10, [0.5] * 60
    frame = _margins(wide + narrow, [1] * 80)
    needed = cost.first_as_narrow(frame, 0.0)
    assert 20 < needed < 80
    assert cost.interval(frame.iloc[:needed])[0] == 0
    assert cost.interval(frame.iloc[: needed - 1])[0] > 0
    assert cost.first_as_narrow(_margins(wide, [1] * 20), 0.0) is None
    assert cost.first_as_narrow(_margins(narrow, [1] * 9 + [0] * 51), 0.0) is None, "nine runs are few"
    assert cost.first_as_narrow(_margins(narrow, [0, 1] * 30), 0.0) == 20, "runs that lose to naive do not count"
    assert cost.unperturbed(pd.concat([frame, frame])) == 64 * 80, "the seeds of a series share them"


def test_both_efforts_measure_the_same_runs(benchmark_of: Any, model: Forecaster) -> None:
    line = benchmark_of("effort").measure(model, SMALL)
    assert line["forecasts, light"] <= 2 * 254 < line["forecasts, paper"] <= 2 * 2032
    assert line["light, s"] > 0


def test_growth_changes_one_size_at_a_time(benchmark_of: Any) -> None:
    growth = benchmark_of("growth")
    assert [size.windows for size in growth.sizes("windows")] == [4, 16, 64]
    assert [size.horizon for size in growth.sizes("horizon")] == [24, 48, 96]
    assert all(size._replace(draws=4) == growth.Size() for size in growth.sizes("draws"))
