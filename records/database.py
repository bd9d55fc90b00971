"""The SQLite file of a ledger: its tables, how it is opened, and how an older one is migrated.

Schema 1 has runs, checks and matrices; schema 2 adds columns, `audits` and an index; schema 3 adds the column
`device` and drops the table of row strategies; schema 4 adds columns, and a checksum to every row; schema 5 adds
columns and `plans`; schema 6 adds the column `training`. A migration keeps every row. Columns that are no longer in the
record stay in the file and are not read.

A ledger is one file. While it is written, SQLite keeps a write-ahead log beside it; the last writer removes the log.
"""

import os
import random
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, get_type_hints

from hrx.errors import HrxError
from hrx.files import regular_file
from hrx.records.checksum import CHECKSUM, Kind, RowChecksum, wrong_cell
from hrx.records.log import in_wal_mode, log_path
from hrx.records.record import COLUMNS, PROTECTED_SINCE, StoredAudit, StoredCheck, StoredExample, StoredPlan

APPLICATION_ID = 0x68727831  # "hrx1": `file` and hrx recognise a ledger by it
SCHEMA_VERSION = 6
_FIRST_WITH_CHECKSUMS = 4
BUSY_SECONDS = 60
"""How long a statement waits for another process that has locked the file."""
_RETRY_SECONDS = 0.02
_CLOSING_ATTEMPTS = 25
"""How often the last writer tries to remove the log while a reader has the ledger open: about half a second."""
PRIMARY_CODE = 0xFF
"""The low byte of an SQLite error code: the error without its variant."""

_KINDS: dict[object, Kind] = {str: "TEXT", str | None: "TEXT", bool: "INTEGER", float: "REAL"}


class Table(NamedTuple):
    """A table of the ledger."""

    columns: Mapping[str, Kind]
    """Without the checksum."""
    key: str

    @property
    def declarations(self) -> dict[str, str]:
        """The declaration of each column in SQL."""
        return {name: f'"{name}" {kind}' for name, kind in (*self.columns.items(), (CHECKSUM, "TEXT"))}


def _columns(row: type[tuple[object, ...]]) -> dict[str, Kind]:
    """The columns of a table from the fields of its rows; arrays are packed into BLOBs."""
    return {name: _KINDS.get(kind, "BLOB") for name, kind in get_type_hints(row).items()}


TABLES = {
    "runs": Table({c.name: c.kind for c in COLUMNS}, "key"),
    "checks": Table(
        _columns(StoredCheck), 'fingerprint, library, adapter_version, torch_version, setting, "check", windows'
    ),
    "matrices": Table(_columns(StoredExample), "key"),
    "audits": Table(_columns(StoredAudit), "hrx_version, settings"),
    "plans": Table(_columns(StoredPlan), "digest"),
}


class LedgerError(HrxError):
    """A ledger that cannot be opened, read or written."""


class EmptyLedger(LedgerError):
    """A database without tables: a ledger that another process is creating looks like this for a moment."""


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Opens the file for writing, creating it if needed; without `create`, opens an existing file for reading."""
    if not create and not os.path.exists(path):
        raise LedgerError(f"{path} does not exist. Give the ledger that `hrx audit` wrote.")
    if os.path.isdir(path):
        raise LedgerError(f"{path} is a directory. A ledger is a file, for example {path / 'ledger.db'}.")
    for file in (path, log_path(path)):
        if os.path.exists(file):
            _check_regular(file)
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            return _open(path, "mode=rwc")
        connection = _open_for_reading(path)
        if _readable(connection):
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
        if os.path.exists(path):  # another process may have removed its log in the meantime
            raise LedgerError(f"{error} Give the ledger that `hrx audit` wrote.") from error


def _open(path: Path, options: str, seconds: float | None = None) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?{options}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS if seconds is None else seconds, isolation_level=None)


def _open_for_reading(path: Path) -> sqlite3.Connection:
    """Opens a ledger so that nothing is left beside it, and a log that a killed writer left stays as it is.

    A connection that may write removes the empty log it has made, and rolls back a transaction that was interrupted.
    """
    log = log_path(path)
    if log.exists() and log.stat().st_size:
        return _open(path, "mode=ro")
    connection = _open(path, "mode=rw")
    connection.execute("PRAGMA query_only = ON")
    return connection


def _open_immutable(path: Path) -> sqlite3.Connection:
    """Opens a ledger in a directory that is not writable, where SQLite cannot keep its write-ahead log.

    Runs that are only in the log would be missing from the result, so such a ledger is refused.
    """
    for rest in (log_path(path), path.with_name(f"{path.name}-journal")):
        if rest.exists() and rest.stat().st_size:
            raise LedgerError(
                f"{path} has runs in {rest.name} that can only be read from a writable directory. Copy both files "
                "to a writable directory and give the copy."
            )
    return _open(path, "immutable=1")


def leave_one_file(path: Path) -> None:
    """Moves the log into the file and removes it, unless another process has the ledger open, which then does so."""
    for _ in range(_CLOSING_ATTEMPTS):
        if not in_wal_mode(path):
            return
        with suppress(sqlite3.Error), closing(_open(path, "mode=rw", 0)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
            return
        # Two processes that close at the same moment must not repeat it at the same moment.
        time.sleep(random.uniform(0, 2 * _RETRY_SECONDS))


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
        kind = LedgerError if tables else EmptyLedger
        raise kind(f"{path} is not a ledger of hrx. Give another file.")
    if application == APPLICATION_ID and schema > SCHEMA_VERSION:
        raise LedgerError(
            f"{path} has ledger schema {schema}; this hrx reads up to {SCHEMA_VERSION}. Update hrx, or use a new file."
        )
    if schema >= _FIRST_WITH_CHECKSUMS and (
        bare := [table for table in TABLES if not has_checksums(connection, table)]
    ):
        raise LedgerError(
            f"{path} is damaged: its tables {', '.join(bare)} have lost their checksums. Restore it from a copy."
        )
    if not create:
        return
    # FULL: a run counts as written only once it is on disk, so a power cut does not lose it.
    connection.execute("PRAGMA synchronous = FULL")
    if schema != SCHEMA_VERSION or _missing(connection):
        enable_wal(connection)
        migrate(connection)


def enable_wal(connection: sqlite3.Connection) -> None:
    """Switches to a write-ahead log, waiting for other processes that do the same.

    SQLite does not wait for the lock in this statement: two processes that each hold a read lock would deadlock.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & PRIMARY_CODE != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
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
        unprotected = [table for table in TABLES if not has_checksums(connection, table)]
        for name, table in TABLES.items():
            columns = ", ".join(table.declarations.values())
            connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns}, PRIMARY KEY ({table.key}))")
        for name, column in _missing(connection):
            connection.execute(f"ALTER TABLE {name} ADD COLUMN {column}")
        if "accelerations" in present_columns(connection, "runs"):
            connection.execute(
                "UPDATE runs SET device = CASE WHEN accelerations LIKE '%cuda%' THEN 'cuda' ELSE 'cpu' END "
                "WHERE device IS NULL AND accelerations IS NOT NULL"
            )
        for name in unprotected:
            _protect(connection, name)
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


def has_checksums(connection: sqlite3.Connection, table: str) -> bool:
    """Whether the rows of a table have checksums, or there is no such table yet."""
    present = present_columns(connection, table)
    return not present or CHECKSUM in present


def _missing(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Table and declaration of every column that the file does not have."""
    return [
        (name, declaration)
        for name, table in TABLES.items()
        for column, declaration in table.declarations.items()
        if column not in present_columns(connection, name)
    ]


def _protect(connection: sqlite3.Connection, table: str) -> None:
    """Adds checksums to the rows of an older schema, and since when they have them.

    A row with a cell of a wrong type gets none: it was damaged before.
    """
    names = sorted(present_columns(connection, table) - {CHECKSUM})
    kinds = [TABLES[table].columns.get(name) for name in names]
    connection.execute(f"UPDATE {table} SET {PROTECTED_SINCE} = ?", (utc_now(),))
    checksum = RowChecksum(names)
    select = f"SELECT rowid, {quoted(names)} FROM {table}"
    with undecodable_text(connection):
        protected = [
            (checksum(row), rowid) for rowid, *row in connection.execute(select) if not wrong_cell(names, kinds, row)
        ]
    connection.executemany(f"UPDATE {table} SET {CHECKSUM} = ? WHERE rowid = ?", protected)


def quoted(names: Iterable[str]) -> str:
    """Column names for an SQL statement."""
    return ", ".join(f'"{name}"' for name in names)


def utc_now() -> str:
    """The time as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def undecodable_text(connection: sqlite3.Connection) -> Iterator[None]:
    """Reads text that is not UTF-8 with lone surrogates, instead of raising."""
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    try:
        yield
    finally:
        connection.text_factory = str


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
