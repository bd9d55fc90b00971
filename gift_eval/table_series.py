"""Series of a table whose columns have roles, on the grid of their dates, with their covariates.

The forecast starts after the last observed target: rows behind it, or those of `future_data`, are the future of the
covariates that are known ahead, where nothing is filled in. `cells` converts cells, `frequency` places dates on a grid.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_integer_dtype

from hrx.errors import HrxError
from hrx.files import user_path
from hrx.records.quantities import Bools, Floats, Ints

from . import frequency
from .cells import (
    InputTable,
    as_text,
    holds_dates,
    is_empty,
    is_numeric,
    parse_dates,
    parse_numbers,
)
from .frequency import NumberGrid, Stamps, TimeGrid
from .series import ROLES, Covariate, Dataset, StoredSeries, TimedSeries, UnusableSeries, last_observed, place
from .table_files import as_table, read_table, table_kind
from .tables import Layout, Options, find_date, find_layout, has_dates, is_index, merged, parse_source, quoted

MOST_EMPTY = 0.5
"""A series with a larger share of steps without a row does not have that frequency."""


class Item(NamedTuple):
    """Rows of one item of a table on the grid of its times, from its first."""

    name: str
    rows: Ints
    """(n,): positions in the table, in the order of time; a row of `future_data` follows the table's of that time."""
    at: Ints
    """(n,): step of each row."""
    grid: TimeGrid | NumberGrid | None = None
    stamps: Stamps | None = None
    """(n,): their dates."""
    reason: str = ""
    """Why it cannot be used."""


def _find_items(table: InputTable, layout: Layout, options: Options, counted: bool = False) -> list[Item]:
    """Return the items of a table; one that does not fit the frequency has a reason. Two rows of one item and time are
    refused. `counted` times are whole numbers, which have the most common step of each item.
    """
    names, codes = _find_series(table, layout.ids)
    if not layout.date:
        every = np.arange(len(table.rows))
        return [Item(names[0], every, every)]
    times: Any
    if counted:
        column, clock = table.columns[layout.date], None
        if column.isna().any():
            raise table.error(int(column.isna().argmax()), layout.date, "there is no time. Fill it in, or delete it.")
        times = column.to_numpy(dtype=np.int64)
    else:
        times, clock = parse_dates(table, layout.date, options.dayfirst, codes)
    order = np.lexsort((table.ahead, times, codes))
    own = order[~table.ahead[order]]
    if not counted and (np.diff(own)[np.diff(codes[own]) == 0] < 0).any():
        table.notes.append("rows were not in the order of time and have been sorted")
    keys = np.stack([codes[order], times[order].astype(np.int64), table.ahead[order]])
    if (same := np.flatnonzero((np.diff(keys) == 0).all(axis=0))).size:
        raise _repeated(table, layout, order[same[0] : same[0] + 2], times, names[codes[order[same[0]]]], same.size)
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    sections = [order[start:stop] for start, stop in pairwise(bounds)]
    if counted:
        return [_counted_item(table, layout, name, rows, times) for name, rows in zip(names, sections, strict=True)]
    step = options.frequency or frequency.infer([np.unique(times[rows]) for rows in sections])
    if not step:
        raise HrxError(
            f"{table.file} has one date per series, so its frequency cannot be inferred. Give more rows, or say it: "
            "frequency=D."
        )
    table.notes.append(f"frequency {step}, {'as given' if options.frequency else 'inferred'}")
    items = []
    for name, rows in zip(names, sections, strict=True):
        at, reason = _slots(table, layout, times[rows], table.rows[rows], step, bool(options.frequency))
        items.append(Item(name, rows, at, TimeGrid.of(times[rows], step, clock), times[rows], reason))
    if empty := sum(int(one.at[-1]) + 1 - np.unique(one.at).size for one in items if not one.reason):
        table.notes.append(f"{empty} {'step has' if empty == 1 else 'steps have'} no row and count as missing")
    return items


def _counted_item(table: InputTable, layout: Layout, name: str, rows: Ints, times: Ints) -> Item:
    """Return an item whose times are whole numbers, with its most common step."""
    numbers: Ints = times[rows]
    apart = np.diff(np.unique(numbers)).astype(np.int64)
    step = frequency.most_common(apart) if apart.size else 1
    at, rest = np.divmod(numbers - numbers[0], step)
    if rest.any():
        wrong = int(rest.astype(bool).argmax())
        trouble = f"the time {numbers[wrong]} does not fit the step {step} of most rows. Correct it."
        raise table.error(int(rows[wrong]), layout.date, trouble)
    few = f"its {at.size} rows fill less than half of the {at[-1] + 1} steps of {step}."
    return Item(name, rows, at, NumberGrid(int(numbers[0]), step), reason=few if 2 * at.size < at[-1] + 1 else "")


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


def _repeated(table: InputTable, layout: Layout, pair: Ints, times: Any, item: str, count: int) -> HrxError:
    """Return the error for two rows of one time, the first of `count` such pairs."""
    first, second = table.rows[np.sort(pair)]
    stamp, advice = times[pair[0]], "Delete one of them, or add them up"
    if not layout.ids:
        advice += "; if the file holds several series, say which column names them: id=NAME"
    date = str(stamp)
    if isinstance(stamp, np.datetime64):
        date, time = shown(stamp), pd.Timestamp(stamp)
        # Clocks go back at night, in autumn, north or south.
        if time.month in (3, 4, 10, 11) and time.hour <= 3 and time != time.normalize():
            advice += "; if the clock went back then, write times in UTC or with their offset"
    return HrxError(
        f"{table.file}, rows {first} and {second}, column {layout.date!r}: two rows{f' of {item!r}' if item else ''} "
        f"have the date {date}{f' ({count} such pairs)' if count > 1 else ''}. {advice}."
    )


def _slots(table: InputTable, layout: Layout, stamps: Stamps, rows: Ints, step: str, given: bool) -> tuple[Ints, str]:
    """Return the steps (n,) of the sorted dates of one item on the grid of its frequency, counted from the first date,
    and the reason why the item cannot be used, if there is one.
    """
    stamps, first, inverse = np.unique(stamps, return_index=True, return_inverse=True)
    at, rows = frequency.slots(stamps, step), rows[first]
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
        return at[inverse], ""
    return at[inverse], (
        f"its {at.size} dates fill less than half of the {length} steps of frequency {step} between the first and "
        f"the last; its steps are {frequency.common_steps(stamps)}. Mixed frequencies cannot be used."
    )


def shown(stamp: np.datetime64) -> str:
    """Return a date for a message, with its time where it has one."""
    text = str(stamp.astype("datetime64[s]")).replace("T", " ")
    return text.removesuffix(" 00:00:00") if text.endswith(" 00:00:00") else text.removesuffix(":00")


def _with_future(table: InputTable, layout: Layout, options: Options) -> InputTable:
    """Return the table with the rows of `future_data` below its own, marked as `ahead`."""
    given = options.future_data
    if given is None:
        return table
    if not options.future:
        raise HrxError("future_data= holds covariates of the steps ahead. Name their columns: future=.")
    if isinstance(given, str | Path):
        more = read_table(user_path(given), table_kind(Path(given)), least=1)
    elif isinstance(given, pd.DataFrame):
        more = as_table(given, "future_data", asked=(layout.date, *layout.ids))
    else:
        raise HrxError(f"future_data is a {type(given).__name__}. Give a DataFrame, or a CSV or Parquet file.")
    columns = dict(more.columns)
    if layout.date and layout.date not in columns:
        columns[layout.date] = columns.pop(find_date(more, layout.covariates))
    for name in (*layout.ids, *options.future):
        if name not in columns:
            raise HrxError(f"{more.file} has no column {name!r}; it has {quoted(list(more.columns))}. Add it.")
    left = [name for name in columns if name not in table.columns and not is_index(more, name)]
    if left and options.unused != "ignore":
        raise HrxError(f"{more.file}: {quoted(left)}: not a column of the data. Drop it, or give unused='ignore'.")
    joined, size = {}, len(table.rows) + len(more.rows)
    for name, column in table.columns.items():
        if name in (layout.date, *layout.ids, *options.future):
            joined[name] = pd.concat([column, columns[name]], ignore_index=True)
        else:
            whole = is_integer_dtype(column.dtype)  # as a float it could be rounded
            joined[name] = (column.astype("Int64") if whole else column).reindex(range(size))
    labels = np.array([*table.rows, *(f"{row} of {more.file}" for row in more.rows)], dtype=object)
    return replace(table, columns=joined, rows=labels, ahead=np.arange(size) >= len(table.rows))


class _Columns(NamedTuple):
    """Values of the columns of a table: (N,) each, NaN where missing, and the labels of those that are codes."""

    values: Mapping[str, Floats]
    labels: Mapping[str, tuple[str, ...]]
    others: Mapping[str, tuple[float, ...]]
    """Values that each static column has."""


def _parse_columns(table: InputTable, layout: Layout, options: Options) -> _Columns:
    """Return the values of targets and covariates. A covariate of text or of truth is categorical."""
    labels: dict[str, tuple[str, ...]] = {}
    values: dict[str, Floats] = {}
    for name in layout.covariates:
        column = table.columns[name]
        if holds_dates(column):
            raise HrxError(f"{table.file}: column {name!r} holds dates. Give covariates as numbers or text.")
        if not (is_numeric(column) or is_empty(column)):
            texts = as_text(column)
            codes, categories = pd.factorize(texts.where(texts != "", None), sort=True)
            values[name], labels[name] = np.where(codes < 0, np.nan, codes), tuple(map(str, categories))
    numeric = [name for name in (*layout.values, *layout.covariates) if name not in labels]
    values |= dict(zip(numeric, parse_numbers(table, numeric, options.decimal).T, strict=True))
    static = [name for name, role in layout.covariates.items() if role == "static"]
    others = {name: tuple(np.unique(values[name][~np.isnan(values[name])]).tolist()) for name in static}
    return _Columns(values, labels, others)


def _stored_rows(
    table: InputTable, layout: Layout, options: Options, name: str = "", counted: bool = False
) -> Iterator[tuple[Item, list[StoredSeries]]]:
    """Yield each item with the series of its value columns, up to its last observed value, and their covariates."""
    named = f"series named by {quoted(layout.ids)}, " if layout.ids else ""
    values = f"values in {quoted(layout.values)}"
    used = f"{'long' if layout.ids else 'wide'}: dates in {layout.date!r}, {named}{values}"
    used += "".join(f", {role}: {quoted(getattr(options, role))}" for role in ROLES if getattr(options, role))
    table.notes.append(f"{used}; not used: {quoted(layout.unused)}" if layout.unused else used)
    if layout.note:
        table.notes.append(layout.note)
    items = _find_items(table, layout, options, counted)
    columns = _parse_columns(table, layout, options)
    for item in items:
        own = ~table.ahead[item.rows]
        if not own.any():
            raise HrxError(f"future_data has rows of {item.name!r}, which the data do not have. Delete them.")
        size = int(item.at[own][-1]) + 1
        targets = [_spread(columns.values[column], item, own, size) for column in layout.values]
        covariates: tuple[Covariate, ...] = ()
        if not item.reason:
            covariates = tuple(_covariate(table, layout, columns, item, one) for one in layout.covariates)
        whole, several = "/".join(filter(None, (name, item.name))), len(layout.values) > 1
        rows = [
            StoredSeries(
                whole,
                np.empty(0) if item.reason else values,
                column if several or not whole else "",
                item.reason,
                column=column,
                covariates=covariates,
            )
            for column, values in zip(layout.values, targets, strict=True)
        ]
        yield item, rows


def _spread(values: Floats, item: Item, chosen: Bools, size: int) -> Floats:
    """(N,) -> (size,): the values of the chosen rows of an item at their steps, NaN elsewhere."""
    full = np.full(size, np.nan)
    full[item.at[chosen]] = values[item.rows[chosen]]
    return full


def _covariate(table: InputTable, layout: Layout, columns: _Columns, item: Item, name: str) -> Covariate:
    """Return a covariate of an item on its steps, those of `future_data` included."""
    role, values, labels = layout.covariates[name], columns.values[name], columns.labels.get(name, ())
    own, series = ~table.ahead[item.rows], f", series {item.name}" if item.name else ""
    if role == "static":
        rows = item.rows[~np.isnan(values[item.rows])]
        if (values[rows] != values[rows[:1]]).any():
            other = rows[int((values[rows] != values[rows[0]]).argmax())]
            cells = [str(table.columns[name].iloc[row])[:40] for row in (rows[0], other)]
            raise HrxError(
                f"{table.file}{series}: the static column {name!r} is {cells[0]!r} in row {table.rows[rows[0]]} and "
                f"{cells[1]!r} in row {table.rows[other]}. Make it constant, or name it in past= or future=."
            )
        value = values[rows[:1]] if rows.size else np.array([np.nan])
        return Covariate(name, role, value, labels, columns.others[name])
    size = int(item.at[-1]) + 1
    known, given = _spread(values, item, own, size), _spread(values, item, ~own, size)
    if (apart := np.flatnonzero(~np.isnan(known) & ~np.isnan(given) & (known != given))).size:
        row = item.rows[~own][item.at[~own] == apart[0]][0]
        cells = [labels[int(one)] if labels else f"{one:g}" for one in (known[apart[0]], given[apart[0]])]
        raise HrxError(
            f"{table.file}{series}: {name!r} is {cells[0]} in the data and {cells[1]} in row {table.rows[row]}, at the "
            "same time. Correct one of them."
        )
    return Covariate(name, role, np.where(np.isnan(given), known, given), labels)


def open_table(kind: str, text: str | None, options: Options) -> list[Dataset]:
    """Return the dataset of a table; `kind` is `csv` or `parquet`, `text` what follows the colon."""
    path, given = parse_source(text or "")
    table = read_table(path, kind)
    return [table_dataset(table, merged(options, given), Path(table.file).stem)]


def table_dataset(table: InputTable, options: Options, name: str, domain: str = "") -> Dataset:
    """Return the dataset of a table, named `NAME/FREQUENCY`."""
    layout = find_layout(table, options)
    table = _with_future(table, layout, options)
    items, rows = [], list[StoredSeries]()
    for item, series in _stored_rows(table, layout, options):
        items.append(item)
        stop = max(map(last_observed, series)) or series[0].values.size
        rows += [one.until(stop) for one in series]
    if not any(np.isfinite(row.values).any() for row in rows):
        reason = next((row.reason for row in rows if row.reason), "all its values are missing.")
        raise HrxError(f"{table.file} has no series that can be used: {reason}")
    if options.season:
        table.notes.append(f"season {options.season}, as given")
    grid, note = items[0].grid, "; ".join(table.notes)
    step = grid.frequency.name if isinstance(grid, TimeGrid) else ""
    about = (f"{name}/{step}", step, options.season_of(step), domain, len(rows), rows.__getitem__)
    return Dataset(*about, variates=len(layout.values), note=note, joint=layout.joint)


def table_series(table: InputTable, options: Options, name: str = "", dataset: str = "data") -> Iterator[TimedSeries]:
    """Yield the series of a table, each on the grid of its frequency where there are dates; without, the rows are in
    the order of time. Columns that are forecast together are one series. `name` is that of the table's place in a list
    or dict.
    """
    layout = find_layout(table, options, has_dates(table, options))
    date = table.columns.get(layout.date)
    counted = date is not None and is_integer_dtype(date.dtype) and layout.date.lower() != "year"
    table = _with_future(table, layout, options)
    note = "; ".join(filter(None, [layout.note, f"not used: {quoted(layout.left)}" if layout.left else ""]))
    for item, rows in _stored_rows(table, layout, options, name, counted):
        if item.reason:
            series = f", series {rows[0].item}" if rows[0].item else ""
            raise UnusableSeries(f"{table.file}{series}: {item.reason}")
        step = item.grid.frequency.name if isinstance(item.grid, TimeGrid) else ""
        about = (f"{dataset}/{step}" if step else dataset, step, options.season_of(step), item.grid, item.stamps)
        for group in [rows] if layout.joint else [[row] for row in rows]:
            yield place(group, *about, note)
