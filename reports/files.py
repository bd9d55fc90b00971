"""Atomic file writes, with an error message that says what to do."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hrx.errors import HrxError


def write_bytes(path: Path, content: bytes) -> Path:
    """Writes a temporary file beside the path and renames it, so that no reader sees half a file. Returns the path."""
    # Not derived from the name itself, which may be as long as the file system allows.
    temporary = path.with_name(f".{hashlib.sha256(path.name.encode()).hexdigest()[:12]}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise HrxError(f"{path} cannot be written: {error}. Choose a writable file.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def make_directory(out: Path) -> Path:
    """Creates the directory if it does not exist. Returns it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HrxError(f"cannot create {out}: {error}. Choose a writable directory.") from error
    return out
