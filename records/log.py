"""How far the write-ahead log of a ledger can be trusted, read from the files without opening the database.

A ledger is in SQLite's mode WAL while it is written, and in its rollback mode once its last writer has closed it; the
header of the file says which. SQLite reads a log up to its first invalid frame and ignores the rest in silence, so the
frames are checked here as well (https://www.sqlite.org/fileformat2.html#walformat).
"""

import struct
import time
from enum import Enum
from pathlib import Path

from hrx.errors import HrxError
from hrx.files import regular_file

_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}
"""Byte order of the words that a log's checksums are computed from."""
_HEADER, _FRAME = struct.Struct(">8I"), struct.Struct(">6I")
_MODE_AT, _WAL_MODE, _SCHEMA_AT = 18, 2, 60
_FIRST_CLOSED = 4
"""The first schema whose writers close a ledger; earlier ones left it in WAL mode."""
_WORD = 0xFFFFFFFF
_ATTEMPTS, _WRITING_SECONDS = 2, 0.03
"""A process that is writing has completed its transaction, or begun a log, when it is looked at again."""


class LogState(Enum):
    """What the log of a ledger says."""

    CLOSED = "closed"
    """There is none: the last writer has closed the ledger."""
    WHOLE = "whole"
    """It ends with a complete transaction: a process writes to the ledger, or was killed."""
    TORN = "torn"
    """It is cut or damaged: transactions that were complete may be lost."""
    ABSENT = "absent"
    """The ledger was not closed, and its log is absent or empty: transactions may be lost."""


def log_path(ledger: Path) -> Path:
    """The write-ahead log of a ledger."""
    return ledger.with_name(f"{ledger.name}-wal")


def in_wal_mode(ledger: Path) -> bool:
    """Whether the header of the file says that changes are in a write-ahead log."""
    return _header(ledger)[_MODE_AT : _MODE_AT + 1] == bytes([_WAL_MODE])


def log_state(ledger: Path) -> LogState:
    """The state of a ledger's log."""
    state = _state(ledger)
    for _ in range(_ATTEMPTS):
        if state not in (LogState.TORN, LogState.ABSENT):
            break
        time.sleep(_WRITING_SECONDS)
        state = _state(ledger)
    return state


def _state(ledger: Path) -> LogState:
    try:
        data = regular_file(log_path(ledger)).read_bytes()
    except (OSError, HrxError):  # `connect` refuses a FIFO or a device
        data = b""
    if data:
        return LogState.WHOLE if in_wal_mode(ledger) and not _is_torn(data) else LogState.TORN
    schema = int.from_bytes(_header(ledger)[_SCHEMA_AT : _SCHEMA_AT + 4], "big")
    return LogState.ABSENT if in_wal_mode(ledger) and schema >= _FIRST_CLOSED else LogState.CLOSED


def _header(ledger: Path) -> bytes:
    """The header of the file; empty where there is none."""
    try:
        with regular_file(ledger).open("rb") as file:
            return file.read(_SCHEMA_AT + 4)
    except (OSError, HrxError):
        return b""


def _is_torn(log: bytes) -> bool:
    """Whether a log has a frame that is cut, damaged or part of an incomplete transaction.

    Frames with other salts are left from before the log was last restarted, and mean nothing.
    """
    if len(log) <= _HEADER.size:
        return True
    magic, _, page, _, *salts, first, second = _HEADER.unpack_from(log)
    order = _MAGIC.get(magic)
    if order is None or not page or page & (page - 1):
        return True
    sums = _checksum(log[: _HEADER.size - 8], order, (0, 0))
    size = _FRAME.size + page
    if sums != (first, second) or (len(log) - _HEADER.size) % size:
        return True
    complete, starts = True, iter(range(_HEADER.size, len(log), size))
    for start in starts:
        _, commit, *found, first, second = _FRAME.unpack_from(log, start)
        sums = _checksum(log[start : start + 8], order, sums)
        sums = _checksum(log[start + _FRAME.size : start + size], order, sums)
        if found != salts or sums != (first, second):
            current = [start, *starts]
            return not complete or any(list(_FRAME.unpack_from(log, at)[2:4]) == salts for at in current)
        complete = commit != 0
    return not complete


def _checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's checksum of a log, continued over `data`, whose length is a multiple of eight."""
    a, b = sums
    for one, two in struct.iter_unpack(f"{order}2I", data):
        a = (a + one + b) & _WORD
        b = (b + two + a) & _WORD
    return a, b
