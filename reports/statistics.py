"""Statistics of groups of runs: medians with their intervals, tests, and the power of a decision.

Everything in `reports` that computes an interval or a p value is here. `median_interval` takes each value as
independent, as the published tables do; `Evidence` has one value per cluster, as verdicts and gates do. The sign test
is exact for every distribution, tests the median, which is the figure that is shown, and reads as a count.

Runs are nested: seeds within a setting, settings within a series, series within a dataset, datasets (frequencies)
within a source. What is said about other data rests on sources, or on the series where there is only one source;
everything below is repetition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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


class GroupStatistics(NamedTuple):
    """Statistics of one quantity over `n` configurations; NaN where there are none, or too few for an interval."""

    median: float
    low: float
    high: float
    positive: float
    """Share above zero, 0 to 1."""
    p: float
    """Of the two-sided sign test."""
    n: int


def describe(values: npt.ArrayLike) -> GroupStatistics:
    """Median with its interval, share above zero, sign test and count of the finite values."""
    kept = finite(values)
    p = sign_test(int((kept > 0).sum()), int((kept < 0).sum())) if len(kept) else np.nan
    return GroupStatistics(*median_interval(kept), fraction_positive(kept), p, len(kept))


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


def median_interval(values: npt.ArrayLike) -> Interval:
    """Median and its percentile-bootstrap 95 % interval, as of infinitely many resamples; from three values on."""
    ordered = np.sort(finite(values))
    if len(ordered) < FEWEST:
        return Interval(_median_of(ordered), np.nan, np.nan)
    lower, upper, chances = _middle_pairs(len(ordered))
    medians = ordered[lower] + (ordered[upper] - ordered[lower]) / 2
    order = np.argsort(medians, kind="stable")
    ends = np.searchsorted(np.cumsum(chances[order]), (LEVEL / 2, 1 - LEVEL / 2))
    return Interval(_median_of(ordered), *map(float, medians[order][ends]))


@lru_cache(maxsize=256)
def _middle_pairs(n: int) -> tuple[Ints, Ints, Floats]:
    """Positions of the two middle values of a resample of `n` sorted values (one for an odd `n`) and their chances."""
    from scipy.special import gammaln  # takes most of a second to import
    from scipy.stats import binom

    middle = (n + 1) // 2
    first, last = binom.ppf((1e-9, 1 - 1e-9), n, 0.5).astype(np.int64)  # where a middle value may be
    at = np.arange(max(first - 1, 0), min(last + 1, n))
    # The middle value is at most the k-th where at least half of the resample is.
    chances = binom.sf(middle - 1, n, (at + 1) / n) - binom.sf(middle - 1, n, at / n)
    if n % 2:
        return at, at, chances
    # The two differ where half of the resample ends exactly at `i` and the other half begins exactly at `j`.
    i, gap = np.meshgrid(at, np.arange(1, min(n, 50)), indexing="ij")
    i, j = i[i + gap < n], (i + gap)[i + gap < n]
    ends, begins = (middle * np.log(k / n) + np.log1p(-((1 - 1 / k) ** middle)) for k in (i + 1, n - j))
    apart = np.exp(gammaln(n + 1) - 2 * gammaln(middle + 1) + ends + begins)
    together = chances - np.bincount(i - at[0], weights=apart, minlength=len(at))
    return np.r_[at, i], np.r_[at, j], np.r_[np.maximum(together, 0), apart]


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


def holm(values: Sequence[float]) -> list[float]:
    """P values after Holm's step-down correction, in the order given."""
    order = np.argsort(values, kind="stable")
    steps = np.sort(values) * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(p) for p in corrected]


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
    def known(self) -> Interval:
        """The same with NaN for the ends of a range that is no interval, below five clusters."""
        point, low, high = self.interval
        return Interval(point, low, high) if self.n >= FEWEST_INTERVAL else Interval(point, math.nan, math.nan)

    @property
    def positive(self) -> int:
        return sum(value > 0 for value in self.values)

    @property
    def negative(self) -> int:
        return sum(value < 0 for value in self.values)

    @property
    def p(self) -> float:
        """Two-sided sign test; a zero counts on neither side."""
        return sign_test(self.positive, self.negative)

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
        return power_to_decide(max(self.positive, self.negative), self.n).needed

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
        point, low, high = self.known
        interval = bracketed(low, high) + (" (94 %)" if self.n == FEWEST_INTERVAL else "")
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


def evidence(
    values: npt.ArrayLike,
    datasets: Iterable[object],
    series: Iterable[object],
    *,
    average: Callable[[Iterable[float]], float] = fmedian,
) -> Evidence:
    """One value per cluster, from the values `(n,)` of configurations: the median over series of the median of each.

    A cluster is a source, the name of a dataset before the slash; with one source its series are the clusters. Values
    that are not a number are left out; an infinite one is known to lie beyond all others. `average` is the mean for
    what is 0 or 1 in each run: a median would not see that two of five runs changed.
    """
    by_source: dict[str, list[tuple[str, float]]] = {}
    for dataset, found in by_series(values, datasets, series).items():
        values_of = [(one, average(of_series)) for one, of_series in found.items()]
        by_source.setdefault(dataset.partition("/")[0], []).extend(values_of)
    if len(by_source) == 1:
        ((source, values_of),) = by_source.items()
        by_item: dict[str, list[float]] = {}  # the frequencies of a series are no further series
        for one, value in values_of:
            by_item.setdefault(one, []).append(value)
        return Evidence(tuple(sorted(map(average, by_item.values()))), "series", source)
    return Evidence(tuple(sorted(average([value for _, value in one]) for one in by_source.values())))


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
