"""A person's own table as a dataset: `csv:FILE` and `parquet:FILE`, long or wide, with options after a `?`.

Long has a row per date and series, wide a row per date and a column per series. What is not said is found out and
stated in the dataset's `note`, or refused with a sentence that names file, row and column. Which column is what is
left to `table_layout`, how cells are read to `table_files`, `table_dates` and `table_numbers`, the grid to
`table_grid`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hrx.errors import HrxError

from . import frequency
from .series import Dataset, Floats, Row, UnusableSeries
from .table_dates import Stamps, parse_dates
from .table_files import Table, read_csv, read_parquet
from .table_grid import common_steps, infer, slots, words
from .table_layout import Layout, lay_out
from .table_numbers import parse_numbers
from .table_options import Options, parse_source

MOST_EMPTY = 0.5
"""A series of whose steps more than this share has no row is no series of that frequency."""


@dataclass(frozen=True)
class Observations:
    """What a table holds, its N rows sorted by series and date.

    `values` (N, C), `stamps` (N,), `codes` (N,) which of `names` a row belongs to, and its row number in the file.
    `names` stand in the order of the file; a wide table has one, which is empty.
    """

    table: Table
    layout: Layout
    options: Options
    names: tuple[str, ...]
    codes: NDArray[np.int64]
    stamps: Stamps
    values: Floats
    rows: NDArray[np.int64]
    notes: tuple[str, ...]

    @property
    def sections(self) -> list[slice]:
        """Where the rows of each series are."""
        ends = np.searchsorted(self.codes, np.arange(len(self.names) + 1))
        return [slice(int(start), int(end)) for start, end in pairwise(ends)]


@dataclass(frozen=True)
class Placed:
    """One series, or one item of several, on its grid: `values` (C, T), or the `reason` why it cannot be used."""

    name: str
    values: Floats
    empty: int = 0
    reason: str = ""


@dataclass(frozen=True)
class PlacedRows:
    """The rows of a dataset that was read from a table."""

    dataset: str
    placed: tuple[Placed, ...]
    columns: tuple[str, ...]

    def row(self, index: int) -> Row:
        """The series at `index`: the columns of the first name, then those of the second."""
        which, column = divmod(index, len(self.columns))
        found = self.placed[which]
        # A long table with one column of values names its series by their ids alone.
        variate = self.columns[column] if len(self.columns) > 1 or not found.name else ""
        if found.reason:
            raise UnusableSeries(f"{self.dataset} series {found.name or variate}: {found.reason}")
        return Row(found.name, found.values[column], variate)


def open_table(kind: str, text: str) -> list[Dataset]:
    """The dataset of a table; `kind` is `csv` or `parquet`, `text` what follows the colon."""
    found = observe(kind, text)
    sections = found.sections
    asked = found.options.frequency
    name = asked or _inferred(found, [found.stamps[section] for section in sections])
    placed = tuple(_place(found, number, section, name) for number, section in enumerate(sections))
    _check_usable(found.table, placed)
    notes = [*found.notes, f"frequency {name}, {'as given' if asked else 'inferred'}"]
    empty = sum(series.empty for series in placed)
    if empty:
        notes.append(f"{empty} {'step has' if empty == 1 else 'steps have'} no row and count as missing")
    return [dataset(f"{Path(found.table.file).stem}/{name}", name, "", placed, found.layout.values, notes)]


def dataset(
    name: str, frequency_name: str, domain: str, placed: tuple[Placed, ...], columns: tuple[str, ...], notes: list[str]
) -> Dataset:
    """The dataset of series on their grids, `columns` being the variates of each."""
    rows = PlacedRows(name, placed, columns)
    count = len(placed) * len(columns)
    season = frequency.season(frequency_name)
    note = "; ".join(notes)
    return Dataset(name, frequency_name, season, domain, count, rows.row, variates=len(columns), note=note)


def observe(kind: str, text: str) -> Observations:
    """Read a table, find out what its columns are, and sort its rows by series and date."""
    path, options = parse_source(text)
    table = read_csv(path) if kind == "csv" else read_parquet(path)
    return arrange(table, lay_out(table, options), options)


def arrange(table: Table, layout: Layout, options: Options) -> Observations:
    """The rows of a table sorted by series and date; two rows of one series and date are refused."""
    dates = parse_dates(table, layout.date, options.day_first)
    numbers = parse_numbers(table, layout.values, options.decimal)
    names, codes = _series(table, layout.ids)
    order = np.lexsort((dates.stamps, codes))
    stamps, codes = dates.stamps[order], codes[order]
    _check_repeats(table, layout, names, codes, stamps, order)
    notes = [*table.notes, layout.note, *dates.notes, *numbers.notes]
    if (np.diff(order)[np.diff(codes) == 0] < 0).any():
        notes.append("rows were not in the order of time and have been sorted")
    return Observations(
        table, layout, options, names, codes, stamps, numbers.values[order], table.rows[order], tuple(notes)
    )


def _series(table: Table, ids: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of the series in the order of the file, and which of them each row belongs to."""
    if not ids:
        return ("",), np.zeros(len(table.rows), dtype=np.int64)
    columns = [table.columns[name].astype(object).fillna("").astype(str).str.strip() for name in ids]
    for name, column in zip(ids, columns, strict=True):
        empty = np.flatnonzero(column == "")
        if empty.size:
            raise HrxError(
                f"{table.where(int(empty[0]), name)}: the series has no name. Fill it in, or delete the row."
            )
    joined = np.array(["/".join(cells) for cells in zip(*columns, strict=True)], dtype=object)
    codes, names = pd.factorize(joined)
    return tuple(str(name) for name in names), codes.astype(np.int64)


def _check_repeats(
    table: Table,
    layout: Layout,
    names: Sequence[str],
    codes: NDArray[np.int64],
    stamps: Stamps,
    order: NDArray[np.int64],
) -> None:
    same = np.flatnonzero((np.diff(codes) == 0) & (np.diff(stamps) == np.timedelta64(0, "s")))
    if same.size == 0:
        return
    first, second = sorted(int(table.rows[order[same[0] + step]]) for step in (0, 1))
    of = f" of {names[codes[same[0]]]!r}" if layout.ids else ""
    advice = "Delete one of them, or add them up"
    if not layout.ids:
        advice += "; if the file holds several series, say which column names them: id=NAME"
    if _is_hour_of_clock_change(stamps[same[0]]):
        advice += "; if the clock went back then, write times in UTC or with their offset"
    raise HrxError(
        f"{table.file}, rows {first} and {second}, column {layout.date!r}: two rows{of} have the date "
        f"{shown(stamps[same[0]])}{f' ({same.size} such pairs)' if same.size > 1 else ''}. {advice}."
    )


def _inferred(found: Observations, series: Sequence[Stamps]) -> str:
    name = infer(series)
    if not name:
        raise HrxError(
            f"{found.table.file} has one date per series, so its frequency cannot be inferred. Give more rows, or say "
            "it: frequency=D."
        )
    return name


def _place(found: Observations, number: int, section: slice, name: str) -> Placed:
    """One series on the grid of its frequency, counted from its first date."""
    stamps, label = found.stamps[section], found.names[number]
    at = slots(stamps, name)
    wrong = np.flatnonzero((at < 0) | (np.diff(at, prepend=-1) == 0))
    if wrong.size:
        raise HrxError(_off_grid(found, section, int(wrong[0]), name))
    length = int(at[-1]) + 1
    empty = length - at.size
    if empty > MOST_EMPTY * length:
        reason = (
            f"its {at.size} dates fill less than half of the {length} steps of frequency {name} between the first and "
            f"the last; its steps are {common_steps(stamps)}. Mixed frequencies cannot be used."
        )
        return Placed(label, np.empty((len(found.layout.values), 0)), reason=reason)
    values = np.full((len(found.layout.values), length), np.nan)
    values[:, at] = found.values[section].T
    return Placed(label, values, empty)


def _off_grid(found: Observations, section: slice, wrong: int, name: str) -> str:
    stamps, row = found.stamps[section], found.rows[section][wrong]
    before = max(wrong - 1, 0)
    step = words(int((stamps[wrong] - stamps[before]).astype(np.int64)))
    said = "the frequency given" if found.options.frequency else "the frequency of most rows"
    return (
        f"{found.table.file}, row {row}, column {found.layout.date!r}: {shown(stamps[wrong])} is {step} after the "
        f"date before it (row {found.rows[section][before]}), which does not fit {name}, {said}. The steps are "
        f"{common_steps(stamps)}. Correct the date, bring all rows to one frequency, or say it: frequency=NAME."
    )


def _check_usable(table: Table, placed: Sequence[Placed]) -> None:
    """A series that cannot be used is recorded as such; a table without any that can is refused."""
    if any(np.isfinite(series.values).any() for series in placed):
        return
    reason = next((series.reason for series in placed if series.reason), "all its values are missing.")
    raise HrxError(f"{table.file} has no series that can be used: {reason}")


def _is_hour_of_clock_change(stamp: np.datetime64) -> bool:
    """Whether a repeated time is within the hours in which clocks go back: at night, in autumn, north or south."""
    time = pd.Timestamp(stamp)
    return time.month in (3, 4, 10, 11) and 0 <= time.hour <= 3 and time.floor("D") != time


def shown(stamp: np.datetime64) -> str:
    """A date for a sentence, with its time where it has one."""
    text = str(stamp.astype("datetime64[s]")).replace("T", " ")
    return text.removesuffix(" 00:00:00") if text.endswith(" 00:00:00") else text.removesuffix(":00")
