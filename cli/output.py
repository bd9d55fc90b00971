"""Files that a verb writes: atomically, and never over a ledger."""

from __future__ import annotations

from pathlib import Path

from hrx.errors import HrxError
from hrx.reports.text import make_directory, write_bytes

_SQLITE = b"SQLite format 3\x00"


def refuse_ledger(path: Path, option: str) -> None:
    """Refuses a path that holds a ledger: `--json LEDGER` must not overwrite it."""
    try:
        with path.open("rb") as file:
            is_ledger = file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return
    if is_ledger:
        raise HrxError(
            f"{option} {path} is a ledger and would be overwritten. Give another file; ledgers come before {option}."
        )


def write(path: Path, text: str, option: str) -> None:
    """Writes the text of an option, and creates its directory."""
    refuse_ledger(path, option)
    try:
        make_directory(path.parent)
        write_bytes(path, text.encode("utf-8", "replace"))
    except HrxError as error:
        raise HrxError(f"{option}: {error}") from error
