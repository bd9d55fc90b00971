"""Statistics of groups of runs: medians with their intervals, tests, and the power of a decision.

Everything in `reports` that computes an interval or a p value is here. Values that are not finite are left out, and `n`
counts the rest. Two intervals of a median: `median_interval` takes each value as independent, as the published tables
do; `clustered_median` resamples datasets, then series, as every verdict does. The sign test is exact for every number
of pairs and every distribution, tests the median, which is the figure that is shown, and reads as a count: 6 of 6 pairs
lie beyond the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hrx.records.quantities import Floats, Ints
from hrx.reports.text import bracketed, number_or_none, percent, signed

FEW = 10
"""A group with fewer runs is marked."""
FEW_TEXT = f"n<{FEW}: few runs"
FEWEST = 3
"""Values that an interval needs: one or two say nothing about their spread."""
_BLOCK = 1 << 21
"""Numbers that a bootstrap of a mean holds at once."""
RESAMPLES = 2_000
"""A page needs thousands of intervals, and each end of one rests on 50 resamples."""
LEVEL = 0.05
POWER = 0.8
MOST_PAIRS = 1_000
"""Where more are needed, the number is not stated."""
_INTERVAL_Z = NormalDist().inv_cdf(0.975)
_POWER_Z = NormalDist().inv_cdf(POWER)


class Interval(NamedTuple):
    """A median, mean or other figure with its 95 % interval; NaN where there are no values, or too few of them."""

    point: float
    low: float
    high: float


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of one quantity over a group of runs; NaN where the group is empty.

    `low` and `high` are NaN for fewer than three values.
    """

    median: float
    low: float
    high: float
    positive: float
    """Share above zero, 0 to 1."""
    negative: float
    """Share below zero: an exact zero is on neither side."""
    p: float
    """Of the two-sided sign test."""
    n: int
    """Configurations: runs with their seeds folded."""

    @property
    def few(self) -> bool:
        return is_few(self.n)

    def as_json(self) -> dict[str, float | None]:
        figures = ("median", "low", "high", "positive", "p")
        return {name: number_or_none(getattr(self, name)) for name in figures} | {"n": self.n}

    def __str__(self) -> str:
        interval = bracketed(self.low, self.high)
        return f"{signed(self.median)} {interval if interval != '-' else '(no interval from so few)'}"

    @property
    def cells(self) -> tuple[str, ...]:
        """Median, interval, share above zero and p of the sign test, as in a row of a table."""
        p = "-" if not self.n else "<0.001" if self.p < 0.001 else f"{self.p:.3f}"
        return signed(self.median), bracketed(self.low, self.high), percent(self.positive), p

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero, over at least ten runs."""
        return not self.few and (self.low > 0 or self.high < 0)


def describe(values: npt.ArrayLike) -> GroupStatistics:
    """Median with its interval, share above zero, sign test and count of the finite values."""
    kept = finite(values)
    p = sign_test(int((kept > 0).sum()), int((kept < 0).sum())) if len(kept) else np.nan
    return GroupStatistics(*median_interval(kept), fraction_positive(kept), fraction_positive(-kept), p, len(kept))


def is_few(n: int) -> bool:
    """Whether a group is so small that this must be said."""
    return n < FEW


def finite(values: npt.ArrayLike) -> Floats:
    """Finite values, `(N,) -> (n,)`."""
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]


def median(values: npt.ArrayLike) -> float:
    """Median of the finite values; NaN where there are none."""
    return _median_of(np.sort(finite(values)))


def _median_of(ordered: Floats) -> float:
    """Median of sorted values; a page needs so many that `np.median` would take most of its time."""
    n = len(ordered)
    return float((ordered[(n - 1) // 2] + ordered[n // 2]) / 2) if n else np.nan


def median_interval(values: npt.ArrayLike, *, resamples: int = 10_000, seed: int = 0) -> Interval:
    """Median and its percentile-bootstrap 95 % interval, in memory that does not grow with `resamples × n`.

    Fewer than three values have no interval.

    `scipy.stats.bootstrap` draws all `n` values of every resample: 10,000 × 16,729 draws for a whole benchmark, and
    other digits than the stored ones. The resampled medians are drawn directly here.
    """
    ordered = np.sort(finite(values))
    if len(ordered) < FEWEST:
        return Interval(_median_of(ordered), np.nan, np.nan)
    drawn = _seeded_resamples(len(ordered), resamples, seed)
    medians = _middle(ordered, (drawn.lower, drawn.upper))
    order = np.argsort(medians, kind="stable")
    ends = (_weighted_percentile(medians[order], drawn.counts[order], q) for q in (2.5, 97.5))
    return Interval(_median_of(ordered), *ends)


def _weighted_percentile(ordered: Floats, counts: Ints, q: float) -> float:
    """`np.percentile` of the sorted values, each repeated `counts` times."""
    last = np.cumsum(counts)
    at = q / 100 * (last[-1] - 1)
    below = int(at)
    low, high = ordered[np.searchsorted(last, (below, below + 1), side="right")]
    share = at - below
    return float(low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share))


def resampled_medians(ordered: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Medians of `resamples` resamples with replacement of the sorted values `(n,)`."""
    return _middle(ordered, _middle_positions(len(ordered), resamples, rng))


Positions = tuple[Ints, Ints]


def _middle_positions(n: int, resamples: int, rng: np.random.Generator) -> Positions:
    """Positions in the sorted sample of the two middle values of each resample, alike for an odd `n`.

    A resample is `ordered[⌊n·U⌋]` for `n` uniform `U`. That map never decreases, so the middle values of the resample
    are those at the middle order statistics of `U`, which are beta variables: one or two draws per resample.
    """
    lower = (n + 1) // 2
    u = rng.beta(lower, n - lower + 1, size=resamples)
    if n % 2:
        return (_position(u, n),) * 2
    # Given the lower middle one, the uniforms above it are uniform on the rest; the next one is their smallest.
    above = u + (1 - u) * rng.beta(1, n - lower, size=resamples)
    return _position(u, n), _position(above, n)


class _Resamples(NamedTuple):
    """Distinct pairs of middle positions of many resamples, and how many resamples have each."""

    lower: Ints
    upper: Ints
    counts: Ints


@lru_cache(maxsize=256)
def _seeded_resamples(n: int, resamples: int, seed: int) -> _Resamples:
    """Draw the same for every sample of this size, so that many groups cost little more than one."""
    lower, upper = _middle_positions(n, resamples, np.random.default_rng(seed))
    pairs, counts = np.unique(lower.astype(np.int64) * n + upper, return_counts=True)
    return _Resamples(pairs // n, pairs % n, counts)


def _position(u: Floats, n: int) -> Ints:
    return np.minimum((n * u).astype(np.int32), n - 1)


def _middle(ordered: Floats, positions: Positions) -> Floats:
    lower, upper = (ordered[position] for position in positions)
    return lower + (upper - lower) / 2


def mean_interval(values: npt.ArrayLike, *, resamples: int = 10_000, seed: int = 0) -> Interval:
    """Mean and its percentile-bootstrap 95 % interval. Meant for shares, which take few distinct values.

    Fewer than three values have no interval.
    """
    kept = finite(values)
    if len(kept) < FEWEST:
        return Interval(float(kept.mean()) if len(kept) else np.nan, np.nan, np.nan)
    means = resampled_means(kept, resamples, np.random.default_rng(seed))
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(float(kept.mean()), float(low), float(high))


def student_interval(values: Floats) -> Interval:
    """Mean of the values `(n,)` with its 95 % interval by Student's t; none from fewer than three."""
    from scipy.stats import t  # takes most of a second to import

    if len(values) < FEWEST:
        return Interval(float(values.mean()) if len(values) else np.nan, np.nan, np.nan)
    mean, reach = values.mean(), t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return Interval(float(mean), float(mean - reach), float(mean + reach))


def resampled_means(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Means of `resamples` resamples with replacement of the values `(n,)`.

    How often each distinct value is drawn is multinomial, so a resample takes one draw per distinct value.
    """
    levels, counts = np.unique(values, return_counts=True)
    n, block = len(values), max(1, _BLOCK // len(levels))
    sizes = (min(block, resamples - start) for start in range(0, resamples, block))
    return np.concatenate([rng.multinomial(n, counts / n, size=size) @ levels / n for size in sizes])


def fraction_positive(values: npt.ArrayLike) -> float:
    """Share of the finite values above zero; a zero is not positive. NaN where there are no values."""
    kept = finite(values)
    return float(np.mean(kept > 0)) if len(kept) else np.nan


def sign_test(positive: int, negative: int) -> float:
    """Exact two-sided p of these signs if both were equally likely; zeros count on neither side."""
    from scipy.stats import binomtest  # takes most of a second to import, and most commands need no test

    n = positive + negative
    return float(binomtest(positive, n).pvalue) if n else 1.0


def trimmed_mean(values: npt.ArrayLike, share: float = 0.1) -> float:
    """Mean without the `share` lowest and the `share` highest values (rounded down, on either side).

    In sorted order: `scipy.stats.trim_mean` sums in another order and so gives other last digits.
    """
    ordered = np.sort(finite(values))
    cut = int(share * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean()) if len(ordered) else np.nan


class ClusteredMedian(NamedTuple):
    """Median of runs with an interval that knows the levels; NaN where there are too few series for one."""

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
    """Median of `values` `(n,)` and its 95 % interval, for runs of the given datasets and series.

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
    """Place of each name among the sorted distinct ones; of codes, the same as of the names they stand for."""
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
    """Median of each resample, `(R,)`: the sorted values `(n,)` of the series `number`, drawn `(R, S)` times each.

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
        """Value at a position of each sorted resample, from 0."""
        at = np.sum(reached <= position[:, None], axis=1)
        before = np.where(at > 0, reached[row, at - 1], 0)
        within = np.cumsum(draws[row[:, None], padded[at]], axis=1) + before[:, None]
        found: Floats = ordered[at * step + np.sum(within <= position[:, None], axis=1)]
        return found

    total = reached[:, -1]
    lower, upper = value_at((total - 1) // 2), value_at(total // 2)
    medians: Floats = lower + (upper - lower) / 2
    return medians


class Power(NamedTuple):
    """How likely a decision is, if further pairs behave like those that were measured."""

    now: float
    """With as many pairs as there are, 0 to 1."""
    needed: int | None
    """Pairs for a power of 80 %; None where `MOST_PAIRS` do not suffice."""


def sign_test_beyond(beyond: int, n: int) -> float:
    """One-sided p of at least `beyond` of `n` pairs beyond a bound that the median does not exceed.

    A pair on the bound counts as within it, which never makes p smaller.
    """
    from scipy.stats import binom  # takes most of a second to import

    return float(binom.sf(beyond - 1, n, 0.5))


def holm(values: Sequence[float]) -> list[float]:
    """P values after Holm's step-down correction, in the order given."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    corrected, worst = [0.0] * len(values), 0.0
    for place, index in enumerate(order):
        worst = max(worst, min(1.0, (len(values) - place) * values[index]))
        corrected[index] = worst
    return corrected


def sign_test_power(beyond: int, n: int, tests: int) -> Power:
    """Power of the sign test on one of `tests` datasets, at the level that Holm's correction gives the smallest p.

    The chance that a further pair lies beyond the bound is taken as `(beyond + 1) / (n + 2)`, Laplace's rule, so that
    three of three do not count as certain.
    """
    from scipy.stats import binom

    sizes = np.arange(1, MOST_PAIRS + 1)
    # isf gives the smallest k with P(X > k) at or below the level under a chance of one half.
    critical = binom.isf(LEVEL / tests, sizes, 0.5)
    power = binom.sf(critical, sizes, (beyond + 1) / (n + 2))
    enough = np.flatnonzero(power >= POWER)
    return Power(float(power[n - 1]), int(sizes[enough[0]]) if len(enough) else None)


def interval_power(estimate: Interval, bound: float, n: int) -> Power:
    """Power of a 95 % interval over `n` values to exclude the bound, where the estimate is the true value.

    The estimate is taken as normal with the standard error that the interval's width implies, which falls with √n.
    """
    error, distance = (estimate.high - estimate.low) / (2 * _INTERVAL_Z), abs(estimate.point - bound)
    if error == 0 or distance == 0:
        return Power(0.0, None)
    now = NormalDist().cdf(distance / error - _INTERVAL_Z)
    needed = n * ((_INTERVAL_Z + _POWER_Z) * error / distance) ** 2
    return Power(now, math.ceil(needed) if needed <= MOST_PAIRS else None)
