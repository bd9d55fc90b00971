"""The ledger: what is done, in one SQLite file that survives `kill -9` and takes several writers.

A row per run, a row per admission check, and for a few runs the matrix of one window, for pictures. Needs no torch.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hrx.audit.record import COLUMNS, FAILED, NAMES, Record
from hrx.errors import HrxError

APPLICATION_ID = 0x68727831  # "hrx1", so that `file` and hrx can tell a ledger from any other database
SCHEMA_VERSION = 1
BUSY_SECONDS = 60
Floats = npt.NDArray[np.floating]

_CHECK_COLUMNS = (
    "fingerprint TEXT, library TEXT, adapter_version TEXT, torch_version TEXT, model TEXT, setting TEXT, "
    '"check" TEXT, passed INTEGER, figure REAL, "limit" REAL, note TEXT, windows TEXT'
)


class LedgerError(HrxError):
    """A ledger that cannot be opened, read or written."""


class StoredCheck(NamedTuple):
    """One admission check, and exactly what it was about."""

    fingerprint: str
    library: str
    adapter_version: str
    torch_version: str
    model: str
    setting: str
    check: str
    passed: bool
    figure: float
    limit: float
    note: str
    windows: str = ""
    """sha256 of the windows that it was made on."""


class StoredMatrix(NamedTuple):
    """One window of a run with its explanation, for pictures."""

    key: str
    x: Floats
    """`(L,)`, standardised."""
    truth: Floats
    forecast: Floats
    matrix: Floats
    """`(H, L)`."""


class Ledger:
    """An open ledger."""

    def __init__(self, connection: sqlite3.Connection, path: Path):
        self._connection = connection
        self.path = path

    @classmethod
    @contextmanager
    def open(cls, path: str | Path, *, create: bool = True) -> Iterator[Ledger]:
        """Opens a ledger to write, making it where there is none; without `create`, one that is there, to read."""
        path = Path(path)
        if not create and not path.exists():
            raise LedgerError(f"{path} does not exist. Give the ledger that `hrx audit` wrote.")
        if path.is_dir():
            raise LedgerError(f"{path} is a directory. A ledger is a file, for example {path / 'ledger.db'}.")
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
            connection = _connect(path, "mode=rwc" if create else "mode=ro")
            if not create and not _readable(connection):
                # In a directory that cannot be written, SQLite has no place for the files of its write-ahead log.
                connection.close()
                connection = _connect(path, "immutable=1")
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"{path} cannot be opened: {error}. Check the directory and its permissions.") from error
        try:
            with _naming(path):
                _prepare(connection, path, create)
                yield cls(connection, path)
        finally:
            connection.close()

    def finished(self) -> set[str]:
        """Keys of all runs that need not be tried again."""
        rows = self._connection.execute("SELECT key FROM runs WHERE status != ?", (FAILED,))
        return {key for (key,) in rows}

    def write(self, record: Record, matrix: StoredMatrix | None = None) -> None:
        """Stores one run, and its picture if there is one, in one transaction. Only a failed run is ever replaced."""
        places = ", ".join("?" * len(NAMES))
        renewed = ", ".join(f'"{name}" = excluded."{name}"' for name in NAMES)
        with self._transaction():
            self._connection.execute(
                f"INSERT INTO runs VALUES ({places}) ON CONFLICT (key) DO UPDATE SET {renewed} WHERE runs.status = ?",
                (*(record.get(name) for name in NAMES), FAILED),
            )
            if matrix is not None:
                packed = (_pack(matrix.x), _pack(matrix.truth), _pack(matrix.forecast), _pack(matrix.matrix))
                _insert(self._connection, "matrices", [(matrix.key, *packed)])

    def records(self, keys: Iterable[str] | None = None) -> list[Record]:
        """All runs, or those with the given keys, in the order they were first written."""
        rows = self._connection.execute(f"SELECT {_quoted(NAMES)} FROM runs ORDER BY rowid").fetchall()
        wanted = None if keys is None else set(keys)
        return [dict(zip(NAMES, row, strict=True)) for row in rows if wanted is None or row[0] in wanted]

    def write_checks(self, checks: Sequence[StoredCheck]) -> None:
        """Stores admission checks, replacing earlier ones of the same model, versions and setting."""
        with self._transaction():
            _insert(self._connection, "checks", checks)

    def checks(self) -> list[StoredCheck]:
        """All admission checks, in the order they were first written."""
        rows = self._connection.execute("SELECT * FROM checks ORDER BY rowid")
        # SQLite keeps NaN as NULL.
        return [
            StoredCheck(*row)._replace(passed=bool(row[7]), figure=float("nan") if row[8] is None else row[8])
            for row in rows
        ]

    def matrices(self, keys: Iterable[str]) -> list[StoredMatrix]:
        """The stored windows of the given runs."""
        found = []
        for key in keys:
            row = self._connection.execute("SELECT * FROM matrices WHERE key = ?", (key,)).fetchone()
            if row is not None:
                x, truth, forecast, matrix = (_unpack(blob) for blob in row[1:])
                found.append(StoredMatrix(key, x, truth, forecast, matrix.reshape(-1, len(x))))
        return found

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _connect(path: Path, options: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?{options}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def _readable(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        return False
    except sqlite3.DatabaseError:  # not a ledger at all: told with its name later
        return True
    return True


def _prepare(connection: sqlite3.Connection, path: Path, create: bool) -> None:
    """Makes the tables of a new file; refuses a file that is something else."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID and (tables or not create):
        raise LedgerError(f"{path} is not a ledger of hrx. Give another file.")
    if application == APPLICATION_ID and schema > SCHEMA_VERSION:
        raise LedgerError(
            f"{path} has ledger schema {schema}; this hrx reads up to {SCHEMA_VERSION}. Update hrx, or start anew."
        )
    if not create:
        return
    # FULL: a run counts as written only when it is on disk, so that not even a power cut loses it.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    if application == APPLICATION_ID:
        return
    connection.execute("BEGIN EXCLUSIVE")
    columns = ", ".join(f'"{c.name}" {c.kind}' for c in COLUMNS)
    connection.execute(f"CREATE TABLE IF NOT EXISTS runs ({columns}, PRIMARY KEY (key))")
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS checks ({_CHECK_COLUMNS}, "
        'PRIMARY KEY (fingerprint, library, adapter_version, torch_version, setting, "check", windows))'
    )
    connection.execute(
        "CREATE TABLE IF NOT EXISTS matrices (key TEXT PRIMARY KEY, x BLOB, truth BLOB, forecast BLOB, matrix BLOB)"
    )
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[Sequence[object]]) -> None:
    places = ", ".join("?" * len(rows[0])) if rows else ""
    connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _pack(values: Floats) -> bytes:
    return zlib.compress(np.ascontiguousarray(values, dtype="<f4").tobytes())


def _unpack(blob: bytes) -> Floats:
    return np.frombuffer(zlib.decompress(blob), dtype="<f4")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Says which file a database error is about, and what may help."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if "not a database" in text or "malformed" in text:
            raise LedgerError(f"{path} is not a ledger, or is damaged ({text}). Give another file.") from error
        raise LedgerError(f"{path} cannot be used: {text}. Check permissions, free disk space and locks.") from error
