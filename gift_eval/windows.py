"""Standardised windows of a series: split, standardise, place the forecast starts, cut.

Pure functions of arrays; the plan of an audit decides settings, number of windows and seeds.
"""

import hashlib
import json
from typing import NamedTuple

import numpy as np

from hrx.errors import HrxError
from hrx.records.quantities import Floats, Ints

from .series import MultivariateSeries, OfficialSplit, Series, UnusableSeries, naming, spaced

MOST_VALUES = 2**26
"""The most values in the windows of one run: half a gibibyte."""


LARGEST = 1e19
"""Standard deviations from the mean: the square of a larger value is beyond the range of a 32-bit float."""


class StandardisedValues(NamedTuple):
    """`values` (T,) less `mean`, over `std`."""

    values: Floats
    mean: float
    std: float


class Windows(NamedTuple):
    """Windows of one run, on the standardised scale: n lookbacks `x` (n, L), truth `y` (n, H), position
    `starts` (n,) of the first true value in the series, the seasonal-naive forecast `seasonal` (n, H), and the
    `seasonal_error` (C,) of that forecast before the test region, by which MASE divides.

    Windows of an item with C variates have them on a last axis: (n, L, C) and (n, H, C). C is 1 for a single series.
    """

    x: Floats
    y: Floats
    starts: Ints
    seasonal: Floats
    seasonal_error: Floats


def split(length: int, horizon: int) -> int:
    """Return where the test region starts: it is the last 20 % of the series, rounded up to whole values, at least one
    horizon.
    """
    fifth = -(-length // 5)
    return max(length - max(fifth, horizon), 0)


def test_start(series: Series | MultivariateSeries, horizon: int) -> int:
    """Return where the test region of a series starts: at its official split, else as `split` says."""
    return series.official.test if series.official else split(series.values.shape[-1], horizon)


def validation_start(series: Series, horizon: int) -> int:
    """Return where the validation split of a training starts; it ends where the test region starts.

    At its official split, else so that it is the last eighth of the values before the test region, rounded up to whole
    values, at least one horizon: with the test region, 70, 10 and 20 % of the series.
    """
    if series.official:
        return series.official.train
    before = test_start(series, horizon)
    return max(before - max(-(-before // 8), horizon), 0)


def scaling_end(series: Series | MultivariateSeries, horizon: int) -> int:
    """Return the end of the values that standardise a series: the official training rows, else the test region."""
    return series.official.train if series.official else test_start(series, horizon)


def admits(length: int, lookback: int, horizon: int) -> bool:
    """Whether a series of this length holds at least one window of the setting."""
    return length >= lookback + horizon


def standardise(values: Floats, region_start: int) -> StandardisedValues:
    """(T,) -> (T,), by the mean and the population standard deviation of `values[:region_start]` alone."""
    past = values[:region_start]
    # Rounding can give a constant past a tiny deviation instead of zero, so constancy is tested directly.
    if past.size == 0 or past.min() == past.max():
        raise UnusableSeries("the series is constant before its test region, so it cannot be standardised.")
    # A value too large to square gets the message below, not numpy's warning.
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(past.mean()), float(past.std())
    if not (np.isfinite(mean) and np.isfinite(std) and std > 0):
        raise UnusableSeries(
            f"before its test region the series has values from {past.min():g} to {past.max():g}, whose standard "
            "deviation is beyond the range of a 64-bit float, so it cannot be standardised. Divide it by a constant."
        )
    with np.errstate(over="ignore"):  # `refuse_extreme` has a message for it
        return StandardisedValues((values - mean) / std, mean, std)


def statistics(series: Series | MultivariateSeries, horizon: int) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation that standardise the windows of a series, one of each per variate."""
    end = scaling_end(series, horizon)
    scaled = [standardise(values, end) for values in np.atleast_2d(series.values)]
    return [one.mean for one in scaled], [one.std for one in scaled]


def refuse_short(length: int, lookback: int, horizon: int) -> None:
    """Raise unless a series of this length holds a window of the setting."""
    if not admits(length, lookback, horizon):
        raise UnusableSeries(
            f"too short: {length} values, but the setting {lookback}x{horizon} needs at least "
            f"{lookback + horizon}; ask for a shorter lookback or horizon."
        )


def starts(
    length: int,
    lookback: int,
    horizon: int,
    windows: int,
    seed: int,
    place: float = 0.0,
    official: OfficialSplit | None = None,
) -> Ints:
    """Return at most `windows` forecast starts (n,), evenly spaced over the test region and shifted by the seed.

    A single window has no spacing: it lies at the share `place`, 0 ≤ place < 1, of the possible starts. For several
    windows `place` has no effect.

    The first possible start is lo = max(region start, L), the last hi = T − H; a split that keeps lookbacks inside the
    test region has lo = region start + L. The seed shifts all of them together by at most
    m = min(H // 2, (hi − lo) // windows), along the van der Corput sequence 0, 1/2, 1/4, 3/4, … of m; the unshifted
    starts end m before hi, and the spacing between starts is never below m. Halves round to even. A region too small
    for `windows` distinct starts gives fewer, and with m = 0 every seed has the same starts.
    """
    least = {"lookback": (lookback, 1), "horizon": (horizon, 1), "windows": (windows, 1), "seed": (seed, 0)}
    for name, (value, lowest) in least.items():
        if value < lowest:
            raise HrxError(f"{name} is {value}, but it must be {lowest} or more.")
    refuse_short(length, lookback, horizon)
    if official and official.starts:
        possible = _own_starts(length, lookback, horizon, official)
        return possible[[int(place * possible.size)] if windows == 1 else list(spaced(possible.size, windows))]
    low, high = _first_and_last_start(length, lookback, horizon, official)
    if windows == 1:
        return np.array([low + int(place * (high - low + 1))], dtype=np.int64)
    shift = min(horizon // 2, (high - low) // windows)
    distinct = min(windows, high - shift - low + 1)
    unshifted = np.unique(np.rint(np.linspace(low, high - shift, distinct)).astype(np.int64))
    return unshifted + round(shift * van_der_corput(seed))


def _own_starts(length: int, lookback: int, horizon: int, official: OfficialSplit) -> Ints:
    """Return the starts (n,) of a benchmark's own windows that the setting fits."""
    possible = np.array([start for start in official.starts if lookback <= start <= length - horizon], dtype=np.int64)
    if not possible.size:
        raise UnusableSeries(
            f"too short: none of the {len(official.starts)} windows of the task has {lookback} values before it and "
            f"{horizon} after; ask for a shorter lookback or horizon."
        )
    return possible


def _first_and_last_start(length: int, lookback: int, horizon: int, official: OfficialSplit | None) -> tuple[int, int]:
    if official is None:
        return max(split(length, horizon), lookback), length - horizon
    low = official.test + lookback if official.lookback_inside else max(official.test, lookback)
    if low > length - horizon:
        raise UnusableSeries(
            f"too short: the official test split has {length - official.test} values, too few for a window of the "
            f"setting {lookback}x{horizon}; ask for a shorter lookback or horizon."
        )
    return low, length - horizon


def van_der_corput(index: int) -> float:
    """Mirror the binary digits of `index` at the binary point: 0, 1/2, 1/4, 3/4, 1/8, 5/8, …"""
    value, weight = 0.0, 0.5
    while index:
        value += weight * (index & 1)
        index >>= 1
        weight /= 2
    return value


def seasonal_naive(x: Floats, horizon: int, season: int) -> Floats:
    """(n, L, …) -> (n, H, …): the last season repeated, or the last value if the season exceeds the lookback."""
    lookback = x.shape[1]
    period = season if season <= lookback else 1
    return x[:, lookback - period + np.arange(horizon) % period]


def seasonal_error(past: Floats, season: int) -> Floats:
    """(T, C) -> (C,): mean absolute change over one season, as in GIFT-Eval and gluonts; over one step where the past
    is not longer than a season.
    """
    lag = season if season < len(past) else 1
    errors: Floats = np.abs(past[lag:] - past[:-lag]).mean(axis=0)
    return errors


def cut(series: Series | MultivariateSeries, lookback: int, horizon: int, windows: int, seed: int) -> Windows:
    """Return the windows of one run of the setting (L, H), standardised by the values before the test region.

    With all variates of an item, `x` is (n, L, C): several starts are those of a single series of this length, and
    every variate is standardised by its own values.
    """
    with naming(series.label):
        return _windows(series, run_starts(series, lookback, horizon, windows, seed), lookback, horizon)


def cut_region(series: Series | MultivariateSeries, lookback: int, horizon: int, count: int) -> Windows:
    """Return at most `count` windows of the setting (L, H), evenly spaced over the test region, both ends included, for
    every seed.
    """
    with naming(series.label):
        return _windows(series, region_starts(series, lookback, horizon, count), lookback, horizon)


def region_starts(series: Series | MultivariateSeries, lookback: int, horizon: int, count: int) -> Ints:
    """Return at most `count` forecast starts (n,), evenly spaced over the test region, both ends included."""
    length, official = series.values.shape[-1], series.official
    if official and official.starts:
        possible = _own_starts(length, lookback, horizon, official)
        return possible[list(spaced(possible.size, count))]
    refuse_short(length, lookback, horizon)
    low, high = _first_and_last_start(length, lookback, horizon, official)
    return np.unique(np.rint(np.linspace(low, high, min(count, high - low + 1))).astype(np.int64))


def refuse_missing(
    series: Series | MultivariateSeries, lookback: int, horizon: int, windows: int, seed: int, limit: float
) -> None:
    """Raise where more than the share `limit` of the test region, or of the lookback of a window, was filled in.

    The variates of an item are counted together.
    """
    if series.observed is None or series.observed.all():
        return
    filled = ~series.observed.reshape(-1, series.observed.shape[-1])
    first = run_starts(series, lookback, horizon, windows, seed)
    places = [("lookback of a window", slice(start - lookback, start)) for start in first]
    places.insert(0, ("test region", slice(test_start(series, horizon), None)))
    for name, place in places:
        share = float(filled[:, place].mean())
        if share > limit:
            raise UnusableSeries(
                f"{series.label}: {share:.0%} of the {name} are missing and would be filled in; the limit is "
                f"{limit:.0%}. Give a series with fewer gaps."
            )


def refuse_extreme(windows: Windows, label: str) -> None:
    """Raise where a value of the windows is so far from the mean that a 32-bit float cannot hold its square."""
    largest = max(float(np.abs(values).max()) for values in (windows.x, windows.y))
    if not largest < LARGEST:
        raise UnusableSeries(
            f"{label}: a value of its windows lies {largest:.3g} standard deviations from the mean before the test "
            f"region; beyond {LARGEST:g} its square exceeds a 32-bit float. Correct it, or leave it empty."
        )


def run_starts(series: Series | MultivariateSeries, lookback: int, horizon: int, windows: int, seed: int) -> Ints:
    """Return the forecast starts of a run. A single window lies at a place that is uniform over series and seeds, so a
    mean over series is one over the region; it follows from the name of the series, whose values include the future.
    """
    digest = hashlib.sha256(json.dumps([*series.identity, seed]).encode()).digest()
    place = int.from_bytes(digest[:6], "big") / 2**48
    return starts(series.values.shape[-1], lookback, horizon, windows, seed, place, series.official)


def _windows(series: Series | MultivariateSeries, first: Ints, lookback: int, horizon: int) -> Windows:
    """Return the windows with the starts (n,) -> (n, L, …) and (n, H, …)."""
    region, end = test_start(series, horizon), scaling_end(series, horizon)
    if isinstance(series, Series):
        values = standardise(series.values, end).values
    else:
        channels = []
        for name, variate in zip(series.names, series.values, strict=True):
            with naming(f"variate {name}"):
                channels.append(standardise(variate, end).values)
        values = np.stack(channels, axis=1)
    needed = first.size * (lookback + horizon) * (values.size // len(values))
    if needed > MOST_VALUES:
        raise UnusableSeries(
            f"{first.size} windows of {lookback} + {horizon} values are {needed} values; a run holds at most "
            f"{MOST_VALUES}. Ask for fewer windows."
        )
    x = values[first[:, None] + np.arange(-lookback, 0)]
    y = values[first[:, None] + np.arange(horizon)]
    error = seasonal_error(values[:region].reshape(region, -1), series.season)
    return Windows(x, y, first, seasonal_naive(x, horizon, series.season), error)
