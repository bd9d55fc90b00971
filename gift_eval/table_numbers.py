"""From the cells of a table to numbers: missing values, thousands separators, decimal commas.

A spreadsheet's convention is one for all its columns, so it is decided over all of them together, and only where
the cells leave no doubt; a cell that is no number under it is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hrx.errors import HrxError

from .series import Floats
from .table_files import Table

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "-"})
_NUMBERLIKE = re.compile(r"[+-]?[\d.,'’\s]*\d[\d.,'’\s]*(?:[eE][+-]?\d+)?")
_GROUP_GAP = re.compile(r"(?<=\d)[\s'’](?=\d{3}(?:\D|$))")
_THOUSANDS = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d*)?(?:[eE][+-]?\d+)?")
# 1,234 alone is both a thousand and one and a bit; 0,234 is not.
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


class Numbers(NamedTuple):
    """`values` (N, C), NaN where missing, and what was found out about how they are written."""

    values: Floats
    notes: tuple[str, ...]


def is_numeric(column: pd.Series) -> bool:
    """Whether a column holds numbers: by its type, or because more than half of its filled cells look like one."""
    if pd.api.types.is_bool_dtype(column.dtype):
        return False
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return False
    if _has_number_type(column) or _as_they_stand(column) is not None:
        return True
    like = {True: 0, False: 0}
    for cell, count in column.value_counts().items():
        text = str(cell).strip()
        if text.lower() not in MISSING:
            like[bool(_NUMBERLIKE.fullmatch(text))] += int(count)
    return like[True] > like[False]


def is_empty(column: pd.Series) -> bool:
    """Whether no cell of a column holds anything."""
    return all(str(cell).strip().lower() in MISSING for cell in pd.unique(column.dropna()))


def parse_numbers(table: Table, names: Sequence[str], decimal: str) -> Numbers:
    """The columns `names` as numbers. `decimal` is the decimal sign, or empty to find it out."""
    read = {name: _as_they_stand(table.columns[name]) for name in names}
    texts = {name: _text(table.columns[name]) for name, numbers in read.items() if numbers is None}
    decimal, notes = _convention(table, texts, decimal)
    for name in names:
        numbers = read[name]
        # A decimal comma anywhere turns the points of every column into separators.
        if numbers is None or (decimal == "," and not _has_number_type(table.columns[name])):
            cells = texts[name] if name in texts else _text(table.columns[name])
            read[name] = _numbers(table, name, cells, decimal)
    return Numbers(np.stack([numbers for numbers in read.values() if numbers is not None], axis=1), tuple(notes))


def _as_they_stand(column: pd.Series) -> Floats | None:
    """(N,): numbers by their type, or text of which every cell is a plain number; None for any other column."""
    if _has_number_type(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    if pd.api.types.is_datetime64_any_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype):
        return None
    numbers = pd.to_numeric(column.astype(object), errors="coerce").to_numpy(dtype=np.float64)
    return None if np.isnan(numbers).any() else numbers


def _has_number_type(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)


def _text(column: pd.Series) -> NDArray[np.object_]:
    """Cells without the space around them and between groups of three digits; a missing one is empty."""
    codes, cells = pd.factorize(column.astype(object), use_na_sentinel=True)
    stripped = [str(cell).strip() for cell in cells]
    tidy = ["" if cell.lower() in MISSING else _GROUP_GAP.sub("", cell) for cell in stripped]
    return np.array([*tidy, ""], dtype=object)[codes]


def _convention(table: Table, texts: dict[str, NDArray[np.object_]], decimal: str) -> tuple[str, list[str]]:
    """The decimal sign of the file, and a note where commas had to be understood."""
    with_comma = [cell for cells in texts.values() for cell in pd.unique(cells) if "," in cell]
    if decimal or not with_comma:
        return decimal or ".", [f"decimal sign {decimal!r} as given"] if decimal else []
    thousands = _first(cell for cell in with_comma if _THOUSANDS.fullmatch(cell) and not _DECIMAL_COMMA.fullmatch(cell))
    comma = _first(cell for cell in with_comma if _DECIMAL_COMMA.fullmatch(cell) and not _EITHER.fullmatch(cell))
    if thousands and comma:
        raise HrxError(
            f"{table.file} writes numbers in two ways: {thousands!r} has commas between thousands, {comma!r} a decimal "
            "comma. Write all of them one way."
        )
    either = _first(cell for cell in with_comma if _EITHER.fullmatch(cell))
    if either and not (thousands or comma):
        raise HrxError(
            f"{table.file} does not say what the comma in {either!r} is: {either.replace(',', '')} or "
            f"{either.replace(',', '.')}? Add decimal=. (the comma separates thousands) or decimal=, to the source."
        )
    if comma:
        return ",", [f"decimal commas understood ({comma!r})"]
    return ".", [f"thousands separators understood ({thousands!r})"] if thousands else []


def _first(cells: Iterable[str]) -> str:
    return next(iter(cells), "")


def _numbers(table: Table, name: str, cells: NDArray[np.object_], decimal: str) -> Floats:
    """(N,): the cells as numbers under one convention."""
    codes, unique = pd.factorize(cells)
    pattern = _DECIMAL_COMMA if decimal == "," else _THOUSANDS
    plain = [_plain(cell, decimal) if pattern.fullmatch(cell) else cell for cell in unique]
    # Under a decimal comma a point separates thousands, so that 1.5 is no number.
    wrong = [decimal == "," and "." in cell and not pattern.fullmatch(cell) for cell in unique]
    numbers = pd.to_numeric(pd.Series(plain, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    parsed = np.where(wrong, np.nan, numbers)
    bad = np.isnan(parsed) & (unique != "")
    if bad.any():
        positions = np.flatnonzero(bad[codes])
        others = f" ({len(positions)} cells of this column are not.)" if len(positions) > 1 else ""
        raise HrxError(
            f"{table.where(int(positions[0]), name)}: {cells[positions[0]]!r} is not a number.{others} Write plain "
            "numbers, without units or currencies, and leave missing ones empty."
        )
    return np.asarray(parsed[codes], dtype=np.float64)


def _plain(cell: str, decimal: str) -> str:
    return cell.replace(".", "").replace(",", ".") if decimal == "," else cell.replace(",", "")
