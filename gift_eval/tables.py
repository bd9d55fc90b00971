"""Series of a table, long or wide: a CSV or Parquet file, or a frame in memory.

    sales.csv?date=day&id=shop&value=units,returns&frequency=D&season=7&dayfirst=yes&decimal=,

Long has a row per date and series, wide a row per date and a column per series. What the options leave open is
inferred and stated in the table's notes, or refused with a message that names file, row and column. `cells` reads
files and cells, `frequency` places dates on a grid.
"""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
import pandas as pd
from pandas.api.types import is_integer_dtype

from hrx.errors import HrxError, unknown
from hrx.files import user_path
from hrx.records.quantities import Floats, Ints

from . import frequency
from .cells import (
    DATE_NAMES,
    ID_NAMES,
    InputTable,
    as_text,
    holds_dates,
    is_empty,
    is_numeric,
    parse_dates,
    parse_numbers,
)
from .frequency import NumberGrid, Stamps, TimeGrid
from .series import Dataset, StoredSeries, TimedSeries, UnusableSeries, place
from .table_files import read_table

MOST_EMPTY = 0.5
"""A series with a larger share of steps without a row does not have that frequency."""
# Id, date and value as the forecasting libraries name them.
KNOWN_LAYOUTS = (("unique_id", "ds", "y"), ("item_id", "timestamp", "target"))


class Options(NamedTuple):
    """Options of a source; empty or None where they are to be inferred."""

    date: str = ""
    id: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    frequency: str = ""
    dayfirst: bool | None = None
    decimal: str = ""
    season: int | None = None
    """Values per season."""

    def season_of(self, step: str) -> int:
        """Values per season of a frequency, which may be empty."""
        return self.season or (frequency.season(step) if step else 1)


def parse_source(text: str) -> tuple[Path, Options]:
    """Parse `FILE` or `FILE?option=value&…`, options as in a web address: `%26`, `%3D`, `%2C`, `%25` for `&`, `=`,
    `,`, `%`. Options begin at the last `?`, unless a file has the whole text as its name.
    """
    name, mark, options = text.rpartition("?")
    if os.path.isfile(user_path(text)) or not mark:
        name, options = text, ""
    if not name:
        raise HrxError("The source names no file. Write csv:FILE or parquet:FILE.")
    if os.path.isdir(user_path(name)):
        raise HrxError(f"{name} is a directory. Give one file.")
    given: dict[str, str] = {}
    for key, _, value in (part.partition("=") for part in options.split("&") if part):
        if key not in Options._fields:
            raise HrxError(unknown("option", key, Options._fields, "Options are written ?date=NAME&value=NAME."))
        if not value:
            raise HrxError(f"The option {key} has no value. Write it as {key}=NAME.")
        if key in given:
            raise HrxError(f"An option is given twice in {options!r}. Several columns are written value=a,b.")
        given[key] = value
    return user_path(name), _as_options(given)


def _as_options(given: dict[str, str]) -> Options:
    day_first, decimal, season = given.get("dayfirst"), unquote(given.get("decimal", "")), given.get("season")
    if day_first not in (None, "yes", "no"):
        raise HrxError(f"dayfirst is {day_first!r}; write dayfirst=yes (31/1/2024) or dayfirst=no (1/31/2024).")
    if decimal not in ("", ".", ","):
        raise HrxError(f"decimal is {decimal!r}; write decimal=. or decimal=, .")
    if season is not None and not re.fullmatch(r"[1-9][0-9]{0,6}", season):
        raise HrxError(f"season is {season!r}; write the number of values per season, as in season=24; 1 for none.")
    ids, values = (
        tuple(dict.fromkeys(map(unquote, given[key].split(",")))) if key in given else () for key in ("id", "value")
    )
    step = frequency.parse(given["frequency"]).name if "frequency" in given else ""
    known_order = None if day_first is None else day_first == "yes"
    return Options(unquote(given.get("date", "")), ids, values, step, known_order, decimal, int(season or 0) or None)


class Layout(NamedTuple):
    """Columns by their role. A wide table has no `ids`: every value column is a series."""

    date: str
    ids: tuple[str, ...]
    values: tuple[str, ...]
    unused: tuple[str, ...]


def find_layout(table: InputTable, options: Options) -> Layout:
    """Return the role of each column: as the options say, else by names and content."""
    for name in (*filter(None, [options.date]), *options.id, *options.value):
        if name not in table.columns:
            raise HrxError(f"{table.file}: " + unknown("column", name, table.columns))
    known = _known_layout(table)
    date = options.date or (known[1] if known else _find_date(table))
    rest = [name for name in table.columns if name != date and not _is_index(table, name)]
    numbers = [name for name in rest if is_numeric(table.columns[name])]
    ids = options.id or ((known[0],) if known else _find_ids(table, date, rest, numbers, options))
    values = options.value
    if not values:
        free = [name for name in rest if name not in ids]
        values = (known[2],) if known else _find_values(table, free, numbers, bool(ids))
    for name in values:
        if name == date or name in ids:
            raise HrxError(f"{table.file}: column {name!r} cannot be a value and also the date or the id.")
    used = {date, *ids, *values}
    return Layout(date, ids, values, tuple(name for name in table.columns if name not in used))


def _known_layout(table: InputTable) -> tuple[str, str, str] | None:
    return next((layout for layout in KNOWN_LAYOUTS if all(name in table.columns for name in layout)), None)


def _find_date(table: InputTable) -> str:
    """Return the one column that holds dates; of several, or if none does, the one with the name of a date."""
    holding = [name for name, column in table.columns.items() if holds_dates(column)]
    named = [name for name in table.columns if name.lower() in DATE_NAMES]
    candidates = holding if len(holding) == 1 else [name for name in named if name in holding] or holding or named
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise HrxError(
            f"{table.file} has several columns that may hold the dates: {_quoted(candidates)}. Say which: "
            f"date={candidates[0]}."
        )
    raise HrxError(
        f"{table.file} has no column of dates; it has {_quoted(list(table.columns))}. Write dates like 2024-01-31, or "
        "say which column has them: date=NAME."
    )


def _find_ids(
    table: InputTable, date: str, rest: Sequence[str], numbers: Sequence[str], options: Options
) -> tuple[str, ...]:
    """Return the columns that name the series: needed where dates repeat, else one of text with the name of an id."""
    free = [name for name in rest if name not in options.value]
    texts = [name for name in free if name not in numbers and not is_empty(table.columns[name])]
    named = [name for name in free if name.lower() in ID_NAMES]
    if not table.columns[date].duplicated().any():
        return tuple(name for name in named if name in texts)[:1]
    candidates = named if len(named) == 1 else texts
    if len(candidates) > 1:
        raise HrxError(
            f"{table.file}: dates repeat, and several columns may name the series: {_quoted(candidates)}. Say which: "
            f"id={candidates[0]}, or id={','.join(candidates[:2])} where it takes both."
        )
    return tuple(candidates)


def _find_values(table: InputTable, free: Sequence[str], numbers: Sequence[str], long: bool) -> tuple[str, ...]:
    candidates = [name for name in free if name in numbers]
    if not candidates:
        raise HrxError(
            f"{table.file} has no column of numbers; beside the date it has {_quoted(free) or 'none'}. Say which "
            "column has the values: value=NAME."
        )
    if long and len(candidates) > 1:
        raise HrxError(
            f"{table.file} is long and has several columns of numbers: {_quoted(candidates)}. Say which to forecast: "
            f"value={candidates[0]}, or value={','.join(candidates[:2])} for more than one."
        )
    # An empty column of a wide table is a series without values: it is recorded, not hidden.
    return tuple(name for name in free if name in candidates or (not long and is_empty(table.columns[name])))


def _is_index(table: InputTable, name: str) -> bool:
    """Whether a column stores the whole-number index of a pandas frame, or counts the rows under the name `index`."""
    if name not in (table.index, "index") or holds_dates(table.columns[name]):
        return False
    numbers = pd.to_numeric(table.columns[name], errors="coerce")
    return bool((numbers % 1 == 0).all() if name == table.index else (numbers.diff()[1:] == 1).all())


def _quoted(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:8]]
    return ", ".join([*shown, f"… ({len(names)} in all)"] if len(names) > 8 else shown)


class DatedSeries(NamedTuple):
    """A series of a table on the grid of its frequency, and the sorted dates of its rows."""

    stored: StoredSeries
    stamps: Stamps
    grid: TimeGrid


def dated_series(table: InputTable, layout: Layout, options: Options, name: str = "") -> list[DatedSeries]:
    """Return the series of a table, each on a grid from its first date; one that does not fit has a reason instead of
    values. Two rows of one series and date are refused. `name` comes before that of each item.
    """
    named = f"series named by {_quoted(layout.ids)}, " if layout.ids else ""
    used = f"{'long' if layout.ids else 'wide'}: dates in {layout.date!r}, {named}values in {_quoted(layout.values)}"
    table.notes.append(f"{used}; not used: {_quoted(layout.unused)}" if layout.unused else used)
    names, codes = _find_series(table, layout.ids)
    dates, clock = parse_dates(table, layout.date, options.dayfirst, codes)
    values = parse_numbers(table, layout.values, options.decimal)
    order = np.lexsort((dates, codes))
    if (np.diff(order)[np.diff(codes[order]) == 0] < 0).any():
        table.notes.append("rows were not in the order of time and have been sorted")
    codes, dates, values = codes[order], dates[order], values[order]
    same = np.flatnonzero((np.diff(codes) == 0) & (np.diff(dates) == np.timedelta64(0, "s")))
    if same.size:
        series = f" of {names[codes[same[0]]]!r}" if layout.ids else ""
        first, second = sorted(table.rows[order[same[0] : same[0] + 2]].tolist())
        raise _repeated(table, layout, dates[same[0]], f"rows {first} and {second}", series, same.size)
    sections = [slice(start, stop) for start, stop in pairwise(np.searchsorted(codes, np.arange(len(names) + 1)))]
    step = options.frequency or frequency.infer([dates[section] for section in sections])
    if not step:
        raise HrxError(
            f"{table.file} has one date per series, so its frequency cannot be inferred. Give more rows, or say it: "
            "frequency=D."
        )
    table.notes.append(f"frequency {step}, {'as given' if options.frequency else 'inferred'}")
    found, empty = [], 0
    for item, section in zip(names, sections, strict=True):
        stamps, rows = dates[section], table.rows[order[section]]
        at, reason = _slots(table, layout, stamps, rows, step, bool(options.frequency))
        filled = np.empty((len(layout.values), 0)) if reason else _scatter(values[section], at)
        empty += 0 if reason else filled.shape[1] - stamps.size
        grid = TimeGrid.of(stamps, step, clock)
        for column, row in zip(layout.values, filled, strict=True):
            stored = _stored(name, item, layout.values, column, row)._replace(reason=reason)
            found.append(DatedSeries(stored, stamps, grid))
    if empty:
        table.notes.append(f"{empty} {'step has' if empty == 1 else 'steps have'} no row and count as missing")
    return found


def _find_series(table: InputTable, ids: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    """Return the names of the series in the order of the file, and each row's position among them."""
    if not ids:
        return ("",), np.zeros(len(table.rows), dtype=np.int64)
    columns = [as_text(table.columns[name]) for name in ids]
    for name, column in zip(ids, columns, strict=True):
        if (column == "").any():
            trouble = "the series has no name. Fill it in, or delete the row."
            raise table.error(int((column == "").argmax()), name, trouble)
    codes, names = pd.factorize(np.array(["/".join(cells) for cells in zip(*columns, strict=True)], dtype=object))
    return tuple(map(str, names)), codes.astype(np.int64)


def _repeated(table: InputTable, layout: Layout, stamp: np.datetime64, rows: str, series: str, count: int) -> HrxError:
    """Return the error for two rows of one date, the first of `count` such pairs."""
    time = pd.Timestamp(stamp)
    advice = "Delete one of them, or add them up"
    if not layout.ids:
        advice += "; if the file holds several series, say which column names them: id=NAME"
    # Clocks go back at night, in autumn, north or south.
    if time.month in (3, 4, 10, 11) and time.hour <= 3 and time != time.normalize():
        advice += "; if the clock went back then, write times in UTC or with their offset"
    return HrxError(
        f"{table.file}, {rows}, column {layout.date!r}: two rows{series} have the date {shown(stamp)}"
        f"{f' ({count} such pairs)' if count > 1 else ''}. {advice}."
    )


def _stored(name: str, item: str, columns: Sequence[str], column: str, values: Floats) -> StoredSeries:
    """Return the series of one of the `columns` of values: where it is the only one, the item names it alone."""
    item = "/".join(filter(None, (name, item)))
    return StoredSeries(item, values, column if len(columns) > 1 or not item else "")


def _slots(table: InputTable, layout: Layout, stamps: Stamps, rows: Ints, step: str, given: bool) -> tuple[Ints, str]:
    """Return the positions (n,) of the sorted dates of one item on the grid of its frequency, counted from the first
    date, and the reason why the item cannot be used, if there is one.
    """
    at = frequency.slots(stamps, step)
    wrong = np.flatnonzero((at < 0) | (np.diff(at, prepend=-1) == 0))
    if wrong.size:
        row, before = int(wrong[0]), max(int(wrong[0]) - 1, 0)
        distance = frequency.describe_span(stamps[row] - stamps[before])
        origin = "the frequency given" if given else "the frequency of most rows"
        raise HrxError(
            f"{table.file}, row {rows[row]}, column {layout.date!r}: {shown(stamps[row])} is {distance} after the date "
            f"before it (row {rows[before]}), which does not fit {step}, {origin}. The steps are "
            f"{frequency.common_steps(stamps)}. Correct the date, bring all rows to one frequency, or say it: "
            "frequency=NAME."
        )
    length = int(at[-1]) + 1
    if length - at.size <= MOST_EMPTY * length:
        return at, ""
    return at, (
        f"its {at.size} dates fill less than half of the {length} steps of frequency {step} between the first and "
        f"the last; its steps are {frequency.common_steps(stamps)}. Mixed frequencies cannot be used."
    )


def _scatter(values: Floats, at: Ints) -> Floats:
    """(n, C) at the sorted positions (n,) -> (C, T), NaN elsewhere."""
    full = np.full((values.shape[1], int(at[-1]) + 1), np.nan)
    full[:, at] = values.T
    return full


def shown(stamp: np.datetime64) -> str:
    """Return a date for a message, with its time where it has one."""
    text = str(stamp.astype("datetime64[s]")).replace("T", " ")
    return text.removesuffix(" 00:00:00") if text.endswith(" 00:00:00") else text.removesuffix(":00")


def open_table(kind: str, text: str | None) -> list[Dataset]:
    """Return the dataset of a table; `kind` is `csv` or `parquet`, `text` what follows the colon."""
    path, options = parse_source(text or "")
    table = read_table(path, kind)
    layout = find_layout(table, options)
    dated = dated_series(table, layout, options)
    rows = [one.stored for one in dated]
    if not any(np.isfinite(row.values).any() for row in rows):
        reason = next((row.reason for row in rows if row.reason), "all its values are missing.")
        raise HrxError(f"{table.file} has no series that can be used: {reason}")
    if options.season:
        table.notes.append(f"season {options.season}, as given")
    step, note = dated[0].grid.frequency.name, "; ".join(table.notes)
    about = (f"{Path(table.file).stem}/{step}", step, options.season_of(step), "", len(rows), rows.__getitem__)
    return [Dataset(*about, variates=len(layout.values), note=note)]


def table_series(table: InputTable, options: Options, name: str = "", dataset: str = "data") -> Iterator[TimedSeries]:
    """Yield the series of a table, each on the grid of its frequency where there are dates; without, the rows are in
    the order of time. `name` is that of the table's place in a list or dict.
    """
    named = any(name.lower() in DATE_NAMES and is_integer_dtype(column.dtype) for name, column in table.columns.items())
    if not (options.date or _known_layout(table) or named or any(map(holds_dates, table.columns.values()))):
        yield from _undated(table, options, name, dataset)
        return
    layout = find_layout(table, options)
    if is_integer_dtype(table.columns[layout.date].dtype) and layout.date.lower() != "year":
        yield from _numbered(table, layout, options, name, dataset)
        return
    for stored, stamps, grid in dated_series(table, layout, options, name):
        if stored.reason:
            series = f", series {stored.item}" if stored.item else ""
            raise UnusableSeries(f"{table.file}{series}: {stored.reason}")
        step = grid.frequency.name
        yield place(stored, f"{dataset}/{step}", step, options.season_of(step), grid, stamps)


def _undated(table: InputTable, options: Options, name: str, dataset: str) -> Iterator[TimedSeries]:
    """Yield the columns of a table without dates; its rows are in the order of time. The note of a series names a
    column with the name of a date whose cells are not dates.
    """
    listed = list(table.columns)[:8]
    if options.id or (len(table.columns) > 1 and any(column.lower() in ID_NAMES for column in table.columns)):
        raise HrxError(
            f"{table.file} names its series in a column and has no column of dates; it has {listed}. Say which column "
            "orders the rows: date=NAME."
        )
    names = options.value or [column for column, cells in table.columns.items() if is_numeric(cells)]
    if not names:
        raise HrxError(f"{table.file} has no column of numbers; it has {listed}. Say which: value=NAME.")
    notes = (
        f"{table.file}, column {column!r}: {str(cells.iloc[0])[:40]!r} is not a date, so the rows are taken in their "
        "order, without times. Write dates like 2024-01-31"
        for column, cells in table.columns.items()
        if column.lower() in DATE_NAMES and column not in names and not is_numeric(cells)
    )
    note = next(notes, "")
    for column in names:
        if column not in table.columns:
            raise HrxError(f"{table.file} has no column {column!r}; it has {listed}.")
        values = parse_numbers(table, [column], options.decimal)[:, 0]
        stored = _stored(name, "", names, column, values)
        yield place(stored, dataset, "", options.season_of(""))._replace(note=note)


def _numbered(table: InputTable, layout: Layout, options: Options, name: str, dataset: str) -> Iterator[TimedSeries]:
    """Yield the series of a table whose times are whole numbers, with the most common step of each."""
    values = parse_numbers(table, layout.values, options.decimal)
    names, codes = _find_series(table, layout.ids)
    times = table.columns[layout.date]
    if times.isna().any():
        raise table.error(int(times.isna().argmax()), layout.date, "there is no time. Fill it in, or delete the row.")
    for code, item in enumerate(names):
        rows = np.flatnonzero(codes == code)
        numbers = times.to_numpy(dtype=np.int64)[rows]
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows[order], numbers[order]
        apart = np.diff(numbers)
        if (apart == 0).any():
            twice = int((apart == 0).argmax())
            trouble = f"the time {numbers[twice]} occurs twice. Delete one row."
            raise table.error(int(rows[twice + 1]), layout.date, trouble)
        step = frequency.most_common(apart) if apart.size else 1
        at, rest = np.divmod(numbers - numbers[0], step)
        if rest.any():
            wrong = int(rest.astype(bool).argmax())
            trouble = f"the time {numbers[wrong]} does not fit the step {step} of most rows. Correct it."
            raise table.error(int(rows[wrong]), layout.date, trouble)
        if 2 * at.size < at[-1] + 1:
            few = f"its {at.size} rows fill less than half of the {at[-1] + 1} steps of {step}."
            raise UnusableSeries(f"{table.file}: {few}")
        grid = NumberGrid(int(numbers[0]), step)
        for column, row in zip(layout.values, _scatter(values[rows], at), strict=True):
            yield place(_stored(name, item, layout.values, column, row), dataset, "", options.season_of(""), grid)
