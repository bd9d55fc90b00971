"""Ledger: runs, admission checks, audit settings, plans and example matrices, in one SQLite file.

It survives `kill -9` and takes several writers: SQLite keeps a rollback journal beside the file during each
transaction, and between transactions the file is whole. Needs no torch.
"""

from __future__ import annotations

import os
import sqlite3
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from hrx import __version__
from hrx.errors import HrxError
from hrx.files import regular_file
from hrx.records.quantities import Floats
from hrx.records.record import FAILED, NAMES, Record, Value
from hrx.records.record import StoredAudit as StoredAudit
from hrx.records.record import StoredCheck as StoredCheck
from hrx.records.record import StoredExample as StoredExample
from hrx.records.record import StoredPlan as StoredPlan
from hrx.records.rows import CHECKSUM, TABLES, Damage, TableReader, primary_code, quoted, stored_row, transaction

APPLICATION_ID = 0x68727831  # "hrx1": `file` and hrx recognise a ledger by it
SCHEMA_VERSION = 9
BUSY_SECONDS = 60
"""How long a statement waits for another process that has locked the file."""
MOST_NAMED = 10
StoredRow = Record | StoredCheck | StoredExample | StoredAudit | StoredPlan
_TABLES: dict[type, str] = {
    StoredCheck: "checks", StoredExample: "matrices", StoredAudit: "audits", StoredPlan: "plans",
}  # fmt: skip
BESIDE = ("-journal", "-wal", "-shm")
"""What SQLite can keep beside a file, by the end of the name; the last two where another program chose that mode."""


class LedgerError(HrxError):
    """A ledger that cannot be opened, read or written."""


class EmptyLedger(LedgerError):
    """A database without tables: a ledger that another process is creating looks like this for a moment."""


class LedgerWarning(UserWarning):
    """Parts of a ledger that were left out, since they are not as they were written."""

    def __init__(self, path: Path, damaged: Sequence[Damage]):
        self.path, self.damaged = path, tuple(damaged)
        shown = "".join(f"\n  {one}" for one in self.damaged[:MOST_NAMED])
        more = f"\n  … and {len(damaged) - MOST_NAMED} more; hrx check names all" if len(damaged) > MOST_NAMED else ""
        super().__init__(f"{path}: left out what is damaged: {len(damaged)} in all.{shown}{more}")


class Ledger:
    """An open ledger."""

    def __init__(self, connection: sqlite3.Connection, path: Path):
        self._connection = connection
        self.path = path
        self._damaged: dict[Damage, None] = {}
        self._finished: set[str] = set()
        self._request: str | None = None

    @classmethod
    @contextmanager
    def open(cls, path: str | Path, *, create: bool = True, warn: bool = True) -> Iterator[Ledger]:
        """Open a ledger for writing, creating it if needed; without `create`, an existing one for reading.

        On closing, a `LedgerWarning` names what was found damaged, unless `warn` is false.
        """
        path = Path(path)
        with closing(_connect(path, create=create)) as connection, _naming(path):
            prepare(connection, path, create=create)
            ledger = cls(connection, path)
            yield ledger
        if warn and ledger.damaged:
            warnings.warn(LedgerWarning(path, ledger.damaged), stacklevel=3)

    @property
    def damaged(self) -> list[Damage]:
        """What was found damaged so far, and left out."""
        return list(self._damaged)

    def _note(self, damage: Damage) -> None:
        self._damaged[damage] = None

    def _reader(self, table: str) -> TableReader:
        return TableReader(self._connection, table, self._note)

    def finished(self, keys: Iterable[str]) -> set[str]:
        """Those of the runs with these keys that need not be repeated; a failed or damaged one must be.

        A finished run stays finished, so each row is read and verified once.
        """
        wanted = set(keys)
        if unknown := wanted - self._finished:
            self.records(unknown)
        return wanted & self._finished

    def records(self, keys: Iterable[str] | None = None) -> list[Record]:
        """All runs, or those with the given keys, in the order they were first written."""
        records = [Record(**dict(zip(NAMES, row, strict=True))) for row in self.rows(keys)]  # type: ignore[arg-type]
        self._finished.update(record.key for record in records if record.status != FAILED)
        return records

    def rows(self, keys: Iterable[str] | None = None) -> list[tuple[Value, ...]]:
        """Return the same as tuples in the order of the record's columns, which is three times as fast."""
        reader = self._reader("runs")
        if keys is None:
            return reader.all()  # type: ignore[return-value]
        wanted = set(keys)
        try:
            return reader.by_key(wanted)  # type: ignore[return-value]
        except sqlite3.DatabaseError as error:
            if primary_code(error) != sqlite3.SQLITE_CORRUPT:
                raise
        return [row for row in reader.all() if row[0] in wanted]  # type: ignore[misc]

    def write(self, record: Record, example: StoredExample | None = None, replacing: Iterable[str] = ()) -> None:
        """Store one run in one transaction, with its example, which replaces the examples of other runs.

        A finished run is never replaced, a failed one is. The record gets the request of `write_audit`.
        """
        with self.transaction():
            self.put(record.updated(request=self._request) if record.request is None else record)
            if example is not None:
                self.put(example)
                self._connection.executemany("DELETE FROM matrices WHERE key = ?", [(key,) for key in replacing])

    def put(self, row: StoredRow) -> None:
        """Store a row as it is within the caller's transaction.

        A run that is finished, the settings of an audit and a plan stay as they are stored; other rows are replaced.
        """
        if isinstance(row, Record):
            held = TableReader(self._connection, "runs", lambda damage: None).by_key([row.key])
            if all(one[_STATUS] == FAILED for one in held):  # also where the stored one is damaged
                self._connection.execute(_PUT_RUN, stored_row("runs", _values(row)))
            return
        table, cells = _TABLES[type(row)], tuple(row)
        if isinstance(row, StoredExample):
            cells = (row.key, *(None if array is None else _pack(array) for array in row[1:]))
        elif isinstance(row, StoredAudit):
            cells = (row.digest, *row)
        verb = "IGNORE" if isinstance(row, StoredAudit | StoredPlan) else "REPLACE"
        self._connection.execute(f"INSERT OR {verb} INTO {table} {_names_and_places(table)}", stored_row(table, cells))

    def checks(self) -> list[StoredCheck]:
        """All admission checks, in the order they were first written."""
        return [_as_check(row) for row in self._reader("checks").all()]

    def write_checks(self, checks: Sequence[StoredCheck]) -> None:
        """Store admission checks, replacing earlier ones of the same model, versions and setting."""
        with self.transaction():
            for check in checks:
                self.put(check)

    def example_keys(self) -> list[str]:
        """Keys of the runs that have an example, in the order they were written."""
        return self._reader("matrices").keys()

    def examples(self, keys: Iterable[str]) -> list[StoredExample]:
        """Examples of the given runs, where there are any; one that is damaged is noted and left out."""
        reader = self._reader("matrices")
        examples: list[StoredExample] = []
        for key in keys:
            try:
                examples += map(_as_example, reader.by_key([key]))
            except (sqlite3.DatabaseError, zlib.error, TypeError, ValueError) as error:
                self._note(Damage("matrices", f"(key {key[:12]})", f"it cannot be read ({error})"))
        return examples

    def audits(self) -> list[StoredAudit]:
        """Settings of each audit of this ledger, earliest first."""
        return sorted((StoredAudit(*row[1:]) for row in self._reader("audits").all()), key=attrgetter("created"))  # type: ignore[arg-type]

    def write_audit(self, audit: StoredAudit) -> None:
        """Store the settings of an audit, the same ones once; the runs that are written from now on name them."""
        self._request = audit.digest
        with self.transaction():
            self.put(audit)

    def plans(self) -> list[StoredPlan]:
        """What was planned for each model, earliest first."""
        return sorted((StoredPlan(*row) for row in self._reader("plans").all()), key=attrgetter("created"))  # type: ignore[arg-type]

    def write_plans(self, plans: Sequence[StoredPlan]) -> None:
        """Store what an audit plans for each model; a plan that is stored stays as it is."""
        with self.transaction():
            for plan in plans:
                self.put(plan)

    def integrity(self, most: int = 100) -> list[str]:
        """What SQLite finds wrong with the file and its indexes."""
        found = []
        try:
            for (text,) in self._connection.execute(f"PRAGMA integrity_check({most})"):
                found.append(str(text).replace("\n", " "))
        except sqlite3.DatabaseError as error:
            if primary_code(error) != sqlite3.SQLITE_CORRUPT:
                raise
            found.append(str(error))
        return [text for text in found if text != "ok"]

    def note_integrity(self) -> None:
        """Note what SQLite finds wrong as damage."""
        for finding in self.integrity():
            self._note(Damage("", "the file", finding))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything put inside is stored together, or not at all."""
        with transaction(self._connection):
            yield


def utc_now() -> str:
    """Return the time as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the file for writing, creating it if needed; without `create`, an existing file for reading.

    A reader may still undo what a killed writer left half-done, as SQLite does on its own.
    """
    if not create and not os.path.exists(path):
        raise LedgerError(f"{path} does not exist. Give the ledger that `hrx audit` wrote.")
    if os.path.isdir(path):
        raise LedgerError(f"{path} is a directory. A ledger is a file, for example {path / 'ledger.db'}.")
    for file in (path, *(path.with_name(f"{path.name}{end}") for end in BESIDE)):
        _check_regular(file)
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        uri = f"{path.resolve().as_uri()}?mode={'rwc' if create else 'rw'}"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        # A damaged text may be no UTF-8: it is read, and then fails the checksum of its row.
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        if not create:
            connection.execute("PRAGMA query_only = ON")
        return connection
    except (OSError, ValueError, sqlite3.Error) as error:
        raise LedgerError(f"{path} cannot be opened: {error}. Check the directory and its permissions.") from error


def _check_regular(path: Path) -> None:
    """Refuse a FIFO or a device, which SQLite would wait for."""
    try:
        if os.path.exists(path):
            regular_file(path)
    except HrxError as error:
        if os.path.exists(path):  # another process may have removed its journal in the meantime
            raise LedgerError(f"{error} Give the ledger that `hrx audit` wrote.") from error


def prepare(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    """Create the tables of a new file, and refuse a file that is not a ledger, or one of another schema."""
    with transaction(connection, "BEGIN"):  # one consistent view: another process may be creating the tables
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application == APPLICATION_ID:
            _check_schema(connection, path)
        elif tables:
            raise LedgerError(f"{path} is not a ledger of hrx. Give another file.")
        elif not create:
            raise EmptyLedger(f"{path} is not a ledger of hrx. Give another file.")
    if create:
        # EXTRA: a run counts as written only once it is on disk, so a power cut does not lose it.
        connection.execute("PRAGMA synchronous = EXTRA")
        if application != APPLICATION_ID:
            create_tables(connection)


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    if schema != SCHEMA_VERSION:
        version = _version_of_writer(connection)
        raise LedgerError(
            f"{path} has ledger schema {schema}, of {version}; hrx {__version__} reads schema {SCHEMA_VERSION}. Read "
            "it with that version, or audit into a new file: --ledger NEW.db."
        )
    wrong = [
        name
        for name, table in TABLES.items()
        if {row[1] for row in connection.execute(f"PRAGMA table_info({name})")} != {*table.columns, CHECKSUM}
    ]
    if wrong:
        raise LedgerError(
            f"{path} is damaged: its tables {', '.join(wrong)} have lost columns. Restore it from a copy, or audit "
            "into a new file: --ledger NEW.db."
        )


def _version_of_writer(connection: sqlite3.Connection) -> str:
    """Name the hrx that created the file."""
    try:
        return f"hrx {connection.execute('SELECT hrx_version FROM meta').fetchone()[0]}"
    except (sqlite3.Error, TypeError):
        return "another version of hrx"


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of a new file in one transaction, unless another process has."""
    with transaction(connection):
        if connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,):
            return
        for name, table in TABLES.items():
            columns = ", ".join(f'"{column}" {kind}' for column, kind in {**table.columns, CHECKSUM: "TEXT"}.items())
            connection.execute(f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({table.key}))")
        connection.execute("CREATE TABLE meta (hrx_version TEXT)")
        connection.execute("INSERT INTO meta VALUES (?)", (__version__,))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the path and the next step to database errors."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if any(sign in text for sign in ("not a database", "malformed", "no such table")):
            raise LedgerError(
                f"{path} is not a ledger, or is damaged ({text}). Give another file. To save what can still be read "
                f"of a damaged ledger: hrx merge {path} --into NEW.db"
            ) from error
        journal = path.with_name(f"{path.name}{BESIDE[0]}")
        if primary_code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) and journal.exists():
            raise LedgerError(
                f"{path} was left half-written, and {journal.name} can only be applied in a writable directory. Copy "
                "both files to a writable directory and give the copy."
            ) from error
        raise LedgerError(f"{path} cannot be used: {text}. Check permissions, free disk space and locks.") from error


def _names_and_places(table: str) -> str:
    names = [*TABLES[table].columns, CHECKSUM]
    return f"({quoted(names)}) VALUES ({', '.join('?' * len(names))})"


_PUT_RUN = (  # `INSERT OR REPLACE` would change the order of writing
    f"INSERT INTO runs {_names_and_places('runs')} ON CONFLICT (key) DO UPDATE SET "
    + ", ".join(f'"{name}" = excluded."{name}"' for name in (*NAMES, CHECKSUM))
)
_STATUS = NAMES.index("status")
_values = attrgetter(*NAMES)  # `dataclasses.astuple` copies every value, which takes longer than the statement


def _as_check(row: Sequence[Any]) -> StoredCheck:
    """A check from its row; SQLite stores a figure that is NaN as NULL."""
    check = StoredCheck(*row)
    figure = float("nan") if check.figure is None else check.figure
    return check._replace(passed=bool(check.passed), figure=figure)


def _as_example(row: Sequence[Any]) -> StoredExample:
    """An example from its row; raises where a blob is not what was written."""
    key, *packed, curves = row
    x, truth, forecast, matrix = (_unpack(blob or b"") for blob in packed)
    swept = None if curves is None else _unpack(curves).reshape(3, 2, -1)
    return StoredExample(key, x, truth, forecast, matrix.reshape(-1, len(x)), swept)


def _pack(values: Floats) -> bytes:
    return zlib.compress(np.ascontiguousarray(values, dtype="<f4").tobytes())


def _unpack(blob: bytes) -> Floats:
    return np.frombuffer(zlib.decompress(blob), dtype="<f4")
