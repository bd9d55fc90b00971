"""The interval and the test of a verdict: runs of one series, and series of one dataset, resemble each other.

A plain bootstrap treats every run as independent and gives intervals that are too narrow for "what would other datasets
show?". Here datasets are resampled with replacement, then the series within each; all runs of a series stay together.
The published tables use the plain interval, which `hrx.reports.runs` computes.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hrx.records.quantities import Floats, Ints
from hrx.reports.runs import FEWEST, median
from hrx.reports.text import bracketed, number_or_none, signed

RESAMPLES = 2_000
"""A page needs thousands of intervals, and each end of one rests on 50 resamples."""


class ClusteredMedian(NamedTuple):
    """The median of runs with an interval that knows the levels; NaN where there are too few series for one."""

    median: float
    low: float
    high: float
    p: float
    """Two-sided: twice the smaller share of resampled medians on either side of zero."""
    datasets: int
    series: int

    def as_json(self) -> dict[str, float | None]:
        return {name: number_or_none(value) for name, value in self._asdict().items()}

    def __str__(self) -> str:
        interval = bracketed(self.low, self.high)
        return f"{signed(self.median)} {interval if interval != '-' else '(no interval)'}"

    @property
    def levels(self) -> str:
        """A sentence: what the interval resamples, and what it cannot."""
        if self.series < FEWEST:
            return f"There is no interval from {self.series} series: at least {FEWEST} are needed."
        if self.datasets == 1:
            return f"These intervals resample the {self.series} series of one dataset, and no dataset."
        if self.datasets == self.series:
            return f"These intervals resample {self.datasets} datasets of one series each."
        return f"These intervals resample {self.datasets} datasets, then their {self.series} series."


def clustered_median(
    values: npt.ArrayLike, datasets: npt.ArrayLike, series: npt.ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0
) -> ClusteredMedian:
    """The median of `values` `(n,)` and its 95 % interval, for runs of the given datasets and series.

    `series` names a series within its dataset. Values that are not finite are left out. The order of the runs does not
    matter: the same runs have the same interval wherever it is shown.
    """
    numbers = np.asarray(values, dtype=np.float64)
    kept = np.isfinite(numbers)
    if not kept.any():
        return ClusteredMedian(np.nan, np.nan, np.nan, np.nan, 0, 0)
    dataset, item = (sorted_codes(np.asarray(names)[kept]) for names in (datasets, series))
    pairs, number = np.unique(dataset * (item.max() + 1) + item, return_inverse=True)
    sizes = np.bincount(pairs // (item.max() + 1))
    order = np.argsort(numbers[kept], kind="stable")
    ordered = numbers[kept][order]
    point = median(ordered)
    if len(pairs) < FEWEST:
        return ClusteredMedian(point, np.nan, np.nan, np.nan, len(sizes), len(pairs))
    medians = _resampled_medians(ordered, number[order], _draws(tuple(sizes.tolist()), resamples, seed))
    low, high = np.percentile(medians, (2.5, 97.5))
    tail = min(float(np.mean(medians <= 0)), float(np.mean(medians >= 0)))
    p = min(1.0, 2 * max(tail, 1 / (resamples + 1)))
    return ClusteredMedian(point, float(low), float(high), p, len(sizes), len(pairs))


def sorted_codes(names: npt.ArrayLike) -> Ints:
    """The place of each name among the sorted distinct ones; of codes, the same as of the names they stand for."""
    values = np.asarray(names)
    return np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)[1]


@lru_cache(maxsize=8)
def _draws(sizes: tuple[int, ...], resamples: int, seed: int) -> Floats:
    """How often each series is drawn, `(R, S)`: series in the order of their datasets, which have `sizes` of them.

    A dataset of k series that is drawn m times has its series drawn k·m times, uniformly.
    """
    rng = np.random.default_rng(seed)
    times = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=resamples)
    drawn = [rng.multinomial(times[:, d] * k, np.full(k, 1 / k)) for d, k in enumerate(sizes)]
    return np.concatenate(drawn, axis=1).astype(np.float64)  # whole numbers; products of float matrices are fast


def _resampled_medians(ordered: Floats, number: Ints, draws: Floats) -> Floats:
    """The median of each resample, `(R,)`: the sorted values `(n,)` of the series `number`, drawn `(R, S)` times each.

    The values are cut into about √n parts. One product of matrices says how much of each resample lies in each part;
    only the part that holds its middle is searched value by value.
    """
    n, step = len(ordered), math.isqrt(len(ordered))
    part = np.arange(n) // step
    parts, series = int(part[-1]) + 1, draws.shape[1]
    runs = np.bincount(number * parts + part, minlength=series * parts).reshape(series, parts)
    reached = np.cumsum(draws @ runs.astype(np.float64), axis=1)
    padded = np.pad(number, (0, parts * step - n)).reshape(parts, step)
    row = np.arange(len(draws))

    def value_at(position: Floats) -> Floats:
        """The value at a position of each sorted resample, from 0."""
        at = np.sum(reached <= position[:, None], axis=1)
        before = np.where(at > 0, reached[row, at - 1], 0)
        within = np.cumsum(draws[row[:, None], padded[at]], axis=1) + before[:, None]
        found: Floats = ordered[at * step + np.sum(within <= position[:, None], axis=1)]
        return found

    total = reached[:, -1]
    lower, upper = value_at((total - 1) // 2), value_at(total // 2)
    medians: Floats = lower + (upper - lower) / 2
    return medians
