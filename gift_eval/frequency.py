"""Frequencies: their names, their seasons, and the grid of steps that dates lie on.

GIFT-Eval's files carry the old pandas aliases (`H`, `15T`, `W-THU`), which pandas 2 warns about and pandas 3
rejects; newer files carry the new ones. Both are parsed here without pandas and named in the old style, as the
benchmark's own names are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrx.errors import HrxError, unknown
from hrx.records.quantities import Ints

Stamps = NDArray[np.datetime64]
"""(N,) points in time, to the second."""

# Every spelling of a base period, by its old-style letter. The position of the stamp in its period (start or end,
# which weekday) does not change the season.
_SPELLINGS = {"S": "S s", "T": "T min", "H": "H h", "D": "D", "B": "B", "W": "W", "M": "M ME MS", "Q": "Q QE QS"}
_SPELLINGS |= {"A": "A Y YE AS YS"}
_BASE = {spelling: base for base, spellings in _SPELLINGS.items() for spelling in spellings.split()}

# Periods per natural season. The leaderboard's (gluonts' get_seasonality) differ for days only: they have none.
_SEASON = {"S": 3600, "T": 1440, "H": 24, "D": 7, "B": 5, "W": 1, "M": 12, "Q": 4, "A": 1}
_LEADERBOARD_SEASON = _SEASON | {"D": 1}

_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_ANCHORS = {"W": ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"), "Q": _MONTH_NAMES, "A": _MONTH_NAMES}
_PATTERN = re.compile(r"(?P<multiple>[1-9][0-9]{0,5})?(?P<spelling>[A-Za-z]+)(?:-(?P<anchor>[A-Z]{3}))?")

_MONTHS = {"A": 12, "Q": 3, "M": 1}
_SECONDS = {"W": 604_800, "D": 86_400, "H": 3600, "T": 60, "S": 1}
_WORDS = {"W": "week", "D": "day", "H": "hour", "T": "minute", "S": "second"}


@dataclass(frozen=True)
class Frequency:
    """`multiple` periods of `base` between values; `name` is GIFT-Eval's own spelling: `15T`, `H`, `W`."""

    name: str
    multiple: int
    base: str


def parse(text: str) -> Frequency:
    """The frequency that `text` spells, by its old alias or its new one; an anchor (`W-THU`) is dropped."""
    match = _PATTERN.fullmatch(text)
    base = _BASE.get(match["spelling"]) if match else None
    if match is None or base is None or (match["anchor"] and match["anchor"] not in _ANCHORS.get(base, ())):
        raise HrxError(unknown("frequency", text, _BASE, "A multiple may come first, as in 15T or 10S."))
    multiple = int(match["multiple"] or 1)
    return Frequency(f"{multiple}{base}" if multiple > 1 else base, multiple, base)


def is_frequency(text: str) -> bool:
    """Whether `text` spells a frequency: separates `us_births/D` from `m4_hourly` in a path."""
    try:
        parse(text)
    except HrxError:
        return False
    return True


def season(text: str) -> int:
    """Values per season in an audit: the base period's season over the multiple where that is whole, else 1."""
    return _values_per_season(parse(text), _SEASON)


def leaderboard_season(text: str) -> int:
    """Values per season in the official scores of GIFT-Eval, where daily data have none."""
    return _values_per_season(parse(text), _LEADERBOARD_SEASON)


def _values_per_season(frequency: Frequency, seasons: dict[str, int]) -> int:
    whole, remainder = divmod(seasons[frequency.base], frequency.multiple)
    return 1 if remainder else whole


def infer(series: Sequence[Stamps]) -> str:
    """The frequency of most steps of the series, each sorted and without repeats; empty where there is no step.

    `pandas.infer_freq` needs every step to be there; a person's table has gaps.
    """
    steps = np.concatenate([np.diff(stamps).astype(np.int64) for stamps in series])
    if steps.size == 0:
        return ""
    day, week = _SECONDS["D"], _SECONDS["W"]
    # Equal steps of 28 or 30 days are not months: the calendar never has four equal months in a row.
    if steps.min() >= 25 * day and (steps.size < 4 or steps.min() < steps.max()):
        apart = np.concatenate([np.diff(_months(stamps)) for stamps in series])
        if apart.min() > 0:
            return _name(_most_common(apart), _MONTHS)
    step = _most_common(steps)
    weekdays = all(np.is_busday(stamps.astype("datetime64[D]")).all() for stamps in series)
    if step == day and weekdays and max(np.ptp(stamps.astype(np.int64)) for stamps in series) >= 2 * week:
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
    """A span in words: `3 days`, `15 minutes`."""
    seconds = int(span.astype("timedelta64[s]").astype(np.int64))
    base = next(base for base, size in _SECONDS.items() if seconds % size == 0)
    count = seconds // _SECONDS[base]
    return f"{count} {_WORDS[base]}{'' if count == 1 else 's'}"


def common_steps(stamps: Stamps) -> str:
    """The up to three most common steps, for a message: `1 hour (99 times), 1 day (20 times)`."""
    spans, counts = np.unique(np.diff(stamps), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:3]
    return ", ".join(f"{describe_span(spans[i])} ({counts[i]} {'time' if counts[i] == 1 else 'times'})" for i in order)


def _most_common(steps: Ints) -> int:
    """The step that occurs most often, the smallest of those that tie."""
    values, counts = np.unique(steps, return_counts=True)
    return int(values[counts.argmax()])


def _name(step: int, units: dict[str, int]) -> str:
    base, size = next((base, size) for base, size in units.items() if step % size == 0)
    return parse(f"{step // size}{base}").name


def _months(stamps: Stamps) -> Ints:
    return stamps.astype("datetime64[M]").astype(np.int64)
