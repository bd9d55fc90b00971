"""Stored runs measured once more: whether a ledger still tells the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from hrx.adapters.acceleration import Acceleration
from hrx.audit.ledger.diff import Difference, differences
from hrx.audit.ledger.record import DONE, Record
from hrx.audit.ledger.store import Ledger
from hrx.audit.runner.executors.in_process import Crew, Lost
from hrx.audit.runner.plan import Run
from hrx.audit.runner.run import Outcome
from hrx.audit.runner.worker import Measure, Trouble
from hrx.audit.way import STRATEGIES, Way
from hrx.gift_eval import spaced


class Rechecked(NamedTuple):
    """One stored run, measured again."""

    run: Run
    differences: Sequence[Difference]
    trouble: str = ""
    """Why it could not be measured again."""

    @property
    def same(self) -> bool:
        return not (self.differences or self.trouble)


def recheck(
    runs: Sequence[Run],
    ledger: Ledger,
    crew: Crew,
    count: int,
    *,
    told: Callable[[Rechecked], None],
    stopping: Callable[[], bool] = lambda: False,
) -> list[Rechecked]:
    """Measures `count` scored runs of the plan again, evenly spaced over it, and compares. Writes nothing."""
    stored = {str(record["key"]): record for record in ledger.records(run.key for run in runs)}
    scored = [run for run in runs if stored.get(run.key, {}).get("status") == DONE]
    waiting = [scored[index] for index in reversed(spaced(len(scored), count))]
    idle, busy, found = list(range(crew.size)), dict[int, Run](), list[Rechecked]()
    while True:
        while idle and waiting and not stopping():
            seat = idle.pop()
            busy[seat] = waiting.pop()
            crew.give(seat, Measure(busy[seat], _way(stored[busy[seat].key])))
        if not busy:
            return found
        for seat, result in crew.wait():
            idle.append(seat)
            run = busy.pop(seat)
            found.append(_compared(run, stored[run.key], result))
            told(found[-1])


def _way(stored: Record) -> Way:
    """How the run was computed."""
    rows = next((name for name in STRATEGIES if name == stored.get("rows_strategy")), None)
    return Way(rows, cast("tuple[Acceleration, ...]", tuple(str(stored.get("accelerations") or "").split())))


def _compared(run: Run, stored: Record, result: object) -> Rechecked:
    if isinstance(result, Outcome):
        return Rechecked(run, differences(stored, result.record))
    reason = result.reason if isinstance(result, Trouble) else result.how if isinstance(result, Lost) else str(result)
    return Rechecked(run, (), trouble=reason)
