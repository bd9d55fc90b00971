"""Ledger: runs, admission checks, audit settings, plans and example matrices, in one SQLite file.

It survives `kill -9` and takes several writers: SQLite keeps a rollback journal beside the file during each
transaction, and between transactions the file is whole. Each row has a checksum; reading leaves out a row that is
damaged, and names it. Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import shutil
import sqlite3
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, get_type_hints

import numpy as np

from hrx import __version__
from hrx.errors import Exit, HrxError
from hrx.files import fifos_released, open_regular, regular_file
from hrx.records.quantities import Floats
from hrx.records.record import COLUMNS, FAILED, NAMES, Record, Value
from hrx.records.record import StoredAudit as StoredAudit
from hrx.records.record import StoredCheck as StoredCheck
from hrx.records.record import StoredExample as StoredExample
from hrx.records.record import StoredPlan as StoredPlan

APPLICATION_ID = 0x68727831  # "hrx1": `file` and hrx recognise a ledger by it
SCHEMA_VERSION = 12
BUSY_SECONDS = 60
"""How long a statement waits for another process that has locked the file."""
MOST_NAMED = 10
BESIDE = ("-journal", "-wal", "-shm")
"""What SQLite can keep beside a file, by the end of the name; the last two where another program chose that mode."""
CHECKSUM = "checksum"
"""Name of the column that each table has beside those of its rows."""
Kind = Literal["TEXT", "INTEGER", "REAL", "BLOB"]
Cell = str | int | float | bytes | None
StoredRow = Record | StoredCheck | StoredExample | StoredAudit | StoredPlan
_TYPES: dict[Kind, type] = {"TEXT": str, "INTEGER": int, "REAL": float, "BLOB": bytes}
_KINDS: dict[object, Kind] = {str: "TEXT", str | None: "TEXT", bool: "INTEGER", float: "REAL"}
_LONGEST, _KEY_DIGITS = 60, 12
_STATUS = NAMES.index("status")


class Table(NamedTuple):
    """A table of the ledger."""

    word: str
    """What a row is."""
    columns: Mapping[str, Kind]
    """Without the checksum."""
    key: str
    """Columns of the primary key, separated by commas."""
    label: tuple[str, ...] = ()
    """Columns by which a person knows a row."""


def _columns(row: type[tuple[object, ...]]) -> dict[str, Kind]:
    """Columns from the fields of a row; arrays are packed into BLOBs."""
    return {name: _KINDS.get(kind, "BLOB") for name, kind in get_type_hints(row).items()}


TABLES = {
    "runs": Table("run", {c.name: c.kind for c in COLUMNS}, "key", ("model", "dataset", "series")),
    "checks": Table(
        "admission check",
        _columns(StoredCheck),
        'fingerprint, library, adapter_version, torch_version, setting, "check", windows',
        ("model", "setting", "check"),
    ),
    "matrices": Table("example", _columns(StoredExample), "key"),
    "audits": Table("audit", {"digest": "TEXT", **_columns(StoredAudit)}, "digest", ("created", "hrx_version")),
    "plans": Table("plan", _columns(StoredPlan), "digest", ("model", "created")),
}
_NAMES: dict[type, str] = {
    Record: "runs", StoredCheck: "checks", StoredExample: "matrices", StoredAudit: "audits", StoredPlan: "plans",
}  # fmt: skip
_values = attrgetter(*NAMES)  # `dataclasses.astuple` copies every value, which takes longer than the statement


def checksum(row: Sequence[Cell]) -> str:
    """sha256 over the JSON list of a row's cells as SQLite returns them, bytes as hexadecimal digits in an object."""
    text = json.dumps(row, default=lambda blob: {"bytes": blob.hex()})
    return hashlib.sha256(text.encode()).hexdigest()


def as_stored(kind: Kind, value: object) -> Cell:
    """A value as SQLite returns it from a column of this kind; a `TypeError` where it does not belong there.

    SQLite has no NaN, which it stores as NULL, and no negative zero in a REAL column.
    """
    if value is None:
        return None
    if kind == "REAL":
        number = float(value)  # type: ignore[arg-type]
        return None if math.isnan(number) else number + 0.0
    if kind == "INTEGER":
        return int(operator.index(value))  # type: ignore[arg-type]  # True is an index of its own type
    if not isinstance(value, _TYPES[kind]):
        raise TypeError(f"{type(value).__name__} in a column of type {kind}")
    return _TYPES[kind](value)  # type: ignore[no-any-return]  # a subclass, such as torch's version, becomes plain


class Damage(NamedTuple):
    """A row that was left out, or another part of a ledger that cannot be trusted."""

    table: str
    """Name of the table; empty where it is not a row."""
    row: str
    """Which row, or which part."""
    fault: str

    def __str__(self) -> str:
        what = f"{TABLES[self.table].word} {self.row}" if self.table else self.row
        return f"{what}: {self.fault}"


class LedgerError(HrxError):
    """A ledger that cannot be opened, read or written."""


class FullDisk(LedgerError):
    """A ledger that could not be written after a right request."""

    exit = Exit.INCOMPLETE


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
        self._connection, self.path = connection, path
        self._damaged: dict[Damage, None] = {}
        self._finished: set[str] = set()
        self._request: str | None = None

    @classmethod
    @contextmanager
    def open(cls, path: str | Path, *, create: bool = True, warn: bool = True) -> Iterator[Ledger]:
        """Open a ledger for writing, creating it if needed; without `create`, an existing one for reading.

        Reading changes neither the file nor its folder.
        On closing, a `LedgerWarning` names what was found damaged, unless `warn` is false.
        """
        path = Path(path)
        with ExitStack() as opened, _naming(path):
            with fifos_released([path, *_beside(path)]):  # SQLite opens them by their names
                connection = _connect(path, "rwc", opened) if create else _connect_to_read(path, opened)
                prepare(connection, path, create=create)
            ledger = cls(connection, path)
            yield ledger
        if warn and ledger.damaged:
            warnings.warn(LedgerWarning(path, ledger.damaged), stacklevel=3)

    @property
    def damaged(self) -> list[Damage]:
        """What was found damaged so far, and left out."""
        return list(self._damaged)

    def _note(self, table: str, row: str, fault: str) -> None:
        self._damaged[Damage(table, row, fault)] = None

    def finished(self, keys: Iterable[str]) -> set[str]:
        """Those of the runs with these keys that need not be repeated; a failed or damaged one must be.

        A finished run stays finished, so each row is read and verified once.
        """
        wanted = set(keys)
        if unknown := wanted - self._finished:
            self._finished.update(str(row[0]) for row in self.rows(unknown) if row[_STATUS] != FAILED)
        return wanted & self._finished

    def records(self, keys: Iterable[str] | None = None) -> list[Record]:
        """All runs, or those with the given keys, in the order they were first written."""
        records = [Record(**dict(zip(NAMES, row, strict=True))) for row in self.rows(keys)]  # type: ignore[arg-type]
        self._finished.update(record.key for record in records if record.status != FAILED)
        return records

    def rows(self, keys: Iterable[str] | None = None) -> list[tuple[Value, ...]]:
        """Return the same as tuples in the order of the record's columns, which is three times as fast."""
        if keys is None:
            return self._all("runs")
        wanted = set(keys)
        try:
            return self._by_key("runs", wanted)
        except sqlite3.DatabaseError as error:
            _pass_if_corrupt(error)
        return [row for row in self._all("runs") if row[0] in wanted]

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
        table, cells = _NAMES[type(row)], _values(row) if isinstance(row, Record) else tuple(row)
        verb = "INSERT OR IGNORE" if isinstance(row, StoredAudit | StoredPlan) else "INSERT OR REPLACE"
        names = [*TABLES[table].columns, CHECKSUM]
        change = ""
        if isinstance(row, Record):
            held = self._connection.execute(f"SELECT {_cells('runs')} FROM runs WHERE key = ?", (row.key,)).fetchall()
            if any(one[2 + _STATUS] != FAILED and _is_sound(one) for one in held):  # a damaged one is replaced
                return
            # `INSERT OR REPLACE` would change the order of writing.
            verb, change = "INSERT", " ON CONFLICT (key) DO UPDATE SET "
            change += ", ".join(f'"{name}" = excluded."{name}"' for name in names)
        elif isinstance(row, StoredExample):
            cells = (row.key, *(None if array is None else _pack(array) for array in row[1:]))
        elif isinstance(row, StoredAudit):
            cells = (row.digest, *row)
        kinds = TABLES[table].columns.values()
        stored = [as_stored(kind, value) for kind, value in zip(kinds, cells, strict=True)]
        statement = f"{verb} INTO {table} ({_quoted(names)}) VALUES ({', '.join('?' * len(names))}){change}"
        self._connection.execute(statement, [*stored, checksum(stored)])

    def write_all(self, rows: Iterable[StoredRow]) -> None:
        """Put several rows in one transaction."""
        with self.transaction():
            for row in rows:
                self.put(row)

    def write_audit(self, audit: StoredAudit) -> None:
        """Store the settings of an audit, the same ones once; the runs that are written from now on name them."""
        self._request = audit.digest
        self.write_all([audit])

    def checks(self) -> list[StoredCheck]:
        """All admission checks, in the order they were first written."""
        checks = (StoredCheck(*row) for row in self._all("checks"))
        # SQLite stores a figure that is NaN as NULL, and truth as 1.
        nan = math.nan
        return [
            one._replace(passed=bool(one.passed), figure=nan if one.figure is None else one.figure) for one in checks
        ]

    def example_keys(self) -> list[str]:
        """Keys of the runs that have an example, in the order they were written, as far as the index can be read."""
        found: dict[str, int] = {}
        with suppress(sqlite3.DatabaseError):
            for key, rowid in self._connection.execute(f"SELECT key, rowid FROM {_by_index('matrices')}"):
                found[str(key)] = rowid
        return sorted(found, key=found.__getitem__)

    def examples(self, keys: Iterable[str]) -> list[StoredExample]:
        """Examples of the given runs, where there are any; one that is damaged is noted and left out."""
        examples = []
        for key in keys:
            try:
                rows = self._by_key("matrices", [key])
            except sqlite3.DatabaseError as error:
                rows = []
                self._note("matrices", f"(key {key[:_KEY_DIGITS]})", f"it cannot be read ({error})")
            for _, *packed, swept in rows:
                x, truth, forecast, matrix = map(_unpack, packed)
                curves = None if swept is None else _unpack(swept).reshape(3, 2, -1)
                examples.append(StoredExample(key, x, truth, forecast, matrix.reshape(-1, len(x)), curves))
        return examples

    def audits(self) -> list[StoredAudit]:
        """Settings of each audit of this ledger, earliest first."""
        return sorted((StoredAudit(*row[1:]) for row in self._all("audits")), key=attrgetter("created"))

    def plans(self) -> list[StoredPlan]:
        """What was planned for each model, earliest first."""
        return sorted((StoredPlan(*row) for row in self._all("plans")), key=attrgetter("created"))

    def integrity(self, most: int = 100) -> list[str]:
        """What SQLite finds wrong with the file and its indexes."""
        found = []
        try:
            for (text,) in self._connection.execute(f"PRAGMA integrity_check({most})"):
                found.append(str(text).replace("\n", " "))
        except sqlite3.DatabaseError as error:
            _pass_if_corrupt(error)
            found.append(str(error))
        return [text for text in found if text != "ok"]

    def note_integrity(self) -> None:
        """Note what SQLite finds wrong as damage."""
        for finding in self.integrity():
            self._note("", "the file", finding)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything put inside is stored together, or not at all."""
        with _transaction(self._connection):
            yield

    def _all(self, table: str) -> list[tuple[Any, ...]]:
        """Every sound row, in the order of writing. Rows of a damaged page are looked for one by one."""
        select = f"SELECT {_cells(table)} FROM {table}"
        try:
            with nullcontext() if self._connection.in_transaction else _transaction(self._connection, "BEGIN"):
                rows = {row[0]: row for row in self._connection.execute(select)}
                # A damaged page can lose rows without an error of SQLite; the index still lists them.
                apart = {*self._scan(_by_index(table))} - rows.keys()
        except sqlite3.DatabaseError as error:
            _pass_if_corrupt(error)
            self._note("", f"the table {table}", f"not all of it can be read ({error})")
            rows, apart = {}, {*self._scan(f"{table} NOT INDEXED"), *self._scan(_by_index(table))}
        for rowid in sorted(apart):
            fault = "the index lists it, but it is not in the table"
            try:
                for row in self._connection.execute(f"{select} NOT INDEXED WHERE rowid = ?", (rowid,)):
                    rows[rowid] = row
            except sqlite3.DatabaseError:
                fault = "its page cannot be read"
            if rowid not in rows:
                self._note(table, self._named(table, rowid), fault)
        return self._sound(table, (rows[rowid] for rowid in sorted(rows)))

    def _by_key(self, table: str, keys: Iterable[str]) -> list[tuple[Any, ...]]:
        """Sound rows of a table with the column `key` that have these keys, in the order of writing, by the index."""
        some = f"{_by_index(table)} WHERE key IN (SELECT value FROM json_each(?)) ORDER BY rowid"
        arguments = (json.dumps(list(keys)),)
        return self._sound(table, self._connection.execute(f"SELECT {_cells(table)} FROM {some}", arguments))

    def _sound(self, table: str, rows: Iterable[tuple[Cell, ...]]) -> list[tuple[Any, ...]]:
        """Cells of the rows that are as they were written; the others are noted by what a person knows them by, as far
        as their cells can be read, and by their key.
        """
        kept = []
        for row in rows:
            if _is_sound(row):
                kept.append(row[2:])
                continue
            values = dict(zip(TABLES[table].columns, row[2:], strict=True))
            words = [_printable(values[name]) for name in TABLES[table].label if isinstance(values[name], str)]
            if table == "runs" and isinstance(values["lookback"], int):
                words.append(
                    "{lookback}x{horizon} seed {seed}".format_map(
                        {name: _printable(cell) for name, cell in values.items()}
                    )
                )
            if key := values.get("key"):
                words.append(f"(key {_printable(key)[:_KEY_DIGITS]})")
            self._note(table, " ".join(words) or "without a name", "it is not as it was written (checksum)")
        return kept

    def _scan(self, access: str) -> Iterator[int]:
        """Row numbers, as far as they can be read."""
        with suppress(sqlite3.DatabaseError):
            for (rowid,) in self._connection.execute(f"SELECT rowid FROM {access}"):
                yield rowid

    def _named(self, table: str, rowid: int) -> str:
        """A row that cannot be read, by its key where the index still has it."""
        first = TABLES[table].key.split(",")[0]
        with suppress(sqlite3.DatabaseError):
            for (key,) in self._connection.execute(f"SELECT {first} FROM {_by_index(table)} WHERE rowid = ?", (rowid,)):
                return f"({first} {_printable(key)[:_KEY_DIGITS]})"
        return f"number {rowid}"


def utc_now() -> str:
    """Return the time as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _cells(table: str) -> str:
    """Row number, checksum and columns of a table, as `_is_sound` expects them."""
    return f"rowid, {CHECKSUM}, {_quoted(TABLES[table].columns)}"


def _by_index(table: str) -> str:
    return f"{table} INDEXED BY sqlite_autoindex_{table}_1"


def _is_sound(row: Sequence[Any]) -> bool:
    return bool(checksum(row[2:]) == row[1])


def _printable(value: Cell) -> str:
    return "".join(character if character.isprintable() else "?" for character in str(value))[:_LONGEST]


def _primary_code(error: sqlite3.Error) -> int:
    """SQLite's code of an error without its variant, its low byte; 0 where it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _pass_if_corrupt(error: sqlite3.DatabaseError) -> None:
    """Raise an error again that does not say that the file is damaged."""
    if _primary_code(error) != sqlite3.SQLITE_CORRUPT:
        raise error


def _pack(values: Floats) -> bytes:
    return zlib.compress(np.ascontiguousarray(values, dtype="<f4").tobytes())


def _unpack(blob: bytes) -> Floats:
    return np.frombuffer(zlib.decompress(blob), dtype="<f4")


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Statements that are stored together or not at all; with `BEGIN`, that see one state of the file."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _connect(path: Path, mode: str, opened: ExitStack) -> sqlite3.Connection:
    """Open the file in a mode of SQLite: `rwc` creates it if needed, `ro` only reads."""
    if mode == "ro" and not os.path.exists(path):
        raise LedgerError(f"{path} does not exist. Give the ledger that `hrx audit` wrote.")
    if os.path.islink(path) and not os.path.exists(path):
        raise LedgerError(f"{path} is a link to a file that does not exist. Give the name of the file itself.")
    if os.path.isdir(path):
        raise LedgerError(f"{path} is a directory. A ledger is a file, for example {path / 'ledger.db'}.")
    for file in (path, *_beside(path)):
        try:  # SQLite would wait for a FIFO or a device
            if os.path.exists(file):
                regular_file(file)
        except HrxError as error:
            if os.path.exists(file):  # another process may have removed its journal in the meantime
                raise LedgerError(f"{error} Give the ledger that `hrx audit` wrote.") from error
    try:
        if mode == "rwc":
            path.parent.mkdir(parents=True, exist_ok=True)
        uri = f"{path.resolve().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    except (OSError, ValueError, sqlite3.Error) as error:
        raise LedgerError(f"{path} cannot be opened: {error}. Check the directory and its permissions.") from error
    # A damaged text may be no UTF-8: it is read, and then fails the checksum of its row.
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return opened.enter_context(closing(connection))


def _beside(path: Path) -> list[Path]:
    """Files that SQLite may keep beside a ledger."""
    return [path.with_name(f"{path.name}{end}") for end in BESIDE]


def _connect_to_read(path: Path, opened: ExitStack) -> sqlite3.Connection:
    """Open the file for reading; where a killed writer left a transaction half-done, a copy in which it is undone."""
    connection = _connect(path, "ro", opened)
    try:
        with open_regular(path) as header:
            write_ahead = header.read(20)[18:] == b"\2\2"  # SQLite would create files beside it
        if not write_ahead:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return connection
    except sqlite3.OperationalError as error:
        if _primary_code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
    connection.close()
    source = path.resolve()  # SQLite keeps its files beside the one that a link names
    files = [source, *_beside(source)[:2]]
    try:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="hrx-")))
        changed = True
        while changed:  # by a writer in the meantime
            before = [_state(file) for file in files]
            for file in files:
                (folder / file.name).unlink(missing_ok=True)
                with suppress(FileNotFoundError):
                    shutil.copyfile(file, folder / file.name)
            changed = before != [_state(file) for file in files]
    except OSError as error:
        raise LedgerError(
            f"{path} was left half-written, and the copy that would be read instead cannot be made: {error}. Free some "
            "space, or name another directory with the environment variable TMPDIR."
        ) from error
    return _connect(folder / source.name, "rw", opened)


def _state(path: Path) -> tuple[int, ...]:
    """What shows that a file was written in the meantime; empty where it does not exist."""
    with suppress(FileNotFoundError):
        found = os.stat(path)
        return found.st_ino, found.st_size, found.st_mtime_ns
    return ()


def prepare(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    """Create the tables of a new file, and refuse a file that is not a ledger, or one of another schema."""
    with _transaction(connection, "BEGIN"):  # one consistent view: another process may be creating the tables
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
        version = "another version of hrx"
        with suppress(sqlite3.Error, TypeError):  # the file may have lost the table
            version = f"hrx {connection.execute('SELECT hrx_version FROM meta').fetchone()[0]}"
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


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of a new file in one transaction, unless another process has."""
    with _transaction(connection):
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
        if _primary_code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) and journal.exists():
            raise LedgerError(
                f"{path} was left half-written, and {journal.name} can only be applied in a writable directory. Copy "
                "both files to a writable directory and give the copy."
            ) from error
        if _primary_code(error) == sqlite3.SQLITE_FULL:
            raise FullDisk(f"{path} cannot be written: {text}. Free some space and repeat the command.") from error
        raise LedgerError(f"{path} cannot be used: {text}. Check permissions, free disk space and locks.") from error
