"""The SQLite file of a ledger: its tables, how it is opened, and how an older one is migrated.

Schema 1 has runs, checks and matrices; schema 2 adds columns, `audits` and an index; schema 3 adds the column
`device` and drops the table of row strategies; schema 4 adds columns. A migration keeps every row. Columns that are no
longer in the record stay in the file and are not read.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_type_hints

from hrx.audit.ledger.record import COLUMNS, StoredAudit, StoredCheck, StoredExample
from hrx.errors import HrxError
from hrx.files import regular_file

APPLICATION_ID = 0x68727831  # "hrx1": `file` and hrx recognise a ledger by it
SCHEMA_VERSION = 4
BUSY_SECONDS = 60
"""How long a statement waits for another process that has locked the file."""
_RETRY_SECONDS = 0.02
_PRIMARY_CODE = 0xFF
"""The low byte of an SQLite error code: the error without its variant."""

_KINDS = {str: "TEXT", bool: "INTEGER", float: "REAL"}


def _declare(row: type[tuple[object, ...]]) -> tuple[str, ...]:
    """The columns of a table from the fields of its rows; arrays are packed into BLOBs."""
    return tuple(f'"{name}" {_KINDS.get(kind, "BLOB")}' for name, kind in get_type_hints(row).items())


_TABLES = {
    "runs": (tuple(f'"{c.name}" {c.kind}' for c in COLUMNS), "key"),
    "checks": (
        _declare(StoredCheck),
        'fingerprint, library, adapter_version, torch_version, setting, "check", windows',
    ),
    "matrices": (_declare(StoredExample), "key"),
    "audits": (_declare(StoredAudit), "hrx_version, settings"),
}


class LedgerError(HrxError):
    """A ledger that cannot be opened, read or written."""


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Opens the file for writing, creating it if needed; without `create`, opens an existing file for reading."""
    if not create and not os.path.exists(path):
        raise LedgerError(f"{path} does not exist. Give the ledger that `hrx audit` wrote.")
    if os.path.isdir(path):
        raise LedgerError(f"{path} is a directory. A ledger is a file, for example {path / 'ledger.db'}.")
    if os.path.exists(path):
        _check_regular(path)
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        connection = _open(path, "mode=rwc" if create else "mode=ro")
        if create or _readable(connection):
            return connection
        connection.close()
        return _open_immutable(path)
    except (OSError, ValueError, sqlite3.Error) as error:
        raise LedgerError(f"{path} cannot be opened: {error}. Check the directory and its permissions.") from error


def _check_regular(path: Path) -> None:
    """Refuses a FIFO or a device, which SQLite would wait for."""
    try:
        regular_file(path)
    except HrxError as error:
        raise LedgerError(f"{error} Give the ledger that `hrx audit` wrote.") from error


def _open(path: Path, options: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?{options}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def _open_immutable(path: Path) -> sqlite3.Connection:
    """Opens a ledger in a directory that is not writable, where SQLite cannot keep its write-ahead log.

    Runs that are only in the log would be missing from the result, so such a ledger is refused.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise LedgerError(
            f"{path} has runs in {log.name} that can only be read from a writable directory. Copy both files to a "
            "writable directory and give the copy."
        )
    return _open(path, "immutable=1")


def _readable(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        return False
    except sqlite3.DatabaseError:  # not a database: the error is raised later, with the path
        return True
    return True


def prepare(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    """Creates the tables of a new file, migrates an older one, and refuses a file that is not a ledger."""
    connection.execute("BEGIN")  # one consistent view: another process may be creating the tables
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    schema = schema_version(connection)
    connection.execute("COMMIT")
    if application != APPLICATION_ID and (tables or not create):
        raise LedgerError(f"{path} is not a ledger of hrx. Give another file.")
    if application == APPLICATION_ID and schema > SCHEMA_VERSION:
        raise LedgerError(
            f"{path} has ledger schema {schema}; this hrx reads up to {SCHEMA_VERSION}. Update hrx, or use a new file."
        )
    if not create:
        return
    # FULL: a run counts as written only once it is on disk, so a power cut does not lose it.
    _enable_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")
    migrate(connection)


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Switches to a write-ahead log, waiting for other processes that do the same.

    SQLite does not wait for the lock in this statement: two processes that each hold a read lock would deadlock.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY_CODE != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_SECONDS)


def schema_version(connection: sqlite3.Connection) -> int:
    """The schema of an open ledger."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Adds every missing table and column in one transaction; does nothing to a ledger of this schema."""
    if schema_version(connection) == SCHEMA_VERSION and not _missing(connection):
        return
    connection.execute("BEGIN IMMEDIATE")  # waits for another process that migrates; then nothing may be left to do
    try:
        for name, (columns, key) in _TABLES.items():
            connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)}, PRIMARY KEY ({key}))")
        for table, column in _missing(connection):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
        if "accelerations" in present_columns(connection, "runs"):
            connection.execute(
                "UPDATE runs SET device = CASE WHEN accelerations LIKE '%cuda%' THEN 'cuda' ELSE 'cpu' END "
                "WHERE device IS NULL AND accelerations IS NOT NULL"
            )
        connection.execute("DROP TABLE IF EXISTS ways")
        connection.execute("CREATE INDEX IF NOT EXISTS runs_by_subject ON runs (model, dataset, lookback, horizon)")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def present_columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Columns that a table has in this file; empty where the table does not exist."""
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _missing(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Table and declaration of every column that the file does not have."""
    return [
        (table, column)
        for table, (columns, _) in _TABLES.items()
        for column in columns
        if column.split('"')[1] not in present_columns(connection, table)
    ]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the path and the next step to database errors."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if any(sign in text for sign in ("not a database", "malformed", "no such table")):
            raise LedgerError(
                f"{path} is not a ledger, or is damaged ({text}). Give another file. To save what can still be read "
                f"of a damaged ledger: hrx merge {path} --into NEW.db"
            ) from error
        raise LedgerError(f"{path} cannot be used: {text}. Check permissions, free disk space and locks.") from error
