"""The clustered interval against literal resampling, closed forms and simulated audits."""

import numpy as np
import pytest
from helpers.bootstrap import clustered_medians

from hrx.reports.statistics import clustered_median, median_interval


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
