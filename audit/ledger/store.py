"""The ledger: runs, admission checks, audit settings and example matrices, in one SQLite file.

It survives `kill -9` and takes several writers. Tables and migrations are in `database`. Needs no torch.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from operator import attrgetter
from pathlib import Path

import numpy as np

from hrx.audit.ledger.database import LedgerError as LedgerError
from hrx.audit.ledger.database import connect, naming, prepare, present_columns
from hrx.audit.ledger.record import FAILED, NAMES, Floats, Record, Value
from hrx.audit.ledger.record import StoredAudit as StoredAudit
from hrx.audit.ledger.record import StoredCheck as StoredCheck
from hrx.audit.ledger.record import StoredExample as StoredExample

KEYS_AT_ONCE = 900
"""SQLite takes at least 999 parameters in one statement."""


class Ledger:
    """An open ledger."""

    def __init__(self, connection: sqlite3.Connection, path: Path):
        self._connection = connection
        self.path = path

    @classmethod
    @contextmanager
    def open(cls, path: str | Path, *, create: bool = True) -> Iterator[Ledger]:
        """Opens a ledger for writing, creating it if needed; without `create`, an existing one for reading."""
        path = Path(path)
        with closing(connect(path, create=create)) as connection, naming(path):
            prepare(connection, path, create=create)
            yield cls(connection, path)

    def finished(self) -> set[str]:
        """Keys of all runs that need not be repeated."""
        rows = self._connection.execute("SELECT key FROM runs WHERE status != ?", (FAILED,))
        return {key for (key,) in rows}

    def keys(self) -> list[str]:
        """Keys of all runs, read from the index: available even where a page of the table is damaged."""
        return [key for (key,) in self._connection.execute("SELECT key FROM runs INDEXED BY sqlite_autoindex_runs_1")]

    def salvage(self, key: str) -> Record | None:
        """One run of a damaged ledger, or None where its page cannot be read."""
        try:
            return next(iter(self.records([key])), None)
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return None

    @property
    def columns(self) -> set[str]:
        """Columns of the table of runs in this file; one of an older schema has fewer."""
        return present_columns(self._connection, "runs")

    def write(self, record: Record, example: StoredExample | None = None, replacing: Iterable[str] = ()) -> None:
        """Stores one run in one transaction, with its example, which replaces the examples of other runs.

        A finished run is never replaced, a failed one is.
        """
        with self.transaction():
            self.put(record)
            if example is not None:
                self.put_example(example)
                self._connection.executemany("DELETE FROM matrices WHERE key = ?", [(key,) for key in replacing])

    def put(self, record: Record) -> None:
        """Stores one run within the caller's transaction."""
        self._connection.execute(_PUT, (*_row(record), FAILED))

    def put_example(self, example: StoredExample) -> None:
        """Stores one example within the caller's transaction."""
        arrays = (example.x, example.truth, example.forecast, example.matrix, example.curves)
        row = (example.key, *(None if array is None else _pack(array) for array in arrays))
        self._insert("matrices", StoredExample._fields, [row])

    def records(self, keys: Iterable[str] | None = None) -> list[Record]:
        """All runs, or those with the given keys, in the order they were first written."""
        return [Record(**dict(zip(NAMES, row, strict=True))) for row in self.rows(keys)]  # type: ignore[arg-type]

    def rows(self, keys: Iterable[str] | None = None) -> list[tuple[Value, ...]]:
        """The same as tuples in the order of the record's columns, which is three times as fast."""
        # A column that an older schema does not have reads as NULL.
        present = self.columns
        columns = ", ".join(f'"{name}"' if name in present else "NULL" for name in NAMES)
        if keys is None:
            return self._connection.execute(f"SELECT {columns} FROM runs ORDER BY rowid").fetchall()
        unique, numbered = list(dict.fromkeys(keys)), []
        for first in range(0, len(unique), KEYS_AT_ONCE):
            some = unique[first : first + KEYS_AT_ONCE]
            where = f"WHERE key IN ({', '.join('?' * len(some))})"
            numbered += self._connection.execute(f"SELECT rowid, {columns} FROM runs {where}", some).fetchall()
        return [row[1:] for row in sorted(numbered, key=lambda row: int(row[0]))]

    def write_checks(self, checks: Sequence[StoredCheck]) -> None:
        """Stores admission checks, replacing earlier ones of the same model, versions and setting."""
        with self.transaction():
            self.put_checks(checks)

    def put_checks(self, checks: Sequence[StoredCheck]) -> None:
        """Stores admission checks within the caller's transaction."""
        self._insert("checks", StoredCheck._fields, checks)

    def checks(self) -> list[StoredCheck]:
        """All admission checks, in the order they were first written."""
        names = StoredCheck._fields
        columns = ", ".join(f'"{name}"' for name in names)
        checks = []
        for row in self._connection.execute(f"SELECT {columns} FROM checks ORDER BY rowid"):
            values = dict(zip(names, row, strict=True))
            figure = float("nan") if values["figure"] is None else values["figure"]  # SQLite stores NaN as NULL
            checks.append(StoredCheck(**values | {"passed": bool(values["passed"]), "figure": figure}))
        return checks

    def example_keys(self) -> list[str]:
        """Keys of the runs that have an example, in the order they were written."""
        return [key for (key,) in self._connection.execute("SELECT key FROM matrices ORDER BY rowid")]

    def examples(self, keys: Iterable[str]) -> list[StoredExample]:
        """The examples of the given runs, where there are any."""
        present = present_columns(self._connection, "matrices")
        columns = ", ".join(name if name in present else "NULL" for name in StoredExample._fields)
        examples = []
        for key in keys:
            row = self._connection.execute(f"SELECT {columns} FROM matrices WHERE key = ?", (key,)).fetchone()
            if row is not None:
                try:
                    examples.append(_unpack_example(key, row[1:]))
                except (zlib.error, TypeError, ValueError) as error:
                    raise LedgerError(
                        f"{self.path}: the example of run {key[:12]} is damaged ({error}). Save the other runs with: "
                        f"hrx export {self.path} --format csv"
                    ) from error
        return examples

    def write_audit(self, audit: StoredAudit) -> None:
        """Stores the settings of an audit; the same settings under the same hrx once."""
        stored = {(other.hrx_version, other.settings) for other in self.audits()}
        if (audit.hrx_version, audit.settings) not in stored:
            with self.transaction():
                self.put_audit(audit)

    def put_audit(self, audit: StoredAudit) -> None:
        """Stores an audit's settings within the caller's transaction; the earliest entry stays."""
        names = StoredAudit._fields
        self._connection.execute(f"INSERT OR IGNORE INTO audits {_names_and_places(names)}", audit)

    def audits(self) -> list[StoredAudit]:
        """The settings of each audit of this ledger, earliest first."""
        if not present_columns(self._connection, "audits"):
            return []
        rows = self._connection.execute("SELECT created, hrx_version, settings FROM audits ORDER BY created, rowid")
        return [StoredAudit(*row) for row in rows]

    def damage(self) -> str:
        """What SQLite finds wrong with the file; empty where it is sound."""
        (result,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        return "" if result == "ok" else str(result).replace("\n", " ")

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

    def _insert(self, table: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self._connection.executemany(f"INSERT OR REPLACE INTO {table} {_names_and_places(names)}", rows)


def _names_and_places(names: Sequence[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"({quoted}) VALUES ({', '.join('?' * len(names))})"


_PUT = (
    f"INSERT INTO runs {_names_and_places(NAMES)} ON CONFLICT (key) DO UPDATE SET "
    + ", ".join(f'"{name}" = excluded."{name}"' for name in NAMES)
    + " WHERE runs.status = ?"
)
_row = attrgetter(*NAMES)  # `dataclasses.astuple` copies every value, which takes longer than the statement


def _unpack_example(key: str, blobs: Sequence[bytes | None]) -> StoredExample:
    """An example as it was packed; raises where a blob is not what was written."""
    *packed, curves = blobs
    x, truth, forecast, matrix = (_unpack(blob or b"") for blob in packed)
    swept = None if curves is None else _unpack(curves).reshape(3, 2, -1)
    return StoredExample(key, x, truth, forecast, matrix.reshape(-1, len(x)), swept)


def _pack(values: Floats) -> bytes:
    return zlib.compress(np.ascontiguousarray(values, dtype="<f4").tobytes())


def _unpack(blob: bytes) -> Floats:
    return np.frombuffer(zlib.decompress(blob), dtype="<f4")
