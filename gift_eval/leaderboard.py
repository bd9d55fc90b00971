"""The leaderboard's test windows of GIFT-Eval, and two naive forecasts scored on them as the leaderboard scores.

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
from hrx.records.quantities import Bools, Floats, Ints

from .catalogue import Configuration, configurations, folders
from .frequency import leaderboard_season
from .series import Dataset

TEST_SHARE = 0.1
MOST_WINDOWS = 20
BLOCK_VALUES = 2**18
"""The number of values of short series that are scored together; a longer series is scored by itself."""


class Scores(NamedTuple):
    """One forecast on one configuration. NaN where no value could be scored."""

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
    """The number of test windows of each series of a folder; the M4 datasets have one by definition."""
    if "m4" in folder:
        return 1
    return min(max(1, math.ceil(TEST_SHARE * shortest / prediction_length)), MOST_WINDOWS)


def starts(length: int, prediction_length: int, windows: int) -> Ints:
    """The starts (w,) of the windows of one series: side by side, the last one ending with the series."""
    return length - prediction_length * np.arange(windows, 0, -1, dtype=np.int64)


def score(datasets: Sequence[Dataset]) -> Iterator[NaiveScores]:
    """The scores of each configuration of each dataset; a dataset outside the benchmark gives none.

    One block of series is in memory at a time. A dataset that cannot be scored gives the reason in `damage`.
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
    shortest = min(row.values.size for row in dataset.rows())
    counts = [count_windows(dataset.name, shortest, each.prediction_length) for each in chosen]
    tested = [count * each.prediction_length for count, each in zip(counts, chosen, strict=True)]
    totals = np.zeros((len(chosen), 2, 2, 3))
    season = leaderboard_season(dataset.frequency)
    for series in _side_by_side(row.values for row in dataset.rows()):
        block = _Block(series, season)
        for i, each in enumerate(chosen):
            if tested[i] < shortest:
                totals[i] += block.sum_errors(each.prediction_length, counts[i])
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


def _side_by_side(every: Iterator[Floats]) -> Iterator[list[Floats]]:
    """The series in blocks, each as large as `BLOCK_VALUES` allows and at least one: on single short series the
    overhead of numpy calls would dominate.
    """
    block: list[Floats] = []
    longest = 0
    for values in every:
        longest = max(longest, values.size)
        if block and longest * (len(block) + 1) > BLOCK_VALUES:
            yield block
            block, longest = [], values.size
        block.append(values)
    if block:
        yield block


def _sum(errors: Floats, scales: Floats) -> Floats:
    """(2, 3): the sums of squared, absolute and scaled errors, and the number of values in each.

    `errors` (n, w, H) are NaN where the truth is missing; those of a window are scaled by its `scales` (n, w).
    """
    absolute = np.abs(errors)
    observed = absolute[np.isfinite(absolute)]
    scaled = absolute / np.where(scales > 0, scales, np.nan)[..., None]
    sums = [np.square(observed).sum(), observed.sum(), np.nansum(scaled)]
    return np.array([sums, [observed.size, observed.size, np.isfinite(scaled).sum()]])


class _Block:
    """Series side by side, (n, T); a window uses only values before its start.

    Every series ends in the last column, so windows start in the same columns for all; a shorter series has missing
    values before its begin.
    """

    def __init__(self, series: Sequence[Floats], season: int):
        lengths = np.array([each.size for each in series], dtype=np.int64)
        self._width = int(lengths.max())
        self._begin = self._width - lengths
        self._season = season
        self._values = np.full((len(series), self._width), np.nan)
        for row, values in zip(self._values, series, strict=True):
            row[self._width - values.size :] = values
        observed = np.isfinite(self._values)
        self._values[~observed] = np.nan
        self._first = np.where(observed.any(axis=1), observed.argmax(axis=1), self._width)
        # A missing value repeats the last observed one; those before the first observation repeat the first.
        last_observed = np.maximum.accumulate(np.where(observed, np.arange(self._width), 0), axis=1)
        self._filled_from = np.maximum(last_observed, np.minimum(self._first, self._width - 1)[:, None])

    def sum_errors(self, horizon: int, windows: int) -> Floats:
        """(2, 2, 3): `_sum` of the naive and of the seasonal forecast on the windows of one configuration."""
        start = starts(self._width, horizon, windows)
        truth = self._values[:, start[:, None] + np.arange(horizon)]
        # Where the season is longer than the history, the last value is repeated.
        fits = start - self._begin[:, None] >= self._season
        scales = self._seasonal_errors(start, fits)
        periods = np.ones(fits.shape, dtype=np.int64), np.where(fits, self._season, 1)
        return np.stack([_sum(truth - self._repeat(start, period, horizon), scales) for period in periods])

    def _repeat(self, start: Ints, period: Ints, horizon: int) -> Floats:
        """The last `period` (n, w) values before each start (w,), over and over: (n, w, H); 0 where nothing was
        observed.
        """
        period = period[..., None]
        back = (start[:, None] - period + np.arange(horizon) % period).reshape(len(period), -1)
        source = np.take_along_axis(self._filled_from, back, axis=1)
        forecast = np.take_along_axis(self._values, source, axis=1).reshape(*period.shape[:2], horizon)
        return np.where((self._first[:, None] < start)[..., None], forecast, 0.0)

    def _seasonal_errors(self, start: Ints, fits: Bools) -> Floats:
        """(n, w): the mean of |x[t] − x[t − season]| before each start, or over one step where a season does not fit;
        NaN where no such pair was observed.
        """
        errors = self._mean_change(self._season, start)
        return errors if fits.all() else np.where(fits, errors, self._mean_change(1, start))

    def _mean_change(self, lag: int, start: Ints) -> Floats:
        change = np.abs(self._values[:, lag:] - self._values[:, :-lag])
        seen = np.isfinite(change)
        # Entry i: over the first i changes; the last one before a window ends just before its start.
        sums, counts = (
            np.pad(np.cumsum(each, axis=1), ((0, 0), (1, 0))) for each in (np.where(seen, change, 0.0), seen)
        )
        known = np.clip(start - lag, 0, change.shape[1])
        means: Floats = np.full((len(change), start.size), np.nan)
        np.divide(sums[:, known], counts[:, known], out=means, where=counts[:, known] > 0)
        return means
