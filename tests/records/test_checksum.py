"""The checksum of a row, against the definition written out."""

import hashlib
import struct
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.records import record

from hrx.records.ledger import Cell, Ledger, as_stored, checksum

ROW: tuple[Cell, ...] = (0.1, 7, "ŷ ≠ y", None, b"\x00\xff", "", -3.5, 1e-320, float("inf"))


def test_the_checksum_is_that_of_the_definition() -> None:
    text = '[0.1, 7, "\\u0177 \\u2260 y", null, {"bytes": "00ff"}, "", -3.5, 1e-320, Infinity]'
    assert checksum(ROW) == hashlib.sha256(text.encode()).hexdigest()
    assert checksum(()) == hashlib.sha256(b"[]").hexdigest()


def test_every_other_value_type_column_or_division_of_texts_has_another_checksum() -> None:
    rows: list[tuple[Cell, ...]] = [
        (1, None), (1.0, None), ("1", None), (b"1", None), (None, 1), (0, None), (None, None), ("", None), (b"", None),
        ("xy", "z"), ("x", "yz"), (b"xy", b"z"), ("z", "xy"), (0.1, 0.2), (0.2, 0.1),
        (np.nextafter(0.1, 1).item(), 0.2), (float("inf"), None), (float("-inf"), None), ("null", None), ("1.0", None),
        ('{"bytes": "31"}', None), ("31", None),
    ]  # fmt: skip
    for first, second in combinations(rows, 2):
        assert checksum(first) != checksum(second), (first, second)


@pytest.mark.parametrize(("place", "form"), [(1, "<q"), (0, "<d"), (6, "<d"), (4, "2s"), (2, "utf-32-le")])
def test_every_flipped_bit_of_a_cell_changes_the_checksum(place: int, form: str) -> None:
    value: Any = ROW[place]
    packed = value.encode(form) if isinstance(value, str) else struct.pack(form, value)
    for bit in range(8 * len(packed)):
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << bit % 8
        if isinstance(value, str):
            changed: Any = flipped.decode(form, "replace")
        else:
            (changed,) = struct.unpack(form, flipped)
        assert checksum((*ROW[:place], changed, *ROW[place + 1 :])) != checksum(ROW)


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
