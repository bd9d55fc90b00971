"""The ledger: what is done, in one SQLite file that survives `kill -9` and takes several writers.

A row per run, a row per admission check, the settings of each audit, and for a few runs the matrix of one window, for
pictures. Which tables and columns there are is said in `schema`, how the file is opened in `database`. Needs no torch.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hrx.audit.ledger.database import LedgerError as LedgerError
from hrx.audit.ledger.database import connect, naming, prepare
from hrx.audit.ledger.record import FAILED, NAMES, Record, Value
from hrx.audit.ledger.schema import MATRIX_COLUMNS, present

KEYS_AT_ONCE = 900
"""SQLite takes at least 999 parameters in one statement."""
Floats = npt.NDArray[np.floating]
_MATRIX_NAMES = ", ".join(column.split()[0] for column in MATRIX_COLUMNS)


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


class StoredExample(NamedTuple):
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


class StoredWay(NamedTuple):
    """How a model is computed at a setting, as the ledger keeps it."""

    fingerprint: str
    library: str
    adapter_version: str
    torch_version: str
    setting: str
    windows: str
    """sha256 of the windows it was chosen on."""
    wanted: str
    rows: str
    accelerations: str
    probe: str
    notes: str
    """JSON: sentences."""


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
        with closing(connect(path, create=create)) as connection, naming(path):
            prepare(connection, path, create=create)
            yield cls(connection, path)

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

    def write(self, record: Record, matrix: StoredExample | None = None, instead_of: Iterable[str] = ()) -> None:
        """Stores one run in one transaction, with its picture if there is one, which takes the place of others.

        Only a failed run is ever replaced.
        """
        with self.transaction():
            self.put(record)
            if matrix is not None:
                self.put_example(matrix)
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

    def put_example(self, matrix: StoredExample) -> None:
        """Stores one picture within a transaction of the caller's."""
        packed = (_pack(matrix.x), _pack(matrix.truth), _pack(matrix.forecast), _pack(matrix.matrix))
        curves = None if matrix.curves is None else _pack(matrix.curves)
        _insert(self._connection, f"matrices ({_MATRIX_NAMES})", [(matrix.key, *packed, curves)])

    def records(self, keys: Iterable[str] | None = None) -> list[Record]:
        """All runs, or those with the given keys, in the order they were first written."""
        return [dict(zip(NAMES, row, strict=True)) for row in self.rows(keys)]

    def rows(self, keys: Iterable[str] | None = None) -> list[tuple[Value, ...]]:
        """The same as bare values, in the order of the record's columns: a third of the time where there are many."""
        there = present(self._connection, "runs")
        # A ledger of an older schema may be read as it is: what it does not have is not known.
        columns = ", ".join(f'"{name}"' if name in there else "NULL" for name in NAMES)
        if keys is None:
            return self._connection.execute(f"SELECT {columns} FROM runs ORDER BY rowid").fetchall()
        wanted, numbered = list(dict.fromkeys(keys)), []
        for first in range(0, len(wanted), KEYS_AT_ONCE):
            some = wanted[first : first + KEYS_AT_ONCE]
            where = f"WHERE key IN ({', '.join('?' * len(some))})"
            numbered += self._connection.execute(f"SELECT rowid, {columns} FROM runs {where}", some).fetchall()
        return [row[1:] for row in sorted(numbered, key=lambda row: int(row[0]))]

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

    def write_way(self, way: StoredWay) -> None:
        """Stores a choice; one that was made before for the same model and windows stays."""
        with self.transaction():
            self.put_ways([way])

    def put_ways(self, ways: Sequence[StoredWay]) -> None:
        """Stores choices within a transaction of the caller's; earlier ones stay."""
        places = ", ".join("?" * len(StoredWay._fields))
        self._connection.executemany(f"INSERT OR IGNORE INTO ways VALUES ({places})", ways)

    def ways(self) -> list[StoredWay]:
        """All choices, in the order they were written."""
        if not present(self._connection, "ways"):
            return []
        return [StoredWay(*row) for row in self._connection.execute("SELECT * FROM ways ORDER BY rowid")]

    def example_keys(self) -> list[str]:
        """Keys of the runs whose window is stored, in the order they were written."""
        return [key for (key,) in self._connection.execute("SELECT key FROM matrices ORDER BY rowid")]

    def examples(self, keys: Iterable[str]) -> list[StoredExample]:
        """The stored windows of the given runs."""
        there = present(self._connection, "matrices")
        names = ", ".join(name if name in there else "NULL" for name in _MATRIX_NAMES.split(", "))
        found = []
        for key in keys:
            row = self._connection.execute(f"SELECT {names} FROM matrices WHERE key = ?", (key,)).fetchone()
            if row is not None:
                try:
                    found.append(_stored_example(key, row[1:]))
                except (zlib.error, TypeError, ValueError) as error:
                    raise LedgerError(
                        f"{self.path}: the picture of run {key[:12]} is damaged ({error}). Save the other runs with: "
                        f"hrx export {self.path} --format csv"
                    ) from error
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


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[Sequence[object]]) -> None:
    if not rows:
        return
    places = ", ".join("?" * len(rows[0]))
    connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _stored_example(key: str, blobs: Sequence[bytes | None]) -> StoredExample:
    """A window as it was packed; raises where a blob is not what was written."""
    *packed, curves = blobs
    x, truth, forecast, matrix = (_unpack(blob or b"") for blob in packed)
    swept = None if curves is None else _unpack(curves).reshape(3, 2, -1)
    return StoredExample(key, x, truth, forecast, matrix.reshape(-1, len(x)), swept)


def _pack(values: Floats) -> bytes:
    return zlib.compress(np.ascontiguousarray(values, dtype="<f4").tobytes())


def _unpack(blob: bytes) -> Floats:
    return np.frombuffer(zlib.decompress(blob), dtype="<f4")
