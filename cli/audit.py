"""`hrx audit`: plans, measures what is missing, and shows the verdict."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hrx import __version__
from hrx.adapters import ModelError
from hrx.audit.ledger.record import FAILED
from hrx.audit.ledger.store import Ledger, LedgerError, StoredAudit
from hrx.audit.memory import GIBIBYTE
from hrx.audit.runner.cost import PlannedRun, PlanSummary, estimate_costs, summarise_plan
from hrx.audit.runner.executors import Executor
from hrx.audit.runner.recheck import Recheck, recheck
from hrx.audit.runner.scheduler import execute
from hrx.audit.runner.worker import WorkerContext
from hrx.cli.config import as_toml, settings_without_paths
from hrx.cli.process import Stop, Stopped, finishing
from hrx.cli.process import exit_code as signal_exit_code
from hrx.cli.rank_only import rank_only
from hrx.cli.request import Request, understand
from hrx.cli.terminal import Progress, duration, show
from hrx.errors import Exit, HrxError
from hrx.reports import heatmaps, read, render, render_table, summarise
from hrx.reports.gates import ModelJudged, exit_code, judge_audit

MOST_REASONS = 8


def audit(options: argparse.Namespace) -> int:
    """Runs an audit and returns its exit code."""
    request = understand(options)
    if options.rank_only:
        with closing(_executor(request, options, len(request.runs))) as executor:
            return rank_only(request.runs, executor, as_json=options.json)
    if options.dry_run:
        return _dry_run(request, options)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HrxError(f"cannot create --out {options.out}: {error}. Choose a writable directory.") from error
    with Ledger.open(request.ledger) as ledger:
        _refuse_damaged(ledger)
        try:
            with finishing() as stop:
                if options.recheck:
                    return _recheck(request, ledger, stop, options)
                keys = _measure(request, ledger, stop, options)
        except Stopped as stopped:
            stop.number = stopped.number
        if stop.number is not None:
            return _interrupted(request, ledger, stop.number)
    return _report(keys, request.ledger, options)


def plan_summary(request: Request, *, estimate: bool) -> PlanSummary:
    """The plan with the parts of other interpreters; with `estimate`, the cost of each run."""
    finished: set[str] = set()
    if request.ledger.exists():
        with Ledger.open(request.ledger, create=False) as ledger:
            finished = ledger.finished()
    costs = estimate_costs(request.runs, finished, WorkerContext(request.workers)) if estimate else {}
    errors = [cost.error for cost in costs.values() if cost.error]
    if errors and len(request.workers.models) == 1:
        raise ModelError(errors[0])
    others = (other.plan(estimate=estimate) for other in request.other_interpreters)
    return sum(others, summarise_plan(request.runs, finished, costs))


def _dry_run(request: Request, options: argparse.Namespace) -> int:
    """Shows what would be done, its cost, and the effective settings. Writes nothing."""
    planned = plan_summary(request, estimate=True)
    if options.json:
        print(json.dumps({"settings": request.settings, "plan": planned.as_json()}))
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


def _measure(request: Request, ledger: Ledger, stop: Stop, options: argparse.Namespace) -> set[str]:
    """Measures the missing runs, here and in other interpreters. Returns the keys of the whole plan."""
    planned = plan_summary(request, estimate=False)
    if not options.json:
        print(_headline(planned, request.ledger), file=sys.stderr)
        if planned.missing and (reasons := _reasons(planned.runs)):
            print(reasons, file=sys.stderr)
    if planned.missing:
        settings = json.dumps(settings_without_paths(request.settings), sort_keys=True)
        ledger.write_audit(StoredAudit(datetime.now(UTC).isoformat(timespec="seconds"), __version__, settings))
    finished = ledger.finished()
    missing = [run for run in request.runs if run.key not in finished]
    # The time of a run grows about with the values it processes; the runs already finished give the scale.
    weights = {run.key: float(run.setting.lookback + run.setting.horizon) for run in missing}
    progress = Progress(len(request.runs), weights)
    if missing:
        with closing(_executor(request, options, len(missing))) as executor:
            execute(
                request.runs,
                request.workers.models,
                ledger,
                executor,
                progress=lambda run, record: progress.step(
                    run.key, f"{run.identity.model} {run.dataset.name} {run.setting} {record.status}"
                ),
                stopping=stop,
            )
    for other in request.other_interpreters:
        if not stop():
            other.audit(stop)
    return planned.keys


def _executor(request: Request, options: argparse.Namespace, tasks: int) -> Executor:
    if options.engine == "ray":
        from hrx.audit.runner.executors.ray import RayExecutor

        return RayExecutor(request.workers, options.workers, options.gpus, options.address)
    size = min(options.workers or 1, tasks)
    if size > 1:
        from hrx.audit.runner.executors.processes import ProcessExecutor

        return ProcessExecutor(request.workers.divided(size), size)
    from hrx.audit.runner.executors.in_process import InProcessExecutor

    return InProcessExecutor(request.workers)


def _interrupted(request: Request, ledger: Ledger, number: int) -> int:
    finished = ledger.finished()
    done = sum(run.key in finished for run in request.runs)
    print(
        f"hrx audit: stopped. {done} of {len(request.runs)} runs are in {request.ledger}. "
        "Repeat the command to continue.",
        file=sys.stderr,
    )
    return signal_exit_code(number)


def _recheck(request: Request, ledger: Ledger, stop: Stop, options: argparse.Namespace) -> int:
    """Measures stored runs again; exit code 3 where the numbers of one differ."""

    def show_result(result: Recheck) -> None:
        if not options.json:
            show(_recheck_line(result))

    with closing(_executor(request, options, options.recheck)) as executor:
        results = recheck(request.runs, ledger, executor, options.recheck, on_result=show_result, stopping=stop)
    codes = [other.audit(stop, f"--recheck={options.recheck}") for other in request.other_interpreters if not stop()]
    if stop.number is not None:
        return signal_exit_code(stop.number)
    if not results and not codes:
        raise HrxError(f"{request.ledger} holds no scored run of this plan. Audit first, then --recheck.")
    same = sum(result.same for result in results)
    if options.json:
        print(json.dumps({"rechecked": len(results), "same": same, "runs": list(map(_recheck_line, results))}))
    else:
        show(f"{same} of {len(results)} stored runs have the same numbers.")
    return Exit.DONE if same == len(results) and not any(codes) else Exit.INCOMPLETE


def _recheck_line(result: Recheck) -> str:
    run = result.run
    label = f"{run.identity.model} {run.dataset.name} {run.series_name} {run.setting} seed {run.seed}"
    if result.error:
        return f"{label}: could not be measured again: {result.error}"
    more = f" and {len(result.differences) - 1} more columns" if len(result.differences) > 1 else ""
    return f"{label}: {'same' if result.same else f'DIFFERENT: {result.differences[0]}{more}'}"


def _report(keys: set[str], path: Path, options: argparse.Namespace) -> int:
    """Shows the runs of this audit, whatever else the ledger holds."""
    frame = read(path)
    frame = frame[frame["key"].isin(keys)]
    with Ledger.open(path, create=False) as ledger:
        summaries = summarise(frame, ledger.checks())
    figures = heatmaps(path, options.out, keys)
    judged = judge_audit(options.gate, frame)
    if options.json:
        document: dict[str, Any] = {"ledger": str(path), "models": [summary.as_json() for summary in summaries]}
        if judged:
            document["gates"] = [
                {"model": one.model, "gate": one.judged.gate.text, "passed": one.judged.passed} for one in judged
            ]
        print(json.dumps(document, indent=1))
    else:
        show(render(summaries))
        for one in judged:
            show(_gate_line(one))
        show(f"\nLedger: {path}\nHeat maps: {len(figures)} in {options.out}")
        show(f"Page: hrx report {path} --out {options.out / 'page'}")
    gates = exit_code(one.judged for one in judged)
    return Exit.INCOMPLETE if gates == Exit.DONE and (frame["status"] == FAILED).any() else gates


def _gate_line(one: ModelJudged) -> str:
    outcome = {True: "passed", False: "FAILED", None: "cannot be judged: no scored run has a value"}[one.judged.passed]
    return f"Gate {one.judged.gate.text} of {one.model}: {outcome}"


def _headline(plan: PlanSummary, path: Path) -> str:
    """How many runs there are, and how many the ledger holds."""
    models = len({run.model for run in plan.runs})
    datasets = len({run.dataset for run in plan.runs})
    known = sum(run.state == "stored" for run in plan.runs)
    stored = f", {known} of them stored" if known else ""
    counted = f"{models} model{'s' * (models > 1)}, {datasets} dataset{'s' * (datasets > 1)}"
    return f"{len(plan.runs)} runs ({counted}){stored}: {path}"


def _plan_text(plan: PlanSummary, workers: int) -> str:
    """What is stored, what is to run and what cannot run, by model and by dataset, with the estimated cost."""
    parts = [_by_model(plan, workers), _by_dataset(plan.runs), _reasons(plan.runs), "\n".join(plan.notes)]
    return "\n\n".join(part for part in parts if part)


def _by_model(plan: PlanSummary, workers: int) -> str:
    rows = []
    for model in dict.fromkeys(run.model for run in plan.runs):
        mine = [run for run in plan.runs if run.model == model]
        states = Counter(run.state for run in mine)
        memory = plan.memory.get(model)
        rows.append(
            (
                model,
                str(len(mine)),
                str(states["stored"]),
                str(states["to run"]),
                str(states["cannot run"]),
                _about([run for run in mine if run.state == "to run"], workers),
                f"about {memory * workers / GIBIBYTE:.1f} GiB" if memory else "-",
            )
        )
    return render_table(("model", "runs", "stored", "to run", "cannot run", "time", "memory"), rows).rstrip()


def _about(runs: Sequence[PlannedRun], workers: int) -> str:
    """The time of the missing runs; a setting without an estimate counts as the mean of the others."""
    known = [run.seconds for run in runs if run.seconds is not None]
    return f"about {duration(sum(known) / len(known) * len(runs) / workers)}" if known else "-"


def _by_dataset(runs: Sequence[PlannedRun]) -> str:
    models = list(dict.fromkeys(run.model for run in runs))
    counts = Counter((run.dataset, run.model, run.state) for run in runs)

    def cell(dataset: str, model: str) -> str:
        stored, left, cannot = (counts[dataset, model, state] for state in ("stored", "to run", "cannot run"))
        parts = [f"{left} to run"] * bool(left) + [f"{stored} stored"] * bool(stored) + [f"{cannot} not"] * bool(cannot)
        return ", ".join(parts) or "-"

    rows = [
        (dataset, *(cell(dataset, model) for model in models)) for dataset in dict.fromkeys(run.dataset for run in runs)
    ]
    return render_table(("dataset", *models), rows).rstrip()


def _reasons(runs: Sequence[PlannedRun]) -> str:
    """Why runs cannot run, the most common reason first."""
    counted = Counter(run.reason for run in runs if run.state == "cannot run")
    lines = [f"{count} cannot run: {reason}" for reason, count in counted.most_common(MOST_REASONS)]
    if len(counted) > MOST_REASONS:
        lines.append(f"… and {len(counted) - MOST_REASONS} more reasons; --dry-run --json lists every run")
    return "\n".join(lines)
