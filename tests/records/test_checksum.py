"""The checksum of a row, against the definition written out."""

import hashlib
import struct
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.records import record

from hrx.records.checksum import Cell, RowChecksum, as_stored, wrong_cell
from hrx.records.ledger import Ledger

ROW: dict[str, Cell] = {"b": 0.1, "a": 7, "e": "ŷ ≠ y", "c": None, "d": b"\x00\xff", "f": "", "g": -3.5}


def checksum(row: dict[str, Cell]) -> str:
    names = sorted(row)
    return RowChecksum(names)([row[name] for name in names])


def by_definition(row: dict[str, Cell]) -> str:
    present = [(name, value) for name, value in sorted(row.items()) if value is not None]
    text = "[" + ", ".join(f"('{name}', '{type(value).__name__}')" for name, value in present) + "]"
    encoded = text.encode()
    for _, value in present:
        if isinstance(value, int | float):
            encoded += struct.pack("<d" if isinstance(value, float) else "<q", value)
    texts = [value for _, value in present if isinstance(value, str)]
    blobs = [value for _, value in present if isinstance(value, bytes)]
    for part in (*texts, *blobs):
        encoded += struct.pack("<q", len(part))
    encoded += "".join(texts).encode() + b"".join(blobs)
    return hashlib.sha256(encoded).hexdigest()


def test_the_checksum_is_that_of_the_definition() -> None:
    assert checksum(ROW) == by_definition(ROW)
    assert checksum({"only": "text"}) == by_definition({"only": "text"})
    assert checksum({"nothing": None}) == hashlib.sha256(b"[]").hexdigest()


def test_a_column_that_is_added_later_changes_no_checksum() -> None:
    assert checksum(ROW | {"added": None}) == checksum(ROW)
    assert checksum(ROW | {"added": 0}) != checksum(ROW)


def test_every_other_value_type_column_or_division_of_texts_has_another_checksum() -> None:
    rows: list[dict[str, Cell]] = [
        {"a": 1, "b": None}, {"a": 1.0, "b": None}, {"a": "1", "b": None}, {"a": b"1", "b": None}, {"a": None, "b": 1},
        {"a": 0, "b": None}, {"a": None, "b": None}, {"a": "", "b": None}, {"a": b"", "b": None},
        {"a": "xy", "b": "z"}, {"a": "x", "b": "yz"}, {"a": b"xy", "b": b"z"}, {"a": "z", "b": "xy"},
        {"a": 0.1, "b": 0.2}, {"a": 0.2, "b": 0.1}, {"a": np.nextafter(0.1, 1).item(), "b": 0.2},
        {"a": float("inf"), "b": None}, {"a": float("-inf"), "b": None},
    ]  # fmt: skip
    for first, second in combinations(rows, 2):
        assert checksum(first) != checksum(second), (first, second)


@pytest.mark.parametrize(("column", "form"), [("a", "<q"), ("b", "<d"), ("g", "<d"), ("d", "2s"), ("e", "utf-32-le")])
def test_every_flipped_bit_of_a_cell_changes_the_checksum(column: str, form: str) -> None:
    value, expected = ROW[column], checksum(ROW)
    packed = value.encode(form) if isinstance(value, str) else struct.pack(form, value)
    for bit in range(8 * len(packed)):
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << bit % 8
        if isinstance(value, str):
            changed: Any = flipped.decode(form, "replace")
        else:
            (changed,) = struct.unpack(form, flipped)
        assert checksum(ROW | {column: changed}) != expected


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("REAL", 3, 3.0),
        ("REAL", float("nan"), None),
        ("REAL", -0.0, 0.0),
        ("REAL", np.float64(0.1), 0.1),
        ("INTEGER", True, 1),
        ("TEXT", type("Version", (str,), {})("2.10"), "2.10"),
        ("BLOB", b"x", b"x"),
        ("REAL", None, None),
    ],
)
def test_a_value_is_hashed_as_sqlite_returns_it(kind: Any, value: object, stored: Cell) -> None:
    found = as_stored(kind, value)
    assert (type(found), str(found)) == (type(stored), str(stored))


@pytest.mark.parametrize(
    ("kind", "value"), [("TEXT", 1), ("INTEGER", 1.5), ("INTEGER", "1"), ("REAL", "x"), ("BLOB", "x")]
)
def test_a_value_that_does_not_belong_into_its_column_is_refused_on_writing(kind: Any, value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        as_stored(kind, value)


def test_records_with_every_kind_of_number_pass_their_own_check(tmp_path: Path) -> None:
    values = [1, -1, 0, -0.0, 1e-320, 1e308, -1e-9, float("inf"), float("nan"), np.float64(0.1), 2**53 + 1]
    with Ledger.open(tmp_path / "l.db") as ledger:
        for number, value in enumerate(values):
            ledger.write(record(f"k{number}", g_own=value, seed=number, reason="\x00 \u2028 \U0001f600"))
        assert len(ledger.records()) == len(values)
        assert ledger.damaged == []


def test_the_first_cell_of_a_wrong_type_is_named() -> None:
    names, kinds = ["a", "b", "c"], ["TEXT", "REAL", None]
    assert wrong_cell(names, kinds, ("x", 1.0, b"anything")) == ""  # type: ignore[arg-type]
    assert wrong_cell(names, kinds, ("x", None, None)) == ""  # type: ignore[arg-type]
    assert wrong_cell(names, kinds, ("x", 1, None)) == "its column b holds a whole number where REAL belongs"  # type: ignore[arg-type]
    assert wrong_cell(names, kinds, ("\udcff", 1.0, None)) == "its column a holds text that is not UTF-8"  # type: ignore[arg-type]
