"""The checksum of a stored row: sha256 over the name, type and value of every column that is not NULL.

Columns count in the order of their names, and NULL ones not at all, so that a column which a later schema adds changes
no stored checksum. Floats count by their bits. Encoding a row by type costs a third of encoding it as JSON.
"""

import hashlib
import math
import operator
import struct
from collections.abc import Sequence
from itertools import compress
from typing import Literal

Kind = Literal["TEXT", "INTEGER", "REAL", "BLOB"]
Cell = str | int | float | bytes | None
CHECKSUM = "checksum"
"""Name of the column."""
_TYPES: dict[Kind, type] = {"TEXT": str, "INTEGER": int, "REAL": float, "BLOB": bytes}


class RowChecksum:
    """Computes the checksums of rows whose cells belong to `names`, which must be sorted."""

    def __init__(self, names: Sequence[str]):
        if list(names) != sorted(names):
            raise ValueError("the names of the columns are not sorted")
        self._names = names
        self._layouts: dict[tuple[type, ...], _Layout] = {}

    def __call__(self, row: Sequence[Cell]) -> str:
        """64 hexadecimal digits; the cells are as SQLite returns them."""
        types = tuple(map(type, row))
        layout = self._layouts.get(types)
        if layout is None:
            layout = self._layouts[types] = _Layout(self._names, types)
        return layout.checksum(row)


class _Layout:
    """How rows are encoded that have the same types in the same columns."""

    def __init__(self, names: Sequence[str], types: Sequence[type]):
        present = [(name, kind.__name__) for name, kind in zip(names, types, strict=True) if kind is not type(None)]
        self._start = hashlib.sha256(ascii(present).encode())
        self._numbers, self._texts, self._blobs = ([kind in some for kind in types] for some in _ENCODED)
        numbers = "".join("d" if kind is float else "q" for kind in compress(types, self._numbers))
        lengths = "q" * (sum(self._texts) + sum(self._blobs))
        self._pack = struct.Struct(f"<{numbers}{lengths}").pack

    def checksum(self, row: Sequence[Cell]) -> str:
        texts, blobs = tuple(compress(row, self._texts)), tuple(compress(row, self._blobs))
        digest = self._start.copy()
        digest.update(self._pack(*compress(row, self._numbers), *map(len, texts), *map(len, blobs)))  # type: ignore[arg-type]
        digest.update("".join(texts).encode("utf-8", "surrogatepass"))  # type: ignore[arg-type]
        digest.update(b"".join(blobs))  # type: ignore[arg-type]
        return digest.hexdigest()


_ENCODED = ((int, float), (str,), (bytes,))


def as_stored(kind: Kind, value: object) -> Cell:
    """A value as SQLite returns it from a column of this kind; a `TypeError` where it does not belong there.

    SQLite has no NaN, which it stores as NULL, and no negative zero in a REAL column.
    """
    if value is None:
        return None
    if kind == "REAL":
        number = float(value)  # type: ignore[arg-type]
        return None if math.isnan(number) else number + 0.0
    if kind == "INTEGER":
        return int(operator.index(value))  # type: ignore[arg-type]  # True is an index of its own type
    if not isinstance(value, _TYPES[kind]):
        raise TypeError(f"{type(value).__name__} in a column of type {kind}")
    return _TYPES[kind](value)  # type: ignore[no-any-return]  # a subclass, such as torch's version, becomes plain


def wrong_cell(names: Sequence[str], kinds: Sequence[Kind | None], row: Sequence[Cell]) -> str:
    """What is wrong with the first cell that does not have its column's type; empty where all have. None: any type."""
    for name, kind, value in zip(names, kinds, row, strict=True):
        if value is not None and kind is not None and type(value) is not _TYPES[kind]:
            found = {str: "text", int: "a whole number", float: "a number", bytes: "bytes"}[type(value)]
            return f"its column {name} holds {found} where {kind} belongs"
        if isinstance(value, str) and not _is_text(value):
            return f"its column {name} holds text that is not UTF-8"
    return ""


def _is_text(value: str) -> bool:
    """Whether the text can be encoded: bytes that are not UTF-8 are read as lone surrogates."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
