"""Column roles of a table, long or wide: a CSV or Parquet file, or a frame in memory.

    sales.csv?date=day&id=shop&target=units&past=visits&future=price,holiday&static=region&frequency=D&decimal=,

Long has a row per date and series, wide a row per date and a column per series. What the options leave open is
inferred and stated in the table's notes, or refused with a message that names file, row and column. A column is never
dropped in silence where another one is the target. `table_series` makes the series.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import pandas as pd
from pandas.api.types import is_bool_dtype, is_integer_dtype

from hrx.errors import HrxError, unknown
from hrx.files import user_path

from . import frequency
from .cells import (
    DATE_NAMES,
    ID_NAMES,
    InputTable,
    holds_dates,
    is_empty,
    is_numeric,
)
from .series import ROLES, Role

# Id, date and value as the forecasting libraries name them.
KNOWN_LAYOUTS = (("unique_id", "ds", "y"), ("item_id", "timestamp", "target"))
EACH = ("each",)
_NAMES = ("id", "value", "target", *ROLES)
"""Options that take several columns."""
_IN_AUDITS = (
    "An audit takes these behind a file's name, as csv:FILE?target=y&unused=ignore; of a frame, drop the columns."
)


class Options(NamedTuple):
    """Options of a source; empty or None where they are to be inferred."""

    date: str = ""
    id: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    """Columns that are series of their own."""
    frequency: str = ""
    dayfirst: bool | None = None
    decimal: str = ""
    season: int | None = None
    """Values per season."""
    target: tuple[str, ...] = ()
    """The column that is forecast, or several that are forecast together; `EACH`: every value column by itself."""
    past: tuple[str, ...] = ()
    """Covariates known up to now."""
    future: tuple[str, ...] = ()
    """Covariates known also for the steps ahead."""
    static: tuple[str, ...] = ()
    """Columns with one value per series."""
    unused: Literal["", "error", "ignore"] = ""
    """What a column without a role is, where there are roles; an error by default."""
    future_data: Any = None
    """A frame or file with the covariates of the steps ahead."""

    @property
    def roles(self) -> dict[str, Role]:
        """Roles of the covariates, by column."""
        named = [(name, role) for role in ROLES for name in getattr(self, role)]
        found = dict(named)
        for name, role in named:
            if found[name] != role or name in self.target:
                first = "target" if name in self.target else role
                raise HrxError(f"{name!r} is named in {first}= and in {found[name]}=. A column has one role.")
        return found

    def season_of(self, step: str) -> int:
        """Values per season of a frequency, which may be empty."""
        return self.season or (frequency.season(step) if step else 1)


DEFAULT = Options()


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
    return user_path(name), parse_options(options)


def split_options(text: str, options: Options) -> tuple[str, Options]:
    """Return a source that is no table without what follows its last `?`, and those options before the others."""
    name, mark, given = text.rpartition("?")
    if not mark or os.path.exists(user_path(text)):
        return text, options
    return name, merged(options, parse_options(given))


def parse_options(options: str) -> Options:
    """Parse `option=value&…`."""
    given: dict[str, str] = {}
    for key, _, value in (part.partition("=") for part in options.split("&") if part):
        if key not in Options._fields:
            raise HrxError(unknown("option", key, Options._fields, "Options are written ?date=NAME&value=NAME."))
        if not value:
            raise HrxError(f"The option {key} has no value. Write it as {key}=NAME.")
        if key in given:
            raise HrxError(f"An option is given twice in {options!r}. Several columns are written value=a,b.")
        given[key] = value
    day_first, decimal, season = given.get("dayfirst"), unquote(given.get("decimal", "")), given.get("season")
    if day_first not in (None, "yes", "no"):
        raise HrxError(f"dayfirst is {day_first!r}; write dayfirst=yes (31/1/2024) or dayfirst=no (1/31/2024).")
    if decimal not in ("", ".", ","):
        raise HrxError(f"decimal is {decimal!r}; write decimal=. or decimal=, .")
    if season is not None and not re.fullmatch(r"[1-9][0-9]{0,6}", season):
        raise HrxError(f"season is {season!r}; write the number of values per season, as in season=24; 1 for none.")
    if (unused := given.get("unused", "")) not in ("", "error", "ignore"):
        raise HrxError(f"unused is {unused!r}; write unused=error or unused=ignore.")
    names = {key: tuple(dict.fromkeys(map(unquote, given[key].split(",")))) for key in _NAMES if key in given}
    return Options(
        date=unquote(given.get("date", "")),
        frequency=frequency.parse(given["frequency"]).name if "frequency" in given else "",
        dayfirst=None if day_first is None else day_first == "yes",
        decimal=decimal,
        season=int(season or 0) or None,
        unused=unused,  # type: ignore[arg-type]
        future_data=unquote(given["future_data"]) if "future_data" in given else None,
        **names,
    )


def merged(options: Options, given: Options) -> Options:
    """Return the options, those of a source before the others."""
    said = {name: value for name, value in given._asdict().items() if value != Options._field_defaults[name]}
    return options._replace(**said)


class Layout(NamedTuple):
    """Columns by their role. A wide table has no `ids`; without a `date` the rows are in the order of time."""

    date: str
    ids: tuple[str, ...]
    values: tuple[str, ...]
    covariates: Mapping[str, Role]
    joint: bool
    """Whether the values are forecast together."""
    unused: tuple[str, ...]
    left: tuple[str, ...] = ()
    """Those of them that a forecast could have read."""
    note: str = ""


def find_layout(table: InputTable, options: Options, dated: bool = True) -> Layout:
    """Return the role of each column: as the options say, else by names and content."""
    roles = options.roles
    targets = () if options.target == EACH else options.target
    for name in (*filter(None, [options.date]), *options.id, *options.value, *targets, *roles):
        if name not in table.columns:
            raise HrxError(f"{table.file}: " + unknown("column", name, table.columns))
    known = _known_layout(table)
    date = (options.date or (known[1] if known else find_date(table, roles))) if dated else ""
    values, note = targets or options.value, "" if dated else _undated_note(table, options)
    rest = [name for name in table.columns if name != date and name not in roles and not is_index(table, name)]
    numbers = [name for name in rest if is_numeric(table.columns[name])]
    ids = options.id or ((known[0],) if known else _find_ids(table, date, rest, numbers, values) if dated else ())
    if not values:
        free = [name for name in rest if name not in ids]
        one = options.target != EACH and bool(ids or roles)
        values = (known[2],) if known and known[2] in free else _find_values(table, free, numbers, one, dated)
        if len(values) > 1 and not (ids or options.target):
            note = "every column of numbers is a series of its own; target=, past= and future= read them together"
    for name in values:
        if name == date or name in ids:
            raise HrxError(f"{table.file}: column {name!r} cannot be a value and also the date or the id.")
    unused = tuple(name for name in table.columns if name not in {date, *ids, *values, *roles})
    layout = Layout(date, ids, values, roles, len(targets) > 1, unused, note=note)
    return layout._replace(left=_without_role(table, layout, options))


def _without_role(table: InputTable, layout: Layout, options: Options) -> tuple[str, ...]:
    """Return the unused columns that a forecast of the target could read, unless they are refused: all of them where a
    role is given, those of numbers beside the one target of a long table.
    """
    left = tuple(name for name in layout.unused if not is_index(table, name))
    if not (layout.covariates or options.target):
        cells = {name: table.columns[name] for name in left if layout.ids and len(layout.values) == 1}
        left = tuple(name for name, column in cells.items() if is_numeric(column) or is_bool_dtype(column.dtype))
    if left and options.unused != "ignore" and not options.value:
        raise HrxError(
            f"{table.file}: no role is given for {quoted(left)} beside the target {quoted(layout.values)}. Name what "
            "the forecast may read in past=, future= (known ahead) or static=; leave out the rest by unused='ignore'. "
            + _IN_AUDITS
        )
    return left


def has_dates(table: InputTable, options: Options) -> bool:
    """Whether a table has times: dates, or whole numbers under the name of a date."""
    columns = {name: column for name, column in table.columns.items() if name not in options.roles}
    numbers = any(name.lower() in DATE_NAMES and is_integer_dtype(column.dtype) for name, column in columns.items())
    return bool(options.date or _known_layout(table)) or numbers or any(map(holds_dates, columns.values()))


def _known_layout(table: InputTable) -> tuple[str, str, str] | None:
    return next((layout for layout in KNOWN_LAYOUTS if all(name in table.columns for name in layout)), None)


def find_date(table: InputTable, roles: Mapping[str, Role]) -> str:
    """Return the one column that holds dates; of several, or if none does, the one with the name of a date."""
    columns = {name: column for name, column in table.columns.items() if name not in roles}
    holding = [name for name, column in columns.items() if holds_dates(column)]
    named = [name for name in columns if name.lower() in DATE_NAMES]
    candidates = holding if len(holding) == 1 else [name for name in named if name in holding] or holding or named
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise HrxError(
            f"{table.file} has several columns that may hold the dates: {quoted(candidates)}. Say which: "
            f"date={candidates[0]}."
        )
    raise HrxError(
        f"{table.file} has no column of dates; it has {quoted(list(table.columns))}. Write dates like 2024-01-31, or "
        "say which column has them: date=NAME."
    )


def _find_ids(
    table: InputTable, date: str, rest: Sequence[str], numbers: Sequence[str], values: Sequence[str]
) -> tuple[str, ...]:
    """Return the columns that name the series: needed where dates repeat, else one of text with the name of an id."""
    free = [name for name in rest if name not in values]
    texts = [name for name in free if name not in numbers and not is_empty(table.columns[name])]
    named = [name for name in free if name.lower() in ID_NAMES]
    if not table.columns[date].duplicated().any():
        return tuple(name for name in named if name in texts)[:1]
    candidates = named if len(named) == 1 else texts
    if len(candidates) > 1:
        raise HrxError(
            f"{table.file}: dates repeat, and several columns may name the series: {quoted(candidates)}. Say which: "
            f"id={candidates[0]}, or id={','.join(candidates[:2])} where it takes both."
        )
    return tuple(candidates)


def _find_values(
    table: InputTable, free: Sequence[str], numbers: Sequence[str], one: bool, dated: bool
) -> tuple[str, ...]:
    candidates = [name for name in free if name in numbers]
    if not candidates:
        beside = f"beside the date it has {quoted(free) or 'none'}" if dated else f"it has {quoted(free)}"
        raise HrxError(f"{table.file} has no column of numbers; {beside}. Say which column has the values: value=NAME.")
    if one and len(candidates) > 1:
        raise HrxError(
            f"{table.file} has several columns of numbers: {quoted(candidates)}. Say which to forecast: "
            f"target={candidates[0]}, and what the others are: past=, future= (known ahead) or static=; or "
            f"value={','.join(candidates[:2])} for series of their own. " + _IN_AUDITS
        )
    # An empty column of a wide table is a series without values: it is recorded, not hidden.
    return tuple(name for name in free if name in candidates or (dated and not one and is_empty(table.columns[name])))


def _undated_note(table: InputTable, options: Options) -> str:
    """Refuse a table of several series without dates. The note names a column with the name of a date whose cells are
    not dates.
    """
    if options.id or (len(table.columns) > 1 and any(column.lower() in ID_NAMES for column in table.columns)):
        raise HrxError(
            f"{table.file} names its series in a column and has no column of dates; it has "
            f"{quoted(list(table.columns))}. Say which column orders the rows: date=NAME."
        )
    notes = (
        f"{table.file}, column {column!r}: {str(cells.iloc[0])[:40]!r} is not a date, so the rows are taken in their "
        "order, without times. Write dates like 2024-01-31"
        for column, cells in table.columns.items()
        if column.lower() in DATE_NAMES and column not in options.value and not is_numeric(cells)
    )
    return next(notes, "")


def is_index(table: InputTable, name: str) -> bool:
    """Whether a column stores the whole-number index of a pandas frame, or counts the rows under the name `index`."""
    if name not in (table.index, "index") or holds_dates(table.columns[name]):
        return False
    numbers = pd.to_numeric(table.columns[name], errors="coerce")
    return bool((numbers % 1 == 0).all() if name == table.index else (numbers.diff()[1:] == 1).all())


def quoted(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:8]]
    return ", ".join([*shown, f"… ({len(names)} in all)"] if len(names) > 8 else shown)
