"""Frequencies: their names, their seasons, and the grid of times that a series lies on.

GIFT-Eval's files have the old pandas aliases (`H`, `15T`, `W-THU`), which pandas 2 warns about and pandas 3 rejects;
newer files have the new ones. `parse` takes both and names them in the old style, as the benchmark's own names are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hrx.errors import HrxError, unknown
from hrx.records.quantities import Ints

Stamps = NDArray[np.datetime64]
"""(N,) points in time, to the second."""


class _Base(NamedTuple):
    """A base period: all its spellings, the periods of its natural season, its length, and the word for it."""

    spellings: str
    season: int
    months: int = 0
    seconds: int = 0
    anchors: tuple[str, ...] = ()
    word: str = ""


_DAY_NAMES = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
# By the old-style letter, longest first. Start or end of the period, and which weekday, do not change the season.
_BASES = {
    "A": _Base("A Y YE AS YS", 1, months=12, anchors=_MONTH_NAMES),
    "Q": _Base("Q QE QS", 4, months=3, anchors=_MONTH_NAMES),
    "M": _Base("M ME MS", 12, months=1),
    "W": _Base("W", 1, seconds=604_800, anchors=_DAY_NAMES, word="week"),
    "D": _Base("D", 7, seconds=86_400, word="day"),
    "B": _Base("B", 5),
    "H": _Base("H h", 24, seconds=3600, word="hour"),
    "T": _Base("T min", 1440, seconds=60, word="minute"),
    "S": _Base("S s", 3600, seconds=1, word="second"),
}
_MONTHS = {name: base.months for name, base in _BASES.items() if base.months}
_SECONDS = {name: base.seconds for name, base in _BASES.items() if base.seconds}
_SPELLINGS = {spelling: name for name, base in _BASES.items() for spelling in base.spellings.split()}
_PATTERN = re.compile(r"(?P<multiple>[1-9][0-9]{0,5})?(?P<spelling>[A-Za-z]+)(?:-(?P<anchor>[A-Z]{3}))?")


@dataclass(frozen=True)
class Frequency:
    """`multiple` periods of `base` between values; `name` is GIFT-Eval's own spelling: `15T`, `H`, `W`."""

    name: str
    multiple: int
    base: str


def parse(text: str) -> Frequency:
    """Return the frequency that `text` spells, by its old alias or its new one; an anchor (`W-THU`) is dropped."""
    match = _PATTERN.fullmatch(text)
    base = _SPELLINGS.get(match["spelling"]) if match else None
    if match is None or base is None or (match["anchor"] and match["anchor"] not in _BASES[base].anchors):
        raise HrxError(unknown("frequency", text, _SPELLINGS, "A multiple may come first, as in 15T or 10S."))
    multiple = int(match["multiple"] or 1)
    return Frequency(f"{multiple}{base}" if multiple > 1 else base, multiple, base)


def season(text: str) -> int:
    """Values per season in an audit: the base period's season over the multiple where that is whole, else 1."""
    frequency = parse(text)
    whole, remainder = divmod(_BASES[frequency.base].season, frequency.multiple)
    return 1 if remainder else whole


def leaderboard_season(text: str) -> int:
    """Values per season in the official scores of GIFT-Eval (gluonts' `get_seasonality`): daily data have none."""
    return 1 if parse(text).base == "D" else season(text)


def infer(series: Sequence[Stamps]) -> str:
    """Return the frequency of most steps of the series, each sorted and without repeats; empty where there is no step.

    `pandas.infer_freq` gives nothing as soon as one date is missing, and a person's table has gaps.
    """
    steps = np.concatenate([np.diff(stamps).astype(np.int64) for stamps in series])
    if steps.size == 0:
        return ""
    day = _SECONDS["D"]
    # Equal steps of 28 or 30 days are not months: the calendar never has four equal months in a row.
    if steps.min() >= 25 * day and (steps.size < 4 or steps.min() < steps.max()):
        apart = np.concatenate([np.diff(_months(stamps)) for stamps in series])
        if apart.min() > 0:
            return _name(most_common(apart), _MONTHS)
    step = most_common(steps)
    weekdays = all(np.is_busday(stamps.astype("datetime64[D]")).all() for stamps in series)
    if step == day and weekdays and max(np.ptp(stamps.astype(np.int64)) for stamps in series) >= 14 * day:
        return "B"
    return _name(step, _SECONDS)


def slots(stamps: Stamps, name: str) -> Ints:
    """(n,) sorted dates -> (n,): the step of the grid each is at, counted from the first; −1 between steps.

    Months, quarters and years are counted by the calendar, business days by the week, everything else in seconds.
    """
    frequency = parse(name)
    if frequency.base in _MONTHS:
        distance, step = _months(stamps) - _months(stamps[:1]), _MONTHS[frequency.base] * frequency.multiple
    elif frequency.base == "B":
        days = stamps.astype("datetime64[D]")
        # A weekend has no step of its own.
        distance, step = np.where(np.is_busday(days), np.busday_count(days[0], days), -1), frequency.multiple
    else:
        distance = (stamps - stamps[0]).astype("timedelta64[s]").astype(np.int64)
        step = _SECONDS[frequency.base] * frequency.multiple
    return np.where((distance >= 0) & (distance % step == 0), distance // step, -1)


def describe_span(span: np.timedelta64) -> str:
    """Return a span in words: `3 days`, `15 minutes`."""
    seconds = int(span.astype("timedelta64[s]").astype(np.int64))
    base = next(base for base, size in _SECONDS.items() if seconds % size == 0)
    count = seconds // _SECONDS[base]
    return f"{count} {_BASES[base].word}{'' if count == 1 else 's'}"


def common_steps(stamps: Stamps) -> str:
    """Return up to three most common steps, for a message: `1 hour (99 times), 1 day (20 times)`."""
    spans, counts = np.unique(np.diff(stamps), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:3]
    return ", ".join(f"{describe_span(spans[i])} ({counts[i]} {'time' if counts[i] == 1 else 'times'})" for i in order)


def most_common(steps: Ints) -> int:
    """Return the step that occurs most often, the smallest of those that tie."""
    values, counts = np.unique(steps, return_counts=True)
    return int(values[counts.argmax()])


def _name(step: int, units: dict[str, int]) -> str:
    base, size = next((base, size) for base, size in units.items() if step % size == 0)
    return parse(f"{step // size}{base}").name


def _months(stamps: Stamps) -> Ints:
    return stamps.astype("datetime64[M]").astype(np.int64)


class Clock(NamedTuple):
    """How times without a zone, as a grid counts them, are times of a zone.

    `wall`: they are what the clock on the wall shows, so that a day is a day when clocks change; else they are UTC, so
    that no hour is lost or repeated.
    """

    zone: tzinfo
    wall: bool

    def place(self, times: pd.DatetimeIndex) -> pd.DatetimeIndex:
        """Return the times in the zone. A time that the wall clock skips is the next that exists, one that it shows
        twice the first.
        """
        if not self.wall:
            return times.tz_localize("UTC").tz_convert(self.zone)
        first = np.ones(len(times), dtype=bool)
        return times.tz_localize(self.zone, nonexistent="shift_forward", ambiguous=first)


@dataclass(frozen=True)
class TimeGrid:
    """Times of a series by position: 0 is its first value, and positions go on after the last.

    `first` has no zone. Where the frequency counts months, `day` is that of the month; 31 where every time is the last
    day of its month.
    """

    first: pd.Timestamp
    frequency: Frequency
    day: int
    clock: Clock | None = None

    @classmethod
    def of(cls, stamps: Stamps, frequency: str, clock: Clock | None = None) -> "TimeGrid":
        """Return the grid of the sorted times `stamps` (n,), n ≥ 1."""
        index = pd.DatetimeIndex(stamps)
        return cls(index[0], parse(frequency), 31 if index.is_month_end.all() else int(index.day.max()), clock)

    def times(self, start: int, stop: int) -> pd.DatetimeIndex:
        """Return the times of the positions from `start` to before `stop`."""
        base, multiple = self.frequency.base, self.frequency.multiple
        if base in _MONTHS:
            months = pd.offsets.MonthBegin(_MONTHS[base] * multiple)
            begin = pd.date_range(self.first.replace(day=1), periods=stop, freq=months)[start:]
            # DateOffset(months=1) would go from 31 January by 29 February to 29 March.
            times = begin + pd.to_timedelta(np.minimum(self.day, begin.days_in_month) - 1, unit="D")
        else:
            step = pd.offsets.BDay(multiple) if base == "B" else pd.Timedelta(seconds=_SECONDS[base] * multiple)
            times = pd.date_range(self.first, periods=stop, freq=step)[start:]
        return self._place(times.to_numpy())

    def times_of(self, stamps: Stamps, length: int) -> pd.DatetimeIndex:
        """Return the times (length,) of a series whose rows have the sorted times `stamps`; a gap has that of the
        grid. A month's value may be dated on any day of it. Rows may go on after these times.
        """
        times, at = replace(self, clock=None).times(0, length).to_numpy().copy(), slots(stamps, self.frequency.name)
        times[at[at < length]] = stamps[at < length]
        return self._place(times)

    def _place(self, times: Stamps) -> pd.DatetimeIndex:
        index = pd.DatetimeIndex(times).as_unit("ns")
        return index if self.clock is None else self.clock.place(index)


@dataclass(frozen=True)
class NumberGrid:
    """Whole numbers as times: `first`, and `step` more for each position."""

    first: int
    step: int

    def times(self, start: int, stop: int) -> pd.Index:
        """Return the numbers of the positions from `start` to before `stop`."""
        return pd.Index(self.first + self.step * np.arange(start, stop, dtype=np.int64))
