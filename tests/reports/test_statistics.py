"""Evidence of clusters, sign test, Holm and power: against scipy, enumeration and simulated audits."""

import itertools
import math
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy import stats

from hrx.reports.statistics import (
    LEVEL,
    MOST_PAIRS,
    Evidence,
    Interval,
    cluster_interval,
    clusters_to_decide,
    evidence,
    holm,
    interval_power,
    median_interval,
    share_interval,
    sign_test,
    sign_test_beyond,
    sign_test_power,
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


def test_values_that_are_missing_or_infinite_are_left_out() -> None:
    values = np.ones((3, 1, 1, 2))
    values[1], values[2, ..., 0] = np.nan, np.inf
    assert nested(values) == Evidence((1.0, 1.0))
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


def test_the_clusters_that_would_decide_give_a_power_of_80_percent_in_simulation() -> None:
    favoured, n = 10, 12
    needed = clusters_to_decide([1.0] * favoured + [-1.0] * (n - favoured))
    assert needed is not None
    chance = (favoured + 1) / (n + 2)
    rng = np.random.default_rng(0)

    def decided(size: int) -> float:
        # A value on the other side is so far away that an interval which tolerates none of its kind reaches it.
        drawn = np.where(rng.random((3000, size)) < chance, 1.0, -1e9)
        return float(np.mean([cluster_interval(one).low > 0 for one in drawn]))

    assert decided(needed) >= 0.78
    assert decided(needed - 3) < 0.8


def test_values_around_zero_need_more_clusters_than_are_stated() -> None:
    assert clusters_to_decide([-1.0, 1.0] * 6) is None


# Error rates. A value of a run is the sum of nested effects; the correlations are those of two series of a dataset and
# of two settings of a series, the weakest, the middle and the strongest that real audits show.
CORRELATIONS = ((0.30, 0.50), (0.52, 0.67), (0.80, 0.90))
DISTRIBUTIONS = {
    "normal": (lambda rng, size: rng.standard_normal(size)),
    "t3": (lambda rng, size: rng.standard_t(3, size)),
    "exponential": (lambda rng, size: rng.exponential(size=size) - math.log(2)),
    "lognormal": (lambda rng, size: rng.lognormal(size=size) - 1),
}  # each with the median zero


def cluster_values(
    rng: np.random.Generator, draw: str, correlations: tuple[float, float], clusters: tuple[int, ...], settings: int = 7
) -> np.ndarray:
    """`(clusters,)`: one value per cluster, which has as many series as given: cluster, series and setting effects."""
    between_series, between_settings = correlations
    make = DISTRIBUTIONS[draw]
    found = []
    for series in clusters:
        cluster = math.sqrt(between_series) * make(rng, 1)
        item = math.sqrt(between_settings - between_series) * rng.standard_normal((series, 1))
        setting = math.sqrt(1 - between_settings) * rng.standard_normal((series, settings))
        found.append(np.median(np.median(cluster + item + setting, axis=1)))
    return np.array(found)


def true_median(draw: str, correlations: tuple[float, float], clusters: tuple[int, ...]) -> float:
    """The median cluster of the population, from 20,000 clusters of these sizes."""
    rng = np.random.default_rng(99)
    sizes = tuple(rng.choice(clusters, 20_000))
    return float(np.median(cluster_values(rng, draw, correlations, sizes)))


@pytest.mark.parametrize("draw", DISTRIBUTIONS)
@pytest.mark.parametrize("correlations", CORRELATIONS)
def test_the_interval_covers_the_median_cluster(draw: str, correlations: tuple[float, float]) -> None:
    rng = np.random.default_rng(7)
    for clusters in ((1,) * 5, (3,) * 8, (1, 3, 2) * 5):
        centre = true_median(draw, correlations, clusters)
        intervals = [cluster_interval(cluster_values(rng, draw, correlations, clusters)) for _ in range(600)]
        covered = np.mean([low <= centre <= high for _, low, high in intervals])
        assert covered >= 0.90, (clusters, covered)


@pytest.mark.parametrize("draw", DISTRIBUTIONS)
def test_under_a_null_a_sign_is_claimed_in_at_most_five_percent(draw: str) -> None:
    rng = np.random.default_rng(8)
    claims = 0
    trials = 800
    for _ in range(trials):
        values = cluster_values(rng, draw, (0.52, 0.67), (1, 2, 3, 1, 2, 3, 1, 1))
        values = values - NULLS[draw]
        claims += Evidence(tuple(sorted(values)), "source").side != "undecided"
    assert claims / trials <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)


NULLS = {draw: true_median(draw, (0.52, 0.67), (1, 2, 3, 1, 2, 3, 1, 1)) for draw in DISTRIBUTIONS}


@pytest.mark.parametrize("n", range(1, 9))
def test_the_sign_test_counts_the_sign_patterns_that_are_as_extreme(n: int) -> None:
    patterns = [sum(signs) for signs in product((0, 1), repeat=n)]
    for beyond in range(n + 1):
        expected = sum(found >= beyond for found in patterns) / 2**n
        assert sign_test_beyond(beyond, n) == pytest.approx(expected)


def test_without_a_pair_nothing_is_beyond() -> None:
    assert sign_test_beyond(0, 0) == 1.0


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


@pytest.mark.parametrize(("beyond", "n", "tests"), [(9, 10, 1), (18, 21, 14), (6, 6, 2), (3, 3, 8)])
def test_the_power_of_the_sign_test_is_the_sum_over_the_counts_that_it_rejects(beyond: int, n: int, tests: int) -> None:
    chance = (beyond + 1) / (n + 2)

    def power(size: int) -> float:
        rejecting = [
            k for k in range(size + 1) if sum(comb(size, i) for i in range(k, size + 1)) / 2**size <= LEVEL / tests
        ]
        return sum(comb(size, k) * chance**k * (1 - chance) ** (size - k) for k in rejecting)

    found = sign_test_power(beyond, n, tests)
    assert found.now == pytest.approx(power(n))
    needed = next(size for size in range(1, 400) if power(size) >= 0.8)
    assert found.needed == needed


def test_the_power_of_the_sign_test_is_how_often_it_rejects_in_simulation() -> None:
    beyond, n = 12, 16
    chance = (beyond + 1) / (n + 2)
    counts = np.random.default_rng(0).binomial(n, chance, size=20_000)
    rejected = np.isin(counts, [k for k in range(n + 1) if sign_test_beyond(k, n) <= LEVEL]).mean()
    assert sign_test_power(beyond, n, 1).now == pytest.approx(rejected, abs=0.015)


def test_a_chance_of_one_half_is_never_decided() -> None:
    assert sign_test_power(3, 6, 1).needed is None


@pytest.mark.parametrize("n", [25, 100])
def test_the_power_of_an_interval_is_how_often_it_excludes_the_bound_in_simulation(n: int) -> None:
    """Medians of normal samples, whose standard error is √(π/2n): one interval of that width predicts the share."""
    error, bound = np.sqrt(np.pi / 2 / n), 0.5
    predicted = interval_power(Interval(0.0, -1.96 * error, 1.96 * error), bound, n)
    samples = np.random.default_rng(1).standard_normal((600, n))
    excluded = np.mean([not low <= bound <= high for _, low, high in map(median_interval, samples)])
    assert predicted.now == pytest.approx(excluded, abs=0.08)


def test_the_configurations_that_an_interval_needs_give_it_a_power_of_80_percent() -> None:
    estimate, n = Interval(0.1, -0.2, 0.4), 30
    needed = interval_power(estimate, 0.0, n).needed
    assert needed is not None
    narrower = np.sqrt(n / needed)
    then = Interval(0.1, 0.1 - 0.3 * narrower, 0.1 + 0.3 * narrower)
    assert interval_power(then, 0.0, needed).now == pytest.approx(0.8, abs=0.001)
    assert interval_power(estimate, 0.1, n) == (0.0, None)
    assert interval_power(Interval(0.1, -5.0, 5.0), 0.05, MOST_PAIRS).needed is None
