"""`hrx audit`: plans, measures what is missing, and shows the verdict."""

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from hrx import __version__
from hrx.audit.memory import GIBIBYTE
from hrx.audit.runner.cost import Costs, PlannedRun, estimate_costs, summarise_plan
from hrx.audit.runner.processes import start_server
from hrx.audit.runner.scheduler import Recheck, execute, recheck
from hrx.audit.runner.worker import ExecutorLost
from hrx.cli.audit_progress import Announcer, AuditProgress
from hrx.cli.config import as_toml, settings_without_paths
from hrx.cli.process import Budget, Stop, Stopped, finishing
from hrx.cli.process import exit_code as signal_exit_code
from hrx.cli.progress import duration, progress
from hrx.cli.rank_only import rank_only
from hrx.cli.request import Request, local_executor, local_workers, open_executor, understand
from hrx.cli.terminal import not_written, note, show, showing_damage
from hrx.errors import Exit, HrxError, NotWritten
from hrx.files import check_directory, check_target
from hrx.records.database import EmptyLedger, utc_now
from hrx.records.ledger import Ledger, LedgerError, StoredAudit, StoredPlan
from hrx.records.log import in_wal_mode
from hrx.records.record import FAILED, Record
from hrx.reports import heatmaps, read, render_table, summarise
from hrx.reports.backbones import render_audit, summarise_backbones
from hrx.reports.compare_report import describe_gate, gate_json
from hrx.reports.coverage import without_runs
from hrx.reports.gates import Leniency, ModelJudged, exit_code, judge_audit
from hrx.reports.text import counted

MOST_REASONS = 8


def audit(options: argparse.Namespace) -> int:
    """Runs an audit and returns its exit code."""
    budget = Budget(options.budget)
    progress.say("finding models and series")
    if local_workers(options):
        start_server()
    request = understand(options)
    if options.rank_only:
        try:
            with closing(open_executor(request.workers, options, len(request.runs))) as executor:
                return rank_only(request.runs, executor, as_json=options.json)
        except ExecutorLost as error:
            note(f"hrx audit: {error} Repeat the command.")
            return Exit.INCOMPLETE
    if options.dry_run:
        with showing_damage():
            return _dry_run(request, options)
    _check_places(request.ledger, options)
    measuring, ended, existed = False, _Ended(), os.path.exists(request.ledger)
    try:
        with showing_damage():
            # First, because another interpreter may refuse the request, which leaves no ledger behind then.
            elsewhere = [run for other in request.other_interpreters for run in other.plan(estimate=False)]
            with Ledger.open(request.ledger, warn=False) as ledger:
                _refuse_damaged(ledger)
                stored = ledger.records(run.key for run in request.runs)
                planned = summarise_plan(request.runs, ledger.finished(run.key for run in request.runs), {}) + elsewhere
                plans = _plans(planned, options.until)
                if not options.recheck:
                    _begin(planned, plans, request, ledger, options)
                measuring = True
                try:
                    with finishing() as stop:
                        if options.recheck:
                            return _recheck(request, ledger, stop, options)
                        _measure(request, stored, ledger, stop, budget, options)
                except Stopped as stopped:
                    note(f"hrx audit: stopped. {_stored(request, ledger)}")
                    return signal_exit_code(stopped.number)
                except ExecutorLost as error:
                    ended = _Ended(Exit.INCOMPLETE, f"{error} {_stored(request, ledger)}")
                if stop.number is not None:
                    ended = _Ended(signal_exit_code(stop.number), f"stopped. {_stored(request, ledger)}")
                elif budget.over and not ended.because and not _all_finished(planned, ledger):
                    ended = _Ended(None, f"--budget is over. {_stored(request, ledger)}")
    except LedgerError as error:
        if not measuring or options.recheck:
            raise
        ended = _Ended(None, "", error)  # a full disk, say: the verdict below is that of the stored runs
    except HrxError:
        if not existed:
            _remove_without_runs(request.ledger)
        raise
    # A damaged run of this plan has been measured again; what is damaged beside the plan is named here.
    with showing_damage() as damaged:
        code = _report(plans, request.ledger, options, pictures=ended.code is None)
    code = Exit.INCOMPLETE if damaged and code == Exit.DONE else code
    if ended.because:
        note(f"hrx audit: {ended.because}")
    if ended.unwritten:
        return not_written("audit", ended.unwritten, code)
    return code if ended.code is None else ended.code


class _Ended(NamedTuple):
    """How the measuring ended."""

    code: int | None = None
    """The exit code that this alone decides."""
    because: str = ""
    unwritten: LedgerError | None = None


def _check_places(ledger: Path, options: argparse.Namespace) -> None:
    """Refuses a directory or a ledger that cannot be written, before anything is created."""
    check_directory(options.out, "--out")
    if os.path.exists(ledger):
        if options.recheck:
            with Ledger.open(ledger, create=False, warn=False):
                return  # an empty file would become a ledger when it is opened for writing
        return
    if options.recheck:
        raise HrxError(f"{ledger} does not exist, so it holds no scored run of this plan. Audit first, then --recheck.")
    check_target(ledger, "--ledger")


def _remove_without_runs(ledger: Path) -> None:
    """Removes the ledger of a request that was refused before its first run was stored."""
    if not os.path.exists(ledger) or in_wal_mode(ledger):  # in that mode another process has it open
        return
    with suppress(LedgerError, OSError), Ledger.open(ledger, create=False, warn=False) as opened:
        if opened.rows():
            return
    ledger.unlink(missing_ok=True)


def planned_runs(request: Request, options: argparse.Namespace, *, estimate: bool) -> list[PlannedRun]:
    """The runs of this and of other interpreters; with `estimate`, with the cost of each."""
    finished: set[str] = set()
    if os.path.exists(request.ledger):
        with suppress(EmptyLedger), Ledger.open(request.ledger, create=False) as ledger:
            finished = ledger.finished(run.key for run in request.runs)
    costs: Costs = {}
    if estimate:
        with closing(local_executor(request.workers, options, 1)) as executor:
            costs = estimate_costs(request.runs, finished, executor)
    planned = summarise_plan(request.runs, finished, costs)
    for other in request.other_interpreters:
        planned += other.plan(estimate=estimate)
    return planned


def _dry_run(request: Request, options: argparse.Namespace) -> int:
    """Shows what would be done, its cost, and the effective settings. Writes nothing."""
    progress.say("loading each model and timing one window of each setting")
    planned = planned_runs(request, options, estimate=True)
    if options.json:
        print(json.dumps({"settings": request.settings, "plan": {"runs": [run._asdict() for run in planned]}}))
        return Exit.DONE
    show(_headline(planned, request.ledger))
    show("\n" + _plan_text(planned, options.workers or 1))
    show("\nEffective settings:\n" + as_toml(request.settings))
    return Exit.DONE


def _refuse_damaged(ledger: Ledger) -> None:
    if damage := ledger.damage():
        raise LedgerError(
            f"{ledger.path} is damaged ({damage}), so nothing is added to it. Save what can still be read with: "
            f"hrx merge {ledger.path} --into NEW.db, and continue with --ledger NEW.db."
        )


def _plans(planned: Sequence[PlannedRun], until: str | None) -> list[StoredPlan]:
    """What is planned for each model, as the ledger stores it."""
    keys: dict[tuple[str, str], list[str]] = {}
    for run in planned:
        keys.setdefault((run.model, run.fingerprint), []).append(run.key)
    return [StoredPlan.of(*model, until or "", of_model, utc_now()) for model, of_model in keys.items()]


def _begin(
    planned: Sequence[PlannedRun],
    plans: Sequence[StoredPlan],
    request: Request,
    ledger: Ledger,
    options: argparse.Namespace,
) -> None:
    """Says what is planned and stores it, which shows before the first run that the ledger can be written."""
    missing = any(run.state != "stored" for run in planned)
    if not options.json:
        note(_headline(planned, request.ledger))
        if missing and (reasons := _reasons(planned)):
            note(reasons)
    if missing:
        settings = json.dumps(settings_without_paths(request.settings), sort_keys=True)
        ledger.write_audit(StoredAudit(utc_now(), __version__, settings))
        ledger.write_plans(plans)


def _all_finished(planned: Sequence[PlannedRun], ledger: Ledger) -> bool:
    keys = {run.key for run in planned}
    return ledger.finished(keys) == keys


def _measure(
    request: Request, stored: Sequence[Record], ledger: Ledger, stop: Stop, budget: Budget, options: argparse.Namespace
) -> None:
    """Measures the missing runs, here and in other interpreters."""
    finished = ledger.finished(run.key for run in request.runs)
    missing_here = [run for run in request.runs if run.key not in finished]
    if missing_here:
        shown = AuditProgress(request.runs, stored, stop)
        with closing(open_executor(request.workers, options, len(missing_here))) as executor:
            execute(
                request.runs,
                request.workers.models,
                ledger,
                executor,
                progress=shown.stored,
                stopping=lambda: stop() or budget.over,
                on_start=shown.started,
                until_decided=options.until == "decided",
            )
    progress.pause()  # another interpreter shows its own progress
    for other in request.other_interpreters:
        if not (stop() or budget.over):
            other.audit(stop, budget=budget.left)


def _stored(request: Request, ledger: Ledger) -> str:
    finished = ledger.finished(run.key for run in request.runs)
    done = sum(run.key in finished for run in request.runs)
    total = counted(len(request.runs), "run")
    return f"{done} of {total} are in {request.ledger}. Repeat the command to continue."


def _recheck(request: Request, ledger: Ledger, stop: Stop, options: argparse.Namespace) -> int:
    """Measures stored runs again; exit code 3 where the numbers of one differ."""

    def show_result(result: Recheck) -> None:
        if not options.json:
            show(_recheck_line(result))

    with closing(open_executor(request.workers, options, options.recheck)) as executor:
        results = recheck(
            request.runs,
            ledger,
            executor,
            options.recheck,
            on_result=show_result,
            stopping=stop,
            on_start=Announcer(request.runs),
        )
    progress.pause()
    codes = [other.audit(stop, f"--recheck={options.recheck}") for other in request.other_interpreters if not stop()]
    if stop.number is not None:
        return signal_exit_code(stop.number)
    if not results and not codes:
        raise HrxError(f"{request.ledger} holds no scored run of this plan. Audit first, then --recheck.")
    same = sum(result.same for result in results)
    damaged = [f"{request.ledger}: left out: {damage}" for damage in ledger.damaged]
    if options.json:
        lines = [*map(_recheck_line, results), *damaged]
        print(json.dumps({"rechecked": len(results), "same": same, "runs": lines}))
    else:
        for line in damaged:
            note(line)
        show(f"{same} of {len(results)} stored runs have the same numbers.")
    return Exit.DONE if same == len(results) and not any(codes) and not damaged else Exit.INCOMPLETE


def _recheck_line(result: Recheck) -> str:
    run = result.run
    label = f"{run.identity.model} {run.dataset.name} {run.series_name} {run.setting} seed {run.seed}"
    if result.error:
        return f"{label}: could not be measured again: {result.error}"
    more = f" and {len(result.differences) - 1} more columns" if len(result.differences) > 1 else ""
    return f"{label}: {'same' if result.same else f'DIFFERENT: {result.differences[0]}{more}'}"


def _report(plans: Sequence[StoredPlan], path: Path, options: argparse.Namespace, *, pictures: bool) -> int:
    """Shows the runs of this audit, whatever else the ledger holds; without `pictures`, text only."""
    progress.stage("drawing heat maps" if pictures else "reading the ledger")
    keys = {key for plan in plans for key in plan.run_keys}
    frame = read(path)
    frame = frame[frame["key"].isin(keys)]
    with Ledger.open(path, create=False) as ledger:
        checks = ledger.checks()
    summaries, backbones = summarise(frame, checks, plans), summarise_backbones(frame, checks, plans)
    options.summaries, options.backbones = summaries, backbones  # what hrx.run_audit returns
    judged = judge_audit(options.gate, frame, by_backbone=bool(backbones))
    absent = without_runs(frame, plans)
    if options.json:
        document: dict[str, Any] = {"ledger": str(path), "models": [summary.as_json() for summary in summaries]}
        if backbones:
            document["backbones"] = [one.as_json() for one in backbones]
        if absent:
            document["without_runs"] = absent
        if judged:
            document["gates"] = [{"model": one.model, **gate_json(one.judged)} for one in judged]
        print(json.dumps(document, indent=1))
    else:
        show(render_audit(summaries, backbones) if summaries or not absent else "")
        for line in _absent_lines(absent):
            show(line)
        for one in judged:
            show(_gate_line(one))
        show(f"\nLedger: {path}")
    code = _exit_code(frame, judged, options.undecided)
    code = Exit.INCOMPLETE if absent and code == Exit.DONE else code
    if not pictures:
        return code
    try:
        figures = heatmaps(path, options.out, keys)
    except NotWritten as error:
        return not_written("audit", error, code)
    if not options.json:
        show(f"Heat maps: {len(figures)} in {options.out}")
        show(f"Page: hrx report {path} --out {options.out / 'page'}")
    return code


def _absent_lines(absent: Mapping[str, int]) -> Iterator[str]:
    """The models without a stored run; after the first ones their number."""
    for model, runs in list(absent.items())[:MOST_REASONS]:
        yield f"{model}: no verdict, none of its {counted(runs, 'planned run')} is stored."
    if (more := len(absent) - MOST_REASONS) > 0:
        yield f"… and {counted(more, 'model')} more without a stored run; --json names all."


def _exit_code(frame: pd.DataFrame, judged: Sequence[ModelJudged], undecided: Leniency | None) -> int:
    """A failed admission check or gate comes first, then gates that are not decided, then failed runs."""
    if frame["check_failed"].notna().any():
        return Exit.GATE_FAILED
    gates = exit_code((one.judged for one in judged), undecided)
    return Exit.INCOMPLETE if gates == Exit.DONE and (frame["status"] == FAILED).any() else gates


def _gate_line(one: ModelJudged) -> str:
    outcome = "FAILED" if one.judged.outcome == "failed" else one.judged.outcome
    return f"Gate {one.judged.gate.text} of {one.model}: {outcome}: {'; '.join(describe_gate(one.judged))}"


def _headline(plan: Sequence[PlannedRun], path: Path) -> str:
    """How many runs there are, and how many the ledger holds."""
    models, datasets = ({getattr(run, name) for run in plan} for name in ("model", "dataset"))
    stored = sum(run.state == "stored" for run in plan)
    known = f", {stored} of them stored" if stored else ""
    of = f"{counted(len(models), 'model')}, {counted(len(datasets), 'dataset')}"
    return f"{counted(len(plan), 'run')} ({of}){known}: {path}"


def _plan_text(plan: Sequence[PlannedRun], workers: int) -> str:
    """What is stored, what is to run and what cannot run, by model and by dataset, with the estimated cost."""
    models = dict.fromkeys(run.model for run in plan)
    rows = [(model, *_costs([run for run in plan if run.model == model], workers)) for model in models]
    parts = [render_table(("model", "runs", "stored", "to run", "cannot run", "time", "memory"), rows).rstrip()]
    counts: Counter[tuple[str, str, str]] = Counter((run.dataset, run.model, run.state) for run in plan)
    datasets = dict.fromkeys(run.dataset for run in plan)

    def cell(dataset: str, model: str) -> str:
        labels = {"to run": "to run", "stored": "stored", "cannot run": "not"}
        states = [f"{counts[dataset, model, state]} {label}" for state, label in labels.items()]
        return ", ".join(state for state in states if not state.startswith("0 ")) or "-"

    rows = [(dataset, *(cell(dataset, model) for model in models)) for dataset in datasets]
    parts += [render_table(("dataset", *models), rows).rstrip(), _reasons(plan)]
    notes = dict.fromkeys(f"No estimate for {run.model}: {run.note}" for run in plan if run.note)
    return "\n\n".join(part for part in (*parts, "\n".join(notes)) if part)


def _costs(runs: Sequence[PlannedRun], workers: int) -> tuple[str, ...]:
    """Counts by state, time and memory of a model; a setting without an estimate counts as the mean of the others."""
    states = Counter(run.state for run in runs)
    counts = [str(len(runs)), *(str(states[state]) for state in ("stored", "to run", "cannot run"))]
    seconds = [run.seconds for run in runs if run.seconds is not None]
    memory = max((run.memory for run in runs if run.memory is not None), default=None)
    time = f"about {duration(sum(seconds) / len(seconds) * states['to run'] / workers)}" if seconds else "-"
    return (*counts, time, "-" if memory is None else f"about {memory * workers / GIBIBYTE:.1f} GiB")


def _reasons(runs: Sequence[PlannedRun]) -> str:
    """Why runs cannot run, the most common reason first."""
    counted = Counter(run.reason for run in runs if run.state == "cannot run")
    lines = [f"{count} cannot run: {reason}" for reason, count in counted.most_common(MOST_REASONS)]
    if len(counted) > MOST_REASONS:
        lines.append(f"… and {len(counted) - MOST_REASONS} more reasons; --dry-run --json lists every run")
    return "\n".join(lines)
