"""Series from the objects that people hold in a notebook: frames, arrays, tensors, and the datasets of other libraries.

Objects of other libraries are recognised by the module of their class, so none of these libraries is imported here.
Dates, numbers, layouts and gaps follow the rules of tables in files: `hrx.gift_eval.tables`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_datetime64_any_dtype, is_integer_dtype

from hrx.errors import HrxError
from hrx.records.quantities import Ints

from . import frequency as frequencies
from .series import UnusableSeries
from .table_cells import InputTable, holds_dates, is_numeric, parse_numbers, unique_names
from .tables import DATE_NAMES, ID_NAMES, KNOWN_LAYOUTS, Layout, Options, find_layout, find_series, observe, on_grid
from .timed import Clock, NumberGrid, SeenDates, SeriesOrigin, TimedSeries, TimeGrid, place

_FRAME, _DATA = "The frame", "data"
_NO_TIME = "there is no time. Fill it in, or delete the row."
_ACCEPTED = (
    "a pandas DataFrame or Series, an array (series, time), a list, a tensor, a gluonts dataset, a darts TimeSeries, a "
    "datasets.Dataset, a fev window, or the name of a source such as 'sample:co2/W' or 'sales.csv'"
)


class SeriesInput(NamedTuple):
    """The series of one object."""

    series: tuple[TimedSeries, ...]
    windows: bool
    """Whether they are the rows of one array: windows of one run, not series of their own."""


def read_series(data: Any, options: Options | None = None) -> SeriesInput:
    """The named series of `data`, in its order; `options` name columns, frequency and season where they are not found.

    | data | series |
    | --- | --- |
    | long frame | one per name in `unique_id`, `item_id` or `id=`; rows may be in any order |
    | wide frame, Series | one per column; dates in the index or in a column, or none at all |
    | array or tensor `(T,)`, `(B, T)` | one, or one per row |
    | list, dict | one per element, of any of these kinds; a list of numbers is one series |
    | gluonts or GIFT-Eval entries | one per entry: `target`, with `start` (and `freq`) or `timestamp` |
    | darts `TimeSeries` | one per component |
    | `datasets.Dataset`, fev window | entries, or the columns of a long frame |
    """
    options = options or Options()
    array = _plain(data)
    series = tuple(_read(array, options, ""))
    if not series:
        raise HrxError(f"The data hold no series. Give {_ACCEPTED}.")
    return SeriesInput(_named_apart(series), isinstance(array, np.ndarray) and array.ndim == 2)


def _read(data: Any, options: Options, name: str) -> Iterator[TimedSeries]:
    """The series of an object; `name` is that of its place in a list or dict."""
    data = _plain(data)
    if isinstance(data, TimedSeries):
        yield data
    elif isinstance(data, str | Path):
        from .named import open_series  # which reads tables by way of this module

        yield from open_series(str(data), options)
    elif isinstance(data, pd.Series):
        yield from from_frame(data.to_frame(str(data.name if data.name is not None else name or "series")), options)
    elif isinstance(data, pd.DataFrame):
        yield from from_frame(data, options, name)
    elif isinstance(data, np.ndarray):
        yield from _from_array(data, options, name)
    elif isinstance(data, Mapping):
        yield from _from_mapping(data, options, name)
    elif isinstance(data, Set):
        raise HrxError(f"A {type(data).__name__} has no order, so it cannot be read as a series. Give a list.")
    elif isinstance(data, Iterable):
        yield from _from_list(list(data), options, name)
    else:
        raise HrxError(f"A {type(data).__name__} cannot be read as series. Give {_ACCEPTED}.")


def _plain(data: Any) -> Any:
    """An object of another library as an array, a frame, or an iterable of entries."""
    library = type(data).__module__.partition(".")[0]
    if library == "torch" and hasattr(data, "detach"):
        data = data.detach().cpu()
        return (data.double() if data.is_floating_point() else data).numpy()
    if library == "darts" and hasattr(data, "time_index"):
        return _from_darts(data)
    if hasattr(data, "get_input_data"):  # a window of fev
        return _from_fev(data)
    if hasattr(data, "column_names") and library == "datasets" and _holds_scalars(data):
        return data.to_pandas()
    if hasattr(data, "to_pandas") and library not in ("pandas", "datasets"):
        return data.to_pandas()
    return data


def _from_darts(series: Any) -> pd.DataFrame:
    if series.is_stochastic:
        raise HrxError("The darts TimeSeries is stochastic. Give one sample or a quantile, as in series.quantile(0.5).")
    return pd.DataFrame(series.values(), index=series.time_index, columns=list(map(str, series.components)))


def _from_fev(window: Any) -> list[dict[str, Any]]:
    """The past of a window of fev, with its columns under the names of entries."""
    past, _ = window.get_input_data()
    targets = list(window.target_columns)
    return [
        {
            "item_id": row[window.id_column],
            "timestamp": row[window.timestamp_column],
            "target": row[targets[0]] if len(targets) == 1 else [row[target] for target in targets],
        }
        for row in past
    ]


def _holds_scalars(dataset: Any) -> bool:
    """Whether a `datasets.Dataset` has one value per cell, as a long frame."""
    return len(dataset) > 0 and all(np.ndim(value) == 0 for value in dataset[0].values())


def _from_array(values: NDArray[Any], options: Options, name: str) -> Iterator[TimedSeries]:
    if values.ndim not in (1, 2) or values.dtype.kind not in "iufO":
        raise HrxError(
            f"An array of shape {values.shape} and type {values.dtype} cannot be read as series. Give numbers of the "
            "shape (time,) or (series, time); windows of several variates (windows, time, channels) go to "
            "hrx.audit.explain."
        )
    if values.ndim == 2 and values.shape[1] == 1 < values.shape[0]:
        raise HrxError(f"An array of shape {values.shape} would be {len(values)} series of one value. Transpose it.")
    rows = values[None] if values.ndim == 1 else values
    for number, row in enumerate(rows):
        item = (name or "series") if values.ndim == 1 else f"{name}[{number}]" if name else str(number)
        yield place(SeriesOrigin(_DATA, item, "", options.season or 1), row)


def _from_list(items: list[Any], options: Options, name: str) -> Iterator[TimedSeries]:
    if items and all(one is None or isinstance(one, Number) for one in items):
        yield from _from_array(np.asarray(items, dtype=np.float64), options, name)
        return
    for number, one in enumerate(items):
        yield from _read(one, options, f"{name}[{number}]" if name else str(number))


def _from_mapping(data: Mapping[Any, Any], options: Options, name: str) -> Iterator[TimedSeries]:
    """An entry as gluonts and GIFT-Eval have it, or series by their names."""
    if "target" in data or any(value in data for value in options.value):
        yield from _from_entry(data, options, name)
        return
    for key, one in data.items():
        yield from _read(one, options, str(key))


def _from_entry(entry: Mapping[Any, Any], options: Options, name: str) -> Iterator[TimedSeries]:
    ids = [key for key in (*options.id, *ID_NAMES) if key in entry]
    item = str(entry[ids[0]]) if ids else name or "series"
    columns = options.value or ("target",)
    rows = [np.atleast_2d(np.asarray(entry[column], dtype=np.float64)) for column in columns]
    values = np.concatenate(rows)
    dates = [key for key in (options.date, "timestamp") if key and key in entry]
    names = list(columns) if len(columns) > 1 else [str(number) for number in range(len(values))]
    if dates:
        frame = pd.DataFrame(values.T, index=pd.Index(entry[dates[0]], name="timestamp"), columns=names)
        # Here the columns are variates of one item, whatever the columns of the dataset are called.
        yield from from_frame(frame, Options(frequency=options.frequency, season=options.season), item)
        return
    grid, step = _start(entry, options, item)
    season = options.season or (frequencies.season(step) if step else 1)
    for variate, row in zip(names, values, strict=True):
        label = item if len(values) == 1 else f"{item}[{variate}]"
        yield place(SeriesOrigin(_DATA, label, step, season), row, grid)


def _start(entry: Mapping[Any, Any], options: Options, item: str) -> tuple[TimeGrid | None, str]:
    """The grid that begins at the entry's start, and its frequency; none where it has no start."""
    start = entry.get("start")
    if start is None:
        return None, options.frequency
    given = options.frequency or entry.get("freq") or getattr(start, "freqstr", "")
    if not given:
        raise HrxError(f"Series {item}: its entry has a start and no frequency. Give frequency=, as in 'D' or '15T'.")
    step = frequencies.parse(str(given)).name
    begin = start.to_timestamp() if isinstance(start, pd.Period) else pd.Timestamp(start)
    clock = None if begin.tz is None else Clock(begin.tz, wall=frequencies.parse(step).base not in "HTS")
    if clock is not None:
        begin = begin.tz_localize(None) if clock.wall else begin.tz_convert("UTC").tz_localize(None)
    return TimeGrid.of(np.array([begin], dtype="datetime64[s]"), step, clock), step


def from_frame(frame: pd.DataFrame, options: Options, name: str = "") -> Iterator[TimedSeries]:
    """The series of a frame, long or wide, with dates or without; `name` is that of its place in a list or dict."""
    return from_table(as_table(frame, options), options, name)


def from_table(table: InputTable, options: Options, name: str = "", dataset: str = _DATA) -> Iterator[TimedSeries]:
    """The series of a table, each on the grid of its frequency where there are dates."""
    if not _has_dates(table, options):
        yield from _undated(table, options, name, dataset)
        return
    layout = find_layout(table, options)
    if is_integer_dtype(table.columns[layout.date].dtype) and layout.date.lower() != "year":
        yield from _numbered(table, layout, options, name)
        return
    clock = _take_zone(table, layout)
    observed = observe(table, options)
    step = options.frequency or frequencies.infer([observed.stamps[section] for section in observed.sections])
    if not step:
        raise HrxError(
            f"{table.file} has one date per series, so its frequency cannot be inferred. Give more rows, or say it: "
            "frequency=D."
        )
    season = options.season or frequencies.season(step)
    for item, section in zip(observed.names, observed.sections, strict=True):
        values, reason = on_grid(observed, section, step, bool(options.frequency))
        if reason:
            raise UnusableSeries(f"{table.file}{f', series {item}' if item else ''}: {reason}")
        stamps = observed.stamps[section]
        seen = pd.DatetimeIndex(stamps).as_unit("ns")
        dates = SeenDates(frequencies.slots(stamps, step), clock.place(seen) if clock else seen)
        grid = TimeGrid.of(stamps, step, clock)
        for column, row in zip(layout.values, values, strict=True):
            origin = SeriesOrigin(f"{dataset}/{step}", _label(name, item, column, layout), step, season)
            yield place(origin, row, grid, dates)


def as_table(frame: pd.DataFrame, options: Options) -> InputTable:
    """The frame as a table: an index of dates or of names is a column, a counting one is dropped."""
    index = frame.index
    named = [str(one) for one in index.names if one is not None]
    texts = index.dtype == object and not isinstance(index, pd.MultiIndex) and holds_dates(_column(index))
    dated = isinstance(index, pd.DatetimeIndex | pd.PeriodIndex) or texts
    asked = {options.date, *options.id} & set(named)
    counts = not named or (is_integer_dtype(index.dtype) and not asked)
    if isinstance(index, pd.MultiIndex) or dated or not counts:
        names = [one if one is not None else "date" for one in index.names]
        frame = frame.set_axis(index.set_names(names)).reset_index()
    if not len(frame.columns):
        raise HrxError(f"{_FRAME} has no columns. Give one with values.")
    labels = unique_names([str(one) for one in frame.columns], _FRAME)
    columns = {label: _column(frame.iloc[:, number]) for number, label in enumerate(labels)}
    return InputTable(_FRAME, columns, np.arange(len(frame)))


def _column(values: Any) -> pd.Series:
    """A column with positions for an index; periods are the time at which they begin."""
    column = pd.Series(values).reset_index(drop=True)
    return pd.Series(column.dt.to_timestamp()) if isinstance(column.dtype, pd.PeriodDtype) else column


def _has_dates(table: InputTable, options: Options) -> bool:
    known = any(all(name in table.columns for name in layout) for layout in KNOWN_LAYOUTS)
    named = any(name.lower() in DATE_NAMES and is_integer_dtype(column.dtype) for name, column in table.columns.items())
    return bool(options.date or known or named or any(map(holds_dates, table.columns.values())))


def _undated(table: InputTable, options: Options, name: str, dataset: str) -> Iterator[TimedSeries]:
    """The columns of a frame without dates; its rows are in the order of time."""
    if options.id or any(column.lower() in ID_NAMES for column in table.columns):
        raise HrxError(
            f"{table.file} names its series in a column and has no column of dates; it has {list(table.columns)[:8]}. "
            "Say which column orders the rows: date=NAME."
        )
    names = options.value or [column for column, cells in table.columns.items() if is_numeric(cells)]
    if not names:
        raise HrxError(
            f"{table.file} has no column of numbers; it has {list(table.columns)[:8]}. Say which: value=NAME."
        )
    note = _unread_dates(table, names)
    for column in names:
        if column not in table.columns:
            raise HrxError(f"{table.file} has no column {column!r}; it has {list(table.columns)[:8]}.")
        label = column if not name else name if len(names) == 1 else f"{name}[{column}]"
        values = parse_numbers(table, [column], options.decimal)[:, 0]
        yield place(SeriesOrigin(dataset, label, "", options.season or 1), values)._replace(note=note)


def _unread_dates(table: InputTable, values: Sequence[str]) -> str:
    """A sentence about a column with the name of a date whose cells are not dates; empty where there is none."""
    for name, column in table.columns.items():
        if name.lower() in DATE_NAMES and name not in values and not is_numeric(column):
            cell = str(column.iloc[0])[:40] if len(column) else ""
            return (
                f"{table.file}, column {name!r}: {cell!r} is not a date, so the rows are taken in their order, without "
                "times. Write dates like 2024-01-31"
            )
    return ""


def _label(name: str, item: str, variate: str, layout: Layout) -> str:
    """The name of a series, by the place of its frame, its id and its column."""
    several = len(layout.values) > 1
    parts = [part for part in (name, item) if part]
    if not parts:
        return variate
    return "/".join(parts) + (f"[{variate}]" if several else "")


def _take_zone(table: InputTable, layout: Layout) -> Clock | None:
    """Makes the dates of the table ones without a zone, and returns the clock that gives it back.

    Times of one hour of the day are counted by the wall clock, all others in UTC.
    """
    column = table.columns[layout.date]
    if not is_datetime64_any_dtype(column.dtype):
        return None
    if column.isna().any():
        raise table.error(int(column.isna().argmax()), layout.date, _NO_TIME)
    if ((column.dt.microsecond != 0) | (column.dt.nanosecond != 0)).any():
        raise HrxError(
            f"{table.file}, column {layout.date!r}: times below a second cannot be placed on a grid. Give the values "
            "without their times, as in frame['value'].to_numpy()."
        )
    if column.dt.tz is None:
        return None
    wall = column.dt.tz_localize(None)
    hours = (wall - wall.dt.normalize()).groupby(_series_codes(table, layout)).nunique()
    clock = Clock(column.dt.tz, wall=bool((hours <= 1).all()))
    table.columns[layout.date] = wall if clock.wall else column.dt.tz_convert("UTC").dt.tz_localize(None)
    return clock


def _series_codes(table: InputTable, layout: Layout) -> Ints:
    if not layout.ids:
        return np.zeros(len(table.rows), dtype=np.int64)
    return find_series(table, layout.ids)[1]


def _numbered(table: InputTable, layout: Layout, options: Options, name: str) -> Iterator[TimedSeries]:
    """The series of a frame whose times are whole numbers, with the most common step of each."""
    values = parse_numbers(table, layout.values, options.decimal)
    names, codes = find_series(table, layout.ids)
    times = table.columns[layout.date]
    if times.isna().any():
        raise table.error(int(times.isna().argmax()), layout.date, _NO_TIME)
    numbers = times.to_numpy(dtype=np.int64)
    for code, item in enumerate(names):
        rows = np.flatnonzero(codes == code)
        rows = rows[np.argsort(numbers[rows], kind="stable")]
        at, grid = _count(numbers[rows], table, layout, rows)
        full = np.full((len(layout.values), int(at[-1]) + 1), np.nan)
        full[:, at] = values[rows].T
        for variate, row in zip(layout.values, full, strict=True):
            label = _label(name, item, variate, layout)
            yield place(SeriesOrigin(_DATA, label, "", options.season or 1), row, grid)


def _count(numbers: Ints, table: InputTable, layout: Layout, rows: Ints) -> tuple[Ints, NumberGrid]:
    """The positions of sorted whole numbers on the grid of their most common step."""
    apart = np.diff(numbers)
    if (apart == 0).any():
        twice = int((apart == 0).argmax())
        raise table.error(int(rows[twice + 1]), layout.date, f"the time {numbers[twice]} occurs twice. Delete one row.")
    steps, counts = np.unique(apart, return_counts=True)
    step = int(steps[counts.argmax()]) if steps.size else 1
    wrong = np.flatnonzero((numbers - numbers[0]) % step)
    if wrong.size:
        trouble = f"the time {numbers[wrong[0]]} does not fit the step {step} of most rows. Correct it."
        raise table.error(int(rows[wrong[0]]), layout.date, trouble)
    at = (numbers - numbers[0]) // step
    if 2 * at.size < at[-1] + 1:
        raise UnusableSeries(
            f"{table.file}: its {at.size} rows fill less than half of the {at[-1] + 1} steps of {step}."
        )
    return at, NumberGrid(int(numbers[0]), step)


def _named_apart(series: Sequence[TimedSeries]) -> tuple[TimedSeries, ...]:
    """The series with a number after a name that several have."""
    names = [one.series.item for one in series]
    if len(set(names)) == len(names):
        return tuple(series)
    counts: dict[str, int] = {}
    found = []
    for one in series:
        item = one.series.item
        counts[item] = counts.get(item, 0) + 1
        if counts[item] > 1:
            one = one._replace(series=replace(one.series, item=f"{item} ({counts[item]})"))
        found.append(one)
    return tuple(found)
