"""The statistics against closed forms, scipy and slow loops."""

import math
import random
import tracemalloc
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from helpers.constructed import runs
from scipy import stats

from hrx.reports.runs import CONFIGURATION, beats_seasonal, fold_seeds, impossible_remark, mask_impossible
from hrx.reports.statistics import (
    describe,
    is_few,
    median_interval,
    sign_test,
    trimmed_mean,
)


def _exact_distribution(n):
    """P(the median of a resample of n distinct ordered values is the k-th of them), n odd, by binomial sums."""
    half = (n + 1) // 2

    def at_most(k):
        p = Fraction(k, n)
        return sum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(half, n + 1))

    return np.array([float(at_most(k) - at_most(k - 1)) for k in range(1, n + 1)])


@pytest.mark.parametrize("n", [3, 11, 25])
def test_the_interval_ends_where_the_exact_distribution_of_resampled_medians_has_2_5_percent(n):
    ends = np.cumsum(_exact_distribution(n))
    _, low, high = median_interval(np.arange(n, dtype=float))
    assert (low, high) == (np.searchsorted(ends, 0.025), np.searchsorted(ends, 0.975))


@pytest.mark.parametrize("n", [4, 6])
def test_the_interval_of_few_values_is_that_of_all_resamples(n):
    values = np.array([0.0, 1.0, 10.0, 100.0, 1e3, 1e4])[:n]
    everything = np.median(values[np.indices([n] * n).reshape(n, -1)], axis=0)
    assert median_interval(values)[1:] == tuple(np.quantile(everything, (0.025, 0.975), method="inverted_cdf"))


@pytest.mark.parametrize("n", [12, 37])
def test_the_interval_is_that_of_an_explicit_loop_over_resamples(n):
    values = np.random.default_rng(3).standard_normal(n)
    rng = random.Random(0)
    medians = [np.median(rng.choices(list(values), k=n)) for _ in range(10_000)]
    interval = median_interval(values)
    assert interval.point == np.median(values)
    # A percentile of 10,000 resamples is itself known to about a fifth of a percentage point: 2.5 ± 0.6 is 4 of these.
    assert np.percentile(medians, 1.9) <= interval.low <= np.percentile(medians, 3.1)
    assert np.percentile(medians, 96.9) <= interval.high <= np.percentile(medians, 98.1)


@pytest.mark.parametrize("n", [12, 60])
def test_the_interval_agrees_with_scipys_on_resamples_of_its_own(n):
    values = np.random.default_rng(5).standard_t(3, size=n)
    interval = median_interval(values)
    theirs = stats.bootstrap((values,), np.median, n_resamples=20_000, method="percentile", rng=7)
    low, high = np.percentile(theirs.bootstrap_distribution, [(1.9, 96.9), (3.1, 98.1)]).T
    assert low[0] <= interval[1] <= low[1]
    assert high[0] <= interval[2] <= high[1]
    assert interval[0] == pytest.approx(np.median(values))


def test_a_description_leaves_out_what_is_missing_and_zeros_of_the_sign_test():
    found = describe([0.1, 0.2, 0.3, 0.0, -0.1, np.nan])
    assert (found.median, found.positive, found.n) == (0.1, 0.6, 5)
    assert found.p == pytest.approx(10 / 16)  # three or more of four on one side
    assert describe([]).n == 0


def test_the_interval_is_the_same_every_time_and_in_any_order():
    values = np.random.default_rng(1).standard_normal(50)
    assert median_interval(values) == median_interval(values[::-1])


def test_an_interval_needs_three_values():
    assert all(math.isnan(x) for x in median_interval([np.nan, np.inf]))
    for values in ([0.5, np.nan], [0.25, 0.75]):
        point, low, high = median_interval(values)
        assert point == 0.5
        assert math.isnan(low)
        assert math.isnan(high)
    assert median_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)


def test_beating_the_season_is_unknown_where_an_error_is_unknown(record, frame):
    errors = [(0.5, 0.6), (0.6, 0.6), (0.7, 0.6), (0.5, None), (None, 0.6)]
    runs = frame([record(seed=i, mse=mse, mse_seasonal=seasonal) for i, (mse, seasonal) in enumerate(errors)])
    assert beats_seasonal(runs).tolist() == pytest.approx([1, 0, 0, math.nan, math.nan], nan_ok=True)


def test_the_interval_of_twenty_thousand_values_takes_little_memory():
    values = np.random.default_rng(0).standard_normal(20_000)
    tracemalloc.start()
    interval = median_interval(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6
    # The median of n normal values has standard error √(π/2n).
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * math.sqrt(math.pi / 2 / 20_000), rel=0.15)


@pytest.mark.parametrize(("positive", "negative"), [(0, 0), (1, 0), (5, 5), (9, 1), (0, 12), (30, 17), (6, 5)])
def test_the_sign_test_is_the_direct_binomial_sum(positive, negative):
    n = positive + negative
    half = Fraction(1, 2)
    probability = {k: math.comb(n, k) * half**n for k in range(n + 1)}
    as_extreme = sum(p for k, p in probability.items() if abs(k - Fraction(n, 2)) >= abs(positive - Fraction(n, 2)))
    assert sign_test(positive, negative) == pytest.approx(float(as_extreme), rel=1e-13)


def test_the_sign_test_takes_thousands_of_runs():
    assert sign_test(10_000, 10_000) == 1.0
    z = 200 / math.sqrt(20_000)  # the difference of the counts, less the correction for continuity below
    normal = math.erfc((z - 1 / math.sqrt(20_000)) / math.sqrt(2))
    assert sign_test(10_100, 9_900) == pytest.approx(normal, rel=1e-3)
    assert sign_test(20_000, 0) == 0.0


def test_a_zero_is_not_positive_and_a_missing_value_is_not_counted():
    found = describe([1.0, 0.0, -1.0, 2.0, np.nan])
    assert found.positive == 0.5
    assert math.isnan(describe([]).positive)


def test_the_trimmed_mean_leaves_out_a_tenth_on_either_side():
    values = [1000.0, *range(1, 19), -1000.0, np.nan]
    assert trimmed_mean(values) == pytest.approx(np.mean(range(2, 18)))
    assert trimmed_mean([1.0, 2.0, 6.0]) == 3.0
    assert math.isnan(trimmed_mean([np.nan]))


def test_fewer_than_ten_runs_are_few():
    assert is_few(9)
    assert not is_few(10)


def test_folding_takes_the_mean_over_seeds_as_a_loop_would(record, frame):
    rng = np.random.default_rng(0)
    records = [
        record(series=f"T{series}", lookback=lookback, seed=seed, precision=precision, g_own=rng.normal(), rank=2.0)
        for series in range(3)
        for lookback in (96, 192)
        for precision in (None, 0.02)
        for seed in range(2 + series)
    ]
    expected = {}
    for one in records:
        place = (one.series, one.lookback, one.precision)
        expected.setdefault(place, []).append(one.g_own)
    folded = fold_seeds(frame(records), ["g_own", "rank"])
    assert len(folded) == len(expected) == 12
    for row in folded.to_dict("records"):
        place = (row["series"], row["lookback"], None if math.isnan(row["precision"]) else row["precision"])
        assert row["g_own"] == pytest.approx(sum(expected[place]) / len(expected[place]))
        assert row["seeds"] == len(expected[place])


@pytest.mark.parametrize("column", CONFIGURATION)
def test_runs_that_differ_in_more_than_a_seed_are_not_folded(record, frame, column):
    by_type = {int: 5, str: "other", type(None): 0.5}
    absent = {"channels": 3, "roles": "{}", "estimator_package": "captum 0.9.0"}
    other = absent.get(column, by_type[type(getattr(record(), column))])
    assert len(fold_seeds(frame([record(), record(seed=1), record(protocol_seed=1)]), ["g_own"])) == 1
    assert len(fold_seeds(frame([record(), record(**{column: other})]), ["g_own"])) == 2


def test_a_missing_value_is_left_out_of_its_mean(record, frame):
    runs = [record(g_own=None), record(seed=1, g_own=0.5), record(series="T2", g_own=None)]
    assert fold_seeds(frame(runs), ["g_own"])["g_own"].dropna().to_list() == [0.5]
    assert len(fold_seeds(frame(runs), ["g_own"])) == 2


def test_folding_nothing_gives_nothing(frame):
    assert len(fold_seeds(frame([]), ["g_own"])) == 0


def test_impossible_numbers_are_taken_out_and_all_else_stays():
    stored = runs(7, g_own=[0.1, np.inf, -np.inf, 1e200, np.nan, 1e100, -3.0], mse=[1.0] * 6 + [-2e100], rank=2.0)
    before = stored.copy()
    kept = mask_impossible(stored)
    np.testing.assert_array_equal(kept["g_own"], [0.1, np.nan, np.nan, np.nan, np.nan, 1e100, -3.0])
    np.testing.assert_array_equal(kept["mse"], [1.0] * 6 + [np.nan])
    others = [name for name in stored if name not in ("g_own", "mse")]
    pd.testing.assert_frame_equal(kept[others], before[others])
    pd.testing.assert_frame_equal(stored, before)


@pytest.mark.parametrize(
    "stored",
    [
        runs(3, g_own=[0.1, np.nan, -1e100], parity=1e200, precision=np.inf),
        runs(0),
        runs(2)[["key", "lookback"]],
    ],
)
def test_runs_of_possible_numbers_come_back_as_the_same_frame_and_without_a_remark(stored):
    assert mask_impossible(stored) is stored
    assert impossible_remark(stored) == ""


def test_the_remark_counts_runs_once_and_names_their_columns():
    stored = runs(4, g_own=[0.1, np.inf, 0.2, 1e200], mse=[0.5, 1e101, np.nan, 0.5])
    assert impossible_remark(stored) == (
        "2 of 4 scored runs hold impossible numbers (infinite, or beyond 1e+100), in g_own and mse: these are left out."
    )


def test_a_remark_about_many_columns_names_the_first_and_counts_the_rest():
    several = {f"g_distance_{d}": np.inf for d in (1, 2, 4, 8, 16, 32)}
    remark = impossible_remark(runs(1, **several, mse=np.inf, mae=np.inf))
    assert "in g_distance_1, g_distance_2, g_distance_4, g_distance_8, g_distance_16, g_distance_32, mse and mae:" in (
        remark
    )
    remark = impossible_remark(runs(1, **several, mse=np.inf, mae=np.inf, mse_zero=np.inf))
    assert "g_distance_16, g_distance_32 and 3 more columns: these are left out." in remark


def test_an_infinite_parity_stays_and_is_reported_by_itself():
    stored = runs(3, parity=[1e-7, np.inf, np.nan])
    assert mask_impossible(stored) is stored
    assert impossible_remark(stored) == "1 of 3 scored runs has an infinite parity."
    both = impossible_remark(stored.assign(g_own=np.inf))
    assert both.startswith("3 of 3 scored runs hold impossible numbers")
    assert both.endswith("in g_own: these are left out. 1 of 3 scored runs has an infinite parity.")
