"""The ledger: runs, admission checks, audit settings, plans and example matrices, in one SQLite file.

It survives `kill -9` and takes several writers. Tables and migrations are in `database`, the checks of what is read in
`rows`. Needs no torch.
"""

from __future__ import annotations

import sqlite3
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from hrx.records.checksum import CHECKSUM, Cell, RowChecksum, as_stored
from hrx.records.database import (
    TABLES,
    connect,
    enable_wal,
    leave_one_file,
    naming,
    prepare,
    present_columns,
    schema_version,
)
from hrx.records.database import LedgerError as LedgerError
from hrx.records.log import LogState, log_state
from hrx.records.quantities import Floats
from hrx.records.record import FAILED, NAMES, Record, Value
from hrx.records.record import StoredAudit as StoredAudit
from hrx.records.record import StoredCheck as StoredCheck
from hrx.records.record import StoredExample as StoredExample
from hrx.records.record import StoredPlan as StoredPlan
from hrx.records.rows import Damage, TableReader, is_corrupt

MOST_NAMED = 10
LOST_LOG = {
    LogState.TORN: "its end cannot be read, so runs may be missing. Repeat the audit: it measures what is missing",
    LogState.ABSENT: (
        "the ledger was not closed and its log is gone, so runs may be missing. Copy LEDGER-wal together with LEDGER, "
        "or repeat the audit: it measures what is missing"
    ),
}
"""What is said of a log from which transactions may be lost."""


class LedgerWarning(UserWarning):
    """Parts of a ledger that were left out, since they are not as they were written."""

    def __init__(self, path: Path, damaged: Sequence[Damage]):
        self.path, self.damaged = path, tuple(damaged)
        shown = "".join(f"\n  {one}" for one in self.damaged[:MOST_NAMED])
        more = f"\n  … and {len(damaged) - MOST_NAMED} more; hrx check names all" if len(damaged) > MOST_NAMED else ""
        super().__init__(f"{path}: left out what is damaged: {len(damaged)} in all.{shown}{more}")


class Ledger:
    """An open ledger."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, writable: bool):
        self._connection = connection
        self.path = path
        self._writable = writable
        self._damaged: dict[Damage, None] = {}
        self._finished: set[str] = set()

    @classmethod
    @contextmanager
    def open(cls, path: str | Path, *, create: bool = True, warn: bool = True) -> Iterator[Ledger]:
        """Opens a ledger for writing, creating it if needed; without `create`, an existing one for reading.

        On closing, a `LedgerWarning` names what was found damaged, unless `warn` is false.
        """
        path = Path(path)
        log = LogState.CLOSED if create else log_state(path)
        ledger = None
        try:
            with closing(connect(path, create=create)) as connection, naming(path):
                prepare(connection, path, create=create)
                ledger = cls(connection, path, writable=create)
                ledger.judge_log(log)
                yield ledger
        finally:
            if create and ledger:  # a file that is not a ledger stays as it is
                leave_one_file(path)
        if warn and ledger.damaged:
            warnings.warn(LedgerWarning(path, ledger.damaged), stacklevel=3)

    @property
    def damaged(self) -> list[Damage]:
        """What was found damaged so far, and left out."""
        return list(self._damaged)

    def judge_log(self, log: LogState) -> None:
        """Notes a log from which runs may be lost."""
        if log in LOST_LOG:
            self._note(Damage("", f"{self.path.name}-wal", LOST_LOG[log]))

    def _note(self, damage: Damage) -> None:
        self._damaged[damage] = None

    def reader(self, table: str) -> TableReader:
        """Reads the rows of a table; those that are damaged are noted and left out."""
        return TableReader(self._connection, table, self._note)

    @property
    def schema(self) -> int:
        """The schema of the file."""
        return schema_version(self._connection)

    @property
    def protected(self) -> bool:
        """Whether the runs have checksums: a ledger of schema 3 or older has none before it is written to."""
        return self.reader("runs").protected

    def finished(self, keys: Iterable[str]) -> set[str]:
        """Those of the runs with these keys that need not be repeated; a failed or damaged one must be.

        A finished run stays finished, so each row is read and verified once.
        """
        wanted = set(keys)
        if unknown := wanted - self._finished:
            self.records(unknown)
        return wanted & self._finished

    @property
    def columns(self) -> set[str]:
        """Columns of a record that this file has; one of an older schema has fewer."""
        return present_columns(self._connection, "runs") & set(NAMES)

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
        row = _stored("runs", _values(record))
        if self._connection.execute(_PUT, (*row, FAILED)).rowcount:
            return
        # A finished run is kept, but not one whose record is damaged.
        if not TableReader(self._connection, "runs", lambda damage: None).by_key([record.key]):
            self._connection.execute("DELETE FROM runs WHERE key = ?", (record.key,))
            self._connection.execute(_PUT, (*row, FAILED))

    def put_example(self, example: StoredExample) -> None:
        """Stores one example within the caller's transaction."""
        arrays = (example.x, example.truth, example.forecast, example.matrix, example.curves)
        packed = (None if array is None else _pack(array) for array in arrays)
        self._insert("matrices", [(example.key, *packed, example.protected_since)])

    def records(self, keys: Iterable[str] | None = None) -> list[Record]:
        """All runs, or those with the given keys, in the order they were first written."""
        records = [Record(**dict(zip(NAMES, row, strict=True))) for row in self.rows(keys)]  # type: ignore[arg-type]
        self._finished.update(record.key for record in records if record.status != FAILED)
        return records

    def rows(self, keys: Iterable[str] | None = None) -> list[tuple[Value, ...]]:
        """The same as tuples in the order of the record's columns, which is three times as fast."""
        reader = self.reader("runs")
        if keys is None:
            return reader.all()  # type: ignore[return-value]
        wanted = list(keys)
        try:
            return reader.by_key(wanted)  # type: ignore[return-value]
        except sqlite3.DatabaseError as error:
            if not is_corrupt(error):
                raise
        some = set(wanted)
        return [row for row in reader.all() if row[0] in some]  # type: ignore[misc]

    def write_checks(self, checks: Sequence[StoredCheck]) -> None:
        """Stores admission checks, replacing earlier ones of the same model, versions and setting."""
        with self.transaction():
            self.put_checks(checks)

    def put_checks(self, checks: Sequence[StoredCheck]) -> None:
        """Stores admission checks within the caller's transaction."""
        self._insert("checks", checks)

    def checks(self) -> list[StoredCheck]:
        """All admission checks, in the order they were first written."""
        return [as_check(row) for row in self.reader("checks").all()]

    def example_keys(self) -> list[str]:
        """Keys of the runs that have an example, in the order they were written."""
        return self.reader("matrices").stored_keys()

    def examples(self, keys: Iterable[str]) -> list[StoredExample]:
        """The examples of the given runs, where there are any; one that is damaged is noted and left out."""
        reader = self.reader("matrices")
        examples: list[StoredExample] = []
        for key in keys:
            try:
                examples += map(as_example, reader.by_key([key]))
            except (sqlite3.DatabaseError, zlib.error, TypeError, ValueError) as error:
                self._note(Damage("matrices", f"(key {key[:12]})", f"it cannot be read ({error})"))
        return examples

    def write_audit(self, audit: StoredAudit) -> None:
        """Stores the settings of an audit; the same settings under the same hrx once."""
        stored = {(other.hrx_version, other.settings) for other in self.audits()}
        if (audit.hrx_version, audit.settings) not in stored:
            with self.transaction():
                self.put_audit(audit)

    def put_audit(self, audit: StoredAudit) -> None:
        """Stores an audit's settings within the caller's transaction; the earliest entry stays."""
        self._insert("audits", [audit], "INSERT OR IGNORE")

    def audits(self) -> list[StoredAudit]:
        """The settings of each audit of this ledger, earliest first."""
        return sorted(map(as_audit, self.reader("audits").all()), key=attrgetter("created"))

    def write_plans(self, plans: Sequence[StoredPlan]) -> None:
        """Stores what an audit plans for each model; a plan that is stored stays as it is."""
        stored = {plan.digest for plan in self.plans()}
        if new := [plan for plan in plans if plan.digest not in stored]:
            with self.transaction():
                self.put_plans(new)

    def put_plans(self, plans: Sequence[StoredPlan]) -> None:
        """Stores plans within the caller's transaction; the earliest entry stays."""
        self._insert("plans", plans, "INSERT OR IGNORE")

    def plans(self) -> list[StoredPlan]:
        """What was planned for each model, earliest first; a ledger of schema 4 or older does not know it."""
        return sorted(map(as_plan, self.reader("plans").all()), key=attrgetter("created"))

    def damage(self) -> str:
        """The first of what SQLite finds wrong with the file; empty where it is sound."""
        return next(iter(self.integrity(1)), "")

    def integrity(self, most: int = 100) -> list[str]:
        """What SQLite finds wrong with the file and its indexes."""
        found = []
        try:
            for (text,) in self._connection.execute(f"PRAGMA integrity_check({most})"):
                found.append(str(text).replace("\n", " "))
        except sqlite3.DatabaseError as error:
            if not is_corrupt(error):
                raise
            found.append(str(error))
        return [text for text in found if text != "ok"]

    def note_damage(self) -> bool:
        """Notes what SQLite finds wrong with the file, and returns whether it found anything."""
        if damage := self.damage():
            self._note(Damage("", "the file", damage))
        return bool(damage)

    @contextmanager
    def transaction(self, *, logged: bool = True) -> Iterator[None]:
        """Everything put inside is stored together, or not at all."""
        if logged and self._writable:
            enable_wal(self._connection)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _insert(self, table: str, rows: Iterable[Sequence[object]], verb: str = "INSERT OR REPLACE") -> None:
        statement = f"{verb} INTO {table} {_names_and_places(table)}"
        self._connection.executemany(statement, [_stored(table, row) for row in rows])


def _names_and_places(table: str) -> str:
    names = [*TABLES[table].columns, CHECKSUM]
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"({quoted}) VALUES ({', '.join('?' * len(names))})"


_PUT = (
    f"INSERT INTO runs {_names_and_places('runs')} ON CONFLICT (key) DO UPDATE SET "
    + ", ".join(f'"{name}" = excluded."{name}"' for name in (*NAMES, CHECKSUM))
    + " WHERE runs.status = ?"
)
_values = attrgetter(*NAMES)  # `dataclasses.astuple` copies every value, which takes longer than the statement
_SORTED = {name: sorted(table.columns) for name, table in TABLES.items()}
_CHECKSUMS = {name: RowChecksum(names) for name, names in _SORTED.items()}


def _stored(table: str, values: Iterable[object]) -> list[Cell]:
    """The cells of a row as SQLite will return them, in the order of the table's columns, and their checksum."""
    columns = TABLES[table].columns
    cells = {name: as_stored(kind, value) for (name, kind), value in zip(columns.items(), values, strict=True)}
    return [*cells.values(), _CHECKSUMS[table]([cells[name] for name in _SORTED[table]])]


def as_check(row: Sequence[Any]) -> StoredCheck:
    """A check from its row; SQLite stores a figure that is NaN as NULL."""
    check = StoredCheck(*row)
    figure = float("nan") if check.figure is None else check.figure
    return check._replace(passed=bool(check.passed), figure=figure)


def as_audit(row: Sequence[Any]) -> StoredAudit:
    """An audit's settings from their row."""
    return StoredAudit(*row)


def as_plan(row: Sequence[Any]) -> StoredPlan:
    """A plan from its row."""
    return StoredPlan(*row)


def as_example(row: Sequence[Any]) -> StoredExample:
    """An example from its row; raises where a blob is not what was written."""
    key, *packed, curves, since = row
    x, truth, forecast, matrix = (_unpack(blob or b"") for blob in packed)
    swept = None if curves is None else _unpack(curves).reshape(3, 2, -1)
    return StoredExample(key, x, truth, forecast, matrix.reshape(-1, len(x)), swept, since)


def _pack(values: Floats) -> bytes:
    return zlib.compress(np.ascontiguousarray(values, dtype="<f4").tobytes())


def _unpack(blob: bytes) -> Floats:
    return np.frombuffer(zlib.decompress(blob), dtype="<f4")
