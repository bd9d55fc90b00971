"""Merges ledgers: every finished run once, and no two records that contradict each other.

Nothing is written unless everything can be. What is damaged in a source is named and left out. A new target is built
beside its place and published whole, so that no process ever removes a file that another one wrote.
"""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from hrx.records.database import utc_now
from hrx.records.diff import differences
from hrx.records.ledger import Ledger, LedgerError, StoredCheck, as_audit, as_check, as_plan
from hrx.records.record import FAILED, NAMES, Record, StoredAudit, StoredExample, StoredPlan

SHOWN = 10
Row = TypeVar("Row", Record, StoredCheck, StoredAudit, StoredPlan, StoredExample)


class MergeResult(NamedTuple):
    """Counts of a merge, and what was left out."""

    added: int
    """Runs that the target did not hold, or held as failed or damaged."""
    known: int
    """Runs that the target held already, with the same numbers."""
    damaged: tuple[str, ...] = ()
    """What the sources hold but cannot be trusted, with the name of the source."""


def merge(sources: Sequence[str | Path], into: str | Path) -> MergeResult:
    """Adds the runs, checks, examples, plans and settings of `sources` to the ledger `into`, which may be new.

    Two records of one key must agree within rounding. Otherwise the merge is refused and lists the records.
    """
    into = Path(into)
    for source in sources:
        if Path(source).resolve() == into.resolve():
            raise LedgerError(f"{source} cannot be merged into itself. Name another file with --into.")
        with Ledger.open(source, create=False, warn=False):
            pass  # checks that every source is a ledger before anything is created
    return _merge(sources, into) if into.exists() else _merge_into_new(sources, into)


def _merge_into_new(sources: Sequence[str | Path], into: Path) -> MergeResult:
    """Builds the ledger under another name and publishes it; merges into the one that another process published."""
    temporary = _reserve_beside(into)
    try:
        result = _merge(sources, temporary, shown=into)
        try:
            os.link(temporary, into)
        except FileExistsError:
            return _merge(sources, into)
        except OSError:  # a file system without hard links
            return _merge([temporary], into)._replace(damaged=result.damaged)
        return result
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)


def _reserve_beside(path: Path) -> Path:
    """A new empty file in the same directory, with a name that cannot be foreseen."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise LedgerError(f"{path} cannot be created: {error}. Choose a writable directory.") from error
    return temporary


def _merge(sources: Sequence[str | Path], into: Path, shown: Path | None = None) -> MergeResult:
    """The merge in one transaction of the target. Without a log: where nothing is new, the file stays as it is."""
    added = known = 0
    damaged: list[str] = []
    with Ledger.open(into, warn=False) as target, target.transaction(logged=False):
        contradictions: list[str] = []
        for path in sources:
            with Ledger.open(path, create=False, warn=False) as source:
                more = _add(source, target, contradictions)
                damaged += (f"{source.path}: {damage}" for damage in source.damaged)
            added, known = added + more.added, known + more.known
        if contradictions:
            raise LedgerError(_refusal(contradictions, shown or into))
    return MergeResult(added, known, tuple(damaged))


def _add(source: Ledger, target: Ledger, contradictions: list[str]) -> MergeResult:
    """Adds one ledger within the target's transaction."""
    contents = read_contents(source)
    held = {record.key: record for record in target.records(record.key for record in contents.records)}
    columns = source.columns & target.columns
    added = known = 0
    for record in contents.records:
        other = held.get(record.key)
        if other is None or (other.status == FAILED and record.status != FAILED):
            target.put(record)
            held[record.key] = record
            added += 1
            continue
        known += 1
        # A copy of one record is not a second measurement that would have to agree with it.
        if record.status != FAILED and record != other and (different := differences(other, record, columns)):
            contradictions.append(f"{_label(record)}: {different[0]} ({source.path.name})")
    _add_checks(contents.checks, target, contradictions)
    for audit in contents.audits:
        target.put_audit(audit)
    target.put_plans(contents.plans)
    present = set(target.example_keys())
    for key in contents.example_keys:
        if not (key in present and target.examples([key])):
            for example in _protected(source, source.examples([key])):
                target.put_example(example)
    return MergeResult(added, known)


class Contents(NamedTuple):
    """The sound rows of a ledger; examples, which are large, by key."""

    records: list[Record]
    checks: list[StoredCheck]
    audits: list[StoredAudit]
    plans: list[StoredPlan]
    example_keys: list[str]


def read_contents(source: Ledger) -> Contents:
    """What can be read of a ledger, row by row where a page of its file is damaged; the rest is noted by it."""
    torn = source.note_damage()
    runs, checks, audits, plans = (
        reader.salvage() if torn else reader.all()
        for reader in map(source.reader, ("runs", "checks", "audits", "plans"))
    )
    records = [Record(**dict(zip(NAMES, row, strict=True))) for row in runs]  # type: ignore[arg-type]
    return Contents(
        _protected(source, records),
        _protected(source, [as_check(row) for row in checks]),
        _protected(source, [as_audit(row) for row in audits]),
        _protected(source, [as_plan(row) for row in plans]),
        source.example_keys(),
    )


def _protected(source: Ledger, rows: list[Row]) -> list[Row]:
    """The rows of a ledger without checksums with the time from which they have one: now."""
    if source.protected:
        return rows
    since = utc_now()
    return [
        row.updated(protected_since=since) if isinstance(row, Record) else row._replace(protected_since=since)
        for row in rows
    ]


def _add_checks(checks: Sequence[StoredCheck], target: Ledger, contradictions: list[str]) -> None:
    held = {_identity(check): check for check in target.checks()}
    for check in checks:
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


def _refusal(contradictions: Sequence[str], into: Path) -> str:
    shown = "".join(f"\n  {line}" for line in contradictions[:SHOWN])
    more = f"\n  … and {len(contradictions) - SHOWN} more" if len(contradictions) > SHOWN else ""
    return (
        f"{len(contradictions)} of the runs contradict each other, so nothing was written to {into}. The same run must "
        f"have the same numbers: measure these again (hrx audit --recheck) and omit the wrong ledger.{shown}{more}"
    )
