"""Merge ledgers, export the records of one as Parquet or CSV, and verify whole ledgers.

A merge holds every finished run once, and no two records that contradict each other beyond rounding. Nothing is written
unless everything can be. What is damaged in a source is named and left out. A new target is built beside its place and
published whole, so that no process ever removes a file that another one wrote. Spreadsheets read a CSV text that begins
with = + - or @ as a formula, so an exported one gets an apostrophe.
"""

import csv
import io
import json
import math
import os
import re
import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np

from hrx.errors import HrxError, install_command
from hrx.files import atomic_write, make_temporary
from hrx.records.ledger import MOST_NAMED, SCHEMA_VERSION, Damage, Ledger, LedgerError, StoredCheck
from hrx.records.quantities import QUANTITIES
from hrx.records.record import COLUMNS, EXCLUDED, FAILED, NAMES, Record, Value


class MergeResult(NamedTuple):
    """Counts of a merge, and what was left out."""

    added: int
    """Runs that the target did not hold, or held as failed or damaged."""
    known: int
    """Runs that the target held already, with the same numbers."""
    damaged: tuple[str, ...] = ()
    """What the sources hold but cannot be trusted, with the name of the source."""
    tied: tuple[str, ...] = ()
    """Known runs whose numbers differ by the order of nearly tied positions; the target keeps its own."""


def merge(sources: Sequence[str | Path], into: str | Path) -> MergeResult:
    """Add the runs, checks, examples, plans and settings of `sources` to the ledger `into`, which may be new.

    Two records of one key must agree within rounding and the order of nearly tied positions. Otherwise the merge is
    refused and lists the records.
    """
    into = Path(into)
    for source in sources:
        if Path(source).resolve() == into.resolve():
            raise LedgerError(f"{source} cannot be merged into itself. Name another file with --into.")
        with Ledger.open(source, create=False, warn=False):
            pass  # checks that every source is a ledger before anything is created
    if into.exists():
        return _merge(sources, into)
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        descriptor, folder = make_temporary(into.parent, directory=True)
    except OSError as error:
        raise LedgerError(f"{into} cannot be created: {error}. Choose a writable directory.") from error
    try:
        temporary = Path(folder, "ledger.db")
        result = _merge(sources, temporary, shown=into)
        try:
            os.link(temporary, into)
        except FileExistsError:  # another process published its ledger in the meantime
            return _merge(sources, into)
        except OSError:  # a file system without hard links
            return _merge([temporary], into)._replace(damaged=result.damaged, tied=result.tied)
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _merge(sources: Sequence[str | Path], into: Path, shown: Path | None = None) -> MergeResult:
    """Merge in one transaction of the target; where nothing is new, the file stays as it is."""
    added = known = 0
    damaged: list[str] = []
    with Ledger.open(into, warn=False) as target, target.transaction():
        contradictions, tied = list[str](), list[str]()
        for path in sources:
            with Ledger.open(path, create=False, warn=False) as source:
                more = _add(source, target, contradictions, tied)
                damaged += (f"{source.path}: {damage}" for damage in source.damaged)
            added, known = added + more.added, known + more.known
        if contradictions:
            lines = "".join(f"\n  {line}" for line in contradictions[:MOST_NAMED])
            more_lines = len(contradictions) - MOST_NAMED
            raise LedgerError(
                f"{len(contradictions)} of the runs contradict each other, so nothing was written to {shown or into}. "
                "The same run must have the same numbers: measure these again (hrx audit --recheck) and omit the wrong "
                f"ledger.{lines}" + (f"\n  … and {more_lines} more" if more_lines > 0 else "")
            )
    return MergeResult(added, known, tuple(damaged), tuple(tied))


def _add(source: Ledger, target: Ledger, contradictions: list[str], tied: list[str]) -> MergeResult:
    """Add what can be read of one ledger within the target's transaction; the rest is noted by the source."""
    source.note_integrity()
    records = source.records()
    held = {record.key: record for record in target.records(record.key for record in records)}
    added = known = 0
    for record in records:
        other = held.get(record.key)
        if other is None or (other.status == FAILED and record.status != FAILED):
            target.put(record)
            held[record.key] = record
            added += 1
            continue
        known += 1
        # A copy of one record is not a second measurement that would have to agree with it.
        different = [] if record.status == FAILED or record == other else differences(other, record)
        if different:
            run = f"{record.model} {record.dataset} {record.series} {record.lookback}x{record.horizon}"
            line = f"{run} seed {record.seed}: {different[0]} ({source.path.name})"
            (tied if different[0].tied else contradictions).append(line)
    checks = {_identity(check): check for check in target.checks()}
    for check in source.checks():
        same = checks.get(_identity(check))
        if same is None:
            target.put(check)
        elif same.passed != check.passed:
            which = f"{check.model} {check.setting}: the check {check.check}"
            contradictions.append(f"{which} passed in one of them only")
    for audit in source.audits():
        target.put(audit)
    for plan in source.plans():
        target.put(plan)
    present = set(target.example_keys())
    for key in source.example_keys():
        if not (key in present and target.examples([key])):
            for example in source.examples([key]):
                target.put(example)
    return MergeResult(added, known)


def _identity(check: StoredCheck) -> tuple[str, ...]:
    return (*check[:4], check.setting, check.check, check.windows)


RELATIVE, ABSOLUTE = 1e-4, 1e-6
TIES = 1e-3
"""How far a gain can move where rounding changes the order of two positions, whose importances another machine may
order differently within 4e-7; a step of eight, eight times as far."""
_ORDERED = ("g_", "gap_", *QUANTITIES)
_TIMES = frozenset({"forward_seconds", "matrix_seconds", "seconds", "context_time_ratio"})
_LISTS = frozenset({"starts", "context_curves"} | {c.name for c in COLUMNS if c.name.endswith("_steps")})
# These follow from numbers that are compared themselves, and rounding decides a tie: beats_naive from the errors,
# p_margin from the areas, the support from the rows, the number of different forecasts from the orderings, the needed
# context and what is measured there from its curves. max_missing decides the status, which is compared itself.
_FOLLOWING = frozenset(
    {"beats_naive", "p_margin", "support", "sparse", "forecasts", "max_missing"}
    | {c.name for c in COLUMNS if c.name.startswith("context_") and c.name not in ("context_bound", "context_windows")}
)
_NUMBERS = frozenset(c.name for c in COLUMNS if c.kind != "TEXT") - _TIMES - _FOLLOWING
COMPARED = ("status", "check_failed", *(name for name in NAMES if name in _NUMBERS | _LISTS))


class Difference(NamedTuple):
    """A column in which two records of one run disagree."""

    column: str
    first: Value
    second: Value
    tied: bool
    """Whether another order of nearly tied positions explains it: no more than the Monte Carlo error, or `TIES`."""

    def __str__(self) -> str:
        return f"{self.column} is {_format(self.first)} and {_format(self.second)}"


def differences(first: Record, second: Record) -> list[Difference]:
    """Where two records of the same run disagree beyond rounding; those that near ties explain come last.

    A number that is not finite agrees with none. The parity that excluded a run, which may be infinite, is not
    compared: that both records exclude it is.
    """
    both_excluded = first.status == second.status == EXCLUDED
    names = [name for name in COMPARED if not (both_excluded and name == "parity")]
    pairs = ((name, getattr(first, name), getattr(second, name)) for name in names)
    apart = [(name, a, b) for name, a, b in pairs if not _agree(name, a, b)]
    found = [Difference(name, a, b, _agree(name, a, b, _slack(name, first, second))) for name, a, b in apart]
    return sorted(found, key=lambda one: one.tied)


def _slack(name: str, first: Record, second: Record) -> float:
    """How far a number may move by the order of nearly tied positions."""
    if not name.startswith(_ORDERED):
        return 0.0
    base = re.sub("_(se|raw|steps)$", "", name)
    errors = [float(getattr(one, f"{base}_se", None) or 0) for one in (first, second)]
    slack = max([TIES, *filter(math.isfinite, errors)])
    scale = first.variance or 0.0 if name.endswith("_raw") and base != "insertion" else 1.0
    return slack * scale * (8 if name.endswith("_steps") else 1)


def _agree(name: str, first: Value, second: Value, slack: float = 0.0) -> bool:
    if first is None or second is None:
        return first is second
    if name in _NUMBERS:
        return _close([first], [second], slack)
    if name not in _LISTS:
        return first == second
    try:
        lists = [json.loads(str(text)) for text in (first, second)]
        # The numbers of an object are those of its lists, one after the other.
        a, b = (list(chain.from_iterable(one.values())) if isinstance(one, dict) else list(one) for one in lists)
        return _close(a, b, slack)
    except (ValueError, TypeError, RecursionError):  # not a list of numbers
        return False


def _close(first: Sequence[Value], second: Sequence[Value], slack: float) -> bool:
    # A step without a number is null in the JSON: it must be null in both.
    missing = [[value is None for value in values] for values in (first, second)]
    if missing[0] != missing[1]:
        return False
    a, b = (np.array([value for value in values if value is not None], dtype=float) for values in (first, second))
    bound = ABSOLUTE + slack + RELATIVE * np.maximum(np.abs(a), np.abs(b))
    with np.errstate(invalid="ignore"):
        return bool(np.all(np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= bound)))


def _format(value: Value) -> str:
    return "absent" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)[:60]


Format = Literal["parquet", "csv"]
_TEXT = frozenset(column.name for column in COLUMNS if column.kind == "TEXT")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def export(ledger_path: str | Path, out: str | Path, form: Format) -> int:
    """Write every sound record of a ledger to `out`, whole or not at all. Return their number."""
    with Ledger.open(ledger_path, create=False) as ledger:
        records = ledger.records()
    with atomic_write(Path(out)) as file:
        (_parquet if form == "parquet" else _csv)(records, file)
    return len(records)


def _csv(records: Sequence[Record], file: IO[bytes]) -> None:
    def guarded(name: str, value: Value) -> Value:
        dangerous = name in _TEXT and isinstance(value, str) and value.startswith(_FORMULA)
        return f"'{value}" if dangerous else value

    text = io.TextIOWrapper(file, newline="", encoding="utf-8")
    writer = csv.writer(text)
    writer.writerow(NAMES)
    writer.writerows([guarded(name, getattr(record, name)) for name in NAMES] for record in records)
    text.detach()  # writes what is buffered, and leaves the file open


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
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), file)


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
