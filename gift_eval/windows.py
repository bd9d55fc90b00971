"""From a series to standardised windows: split, standardise, place the forecast starts, cut.

Pure functions of arrays; the plan of an audit decides settings, number of windows and seeds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrx.errors import HrxError

from .series import Floats, MultivariateSeries, Series, UnusableSeries, naming

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
    """The n windows of one run, on the standardised scale: lookback `x` (n, L), truth `y` (n, H), position
    `starts` (n,) of the first true value in the series, the seasonal-naive forecast `seasonal` (n, H), and the
    `seasonal_error` (C,) of that forecast before the test region, by which MASE divides.

    Windows of an item with C variates have them on a last axis: (n, L, C) and (n, H, C). C is 1 for a single series.
    """

    x: Floats
    y: Floats
    starts: NDArray[np.int64]
    seasonal: Floats
    seasonal_error: Floats


def split(length: int, horizon: int) -> int:
    """Where the test region starts: it is the last 20 % of the series, rounded up to whole values, at least
    one horizon.
    """
    fifth = -(-length // 5)
    return max(length - max(fifth, horizon), 0)


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


def starts(length: int, lookback: int, horizon: int, windows: int, seed: int) -> NDArray[np.int64]:
    """At most `windows` forecast starts (n,), evenly spaced over the test region and shifted by the seed.

    The first possible start is lo = max(region start, L), the last hi = T − H. The seed shifts all of them
    together by at most m = min(H // 2, (hi − lo) // windows), along the van der Corput sequence 0, 1/2, 1/4,
    3/4, … of m; the unshifted starts end m before hi, and the spacing between starts is never below m. Halves
    round to even. A region too small for `windows` distinct starts gives fewer, and with m = 0 every seed has the
    same starts.
    """
    least = {"lookback": (lookback, 1), "horizon": (horizon, 1), "windows": (windows, 1), "seed": (seed, 0)}
    for name, (value, lowest) in least.items():
        if value < lowest:
            raise HrxError(f"{name} is {value}, but it must be {lowest} or more.")
    if not admits(length, lookback, horizon):
        raise UnusableSeries(
            f"too short: {length} values, but the setting {lookback}x{horizon} needs at least "
            f"{lookback + horizon}; ask for a shorter lookback or horizon."
        )
    low = max(split(length, horizon), lookback)
    high = length - horizon
    shift = min(horizon // 2, (high - low) // windows)
    distinct = min(windows, high - shift - low + 1)
    unshifted = np.unique(np.rint(np.linspace(low, high - shift, distinct)).astype(np.int64))
    return unshifted + round(shift * van_der_corput(seed))


def van_der_corput(index: int) -> float:
    """The binary digits of `index` mirrored at the binary point: 0, 1/2, 1/4, 3/4, 1/8, 5/8, …"""
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


def cut(series: Series, lookback: int, horizon: int, windows: int, seed: int) -> Windows:
    """The windows of one run of the setting (L, H), standardised by the values before the test region."""
    length = series.values.size
    with naming(series.label):
        first = starts(length, lookback, horizon, windows, seed)
        region = split(length, horizon)
        values = standardise(series.values, region).values
        error = seasonal_error(values[:region, None], series.season)
        return _windows(values, first, lookback, horizon, series.season, error)


def cut_item(item: MultivariateSeries, lookback: int, horizon: int, windows: int, seed: int) -> Windows:
    """The windows of one run with all variates of an item, `x` (n, L, C): the starts are those of a single series of
    this length, and every variate is standardised by its own values before the test region.
    """
    length = item.values.shape[1]
    with naming(item.label):
        first = starts(length, lookback, horizon, windows, seed)
        channels, region = [], split(length, horizon)
        for name, values in zip(item.names, item.values, strict=True):
            with naming(f"variate {name}"):
                channels.append(standardise(values, region).values)
        together = np.stack(channels, axis=1)
        error = seasonal_error(together[:region], item.season)
        return _windows(together, first, lookback, horizon, item.season, error)


def refuse_missing(
    series: Series | MultivariateSeries, lookback: int, horizon: int, windows: int, seed: int, limit: float
) -> None:
    """Raises where more than the share `limit` of the test region, or of the lookback of a window, was filled in.

    The variates of an item are counted together.
    """
    if series.observed is None or series.observed.all():
        return
    filled = ~series.observed.reshape(-1, series.observed.shape[-1])
    length = filled.shape[1]
    first = starts(length, lookback, horizon, windows, seed)
    region = slice(split(length, horizon), length)
    places = [("test region", region), *(("lookback of a window", slice(start - lookback, start)) for start in first)]
    for name, place in places:
        share = float(filled[:, place].mean())
        if share > limit:
            raise UnusableSeries(
                f"{series.label}: {share:.0%} of the {name} are missing and would be filled in; the limit is "
                f"{limit:.0%}. Give a series with fewer gaps."
            )


def refuse_extreme(windows: Windows, label: str) -> None:
    """Raises where a value of the windows is so far from the mean that a 32-bit float cannot hold its square."""
    largest = max(float(np.abs(values).max()) for values in (windows.x, windows.y))
    if not largest < LARGEST:
        raise UnusableSeries(
            f"{label}: a value of its windows lies {largest:.3g} standard deviations from the mean before the test "
            f"region; beyond {LARGEST:g} its square exceeds a 32-bit float. Correct it, or leave it empty."
        )


def _windows(
    values: Floats, first: NDArray[np.int64], lookback: int, horizon: int, season: int, error: Floats
) -> Windows:
    """(T, …) and the starts (n,) -> windows of (n, L, …) and (n, H, …)."""
    needed = first.size * (lookback + horizon) * (values.size // len(values))
    if needed > MOST_VALUES:
        raise UnusableSeries(
            f"{first.size} windows of {lookback} + {horizon} values are {needed} values; a run holds at most "
            f"{MOST_VALUES}. Ask for fewer windows."
        )
    x = values[first[:, None] + np.arange(-lookback, 0)]
    y = values[first[:, None] + np.arange(horizon)]
    return Windows(x, y, first, seasonal_naive(x, horizon, season), error)
