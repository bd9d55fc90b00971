"""Columns of a table, and the conversion of their cells to dates and numbers.

Text is converted once, under a convention that holds for a whole column, one date format and one decimal sign. A cell
that does not fit is refused with its file, row and column. `table_files` makes the columns, `tables` decides which is
what.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import (
    is_bool_dtype,
    is_datetime64_any_dtype,
    is_float_dtype,
    is_numeric_dtype,
)

from hrx.errors import HrxError
from hrx.records.quantities import Bools, Floats, Ints

from .frequency import Clock, Stamps
from .series import EXACT, FINITE, ROUNDED

DATE_NAMES = ("date", "datetime", "timestamp", "time", "ds", "day", "week", "month", "quarter", "year", "period")
ID_NAMES = ("id", "item", "item_id", "unique_id", "series", "series_id", "ticker", "symbol")
MISSING = ("", "na", "n/a", "#n/a", "nan", "null", "none", "-", "nat")
_NO_DATE = "there is no date. Fill it in, or delete the row."
_MOMENT = (
    r"^(?P<day>.+?)(?:[Tt\s]\s*(?P<clock>\d{1,2}:\d{2}(?::\d{2})?)(?:\.0+)?\s*(?P<half>[AaPp][Mm])?"
    r"\s*(?P<zone>[Zz]|UTC|utc|[+-]\d{2}(?::?\d{2})?)?)?$"
)
# A column is read under one of these groups of formats, the separators of its days written as hyphens.
_DAY_FIRST, _MONTH_FIRST = ("%d-%m-%Y", "%d-%m-%y"), ("%m-%d-%Y", "%m-%d-%y")
_EPOCH = ("seconds or milliseconds since 1970",)
_NAMED_MONTH = ("%d-%b-%Y", "%d-%b-%y", "%b-%Y", "%b-%y"), ("%b-%d-%Y", "%b-%d-%y")
_FORMATS = (("%Y-%m-%d", "%Y-%m", "%Y"), _DAY_FIRST, _MONTH_FIRST, *_NAMED_MONTH, _EPOCH)
_NUMBERLIKE = re.compile(r"[+-]?[\d.,'’\s]*\d[\d.,'’\s]*(?:[eE][+-]?\d+)?")
_OVERFLOW = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)[eE]\+?\d+|[+-]?\d+")
_WHOLE = re.compile(r"[+-]?\d{1,400}")
_GROUP_GAP = re.compile(r"(?<=\d)[\s'’](?=\d{3}(?:\D|$))")
_THOUSANDS = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d*)?(?:[eE][+-]?\d+)?")
# 1,234 alone may be a thousand or a decimal number; 0,234 is a decimal number.
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


@dataclass
class InputTable:
    """Columns of one file: text from a CSV, typed from Parquet. `rows` (N,) are row numbers as a person counts
    them: in a CSV the header is row 1. `index` names the column that stores the index of a pandas frame. `notes`
    collects what was inferred. Rows that are `ahead` (N,) were given as `future_data`.
    """

    file: str
    columns: dict[str, pd.Series]
    rows: NDArray[Any]
    index: str = ""
    notes: list[str] = field(default_factory=list)
    ahead: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def __post_init__(self) -> None:
        if not len(self.ahead):
            self.ahead = np.zeros(len(self.rows), dtype=bool)
        if not len(self.rows):
            raise HrxError(f"{self.file} has a header and no rows. Give a file with at least a date and a value.")

    def error(self, position: int, column: str, trouble: str) -> HrxError:
        """Return the error for one cell, by its position among the rows."""
        return HrxError(f"{self.file}, row {self.rows[position]}, column {column!r}: {trouble}")


def as_text(column: pd.Series) -> pd.Series:
    """Return the cells as text without the space around them; a null is empty."""
    return column.astype(object).where(column.notna(), "").astype(str).str.strip()


def holds_dates(column: pd.Series) -> bool:
    """Whether a column holds dates: by its type, or by four of five of its first cells. Bare numbers do not count."""
    if is_datetime64_any_dtype(column.dtype) or is_numeric_dtype(column.dtype):
        return bool(is_datetime64_any_dtype(column.dtype))
    cells = column.dropna()[:100].astype(str).str.strip()
    cells = cells[~cells.str.lower().isin(MISSING)]
    if all(_THOUSANDS.fullmatch(cell) or _DECIMAL_COMMA.fullmatch(cell) for cell in cells):
        return False
    parts = _split(cells)
    return any(5 * _parse(parts, formats).notna().sum() >= 4 * len(cells) for formats in _FORMATS)


def parse_dates(table: InputTable, name: str, day_first: bool | None, codes: Ints) -> tuple[Stamps, Clock | None]:
    """(N,): the column as points in time, to the second, and the clock of a column with a time zone.

    `day_first` decides what 1/2/2024 means; `codes` (N,) are the series of the rows.
    """
    column = table.columns[name]
    if not is_datetime64_any_dtype(column.dtype):
        return _parse_texts(table, name, day_first), None
    if column.isna().any():
        raise table.error(int(column.isna().argmax()), name, _NO_DATE)
    if ((column.dt.microsecond != 0) | (column.dt.nanosecond != 0)).any():
        raise HrxError(
            f"{table.file}, column {name!r}: times below a second cannot be placed on a grid. Give the values "
            "without their times, as in frame['value'].to_numpy()."
        )
    far = (column.dt.year < 1678) | (column.dt.year > 2261)
    if far.any():
        position = int(far.argmax())
        advice = "Give dates from 1678 to 2261, or the rows without dates, in the order of time."
        raise table.error(position, name, f"the date {column.iloc[position]} is out of range. {advice}")
    if column.dt.tz is None:
        return column.to_numpy("datetime64[s]"), None
    wall = column.dt.tz_localize(None)
    # Times of one hour of the day are those of a calendar; all others are counted in UTC.
    hours = (wall - wall.dt.normalize()).groupby(codes).nunique()
    clock = Clock(column.dt.tz, wall=bool((hours <= 1).all()))
    table.notes.append("times taken as the clock of their zone shows them" if clock.wall else "times taken in UTC")
    times = wall if clock.wall else column.dt.tz_convert("UTC").dt.tz_localize(None)
    return times.to_numpy("datetime64[s]"), clock


def _parse_texts(table: InputTable, name: str, day_first: bool | None) -> Stamps:
    """(N,): a column of text as points in time, in one format."""
    column = table.columns[name]
    # Dates repeat in a long table: each distinct cell is parsed once, and stands for the first row that has it.
    codes, distinct = pd.factorize(as_text(column))
    table = replace(table, rows=table.rows[np.unique(codes, return_index=True)[1]])
    cells = pd.Series(distinct)
    parts = _split(cells)
    formats = max(_FORMATS, key=lambda each: _parse(parts[:1000], each).notna().sum())
    if formats in (_DAY_FIRST, _MONTH_FIRST):
        formats = _find_order(table, name, cells, parts, day_first)
    parsed = _parse(parts, formats)
    if (bad := parsed.isna()).any():
        raise _not_a_date(table, name, cells, bad, int(bad.to_numpy()[codes].sum()))
    return _on_one_clock(table, name, parts["zone"], parsed).to_numpy("datetime64[s]")[codes]


def _split(cells: pd.Series) -> pd.DataFrame:
    """Return each cell as `moment`, the day and the clock, and `zone`; quarters and weeks as the day they begin."""
    parts = cells.str.extract(_MOMENT)
    day = parts["day"].fillna("").str.replace(r"[\s,/.]+", "-", regex=True)
    day = day.str.replace(r"^(\d{4})(\d{2})(\d{2})$", r"\1-\2-\3", regex=True)
    day = day.str.replace(r"^[Qq](\d)-?(\d{4})$", r"\2Q\1", regex=True)
    day = day.str.replace(r"^(\d{4})-?[Qq]([1-4])$", lambda m: f"{m[1]}-{3 * int(m[2]) - 2}", regex=True)
    day = day.str.replace(r"^(\d{4})-?[Ww](\d{2})(?:-?([1-7]))?$", _monday, regex=True)
    day = day.str.replace(r"([A-Za-z]{3})[a-z]*", r"\1", regex=True)
    clock = parts["clock"].fillna("0:00")
    clock = clock.where(clock.str.count(":") == 2, clock + ":00")
    if parts["half"].notna().any():
        halves = pd.to_datetime(clock + parts["half"], format="%I:%M:%S%p", errors="coerce").dt.strftime("%H:%M:%S")
        clock = clock.where(parts["half"].isna(), halves.fillna("not a time"))
    return pd.DataFrame({"moment": day + " " + clock, "zone": parts["zone"]})


def _monday(match: re.Match[str]) -> str:
    try:
        return date.fromisocalendar(int(match[1]), int(match[2]), int(match[3] or 1)).isoformat()
    except ValueError:  # pandas would carry week 53 of a shorter year into the next
        return match[0]


def _parse(parts: pd.DataFrame, formats: tuple[str, ...]) -> pd.Series:
    """Return the moments under a group of formats, by the first that fits; NaT where none does."""
    texts = parts["moment"]
    if formats is _EPOCH:
        numbers = texts.str.extract(r"^(-?(?:\d{10}|\d{13})) 0:00:00$")[0].dropna().astype("int64")
        seconds = numbers.where(numbers.abs() < 10**10, numbers // 1000)
        return pd.to_datetime(seconds, unit="s", errors="coerce").reindex(texts.index)
    parsed = pd.Series(pd.NaT, index=texts.index)
    for day in formats:
        if parsed.isna().any():
            missing = texts.where(parsed.isna())
            parsed = parsed.fillna(pd.to_datetime(missing, format=f"{day} %H:%M:%S", errors="coerce"))
    return parsed


def _find_order(
    table: InputTable, name: str, cells: pd.Series, parts: pd.DataFrame, day_first: bool | None
) -> tuple[str, ...]:
    """Return the formats with day or month first: as given, or as a date of the column shows, else refused."""
    if day_first is None:
        by_day, by_month = (_parse(parts, formats).notna() for formats in (_DAY_FIRST, _MONTH_FIRST))
        only_day, only_month = by_day & ~by_month, by_month & ~by_day
        dotted = cells[by_day | by_month].str.match(r"\d+\.\d+\.").all()
        both = only_day.any() and only_month.any()
        if both or not (only_day.any() or only_month.any() or dotted):
            position = int((only_day if both else by_day).argmax())
            trouble = "the column has both orders" if both else "no date of the column has a day above 12"
            advice = "Write 2024-01-31, or add dayfirst=yes or dayfirst=no to the source."
            cell = f"{cells[position]!r} may have the day or the month first"
            raise table.error(position, name, f"{cell}; {trouble}. {advice}")
        day_first = not only_month.any()
        table.notes.append(f"dates are {'day' if day_first else 'month'} first")
    return _DAY_FIRST if day_first else _MONTH_FIRST


def _on_one_clock(table: InputTable, name: str, zones: pd.Series, times: pd.Series) -> pd.Series:
    """Return times with one offset, or of one hour of the day, as their clock shows them; others in UTC."""
    if zones.isna().all():
        return times
    some = zones.dropna().iloc[0]
    if zones.isna().any():
        advice = "Write all of them with an offset, or none."
        raise table.error(int(zones.isna().argmax()), name, f"this time has no offset, others have {some!r}. {advice}")
    signed = zones.str.replace(r"^[A-Za-z]+$", "+00", regex=True).str.replace(":", "").str.ljust(5, "0")
    offsets = pd.to_timedelta(signed.str[:3] + ":" + signed.str[3:] + ":00")
    if offsets.nunique() == 1 or (times - times.dt.normalize()).nunique() == 1:
        table.notes.append(f"the offset of the times, such as {some}, is dropped")
        return times
    table.notes.append(f"times with {offsets.nunique()} offsets taken in UTC")
    return times - offsets


def _not_a_date(table: InputTable, name: str, cells: pd.Series, bad: pd.Series, count: int) -> HrxError:
    """Return the error for the first of `count` cells that are not dates."""
    position = int(bad.argmax())
    cell, good = cells[position], cells[~bad]
    if cell.lower() in MISSING:
        return table.error(position, name, _NO_DATE)
    if re.fullmatch(r"[2-6]\d{4}(\.\d+)?", cell):
        advice = "Format the column as a date (2024-01-31) and save it again."
        return table.error(position, name, f"{cell!r} looks like a spreadsheet's day number. {advice}")
    others = f" ({count} cells of this column are not.)" if count > 1 else ""
    expected = "Write dates like 2024-01-31 or 2024-01-31 13:00, from 1678 to 2261."
    expected = f"The others are written like {good.iloc[0]!r}." if len(good) else expected
    advice = f"{expected} If another column has the dates: date=NAME."
    return table.error(position, name, f"{cell!r} is not a date.{others} {advice}")


def is_numeric(column: pd.Series) -> bool:
    """Whether a column holds numbers: by its type, or because more than half of its filled cells look like one."""
    if is_bool_dtype(column.dtype) or is_datetime64_any_dtype(column.dtype):
        return False
    if is_numeric_dtype(column.dtype) or pd.to_numeric(column, errors="coerce").notna().all():
        return True
    cells = _texts(column)
    return bool(2 * cells.str.fullmatch(_NUMBERLIKE).sum() > (cells != "").sum())


def is_empty(column: pd.Series) -> bool:
    return bool((_texts(column) == "").all())


def parse_numbers(table: InputTable, names: Sequence[str], decimal: str) -> Floats:
    """(N, C): the columns `names` as numbers, NaN where missing. An empty `decimal` is inferred from all columns."""
    plain = {name: pd.to_numeric(table.columns[name], errors="coerce") for name in names}
    texts = {name for name in names if not is_numeric_dtype(table.columns[name].dtype)}
    odd = [name for name in names if name in texts and plain[name].isna().any()]
    commas = [cell for name in odd for cell in _texts(table.columns[name]).unique() if "," in cell]
    decimal = _find_decimal(table, commas, decimal)
    values = []
    for name, numbers in plain.items():
        # A decimal comma anywhere makes the points of every text column separators of thousands.
        if name in odd or (decimal == "," and name in texts):
            values.append(_numbers(table, name, decimal))
        else:
            values.append(numbers.to_numpy(dtype=np.float64, na_value=np.nan))
        _check_range(table, name, values[-1], decimal)
    return np.stack(values, axis=1)


def _check_range(table: InputTable, name: str, numbers: Floats, decimal: str) -> None:
    """Refuse a cell beyond the range of a float64, and a whole number that float64 would round."""
    column = table.columns[name]
    infinite = np.flatnonzero(np.isinf(numbers))
    if infinite.size:
        cell = str(column.iloc[infinite[0]])[:40]
        raise table.error(int(infinite[0]), name, f"{cell!r} is infinite as a 64-bit float; {FINITE}")
    if is_float_dtype(column.dtype):  # it was rounded when the file was written
        return
    for position in np.flatnonzero(np.abs(numbers) >= EXACT):
        cell = _GROUP_GAP.sub("", str(column.iloc[position]).strip()).replace("." if decimal == "," else ",", "")
        if _WHOLE.fullmatch(cell) and int(float(cell)) != int(cell):
            raise table.error(int(position), name, f"{cell[:40]} is too large: {ROUNDED}")


def _texts(column: pd.Series) -> pd.Series:
    """Return cells without the space around them and between groups of three digits; a missing one is empty."""
    codes, cells = pd.factorize(as_text(column))
    plain = ["" if cell.lower() in MISSING else _GROUP_GAP.sub("", cell) for cell in cells]
    return pd.Series(np.array(plain, dtype=object)[codes])


def _find_decimal(table: InputTable, commas: Sequence[str], decimal: str) -> str:
    """Return the decimal sign of the file, by the cells with a comma; a note states how commas were interpreted."""
    if decimal:
        table.notes.append(f"decimal sign {decimal!r} as given")
    if decimal or not commas:
        return decimal or "."
    thousands = next((c for c in commas if _THOUSANDS.fullmatch(c) and not _DECIMAL_COMMA.fullmatch(c)), "")
    comma = next((c for c in commas if _DECIMAL_COMMA.fullmatch(c) and not _EITHER.fullmatch(c)), "")
    either = next((c for c in commas if _EITHER.fullmatch(c)), "")
    if thousands and comma:
        raise HrxError(
            f"{table.file} writes numbers in two formats: {thousands!r} has commas between thousands, {comma!r} a "
            "decimal comma. Write all of them in one format."
        )
    if either and not (thousands or comma):
        raise HrxError(
            f"{table.file} does not say what the comma in {either!r} is: {either.replace(',', '')} or "
            f"{either.replace(',', '.')}? Add decimal=. (the comma separates thousands) or decimal=, to the source."
        )
    if comma or thousands:
        kind = "decimal commas" if comma else "thousands separators"
        table.notes.append(f"{kind} understood ({comma or thousands!r})")
    return "," if comma else "."


def _numbers(table: InputTable, name: str, decimal: str) -> Floats:
    """(N,): the cells of a column of text as numbers under one convention."""
    cells = _texts(table.columns[name])
    if decimal == ",":
        fits = cells.str.fullmatch(_DECIMAL_COMMA)
        # A point separates thousands here, so 1.5 is not a number.
        plain = cells.mask(~fits & cells.str.contains(".", regex=False), "not a number")
        plain = plain.mask(fits, cells.str.replace(".", "").str.replace(",", "."))
    else:
        plain = cells.mask(cells.str.fullmatch(_THOUSANDS), cells.str.replace(",", ""))
    numbers = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64)
    bad = np.flatnonzero(np.isnan(numbers) & (cells != "").to_numpy())
    # pandas has no number for 1e400, Python reads it as infinite, like inf.
    numbers[bad] = [float(cell) if _OVERFLOW.fullmatch(cell) else np.nan for cell in plain.iloc[bad]]
    bad = bad[np.isnan(numbers[bad])]
    if bad.size:
        others = f" ({bad.size} cells of this column are not.)" if bad.size > 1 else ""
        advice = "Write plain numbers, without units or currencies, and leave missing ones empty."
        raise table.error(int(bad[0]), name, f"{cells[bad[0]]!r} is not a number.{others} {advice}")
    return numbers
