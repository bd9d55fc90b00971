"""Verifies a whole ledger: the SQLite file, its log, and every row of every table. Changes nothing."""

from pathlib import Path
from typing import NamedTuple

from hrx.records.database import TABLES
from hrx.records.ledger import Ledger
from hrx.records.log import LogState, log_state
from hrx.records.record import PROTECTED_SINCE
from hrx.records.rows import WORDS, Damage


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
