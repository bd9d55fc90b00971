"""Leaderboard of GIFT-Eval: its test windows, and two naive forecasts scored on them as the leaderboard scores.

A configuration's windows do not overlap and end with the series; their number follows from the shortest series. Every
variate of a multivariate dataset is a series of its own. Scores are means over every value of every window of every
series; a missing value is not scored. MASE divides by the seasonal error of all values before a window, unless that is
zero or unknown. gluonts' `evaluate_forecasts` with `axis=None` computes the same.

Nothing is standardised here: `windows` cuts the windows of an audit.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hrx.errors import HrxError
from hrx.records.quantities import Floats, Ints

from .catalogue import Configuration, configurations, folders
from .frequency import leaderboard_season
from .series import Dataset

TEST_SHARE = 0.1
MOST_WINDOWS = 20


class Scores(NamedTuple):
    """A forecast on one configuration. NaN where no value could be scored."""

    mse: float
    mae: float
    mase: float


class NaiveScores(NamedTuple):
    """Both naive forecasts on one configuration, over `instances` windows in all; or in `damage` why there are none."""

    configuration: str
    windows: int
    instances: int
    naive: Scores
    seasonal: Scores
    damage: str = ""


def count_windows(folder: str, shortest: int, prediction_length: int) -> int:
    """Return the number of test windows of each series of a folder; the M4 datasets have one by definition."""
    if "m4" in folder:
        return 1
    return min(max(1, math.ceil(TEST_SHARE * shortest / prediction_length)), MOST_WINDOWS)


def starts(length: int, prediction_length: int, windows: int) -> Ints:
    """Return the starts (w,) of the windows of a series: side by side, the last one ending with the series."""
    return length - prediction_length * np.arange(windows, 0, -1, dtype=np.int64)


def score(datasets: Sequence[Dataset]) -> Iterator[NaiveScores]:
    """Yield the scores of each configuration of each dataset; a dataset outside the benchmark gives none.

    One series is in memory at a time. A dataset that cannot be scored gives the reason in `damage`.
    """
    official = {folder.name: folder.frequency for folder in folders()}
    for dataset in datasets:
        chosen = [configuration for configuration in configurations() if configuration.folder == dataset.name]
        if not chosen:
            continue
        reason, given = dataset.damage, dataset.frequency
        if not reason and given != official[dataset.name]:
            reason = f"{dataset.name} has frequency {given}, the benchmark's {official[dataset.name]}: "
            reason += "it is not the same."
        try:
            yield from [_unscored(each, reason) for each in chosen] if reason else _score(dataset, chosen)
        except HrxError as error:
            yield from (_unscored(each, str(error)) for each in chosen)


def _unscored(configuration: Configuration, reason: str) -> NaiveScores:
    nothing = Scores(math.nan, math.nan, math.nan)
    return NaiveScores(configuration.name, 0, 0, nothing, nothing, reason)


def _score(dataset: Dataset, chosen: Sequence[Configuration]) -> list[NaiveScores]:
    shortest, season = min(dataset.lengths()), leaderboard_season(dataset.frequency)
    counts = [count_windows(dataset.name, shortest, each.prediction_length) for each in chosen]
    tested = [count * each.prediction_length for count, each in zip(counts, chosen, strict=True)]
    totals = np.zeros((len(chosen), 2, 2, 3))
    for row in dataset.rows():
        past = _Past(row.values, season)
        for i, each in enumerate(chosen):
            if tested[i] < shortest:
                totals[i] += past.sum_errors(each.prediction_length, counts[i])
    with np.errstate(invalid="ignore"):
        means = totals[:, :, 0] / totals[:, :, 1]
    results = []
    for i, each in enumerate(chosen):
        if tested[i] < shortest:
            naive, seasonal = (Scores(*forecast) for forecast in means[i].tolist())
            results.append(NaiveScores(each.name, counts[i], counts[i] * dataset.count, naive, seasonal))
        else:
            reason = (
                f"{each.name} tests the last {tested[i]} values of a series, with at least one before them, but the "
                f"shortest series of {dataset.name} has {shortest}."
            )
            results.append(_unscored(each, reason))
    return results


class _Past:
    """A series (T,), of which a window uses only the values before its start."""

    def __init__(self, values: Floats, season: int):
        self._season = season
        observed = np.isfinite(values)
        self._values = np.where(observed, values, np.nan)
        self._first = int(observed.argmax()) if observed.any() else values.size
        # A missing value repeats the last observed one; those before the first observation repeat the first.
        last_observed = np.maximum.accumulate(np.where(observed, np.arange(values.size), 0))
        self._filled = self._values[np.maximum(last_observed, min(self._first, values.size - 1))]

    def sum_errors(self, horizon: int, windows: int) -> Floats:
        """(2, 2, 3): `_sum` of the naive and of the seasonal forecast on the windows of one configuration."""
        start = starts(self._values.size, horizon, windows)
        ahead = np.arange(horizon)
        truth = self._values[start[:, None] + ahead]
        # Where the season is longer than the history, the last value is repeated.
        seasonal = np.where(start >= self._season, self._season, 1)
        # NaN where no pair of values one season apart was observed.
        scales = np.where(seasonal == 1, self._mean_change(1, start), self._mean_change(self._season, start))
        sums = []
        for period in (np.ones_like(seasonal), seasonal):
            repeated = self._filled[(start - period)[:, None] + ahead % period[:, None]]
            # 0 where nothing was observed.
            sums.append(_sum(truth - np.where((self._first < start)[:, None], repeated, 0.0), scales))
        return np.stack(sums)

    def _mean_change(self, lag: int, start: Ints) -> Floats:
        """Return the mean of |x[t] − x[t − lag]| before each start (w,), NaN where no such pair was observed."""
        change = np.abs(self._values[lag:] - self._values[:-lag])
        seen = np.isfinite(change)
        # Entry i: over the first i changes; the last one before a window ends just before its start.
        sums, counts = (np.r_[0, np.cumsum(each)] for each in (np.where(seen, change, 0.0), seen))
        known = np.clip(start - lag, 0, change.size)
        with np.errstate(invalid="ignore"):
            return np.asarray(sums[known] / counts[known])


def _sum(errors: Floats, scales: Floats) -> Floats:
    """(2, 3): the sums of squared, absolute and scaled errors, and the number of values in each.

    `errors` (w, H) are NaN where the truth is missing; those of a window are scaled by its `scales` (w,).
    """
    absolute = np.abs(errors)
    observed = absolute[np.isfinite(absolute)]
    scaled = absolute / np.where(scales > 0, scales, np.nan)[:, None]
    sums = [np.square(observed).sum(), observed.sum(), np.nansum(scaled)]
    return np.array([sums, [observed.size, observed.size, np.isfinite(scaled).sum()]])
