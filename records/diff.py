"""Whether two records of one run agree. Merging and `--recheck` use it.

The same run on other hardware, or in other batches, moves a number by rounding, within these bounds.
"""

import json
from collections.abc import Collection, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from hrx.records.record import COLUMNS, EXCLUDED, NAMES, Record, Value

RELATIVE, ABSOLUTE = 1e-4, 1e-6
_TIMES = frozenset({"forward_seconds", "matrix_seconds", "seconds", "context_time_ratio"})
_LISTS = frozenset({"starts", "context_curves"} | {c.name for c in COLUMNS if c.name.endswith("_steps")})
# These follow from numbers that are compared themselves, and rounding decides a tie: beats_naive from the errors, the
# needed context and what is measured there from its curves. max_missing decides the status, which is compared itself.
_FOLLOWING = frozenset(
    {"beats_naive", "max_missing"}
    | {c.name for c in COLUMNS if c.name.startswith("context_") and c.name not in ("context_bound", "context_windows")}
)
_NUMBERS = frozenset(c.name for c in COLUMNS if c.kind != "TEXT") - _TIMES - _FOLLOWING
# A record of an older schema has none of these: unknown does not disagree with a number.
_LATER = frozenset(
    {"mase", "naive_mase", "seasonal_mase", "variance_run", "padded", "context", "depth", "training_seed"}
)
COMPARED = ("status", "check_failed", *(name for name in NAMES if name in _NUMBERS | _LISTS))


class Difference(NamedTuple):
    """A column in which two records of one run disagree."""

    column: str
    first: Value
    second: Value

    def __str__(self) -> str:
        return f"{self.column} is {_format(self.first)} and {_format(self.second)}"


def differences(first: Record, second: Record, columns: Collection[str] = COMPARED) -> list[Difference]:
    """Where two records of the same run disagree beyond rounding, among `columns`.

    A number that is not finite agrees with none. The parity that excluded a run, which may be infinite, is not
    compared: that both records exclude it is.
    """
    both_excluded = first.status == second.status == EXCLUDED
    names = [name for name in COMPARED if name in columns and not (both_excluded and name == "parity")]
    pairs = ((name, getattr(first, name), getattr(second, name)) for name in names)
    return [Difference(name, a, b) for name, a, b in pairs if not _agree(name, a, b)]


def _agree(name: str, first: Value, second: Value) -> bool:
    if first is None or second is None:
        return first is second or name in _LATER
    if name in _NUMBERS:
        return _close([first], [second])
    if name in _LISTS:
        try:
            return _close(_list(first), _list(second))
        except (ValueError, TypeError, RecursionError):  # not a list of numbers
            return False
    return first == second


def _list(text: Value) -> list[Value]:
    """The numbers of a JSON list, or of the lists of an object one after the other."""
    values = json.loads(str(text))
    return list(chain.from_iterable(values.values())) if isinstance(values, dict) else list(values)


def _close(first: Sequence[Value], second: Sequence[Value]) -> bool:
    # A step without a number is null in the JSON: it must be null in both.
    missing = [[value is None for value in values] for values in (first, second)]
    if missing[0] != missing[1]:
        return False
    a, b = (np.array([value for value in values if value is not None], dtype=float) for values in (first, second))
    bound = ABSOLUTE + RELATIVE * np.maximum(np.abs(a), np.abs(b))
    with np.errstate(invalid="ignore"):
        return bool(np.all(np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= bound)))


def _format(value: Value) -> str:
    return "absent" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)[:60]
