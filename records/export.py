"""Export the records of a ledger as Parquet or CSV, and verify whole ledgers, which changes nothing.

Spreadsheets read a CSV text that begins with = + - or @ as a formula, so such a text gets an apostrophe.
"""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Literal, NamedTuple

from hrx.errors import HrxError
from hrx.files import atomic_write
from hrx.install import install_command
from hrx.records.ledger import SCHEMA_VERSION, Ledger
from hrx.records.record import COLUMNS, NAMES, Record, Value
from hrx.records.rows import Damage

Format = Literal["parquet", "csv"]
_TEXT = frozenset(column.name for column in COLUMNS if column.kind == "TEXT")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def export(ledger_path: str | Path, out: str | Path, form: Format) -> int:
    """Write every sound record of a ledger to `out`, whole or not at all. Return their number."""
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
    writer.writerows([_guarded(name, getattr(record, name)) for name in NAMES] for record in records)
    text.detach()  # writes what is buffered, and leaves the file open


def _guarded(name: str, value: Value) -> Value:
    """A cell of a CSV file; a text that a spreadsheet would read as a formula starts with an apostrophe."""
    dangerous = name in _TEXT and isinstance(value, str) and value.startswith(_FORMULA)
    return f"'{value}" if dangerous else value


def _parquet(records: Sequence[Record], file: IO[bytes]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise HrxError(
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


class LedgerCheck(NamedTuple):
    """What the verification of a ledger found."""

    path: Path
    sound: dict[str, int]
    """Rows of each table that are as they were written."""
    damaged: tuple[Damage, ...]

    @property
    def verdict(self) -> str:
        return "damaged" if self.damaged else "sound"


def check(path: str | Path) -> LedgerCheck:
    """Verify the file and every row of a ledger; a `LedgerError` where it is not one."""
    with Ledger.open(path, create=False, warn=False) as ledger:
        sound = {
            "runs": len(ledger.rows()),
            "checks": len(ledger.checks()),
            "matrices": sum(len(ledger.examples([key])) for key in ledger.example_keys()),  # one at a time: large
            "audits": len(ledger.audits()),
            "plans": len(ledger.plans()),
        }
        ledger.note_integrity()
        return LedgerCheck(Path(path), sound, tuple(ledger.damaged))
