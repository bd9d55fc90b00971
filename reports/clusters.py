"""The interval and the test of a verdict: runs of one series, and series of one dataset, resemble each other.

A plain bootstrap treats every run as independent and gives intervals that are too narrow for "what would other datasets
show?". Here datasets are resampled with replacement, then the series within each; all runs of a series stay together.
The published tables use the plain interval, which `hrx.reports.runs` computes.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from hrx.reports.runs import FEWEST
from hrx.reports.text import bracketed, number_or_none, signed

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_BLOCK = 1 << 22
"""Weights that are held at once."""


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
        return f"{signed(self.median)} {interval if interval != '-' else '(no interval from so few series)'}"


def clustered_median(
    values: npt.ArrayLike, datasets: npt.ArrayLike, series: npt.ArrayLike, *, resamples: int = 10_000, seed: int = 0
) -> ClusteredMedian:
    """The median of `values` `(n,)` and its 95 % interval, for runs of the given datasets and series.

    `series` names a series within its dataset. Values that are not finite are left out.
    """
    frame = pd.DataFrame({"value": np.asarray(values, dtype=np.float64), "dataset": datasets, "series": series})
    frame = frame[np.isfinite(frame["value"])].sort_values("value", kind="stable")
    if frame.empty:
        return ClusteredMedian(np.nan, np.nan, np.nan, np.nan, 0, 0)
    number = frame.groupby(["dataset", "series"], sort=True).ngroup().to_numpy()
    sizes = frame.groupby("dataset", sort=True)["series"].nunique().to_numpy()
    ordered, point = frame["value"].to_numpy(), float(frame["value"].median())
    if number.max() + 1 < FEWEST:
        return ClusteredMedian(point, np.nan, np.nan, np.nan, len(sizes), int(number.max()) + 1)
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK // len(ordered))
    medians = np.concatenate(
        [_weighted_medians(ordered, weights[:, number]) for weights in _draws(sizes, resamples, block, rng)]
    )
    low, high = np.percentile(medians, (2.5, 97.5))
    tail = min(float(np.mean(medians <= 0)), float(np.mean(medians >= 0)))
    p = min(1.0, 2 * max(tail, 1 / (resamples + 1)))
    return ClusteredMedian(point, float(low), float(high), p, len(sizes), int(number.max()) + 1)


def _draws(sizes: Ints, resamples: int, block: int, rng: np.random.Generator) -> Iterator[Ints]:
    """How often each series is drawn, `(block, S)` at a time, series in the order of their datasets.

    A dataset of k series that is drawn m times has its series drawn k·m times, uniformly.
    """
    datasets = len(sizes)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        times = rng.multinomial(datasets, np.full(datasets, 1 / datasets), size=rows)
        drawn = [rng.multinomial(times[:, d] * k, np.full(k, 1 / k)) for d, k in enumerate(sizes)]
        yield np.concatenate(drawn, axis=1)


def _weighted_medians(ordered: Floats, weights: Ints) -> Floats:
    """The median of each row's sample: the sorted values `(n,)`, repeated as the weights `(R, n)` say."""
    reached = np.cumsum(weights, axis=1)
    total = reached[:, -1:]
    lower = ordered[np.argmax(reached > (total - 1) // 2, axis=1)]
    upper = ordered[np.argmax(reached > total // 2, axis=1)]
    medians: Floats = lower + (upper - lower) / 2
    return medians
