"""Columns of a CSV file, a Parquet file or a frame in memory. Those of a CSV hold text, which `cells` converts."""

import csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_integer_dtype

from hrx.errors import HrxError, describe_error, install_command
from hrx.files import MOST_TABLE, read_file, shown_path

from .cells import DATE_NAMES, ID_NAMES, InputTable, holds_dates

MOST_ROWS, MOST_CELLS = 2**22, 2**26
"""Rows and cells of a table: a file can hold far more than its size shows."""
_AS_TEXT: dict[str, Any] = {"dtype": str, "keep_default_na": False, "skipinitialspace": True}
_AS_TEXT |= {"header": 0, "index_col": False, "skip_blank_lines": False}
_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_DATE_IN_HEADER = re.compile(r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2}.*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}.*")


def table_kind(path: Path) -> str:
    """Return `csv` or `parquet`, by the suffix of a file."""
    return "parquet" if path.suffix.lower() in (".parquet", ".pq") else "csv"


def read_table(path: Path, kind: str, *, least: int = 2) -> InputTable:
    """Read a file; `kind` is `csv` or `parquet`. A CSV has at least `least` columns: a date and a value, or a value
    alone where dates are not needed.
    """
    raw = read_file(path, MOST_TABLE)
    file = shown_path(path.name)
    return _read_csv(raw, file, least) if kind == "csv" else _read_parquet(raw, file)


def _read_csv(raw: bytes, file: str, least: int) -> InputTable:
    """Read a CSV with a header: UTF-8, UTF-16 with its mark, or Windows-1252; by comma, semicolon, tab or bar."""
    text, notes = _decode(raw, file)
    body = text.lstrip("\r\n")
    skipped = len(text[: len(text) - len(body)].splitlines())
    if not body.strip():
        raise HrxError(f"{file} is empty. Give a file with a header and rows.")
    header, separator = _header(body, file, least)
    if separator != ",":
        notes.append(f"separated by {_SEPARATORS[separator]}")
    names = unique_names([name or f"column {number}" for number, name in enumerate(header, start=1)], file)
    _check_shape(file, max(body.count("\n"), body.count("\r")), len(names))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame: pd.DataFrame = pd.read_csv(io.StringIO(body), sep=separator, names=names, **_AS_TEXT).fillna("")
    except pd.errors.ParserWarning as error:
        advice = "Complete the header."
        raise HrxError(f"{file}: its rows have more cells than its header ({len(names)}). {advice}") from error
    except pd.errors.ParserError as error:
        long = re.search(r"Expected \d+ fields in line (\d+), saw (\d+)", str(error))
        if long is None:
            reason = f"{describe_error(error)}. Look for an unclosed quotation mark."
            raise HrxError(f"{file} is not a valid CSV table: {reason}") from error
        raise HrxError(
            f"{file}: row {int(long[1]) + skipped} has {long[2]} cells, the header {len(names)}. A separator inside a "
            'text or a number needs quotation marks around the cell: "1,234".'
        ) from error
    filled = (frame != "").any(axis=1).to_numpy()
    kept = frame[filled].reset_index(drop=True)
    index = names[0] if header[0] in ("", "Unnamed: 0", "__index_level_0__") else ""
    return InputTable(file, {name: kept[name] for name in names}, np.flatnonzero(filled) + skipped + 2, index, notes)


def _read_parquet(raw: bytes, file: str) -> InputTable:
    """Read a Parquet file with one value per cell."""
    if not raw.startswith(b"PAR1"):
        raise HrxError(f"{file} is not a Parquet file. If it is text, open it as csv:{file}.")
    try:
        import pyarrow.parquet

        shape = pyarrow.parquet.read_metadata(io.BytesIO(raw))
        _check_shape(file, shape.num_rows, shape.num_columns)
        frame = pd.read_parquet(io.BytesIO(raw), engine="pyarrow")
    except HrxError:
        raise
    except ImportError as error:
        raise HrxError(
            "Reading Parquet needs pyarrow, which is not installed. Save it as CSV, or run: "
            f"{install_command('gift-eval')}"
        ) from error
    except Exception as error:  # whatever pyarrow raises for damaged bytes
        raise HrxError(f"{file} cannot be read as Parquet: {error}. Write it again.") from error
    table = as_table(frame, file, first_row=1)
    for name, column in table.columns.items():
        if column.dtype == object and not all(map(pd.api.types.is_hashable, column)):
            raise HrxError(f"{file}: column {name!r} holds lists or records. Give a file with one value per cell.")
    return table


def _check_shape(file: str, rows: int, columns: int) -> None:
    if rows > MOST_ROWS or rows * columns > MOST_CELLS:
        raise HrxError(
            f"{file} has {rows} rows and {columns} columns; a table has at most {MOST_ROWS} rows and {MOST_CELLS} "
            "cells. Split it."
        )


def as_table(frame: pd.DataFrame, file: str, first_row: int = 0, asked: Sequence[str] = ()) -> InputTable:
    """Return a frame as a table, its rows counted from `first_row`. An index of dates or of names is a column; one
    that counts the rows is not, unless it is `asked` for.
    """
    index = frame.index
    dated = isinstance(index, pd.DatetimeIndex | pd.PeriodIndex)
    if index.dtype == object and not isinstance(index, pd.MultiIndex):
        dated = holds_dates(_column(index))
    known = {*asked, *DATE_NAMES, *ID_NAMES}
    named = index.name is not None and (not is_integer_dtype(index.dtype) or str(index.name).lower() in known)
    if isinstance(index, pd.MultiIndex) or dated or named:
        frame = frame.reset_index(names=["date" if one is None else one for one in index.names])
    if not len(frame.columns):
        raise HrxError(f"{file} has no columns. Give one with values.")
    labels = unique_names([str(one) for one in frame.columns], file)
    columns = {label: _column(frame.iloc[:, number]) for number, label in enumerate(labels)}
    return InputTable(file, columns, np.arange(len(frame)) + first_row, "__index_level_0__")


def _column(values: Any) -> pd.Series:
    """Return a column with positions for an index; periods are the time at which they begin, bytes are text."""
    column = pd.Series(values).reset_index(drop=True)
    if column.dtype == object:
        column = column.map(lambda cell: cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else cell)
    return pd.Series(column.dt.to_timestamp()) if isinstance(column.dtype, pd.PeriodDtype) else column


def _decode(raw: bytes, file: str) -> tuple[str, list[str]]:
    """Return the text of a CSV, and a note where it is not plain UTF-8."""
    if raw.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise HrxError(f"{file} is a workbook, not a CSV. Save the sheet as CSV (UTF-8) and give that file.")
    if raw.startswith(b"PAR1"):
        raise HrxError(f"{file} is a Parquet file. Open it as parquet:{file}.")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return raw.decode("utf-16", "replace"), ["read as UTF-16"]
    if b"\0" in raw[:4096]:
        raise HrxError(f"{file} is not text. Give a CSV file with a header and rows.")
    try:
        return raw.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        pass
    try:
        return raw.decode("cp1252"), ["not UTF-8, read as Windows-1252"]
    except UnicodeDecodeError:  # it has bytes that Windows-1252 does not use
        return raw.decode("latin-1"), ["not UTF-8, read as Latin-1"]


def _header(text: str, file: str, least: int) -> tuple[list[str], str]:
    """Return the cells of the header, and the separator under which most of the first lines are equally long."""
    head = [line for line in text.splitlines()[:50] if line.strip()]
    try:
        tables = {separator: list(csv.reader(head, delimiter=separator)) for separator in _SEPARATORS}
    except csv.Error as error:
        raise HrxError(f"{file} is not a valid CSV table: {error}. Give a file with a header and rows.") from error
    common = {separator: Counter(map(len, rows)).most_common(1)[0] for separator, rows in tables.items()}
    separator = max(_SEPARATORS, key=lambda each: (common[each][0] > 1, common[each][1], common[each][0]))
    width, header = common[separator][0], [cell.strip() for cell in tables[separator][0]]
    dates = sum(bool(_DATE_IN_HEADER.fullmatch(cell)) for cell in header)
    if width < least:
        raise HrxError(
            f"{file} has one column, {header[0][:40]!r}; a date and a value are needed, separated by "
            f"{', '.join(_SEPARATORS.values())}."
        )
    if len(header) != width:
        raise HrxError(
            f"{file}: row 1 has {len(header)} cells, most rows have {width}. The first row must be the header, one "
            "name per column: delete what stands above it, or complete it."
        )
    if dates > 1:
        raise HrxError(
            f"{file} has its dates across the first row. Transpose it: one row per date, a column per series."
        )
    if dates or (width == 1 and pd.notna(pd.to_numeric(header[0], errors="coerce"))):
        kind, example = ("date", "date,value") if dates else ("number", "value")
        raise HrxError(f"{file} has no header: its first row holds a {kind}. Add a first row such as {example}.")
    return header, separator


def unique_names(names: list[str], file: str) -> list[str]:
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise HrxError(f"{file} has {count} columns called {name!r}. Give each its own name.")
    return names
