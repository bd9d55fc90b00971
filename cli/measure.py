"""`hrx audit`, `verify`, `train` and `calibrate`: show what `hrx.api` found, as text or JSON."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hrx.api import checkpoints
from hrx.api import verify as verifying
from hrx.api.audit import (
    MOST_REASONS,
    AuditResult,
    estimate_audit,
    headline,
    perform,
    reasons,
    recheck_audit,
)
from hrx.api.progress import INTERRUPTED, duration
from hrx.audit.memory import GIBIBYTE
from hrx.audit.request import CalibrateRequest, TrainRequest, VerifyRequest
from hrx.audit.runner.plan import PlannedRun
from hrx.audit.runner.scheduler import Recheck
from hrx.cli.main import AuditCommand
from hrx.cli.terminal import check_targets, not_written, note, progress, show, terminal_width, write_all
from hrx.errors import Exit, HrxError, NotWritten
from hrx.options import as_settings, as_toml
from hrx.records.calibration import judge
from hrx.reports import render_table
from hrx.reports.calibration import calibration_json, render_calibration, write_calibration
from hrx.reports.contract import contract_junit, contract_markdown, contract_page, contract_text
from hrx.reports.gates import WORDS, describe_gate, gate_json
from hrx.reports.summary import worst_parity
from hrx.reports.text import counted, listed, number_or_none
from hrx.text import message as one_line


def audit(request: AuditCommand) -> int:
    """Run an audit, or what is asked for in its place; return the exit code."""
    if request.dry_run:
        return _dry_run(request)
    if request.recheck:
        return _recheck(request, request.recheck)
    result = perform(request, progress=progress, tell=not request.json)
    if result.keys:
        _show_result(result, request)
    if result.keys and not result.interrupted and not request.json:
        show(f"Heat map: {listed(map(str, result.figures)) or 'none, no run was scored'}")
    for sentence in result.notes:
        note(one_line(f"hrx audit: {sentence}"))
    return result.exit


def _show_result(result: AuditResult, request: AuditCommand) -> None:
    summaries, backbones, absent = result.models, result.backbones, result.without_runs
    if request.json:
        document: dict[str, Any] = {
            "ledger": str(result.ledger),
            "models": [summary.as_json() for summary in summaries],
        }
        if backbones:
            document["backbones"] = [one.as_json() for one in backbones]
        if absent:
            document["without_runs"] = absent
        if result.gates:
            document["gates"] = [{"model": one.model, **gate_json(one)} for one in result.gates]
        print(json.dumps(document, indent=1))
        return
    show(result.to_text(terminal_width(80), verbose=request.verbose).rstrip("\n") if summaries or not absent else "")
    for model, runs in list(absent.items())[:MOST_REASONS]:
        show(f"{model}: no verdict, none of its {counted(runs, 'planned run')} is stored.")
    if (more := len(absent) - MOST_REASONS) > 0:
        show(f"… and {counted(more, 'model')} more without a stored run; --json names all.")
    for judged in result.gates:
        outcome = WORDS[judged.outcome]
        show(f"Gate {judged.gate.text} of {judged.model}: {outcome}: {'; '.join(describe_gate(judged))}")
    show(f"\nLedger: {result.ledger}")


def _dry_run(request: AuditCommand) -> int:
    """Show what would be done, its cost, and the effective settings. Writes nothing."""
    planned, runs = estimate_audit(request, progress)
    if request.json:
        print(json.dumps({"settings": as_settings(planned), "plan": {"runs": [run._asdict() for run in runs]}}))
        return Exit.DONE
    show(headline(runs, request).partition("\n")[0])
    show("\n" + _plan_text(runs, request.workers or 1))
    show("\nEffective settings:\n" + as_toml(planned))
    return Exit.DONE


def _plan_text(plan: Sequence[PlannedRun], workers: int) -> str:
    """What is stored, what is to run and what cannot run, by model and by dataset, with the estimated cost.

    A setting without an estimate counts as the mean of the others.
    """
    models, datasets = dict.fromkeys(run.model for run in plan), dict.fromkeys(run.dataset for run in plan)
    states = {"stored": "stored", "to run": "to run", "cannot run": "not"}
    costs: list[tuple[str, ...]] = []
    for model in models:
        runs = [run for run in plan if run.model == model]
        by_state = Counter(run.state for run in runs)
        seconds = [run.seconds for run in runs if run.seconds is not None]
        memory = max((run.memory for run in runs if run.memory is not None), default=None)
        time = f"about {duration(sum(seconds) / len(seconds) * by_state['to run'] / workers)}" if seconds else "-"
        space = "-" if memory is None else f"about {memory * workers / GIBIBYTE:.1f} GiB"
        costs.append((model, str(len(runs)), *(str(by_state[state]) for state in states), time, space))  # type: ignore[index]
    counts: Counter[tuple[str, str, str]] = Counter((run.dataset, run.model, run.state) for run in plan)

    def cell(dataset: str, model: str) -> str:
        found = [(counts[dataset, model, state], states[state]) for state in ("to run", "stored", "cannot run")]
        return ", ".join(f"{number} {label}" for number, label in found if number) or "-"

    rows = [(dataset, *(cell(dataset, model) for model in models)) for dataset in datasets]
    notes = dict.fromkeys(f"No estimate for {run.model}: {run.note}" for run in plan if run.note)
    parts = (
        render_table(("model", "runs", "stored", "to run", "cannot run", "time", "memory"), costs).rstrip(),
        render_table(("dataset", *models), rows).rstrip(),
        reasons(plan),
        "\n".join(notes),
    )
    return "\n\n".join(part for part in parts if part)


def _recheck(request: AuditCommand, count: int) -> int:
    """Measure stored runs again; exit code 3 where the numbers of one differ."""

    def show_result(result: Recheck) -> None:
        if not request.json:
            show(_recheck_line(result))

    found = recheck_audit(request, count, progress, show_result)
    if found.ended:
        note(f"hrx audit: {found.ended}")
    elif request.json:
        lines = [*map(_recheck_line, found.results), *found.damaged]
        print(json.dumps({"rechecked": len(found.results), "same": found.same, "runs": lines}))
    else:
        for line in found.damaged:
            note(line)
        show(f"{found.same} of {len(found.results)} stored runs have the same numbers.")
    return found.exit


def _recheck_line(result: Recheck) -> str:
    run = result.run
    label = f"{run.identity.model} {run.dataset.name} {run.series_name} {run.setting} seed {run.seed}"
    if result.error:
        return f"{label}: could not be measured again: {result.error}"
    more = f" and {len(result.differences) - 1} more columns" if len(result.differences) > 1 else ""
    found = "same but for the order of nearly tied positions" if result.same else "DIFFERENT"
    return f"{label}: {f'{found}: {result.differences[0]}{more}' if result.differences else 'same'}"


def verify(request: VerifyRequest) -> int:
    """Show every check with its figure, or the contract; exit code 1 where one failed."""
    if request.contract:
        return _contract(request)
    if request.only or request.page or request.markdown or request.junit or request.budget is not None:
        raise HrxError(
            "--only, --page, --markdown, --junit and --budget belong to the contract. Add --contract, or drop them."
        )
    found = verifying.verify(request, progress)
    parity = worst_parity(found.checks)  # NaN where it was not measured
    if request.json:
        figures = [vars(check) | {"figure": number_or_none(check.figure)} for check in found.checks]
        about = {"model": found.model, "admitted": found.admitted, "official_call": found.official_call}
        print(json.dumps(about | {"parity": number_or_none(parity), "checks": figures}, indent=1))
        return found.exit
    rows = [
        (c.setting, c.check, "pass" if c.passed else "FAIL", f"{c.figure:.2g}", f"{c.limit:.2g}") for c in found.checks
    ]
    show(render_table(("setting", "check", "", "figure", "limit"), rows))
    worst = "" if math.isnan(parity) else f", worst parity {parity:.1e}"
    outcome = "admitted" if found.admitted else "NOT admitted"
    show(f"\n{found.model} ({found.library}) is {outcome} at these settings{worst}.")
    show(f"The forward was compared with {found.official_call}.")
    for setting in found.unchecked:
        show(f"{setting} was not checked: no series of {request.data} has a window for it.")
    for text in dict.fromkeys(f"{c.check} at {c.setting}: {c.note}." for c in found.checks if not c.passed):
        show(text)
    return found.exit


def _contract(request: VerifyRequest) -> int:
    made = {"--page": contract_page, "--markdown": contract_markdown, "--junit": contract_junit}
    files = {"--page": request.page, "--markdown": request.markdown, "--junit": request.junit}
    check_targets(files)
    found = verifying.verify_contract(request, progress)
    if request.json:
        print(json.dumps(found.as_json(), indent=1, allow_nan=False))
    else:
        show(contract_text(found, terminal_width(100)))
    return write_all("verify", files, {option: make(found) for option, make in made.items()}, found.exit)


def train(request: TrainRequest) -> int:
    """Say what was trained and what was not, and how to audit it."""
    found = checkpoints.train(request, progress)
    if found.ended:
        note(f"hrx train: {found.ended}")
        return found.exit
    total, trained = counted(found.planned, "model"), found.planned - len(found.failed)
    if found.audit:
        show(str(found.audit))
        show(f"Page: hrx report {found.audit.ledger} --out {request.out / 'audit' / 'page'}")
        for sentence in found.audit.notes:
            note(one_line(f"hrx train: {sentence}"))
    elif trained:
        series = "" if request.series == 3 else f" --series {request.series}"
        show(f"{counted(trained, 'trained model')} in {request.out}")
        show(f"Audit: hrx audit {request.out} --data {request.data}{series}")
    for name, why in found.failed.items():
        note(f"{name} is not trained: {why}")
    if found.failed:
        note(f"hrx train: {len(found.failed)} of {total} are not trained. Repeat the command to try them again.")
    return found.exit


def calibrate(request: CalibrateRequest) -> int:
    """Show and write the calibration; exit code 1 where a criterion fails."""
    try:
        found = checkpoints.calibrate(request, progress)
    except KeyboardInterrupt:
        progress.pause()
        note("hrx calibrate: stopped. Nothing was written; repeat the command to start again.")
        return INTERRUPTED
    if request.json:
        print(json.dumps(calibration_json(found), indent=1))
    else:
        show(render_calibration(found))
    code = Exit.DONE if all(one.passed for one in judge(found)) else Exit.GATE_FAILED
    progress.stage("drawing figures")
    try:
        written = write_calibration(found, request.out)
    except NotWritten as error:
        return not_written("calibrate", error, code)
    if not request.json:
        show(f"\nTables and {sum(path.suffix == '.png' for path in written)} figures: {request.out}")
    return code
