"""Official evaluation on GIFT-Eval: its windows by gluonts' splitter, its metrics by gluonts' evaluator.

`leaderboard` scores the two naive forecasts on the same windows without gluonts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hrx.errors import HrxError, install_command
from hrx.records.evaluation import LEVELS, METRICS, NEED_QUANTILES
from hrx.records.quantities import Floats

from .catalogue import Configuration, configurations, folders
from .frequency import leaderboard_season
from .leaderboard import count_windows
from .series import Dataset, UnusableSeries, fill

BATCH = 64
Forecast = Callable[[list[Floats]], Floats]
"""Histories `(T_i,)` without gaps -> forecasts `(n, H, Q)` of the nine levels, or `(n, H, 1)` of a point."""


class OfficialTest(NamedTuple):
    """Test windows of one configuration."""

    windows: int
    instances: int
    data: Any
    """gluonts' `TestData`."""
    season: int


@dataclass(frozen=True)
class _Entries:
    """Series of a dataset as gluonts reads them, one in memory at a time."""

    dataset: Dataset

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import pandas as pd

        start = pd.Period("2000-01-01", freq="D")  # the split is by position; no metric reads a time
        for row in self.dataset.rows():
            # In double precision: gluonts keeps the number type of the data.
            yield {"item_id": row.name, "start": start, "target": np.asarray(row.values, dtype=np.float64)}

    def __len__(self) -> int:
        return self.dataset.count


def chosen_configurations(dataset: Dataset) -> list[Configuration]:
    """Return the leaderboard's configurations of a dataset; refuses a dataset that is not the benchmark's."""
    official = {folder.name: folder.frequency for folder in folders()}
    if dataset.damage:
        raise HrxError(dataset.damage)
    if official.get(dataset.name, dataset.frequency) != dataset.frequency:
        raise HrxError(f"{dataset.name} has frequency {dataset.frequency}, the benchmark's {official[dataset.name]}.")
    return [one for one in configurations() if one.folder == dataset.name]


def official_test(dataset: Dataset, configuration: Configuration) -> OfficialTest:
    """Return the test windows of a configuration: side by side, the last ending with each series."""
    try:
        from gluonts.dataset.split import split
    except ImportError as error:
        install = install_command("gluonts")
        raise HrxError(f"hrx evaluate uses the evaluator of gluonts. Install it: {install}.") from error
    shortest, horizon = min(dataset.lengths()), configuration.prediction_length
    windows = count_windows(dataset.name, shortest, horizon)
    if windows * horizon >= shortest:
        raise UnusableSeries(
            f"{configuration.name} tests the last {windows * horizon} values of a series, with at least one before "
            f"them, but the shortest series of {dataset.name} has {shortest}."
        )
    _, template = split(_Entries(dataset), offset=-horizon * windows)
    data = template.generate_instances(prediction_length=horizon, windows=windows, distance=horizon)
    return OfficialTest(windows, windows * dataset.count, data, leaderboard_season(dataset.frequency))


def forecasts(test: OfficialTest, forecast: Forecast) -> Iterator[Any]:
    """Yield gluonts' forecast of each test window. Missing values of a history repeat the one before."""
    from gluonts.itertools import batcher

    for batch in batcher(test.data.input, batch_size=BATCH):
        histories = [_filled(entry["target"]) for entry in batch]
        for entry, values in zip(batch, forecast(histories), strict=True):
            yield _as_forecast(entry, values)


def _as_forecast(entry: dict[str, Any], values: Floats) -> Any:
    from gluonts.model.forecast import QuantileForecast

    # The mean is the median, or the point forecast: gluonts would say so at every forecast.
    keys = [*map(str, LEVELS), "mean"] if values.shape[1] == len(LEVELS) else ["0.5", "mean"]
    arrays = np.concatenate([values.T, values.T[len(values.T) // 2][None]])
    return QuantileForecast(arrays.astype(np.float64), entry["start"] + len(entry["target"]), keys, entry["item_id"])


def measure(test: OfficialTest, made: Iterator[Any], *, quantiles: bool) -> dict[str, float]:
    """Return the leaderboard's metrics of forecasts, by gluonts; without quantiles NaN for those that need them."""
    from gluonts.ev import metrics as ev
    from gluonts.model import evaluate_forecasts

    wanted = [ev.MSE(forecast_type="mean"), ev.MSE(forecast_type=0.5), ev.MAE(), ev.MASE(), ev.MAPE(), ev.SMAPE()]
    wanted += [ev.RMSE(), ev.NRMSE(), ev.ND()]
    if quantiles:
        wanted += [ev.MSIS(), ev.MeanWeightedSumQuantileLoss(quantile_levels=list(LEVELS))]
    frame = evaluate_forecasts(
        made, test_data=test.data, metrics=wanted, mask_invalid_label=True, axis=None, seasonality=test.season
    )
    absent = () if quantiles else NEED_QUANTILES
    return {name: np.nan if name in absent else float(frame[name].iloc[0]) for name in METRICS}


def _filled(values: Sequence[float] | Floats) -> Floats:
    """A history without gaps; zero where nothing was observed, as the leaderboard's naive forecasts have it."""
    array = np.asarray(values, dtype=np.float64)
    return fill(array).values if np.isfinite(array).any() else np.zeros(1)
