import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hrx.errors import HrxError
from hrx.gift_eval import MultivariateSeries, Series, UnusableSeries, admits, cut, refuse_extreme, refuse_missing
from hrx.gift_eval.windows import seasonal_error, seasonal_naive, split, standardise, starts, van_der_corput

settings_of_the_paper = [(96, 96), (192, 96), (320, 96), (512, 96), (512, 24), (512, 48), (512, 192)]

Request = tuple[int, int, int, int, int]


def made(values: object, season: int = 24) -> Series:
    return Series("d/H", "T1", "H", season, "", np.asarray(values, dtype=np.float64), 0)


def walk(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=length).cumsum() * 3 + 100


@st.composite
def requests(draw: st.DrawFn) -> Request:
    lookback, horizon = draw(st.integers(1, 60)), draw(st.integers(1, 40))
    length = lookback + horizon + draw(st.integers(0, 300))
    return length, lookback, horizon, draw(st.integers(1, 8)), draw(st.integers(0, 20))


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_the_test_region_is_the_last_fifth_rounded_up_at_least_a_horizon(length: int, horizon: int) -> None:
    region = length - split(length, horizon)
    assert region == min(max(math.ceil(Fraction(length, 5)), horizon), length)


def test_a_series_is_admitted_exactly_from_lookback_plus_horizon_values_on() -> None:
    assert not admits(119, 96, 24)
    assert admits(120, 96, 24)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=50), st.data())
def test_standardising_agrees_with_the_closed_form(values: list[int], data: st.DataObject) -> None:
    region = data.draw(st.integers(1, len(values)))
    past = values[:region]
    if len(set(past)) == 1:
        with pytest.raises(UnusableSeries, match="constant before its test region"):
            standardise(np.array(values, dtype=float), region)
        return
    found = standardise(np.array(values, dtype=float), region)
    mean, std = statistics.fmean(past), statistics.pstdev(past)
    assert (found.mean, found.std) == pytest.approx((mean, std))
    assert found.values.tolist() == pytest.approx([(value - mean) / std for value in values], abs=1e-9)


def test_a_constant_past_whose_deviation_rounds_to_something_tiny_is_still_constant() -> None:
    values = np.full(1001, 0.1)
    assert values.std() > 0
    with pytest.raises(UnusableSeries, match="constant before its test region"):
        standardise(values, 1000)


def test_values_too_large_to_square_are_unusable_instead_of_infinite() -> None:
    with pytest.raises(UnusableSeries, match="standard deviation"):
        standardise(np.array([1e300, -1e300, 0, 0]), 3)


def test_the_shift_sequence_begins_as_van_der_corput_has_it() -> None:
    assert [van_der_corput(i) for i in range(8)] == [0, 1 / 2, 1 / 4, 3 / 4, 1 / 8, 5 / 8, 3 / 8, 7 / 8]


@given(requests())
def test_starts_agree_with_their_definition_step_by_step(request: Request) -> None:
    length, lookback, horizon, windows, seed = request
    assume(windows > 1)
    low, high = max(split(length, horizon), lookback), length - horizon
    most = min(horizon // 2, (high - low) // windows)
    mirrored = int(format(seed, "b")[::-1], 2)
    shift = round(Fraction(most * mirrored, 2 ** len(format(seed, "b"))))
    step = Fraction(high - most - low, max(windows - 1, 1))
    expected = sorted({round(low + step * i) for i in range(windows)})
    found = starts(*request)
    # linspace may fall on the other side of an exact half.
    assert len(found) == len(expected)
    assert np.abs(found - shift - expected).max() <= 1
    assert found[0] == low + shift


@given(requests(), st.floats(0, 1, exclude_max=True))
def test_a_single_start_divides_the_possible_ones_as_its_place_says(request: Request, place: float) -> None:
    length, lookback, horizon, _, seed = request
    possible = range(max(split(length, horizon), lookback), length - horizon + 1)
    (found,) = starts(length, lookback, horizon, 1, seed, place).tolist()
    assert found == possible[int(place * len(possible))]


@given(requests())
def test_every_start_has_its_lookback_and_its_horizon_inside_the_series_and_lies_in_the_test_region(
    request: Request,
) -> None:
    length, lookback, horizon, windows, _ = request
    found = starts(*request)
    assert 1 <= len(found) <= windows
    assert found.min() >= max(split(length, horizon), lookback)
    assert found.max() + horizon <= length


@given(requests())
def test_starts_are_evenly_spaced_and_a_seed_moves_them_all_by_at_most_half_a_horizon(
    request: Request,
) -> None:
    length, lookback, horizon, windows, _ = request
    found, unshifted = starts(*request), starts(length, lookback, horizon, windows, 0)
    moves = found - unshifted
    assert len(set(moves.tolist())) == 1
    assert 0 <= moves[0] <= horizon / 2
    gaps = np.diff(found)
    assert gaps.size == 0 or gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize(("lookback", "horizon"), settings_of_the_paper)
def test_the_first_eight_seeds_give_distinct_windows_in_a_long_series(lookback: int, horizon: int) -> None:
    found = {tuple(starts(3000, lookback, horizon, 4, seed)) for seed in range(8)}
    assert len(found) == 8


def test_a_series_that_admits_one_window_gives_that_window_under_every_seed() -> None:
    for seed in range(4):
        assert starts(120, 96, 24, 4, seed).tolist() == [96]


@given(requests(), st.integers(1, 30))
def test_windows_agree_with_cutting_them_out_one_by_one(request: Request, season: int) -> None:
    length, lookback, horizon, windows, seed = request
    values = walk(length)
    region = split(length, horizon)
    if region < 2:
        return
    found = cut(made(values, season), lookback, horizon, windows, seed)
    mean, std = statistics.fmean(values[:region]), statistics.pstdev(values[:region])
    standard = [(value - mean) / std for value in values]
    for i, start in enumerate(found.starts):
        past = standard[start - lookback : start]
        assert found.x[i].tolist() == pytest.approx(past, rel=1e-6, abs=1e-8)
        assert found.y[i].tolist() == pytest.approx(standard[start : start + horizon], rel=1e-6, abs=1e-8)
        repeated = past[-season:] if season <= lookback else past[-1:]
        expected = [repeated[h % len(repeated)] for h in range(horizon)]
        assert found.seasonal[i].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-8)
    assert found.x.dtype == found.y.dtype == found.seasonal.dtype == np.float64
    lag = season if season < region else 1
    changes = [abs(standard[t] - standard[t - lag]) for t in range(lag, region)]
    assert found.seasonal_error.tolist() == pytest.approx([statistics.fmean(changes)], rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("season", [1, 7, 24, 200])
def test_the_scale_of_mase_is_the_seasonal_error_of_gluonts(season: int) -> None:
    metrics = pytest.importorskip("gluonts.evaluation.metrics", reason="gluonts is not installed")
    past = walk(160)
    expected = metrics.calculate_seasonal_error(past, freq="h", seasonality=season)
    assert seasonal_error(past[:, None], season)[0] == pytest.approx(expected, rel=1e-9)


def test_a_season_longer_than_the_lookback_falls_back_to_the_last_value() -> None:
    x = np.array([[1.0, 2.0, 3.0]])
    assert seasonal_naive(x, 4, 3).tolist() == [[1, 2, 3, 1]]
    assert seasonal_naive(x, 4, 4).tolist() == [[3, 3, 3, 3]]
    assert seasonal_naive(x, 2, 1).tolist() == [[3, 3]]


def test_the_message_for_a_short_series_has_its_length_the_length_needed_and_the_setting() -> None:
    with pytest.raises(UnusableSeries, match=r"d/H series T1.* 607 values.*512x96.* 608"):
        cut(made(walk(607)), 512, 96, 4, 0)


def test_a_constant_series_is_named() -> None:
    with pytest.raises(UnusableSeries, match=r"d/H series T1: .*constant before its test region"):
        cut(made(np.r_[np.zeros(500), walk(100)]), 96, 24, 4, 0)


def test_more_windows_than_there_are_starts_cost_no_more_than_the_starts_there_are() -> None:
    found = starts(3000, 96, 24, 10**15, 1)
    assert np.array_equal(found, np.arange(split(3000, 24), 3000 - 24 + 1))


def test_windows_that_no_machine_should_hold_are_refused_with_their_number() -> None:
    with pytest.raises(UnusableSeries, match=r"d/H series T1: 199905 windows of 512 \+ 96 .* Ask for fewer windows"):
        cut(made(walk(10**6)), 512, 96, 10**6, 0)


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        ((0, 24, 4, 0), "lookback"),
        ((96, 0, 4, 0), "horizon"),
        ((96, 24, 0, 0), "windows"),
        ((96, 24, 4, -1), "seed"),
    ],
)
def test_a_request_that_is_not_valid_is_refused_by_name(request_: tuple[int, int, int, int], name: str) -> None:
    with pytest.raises(HrxError, match=f"{name} is"):
        cut(made(walk(900)), *request_)


@given(st.integers(0, 2**32), st.sampled_from([0.2, 0.5, 0.8]), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))
def test_a_run_is_refused_exactly_where_the_filled_share_exceeds_the_limit(
    seed: int, rate: float, limit: float
) -> None:
    random = np.random.default_rng(seed)
    lookback, horizon, length = (int(random.integers(*bounds)) for bounds in ((1, 12), (1, 8), (25, 60)))
    observed = random.random((2, length)) > rate
    about = ("H", 24, "", np.zeros((2, length)), (0, 0), 0, observed)
    item = MultivariateSeries("d/H", "T1", *about, names=("a", "b"))
    filled = [[not seen for seen in row] for row in observed.tolist()]

    def share(first: int, last: int) -> Fraction:
        return Fraction(sum(row[place] for row in filled for place in range(first, last)), 2 * (last - first))

    places = starts(length, lookback, horizon, 3, 1).tolist()
    shares = [share(split(length, horizon), length), *(share(start - lookback, start) for start in places)]
    if max(shares) > limit:
        with pytest.raises(UnusableSeries, match=r"d/H series T1: \d+% of the .* are missing and would be filled in"):
            refuse_missing(item, lookback, horizon, 3, 1, limit)
    else:
        refuse_missing(item, lookback, horizon, 3, 1, limit)


def test_the_reason_has_the_share_and_the_limit() -> None:
    observed = np.ones(100, dtype=bool)
    observed[85:97] = False  # 12 of the 20 values of the test region
    series = Series("d/H", "T1", "H", 24, "", np.arange(100.0), 12, 0, observed)
    with pytest.raises(UnusableSeries, match=r"60% of the test region are missing .*; the limit is 50%"):
        refuse_missing(series, 10, 5, 2, 0, 0.5)
    refuse_missing(series, 10, 5, 2, 0, 0.9)


def test_subnormal_values_and_a_value_whose_square_overflows_get_a_sentence() -> None:
    with pytest.raises(UnusableSeries, match="standard deviation is beyond the range"):
        standardise(np.array([1e-320, 2e-320, 3e-320, 4e-320]), 3)
    values = np.arange(100.0) % 7
    values[90] = 1e30
    windows = cut(Series("d/H", "T1", "H", 24, "", values, 0), 10, 5, 6, 0)
    with pytest.raises(UnusableSeries, match=r"d/H series T1: a value of its windows lies \d\.\d*e\+29 standard"):
        refuse_extreme(windows, "d/H series T1")
