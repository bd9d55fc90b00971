"""From the cells of a table to points in time, to the second.

A column is read in one way of writing, the one that fits most of its cells; a cell that does not fit is named. A
way that leaves day and month open is refused unless some cell of the column decides it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hrx.errors import HrxError

from .table_files import Table
from .table_numbers import MISSING

Stamps = NDArray[np.datetime64]

_TIME = (
    r"(?:[T ]\s*(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.0+)?)?\s*(?P<half>[AaPp][Mm])?"
    r"\s*(?P<zone>Z|UTC|[+-]\d{2}(?::?\d{2})?)?)?"
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAME = r"(?P<name>(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)\.?"
_YEAR = r"(?P<year>\d{4}|\d{2})"


def _way(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_UNORDERED = _way(r"(?P<first>\d{1,2})(?P<mark>[-/.])(?P<other>\d{1,2})[-/.]" + _YEAR + _TIME)
_EPOCH = _way(r"(?P<epoch>-?\d{10}|-?\d{13})")
_WAYS = (
    _way(r"(?P<year>\d{4})(?:[-/.](?P<month>\d{1,2})(?:[-/.](?P<day>\d{1,2})" + _TIME + ")?)?"),
    _way(r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})" + _TIME),
    _UNORDERED,
    _way(r"(?:(?P<day>\d{1,2})[ -])?" + _NAME + "[ -]" + _YEAR + _TIME),
    _way(_NAME + r" (?P<day>\d{1,2}),? " + _YEAR + _TIME),
    _way(r"(?P<year>\d{4})[- ]?Q(?P<quarter>[1-4])"),
    _way(r"Q(?P<quarter>[1-4])[- ]?(?P<year>\d{4})"),
    _way(r"(?P<year>\d{4})-?W(?P<week>\d{2})(?:-?(?P<weekday>[1-7]))?"),
    _EPOCH,
)


Groups = dict[str, str | None]


class Dates(NamedTuple):
    """`stamps` (N,) to the second, and what was found out about how they are written."""

    stamps: Stamps
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Column:
    """The distinct `cells` of a column of dates, and which of them each row has: `codes` (N,)."""

    table: Table
    name: str
    cells: list[str]
    codes: NDArray[np.int64]

    def first(self, wanted: Sequence[bool] | NDArray[np.bool_]) -> int:
        """The first row, by position, whose cell is wanted; −1 where none is."""
        found = np.flatnonzero(np.asarray(wanted, dtype=bool)[self.codes])
        return int(found[0]) if found.size else -1

    def where(self, position: int) -> str:
        """How a sentence names one cell."""
        return self.table.where(position, self.name)


def holds_dates(column: pd.Series) -> bool:
    """Whether a column holds dates by its type, or by four of five of its first cells. Bare numbers do not count."""
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return True
    if pd.api.types.is_numeric_dtype(column.dtype):
        return False
    cells = [cell for cell in (str(c).strip() for c in column.dropna()[:100]) if cell.lower() not in MISSING]
    if not cells or all(cell.replace(".", "", 1).isdecimal() for cell in cells):
        return False
    return 5 * max(sum(bool(way.fullmatch(cell)) for cell in cells) for way in _WAYS) >= 4 * len(cells)


def parse_dates(table: Table, name: str, day_first: bool | None) -> Dates:
    """The column as points in time; `day_first` decides 1/2/2024 where given."""
    series = table.columns[name]
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return _typed(table, name, series)
    codes, cells = pd.factorize(series.astype(object).fillna(""))
    column = _Column(table, name, [str(cell).strip() for cell in cells], codes)
    way = max(_WAYS, key=lambda w: sum(bool(w.fullmatch(cell)) for cell in column.cells))
    matches = [way.fullmatch(cell) for cell in column.cells]
    written: list[Groups] = [match.groupdict() if match else {} for match in matches]
    notes: list[str] = []
    if way is _UNORDERED and any(written):
        written = _ordered(column, written, day_first, notes)
    moments = [_moment(groups) if groups else None for groups in written]
    _refuse(column, [moment is None for moment in moments])
    stamps = np.array(moments, dtype="datetime64[s]")
    return Dates(_zoned(column, written, stamps, notes)[codes], tuple(notes))


def _typed(table: Table, name: str, column: pd.Series) -> Dates:
    """A column that has points in time already."""
    notes = []
    if getattr(column.dt, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
        notes.append("times taken in UTC")
    stamps = column.to_numpy(dtype="datetime64[s]")
    empty = np.flatnonzero(np.isnat(stamps))
    if empty.size:
        raise HrxError(f"{table.where(int(empty[0]), name)}: there is no date. Fill it in, or delete the row.")
    return Dates(stamps, tuple(notes))


def _refuse(column: _Column, bad: list[bool]) -> None:
    """Name the first cell that is no date, if there is one."""
    position = column.first(bad)
    if position < 0:
        return
    cell, where = column.cells[column.codes[position]], column.where(position)
    if cell.lower() in MISSING:
        raise HrxError(f"{where}: there is no date. Fill it in, or delete the row.")
    if re.fullmatch(r"[2-6]\d{4}(\.\d+)?", cell):
        raise HrxError(
            f"{where}: {cell!r} looks like a spreadsheet's day number. Format the column as a date (2024-01-31) and "
            "save it again."
        )
    count = int(np.asarray(bad)[column.codes].sum())
    others = f" ({count} cells of this column are not.)" if count > 1 else ""
    like = next((cell for cell, wrong in zip(column.cells, bad, strict=True) if not wrong), "")
    expected = f"The others are written like {like!r}." if like else "Write dates like 2024-01-31 or 2024-01-31 13:00."
    raise HrxError(f"{where}: {cell!r} is not a date.{others} {expected} If another column has the dates: date=NAME.")


def _ordered(column: _Column, written: list[Groups], day_first: bool | None, notes: list[str]) -> list[Groups]:
    """Which of the two numbers before the year is the day: as given, or as some date of the column shows."""
    if day_first is None:
        late_first, late_other = ([int(g.get(key) or 0) > 12 for g in written] for key in ("first", "other"))
        dotted = all(groups["mark"] == "." for groups in written if groups)
        if (any(late_first) and any(late_other)) or not (any(late_first) or any(late_other) or dotted):
            both = any(late_first)
            position = column.first(late_first if both else [bool(groups) for groups in written])
            trouble = "the column has both orders" if both else "no date of the column has a day above 12"
            raise HrxError(
                f"{column.where(position)}: {column.cells[column.codes[position]]!r} may have the day or the month "
                f"first; {trouble}. Write 2024-01-31, or add dayfirst=yes or dayfirst=no to the source."
            )
        day_first = not any(late_other)
        notes.append(f"dates are {'day' if day_first else 'month'} first")
    day, month = ("first", "other") if day_first else ("other", "first")
    return [{**groups, "day": groups[day], "month": groups[month]} if groups else groups for groups in written]


def _moment(groups: Groups) -> datetime | None:
    """What the parts of a written date say, without the offset; None where there is no such day or time."""

    def number(key: str, default: int) -> int:
        return int(groups.get(key) or default)

    try:
        if groups.get("epoch"):
            epoch = number("epoch", 0)
            return datetime(1970, 1, 1) + timedelta(seconds=epoch if abs(epoch) < 10**10 else epoch // 1000)
        year = number("year", 0)
        if year < 100:
            year += 1900 if year >= 69 else 2000
        if groups.get("week"):
            return datetime.fromisocalendar(year, number("week", 0), number("weekday", 1))
        month = 3 * number("quarter", 0) - 2 if groups.get("quarter") else number("month", 1)
        if name := groups.get("name"):
            month = _MONTHS.index(name[:3].lower()) + 1
        hour = number("hour", 0)
        if half := groups.get("half"):
            # 12 am is midnight and 12 pm noon.
            hour = hour % 12 + 12 * (half.lower() == "pm") if hour <= 12 else 24
        return datetime(year, month, number("day", 1), hour, number("minute", 0), number("second", 0))
    except ValueError:
        return None


def _zoned(column: _Column, written: list[Groups], stamps: Stamps, notes: list[str]) -> Stamps:
    """Times with one offset, and dates, keep their wall clock; times whose offsets differ go to UTC, where no hour is
    lost or repeated when clocks change.
    """
    zones = [groups.get("zone") for groups in written]
    some = next((zone for zone in zones if zone), None)
    if some is None:
        return stamps
    bare = column.first([not zone for zone in zones])
    if bare >= 0:
        raise HrxError(
            f"{column.where(bare)}: this time has no offset, others have {some!r}. Write all of them with an offset, "
            "or none."
        )
    offsets = np.array([_offset(str(zone)) for zone in zones], dtype="timedelta64[s]")
    differ = len(np.unique(offsets))
    if differ == 1 or (stamps == stamps.astype("datetime64[D]")).all():
        notes.append(f"the offset of the times, such as {some}, is left out")
        return stamps
    notes.append(f"times with {differ} offsets taken in UTC")
    return np.asarray(stamps - offsets)


def _offset(zone: str) -> int:
    """Seconds east of UTC."""
    digits = re.sub(r"\D", "", zone)
    seconds = 3600 * int(digits[:2] or 0) + 60 * int(digits[2:] or 0)
    return -seconds if zone.startswith("-") else seconds
