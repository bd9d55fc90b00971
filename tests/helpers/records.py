"""Records for tests of the ledger, which of their fields differ between two measurements, and damage to a file."""

import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hrx.records.ledger import Ledger
from hrx.records.record import DONE, Record

VOLATILE = (
    "forward_seconds", "matrix_seconds", "seconds", "created", "context_time_ratio", "context_seconds", "request",
)  # fmt: skip
"""Times, which differ each time a run is measured, and the request, which holds the number of workers."""


def record(key: str, status: str = DONE, **values: Any) -> Record:
    """A record of a run; `values` replace or add fields."""
    run = {"model": "m", "dataset": "d/H", "series": "T0", "lookback": 96, "horizon": 24, "seed": 0}
    return Record(key=key, status=status, **(run | values))


def replace_record(ledger: Ledger, changed: Record) -> None:
    """Stores a record in place of one that is finished, with the checksum of the new one."""
    with ledger.transaction():
        ledger._connection.execute("DELETE FROM runs WHERE key = ?", (changed.key,))
        ledger.put(changed)


def without_times(records: list[Record]) -> dict[str, dict[str, Any]]:
    """The fields of each record that do not differ between two measurements, by key."""
    return {one.key: {name: value for name, value in asdict(one).items() if name not in VOLATILE} for one in records}


def overwrite_a_page_of_runs(path: Path) -> None:
    """Zeroes one leaf page of the table of runs, neither the first nor the last."""
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs'").fetchone()
    data = bytearray(path.read_bytes())
    interior = data[(root - 1) * size : root * size]
    assert interior[0] == 5, "the table has only one page"
    cell = int.from_bytes(interior[14:16], "big")
    child = int.from_bytes(interior[cell : cell + 4], "big")
    data[(child - 1) * size : child * size] = bytes(size)
    path.write_bytes(data)
