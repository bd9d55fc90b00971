"""Merges ledgers: every finished run once, and no two records that contradict each other.

Nothing is written unless everything can be.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hrx.audit.ledger.diff import differences
from hrx.audit.ledger.record import FAILED, Record
from hrx.audit.ledger.store import Ledger, LedgerError, StoredCheck

SHOWN = 10


class MergeResult(NamedTuple):
    """Counts of a merge."""

    added: int
    """Runs that the target did not hold, or held as failed."""
    known: int
    """Runs that the target held already, with the same numbers."""
    unreadable: int
    """Runs that a damaged source lists but that cannot be read."""


def merge(sources: Sequence[str | Path], into: str | Path) -> MergeResult:
    """Adds the runs, checks, examples and settings of `sources` to the ledger `into`, which may be new.

    Two records of one key must agree within rounding. Otherwise the merge is refused and lists the records.
    """
    for source in sources:
        if Path(source).resolve() == Path(into).resolve():
            raise LedgerError(f"{source} cannot be merged into itself. Name another file with --into.")
        with Ledger.open(source, create=False):
            pass  # checks that every source is a ledger before the target is created
    new = not Path(into).exists()
    try:
        return _merge(sources, into)
    except BaseException:
        if new:
            Path(into).unlink(missing_ok=True)
        raise


def _merge(sources: Sequence[str | Path], into: str | Path) -> MergeResult:
    """The merge in one transaction of the target."""
    total = MergeResult(0, 0, 0)
    with Ledger.open(into) as target, target.transaction():
        contradictions: list[str] = []
        for source in sources:
            with Ledger.open(source, create=False) as ledger:
                counts = _add(ledger, target, contradictions)
                total = MergeResult(*(a + b for a, b in zip(total, counts, strict=True)))
        if contradictions:
            raise LedgerError(_refusal(contradictions, into))
    return total


def _add(source: Ledger, target: Ledger, contradictions: list[str]) -> MergeResult:
    """Adds one ledger within the target's transaction."""
    damage = source.damage()
    keys = source.keys() if damage else []
    records = [record for key in keys if (record := source.salvage(key))] if damage else source.records()
    held = {record.key: record for record in target.records(record.key for record in records)}
    columns = source.columns & target.columns
    added = known = 0
    for record in records:
        other = held.get(record.key)
        if other is None or (other.status == FAILED and record.status != FAILED):
            target.put(record)
            added += 1
            continue
        known += 1
        if record.status != FAILED and (different := differences(other, record, columns)):
            contradictions.append(f"{_label(record)}: {different[0]} ({source.path.name})")
    if not damage:  # of a damaged ledger only runs are saved: an audit makes the rest again
        _add_checks(source, target, contradictions)
        for audit in source.audits():
            target.put_audit(audit)
        present = set(target.example_keys())
        for example in source.examples(key for key in source.example_keys() if key not in present):
            target.put_example(example)
    return MergeResult(added, known, len(keys) - len(records) if damage else 0)


def _add_checks(source: Ledger, target: Ledger, contradictions: list[str]) -> None:
    held = {_identity(check): check for check in target.checks()}
    for check in source.checks():
        other = held.get(_identity(check))
        if other is None:
            target.put_checks([check])
        elif other.passed != check.passed:
            contradictions.append(f"{check.model} {check.setting}: the check {check.check} passed in one of them only")


def _identity(check: StoredCheck) -> tuple[str, ...]:
    return (*check[:4], check.setting, check.check, check.windows)


def _label(record: Record) -> str:
    setting = f"{record.lookback}x{record.horizon}"
    return f"{record.model} {record.dataset} {record.series} {setting} seed {record.seed}"


def _refusal(contradictions: Sequence[str], into: str | Path) -> str:
    shown = "".join(f"\n  {line}" for line in contradictions[:SHOWN])
    more = f"\n  … and {len(contradictions) - SHOWN} more" if len(contradictions) > SHOWN else ""
    return (
        f"{len(contradictions)} of the runs contradict each other, so nothing was written to {into}. The same run must "
        f"have the same numbers: measure these again (hrx audit --recheck) and omit the wrong ledger.{shown}{more}"
    )
