"""Statistics of groups of runs: medians with their intervals, tests, and the power of a decision.

Everything in `reports` that computes an interval or a p value is here. Values that are not finite are left out, and `n`
counts the rest. Two intervals of a median: `median_interval` takes each value as independent, as the published tables
do; `Evidence` has one value per cluster, as every verdict does. The sign test is exact for every number of pairs and
every distribution, tests the median, which is the figure that is shown, and reads as a count: 6 of 6 pairs lie beyond
the bound.

Runs are nested: seeds within a setting, settings within a series, series within a dataset, datasets (frequencies)
within a source. What is said about other data rests on sources, or on the series where there is only one source;
everything below is repetition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import median as fmedian
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hrx.records.quantities import Floats, Ints
from hrx.reports.text import bracketed, number_or_none, signed

FEW = 10
"""A group with fewer runs is marked."""
FEW_TEXT = f"n<{FEW}: few runs"
FEWEST = 3
"""Values that an interval needs: one or two say nothing about their spread."""
FEWEST_INTERVAL = 5
"""Clusters of an interval: the range of five covers 94 %; that of fewer is called a range."""
FEWEST_SIGN = 6
"""Clusters of a verdict: five of five reach p = .0625 only."""
LEVEL = 0.05
POWER = 0.8
MOST_CLUSTERS = 1_000
"""Where more are needed, the number is not stated."""


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
    lower, upper, counts = _seeded_resamples(len(ordered), resamples, seed)
    medians = ordered[lower] + (ordered[upper] - ordered[lower]) / 2
    order = np.argsort(medians, kind="stable")
    ends = (_weighted_percentile(medians[order], counts[order], q) for q in (2.5, 97.5))
    return Interval(_median_of(ordered), *ends)


def _weighted_percentile(ordered: Floats, counts: Ints, q: float) -> float:
    """`np.percentile` of the sorted values, each repeated `counts` times."""
    last = np.cumsum(counts)
    at = q / 100 * (last[-1] - 1)
    below = int(at)
    low, high = ordered[np.searchsorted(last, (below, below + 1), side="right")]
    share = at - below
    return float(low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share))


@lru_cache(maxsize=256)
def _seeded_resamples(n: int, resamples: int, seed: int) -> tuple[Ints, Ints, Ints]:
    """Distinct pairs of positions of the two middle values of resamples, alike for an odd `n`, and how many have each.

    A resample is `ordered[⌊n·U⌋]` for `n` uniform `U`. That map never decreases, so the middle values of the resample
    are those at the middle order statistics of `U`, which are beta variables: one or two draws per resample. They are
    the same for every sample of this size, so that many groups cost little more than one.
    """
    rng, middle = np.random.default_rng(seed), (n + 1) // 2
    u = rng.beta(middle, n - middle + 1, size=resamples)
    # Given the lower middle one, the uniforms above it are uniform on the rest; the next one is their smallest.
    above = u if n % 2 else u + (1 - u) * rng.beta(1, n - middle, size=resamples)
    lower, upper = (np.minimum((n * at).astype(np.int64), n - 1) for at in (u, above))
    pairs, counts = np.unique(lower * n + upper, return_counts=True)
    return pairs // n, pairs % n, counts


def student_interval(values: Floats) -> Interval:
    """Mean of the values `(n,)` with its 95 % interval by Student's t; none from fewer than three."""
    from scipy.stats import t  # takes most of a second to import

    if len(values) < FEWEST:
        return Interval(float(values.mean()) if len(values) else np.nan, np.nan, np.nan)
    mean, reach = values.mean(), t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return Interval(float(mean), float(mean - reach), float(mean + reach))


def fraction_positive(values: npt.ArrayLike) -> float:
    """Share of the finite values above zero; a zero is not positive. NaN where there are no values."""
    kept = finite(values)
    return float(np.mean(kept > 0)) if len(kept) else np.nan


@lru_cache(maxsize=4096)
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


Side = Literal["above", "below", "undecided"]


@dataclass(frozen=True)
class Evidence:
    """Values of a quantity, one per cluster, and what they decide."""

    values: tuple[float, ...]
    """In ascending order."""
    unit: Literal["source", "series"] = "source"
    """What a cluster is: a source, or a series of the only source."""
    source: str = ""
    """The only source, where the clusters are its series."""

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def counted(self) -> str:
        return f"{self.n} {self.unit if self.n == 1 else self.units}"

    @property
    def units(self) -> str:
        """Plural of the unit."""
        return "series" if self.unit == "series" else "sources"

    @cached_property
    def interval(self) -> Interval:
        """The median cluster with its 95 % interval; the range of five clusters covers 94 %, that of fewer is none."""
        return cluster_interval(np.array(self.values))

    @property
    def positive(self) -> int:
        return sum(value > 0 for value in self.values)

    @property
    def p(self) -> float:
        """Two-sided sign test; a zero counts on neither side."""
        return sign_test(self.positive, sum(value < 0 for value in self.values))

    @property
    def side(self) -> Side:
        """On which side of zero the median cluster lies, where at least six clusters decide it at the 5 % level."""
        if self.n < FEWEST_SIGN or self.p > LEVEL:
            return "undecided"
        _, low, high = self.interval
        return "above" if low > 0 else "below" if high < 0 else "undecided"

    def within(self, bound: float) -> bool:
        """Whether the whole interval lies within `±bound`, from six clusters on."""
        _, low, high = self.interval
        return self.n >= FEWEST_SIGN and -bound < low and high < bound

    @property
    def share(self) -> Interval:
        """Share of the clusters whose value is above one half, of a quantity that is 0 or 1 in each run."""
        return share_interval(sum(value > 0.5 for value in self.values), self.n)

    @property
    def needed(self) -> int | None:
        """Clusters that would decide the side of zero with a power of 80 %, if further ones are alike."""
        favoured = max(self.positive, sum(value < 0 for value in self.values))
        return power_to_decide(favoured, self.n).needed

    def as_json(self) -> dict[str, object]:
        point, low, high = map(number_or_none, self.interval)
        p = number_or_none(self.p) if self.n else None
        counts = {"positive": self.positive, "clusters": self.n, "unit": self.unit}
        return {"median": point, "low": low, "high": high, "p": p, **counts}

    def __str__(self) -> str:
        point, low, high = self.interval
        if self.n >= FEWEST_INTERVAL:
            level = "" if self.n >= FEWEST_SIGN else " (range, 94 %)"
            return f"{signed(point)} {bracketed(low, high)}{level}"
        return f"{signed(point)} (range {bracketed(low, high)})" if self.n > 1 else signed(point)

    @property
    def cells(self) -> tuple[str, ...]:
        """Median, interval, clusters above zero and p of the sign test, as in a row of a table."""
        point, low, high = self.interval
        level = " (94 %)" if self.n == FEWEST_INTERVAL else ""
        interval = f"{bracketed(low, high)}{level}" if self.n >= FEWEST_INTERVAL else "-"
        p = "-" if self.n < FEWEST_SIGN else "<0.001" if self.p < 0.001 else f"{self.p:.3f}"
        return signed(point), interval, f"{self.positive} of {self.n}", p

    @property
    def about(self) -> str:
        """A sentence: what counts once, and for what it speaks."""
        if self.unit == "series":
            return f"Each series of {self.source} counts once: this says nothing about other data."
        return "Each source counts once, by the median of its series and settings."


def by_series(
    values: npt.ArrayLike, datasets: Iterable[object], series: Iterable[object]
) -> dict[str, dict[str, list[float]]]:
    """Values `(n,)` of configurations by dataset and by series, without those that are not a number."""
    found: dict[str, dict[str, list[float]]] = {}
    for value, dataset, one in zip(np.asarray(values, dtype=np.float64).tolist(), datasets, series, strict=True):
        if not math.isnan(value):
            found.setdefault(str(dataset), {}).setdefault(str(one), []).append(value)
    return found


def evidence(values: npt.ArrayLike, datasets: Iterable[object], series: Iterable[object]) -> Evidence:
    """One value per cluster, from the values `(n,)` of configurations: the median over series of the median of each.

    A cluster is a source, the name of a dataset before the slash; with one source its series are the clusters. Values
    that are not a number are left out; an infinite one is known to lie beyond all others.
    """
    by_source: dict[str, list[tuple[str, float]]] = {}
    for dataset, found in by_series(values, datasets, series).items():
        medians = [(one, fmedian(of_series)) for one, of_series in found.items()]
        by_source.setdefault(dataset.partition("/")[0], []).extend(medians)
    if len(by_source) == 1:
        ((source, medians),) = by_source.items()
        by_item: dict[str, list[float]] = {}  # the frequencies of a series are no further series
        for one, value in medians:
            by_item.setdefault(one, []).append(value)
        return Evidence(tuple(sorted(map(fmedian, by_item.values()))), "series", source)
    return Evidence(tuple(sorted(fmedian(value for _, value in medians) for medians in by_source.values())))


def cluster_interval(values: npt.ArrayLike) -> Interval:
    """Median of independent values and the inverted sign test: order statistics, interpolated to 95 %.

    The interpolation is that of Hettmansperger and Sheather (1986). The range of five values covers 94 %; fewer have
    a range that is no interval, one value none.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    if n < 2:
        return Interval(float(ordered[0]) if n else math.nan, math.nan, math.nan)
    place, share = _ends(n)
    low = _between(ordered[place - 1], ordered[min(place, n - 1)], share)
    high = _between(ordered[n - place], ordered[max(n - place - 1, 0)], share)
    return Interval(float(np.median(ordered)), low, high)


@lru_cache(maxsize=4096)
def share_interval(held: int, n: int) -> Interval:
    """Share of `n` clusters in which something holds, with its exact 95 % interval (Clopper and Pearson); NaN of none.

    Eight of eight are a share of 1 with an interval of [0.63, 1]: a bootstrap would have no width there.
    """
    from scipy.stats import binomtest  # takes most of a second to import

    if not n:
        return Interval(math.nan, math.nan, math.nan)
    low, high = binomtest(held, n).proportion_ci(1 - LEVEL, method="exact")
    return Interval(held / n, float(low), float(high))


def _between(outer: float, inner: float, share: float) -> float:
    return float(outer) if share == 0 or outer == inner else float((1 - share) * outer + share * inner)


@lru_cache(maxsize=4096)
def _ends(n: int) -> tuple[int, float]:
    """Which order statistic the lower end is, from 1, and how far it lies towards the next one."""
    from scipy.stats import binom  # takes most of a second to import

    places = np.arange(1, n // 2 + 1)
    coverage = 1 - 2 * binom.cdf(places - 1, n, 0.5)
    if coverage[0] < 1 - LEVEL:
        return 1, 0.0
    place = int(places[coverage >= 1 - LEVEL][-1])
    outer, inner = coverage[place - 1], (coverage[place] if place < len(coverage) else 0.0)
    reach = (outer - 1 + LEVEL) / (outer - inner)
    return place, float((n - place) * reach / (place + (n - 2 * place) * reach))


class Power(NamedTuple):
    """How likely a decision is, if further clusters behave like those that were measured."""

    now: float
    """With as many clusters as there are, 0 to 1."""
    needed: int | None
    """Clusters for a power of 80 %; None where `MOST_CLUSTERS` do not suffice."""


@lru_cache(maxsize=4096)
def power_to_decide(held: int, n: int, share: float = 0.5) -> Power:
    """Power to tell on which side of `share` a chance lies, after it held in `held` of `n` clusters.

    For a share of one half this is the power of the interval of a median: a value lies on one side of a bound or on the
    other. The chance for a further cluster is taken as `(held + 1) / (n + 2)`, Laplace's rule, so that five of five do
    not count as certain.
    """
    from scipy.stats import binom

    chance, sizes = (held + 1) / (n + 2), np.arange(1, MOST_CLUSTERS + 1)
    if chance < share:
        chance, share = 1 - chance, 1 - share
    # isf gives the smallest k with P(X > k) at or below the level of one side.
    critical = binom.isf(LEVEL / 2, sizes, share)
    if share == 0.5:
        critical[FEWEST_INTERVAL - 1] = FEWEST_INTERVAL - 1  # the range of five decides, at 94 %
    power = binom.sf(critical, sizes, chance)
    enough = np.flatnonzero(power >= POWER)
    now = power[n - 1] if 0 < n <= MOST_CLUSTERS else math.nan
    return Power(float(now), int(sizes[enough[0]]) if len(enough) else None)
