"""The forecasts over a series' test region: their variance normalises, their errors decide against naive ones."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import series as made

from hrx.adapters import Forecaster, Identity, from_module, load
from hrx.audit import Protocol
from hrx.audit.memory import MemoryBudget
from hrx.audit.runner import run as runs
from hrx.audit.runner.plan import Run, Setting, plan
from hrx.audit.runner.run import SeriesCache, measure_run
from hrx.errors import ProtocolError
from hrx.gift_eval import Dataset, Series, open_source
from hrx.records.record import DONE, EXCLUDED, Record

LOOKBACK, HORIZON, SEASON = 40, 16, 24
Forecast = torch.nn.Module


def linear() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(LOOKBACK, HORIZON)


def planned(length: int = 600, windows: int = 2, seed: int = 0, protocol: Protocol | None = None) -> Run:
    one = Series("waves/H", "one", "H", SEASON, "", made(1, length)[0].double().numpy(), 0)
    dataset = Dataset("waves/H", "H", SEASON, "", 1, row=lambda index: None)  # type: ignore[arg-type, return-value]
    identity = Identity("linear", "module", "linear", "0", "torch")
    return Run(identity, dataset, one, 0, Setting(LOOKBACK, HORIZON), seed, windows, protocol or Protocol(draws=2))


def measured(run: Run, model: Forecaster | None = None, cache: SeriesCache | None = None) -> Record:
    record = measure_run(model or from_module(linear(), scale="standardised"), run, MemoryBudget(), series=cache).record
    assert record.status == DONE, record.reason
    return record


class Literal:
    """The definition read literally: forecasts one by one, sums in Python."""

    def __init__(self, model: torch.nn.Module, values: list[float], count: int):
        length = len(values)
        region = length - max(math.ceil(length / 5), HORIZON)
        past = values[:region]
        mean = math.fsum(past) / len(past)
        std = math.sqrt(math.fsum((v - mean) ** 2 for v in past) / len(past))
        scaled = [(v - mean) / std for v in values]
        low, high = max(region, LOOKBACK), length - HORIZON
        distinct = min(count, high - low + 1)
        starts = sorted({round(low + (high - low) * i / max(distinct - 1, 1)) for i in range(distinct)})
        self.count = len(starts)
        forecasts, errors, seasonal = [], [], []
        for start in starts:
            x, truth = scaled[start - LOOKBACK : start], scaled[start : start + HORIZON]
            with torch.no_grad():
                forecast = model(torch.tensor([x], dtype=torch.float32))[0].tolist()
            forecasts += forecast
            errors += [(a - b) ** 2 for a, b in zip(forecast, truth, strict=True)]
            last = x[-SEASON:]
            seasonal += [(last[i % SEASON] - b) ** 2 for i, b in enumerate(truth)]
        centre = math.fsum(forecasts) / len(forecasts)
        self.variance = math.fsum((f - centre) ** 2 for f in forecasts) / len(forecasts)
        self.mse = math.fsum(errors) / len(errors)
        self.mse_seasonal = math.fsum(seasonal) / len(seasonal)


@pytest.mark.parametrize(("length", "count"), [(600, 64), (600, 10), (90, 64), (56, 64)])
def test_variance_and_errors_are_those_of_forecasts_spaced_over_the_test_region(length: int, count: int) -> None:
    run = planned(length, protocol=Protocol(draws=2, variance_windows=count))
    assert isinstance(run.series, Series)
    record, slow = measured(run), Literal(linear(), run.series.values.tolist(), count)
    assert record.series_windows == slow.count
    assert record.variance_windows == str(count)
    assert record.variance == pytest.approx(slow.variance, rel=1e-6)
    assert record.mse == pytest.approx(slow.mse, rel=1e-6)
    assert record.mse_seasonal == pytest.approx(slow.mse_seasonal, rel=1e-6)
    assert record.g_own == pytest.approx(record.g_own_raw / slow.variance, rel=1e-6)  # type: ignore[operator]


def test_every_run_of_a_series_has_the_same_variance_and_errors_whatever_its_windows_and_seed() -> None:
    shared = ("variance", "series_windows", "mse", "mae", "mse_zero", "mse_last", "mse_seasonal", "beats_naive")
    records = [measured(planned(windows=w, seed=s)) for w, s in ((1, 0), (2, 0), (4, 1), (16, 2))]
    assert len({tuple(getattr(record, name) for name in shared) for record in records}) == 1
    assert len({record.variance_run for record in records}) == len(records)


def test_the_forecasts_of_a_series_are_made_once_for_all_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    made_for: list[Setting] = []
    forecast_series = runs.forecast_series

    def counted(model: Forecaster, series: Series, lookback: int, horizon: int, *more: object) -> object:
        made_for.append(Setting(lookback, horizon))
        return forecast_series(model, series, lookback, horizon, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "forecast_series", counted)
    cache: SeriesCache = {}
    together = [measured(planned(seed=seed), cache=cache) for seed in range(3)]
    assert len(made_for) == 1
    alone = [measured(planned(seed=seed)) for seed in range(3)]
    assert [record.g_margin for record in together] == [record.g_margin for record in alone]


def test_the_reading_of_version_2_divides_by_the_variance_of_the_runs_own_windows() -> None:
    record = measured(planned(protocol=Protocol(draws=2, variance_windows="run")))
    new = measured(planned())
    assert record.variance == record.variance_run == new.variance_run
    assert record.series_windows is None
    assert record.g_own_raw == new.g_own_raw
    assert record.g_own == pytest.approx(new.g_own_raw / new.variance_run, rel=1e-12)  # type: ignore[operator]


def test_a_forecast_that_never_changes_over_the_test_region_is_excluded() -> None:
    class Constant(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :HORIZON] * 0 + 3.0

    record = measure_run(from_module(Constant()), planned(), MemoryBudget()).record
    assert record.status == EXCLUDED
    assert str(record.reason).startswith("constant forecast")


@pytest.mark.parametrize("count", [0, -1, "all", 1.5])
def test_a_number_of_forecasts_that_makes_no_sense_is_refused(count: object) -> None:
    with pytest.raises(ProtocolError, match="variance_windows"):
        Protocol(variance_windows=count)  # type: ignore[arg-type]


def margins(model: Forecaster, source: str, setting: Setting, windows: int, seeds: int) -> list[Record]:
    """The runs of up to five series of each dataset, series by series."""
    planned_runs = plan(
        [model.identity],
        open_source(source),
        [setting],
        series=5,
        seeds=seeds,
        windows=windows,
        protocol=Protocol(draws=2),
    )
    cache: SeriesCache = {}
    return [measured(run, model, cache) for run in planned_runs if not run.refusal]


def margin_by_series(records: list[Record]) -> dict[str, float]:
    """The mean of each series over its seeds."""
    every: dict[str, list[float]] = {}
    for record in records:
        assert record.g_margin is not None
        every.setdefault(str(record.series_fingerprint), []).append(record.g_margin)
    return {series: math.fsum(values) / len(values) for series, values in every.items()}


def assert_windows_do_not_move_the_quantity(model: Forecaster, source: str, setting: Setting) -> None:
    """Eight windows in runs of 1, 4 or 8: the means over the series agree within three standard errors."""
    means = {windows: margin_by_series(margins(model, source, setting, windows, 8 // windows)) for windows in (1, 4, 8)}
    for windows, by_series in means.items():
        differences = np.array([by_series[series] - one for series, one in means[8].items()])
        error = differences.std(ddof=1) / math.sqrt(len(differences))
        assert abs(differences.mean()) <= 3 * error + 1e-12, (windows, differences)


@pytest.mark.slow
def test_the_number_of_windows_does_not_move_the_margin_of_bolt_mini() -> None:
    assert_windows_do_not_move_the_quantity(load("bolt-mini"), "sample", Setting(96, 24))


@pytest.mark.slow
def test_the_number_of_windows_does_not_move_the_margin_of_a_real_checkpoint(real_data: Path) -> None:
    pytest.importorskip("tsfm_public", reason="granite-tsfm is not installed: pip install granite-tsfm")
    model = load(str(real_data / "checkpoints" / "ttm-r2"))
    assert_windows_do_not_move_the_quantity(model, str(real_data / "gift_eval" / "m4_hourly"), Setting(512, 24))
