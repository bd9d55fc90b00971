"""`hrx calibrate`: the instrument against constructed ground truth, and a verdict on the instrument itself."""

import argparse
import json
import sys
from dataclasses import replace

from hrx.audit.attribution import find_estimator
from hrx.audit.calibration.calibration import FULL, QUICK, CalibrationTask, tasks
from hrx.audit.calibration.calibration import calibrate as run
from hrx.audit.calibration.training import BACKBONES, RECIPES, check_backbones
from hrx.cli.main import INTERRUPTED
from hrx.cli.progress import progress
from hrx.cli.terminal import not_written, show
from hrx.errors import Exit, NotWritten
from hrx.files import check_directory
from hrx.records.calibration import ModelResult, judge
from hrx.reports.calibration import calibration_json, render_calibration, write_calibration
from hrx.reports.text import counted


def calibrate(options: argparse.Namespace) -> int:
    """Trains, measures, writes and shows; exit code 1 where a criterion fails."""
    backbones = check_backbones([name.strip() for name in options.backbones.split(",") if name.strip()])
    find_estimator(options.estimator)
    check_directory(options.out, "--out")
    effort = FULL if options.full else QUICK
    effort = replace(effort, seeds=options.seeds or effort.seeds)
    expected = {task.label: BACKBONES[task.backbone].seconds for task in tasks(backbones, effort)}

    def say_start(task: CalibrationTask) -> None:
        progress.time_from_here()
        progress.say(task.label)

    def show_progress(task: CalibrationTask, result: ModelResult) -> None:
        progress.step(task.label, task.label if result.learned else f"{task.label}, not learned")

    try:
        print(
            f"{counted(len(expected), 'model')} to train and measure on the CPU ({effort.name} calibration)",
            file=sys.stderr,
        )
        progress.expect(len(expected), expected, "models")
        calibration = run(
            backbones,
            estimator=options.estimator,
            effort=effort,
            recipe=RECIPES[options.recipe],
            on_start=say_start,
            progress=show_progress,
        )
    except KeyboardInterrupt:
        progress.pause()
        print("hrx calibrate: stopped. Nothing was written; repeat the command to start again.", file=sys.stderr)
        return INTERRUPTED
    if options.json:
        print(json.dumps(calibration_json(calibration), indent=1))
    else:
        show(render_calibration(calibration))
    code = Exit.DONE if all(one.passed for one in judge(calibration)) else Exit.GATE_FAILED
    progress.stage("drawing figures")
    try:
        written = write_calibration(calibration, options.out)
    except NotWritten as error:
        return not_written("calibrate", error, code)
    if not options.json:
        show(f"\nTables and {sum(path.suffix == '.png' for path in written)} figures: {options.out}")
    return code
