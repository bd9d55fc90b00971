"""Which column of a table is what: the date, what names the series, the values. By what was said, else by content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from hrx.errors import HrxError, unknown

from .table_dates import holds_dates
from .table_files import Table
from .table_numbers import is_empty, is_numeric
from .table_options import Options

_DATE_NAMES = ("date", "datetime", "timestamp", "time", "ds", "day", "week", "month", "quarter", "year", "period")
_ID_NAMES = ("id", "item", "item_id", "unique_id", "series", "series_id", "ticker", "symbol")


@dataclass(frozen=True)
class Layout:
    """The columns by what they are. A wide table has no `ids`: every value column is a series."""

    date: str
    ids: tuple[str, ...]
    values: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def note(self) -> str:
        """What was found, in half a sentence."""
        series = f"series named by {_quoted(self.ids)}, " if self.ids else ""
        said = f"{'long' if self.ids else 'wide'}: dates in {self.date!r}, {series}values in {_quoted(self.values)}"
        return f"{said}; not used: {_quoted(self.left_out)}" if self.left_out else said


def lay_out(table: Table, options: Options) -> Layout:
    """The columns' parts, as said in `options` and otherwise by names and content."""
    for name in (*filter(None, [options.date]), *options.id, *options.value):
        if name not in table.columns:
            raise HrxError(f"{table.file}: " + unknown("column", name, table.columns))
    date = options.date or _date(table)
    rest = [name for name in table.columns if name != date and not _is_counter(name, table.columns[name])]
    numbers = [name for name in rest if is_numeric(table.columns[name])]
    ids = options.id or _ids(table, date, rest, numbers, options)
    values = options.value or _values(table, [name for name in rest if name not in ids], numbers, bool(ids))
    for name in values:
        if name == date or name in ids:
            raise HrxError(f"{table.file}: column {name!r} cannot be a value and also the date or the id.")
    used = {date, *ids, *values}
    return Layout(date, ids, values, tuple(name for name in table.columns if name not in used))


def _date(table: Table) -> str:
    """The one column that holds dates; of several, or if none does, the one that is called like one."""
    holding = [name for name, column in table.columns.items() if holds_dates(column)]
    called = [name for name in table.columns if name.lower() in _DATE_NAMES]
    candidates = holding if len(holding) == 1 else [name for name in called if name in holding] or holding or called
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


def _ids(table: Table, date: str, rest: Sequence[str], numbers: Sequence[str], options: Options) -> tuple[str, ...]:
    """What names the series: needed where dates repeat, and taken where a column is called like it."""
    free = [name for name in rest if name not in options.value]
    texts = [name for name in free if name not in numbers and not is_empty(table.columns[name])]
    called = [name for name in free if name.lower() in _ID_NAMES]
    repeats = bool(table.columns[date].duplicated().any())
    if not repeats:
        return tuple(name for name in called if name in texts)[:1]
    candidates = called if len(called) == 1 else texts
    if len(candidates) > 1:
        raise HrxError(
            f"{table.file}: dates repeat, and several columns may name the series: {_quoted(candidates)}. Say which: "
            f"id={candidates[0]}, or id={','.join(candidates[:2])} where it takes both."
        )
    return tuple(candidates)


def _values(table: Table, rest: Sequence[str], numbers: Sequence[str], long: bool) -> tuple[str, ...]:
    found = [name for name in rest if name in numbers]
    if not found:
        raise HrxError(
            f"{table.file} has no column of numbers; beside the date it has {_quoted(rest) or 'none'}. Say which "
            "column has the values: value=NAME."
        )
    if long and len(found) > 1:
        raise HrxError(
            f"{table.file} is long and has several columns of numbers: {_quoted(found)}. Say which to forecast: "
            f"value={found[0]}, or value={','.join(found[:2])} for more than one."
        )
    # An empty column of a wide table is a series without values, which is recorded and not hidden.
    return tuple(name for name in rest if name in found or (not long and is_empty(table.columns[name])))


def _is_counter(name: str, column: pd.Series) -> bool:
    """Whether a column without a name only numbers the rows, as pandas' to_csv adds it."""
    if name not in ("column 1", "index", "__index_level_0__"):
        return False
    numbers = pd.to_numeric(column, errors="coerce")
    return bool((numbers.diff().iloc[1:] == 1).all()) and not holds_dates(column)


def _quoted(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:8]]
    return ", ".join([*shown, f"… ({len(names)} in all)"] if len(names) > 8 else shown)
