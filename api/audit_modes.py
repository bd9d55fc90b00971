"""Other uses of the plan of an audit: its cost, the rank of the matrices alone, stored runs measured again.

Also the side of another interpreter (`--python`), which answers `OtherInterpreter` of `api/audit_plan.py`.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from hrx.adapters.contract import ModelError
from hrx.api.audit_plan import (
    Announcer,
    AuditPlan,
    label,
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
from hrx.audit.runner.scheduler import ListQueue, Recheck, recheck, run_tasks
from hrx.audit.runner.worker import ExecutorLost, RankRun, RunRank, Task, TaskFailed, TaskResult
from hrx.errors import Exit, HrxError
from hrx.files import check_directory
from hrx.options import from_settings
from hrx.records.ledger import EmptyLedger, Ledger
from hrx.records.quantities import rank_bin
from hrx.text import message

Row = dict[str, Any]


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


class Ranks(NamedTuple):
    """Rank of the matrices of the planned runs, by model."""

    models: Sequence[Row]
    exit: Exit
    ended: str = ""


def ranks(request: AuditRequest, events: Events) -> Ranks:
    """Compute the matrices of the planned runs and nothing else: no deletion, no admission, no ledger."""
    if request.budget or request.until:
        option = "--budget" if request.budget else "--until"
        raise HrxError(f"{option} stops an audit of gains, and --rank-only measures none. Drop one of them.")
    plan = make_plan(request, None, events)
    rows: list[Row] = []
    events.expect(len(plan.runs), {run.key: float(run.setting.lookback + run.setting.horizon) for run in plan.runs})

    def collect(task: Task, result: TaskResult) -> None:
        assert isinstance(task, RankRun)
        if isinstance(result, TaskFailed):
            if result.user_error:
                raise ModelError(result.shown or result.reason)
            result = RunRank(None, result.shown or result.reason, failed=True)
        assert isinstance(result, RunRank)
        run, rank = task.run, result.rank
        row = {"model": run.identity.model, "dataset": run.dataset.name, "setting": str(run.setting)}
        measured = {"rank": rank and rank.participation, "rank_entropy": rank and rank.entropy}
        rows.append(row | measured | {"reason": result.reason, "failed": result.failed})
        events.step(run.key, label(run))

    queue = ListQueue([RankRun(run) for run in plan.runs], collect)
    try:
        with closing(open_executor(plan.workers, plan.request, len(plan.runs))) as executor:
            run_tasks(queue, executor, on_start=Announcer(plan.runs, events))
    except ExecutorLost as error:
        return Ranks([], Exit.INCOMPLETE, f"{error} Repeat the command.")
    frame = pd.DataFrame(rows).astype({"rank": float, "rank_entropy": float})
    names = dict.fromkeys(run.identity.model for run in plan.runs)
    models = [_ranks_of(model, frame[frame["model"] == model]) for model in names]
    return Ranks(models, Exit.INCOMPLETE if frame["failed"].any() else Exit.DONE)


def _ranks_of(model: str, frame: pd.DataFrame) -> Row:
    """Medians by dataset and setting beside the published gains at such a rank, and why runs have no rank."""
    measured: list[Row] = []
    for (dataset, setting), group in frame.dropna(subset="rank").groupby(["dataset", "setting"], sort=False):
        rank = float(group["rank"].median())
        published = rank_bin(rank)
        measured.append(
            {
                "dataset": dataset,
                "setting": setting,
                "runs": len(group),
                "rank": rank,
                "rank_entropy": float(group["rank_entropy"].median()),
                "worth": published.worth,
                "published_g_own": published.g_own,
                "published_positive": published.positive,
            }
        )
    reasons = frame.loc[frame["rank"].isna(), "reason"].value_counts(sort=False)
    not_measured = [{"reason": reason, "runs": int(runs)} for reason, runs in reasons.items()]
    return {"model": model, "ranks": measured, "not_measured": not_measured}


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
    with noting_damage(events), Ledger.open(plan.ledger, create=False, warn=False) as ledger:
        refuse_damaged(ledger)
        try:
            with finishing(events) as stop:
                with closing(open_executor(plan.workers, plan.request, count)) as executor:
                    started = Announcer(plan.runs, events)
                    results = recheck(
                        plan.runs, ledger, executor, count, on_result=on_result, stopping=stop, on_start=started
                    )
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
