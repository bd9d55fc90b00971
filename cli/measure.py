"""`hrx verify`, `train` and `calibrate`: shows what `hrx.api.checkpoints` found."""

import json
import math
from collections.abc import Sequence

from hrx.api import checkpoints
from hrx.api.progress import INTERRUPTED
from hrx.audit.admission.checks import Check
from hrx.audit.request import CalibrateRequest, TrainRequest, VerifyRequest
from hrx.cli.terminal import not_written, note, progress, show
from hrx.errors import Exit, NotWritten
from hrx.records.calibration import judge
from hrx.reports import render_table
from hrx.reports.audit_summary import render_audit
from hrx.reports.calibration import calibration_json, render_calibration, write_calibration
from hrx.reports.text import counted, number_or_none


def verify(request: VerifyRequest) -> int:
    """Show every check with its figure; exit code 1 where one failed."""
    found = checkpoints.verify(request, progress)
    if request.json:
        figures = [vars(check) | {"figure": number_or_none(check.figure)} for check in found.checks]
        about = {"model": found.model, "admitted": found.admitted, "official_call": found.official_call}
        print(json.dumps(about | {"parity": number_or_none(found.parity), "checks": figures}, indent=1))
        return found.exit
    show(_table(found.checks))
    worst = "" if math.isnan(found.parity) else f", worst parity {found.parity:.1e}"
    outcome = "admitted" if found.admitted else "NOT admitted"
    show(f"\n{found.model} ({found.library}) is {outcome} at these settings{worst}.")
    show(f"The forward was compared with {found.official_call}.")
    for setting in found.unchecked:
        show(f"{setting} was not checked: no series of {request.data} has a window for it.")
    for text in dict.fromkeys(f"{c.check} at {c.setting}: {c.note}." for c in found.checks if not c.passed):
        show(text)
    return found.exit


def _table(checks: Sequence[Check]) -> str:
    rows = [(c.setting, c.check, "pass" if c.passed else "FAIL", f"{c.figure:.2g}", f"{c.limit:.2g}") for c in checks]
    return render_table(("setting", "check", "", "figure", "limit"), rows)


def train(request: TrainRequest) -> int:
    """Say what was trained and what was not, and how to audit it."""
    found = checkpoints.train(request, progress)
    if found.ended:
        note(f"hrx train: {found.ended}")
        return found.exit
    total, trained = counted(found.planned, "model"), found.planned - len(found.failed)
    if found.audit:
        show(f"{render_audit(found.audit.summaries, found.audit.backbones)}\nLedger: {found.audit.ledger}")
        show(f"Page: hrx report {found.audit.ledger} --out {request.out / 'audit' / 'page'}")
        if found.audit.ended:
            note(f"hrx train: {found.audit.ended}")
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
