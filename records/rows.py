"""Reads the rows of a table and checks each: its checksum or, before schema 4, the types of its cells.

A row that fails is named and left out. `salvage` reads row by row what a damaged file still holds.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import NamedTuple

from hrx.records.checksum import CHECKSUM, Cell, RowChecksum, wrong_cell
from hrx.records.database import PRIMARY_CODE, TABLES, present_columns, quoted, undecodable_text

KEYS_AT_ONCE = 900
"""SQLite takes at least 999 parameters in one statement."""
WORDS = {"runs": "run", "checks": "admission check", "audits": "audit", "plans": "plan", "matrices": "example"}
"""What a row of each table is."""
_LABELS = {
    "runs": ("model", "dataset", "series"),
    "checks": ("model", "setting", "check"),
    "audits": ("created", "hrx_version"),
    "plans": ("model", "created"),
    "matrices": (),
}
_SETTING = ("lookback", "horizon", "seed")
_LATER_TABLES = ("audits", "plans")
"""Tables that an older schema does not have."""
_LONGEST = 60
_KEY_DIGITS = 12


class Damage(NamedTuple):
    """A row that was left out, or another part of a ledger that cannot be trusted."""

    table: str
    """Name of the table; empty where it is not a row."""
    row: str
    """Which row, or which part."""
    fault: str

    def __str__(self) -> str:
        what = f"{WORDS[self.table]} {self.row}" if self.table else self.row
        return f"{what}: {self.fault}"


class TableReader:
    """Reads the rows of a table that are as they were written."""

    def __init__(self, connection: sqlite3.Connection, table: str, on_damage: Callable[[Damage], None]):
        self._connection, self._table, self._on_damage = connection, table, on_damage
        present = present_columns(connection, table)
        self._empty = not present
        if self._empty and table not in _LATER_TABLES:
            raise sqlite3.DatabaseError(f"no such table: {table}")
        self.protected = CHECKSUM in present
        """Whether the rows have checksums."""
        self._names = sorted(present - {CHECKSUM})
        self._kinds = [TABLES[table].columns.get(name) for name in self._names]
        self._checksum = RowChecksum(self._names)
        checksum = CHECKSUM if self.protected else "NULL"
        # The last column is what a column that an older schema does not have reads as.
        self._select = f"SELECT rowid, {checksum}, {quoted(self._names)}, NULL FROM {table}"
        places = {name: 2 + place for place, name in enumerate(self._names)}
        self._fields = itemgetter(*(places.get(name, -1) for name in TABLES[table].columns))

    def all(self) -> list[tuple[Cell, ...]]:
        """Every row, in the order of writing, with the columns of the table in their order."""
        if self._empty:
            return []
        try:
            with _snapshot(self._connection):
                rows = {row[0]: row for row in self._fetch(f"{self._select} ORDER BY rowid")}
                self._compare_with_index(rows)
        except sqlite3.DatabaseError as error:
            if not is_corrupt(error):
                raise
            self._on_damage(Damage("", f"the table {self._table}", f"not all of it can be read ({error})"))
            return self.salvage()
        return self._sound(rows.values())

    def by_key(self, keys: Iterable[str]) -> list[tuple[Cell, ...]]:
        """The rows of a table with the column `key` that have these keys, in the order of writing."""
        unique, rows = list(dict.fromkeys(keys)), []
        for first in range(0, len(unique), KEYS_AT_ONCE):
            some = unique[first : first + KEYS_AT_ONCE]
            rows += self._fetch(f"{self._select} WHERE key IN ({', '.join('?' * len(some))})", some)
        return self._sound(sorted(rows, key=itemgetter(0)))

    def stored_keys(self) -> list[str]:
        """The column `key` of every row, in the order of writing, as far as it can be read."""
        index = f"INDEXED BY sqlite_autoindex_{self._table}_1"
        found: dict[str, int] = {}
        with suppress(sqlite3.DatabaseError):
            for key, rowid in self._connection.execute(f"SELECT key, rowid FROM {self._table} {index}"):
                found[str(key)] = rowid
        return sorted(found, key=found.__getitem__)

    def salvage(self) -> list[tuple[Cell, ...]]:
        """Every row that can be read of a table with damaged pages, each read by itself."""
        if self._empty:
            return []
        rows = []
        for rowid in sorted({*self._scan("NOT INDEXED"), *self._scan("NOT INDEXED", "DESC"), *self._indexed()}):
            try:
                rows += self._fetch(f"{self._select} NOT INDEXED WHERE rowid = ?", [rowid])
            except sqlite3.DatabaseError:
                self._on_damage(Damage(self._table, self._named(rowid), "its page cannot be read"))
        return self._sound(rows)

    def _fetch(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Cell, ...]]:
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "decode" not in str(error):
                raise
        with undecodable_text(self._connection):  # slower, and the row is then named
            return self._connection.execute(statement, parameters).fetchall()

    def _sound(self, rows: Iterable[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
        kept = []
        for row in rows:
            if fault := self._fault(row[1], row[2:-1]):
                self._on_damage(Damage(self._table, self._label(row[2:-1]), fault))
            else:
                kept.append(self._fields(row))
        return kept

    def _fault(self, checksum: Cell, cells: tuple[Cell, ...]) -> str:
        if not self.protected:
            return wrong_cell(self._names, self._kinds, cells)
        if checksum is None:
            return wrong_cell(self._names, self._kinds, cells) or "it has no checksum"
        return "" if self._checksum(cells) == checksum else "it is not as it was written (checksum)"

    def _label(self, cells: Sequence[Cell]) -> str:
        """The row by what a person knows it by, as far as its cells can be read, and by its key."""
        values = dict(zip(self._names, cells, strict=True))
        words = [_printable(values[name]) for name in _LABELS[self._table] if isinstance(values.get(name), str)]
        if self._table == "runs" and isinstance(values.get("lookback"), int):
            words.append("{}x{} seed {}".format(*(_printable(values.get(name)) for name in _SETTING)))
        if key := values.get("key"):
            words.append(f"(key {_printable(key)[:_KEY_DIGITS]})")
        return " ".join(words) or "without a name"

    def _compare_with_index(self, rows: Iterable[Cell]) -> None:
        """Names rows that only the index lists: a damaged page can lose rows without an error of SQLite."""
        lost = set(self._indexed()) - set(rows)
        for rowid in sorted(lost):
            self._on_damage(Damage(self._table, self._named(rowid), "the index lists it, but it is not in the table"))

    def _indexed(self) -> Iterator[int]:
        """The row numbers that the index of the primary key lists, as far as it can be read."""
        return self._scan(f"INDEXED BY sqlite_autoindex_{self._table}_1")

    def _scan(self, access: str, order: str = "") -> Iterator[int]:
        order = f"ORDER BY rowid {order}" if order else ""
        with suppress(sqlite3.DatabaseError):
            for (rowid,) in self._connection.execute(f"SELECT rowid FROM {self._table} {access} {order}"):
                yield rowid

    def _named(self, rowid: int) -> str:
        """A row that cannot be read, by its key where the index still has it."""
        first = TABLES[self._table].key.split(",")[0]
        statement = f"SELECT {first} FROM {self._table} INDEXED BY sqlite_autoindex_{self._table}_1 WHERE rowid = ?"
        with suppress(sqlite3.DatabaseError):
            for (key,) in self._connection.execute(statement, (rowid,)):
                return f"({first} {_printable(key)[:_KEY_DIGITS]})"
        return f"number {rowid}"


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether an error means that pages of the file are damaged, not that it is locked or absent."""
    return getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE == sqlite3.SQLITE_CORRUPT


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """One view of the file for several statements, while other processes write."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")


def _printable(value: Cell) -> str:
    return "".join(character if character.isprintable() else "?" for character in str(value))[:_LONGEST]
