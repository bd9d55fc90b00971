"""Series with the time of each value: what an explanation of a series names its inputs and its forecast steps by.

A series lies on the grid of its frequency. Observed values keep the times they came with; the grid gives the times of
the gaps between them, and those after the end.
"""

from dataclasses import dataclass
from datetime import tzinfo
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from hrx.records.quantities import Ints

from . import frequency as frequencies
from .frequency import Frequency, Stamps
from .series import Series, fill, naming

_MONTHS = {"A": 12, "Q": 3, "M": 1}
_SECONDS = {"W": 604_800, "D": 86_400, "H": 3600, "T": 60, "S": 1}
_MONTH_END = 31


@dataclass(frozen=True)
class Clock:
    """How times without a zone, as a grid counts them, are times of a zone.

    `wall`: they are what the clock on the wall shows, so that a day is a day when clocks change; else they are UTC, so
    that no hour is lost or repeated.
    """

    zone: tzinfo
    wall: bool

    def place(self, times: pd.DatetimeIndex) -> pd.DatetimeIndex:
        """The times in the zone. A time that the wall clock skips is the next that exists, one that it shows twice the
        first.
        """
        if not self.wall:
            return times.tz_localize("UTC").tz_convert(self.zone)
        first = np.ones(len(times), dtype=bool)
        return times.tz_localize(self.zone, nonexistent="shift_forward", ambiguous=first)


@dataclass(frozen=True)
class TimeGrid:
    """The times of a series by position: 0 is its first value, and positions go on after the last."""

    first: pd.Timestamp
    """Without a zone."""
    frequency: Frequency
    day: int
    """Of the month, where the frequency counts months; 31 where every time is the last day of its month."""
    clock: Clock | None = None

    @classmethod
    def of(cls, stamps: Stamps, frequency: str, clock: Clock | None = None) -> "TimeGrid":
        """The grid of the sorted times `stamps` (n,), n ≥ 1."""
        index = pd.DatetimeIndex(stamps)
        day = _MONTH_END if index.is_month_end.all() else int(index.day.max())
        return cls(index[0], frequencies.parse(frequency), day, clock)

    def times(self, start: int, stop: int) -> pd.Index:
        """The times of the positions from `start` to before `stop`."""
        count = np.arange(start, stop, dtype=np.int64) * self.frequency.multiple
        times = self._counted(count).as_unit("ns")
        return times if self.clock is None else self.clock.place(times)

    def _counted(self, periods: Ints) -> pd.DatetimeIndex:
        """The times that many base periods after the first."""
        base, midnight = self.frequency.base, self.first.normalize()
        if base in _MONTHS:
            first = self.first.year * 12 + self.first.month - 1
            months = (first - 1970 * 12 + periods * _MONTHS[base]).astype("datetime64[M]")
            begin = pd.DatetimeIndex(months.astype("datetime64[s]"))
            days = np.minimum(self.day, begin.days_in_month.to_numpy()) - 1
            return pd.DatetimeIndex(begin + pd.to_timedelta(days, unit="D") + (self.first - midnight))
        if base == "B":
            days = np.busday_offset(np.datetime64(midnight, "D"), periods, roll="forward")
            return pd.DatetimeIndex(days.astype("datetime64[s]")) + (self.first - midnight)
        return pd.DatetimeIndex(self.first + pd.to_timedelta(periods * _SECONDS[base], unit="s"))


@dataclass(frozen=True)
class NumberGrid:
    """Whole numbers as times: `first`, and `step` more for each position."""

    first: int
    step: int

    def times(self, start: int, stop: int) -> pd.Index:
        """The numbers of the positions from `start` to before `stop`."""
        return pd.Index(self.first + self.step * np.arange(start, stop, dtype=np.int64))


class TimedSeries(NamedTuple):
    """A series with the time of each value."""

    series: Series
    times: pd.Index | None
    """`(T,)`; None where it has no times."""
    grid: TimeGrid | NumberGrid | None
    """Its position 0 is the first value of the series as it came, before leading missing values were dropped."""
    note: str = ""
    """What the reader of an explanation must know of how the series was read."""

    def after(self, count: int) -> pd.Index | None:
        """The times of the next `count` steps after the end."""
        if self.grid is None:
            return None
        length = self.series.dropped + self.series.values.size
        return self.grid.times(length, length + count)


class SeriesOrigin(NamedTuple):
    """What a series is called, and its frequency; empty where they are not known."""

    dataset: str
    item: str
    frequency: str = ""
    season: int = 1


class SeenDates(NamedTuple):
    """The times `(n,)` that values came with, and their positions `(n,)` in the series."""

    at: Ints
    times: pd.DatetimeIndex


def place(
    origin: SeriesOrigin, values: ArrayLike, grid: TimeGrid | NumberGrid | None = None, seen: SeenDates | None = None
) -> TimedSeries:
    """The series of values (T',) with their gaps, whose position 0 is that of the grid."""
    with naming(f"series {origin.item}"):
        filled = fill(values)
    series = Series(origin.dataset, origin.item, origin.frequency, origin.season, "", *filled)
    if grid is None:
        return TimedSeries(series, None, None)
    times = grid.times(0, filled.dropped + filled.values.size)
    if seen is not None:
        # A month's value may be dated on any day of it.
        exact = pd.Series(times)
        exact.iloc[seen.at] = seen.times
        times = pd.Index(exact)
    return TimedSeries(series, times[filled.dropped :], grid)
