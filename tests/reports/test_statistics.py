"""Evidence of clusters, their intervals, shares and power: against scipy, enumeration and simulation."""

import itertools
import math
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy import stats

from hrx.reports.statistics import (
    MOST_CLUSTERS,
    Evidence,
    cluster_interval,
    evidence,
    holm,
    power_to_decide,
    share_interval,
    sign_test,
)


def inverted_sign_test(values: np.ndarray, level: float) -> tuple[float, float]:
    """The medians that a two-sided sign test with this level does not reject, by scipy's test at every candidate."""
    ordered = np.sort(values)
    candidates = [(a + b) / 2 for a, b in itertools.pairwise([ordered[0] - 1, *ordered, ordered[-1] + 1])]
    kept = [c for c in candidates if stats.binomtest(int((ordered > c).sum()), len(ordered)).pvalue > 1 - level]
    return ordered[ordered < min(kept)].max(), ordered[ordered > max(kept)].min()


@pytest.mark.parametrize("n", [6, 7, 8, 9, 11, 14, 20, 33, 60])
def test_the_interval_lies_between_the_two_exact_inverted_sign_tests_around_95_percent(n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n)
    exact = [1 - 2 * stats.binom.cdf(k - 1, n, 0.5) for k in range(1, n // 2 + 1)]
    wider = min(level for level in exact if level >= 0.95)
    narrower = max(level for level in exact if level < 0.95)
    outer, inner = (inverted_sign_test(values, level - 1e-9) for level in (wider, narrower))
    found = cluster_interval(values)
    assert outer[0] <= found.low <= inner[0]
    assert inner[1] <= found.high <= outer[1]
    share = (wider - 0.95) / (wider - narrower)  # Hettmansperger and Sheather's weight, written out
    k = exact.index(wider) + 1
    weight = (n - k) * share / (k + (n - 2 * k) * share)
    assert found.low == pytest.approx(outer[0] + weight * (inner[0] - outer[0]))
    assert found.high == pytest.approx(outer[1] - weight * (outer[1] - inner[1]))


def test_the_interval_of_ten_values_is_the_published_one() -> None:
    # Conover's table: for n = 10 the second and the ninth value cover 97.85 %, the third and the eighth 89.06 %.
    found = cluster_interval(np.arange(1.0, 11.0))
    assert 2 < found.low < 3
    assert 8 < found.high < 9
    share = (0.978515625 - 0.95) / (0.978515625 - 0.890625)
    weight = 8 * share / (2 + 6 * share)
    assert found == pytest.approx((5.5, 2 + weight, 9 - weight))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_fewer_than_six_clusters_have_their_range(n: int) -> None:
    values = np.arange(float(n))
    assert cluster_interval(values) == (float(np.median(values)), 0.0, n - 1.0)


def test_one_value_and_none_have_no_interval() -> None:
    assert tuple(cluster_interval([0.25])) == pytest.approx((0.25, math.nan, math.nan), nan_ok=True)
    assert all(map(math.isnan, cluster_interval([])))


def test_equal_and_infinite_values_are_exact() -> None:
    assert cluster_interval([0.3] * 9) == (0.3, 0.3, 0.3)
    found = cluster_interval([-math.inf, -math.inf, *range(8)])
    assert found.low == -math.inf
    assert found.high == pytest.approx(cluster_interval([-6.0, -5.0, *range(8)]).high)


def nested(values: np.ndarray) -> Evidence:
    """Evidence of configurations from an array (sources, datasets, series, settings)."""
    places = np.indices(values.shape).reshape(4, -1)
    datasets = [f"s{source}/{dataset}" for source, dataset in places[:2].T]
    return evidence(values.ravel(), datasets, [f"item {one}" for one in places[2]])


def test_a_cluster_has_the_median_over_series_of_the_median_over_settings() -> None:
    values = np.random.default_rng(3).standard_normal((7, 2, 3, 5))
    by_source = [np.median([np.median(series) for dataset in source for series in dataset]) for source in values]
    found = nested(values)
    assert (found.unit, found.counted) == ("source", "7 sources")
    assert found.values == pytest.approx(sorted(by_source))


def test_with_one_source_its_series_are_the_clusters_whatever_their_frequencies() -> None:
    values = np.random.default_rng(4).standard_normal((1, 2, 6, 4))
    found = nested(values)
    assert (found.unit, found.source, found.counted) == ("series", "s0", "6 series")
    frequencies = np.median(values[0], axis=2)
    assert found.values == pytest.approx(sorted(np.median(frequencies, axis=0)))


def test_repeated_runs_of_the_same_series_change_nothing() -> None:
    values = np.random.default_rng(5).standard_normal((8, 1, 3, 1))
    assert nested(np.repeat(values, 9, axis=3)) == nested(values)


def test_values_that_are_missing_are_left_out_and_an_infinite_one_is_beyond_all_others() -> None:
    values = np.ones((3, 1, 1, 2))
    values[1], values[2, ..., 0] = np.nan, np.nan
    assert nested(values) == Evidence((1.0, 1.0))
    values[2, ..., 0] = -np.inf
    assert nested(values) == Evidence((-np.inf, 1.0))
    assert nested(values[:0]) == Evidence(())
    assert math.isnan(Evidence(()).interval.point)


def test_five_of_five_do_not_decide_a_sign_and_six_of_six_do() -> None:
    assert Evidence((1.0,) * 5, "source").p == 0.0625
    assert Evidence((1.0,) * 5, "source").side == "undecided"
    assert Evidence((1.0,) * 6, "source").p == 0.03125
    assert Evidence((1.0,) * 6, "source").side == "above"
    assert Evidence((-1.0,) * 6, "source").side == "below"


def test_a_median_of_zero_is_not_decided_however_many_values_are_positive() -> None:
    half_zero = Evidence((0.0,) * 8 + tuple(np.linspace(0.01, 0.1, 7)), "source")
    assert half_zero.p < 0.05
    assert half_zero.interval.point == 0
    assert half_zero.side == "undecided"


def test_about_as_well_needs_the_whole_interval_within_the_bound() -> None:
    assert Evidence(tuple(np.linspace(-0.01, 0.01, 9)), "source").within(0.02)
    assert not Evidence((-0.01, 0.0, 0.56, 0.57, 0.58, 0.59), "source").within(0.02)  # touches zero, and is large
    assert not Evidence((0.0,) * 5, "source").within(0.02)  # too few


@pytest.mark.parametrize(("held", "n"), [(0, 1), (1, 1), (0, 8), (8, 8), (3, 8), (9, 14), (57, 60)])
def test_the_interval_of_a_share_ends_where_each_tail_of_the_binomial_has_2_5_percent(held: int, n: int) -> None:
    def at_least(share: float, k: int) -> float:
        return sum(comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(k, n + 1))

    point, low, high = share_interval(held, n)
    assert point == held / n
    assert low == 0 if held == 0 else at_least(low, held) == pytest.approx(0.025, rel=1e-4)
    assert high == 1 if held == n else 1 - at_least(high, held + 1) == pytest.approx(0.025, rel=1e-4)


def test_a_cluster_counts_towards_a_share_where_more_than_half_of_it_holds() -> None:
    assert Evidence((0.0, 0.5, 0.6, 1.0)).share == share_interval(2, 4)
    assert math.isnan(Evidence(()).share.point)


def test_a_zero_is_on_neither_side() -> None:
    assert sign_test(6, 0) == 0.03125
    assert Evidence((-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0)).p == sign_test(5, 1)


def test_the_power_is_how_often_an_interval_excludes_the_bound_in_simulation() -> None:
    found = power_to_decide(10, 12)
    assert found.needed is not None
    rng = np.random.default_rng(0)

    def decided(size: int) -> float:
        # A value on the other side is so far away that an interval which tolerates none of its kind reaches it.
        drawn = np.where(rng.random((3000, size)) < 11 / 14, 1.0, -1e9)
        return float(np.mean([cluster_interval(one).low > 0 for one in drawn]))

    assert found.now == pytest.approx(decided(12), abs=0.03)
    assert decided(found.needed) >= 0.78
    assert decided(found.needed - 3) < 0.8
    assert Evidence((-1.0,) * 2 + (1.0,) * 10).needed == found.needed


@pytest.mark.parametrize(("held", "n", "share"), [(9, 10, 0.6), (3, 14, 0.5), (20, 21, 0.6), (2, 8, 0.05)])
def test_the_power_for_a_share_is_the_sum_over_the_counts_whose_exact_interval_excludes_it(
    held: int, n: int, share: float
) -> None:
    chance = (held + 1) / (n + 2)

    def power(size: int) -> float:
        intervals = [share_interval(k, size) for k in range(size + 1)]
        excluding = [k for k, one in enumerate(intervals) if (one.low > share if chance > share else one.high < share)]
        return sum(comb(size, k) * chance**k * (1 - chance) ** (size - k) for k in excluding)

    found = power_to_decide(held, n, share)
    assert found.now == pytest.approx(power(n))
    assert found.needed == next((size for size in range(6, 400) if power(size) >= 0.8), None)


def test_five_clusters_decide_by_their_range() -> None:
    assert power_to_decide(5, 5).now == pytest.approx((6 / 7) ** 5)


def test_a_chance_of_one_half_needs_more_clusters_than_are_stated() -> None:
    assert power_to_decide(6, 12).needed is None
    assert Evidence((-1.0, 1.0) * 6).needed is None
    assert power_to_decide(1, MOST_CLUSTERS + 1).needed is not None
    assert math.isnan(power_to_decide(0, 0).now)


@given(some.lists(some.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_procedure_rejects(values: list[float]) -> None:
    """Smallest p first, each against the level over the tests that are left, until one is not rejected."""
    for level in (0.01, 0.05, 0.4):
        rejected: set[int] = set()
        for place, index in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
            if values[index] * (len(values) - place) > level:
                break
            rejected.add(index)
        assert {i for i, p in enumerate(holm(values)) if p <= level} == rejected
