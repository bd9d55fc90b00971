"""Clustered intervals, sign test, Holm and power: against literal resampling, enumeration and simulated audits."""

from itertools import product
from math import comb

import numpy as np
import pytest
from helpers.bootstrap import clustered_medians
from hypothesis import given
from hypothesis import strategies as some

from hrx.reports.statistics import (
    LEVEL,
    MOST_PAIRS,
    Interval,
    clustered_median,
    holm,
    interval_power,
    median_interval,
    sign_test_beyond,
    sign_test_power,
)


def audit(rng: np.random.Generator, datasets: int, series: int, runs: int, spread: tuple[float, float, float]):
    """Values with a random effect of the dataset, of the series and of the run; the true median is zero."""
    between, within, noise = spread
    values, names, items = [], [], []
    for d in range(datasets):
        level = between * rng.normal()
        for s in range(series):
            of_series = level + within * rng.normal()
            values += list(of_series + noise * rng.normal(size=runs))
            names += [f"d{d}"] * runs
            items += [f"s{s}"] * runs
    return values, names, items


def test_the_interval_is_that_of_literal_resampling() -> None:
    rng = np.random.default_rng(0)
    values, names, items = audit(rng, 6, 3, 2, (1.0, 0.5, 0.2))
    values, names, items = values[:-3], names[:-3], items[:-3]  # an uneven layout
    result = clustered_median(values, names, items, resamples=20_000)
    low, high = np.percentile(clustered_medians(values, names, items, 20_000), (2.5, 97.5))
    spread = high - low
    assert result.median == np.median(values)
    assert result.low == pytest.approx(low, abs=0.03 * spread)
    assert result.high == pytest.approx(high, abs=0.03 * spread)
    assert (result.datasets, result.series) == (6, 17)


def test_with_one_run_of_one_series_of_each_dataset_it_is_the_plain_interval() -> None:
    values = np.random.default_rng(3).normal(size=41)
    names = [f"d{i}" for i in range(41)]
    result = clustered_median(values, names, ["only"] * 41, resamples=40_000)
    plain = median_interval(values, resamples=40_000)
    assert (result.low, result.high) == pytest.approx((plain.low, plain.high), abs=0.02)


def test_repeated_runs_of_the_same_series_do_not_narrow_the_interval() -> None:
    values, names, items = audit(np.random.default_rng(4), 8, 3, 1, (1.0, 0.3, 0.0))
    once = clustered_median(values, names, items)
    often = clustered_median(np.repeat(values, 9), np.repeat(names, 9), np.repeat(items, 9))
    assert (often.low, often.high, often.p) == pytest.approx((once.low, once.high, once.p), rel=1e-12)


def test_it_covers_the_truth_where_the_plain_interval_is_far_too_narrow() -> None:
    rng = np.random.default_rng(5)
    covered = {"clustered": 0, "plain": 0}
    audits = 300
    for _ in range(audits):
        values, names, items = audit(rng, 20, 3, 4, (1.0, 0.3, 0.3))
        clustered, plain = clustered_median(values, names, items, resamples=400), median_interval(values)
        covered["clustered"] += clustered.low <= 0 <= clustered.high
        covered["plain"] += plain.low <= 0 <= plain.high
    assert covered["clustered"] >= 0.9 * audits
    assert covered["plain"] <= 0.7 * audits


def test_p_is_small_exactly_where_the_interval_excludes_zero() -> None:
    rng = np.random.default_rng(6)
    for shift in (-2.0, 0.0, 2.0):
        values, names, items = audit(rng, 12, 2, 2, (0.5, 0.2, 0.1))
        result = clustered_median(np.array(values) + shift, names, items)
        excludes = result.low > 0 or result.high < 0
        assert excludes == (result.p < 0.05)
        assert excludes == (shift != 0)


@pytest.mark.parametrize("series", [0, 1, 2])
def test_fewer_than_three_series_have_no_interval(series: int) -> None:
    result = clustered_median([0.5] * series * 4, ["d"] * series * 4, np.repeat(np.arange(series), 4))
    assert np.isnan([result.low, result.high, result.p]).all()
    assert result.series == series


def test_missing_values_are_left_out() -> None:
    values, names, items = audit(np.random.default_rng(7), 5, 2, 2, (1.0, 0.5, 0.1))
    more = clustered_median([*values, np.nan, np.inf], [*names, "x", "d0"], [*items, "s0", "s0"])
    assert more == clustered_median(values, names, items)


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
