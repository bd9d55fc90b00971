"""What a user may be told, and the exit code that goes with it.

Every error that a person can cause or mend is an `HrxError`: the command line prints its sentence without a
traceback. Anything else is a defect of hrx and keeps its traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every verb."""

    DONE = 0
    GATE_FAILED = 1
    WRONG_REQUEST = 2
    INCOMPLETE = 3
    NOT_COMPARABLE = 4


class HrxError(Exception):
    """A sentence for a person: what, where, what was expected, the next step."""


def describe_error(error: Exception) -> str:
    """A library's exception in one line, without what its traceback would say of this machine."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
    return f"{type(error).__name__}: {first}"


def unknown(kind: str, value: str, known: Iterable[str], advice: str = "") -> str:
    """The sentence for a name that is not known, with its near matches first."""
    names = sorted(known)
    near = get_close_matches(value, names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"Unknown {kind} {value!r}.{hint} Known: {', '.join(names)}.{' ' + advice if advice else ''}"
