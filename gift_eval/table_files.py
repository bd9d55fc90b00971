"""From a file of a person's own to columns: encoding, separator and header of a CSV, the columns of a Parquet file.

What the columns mean (dates, numbers, which series) is left to the other `table_*` modules and to `tables`.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hrx.errors import HrxError

from .store import readable

_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_SAMPLE_LINES = 50
_DATE_IN_HEADER = re.compile(r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2}.*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}.*")


@dataclass(frozen=True)
class Table:
    """The columns of one file by name; those of a CSV are text as it stands, those of a Parquet file have types.

    `rows` (N,) are the numbers a person sees: in a CSV the header is row 1. `notes` say what was found out.
    """

    file: str
    columns: dict[str, pd.Series]
    rows: NDArray[np.int64]
    notes: tuple[str, ...] = ()

    def where(self, position: int, column: str) -> str:
        """How a sentence names one cell."""
        return f"{self.file}, row {self.rows[position]}, column {column!r}"


def read_csv(path: Path, *, least: int = 2) -> Table:
    """A CSV with a header: UTF-8, UTF-16 with its mark, or Latin-1; separated by comma, semicolon, tab or bar.

    It must have at least `least` columns: a date and a value, or only a value where no dates are needed.
    """
    file = readable(path.name)
    text, notes = _decode(_bytes(path), file)
    if not text.strip():
        raise HrxError(f"{file} is empty. Give a file with a header and rows.")
    blank = len(text) - len(text.lstrip("\r\n"))
    skipped = len(text[:blank].splitlines())
    header, separator = _header(text[blank:], file, least)
    if separator != ",":
        notes.append(f"separated by {_SEPARATORS[separator]}")
    frame = _frame(text[blank:], header, separator, file, skipped)
    filled = np.asarray((frame != "").any(axis=1))
    if not filled.any():
        raise HrxError(f"{file} has a header and no rows below it. Give a file with at least a date and a value.")
    rows = np.flatnonzero(filled) + skipped + 2
    kept = frame[filled].reset_index(drop=True)
    return Table(file, {name: kept[name] for name in header}, rows, tuple(notes))


def read_parquet(path: Path) -> Table:
    """A Parquet file with flat columns; the index that pandas stored is a column like the others."""
    file = readable(path.name)
    if not _bytes(path, 4).startswith(b"PAR1"):
        raise HrxError(f"{file} is no Parquet file. If it is text, open it as csv:{file}.")
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise HrxError(
            "Reading Parquet needs pyarrow, which is not installed. pip install 'hrx[gift-eval]', or save the "
            "table as CSV."
        ) from error
    try:
        with path.open("rb") as opened:
            frame = pyarrow.parquet.read_table(opened).to_pandas()
    except (OSError, pyarrow.ArrowException) as error:
        raise HrxError(f"{file} cannot be read as Parquet: {error}. Write it again.") from error
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    names = [str(name) for name in frame.columns]
    _check_names(names, file)
    if frame.empty:
        raise HrxError(f"{file} has no rows. Give a file with at least a date and a value.")
    columns = {name: frame.iloc[:, number] for number, name in enumerate(names)}
    return Table(file, columns, np.arange(1, len(frame) + 1))


def _bytes(path: Path, size: int = -1) -> bytes:
    try:
        with path.open("rb") as opened:
            return opened.read(size)
    except FileNotFoundError as error:
        raise HrxError(f"There is no file {readable(str(path))}. Check the name, and the folder you are in.") from error
    except OSError as error:
        raise HrxError(f"{readable(str(path))} cannot be read: {error.strerror}.") from error


def _decode(raw: bytes, file: str) -> tuple[str, list[str]]:
    """The text of a CSV, and a note where it is not plain UTF-8."""
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
        return raw.decode("latin-1"), ["not UTF-8, read as Latin-1"]


class _Header(NamedTuple):
    names: list[str]
    separator: str


def _header(text: str, file: str, least: int) -> _Header:
    """The names of the columns, and the separator under which the first lines look most like a table."""
    head = "\n".join(line for line in text.splitlines()[:_SAMPLE_LINES] if line.strip())
    try:
        tables = {separator: list(csv.reader(io.StringIO(head), delimiter=separator)) for separator in _SEPARATORS}
    except csv.Error as error:
        raise HrxError(f"{file} is no table: {error}. Give a CSV file with a header and rows.") from error
    common = {s: Counter(map(len, rows)).most_common(1)[0] for s, rows in tables.items()}
    separator = max(_SEPARATORS, key=lambda s: (common[s][0] > 1, common[s][1], common[s][0]))
    width, first = common[separator][0], tables[separator][0]
    if width < least:
        raise HrxError(
            f"{file} has one column, {first[0][:40]!r}; a date and a value are needed, separated by "
            f"{', '.join(_SEPARATORS.values())}."
        )
    if len(first) != width:
        raise HrxError(
            f"{file}: row 1 has {len(first)} cells, most rows have {width}. The first row must be the header, one "
            "name per column: delete what stands above it, or complete it."
        )
    dates = sum(bool(_DATE_IN_HEADER.fullmatch(cell.strip())) for cell in first)
    if dates > 1:
        raise HrxError(
            f"{file} has its dates across the first row. Transpose it: one row per date, one column per series."
        )
    if dates:
        raise HrxError(f"{file} has no header: its first row holds a date. Add a first row such as date,value.")
    if width == 1 and _is_number(first[0]):
        raise HrxError(f"{file} has no header: its first row holds a number. Add a first row such as value.")
    names = [cell.strip() or f"column {number}" for number, cell in enumerate(first, start=1)]
    _check_names(names, file)
    return _Header(names, separator)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _check_names(names: list[str], file: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise HrxError(f"{file} has {names.count(twice[0])} columns called {twice[0]!r}. Give each its own name.")


def _frame(text: str, names: list[str], separator: str, file: str, skipped: int) -> pd.DataFrame:
    """All cells as text; a cell that its row does not have is empty."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                io.StringIO(text),
                sep=separator,
                header=0,
                names=names,
                dtype=str,
                keep_default_na=False,
                skip_blank_lines=False,
                skipinitialspace=True,
                index_col=False,
            )
    except pd.errors.ParserWarning as error:
        raise HrxError(
            f"{file}: its rows have more cells than its header has names ({len(names)}). Complete the header."
        ) from error
    except pd.errors.ParserError as error:
        raise HrxError(_torn(str(error), file, len(names), skipped)) from error
    return frame.fillna("") if frame.iloc[:, -1].isna().any() else frame


def _torn(reason: str, file: str, width: int, skipped: int) -> str:
    """The sentence for a row that is no row of the table."""
    extra = re.search(r"Expected \d+ fields in line (\d+), saw (\d+)", reason)
    if extra:
        return (
            f"{file}: row {int(extra[1]) + skipped} has {extra[2]} cells, the header {width}. A separator inside a "
            'text or a number needs quotation marks around the cell: "1,234".'
        )
    return f"{file} is no table: {reason.removeprefix('Error tokenizing data. ')}. Look for an unclosed quotation mark."
