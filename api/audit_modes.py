"""Other uses of the plan of an audit: its cost, stored runs measured again.

Also the side of another interpreter (`--python`), which answers `OtherInterpreter` of `api/audit_plan.py`.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import NamedTuple

from hrx.api.audit_plan import (
    Announcer,
    AuditPlan,
    local_executor,
    make_plan,
    open_executor,
    refuse_damaged,
    stored_part,
)
from hrx.api.progress import Events, Progress, Stopped, finishing, noting_damage, signal_exit_code
from hrx.audit.request import AuditRequest
from hrx.audit.runner.cost import Costs, estimate_costs, summarise_plan
from hrx.audit.runner.plan import PlannedRun
from hrx.audit.runner.scheduler import Recheck, recheck
from hrx.audit.runner.worker import ExecutorLost
from hrx.errors import Exit, HrxError
from hrx.files import check_directory
from hrx.options import from_settings
from hrx.records.ledger import EmptyLedger, Ledger
from hrx.text import message


class PlannedAudit(NamedTuple):
    """What an audit would do."""

    request: AuditRequest
    """With every default that decides a number filled in."""
    runs: Sequence[PlannedRun]


def estimate_audit(request: AuditRequest, events: Events) -> PlannedAudit:
    """Plan an audit and estimate the cost of each run: every model is loaded. Nothing is written."""
    plan = make_plan(request, None, events)
    events.say("loading each model and timing one window of each setting")
    with noting_damage(events):
        return PlannedAudit(plan.request, _planned_runs(plan, estimate=True))


def _planned_runs(plan: AuditPlan, *, estimate: bool) -> list[PlannedRun]:
    """Return the runs of this and of other interpreters; with `estimate`, with the cost of each."""
    finished: set[str] = set()
    if os.path.exists(plan.ledger):
        with suppress(EmptyLedger), Ledger.open(plan.ledger, create=False) as ledger:
            finished = ledger.finished(run.key for run in plan.runs)
    costs: Costs = {}
    if estimate:
        with closing(local_executor(plan.workers, plan.request, 1)) as executor:
            costs = estimate_costs(plan.runs, finished, executor)
    planned = summarise_plan(plan.runs, finished, costs)
    for other in plan.others:
        planned += other.plan(estimate=estimate)
    return planned


@dataclass(frozen=True)
class Rechecked:
    """Stored runs that were measured again."""

    results: Sequence[Recheck]
    exit: int
    damaged: Sequence[str] = ()
    """What of the ledger was left out as damaged."""
    ended: str = ""

    @property
    def same(self) -> int:
        return sum(result.same for result in self.results)


def recheck_audit(
    request: AuditRequest, count: int, events: Events, on_result: Callable[[Recheck], None] = lambda result: None
) -> Rechecked:
    """Measure `count` stored runs of the plan again, here and in each other interpreter, and compare."""
    if request.budget:
        raise HrxError(f"--recheck {count} measures that many runs, whatever --budget is. Drop --budget.")
    plan = make_plan(request, None, events)
    check_directory(request.out, "--out")
    nothing = f"{plan.ledger} holds no scored run of this plan. Audit first, then --recheck."
    if not os.path.exists(plan.ledger):
        raise HrxError(f"{plan.ledger} does not exist, so it holds no scored run of this plan. Audit first.")
    results: list[Recheck] = []
    with noting_damage(events), Ledger.open(plan.ledger, create=False, warn=False) as ledger:
        refuse_damaged(ledger)
        try:
            with finishing(events) as stop:
                with closing(open_executor(plan.workers, plan.request, count)) as executor:
                    started = Announcer(plan.runs, events)
                    for checked in recheck(plan.runs, ledger, executor, count, stop, started):
                        results.append(checked)
                        on_result(checked)
                events.pause()
                codes = [other.audit(stop, recheck=count) for other in plan.others if not stop()]
        except Stopped as stopped:
            return Rechecked([], signal_exit_code(stopped.number), ended=f"stopped. {stored_part(plan, ledger)}")
        except ExecutorLost as error:
            return Rechecked([], Exit.INCOMPLETE, ended=f"{error} {stored_part(plan, ledger)}")
        damaged = [f"{plan.ledger}: left out: {damage}" for damage in ledger.damaged]
    if stop.number is not None:
        return Rechecked(results, signal_exit_code(stop.number), damaged)
    if not results and not codes:
        raise HrxError(nothing)
    same = all(result.same for result in results) and not any(codes) and not damaged
    return Rechecked(results, Exit.DONE if same else Exit.INCOMPLETE, damaged)


def run_child(action: str, settings: str, count: str = "0") -> int:
    """Do the share of this interpreter, or print its `plan` or cost `estimate`; end with the parent process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        request = from_settings(AuditRequest, json.loads(settings))
        if action != "audit":
            planned = _planned_runs(make_plan(request, None, Events()), estimate=action == "estimate")
            sys.stdout.write(json.dumps([run._asdict() for run in planned]))
            return Exit.DONE
        events = Progress()
        with events.running("hrx audit"):
            if int(count):
                return recheck_audit(request, int(count), events).exit
            from hrx.api.audit import perform  # imports the reports, which a plan does not need

            return perform(request, events=events).exit
    except HrxError as error:
        sys.stderr.write(f"{message(f'hrx audit: {error}')}\n")
        return error.exit
    except (Exception, SystemExit) as error:
        from hrx.errors import crash_sentence

        sys.stderr.write(f"{message(crash_sentence('audit', error))}\n")
        return Exit.CRASHED


def _end_with_parent() -> None:
    """Wait until standard input, a pipe from the parent, is closed."""
    while os.read(0, 1024):
        pass
    os._exit(1)  # its workers end with it
