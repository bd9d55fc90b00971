"""Lags in words: on models whose lags are known, and on noise."""

import numpy as np
import pandas as pd
import pytest

from hrx.records.reading import Reading
from hrx.reports.lags import LagReading, MainLag, read_lags

RUNS = 100
LOOKBACK, HORIZON = 96, 24


def runs(*matrices, season=24, lookback=LOOKBACK):
    """Scored runs with these matrices `(R, L)`, one window each."""
    texts = [Reading.of(m[None], range(1, len(m) + 1), [1, len(m)], np.zeros((1, len(m)))).to_text() for m in matrices]
    return pd.DataFrame({"status": "done", "lookback": lookback, "season": season, "reading": texts})


def fitted(y, lookback=LOOKBACK, horizon=HORIZON):
    """Magnitude of the weights `(H, L)` of least squares from the last values to each of the next."""
    windows = np.lib.stride_tricks.sliding_window_view(y, lookback + horizon)
    past, future = windows[:, :lookback], windows[:, lookback:]
    return np.abs(np.linalg.solve(past.T @ past + np.eye(lookback), past.T @ future)).T


def with_lag(lag, rng, n=800):
    """A series whose next value is 0.9 of the one `lag` steps before, and noise."""
    y = rng.standard_normal(n)
    for t in range(lag, n):
        y[t] = 0.9 * y[t - lag] + 0.5 * y[t]
    return y


@pytest.mark.slow
def test_the_words_name_the_planted_lag_of_a_trained_model_and_no_other():
    rng, right = np.random.default_rng(0), 0
    for _ in range(RUNS):
        lag = int(rng.integers(HORIZON, LOOKBACK - 10))
        found = read_lags(runs(fitted(with_lag(lag, rng)), season=lag if lag % 2 else 5))
        right += found.shown == str(lag) and found.rhythm == ("season" if lag % 2 or lag % 5 == 0 else "other")
    assert right >= 0.95 * RUNS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["white noise", "random walk", "random weights"])
def test_on_noise_no_lag_is_named(kind):
    rng, named = np.random.default_rng(1), 0
    for _ in range(RUNS):
        noise = rng.standard_normal(800)
        matrix = {
            "white noise": lambda: fitted(noise),  # noqa: B023 (called at once)
            "random walk": lambda: fitted(np.cumsum(noise)),  # noqa: B023
            "random weights": lambda: np.abs(rng.standard_normal((HORIZON, LOOKBACK))),
        }[kind]()
        named += bool(read_lags(runs(matrix)).lags)
    assert named <= 0.05 * RUNS


def rows(*lags, horizon=HORIZON, lookback=LOOKBACK, even=1e-3):
    """A row per step that reads these lags, where it reaches them, and a little of everything."""
    matrix = np.full((horizon, lookback), even)
    for step in range(1, horizon + 1):
        for lag in lags:
            if 0 < lag - step + 1 <= lookback:
                matrix[step - 1, lookback - (lag - step + 1)] += 1
    return matrix


def test_the_season_and_its_multiples_are_the_season_and_anything_else_is_not():
    seasonal = read_lags(runs(rows(24, 48)))
    assert (seasonal.shown, seasonal.note) == ("24, 48", "reads season 24")
    assert seasonal.sentence == "Reads the season of 24 steps: lags 24 (48 %) and 48 (48 %)."
    other = read_lags(runs(rows(30)))
    assert (other.shown, other.note) == ("30", "season 24 is not among them")
    assert other.sentence == "Reads lag 30 (91 %): another rhythm than the season of 24 steps."
    unknown = read_lags(runs(rows(30), season=1))
    assert unknown.sentence == "Reads lag 30 (91 %): no known season."
    assert unknown.note == "no season is known"


def test_reading_the_same_last_positions_at_every_step_is_no_lag():
    matrix = np.full((HORIZON, LOOKBACK), 1e-5)
    matrix[:, -8:] += 1
    found = read_lags(runs(matrix))
    assert (found.rhythm, found.half, found.shown) == ("recent", 4, "-")
    assert found.note == "mostly the last 4 values"
    matrix[:, -8:-1] = 1e-5
    assert read_lags(runs(matrix)).note == "mostly the last value"


def test_even_rows_are_spread_over_the_lookback():
    found = read_lags(runs(np.ones((HORIZON, LOOKBACK))))
    assert (found.rhythm, found.note) == ("spread", "spread over lookback")
    assert found.sentence == "Spread over the whole lookback of 96 values: no lag stands out."


def test_runs_of_the_longest_lookback_count_and_records_without_a_reading_say_so():
    short, long = runs(rows(30)), runs(rows(48, lookback=192), lookback=192)
    assert read_lags(pd.concat([short, long])).shown == "48"
    absent = read_lags(long.assign(reading=None))
    assert (absent.rhythm, absent.sentence) == ("unknown", "What it reads by lag is not stored.")
    assert read_lags(long.assign(reading="{}")).note == "lags unknown"
    assert read_lags(long[:0]).rhythm == "unknown"


@pytest.mark.parametrize(
    ("season", "lags", "rhythm"),
    [
        (7, (7,), "season"), (7, (14, 21), "season"), (7, (24, 48, 168), "other"), (12, (24, 144), "season"),
        (24, (23,), "season"), (24, (22,), "other"), (52, (51, 104), "season"), (24, (12,), "other"),
    ],
)  # fmt: skip
def test_a_lag_near_a_multiple_counts_as_seasonal_where_the_season_is_long(season, lags, rhythm):
    found = LagReading(tuple(MainLag(lag, 0.1) for lag in lags), season, 512, 100)
    assert found.rhythm == rhythm
