"""The tables of a ledger: made in a new file, carried forward in an older one. Rows are the ledger's business.

Schema 1 had the tables of runs, checks and matrices with fewer columns. Schema 2 adds columns, the tables of audits and
of ways, and an index for tables. A migration only ever adds, so what an older hrx wrote stays as it was.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from hrx.audit.ledger.record import COLUMNS

APPLICATION_ID = 0x68727831  # "hrx1", so that `file` and hrx can tell a ledger from any other database
SCHEMA_VERSION = 2

CHECK_COLUMNS = (
    "fingerprint TEXT",
    "library TEXT",
    "adapter_version TEXT",
    "torch_version TEXT",
    "model TEXT",
    "setting TEXT",
    '"check" TEXT',
    "passed INTEGER",
    "figure REAL",
    '"limit" REAL',
    "note TEXT",
    "windows TEXT",
)
MATRIX_COLUMNS = ("key TEXT", "x BLOB", "truth BLOB", "forecast BLOB", "matrix BLOB", "curves BLOB")
WAY_COLUMNS = (
    "fingerprint TEXT",
    "library TEXT",
    "adapter_version TEXT",
    "torch_version TEXT",
    "setting TEXT",
    "windows TEXT",
    "wanted TEXT",
    "rows TEXT",
    "accelerations TEXT",
    "probe TEXT",
    "notes TEXT",
)
_AUDIT_COLUMNS = ("created TEXT", "hrx_version TEXT", "settings TEXT")
_TABLES = {
    "runs": (tuple(f'"{c.name}" {c.kind}' for c in COLUMNS), "key"),
    "checks": (
        CHECK_COLUMNS,
        'fingerprint, library, adapter_version, torch_version, setting, "check", windows',
    ),
    "matrices": (MATRIX_COLUMNS, "key"),
    "ways": (WAY_COLUMNS, "fingerprint, library, adapter_version, torch_version, setting, windows, wanted"),
    "audits": (_AUDIT_COLUMNS, "hrx_version, settings"),
}


def version(connection: sqlite3.Connection) -> int:
    """The schema of an open ledger."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def bring_forward(connection: sqlite3.Connection) -> None:
    """Makes every table and column that is missing, in one transaction; leaves a ledger of this schema alone."""
    if version(connection) == SCHEMA_VERSION and not _missing(connection):
        return
    connection.execute("BEGIN IMMEDIATE")  # waits for whoever else is making it; then there may be nothing to do
    try:
        for name, (columns, key) in _TABLES.items():
            connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)}, PRIMARY KEY ({key}))")
        for table, column in _missing(connection):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
        connection.execute("CREATE INDEX IF NOT EXISTS runs_by_subject ON runs (model, dataset, lookback, horizon)")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def present(connection: sqlite3.Connection, table: str) -> set[str]:
    """Names of the columns that a table has in this file; empty where there is no such table."""
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _missing(connection: sqlite3.Connection) -> Sequence[tuple[str, str]]:
    """Table and declaration of every column that an older schema, or an older hrx of this one, did not have."""
    return [
        (table, column)
        for table, (columns, _) in _TABLES.items()
        for column in columns
        if column.split()[0].strip('"') not in present(connection, table)
    ]
