"""The leaderboard's own view of GIFT-Eval: its test windows, and two naive forecasts scored on them as it scores.

A configuration's windows do not overlap and end with the series; how many there are follows from the shortest series.
Every variate of a multivariate dataset is a series of its own. Scores are means over every value of every window of
every series, and a value that is missing is not scored. MASE divides by the seasonal error of all that lies before a
window, where that is neither zero nor unknown. This is what gluonts' `evaluate_forecasts` computes with `axis=None`.

Nothing here is standardised: the windows of an audit are cut in `windows`.
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


class Scores(NamedTuple):
    """One forecast on one configuration. NaN where no value could be scored."""

    mse: float
    mae: float
    mase: float


class Scored(NamedTuple):
    """Both naive forecasts on one configuration, over `instances` windows in all; or the reason why there are none."""

    configuration: str
    windows: int
    instances: int
    naive: Scores
    seasonal: Scores
    damage: str = ""


def count_windows(folder: str, shortest: int, prediction_length: int) -> int:
    """How many test windows every series of a folder has; the M4 datasets have one by definition."""
    if "m4" in folder:
        return 1
    return min(max(1, math.ceil(TEST_SHARE * shortest / prediction_length)), MOST_WINDOWS)


def starts(length: int, prediction_length: int, windows: int) -> NDArray[np.int64]:
    """Where the windows of one series start, (w,): side by side, the last one ending with the series."""
    return length - prediction_length * np.arange(windows, 0, -1, dtype=np.int64)


def score(datasets: Sequence[Dataset]) -> Iterator[Scored]:
    """The configurations of each dataset in turn; a dataset without any, or outside the benchmark, gives none.

    One series is held at a time. What cannot be scored says why in its `damage`, and the rest goes on.
    """
    official = {folder.name: folder for folder in folders()}
    for dataset in datasets:
        asked = [configuration for configuration in configurations() if configuration.folder == dataset.name]
        if not asked:
            continue
        try:
            _check(dataset, official[dataset.name])
            yield from _score(dataset, asked)
        except HrxError as error:
            yield from (_unscored(each, str(error)) for each in asked)


def _check(dataset: Dataset, folder: Folder) -> None:
    if dataset.damage:
        raise DamagedDataset(dataset.damage)
    if dataset.frequency != folder.frequency:
        raise DamagedDataset(
            f"{dataset.name} has frequency {dataset.frequency}, the benchmark's {folder.frequency}: it is not the same."
        )


def _unscored(configuration: Configuration, reason: str) -> Scored:
    nothing = Scores(math.nan, math.nan, math.nan)
    return Scored(configuration.name, 0, 0, nothing, nothing, reason)


def _score(dataset: Dataset, asked: Sequence[Configuration]) -> list[Scored]:
    shortest = min(row.values.size for row in dataset.rows())
    views = [_View(each, count_windows(dataset.name, shortest, each.prediction_length)) for each in asked]
    totals = {view: (_Totals(), _Totals()) for view in views if view.tested < shortest}
    for row in dataset.rows():
        past = _Past(row.values, dataset.season)
        for view, (naive, seasonal) in totals.items():
            past.add_errors(view, naive, seasonal)
    results = []
    for view in views:
        if view in totals:
            naive, seasonal = totals[view]
            figures = (view.windows, view.windows * dataset.count, naive.scores(), seasonal.scores())
            results.append(Scored(view.configuration.name, *figures))
        else:
            reason = (
                f"{view.configuration.name} tests the last {view.tested} values of a series, with at least one before "
                f"them, but the shortest series of {dataset.name} has {shortest}."
            )
            results.append(_unscored(view.configuration, reason))
    return results


class _View(NamedTuple):
    configuration: Configuration
    windows: int

    @property
    def tested(self) -> int:
        """How many values at the end of a series its windows cover."""
        return self.windows * self.configuration.prediction_length


class _Totals:
    """Sums of errors over the windows seen so far."""

    def __init__(self) -> None:
        self._squared = self._absolute = self._scaled = 0.0
        self._count = self._scaled_count = 0

    def add(self, errors: Floats, scales: Floats) -> None:
        """Errors (w, H), NaN where the truth is missing, and what each window's are divided by, (w,)."""
        absolute = np.abs(errors)
        observed = np.isfinite(absolute)
        self._squared += float(np.square(absolute[observed]).sum())
        self._absolute += float(absolute[observed].sum())
        self._count += int(observed.sum())
        scaled = absolute / np.where(scales > 0, scales, np.nan)[:, None]
        self._scaled += float(np.nansum(scaled))
        self._scaled_count += int(np.isfinite(scaled).sum())

    def scores(self) -> Scores:
        """The means."""
        return Scores(
            self._squared / self._count if self._count else math.nan,
            self._absolute / self._count if self._count else math.nan,
            self._scaled / self._scaled_count if self._scaled_count else math.nan,
        )


class _Past:
    """One series (T,) and what each of its windows may know of it: nothing from its start on."""

    def __init__(self, values: Floats, season: int):
        observed = np.isfinite(values)
        self._values = np.where(observed, values, np.nan)
        self._season = season
        self._first = int(observed.argmax()) if observed.any() else values.size
        # A missing value repeats the last observed one; those before the first observation repeat the first.
        self._filled_from = np.maximum(
            np.maximum.accumulate(np.where(observed, np.arange(values.size), 0)), min(self._first, values.size - 1)
        )

    def add_errors(self, view: _View, naive: _Totals, seasonal: _Totals) -> None:
        """Add the errors of both forecasts on the windows of one configuration."""
        horizon = view.configuration.prediction_length
        start = starts(self._values.size, horizon, view.windows)
        truth = self._values[start[:, None] + np.arange(horizon)]
        scales = self._seasonal_errors(start)
        naive.add(truth - self._repeat(start, np.ones_like(start), horizon), scales)
        # The last value stands in for a season that is longer than what is known.
        period = np.where(start >= self._season, self._season, 1)
        seasonal.add(truth - self._repeat(start, period, horizon), scales)

    def _repeat(self, start: NDArray[np.int64], period: NDArray[np.int64], horizon: int) -> Floats:
        """The last `period` (w,) values before each start, over and over: (w, H); 0 where nothing was observed."""
        back = start[:, None] - period[:, None] + np.arange(horizon) % period[:, None]
        forecast = self._values[self._filled_from[back]]
        return np.where((self._first < start)[:, None], forecast, 0.0)

    def _seasonal_errors(self, start: NDArray[np.int64]) -> Floats:
        """(w,): the mean of |x[t] − x[t − season]| over what lies before each start; by one step where a season does
        not fit. NaN where no such pair was observed.
        """
        errors = self._mean_change(self._season, start)
        fits = start >= self._season
        return errors if fits.all() else np.where(fits, errors, self._mean_change(1, start))

    def _mean_change(self, lag: int, start: NDArray[np.int64]) -> Floats:
        change = np.abs(self._values[lag:] - self._values[:-lag])
        seen = np.isfinite(change)
        # Entry i: over the first i changes; the last that a window knows of ends just before its start.
        sums = np.concatenate(([0.0], np.cumsum(np.where(seen, change, 0.0))))
        counts = np.concatenate(([0], np.cumsum(seen)))
        known = np.clip(start - lag, 0, change.size)
        means: Floats = np.full(start.size, np.nan)
        np.divide(sums[known], counts[known], out=means, where=counts[known] > 0)
        return means
