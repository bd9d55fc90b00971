"""The grid that dates lie on: which frequency they have, and which step of it each of them is.

Months, quarters and years are counted by the calendar, business days by the week, everything else in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import frequency
from .table_dates import Stamps

_MINUTE, _HOUR, _DAY, _WEEK = 60, 3600, 86_400, 604_800
_SECONDS = {"W": _WEEK, "D": _DAY, "H": _HOUR, "T": _MINUTE, "S": 1}
_MONTHS = {"A": 12, "Q": 3, "M": 1}
_WORDS = (("week", _WEEK), ("day", _DAY), ("hour", _HOUR), ("minute", _MINUTE), ("second", 1))


def infer(series: Sequence[Stamps]) -> str:
    """The frequency of most steps of the series, each sorted and without repeats; empty where there is no step."""
    steps = np.concatenate([_seconds(np.diff(stamps)) for stamps in series])
    if steps.size == 0:
        return ""
    by_calendar = _months_apart(series, steps)
    if by_calendar:
        return _spell(by_calendar, _MONTHS)
    common = _most_common(steps)
    if common == _DAY and all(map(_only_weekdays, series)) and max(np.ptp(_seconds(s)) for s in series) >= 2 * _WEEK:
        return "B"
    return _spell(common, _SECONDS)


def slots(stamps: Stamps, name: str) -> NDArray[np.int64]:
    """(n,) sorted dates -> the step of the grid each is at, counted from the first; −1 where it is between steps."""
    parsed = frequency.parse(name)
    if parsed.base in _MONTHS:
        return _whole(_months(stamps) - _months(stamps[:1]), _MONTHS[parsed.base] * parsed.multiple)
    if parsed.base == "B":
        days = stamps.astype("datetime64[D]")
        # A weekend has no step of its own.
        return np.where(_weekday(stamps), _whole(np.busday_count(days[0], days), parsed.multiple), -1)
    return _whole(_seconds(stamps - stamps[0]), _SECONDS[parsed.base] * parsed.multiple)


def words(seconds: int) -> str:
    """How a person says a span: `3 days`, `15 minutes`."""
    unit, size = next((unit, size) for unit, size in _WORDS if seconds % size == 0)
    count = seconds // size
    return f"{count} {unit}{'' if count == 1 else 's'}"


def common_steps(stamps: Stamps) -> str:
    """The up to three most common steps, for a sentence: `1 hour (99 times), 1 day (20 times)`."""
    values, counts = np.unique(_seconds(np.diff(stamps)), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:3]
    return ", ".join(f"{words(int(values[i]))} ({counts[i]} {'time' if counts[i] == 1 else 'times'})" for i in order)


def _months_apart(series: Sequence[Stamps], steps: NDArray[np.int64]) -> int:
    """The most common step in months, where no month has two dates; 0 where the calendar is not what repeats."""
    # Five dates exactly 28 or 30 days apart are no months: the calendar never has four equal months in a row.
    if steps.min() < 25 * _DAY or (steps.size >= 4 and steps.min() == steps.max()):
        return 0
    apart = np.concatenate([np.diff(_months(stamps)) for stamps in series])
    return _most_common(apart) if apart.min() > 0 else 0


def _most_common(steps: NDArray[np.int64]) -> int:
    """The step that occurs most often, the smallest of those that tie."""
    values, counts = np.unique(steps, return_counts=True)
    return int(values[counts.argmax()])


def _spell(step: int, units: dict[str, int]) -> str:
    base, size = next((base, size) for base, size in units.items() if step % size == 0)
    return frequency.parse(f"{step // size}{base}").name


def _whole(distance: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    return np.where(distance % step == 0, distance // step, -1)


def _seconds(spans: NDArray[np.generic]) -> NDArray[np.int64]:
    return spans.astype(np.int64)


def _months(stamps: Stamps) -> NDArray[np.int64]:
    return stamps.astype("datetime64[M]").astype(np.int64)


def _weekday(stamps: Stamps) -> NDArray[np.bool_]:
    return np.is_busday(stamps.astype("datetime64[D]"))


def _only_weekdays(stamps: Stamps) -> bool:
    return bool(_weekday(stamps).all())
