"""The sets of the Time-Series-Library with its official splits, from files that the user supplies.

`tslib:DIR[:NAME,…]` reads:

    DIR/{ETT-small/ETTh1.csv, weather/weather.csv, Solar/solar_AL.txt, PEMS/PEMS03.npz, …}

The library's univariate experiments take the column `OT` of a CSV file, so such a set has one series. Solar and PEMS
have no target: each of their columns is a series, and an audit takes `--series` of them at even intervals, as the
paper does. A file with another number of rows than the official one would have other splits and is refused. Opening a
directory reads headers; values are read when a series is.
"""

import os
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hrx.errors import HrxError, describe_error, unknown
from hrx.files import MOST_MAPPED, regular_file, user_path
from hrx.records.quantities import Floats

from . import frequency
from .catalogue import PaperDataset, tslib_sets
from .series import DamagedDataset, Dataset, OfficialSplit, StoredSeries, naming

TARGET = "OT"
_ETT_MONTH = {"H": 30 * 24, "15T": 30 * 24 * 4}
"""Rows of a month of 30 days."""


def open_tslib(text: str | None) -> list[Dataset]:
    """Return the sets in `DIR`, or those named in `DIR:NAME,…`; `text` is what follows `tslib:`."""
    if not text:
        raise HrxError("tslib: needs a directory. Write tslib:DIR or tslib:DIR:NAME,…, as in tslib:dataset:ETTh1.")
    root, names = user_path(text), list[str]()
    if not os.path.isdir(root) and ":" in text:  # the directory's own name may contain a colon
        head, _, tail = text.rpartition(":")
        root, names = user_path(head), [name.strip() for name in tail.split(",")]
    if not os.path.isdir(root):
        raise HrxError(f"{root} is not a directory. Give the Time-Series-Library's dataset directory.")
    known = {each.name.casefold(): each for each in tslib_sets()}
    for name in names:
        if name.casefold() not in known:
            raise HrxError(unknown("set of the Time-Series-Library", name, [each.name for each in tslib_sets()]))
    chosen = list({name: known[name] for name in map(str.casefold, names or known)}.values())
    found = []
    for each in chosen:
        # In its folder, or directly in the directory.
        places = (path for path in (root / each.file, root / Path(each.file).name) if os.path.lexists(path))
        if (path := next(places, None)) is not None:
            found.append(_open(each, path))
        elif names:
            raise HrxError(f"{each.name} is not under {root}: {each.file} does not exist. Copy the file there.")
    if not found:
        raise HrxError(
            f"No set of the Time-Series-Library is under {root}. Give its dataset directory, with files such as "
            f"{chosen[0].file}; `hrx datasets` lists them."
        )
    return found


def split_rows(each: PaperDataset) -> OfficialSplit:
    """Return where the library's loader splits a set, and where its test split ends.

    It splits by rows: ETT at 12, 16 and 20 months of 30 days, and nothing after; PEMS at 60 and 80 %, where a test
    window does not read rows before the test split; the others at 70 and 80 %. The training rows alone scale a series.
    """
    name, rows = each.name, each.rows or 0
    if name.startswith("ETT"):
        month = _ETT_MONTH["H" if name.startswith("ETTh") else "15T"]
        return OfficialSplit(train=12 * month, test=16 * month, end=20 * month)
    if name.startswith("PEMS"):
        return OfficialSplit(train=int(0.6 * rows), test=int(0.8 * rows), end=rows, lookback_inside=True)
    return OfficialSplit(train=int(rows * 0.7), test=rows - int(rows * 0.2), end=rows)


@dataclass(frozen=True)
class _File:
    """File of one set: its values (T, S) up to the end of the test split."""

    about: PaperDataset
    path: Path

    def row(self, index: int) -> StoredSeries:
        values = np.ascontiguousarray(self._values()[:, index])
        return StoredSeries(TARGET if _has_target(self.about) else str(index), values)

    def sizes(self) -> list[int]:
        rows, series = self._values().shape
        return [rows] * series

    def _values(self) -> Floats:
        with naming(self.about.name):
            values = _values(self.path, self.about)
            if len(values) != self.about.rows:
                raise DamagedDataset(
                    f"{self.about.file} has {len(values)} rows of values; the official file has {self.about.rows}, and "
                    "its splits count them. Copy the official file, or open yours as csv:FILE."
                )
            return values[: split_rows(self.about).end]


def _open(each: PaperDataset, path: Path) -> Dataset:
    """Return the dataset of a file, or the reason why it cannot be read."""
    try:
        with naming(each.name):
            try:
                regular_file(path, MOST_MAPPED)
            except HrxError as error:
                raise DamagedDataset(str(error)) from error
            count = _count_npz(path, each) if each.file.endswith(".npz") else len(_header(path, each))
    except DamagedDataset as error:
        return Dataset.damaged(each.name, str(error))
    split, target = split_rows(each), _has_target(each)
    file, count = _File(each, path), 1 if target else count
    inside = ", which holds whole windows" if split.lookback_inside else ""
    test = f"rows {split.test + 1} to {split.end} of {each.rows} are the test split{inside}"
    note = f"{f'the column {TARGET}' if target else 'every column'}; rows 1 to {split.train} scale a series, {test}"
    about = (each.name, each.frequency, frequency.season(each.frequency), "General", count, file.row)
    return Dataset(*about, note=note, sizes=file.sizes, official=split)


def _has_target(each: PaperDataset) -> bool:
    return each.file.endswith(".csv")


def _header(path: Path, each: PaperDataset) -> list[str]:
    """Return the cells of the first line. The header of weather.csv is not UTF-8; names in ASCII alone are needed."""
    try:
        with path.open("rb") as stream:
            line = stream.readline(1 << 20)
    except OSError as error:
        raise DamagedDataset(f"{each.file} cannot be read: {error.strerror}.") from error
    cells = [cell.strip('" ') for cell in line.decode("utf-8-sig", "replace").rstrip("\r\n").split(",")]
    if cells == [""]:
        raise DamagedDataset(f"{each.file} is empty. Copy it again.")
    if _has_target(each) and (cells[0] != "date" or TARGET not in cells):
        listed = ", ".join(cells[:8]) + (", …" if len(cells) > 8 else "")
        raise DamagedDataset(f"{each.file} has the columns {listed}; expected date first, and {TARGET}.")
    return cells


def _count_npz(path: Path, each: PaperDataset) -> int:
    """Return the number of sensors, from the header of the array `data`."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("data.npy") as stream:
            version = np.lib.format.read_magic(stream)
            reader: Any = np.lib.format.read_array_header_1_0
            shape, _, dtype = (reader if version == (1, 0) else np.lib.format.read_array_header_2_0)(stream)
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise DamagedDataset(
            f"{each.file} cannot be read: {describe_error(error)}. Expected an .npz file with the array data."
        ) from error
    if len(shape) != 3 or dtype.kind not in "fiu" or 0 in shape:
        raise DamagedDataset(
            f"{each.file}: data has the shape {shape} and type {dtype}; expected numbers (rows, sensors, features)."
        )
    return int(shape[1])


@lru_cache(maxsize=4)
def _values(path: Path, each: PaperDataset) -> Floats:
    """Return all values (T, S) of a file: one column of a CSV file, the first feature of PEMS."""
    try:
        if each.file.endswith(".npz"):
            with np.load(path, allow_pickle=False) as archive:
                return np.asarray(archive["data"][:, :, 0], dtype=np.float64)
        header, skipped = _header(path, each), int(_has_target(each))
        columns: Any = [header.index(TARGET)] if skipped else range(len(header))
        table = pd.read_csv(
            path, header=None, skiprows=skipped, usecols=columns, encoding="latin-1", skip_blank_lines=False
        )
    except (ValueError, OSError, zipfile.BadZipFile) as error:  # pandas' ParserError is a ValueError
        raise DamagedDataset(f"{each.file} cannot be read: {describe_error(error)}. Copy it again.") from error
    for place, name in zip(columns, table.columns, strict=True):
        numbers = pd.to_numeric(table[name], errors="coerce")
        wrong = np.flatnonzero(numbers.isna() & table[name].notna())
        if wrong.size:
            cell = str(table[name].iloc[wrong[0]])[:40]
            trouble = f"row {wrong[0] + 1 + skipped}, column {place + 1}: {cell!r} is not a number. Correct it."
            raise DamagedDataset(f"{each.file}, {trouble}")
        table[name] = numbers
    return table.to_numpy(dtype=np.float64)
