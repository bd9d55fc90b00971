"""Rows of a ledger: its tables, the checksum of each row, and reading that names and leaves out what is damaged."""

import hashlib
import json
import math
import operator
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Literal, NamedTuple, get_type_hints

from hrx.records.record import COLUMNS, StoredAudit, StoredCheck, StoredExample, StoredPlan

Kind = Literal["TEXT", "INTEGER", "REAL", "BLOB"]
Cell = str | int | float | bytes | None
CHECKSUM = "checksum"
"""Name of the column that each table has beside those of its rows."""
_TYPES: dict[Kind, type] = {"TEXT": str, "INTEGER": int, "REAL": float, "BLOB": bytes}
_KINDS: dict[object, Kind] = {str: "TEXT", str | None: "TEXT", bool: "INTEGER", float: "REAL"}
_LONGEST, _KEY_DIGITS = 60, 12


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


def quoted(names: Iterable[str]) -> str:
    """Column names for an SQL statement."""
    return ", ".join(f'"{name}"' for name in names)


def checksum(row: Sequence[Cell]) -> str:
    """sha256 over the JSON list of a row's cells as SQLite returns them, bytes as hexadecimal digits in an object."""
    text = json.dumps(row, default=lambda blob: {"bytes": blob.hex()})
    return hashlib.sha256(text.encode()).hexdigest()


def stored_row(table: str, values: Iterable[object]) -> list[Cell]:
    """Cells of a row as SQLite will return them, in the order of the table's columns, and their checksum."""
    cells = [as_stored(kind, value) for kind, value in zip(TABLES[table].columns.values(), values, strict=True)]
    return [*cells, checksum(cells)]


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


class TableReader:
    """Reads the rows of a table that are as they were written, and reports the others."""

    def __init__(self, connection: sqlite3.Connection, table: str, on_damage: Callable[[Damage], None]):
        self._connection, self._table, self._on_damage = connection, table, on_damage
        self._names = list(TABLES[table].columns)
        self._cells = f"rowid, {CHECKSUM}, {quoted(self._names)}"
        self._index = f"{table} INDEXED BY sqlite_autoindex_{table}_1"

    def all(self) -> list[tuple[Cell, ...]]:
        """Every row, in the order of writing. Rows of a damaged page are looked for one by one."""
        try:
            with nullcontext() if self._connection.in_transaction else transaction(self._connection, "BEGIN"):
                rows = {row[0]: row for row in self._connection.execute(f"SELECT {self._cells} FROM {self._table}")}
                # A damaged page can lose rows without an error of SQLite; the index still lists them.
                apart = {*self._scan(self._index)} - rows.keys()
        except sqlite3.DatabaseError as error:
            if primary_code(error) != sqlite3.SQLITE_CORRUPT:
                raise
            self._on_damage(Damage("", f"the table {self._table}", f"not all of it can be read ({error})"))
            rows, apart = {}, {*self._scan(f"{self._table} NOT INDEXED"), *self._scan(self._index)}
        one = f"SELECT {self._cells} FROM {self._table} NOT INDEXED WHERE rowid = ?"
        for rowid in sorted(apart):
            fault = "the index lists it, but it is not in the table"
            try:
                for row in self._connection.execute(one, (rowid,)):
                    rows[rowid] = row
            except sqlite3.DatabaseError:
                fault = "its page cannot be read"
            if rowid not in rows:
                self._on_damage(Damage(self._table, self._named(rowid), fault))
        return self._sound(rows[rowid] for rowid in sorted(rows))

    def by_key(self, keys: Iterable[str]) -> list[tuple[Cell, ...]]:
        """Rows of a table with the column `key` that have these keys, in the order of writing, by the index."""
        some = f"SELECT {self._cells} FROM {self._index} WHERE key IN (SELECT value FROM json_each(?)) ORDER BY rowid"
        return self._sound(self._connection.execute(some, (json.dumps(list(keys)),)))

    def keys(self) -> list[str]:
        """Column `key` of every row, in the order of writing, as far as the index can be read."""
        found: dict[str, int] = {}
        with suppress(sqlite3.DatabaseError):
            for key, rowid in self._connection.execute(f"SELECT key, rowid FROM {self._index}"):
                found[str(key)] = rowid
        return sorted(found, key=found.__getitem__)

    def _sound(self, rows: Iterable[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
        kept = []
        for _, stored, *cells in rows:
            if checksum(cells) == stored:
                kept.append(tuple(cells))
            else:
                self._on_damage(Damage(self._table, self._label(cells), "it is not as it was written (checksum)"))
        return kept

    def _label(self, cells: Sequence[Cell]) -> str:
        """Name a row by what a person knows it by, as far as its cells can be read, and by its key."""
        values = dict(zip(self._names, cells, strict=True))
        words = [_printable(values[name]) for name in TABLES[self._table].label if isinstance(values[name], str)]
        if self._table == "runs" and isinstance(values["lookback"], int):
            words.append(
                "{}x{} seed {}".format(*(_printable(values[name]) for name in ("lookback", "horizon", "seed")))
            )
        if key := values.get("key"):
            words.append(f"(key {_printable(key)[:_KEY_DIGITS]})")
        return " ".join(words) or "without a name"

    def _scan(self, access: str) -> Iterator[int]:
        """Row numbers, as far as they can be read."""
        with suppress(sqlite3.DatabaseError):
            for (rowid,) in self._connection.execute(f"SELECT rowid FROM {access}"):
                yield rowid

    def _named(self, rowid: int) -> str:
        """A row that cannot be read, by its key where the index still has it."""
        first = TABLES[self._table].key.split(",")[0]
        with suppress(sqlite3.DatabaseError):
            for (key,) in self._connection.execute(f"SELECT {first} FROM {self._index} WHERE rowid = ?", (rowid,)):
                return f"({first} {_printable(key)[:_KEY_DIGITS]})"
        return f"number {rowid}"


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's code of an error without its variant, its low byte; 0 where it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Statements that are stored together or not at all; with `BEGIN`, that see one state of the file."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _printable(value: Cell) -> str:
    return "".join(character if character.isprintable() else "?" for character in str(value))[:_LONGEST]
