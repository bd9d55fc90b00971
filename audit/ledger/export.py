"""Exports the records of a ledger as Parquet or CSV, with the names and types of `record`.

Spreadsheets read a CSV text that begins with = + - or @ as a formula, so such a text gets an apostrophe.
"""

import csv
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from hrx.audit.ledger.database import SCHEMA_VERSION
from hrx.audit.ledger.record import COLUMNS, NAMES, Record, Value
from hrx.audit.ledger.store import Ledger
from hrx.errors import HrxError
from hrx.install import install_command

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
    writers: dict[Format, Callable[[Sequence[Record], Path], None]] = {"parquet": _parquet, "csv": _csv}
    out = Path(out)
    temporary = out.with_name(f".{secrets.token_hex(8)}.tmp")  # a name that cannot be foreseen, so never a link
    try:
        writers[form](records, temporary)
        os.replace(temporary, out)
    except OSError as error:
        raise ExportError(f"{out} cannot be written: {error}. Check the directory and free space.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return len(records)


def _csv(records: Sequence[Record], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(NAMES)
        writer.writerows([guarded(name, getattr(record, name)) for name in NAMES] for record in records)
        file.flush()
        os.fsync(file.fileno())


def guarded(name: str, value: Value) -> Value:
    """A cell of a CSV file; a text that a spreadsheet would read as a formula starts with an apostrophe."""
    dangerous = name in _TEXT and isinstance(value, str) and value.startswith(_FORMULA)
    return f"'{value}" if dangerous else value


def _parquet(records: Sequence[Record], path: Path) -> None:
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
    with path.open("wb") as file:
        pyarrow.parquet.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())
