"""Files that a verb writes: whole or not at all, and never over a ledger."""

from __future__ import annotations

import os
from pathlib import Path

from hrx.errors import HrxError

_SQLITE = b"SQLite format 3\x00"


def refuse_ledger(path: Path, option: str) -> None:
    """An option that takes a file may have swallowed the name of a ledger: that must not cost the ledger."""
    try:
        with path.open("rb") as file:
            is_ledger = file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return
    if is_ledger:
        raise HrxError(f"{option} {path} is a ledger and would be overwritten. Give ledgers first, then {option}=FILE.")


def write(path: Path, text: str, option: str) -> None:
    """Writes beside the place and moves there, so that nobody ever finds half a file."""
    refuse_ledger(path, option)
    temporary = path.with_name(f".{path.name[:60]}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise HrxError(f"{option} {path} cannot be written: {error}. Give a file that may be written.") from error
    finally:
        temporary.unlink(missing_ok=True)
