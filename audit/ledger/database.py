"""The file under a ledger: opened to write or to read, refused where it is something else, named where it fails.

What is in it is the business of `schema` and `ledger`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hrx.audit.ledger.schema import APPLICATION_ID, SCHEMA_VERSION, bring_forward, version
from hrx.errors import HrxError

BUSY_SECONDS = 60
"""How long a statement waits for another process that holds the file."""
_BETWEEN_TRIES = 0.02
"""Seconds."""
_PRIMARY_CODE = 0xFF
"""The low byte of an error code of SQLite: the error without its variant."""


class LedgerError(HrxError):
    """A ledger that cannot be opened, read or written."""


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """A connection that may write, making the file where there is none; without `create`, one that reads."""
    if not create and not path.exists():
        raise LedgerError(f"{path} does not exist. Give the ledger that `hrx audit` wrote.")
    if path.is_dir():
        raise LedgerError(f"{path} is a directory. A ledger is a file, for example {path / 'ledger.db'}.")
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        connection = _connected(path, "mode=rwc" if create else "mode=ro")
        if create or _readable(connection):
            return connection
        connection.close()
        return _unchanging(path)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"{path} cannot be opened: {error}. Check the directory and its permissions.") from error


def _connected(path: Path, options: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?{options}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def _unchanging(path: Path) -> sqlite3.Connection:
    """A ledger in a directory that cannot be written, where SQLite has no place for its write-ahead log.

    Runs that are in the log and not yet in the file would be passed over in silence: then it is refused.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise LedgerError(
            f"{path} has runs in {log.name} that can be read only where its directory may be written. Copy both files "
            "to such a directory and give the copy."
        )
    return _connected(path, "immutable=1")


def _readable(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        return False
    except sqlite3.DatabaseError:  # not a ledger at all: told with its name later
        return True
    return True


def prepare(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    """Makes the tables of a new file, brings an older one forward, and refuses a file that is something else."""
    connection.execute("BEGIN")  # one moment of the file: another process may be making its tables
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    schema = version(connection)
    connection.execute("COMMIT")
    if application != APPLICATION_ID and (tables or not create):
        raise LedgerError(f"{path} is not a ledger of hrx. Give another file.")
    if application == APPLICATION_ID and schema > SCHEMA_VERSION:
        raise LedgerError(
            f"{path} has ledger schema {schema}; this hrx reads up to {SCHEMA_VERSION}. Update hrx, or start anew."
        )
    if not create:
        return
    # FULL: a run counts as written only when it is on disk, so that not even a power cut loses it.
    _log_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")
    bring_forward(connection)


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Gives the file a write-ahead log, once whoever else is doing so has finished.

    SQLite waits for a lock in every other statement of hrx. In this one it does not: it holds a read lock already,
    and two processes that each hold one would wait for each other.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY_CODE != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_BETWEEN_TRIES)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Says which file a database error is about, and what may help."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if any(sign in text for sign in ("not a database", "malformed", "no such table")):
            raise LedgerError(
                f"{path} is not a ledger, or is damaged ({text}). Give another file; what can still be read of a "
                f"damaged ledger is saved by: hrx merge {path} --into NEW.db"
            ) from error
        raise LedgerError(f"{path} cannot be used: {text}. Check permissions, free disk space and locks.") from error
