"""A ledger as a pandas frame. What the columns mean is said in `hrx.audit.record`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pandas as pd

from hrx.audit.ledger import Ledger, LedgerError
from hrx.audit.record import COLUMNS, NAMES

_Dtype = Literal["object", "Int64", "float64"]
_DTYPES: dict[str, _Dtype] = {"TEXT": "object", "INTEGER": "Int64", "REAL": "float64"}


def read(ledger_path: str | Path) -> pd.DataFrame:
    """One row per run, in the order they were written, with all columns of the record; JSON columns stay text.

    Columns have the same types whatever the ledger holds, so that an empty one reads like any other.
    """
    with Ledger.open(ledger_path, create=False) as ledger:
        records = ledger.records()
    frame = pd.DataFrame.from_records(records, columns=list(NAMES))
    for column in COLUMNS:
        try:
            frame[column.name] = frame[column.name].astype(_DTYPES[column.kind])
        except (TypeError, ValueError) as error:
            raise LedgerError(
                f"{ledger_path} is damaged: its column {column.name} holds something that is no number ({error}). "
                "Audit again into another ledger."
            ) from error
    return frame
