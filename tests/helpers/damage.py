"""A small ledger with rows in every table, and damage to copies of it."""

import hashlib
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from helpers.crowd import example, records
from hrx.records.ledger import Ledger, StoredAudit, StoredCheck, StoredPlan
from hrx.records.record import Record

CHECKS = ("equivalence", "isolation", "determinism", "gradient path", "trained head", "derivative")
TABLES = ("runs", "checks", "matrices", "audits", "plans")
Rows = dict[str, dict[str, tuple[object, ...]]]


def check(name: str, **values: object) -> StoredCheck:
    """An admission check that passed."""
    stored = StoredCheck("f" * 64, "library 1.0", "1", "2.10.0", "model-0", "96x24", name, True, 1.25e-7, 1e-5, "note")
    return stored._replace(**values)  # type: ignore[arg-type]


def small_ledger(path: Path, runs: int = 40, examples: int = 3) -> list[Record]:
    """Writes a ledger with rows in every table; returns its runs."""
    written = records(runs, models=2, datasets=4)
    # Numbers that occur once, so that the bytes of each can be found in the file.
    written = [
        one.updated(g_own_se=0.01 + number / 997, reason=f"reason {number:05}") for number, one in enumerate(written)
    ]
    fill(path, written, examples)
    return written


def fill(path: Path, written: list[Record], examples: int) -> None:
    """Writes the runs, the first of them with examples, and rows of the other tables."""
    with Ledger.open(path) as ledger:
        for number, one in enumerate(written):
            ledger.write(one, example(one, number) if number < examples else None)
        ledger.write_all([check(name, figure=(number + 1) * 1.1e-7) for number, name in enumerate(CHECKS)])
        for number in range(3):
            ledger.write_audit(StoredAudit(f"2026-01-0{number + 1}", "0.1.0", f'{{"series": {number}}}'))
        for model in ("model-0", "model-1"):
            keys = [hashlib.sha256(one.key.encode()).hexdigest() for one in written if one.model == model]
            ledger.write_all([StoredPlan.of(model, "f" * 64, "", keys, "2026-01-01")])


def contents(path: Path) -> Rows:
    """The rows of each table that a reader returns, by the text of their key columns."""
    with Ledger.open(path, create=False, warn=False) as ledger:
        found: dict[str, list[tuple[object, ...]]] = {
            "runs": [tuple(row) for row in ledger.rows()],
            "checks": [tuple(one) for one in ledger.checks()],
            "audits": [tuple(one) for one in ledger.audits()],
            "plans": [tuple(one) for one in ledger.plans()],
            "matrices": [
                (one.key, *(None if array is None else array.tobytes() for array in one[1:6]))  # type: ignore[union-attr]
                for one in ledger.examples(ledger.example_keys())
            ],
        }
    keys = {"runs": slice(1), "checks": slice(7), "audits": slice(1, 3), "plans": slice(1), "matrices": slice(1)}
    return {table: {repr(row[keys[table]]): row for row in rows} for table, rows in found.items()}


def is_part(part: Rows, whole: Rows) -> bool:
    """Whether every row of `part` is in `whole`, with the same cells."""
    return all(whole[table].get(key) == row for table, rows in part.items() for key, row in rows.items())


def flip(path: Path, byte: int, bit: int) -> None:
    """Inverts one bit of a file."""
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def place_of_number(data: bytes, value: float) -> int:
    """Where the eight bytes of a stored number begin."""
    wanted = struct.pack(">d", value)
    assert data.count(wanted) == 1
    return data.index(wanted)


class Interrupted(NamedTuple):
    """A ledger whose writer was killed in the middle of a transaction: the file and its rollback journal."""

    path: Path
    before: Rows
    """What was stored before the transaction."""
    during: Rows
    """The same with what the transaction would have added."""

    @property
    def journal(self) -> Path:
        return self.path.with_name(f"{self.path.name}-journal")

    def copy(self, folder: Path) -> "Interrupted":
        copied = self._replace(path=Path(shutil.copy(self.path, folder / self.path.name)))
        shutil.copy(self.journal, copied.journal)
        return copied


def interrupted_writer(folder: Path, stored: int = 8, added: int = 40) -> Interrupted:
    """A ledger of which some pages are already overwritten by a transaction that never ended."""
    live, path = folder / "live.db", folder / "ledger.db"
    written = records(stored + added, models=2, datasets=4)
    fill(live, written[:stored], 2)
    before = contents(live)
    with Ledger.open(live) as ledger:
        ledger._connection.execute("PRAGMA cache_size = 4")  # so that pages are written before the end
        with ledger.transaction():
            for one in written[stored:]:
                ledger.put(one)
            for suffix in ("", "-journal"):
                shutil.copy(f"{live}{suffix}", f"{path}{suffix}")
    return Interrupted(path, before, contents(live))


def change(path: Path, statement: str, *parameters: object) -> None:
    """Changes a ledger with another program."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, parameters)
