"""`hrx audit`: plan, run what is missing, and show what came of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hrx import __version__
from hrx.adapters import ModelError
from hrx.audit.ledger.record import FAILED, Record
from hrx.audit.ledger.store import Ledger, LedgerError, StoredAudit
from hrx.audit.runner.cost import survey
from hrx.audit.runner.executors.in_process import Crew, Here
from hrx.audit.runner.forecasted_plan import Outlook, Planned, outlook
from hrx.audit.runner.plan import Run
from hrx.audit.runner.recheck import Rechecked, recheck
from hrx.audit.runner.scheduler import execute
from hrx.audit.runner.worker import WorkerContext
from hrx.cli.config import as_toml, without_places
from hrx.cli.plan_text import opening, plan_text
from hrx.cli.progress import Progress
from hrx.cli.rank_only import rank_only
from hrx.cli.request import Request, understand
from hrx.cli.screen import show
from hrx.cli.signals import Stop, Stopped, finishing
from hrx.cli.signals import exit_code as signalled
from hrx.errors import Exit, HrxError
from hrx.reports import heatmaps, read, render, summarise
from hrx.reports.gates import ModelJudged, exit_code, judge_audit


def audit(options: argparse.Namespace) -> int:
    """Carries out an audit and returns its exit code."""
    request = understand(options)
    if options.rank_only:
        return rank_only(request.models, request.runs, request.memory, as_json=options.json)
    if options.dry_run:
        return _dry_run(request, options)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HrxError(f"--out {options.out} cannot be made: {error}. Give a directory that may be written.") from error
    with Ledger.open(request.path) as ledger:
        _refuse_damaged(ledger)
        bench = WorkerContext(request.models, request.memory)
        try:
            with finishing() as stop:
                if options.recheck:
                    return _recheck(request, ledger, bench, stop, options)
                planned = _carry_out(request, ledger, bench, stop, options)
        except Stopped as stopped:
            stop.number = stopped.number
        if stop.number is not None:
            return _interrupted(request, ledger, stop.number)
    return _report(planned.keys, request.path, options)


def _refuse_damaged(ledger: Ledger) -> None:
    if damage := ledger.damage():
        raise LedgerError(
            f"{ledger.path} is damaged ({damage}), so nothing is added to it. Save what can still be read with: "
            f"hrx merge {ledger.path} --into NEW.db, and go on with --ledger NEW.db."
        )


def _outlook(request: Request, finished: set[str], bench: WorkerContext) -> Outlook:
    """The whole plan, with the shares of other interpreters."""
    surveyed = survey(request.runs, finished, bench)
    troubles = [found.trouble for found in surveyed.values() if found.trouble]
    if troubles and len(request.models) == 1:
        raise ModelError(troubles[0])
    return sum((other.outlook() for other in request.elsewhere), outlook(request.runs, finished, surveyed))


def _dry_run(request: Request, options: argparse.Namespace) -> int:
    """Says what would be done, and with which settings; writes nothing."""
    finished: set[str] = set()
    if request.path.exists():
        with Ledger.open(request.path, create=False) as ledger:
            finished = ledger.finished()
    planned = _outlook(request, finished, WorkerContext(request.models, request.memory))
    if options.json:
        print(json.dumps({"settings": request.settings, "plan": planned.as_json()}))
        return Exit.DONE
    show(opening(planned, request.path))
    show("\n" + plan_text(planned, options.workers or 1, full=True))
    show("\nEffective settings:\n" + as_toml(request.settings))
    return Exit.DONE


def _carry_out(
    request: Request, ledger: Ledger, bench: WorkerContext, stop: Stop, options: argparse.Namespace
) -> Outlook:
    """Runs what is missing, here and elsewhere."""
    planned = _outlook(request, ledger.finished(), bench)
    if not options.json:
        print(opening(planned, request.path), file=sys.stderr)
        if planned.left():
            print(plan_text(planned, options.workers or 1, full=False), file=sys.stderr)
    if planned.left():
        settings = json.dumps(without_places(request.settings), sort_keys=True)
        ledger.write_audit(StoredAudit(datetime.now(UTC).isoformat(timespec="seconds"), __version__, settings))
    here = {run.key for run in request.runs}
    expected = _expected([run for run in planned.left() if run.key in here])
    progress = Progress(len(request.runs), expected)
    if expected:
        with closing(_crew(request, bench, options, len(expected))) as crew:
            execute(
                request.runs,
                request.models,
                ledger,
                crew,
                progress=lambda run, record: progress.step(run.key, _said(run, record)),
                wanted=request.wanted,
                notice=lambda sentence: print(sentence, file=sys.stderr),
                stopping=stop,
            )
    for other in request.elsewhere:
        if not stop():
            other.audit(stop)
    return planned


def _expected(left: Sequence[Planned]) -> dict[str, float]:
    """About how long each run takes; one that cannot run takes next to nothing, one without a probe the mean."""
    known = [run.seconds for run in left if run.seconds is not None]
    mean = sum(known) / len(known) if known else 1.0
    return {run.key: 1e-3 if run.state == "cannot run" else run.seconds or mean for run in left}


def _crew(request: Request, bench: WorkerContext, options: argparse.Namespace, tasks: int) -> Crew:
    if options.engine == "ray":
        from hrx.audit.runner.executors.ray import RayCrew

        bench.close()
        return RayCrew(request.models, request.memory, options.workers, options.gpus, options.address)
    size = min(options.workers or 1, tasks)
    if size == 1:
        return Here(bench)
    from hrx.audit.runner.executors.processes import Workers

    bench.close()  # the workers load it for themselves
    return Workers(request.models, request.memory // size, size)


def _said(run: Run, record: Record) -> str:
    return f"{run.identity.model} {run.dataset.name} {run.setting} {record['status']}"


def _interrupted(request: Request, ledger: Ledger, number: int) -> int:
    finished = ledger.finished()
    done = sum(run.key in finished for run in request.runs)
    print(
        f"hrx audit: stopped. {done} of {len(request.runs)} runs are in {request.path}. "
        "Repeat the command to go on where it stopped.",
        file=sys.stderr,
    )
    return signalled(number)


def _recheck(request: Request, ledger: Ledger, bench: WorkerContext, stop: Stop, options: argparse.Namespace) -> int:
    """Measures stored runs again; exit code 3 where one has other numbers now."""

    def told(found: Rechecked) -> None:
        if not options.json:
            show(_recheck_line(found))

    with closing(_crew(request, bench, options, options.recheck)) as crew:
        found = recheck(request.runs, ledger, crew, options.recheck, told=told, stopping=stop)
    codes = [other.audit(stop, f"--recheck={options.recheck}") for other in request.elsewhere if not stop()]
    if stop.number is not None:
        return signalled(stop.number)
    if not found and not codes:
        raise HrxError(f"{request.path} holds no scored run of this plan. Audit first, then --recheck.")
    same = sum(one.same for one in found)
    if options.json:
        print(json.dumps({"rechecked": len(found), "same": same, "runs": [_recheck_line(one) for one in found]}))
    else:
        show(f"{same} of {len(found)} stored runs have the same numbers.")
    return Exit.DONE if same == len(found) and not any(codes) else Exit.INCOMPLETE


def _recheck_line(found: Rechecked) -> str:
    run = found.run
    series = run.series.item if run.series else f"#{run.index}"
    named = f"{run.identity.model} {run.dataset.name} {series} {run.setting} seed {run.seed}"
    if found.trouble:
        return f"{named}: could not be measured again: {found.trouble}"
    more = f" and {len(found.differences) - 1} more columns" if len(found.differences) > 1 else ""
    return f"{named}: {'same' if found.same else f'DIFFERENT: {found.differences[0]}{more}'}"


def _report(keys: set[str], path: Path, options: argparse.Namespace) -> int:
    """Shows the runs of this audit, whatever else the ledger holds."""
    frame = read(path)
    frame = frame[frame["key"].isin(keys)]
    with Ledger.open(path, create=False) as ledger:
        summaries = summarise(frame, ledger.checks())
    pictures = heatmaps(path, options.out, keys)
    judged = judge_audit(options.gate, frame)
    if options.json:
        told: dict[str, Any] = {"ledger": str(path), "models": [summary.as_json() for summary in summaries]}
        if judged:
            told["gates"] = [
                {"model": one.model, "gate": one.judged.gate.text, "passed": one.judged.passed} for one in judged
            ]
        print(json.dumps(told, indent=1))
    else:
        show(render(summaries))
        for one in judged:
            show(_gate_line(one))
        show(f"\nLedger: {path}\nPictures: {len(pictures)} heat maps in {options.out}")
        show(f"The page: hrx report {path} --out {options.out / 'page'}")
    gates = exit_code(one.judged for one in judged)
    return Exit.INCOMPLETE if gates == Exit.DONE and (frame["status"] == FAILED).any() else gates


def _gate_line(one: ModelJudged) -> str:
    outcome = {True: "passed", False: "FAILED", None: "cannot be judged: no scored run has a value"}[one.judged.passed]
    return f"Gate {one.judged.gate.text} of {one.model}: {outcome}"
