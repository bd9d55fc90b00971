"""Whether two records of one run agree. Merging and `--recheck` use it.

The same run on other hardware, or in other batches, moves a number by rounding, within these bounds.
"""

import json
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from hrx.audit.ledger.record import COLUMNS, NAMES, Record, Value

RELATIVE, ABSOLUTE = 1e-4, 1e-6
_TIMES = frozenset({"forward_seconds", "matrix_seconds", "seconds"})
_LISTS = frozenset(column.name for column in COLUMNS if column.name.endswith("_steps") or column.name == "starts")
# beats_naive follows from the errors, which are compared themselves; rounding decides a tie. max_missing decides the
# status, which is compared itself.
_NUMBERS = frozenset(c.name for c in COLUMNS if c.kind != "TEXT") - _TIMES - {"beats_naive", "max_missing"}
COMPARED = ("status", "check_failed", *(name for name in NAMES if name in _NUMBERS | _LISTS))


class Difference(NamedTuple):
    """A column in which two records of one run disagree."""

    column: str
    first: Value
    second: Value

    def __str__(self) -> str:
        return f"{self.column} is {_format(self.first)} and {_format(self.second)}"


def differences(first: Record, second: Record, columns: Collection[str] = COMPARED) -> list[Difference]:
    """Where two records of the same run disagree beyond rounding, among `columns`."""
    pairs = ((name, getattr(first, name), getattr(second, name)) for name in COMPARED if name in columns)
    return [Difference(name, a, b) for name, a, b in pairs if not _agree(name, a, b)]


def _agree(name: str, first: Value, second: Value) -> bool:
    if first == second:
        return True
    if first is None or second is None:
        return False
    if name in _NUMBERS:
        return _close([float(first)], [float(second)])
    return name in _LISTS and _close(json.loads(str(first)), json.loads(str(second)))


def _close(first: list[float], second: list[float]) -> bool:
    # A step without a number is null in the JSON: it must be null in both.
    a, b = (np.array([np.nan if value is None else value for value in v], dtype=float) for v in (first, second))
    if a.shape != b.shape:
        return False
    bound = ABSOLUTE + RELATIVE * np.maximum(np.abs(a), np.abs(b))
    return bool(np.all((np.abs(a - b) <= bound) | (np.isnan(a) & np.isnan(b))))


def _format(value: Value) -> str:
    return "absent" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)[:60]
