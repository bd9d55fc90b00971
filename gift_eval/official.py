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
from numpy.typing import NDArray

from hrx.errors import HrxError

from .catalogue import Configuration, Folder, configurations, folders
from .series import DamagedDataset, Dataset, Floats

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


def starts(length: int, prediction_length: int, windows: int) -> NDArray[np.int64]:
    """The starts (w,) of the windows of one series: side by side, the last one ending with the series."""
    return length - prediction_length * np.arange(windows, 0, -1, dtype=np.int64)


def score(datasets: Sequence[Dataset]) -> Iterator[NaiveScores]:
    """The scores of each configuration of each dataset; a dataset outside the benchmark gives none.

    One block of series is in memory at a time. A dataset that cannot be scored gives the reason in `damage`.
    """
    official = {folder.name: folder for folder in folders()}
    for dataset in datasets:
        chosen = [configuration for configuration in configurations() if configuration.folder == dataset.name]
        if not chosen:
            continue
        try:
            _check(dataset, official[dataset.name])
            yield from _score(dataset, chosen)
        except HrxError as error:
            yield from (_unscored(each, str(error)) for each in chosen)


def _check(dataset: Dataset, folder: Folder) -> None:
    if dataset.damage:
        raise DamagedDataset(dataset.damage)
    if dataset.frequency != folder.frequency:
        raise DamagedDataset(
            f"{dataset.name} has frequency {dataset.frequency}, the benchmark's {folder.frequency}: it is not the same."
        )


def _unscored(configuration: Configuration, reason: str) -> NaiveScores:
    nothing = Scores(math.nan, math.nan, math.nan)
    return NaiveScores(configuration.name, 0, 0, nothing, nothing, reason)


def _score(dataset: Dataset, chosen: Sequence[Configuration]) -> list[NaiveScores]:
    shortest = min(row.values.size for row in dataset.rows())
    views = [_View(each, count_windows(dataset.name, shortest, each.prediction_length)) for each in chosen]
    totals = {view: (_Totals(), _Totals()) for view in views if view.tested < shortest}
    for series in _side_by_side(row.values for row in dataset.rows()):
        block = _Block(series, dataset.season)
        for view, (naive, seasonal) in totals.items():
            block.add_errors(view, naive, seasonal)
    results = []
    for view in views:
        if view in totals:
            naive, seasonal = totals[view]
            figures = (view.windows, view.windows * dataset.count, naive.scores(), seasonal.scores())
            results.append(NaiveScores(view.configuration.name, *figures))
        else:
            reason = (
                f"{view.configuration.name} tests the last {view.tested} values of a series, with at least one before "
                f"them, but the shortest series of {dataset.name} has {shortest}."
            )
            results.append(_unscored(view.configuration, reason))
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


class _View(NamedTuple):
    configuration: Configuration
    windows: int

    @property
    def tested(self) -> int:
        """The number of values at the end of a series that its windows cover."""
        return self.windows * self.configuration.prediction_length


class _Totals:
    """Sums of errors over the windows seen so far."""

    def __init__(self) -> None:
        self._squared = self._absolute = self._scaled = 0.0
        self._count = self._scaled_count = 0

    def add(self, errors: Floats, scales: Floats) -> None:
        """Errors (n, w, H), NaN where the truth is missing, and what each window's are divided by, (n, w)."""
        absolute = np.abs(errors)
        observed = np.isfinite(absolute)
        self._squared += float(np.square(absolute[observed]).sum())
        self._absolute += float(absolute[observed].sum())
        self._count += int(observed.sum())
        scaled = absolute / np.where(scales > 0, scales, np.nan)[..., None]
        self._scaled += float(np.nansum(scaled))
        self._scaled_count += int(np.isfinite(scaled).sum())

    def scores(self) -> Scores:
        """The means."""
        return Scores(
            self._squared / self._count if self._count else math.nan,
            self._absolute / self._count if self._count else math.nan,
            self._scaled / self._scaled_count if self._scaled_count else math.nan,
        )


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

    def add_errors(self, view: _View, naive: _Totals, seasonal: _Totals) -> None:
        """Add the errors of both forecasts on the windows of one configuration."""
        horizon = view.configuration.prediction_length
        start = starts(self._width, horizon, view.windows)
        truth = self._values[:, start[:, None] + np.arange(horizon)]
        # Where the season is longer than the history, the last value is repeated.
        fits = start - self._begin[:, None] >= self._season
        scales = self._seasonal_errors(start, fits)
        naive.add(truth - self._repeat(start, np.ones(fits.shape, dtype=np.int64), horizon), scales)
        seasonal.add(truth - self._repeat(start, np.where(fits, self._season, 1), horizon), scales)

    def _repeat(self, start: NDArray[np.int64], period: NDArray[np.int64], horizon: int) -> Floats:
        """The last `period` (n, w) values before each start (w,), over and over: (n, w, H); 0 where nothing was
        observed.
        """
        period = period[..., None]
        back = (start[:, None] - period + np.arange(horizon) % period).reshape(len(period), -1)
        source = np.take_along_axis(self._filled_from, back, axis=1)
        forecast = np.take_along_axis(self._values, source, axis=1).reshape(*period.shape[:2], horizon)
        return np.where((self._first[:, None] < start)[..., None], forecast, 0.0)

    def _seasonal_errors(self, start: NDArray[np.int64], fits: NDArray[np.bool_]) -> Floats:
        """(n, w): the mean of |x[t] − x[t − season]| before each start, or over one step where a season does not fit;
        NaN where no such pair was observed.
        """
        errors = self._mean_change(self._season, start)
        return errors if fits.all() else np.where(fits, errors, self._mean_change(1, start))

    def _mean_change(self, lag: int, start: NDArray[np.int64]) -> Floats:
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
