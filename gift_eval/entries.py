"""Covariates of one entry: a mapping of arrays, as gluonts, `datasets` and fev give a series.

A column of the shape (T,) is one covariate, one of (C, T) has C of them, `NAME[0]` …; a static one is a number, a text
or (S,). A role names a whole column or one of its rows.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hrx.errors import HrxError, unknown
from hrx.records.quantities import Floats

from . import frequency
from .cells import ID_NAMES
from .frequency import Clock, TimeGrid
from .series import ROLES, Covariate, Role, StoredSeries, TimedSeries, UnusableSeries, place
from .table_files import as_table
from .table_series import table_series
from .tables import EACH, Options

_ROW = re.compile(r"(.+)\[(\d+)\]")


def column_of(name: str, columns: Mapping[str, Any] | list[str]) -> tuple[str, int | None]:
    """Return the column that a role names, and the row of it, None for all."""
    if name in columns:
        return name, None
    if (match := _ROW.fullmatch(name)) and match[1] in columns:
        return match[1], int(match[2])
    raise HrxError(unknown("column", name, columns))


def covariates_of(
    entry: Mapping[str, Any],
    roles: Mapping[str, Role],
    length: int,
    labels: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[Covariate, ...]:
    """Return the covariates that `roles` name of an entry with `length` values of its target.

    Text and truth are categorical: `labels` of a column are those of the entry where they are not given.
    """
    found = []
    for name, role in roles.items():
        column, which = column_of(name, entry)
        given = np.asarray(entry[column])
        rows = given.reshape(-1, 1) if role == "static" else np.atleast_2d(given)
        if which is not None and which >= len(rows):
            raise HrxError(f"{column!r} has {len(rows)} rows, counted from 0, so {name!r} is none of them.")
        for number, row in enumerate(rows):
            if which in (None, number):
                size = row.size
                if role != "static" and (size < length or (role == "past" and size > length)):
                    raise UnusableSeries(f"{name!r} has {size} values, its target {length}.")
                single = f"{column}[{number}]" if len(rows) > 1 else column
                values, codes = _numbers(row, (labels or {}).get(column))
                found.append(Covariate(single, role, values, codes))
    return tuple(found)


def _numbers(values: Any, labels: tuple[str, ...] | None) -> tuple[Floats, tuple[str, ...]]:
    """Return numbers, or the codes of text and truth with their labels; NaN where missing."""
    column = pd.Series(values)
    known = column.dropna()
    if labels is None and not (len(known) and isinstance(known.iloc[0], str | bool | np.bool_)):
        return pd.to_numeric(column).to_numpy(dtype=np.float64, na_value=np.nan), ()
    labels = labels or tuple(sorted(known.astype(str).unique()))
    codes = pd.Categorical(column.where(column.isna(), column.astype(str)), categories=list(labels)).codes
    return np.where(codes < 0, np.nan, codes), labels


def fev_entry(window: Any, past: Mapping[str, Any], ahead: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of one series of a window of fev, its known columns continued by the steps ahead."""
    targets, times = list(window.target_columns), window.timestamp_column
    entry = {"item_id": past[window.id_column], "timestamp": [*past[times], *ahead[times]]}
    entry["target"] = past[targets[0]] if len(targets) == 1 else [past[target] for target in targets]
    entry |= {name: past[name] for name in (*window.past_dynamic_columns, *window.static_columns)}
    return entry | {name: [*past[name], *ahead[name]] for name in window.known_dynamic_columns}


def entry_series(entry: Mapping[Any, Any], options: Options, name: str) -> Iterator[TimedSeries]:
    """Yield the variates of an entry, or several targets that are forecast together; `name` is that of its place."""
    ids = [key for key in (*options.id, *ID_NAMES) if key in entry]
    item = str(entry[ids[0]]) if ids else name or "series"
    columns = options.value or (options.target if options.target != EACH else ()) or ("target",)
    values = np.concatenate(
        [np.atleast_2d(np.ma.asarray(entry[column], dtype=np.float64).filled(np.nan)) for column in columns]
    )
    names = list(columns) if len(columns) > 1 else [str(number) for number in range(len(values))]
    dates = [key for key in (options.date, "timestamp") if key and key in entry]
    covariates = covariates_of(entry, options.roles, values.shape[1])
    read = {*ids, *columns, *dates, "start", "freq", *(column_of(role, entry)[0] for role in options.roles)}
    left = [str(key) for key in entry if key not in read]
    note = f"not used: {', '.join(left)}; past=, future= and static= read such columns" if left else ""
    joint = options.target not in ((), EACH) and len(values) > 1
    if dates:
        times = pd.Index(entry[dates[0]], name="timestamp")
        frame = _entry_frame(times, dict(zip(names, values, strict=True)), covariates)
        past, future, static = (tuple(one.name for one in covariates if one.role == role) for role in ROLES)
        known = Options(frequency=options.frequency, season=options.season, past=past, future=future, static=static)
        # Here the columns are variates of one item, whatever the columns of the dataset are called.
        known = known._replace(target=tuple(names) if joint else EACH if covariates else ())
        for one in table_series(as_table(frame, "The entry"), known, item):
            yield one._replace(note="; ".join(filter(None, [one.note, note])))
        return
    grid, step = None, options.frequency
    if (start := entry.get("start")) is not None:
        given = step or entry.get("freq") or getattr(start, "freqstr", "")
        if not given:
            advice = "Give frequency=, as in 'D' or '15T'."
            raise HrxError(f"Series {item}: its entry has a start and no frequency. {advice}")
        known_step = frequency.parse(str(given))
        step, begin = known_step.name, start.to_timestamp() if isinstance(start, pd.Period) else pd.Timestamp(start)
        clock = None if begin.tz is None else Clock(begin.tz, wall=known_step.base not in "HTS")
        if clock is not None:
            begin = begin.tz_localize(None) if clock.wall else begin.tz_convert("UTC").tz_localize(None)
        grid = TimeGrid.of(np.array([begin], dtype="datetime64[s]"), step, clock)
    rows = [
        StoredSeries(item, row, variate if len(values) > 1 else "", covariates=covariates)
        for variate, row in zip(names, values, strict=True)
    ]
    for group in [rows] if joint else [[row] for row in rows]:
        yield place(group, "data", step, options.season_of(step), grid, note=note)


def _entry_frame(times: pd.Index, targets: Mapping[str, Floats], covariates: Sequence[Covariate]) -> pd.DataFrame:
    """Return an entry as a frame, targets and covariates with their labels; what ends before the times is missing."""
    columns: dict[str, Any] = dict(targets)
    for one in covariates:
        cells = np.repeat(one.values, len(times)) if one.role == "static" else one.values
        codes = np.where(np.isnan(cells), -1, cells).astype(int)
        columns[one.name] = np.array([*one.labels, None], dtype=object)[codes] if one.labels else cells
    for name, cells in columns.items():
        if len(cells) > len(times):
            raise UnusableSeries(f"{name!r} has {len(cells)} values, but there are {len(times)} times.")
    return pd.DataFrame(
        {name: pd.Series(cells, index=times[: len(cells)]) for name, cells in columns.items()}, index=times
    )
