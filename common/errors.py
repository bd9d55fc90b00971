"""Errors for people, and exit codes.

Every error that a user can cause or fix is an `HrxError`: the command line prints its sentence without a traceback.
"""

import re
import sys
import tempfile
from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path


class Exit(IntEnum):
    """Exit codes of every verb."""

    DONE = 0
    GATE_FAILED = 1
    WRONG_REQUEST = 2
    INCOMPLETE = 3
    NOT_DECIDED = 4
    CRASHED = 70
    """An error that hrx did not expect; `EX_SOFTWARE` of sysexits.h."""


class HrxError(Exception):
    """A sentence for the user: what, where, what was expected, the next step."""

    exit: Exit = Exit.WRONG_REQUEST


class NotWritten(HrxError):
    """A file that could not be written after the work was done: the result is incomplete, the request was right."""

    exit = Exit.INCOMPLETE


def describe_error(error: Exception) -> str:
    """A library's exception in one line."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
    return f"{type(error).__name__}: {first}"


def unknown(kind: str, value: str, known: Iterable[str], advice: str = "") -> str:
    """The sentence for an unknown name, with near matches first."""
    names = sorted(known)
    near = get_close_matches(value, names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"Unknown {kind} {value!r}.{hint} Known: {', '.join(names)}.{' ' + advice if advice else ''}"


# The start of an absolute path on either kind of system, or of one relative to the home or working directory.
_PATH_START = r"(?:[A-Za-z]:\\|file://|~[\w.-]*/|\.{1,2}/|/(?!/))"
# Between quotation marks a path may contain spaces.
_QUOTED_PATH = rf"""(?<=')(?:{_PATH_START}[^'\n]+)(?=')|(?<=")(?:{_PATH_START}[^"\n]+)(?=")"""
_PATH = re.compile(rf"""{_QUOTED_PATH}|(?<![\w/.]){_PATH_START}[^\s'"<>|:,;()]+""")


def without_paths(text: str) -> str:
    """The text with every path reduced to its file name; hub ids and dataset names (`owner/name`) stay.

    Records are published, and a path reveals who made them and where.
    """
    for directory in _local_directories():
        # Known directories first: they may contain spaces, where the pattern stops.
        text = text.replace(f"{directory}/", "./").replace(directory, ".")
    return _PATH.sub(lambda match: _file_name(match.group()), text)


def _local_directories() -> list[str]:
    """Directories of this machine that errors mention, longest first."""
    paths = {Path.cwd(), Path.home(), Path(tempfile.gettempdir()), Path(sys.prefix), Path(__file__).parent.parent}
    return sorted((str(path) for path in paths if len(path.parts) > 1), key=len, reverse=True)


def _file_name(path: str) -> str:
    stripped = path.rstrip("/\\.")
    return re.split(r"[/\\]", stripped)[-1] + path[len(stripped) :].replace("/", "").replace("\\", "")
