"""The ledger: what is done, in one SQLite file that survives `kill -9` and takes several writers.

A row per run, a row per admission check, the settings of each audit, and for a few runs the matrix of one window, for
pictures. Which tables and columns there are is said in `schema`. Needs no torch.
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

from hrx.audit.record import FAILED, NAMES, Record
from hrx.audit.schema import APPLICATION_ID, MATRIX_COLUMNS, SCHEMA_VERSION, bring_forward, present, version
from hrx.errors import HrxError

BUSY_SECONDS = 60
KEYS_AT_ONCE = 900
"""SQLite takes at least 999 parameters in one statement."""
Floats = npt.NDArray[np.floating]
_MATRIX_NAMES = ", ".join(column.split()[0] for column in MATRIX_COLUMNS)


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
    curves: Floats | None = None
    """`(3, 2, K)`: mean deletion curves under a step's own row, the shared vector and all rows; MoRF, then LeRF."""


class StoredAudit(NamedTuple):
    """What one audit was asked."""

    created: str
    """UTC time at which these settings were first used."""
    hrx_version: str
    settings: str
    """JSON: the effective settings, without the place of any file."""


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

    def keys(self) -> list[str]:
        """Keys of all runs. They are read from the index, and so even where a page of the table is damaged."""
        return [key for (key,) in self._connection.execute("SELECT key FROM runs INDEXED BY sqlite_autoindex_runs_1")]

    def salvaged(self, key: str) -> Record | None:
        """One run of a damaged ledger, or None where its page cannot be read."""
        try:
            return next(iter(self.records([key])), None)
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return None

    @property
    def columns(self) -> set[str]:
        """Columns of the record that this file has: one of an older schema has fewer."""
        return present(self._connection, "runs")

    def write(self, record: Record, matrix: StoredMatrix | None = None, instead_of: Iterable[str] = ()) -> None:
        """Stores one run in one transaction, with its picture if there is one, which takes the place of others.

        Only a failed run is ever replaced.
        """
        with self.transaction():
            self.put(record)
            if matrix is not None:
                self.put_matrix(matrix)
                self._connection.executemany("DELETE FROM matrices WHERE key = ?", [(key,) for key in instead_of])

    def put(self, record: Record) -> None:
        """Stores one run within a transaction of the caller's."""
        places = ", ".join("?" * len(NAMES))
        renewed = ", ".join(f'"{name}" = excluded."{name}"' for name in NAMES)
        self._connection.execute(
            f"INSERT INTO runs ({_quoted(NAMES)}) VALUES ({places}) "
            f"ON CONFLICT (key) DO UPDATE SET {renewed} WHERE runs.status = ?",
            (*(record.get(name) for name in NAMES), FAILED),
        )

    def put_matrix(self, matrix: StoredMatrix) -> None:
        """Stores one picture within a transaction of the caller's."""
        packed = (_pack(matrix.x), _pack(matrix.truth), _pack(matrix.forecast), _pack(matrix.matrix))
        curves = None if matrix.curves is None else _pack(matrix.curves)
        _insert(self._connection, f"matrices ({_MATRIX_NAMES})", [(matrix.key, *packed, curves)])

    def records(self, keys: Iterable[str] | None = None) -> list[Record]:
        """All runs, or those with the given keys, in the order they were first written."""
        there = present(self._connection, "runs")
        # A ledger of an older schema may be read as it is: what it does not have is not known.
        columns = ", ".join(f'"{name}"' if name in there else "NULL" for name in NAMES)
        select = f"SELECT rowid, {columns} FROM runs"
        if keys is None:
            rows = self._connection.execute(f"{select} ORDER BY rowid").fetchall()
        else:
            wanted, rows = list(dict.fromkeys(keys)), []
            for first in range(0, len(wanted), KEYS_AT_ONCE):
                some = wanted[first : first + KEYS_AT_ONCE]
                where = f"WHERE key IN ({', '.join('?' * len(some))})"
                rows += self._connection.execute(f"{select} {where}", some).fetchall()
            rows.sort()
        return [dict(zip(NAMES, row[1:], strict=True)) for row in rows]

    def write_checks(self, checks: Sequence[StoredCheck]) -> None:
        """Stores admission checks, replacing earlier ones of the same model, versions and setting."""
        with self.transaction():
            self.put_checks(checks)

    def put_checks(self, checks: Sequence[StoredCheck]) -> None:
        """Stores admission checks within a transaction of the caller's."""
        _insert(self._connection, "checks", checks)

    def checks(self) -> list[StoredCheck]:
        """All admission checks, in the order they were first written."""
        rows = self._connection.execute("SELECT * FROM checks ORDER BY rowid")
        # SQLite keeps NaN as NULL.
        return [
            StoredCheck(*row)._replace(passed=bool(row[7]), figure=float("nan") if row[8] is None else row[8])
            for row in rows
        ]

    def matrix_keys(self) -> list[str]:
        """Keys of the runs whose window is stored, in the order they were written."""
        return [key for (key,) in self._connection.execute("SELECT key FROM matrices ORDER BY rowid")]

    def matrices(self, keys: Iterable[str]) -> list[StoredMatrix]:
        """The stored windows of the given runs."""
        there = present(self._connection, "matrices")
        names = ", ".join(name if name in there else "NULL" for name in _MATRIX_NAMES.split(", "))
        found = []
        for key in keys:
            row = self._connection.execute(f"SELECT {names} FROM matrices WHERE key = ?", (key,)).fetchone()
            if row is not None:
                x, truth, forecast, matrix = (_unpack(blob) for blob in row[1:5])
                curves = None if row[5] is None else _unpack(row[5]).reshape(3, 2, -1)
                found.append(StoredMatrix(key, x, truth, forecast, matrix.reshape(-1, len(x)), curves))
        return found

    def write_audit(self, audit: StoredAudit) -> None:
        """Stores what an audit was asked; the same settings under the same hrx once."""
        known = {(stored.hrx_version, stored.settings) for stored in self.audits()}
        if (audit.hrx_version, audit.settings) not in known:
            with self.transaction():
                self.put_audit(audit)

    def put_audit(self, audit: StoredAudit) -> None:
        """Stores an audit's settings within a transaction of the caller's; the earliest stays."""
        self._connection.execute("INSERT OR IGNORE INTO audits VALUES (?, ?, ?)", audit)

    def audits(self) -> list[StoredAudit]:
        """What each audit of this ledger was asked, earliest first."""
        if not present(self._connection, "audits"):
            return []
        rows = self._connection.execute("SELECT created, hrx_version, settings FROM audits ORDER BY created, rowid")
        return [StoredAudit(*row) for row in rows]

    def damage(self) -> str:
        """What SQLite finds wrong with the file, empty where it is sound."""
        (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        return "" if found == "ok" else str(found).replace("\n", " ")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything put inside is stored together, or not at all."""
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
    """Makes the tables of a new file, brings an older one forward, and refuses a file that is something else."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    schema = version(connection)
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
    bring_forward(connection)


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[Sequence[object]]) -> None:
    if not rows:
        return
    places = ", ".join("?" * len(rows[0]))
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
            raise LedgerError(
                f"{path} is not a ledger, or is damaged ({text}). Give another file; what can still be read of a "
                f"damaged ledger is saved by: hrx merge {path} --into NEW.db"
            ) from error
        raise LedgerError(f"{path} cannot be used: {text}. Check permissions, free disk space and locks.") from error
