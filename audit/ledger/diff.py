"""Whether two records of one run tell the same: a merge and a recheck stand on it.

The same run on other hardware, or in other batches, moves a number by rounding, and no further than this bound.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from hrx.audit.ledger.record import COLUMNS, NAMES, Record, Value

RELATIVE, ABSOLUTE = 1e-4, 1e-6
VOLATILE = frozenset({"forward_seconds", "matrix_seconds", "seconds", "created", "probe", "rows_strategy"})
"""What differs each time a run is measured: times, and what was chosen by them."""
_LISTS = frozenset(column.name for column in COLUMNS if column.name.endswith("_steps") or column.name == "starts")
# beats_naive follows from the errors, which are compared themselves: a tie may fall either way.
_NUMBERS = frozenset(c.name for c in COLUMNS if c.kind != "TEXT") - VOLATILE - {"beats_naive"}
COMPARED = ("status", "check_failed", *(name for name in NAMES if name in _NUMBERS | _LISTS))


class Difference(NamedTuple):
    """A column in which two records of one run do not agree."""

    column: str
    one: Value
    other: Value

    def __str__(self) -> str:
        return f"{self.column} is {_shown(self.one)} and {_shown(self.other)}"


def differences(one: Record, other: Record, columns: Collection[str] = COMPARED) -> list[Difference]:
    """Where two records of the same run disagree beyond rounding, among `columns`."""
    return [
        Difference(name, one.get(name), other.get(name))
        for name in COMPARED
        if name in columns and not _agree(name, one.get(name), other.get(name))
    ]


def _agree(name: str, one: Value, other: Value) -> bool:
    if one == other:
        return True
    if one is None or other is None:
        return False
    if name in _NUMBERS:
        return _close([float(one)], [float(other)])
    return name in _LISTS and _close(json.loads(str(one)), json.loads(str(other)))


def _close(one: list[float], other: list[float]) -> bool:
    # A step that is no number is null in the text: it must be so in both.
    a, b = (np.array([np.nan if value is None else value for value in values], dtype=float) for values in (one, other))
    if a.shape != b.shape:
        return False
    bound = ABSOLUTE + RELATIVE * np.maximum(np.abs(a), np.abs(b))
    return bool(np.all((np.abs(a - b) <= bound) | (np.isnan(a) & np.isnan(b))))


def _shown(value: Value) -> str:
    return "not there" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)[:60]
