"""Exports the records of a ledger as Parquet or CSV, and verifies whole ledgers, which changes nothing.

Spreadsheets read a CSV text that begins with = + - or @ as a formula, so such a text gets an apostrophe.
"""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Literal, NamedTuple, get_args

from hrx.errors import HrxError
from hrx.files import atomic_write
from hrx.install import install_command
from hrx.records.database import SCHEMA_VERSION, TABLES
from hrx.records.ledger import Ledger
from hrx.records.log import LogState, log_state
from hrx.records.record import COLUMNS, NAMES, PROTECTED_SINCE, Record, Value
from hrx.records.rows import WORDS, Damage

Format = Literal["parquet", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)
_TEXT = frozenset(column.name for column in COLUMNS if column.kind == "TEXT")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


class ExportError(HrxError):
    """A file that cannot be written in this format."""


def export(ledger_path: str | Path, out: str | Path, form: Format) -> int:
    """Writes every sound record of a ledger to `out`, whole or not at all. Returns their number."""
    with Ledger.open(ledger_path, create=False) as ledger:
        records = ledger.records()
    writers: dict[Format, Callable[[Sequence[Record], IO[bytes]], None]] = {"parquet": _parquet, "csv": _csv}
    with atomic_write(Path(out)) as file:
        writers[form](records, file)
    return len(records)


def _csv(records: Sequence[Record], file: IO[bytes]) -> None:
    text = io.TextIOWrapper(file, newline="", encoding="utf-8")
    writer = csv.writer(text)
    writer.writerow(NAMES)
    writer.writerows([guarded(name, getattr(record, name)) for name in NAMES] for record in records)
    text.detach()  # writes what is buffered, and leaves the file open


def guarded(name: str, value: Value) -> Value:
    """A cell of a CSV file; a text that a spreadsheet would read as a formula starts with an apostrophe."""
    dangerous = name in _TEXT and isinstance(value, str) and value.startswith(_FORMULA)
    return f"'{value}" if dangerous else value


def _parquet(records: Sequence[Record], file: IO[bytes]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ExportError(
            f"Parquet needs pyarrow, which is not installed. Use --format csv, or run: {install_command('gift-eval')}"
        ) from None
    kinds = {"TEXT": pyarrow.string(), "INTEGER": pyarrow.int64(), "REAL": pyarrow.float64()}
    schema = pyarrow.schema(
        [pyarrow.field(c.name, kinds[c.kind], metadata={"meaning": c.meaning}) for c in COLUMNS],
        metadata={"hrx_ledger_schema": str(SCHEMA_VERSION)},
    )
    columns = {name: [getattr(record, name) for record in records] for name in NAMES}
    table = pyarrow.table(columns, schema=schema)
    pyarrow.parquet.write_table(table, file)


class TableCheck(NamedTuple):
    """The rows of one table."""

    table: str
    sound: int
    """Rows that are as they were written."""
    unprotected: int
    """Rows without a checksum, of which only the types of the cells could be checked; not among the sound ones."""
    protected_later: int
    """Of the sound ones, those that have their checksum from a migration or a merge, not from their writing."""
    since: str = ""
    """The latest time from which such a row is protected; empty where there is none."""

    @property
    def word(self) -> str:
        """What the rows of the table are."""
        return f"{WORDS[self.table]}s"


class LedgerCheck(NamedTuple):
    """What the verification of a ledger found."""

    path: Path
    schema: int
    log: LogState
    tables: tuple[TableCheck, ...]
    damaged: tuple[Damage, ...]

    @property
    def verdict(self) -> str:
        """damaged, not closed (runs may be missing), not protected (rows without checksum) or sound."""
        if self.damaged:
            return "damaged"
        if self.log != LogState.CLOSED:
            return "not closed"
        return "not protected" if any(one.unprotected for one in self.tables) else "sound"


def check(path: str | Path) -> LedgerCheck:
    """Verifies a ledger; a `LedgerError` where the file is not one."""
    path = Path(path)
    log = log_state(path)
    with Ledger.open(path, create=False, warn=False) as ledger:
        tables = tuple(_check_table(ledger, table) for table in TABLES)
        findings = [Damage("", "the file", finding) for finding in ledger.integrity()]
        damaged, schema = (*ledger.damaged, *findings), ledger.schema
    return LedgerCheck(path, schema, log, tables, damaged)


def _check_table(ledger: Ledger, table: str) -> TableCheck:
    reader = ledger.reader(table)
    if table == "matrices":  # one at a time: they are large
        times = [example.protected_since for key in reader.stored_keys() for example in ledger.examples([key])]
    else:
        since = list(TABLES[table].columns).index(PROTECTED_SINCE)
        times = [row[since] for row in reader.all()]  # type: ignore[misc]
    later = sorted(str(time) for time in times if time is not None)
    if not reader.protected:
        return TableCheck(table, 0, len(times), 0)
    return TableCheck(table, len(times), 0, len(later), later[-1] if later else "")
