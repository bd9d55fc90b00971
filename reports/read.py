"""A ledger as a pandas frame. What the columns mean is said in `hrx.audit.ledger.record`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from hrx.audit.ledger.record import COLUMNS, Column, Value
from hrx.audit.ledger.store import Ledger, LedgerError


def read(ledger_path: str | Path) -> pd.DataFrame:
    """One row per run, in the order they were written, with all columns of the record; JSON columns stay text.

    Columns have the same types whatever the ledger holds, so that an empty one reads like any other.
    """
    with Ledger.open(ledger_path, create=False) as ledger:
        rows = ledger.rows()
    columns = zip(*rows, strict=True) if rows else ((),) * len(COLUMNS)
    try:
        return pd.DataFrame({c.name: _typed(c, values) for c, values in zip(COLUMNS, columns, strict=True)})
    except TypeError as error:
        raise LedgerError(f"{ledger_path} is damaged: {error}. Audit again into another ledger.") from error


def _typed(column: Column, values: Sequence[Value]) -> pd.Series:
    """Missing is None in a text, <NA> in a whole number, NaN in a number."""
    expected = {"TEXT": "text", "INTEGER": "a whole number", "REAL": "a number"}[column.kind]
    found = pd.Series(np.array(values, dtype=object), dtype="object")
    try:
        if column.kind == "REAL":
            return found.astype("float64")
        if column.kind == "INTEGER":
            return found.astype("Int64")
        if pd.api.types.infer_dtype(found, skipna=True) not in ("string", "empty"):
            raise TypeError("it is bytes or a number")
    except (TypeError, ValueError) as error:
        raise TypeError(f"its column {column.name} holds something that is not {expected} ({error})") from error
    return found
