"""What a record stores of a run's rows and forecasts."""

import json

import numpy as np
import pytest

from hrx.records.reading import MOST_BINS, MOST_BYTES, SINGLE_LAGS, Reading, lag_bins


def matrices(windows, horizon, lookback, seed=0):
    return np.abs(np.random.default_rng(seed).standard_normal((windows, horizon, lookback)))


@pytest.mark.parametrize("longest", [1, 40, 64, 65, 119, 607, 10_000])
def test_bins_are_single_lags_up_to_32_and_at_most_64_that_cover_every_lag_once(longest):
    bins = lag_bins(longest)
    assert (bins[0], bins[-1]) == (1, longest + 1)
    assert (np.diff(bins) > 0).all()
    assert len(bins) - 1 <= MOST_BINS
    assert bins[: min(SINGLE_LAGS, longest)].tolist() == list(range(1, min(SINGLE_LAGS, longest) + 1))


def test_rows_profile_and_readers_are_those_of_their_definitions():
    windows, horizon, lookback = 3, 8, 90
    matrix, forecast = matrices(windows, horizon, lookback), np.random.default_rng(1).standard_normal((3, 8))
    matrix[1, 3] = 0  # reads nothing
    found = Reading.of(matrix, range(1, 9), [2, 4, 8], forecast)
    assert (found.steps, found.windows) == ((2, 4, 8), (0, 1, 2))
    for window in range(windows):
        for row, step in enumerate(found.steps):
            expected = np.zeros(len(found.bins) - 1)
            shares = (
                matrix[window, step - 1] / matrix[window, step - 1].sum() if matrix[window, step - 1].any() else None
            )
            for position in range(lookback):
                lag = lookback - position + step - 1
                at = next(i for i in range(len(expected)) if found.bins[i] <= lag < found.bins[i + 1])
                expected[at] += np.nan if shares is None else shares[position]
            if shares is None:
                assert np.isnan(found.rows[window, row]).all()
            else:
                np.testing.assert_allclose(found.rows[window, row], expected)
    for lag in (1, 5, 60, 90):
        shares, excesses, readers = [], [], []
        for window in range(windows):
            rows = [row / row.sum() for row in matrix[window] if row.any()]
            for step in range(1, min(lag, 8) + 1):
                row, position = matrix[window, step - 1], lookback - lag + step - 1
                if row.any():
                    share = row[position] / row.sum()
                    middle = sorted(one[position] for one in rows)[3]  # the lower median of 8 or 7 rows
                    shares.append(share)
                    excesses.append(share - middle)
                    readers.append(share >= 2 / lookback and share >= 2 * middle)
        assert found.profile[lag - 1] == pytest.approx(np.mean(shares))
        assert found.moving[lag - 1] == pytest.approx(np.mean(excesses))
        assert found.readers[lag - 1] == pytest.approx(np.mean(readers))
    np.testing.assert_array_equal(found.forecast, forecast)


def test_a_reading_survives_its_text_to_the_precision_of_half_numbers():
    made = Reading.of(matrices(4, 24, 96), range(1, 25), [1, 5, 24], np.random.default_rng(1).standard_normal((4, 24)))
    found = Reading.from_text(made.to_text())
    assert (found.lookback, found.horizon, found.steps, found.windows) == (96, 24, (1, 5, 24), (0, 1, 2, 3))
    for name in ("rows", "profile", "moving", "readers"):
        np.testing.assert_allclose(getattr(found, name), getattr(made, name), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(found.forecast, made.forecast, rtol=1e-6)


@pytest.mark.parametrize(
    ("lookback", "horizon", "windows"), [(96, 24, 32), (512, 96, 16), (512, 720, 8), (4096, 900, 2)]
)
def test_a_reading_takes_at_most_20_kilobytes_and_its_windows_are_evenly_spaced(lookback, horizon, windows):
    scored = np.linspace(1, horizon, 24).round().astype(int).tolist()
    forecast = np.random.default_rng(1).standard_normal((windows, horizon))
    found = Reading.of(matrices(windows, horizon, lookback), range(1, horizon + 1), scored, forecast)
    assert len(found.to_text()) <= MOST_BYTES
    assert found.windows[0] == 0
    assert len(set(np.diff(found.windows)) | {0}) <= 3
    assert len(found.steps) == 16


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"lookback": 1}), "not JSON"])
def test_a_text_that_is_no_reading_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        Reading.from_text(text)
