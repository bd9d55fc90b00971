"""Several ledgers into one: every finished run once, and no two that contradict each other.

Nothing is written unless everything can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hrx.audit.ledger.diff import differences
from hrx.audit.ledger.record import FAILED, Record
from hrx.audit.ledger.store import Ledger, LedgerError, StoredCheck

SHOWN = 10


class Merged(NamedTuple):
    """What a merge did."""

    added: int
    """Runs that were not there, or had failed there."""
    known: int
    """Runs that were there already, with the same numbers."""
    unreadable: int
    """Runs that a damaged ledger names but cannot give any more."""


def merge(sources: Sequence[str | Path], into: str | Path) -> Merged:
    """Adds the runs, checks, ways, pictures and settings of `sources` to the ledger `into`, which may be new.

    Two records of one key must agree within rounding; where they do not, the merge is refused and they are named.
    """
    for source in sources:
        if Path(source).resolve() == Path(into).resolve():
            raise LedgerError(f"{source} cannot be merged into itself. Name another file with --into.")
        with Ledger.open(source, create=False):
            pass  # every source is a ledger, before the target is made
    new = not Path(into).exists()
    try:
        return _merged(sources, into)
    except BaseException:
        if new:
            Path(into).unlink(missing_ok=True)
        raise


def _merged(sources: Sequence[str | Path], into: str | Path) -> Merged:
    """The merge in one transaction of the target."""
    total = Merged(0, 0, 0)
    with Ledger.open(into) as target, target.transaction():
        contradictions: list[str] = []
        for source in sources:
            with Ledger.open(source, create=False) as ledger:
                done = _add(ledger, target, contradictions)
                total = Merged(*(a + b for a, b in zip(total, done, strict=True)))
        if contradictions:
            raise LedgerError(_refusal(contradictions, into))
    return total


def _add(source: Ledger, target: Ledger, contradictions: list[str]) -> Merged:
    """One ledger's content, within the target's transaction."""
    damage = source.damage()
    keys = source.keys() if damage else []
    records = list(_readable(source, keys)) if damage else source.records()
    there = {str(record["key"]): record for record in target.records(str(r["key"]) for r in records)}
    columns = source.columns & target.columns
    added = known = 0
    for record in records:
        held = there.get(str(record["key"]))
        if held is None or (held["status"] == FAILED and record["status"] != FAILED):
            target.put(record)
            added += 1
            continue
        known += 1
        if record["status"] != FAILED and (found := differences(held, record, columns)):
            contradictions.append(f"{_named(record)}: {found[0]} ({source.path.name})")
    _add_rest(source, target, damage, contradictions)
    return Merged(added, known, len(keys) - len(records) if damage else 0)


def _add_rest(source: Ledger, target: Ledger, damage: str, contradictions: list[str]) -> None:
    """Checks, ways, settings and pictures. Of a damaged ledger these are left: an audit makes them again."""
    if damage:
        return
    held = {_about(check): check for check in target.checks()}
    new = [check for check in source.checks() if _about(check) not in held]
    for check in source.checks():
        other = held.get(_about(check))
        if other is not None and other.passed != check.passed:
            contradictions.append(f"{check.model} {check.setting}: the check {check.check} passed in one of them only")
    target.put_checks(new)
    target.put_ways(source.ways())
    for audit in source.audits():
        target.put_audit(audit)
    pictured = set(target.example_keys())
    for matrix in source.examples(key for key in source.example_keys() if key not in pictured):
        target.put_example(matrix)


def _readable(ledger: Ledger, keys: Iterable[str]) -> Iterable[Record]:
    """The records that a damaged ledger can still give, one by one."""
    for key in keys:
        if (record := ledger.salvaged(key)) is not None:
            yield record


def _about(check: StoredCheck) -> tuple[str, ...]:
    return (*check[:4], check.setting, check.check, check.windows)


def _named(record: Record) -> str:
    setting = f"{record['lookback']}x{record['horizon']}"
    return f"{record['model']} {record['dataset']} {record['series']} {setting} seed {record['seed']}"


def _refusal(contradictions: Sequence[str], into: str | Path) -> str:
    shown = "".join(f"\n  {line}" for line in contradictions[:SHOWN])
    more = f"\n  … and {len(contradictions) - SHOWN} more" if len(contradictions) > SHOWN else ""
    return (
        f"{len(contradictions)} of the runs contradict each other, so nothing was written to {into}. The same run must "
        f"have the same numbers: measure these again (hrx audit --recheck) and leave the wrong ledger out.{shown}{more}"
    )
