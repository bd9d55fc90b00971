"""Files that a report writes: whole or not at all, and a sentence where that fails."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hrx.errors import HrxError


def write_bytes(path: Path, content: bytes) -> Path:
    """Writes beside the place and moves there, so that nobody ever finds half a file. Returns the path."""
    # A name of its own: that of the path may be as long as the file system allows.
    temporary = path.with_name(f".{hashlib.sha256(path.name.encode()).hexdigest()[:12]}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise HrxError(f"{path} cannot be written: {error}. Give a file that may be written.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def make_directory(out: Path) -> Path:
    """The directory, made where it is not there yet."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HrxError(f"{out} cannot be made: {error}. Give a directory that may be written.") from error
    return out
