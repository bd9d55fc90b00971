"""Jobs beside audits: training models (`train`), checking the instrument itself (`calibrate`)."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hrx.adapters.wrapped import resolve_device
from hrx.api.audit import AuditResult, perform
from hrx.api.audit_plan import open_executor
from hrx.api.progress import INTERRUPTED, Progress
from hrx.audit.attribution import find_estimator
from hrx.audit.calibration import BACKBONES, FULL, QUICK, CalibrationTask, check_backbones, tasks
from hrx.audit.calibration import calibrate as run_calibration
from hrx.audit.memory import GIBIBYTE
from hrx.audit.request import AuditRequest, CalibrateRequest, TrainRequest, local_workers
from hrx.audit.runner.plan import parse_settings
from hrx.audit.runner.processes import start_server
from hrx.audit.runner.scheduler import in_order, run_tasks
from hrx.audit.runner.worker import ExecutorLost, Task, TaskFailed, WorkerSettings
from hrx.audit.training import NAMES, Recipe, check_backbone
from hrx.audit.training.train import (
    TrainedFiles,
    TrainingPlan,
    TrainingTask,
    TrainModel,
    is_trained,
    libraries,
    plan_training,
    publish,
    worker_tasks,
)
from hrx.errors import Exit, HrxError, unknown
from hrx.files import check_directory
from hrx.gift_eval import open_source
from hrx.records.calibration import Calibration, ChannelResult, ModelResult
from hrx.reports.text import counted

DEFAULT_SETTINGS = "96x24,96x96,336x96"
DEFAULT_SEEDS = 3


class Preset(NamedTuple):
    """Options, datasets and arguments of backbones that are trained and audited by one command."""

    options: Mapping[str, Any]
    datasets: tuple[str, ...]
    arguments: Mapping[str, Mapping[str, Any]]
    note: str
    """What differs from the defaults, as a sentence."""


PRESETS = {
    "paper-small": Preset(
        {"backbones": ("Linear", "CNN", "DLinear", "PatchTST"), "seeds": 2, "batches": 100},
        ("ETTh1", "ETTh2"),
        {"PatchTST": {"hidden_size": 16, "n_heads": 4, "linear_hidden_size": 128}},
        "Fewer steps than the defaults, for two cores: an epoch is 100 random batches instead of about 270, and "
        "PatchTST has 16 hidden units, 4 heads and a feed-forward width of 128.",
    )
}
_DECIDED = ("backbones", "settings", "seeds", "depth", "batches", "learning_rate", "epochs")
"""Options that a preset decides."""


@dataclass(frozen=True)
class Trained:
    """What a training made."""

    planned: int
    failed: Mapping[str, str]
    """Why each of the others has no model, by name."""
    exit: int
    ended: str = ""
    """Why it ended early, as a sentence."""
    audit: AuditResult | None = None
    """That of the models of a preset."""


def train(request: TrainRequest, progress: Progress) -> Trained:
    """Train what is missing in `--out`, and audit the models of a preset."""
    resolve_device(request.device)
    if local_workers(request):
        start_server()
    planned = _plan_training(request, progress)
    check_directory(request.out, "--out")
    missing = [task for task in planned.tasks if not is_trained(task, request.out)]
    total, done = counted(len(planned.tasks), "model"), len(planned.tasks) - len(missing)
    progress.note("\n".join([*planned.refused, f"{total} in {request.out}: {len(missing)} to train, {done} done"]))
    # Relative times; only the proportions matter.
    slow = {"Linear": 1.0, "CNN": 8.0, "DLinear": 3.0, "NLinear": 3.0}
    expected = {task.name: slow.get(task.backbone, 30.0) * task.setting.lookback for task in missing}
    progress.expect(len(planned.tasks), expected, "models")
    try:
        failed = _train(missing, request, progress) if missing else {}
    except (KeyboardInterrupt, ExecutorLost) as error:
        progress.pause()
        lost = isinstance(error, ExecutorLost)
        ended = f"{error if lost else 'stopped.'} Complete models stay; repeat the command to continue."
        return Trained(len(planned.tasks), {}, Exit.INCOMPLETE if lost else INTERRUPTED, ended)
    progress.pause()
    code: int = Exit.INCOMPLETE if failed else Exit.DONE
    audited = None
    if request.preset and len(failed) < len(planned.tasks):
        names = ("data", "device", "workers", "timeout", "engine", "address", "gpus")
        same = {name: getattr(request, name) for name in names}
        asked = AuditRequest(models=(str(request.out),), out=request.out / "audit", effort="paper", **same)
        audited = perform(asked, progress=progress)
    return Trained(len(planned.tasks), failed, (audited.exit if audited else 0) or code, audit=audited)


def _train(missing: Sequence[TrainingTask], options: TrainRequest, progress: Progress) -> dict[str, str]:
    """Train and write models; return why each of the others has none, by name."""
    planned = {task.name: task for task in missing}
    failed: dict[str, str] = {}
    improving: list[str] = []

    def started(task: Task) -> None:
        assert isinstance(task, TrainModel)
        progress.time_from_here()
        progress.say(task.name)

    settings = WorkerSettings({}, GIBIBYTE, options.device, libraries(task.backbone for task in missing))
    with closing(open_executor(settings, options, len(missing))) as executor:
        for task, result in run_tasks(in_order(worker_tasks(missing)), executor, on_start=started):
            assert isinstance(task, TrainModel)
            if isinstance(result, TaskFailed):
                failed[task.name] = result.shown or result.reason
                progress.step(task.name, f"{task.name}: not trained")
                continue
            assert isinstance(result, TrainedFiles)
            content = publish(planned[task.name], result, options.out)
            best = content["best_epoch"]
            error = content["validation_mse"][best - 1]
            if best == content["epochs"]:
                improving.append(task.name)
            progress.step(task.name, f"{task.name}: validation MSE {error:.3f}, best after epoch {best}")
    if improving:
        progress.pause()
        advice = "" if options.preset else ": raise --epochs or --learning-rate, with another --out"
        share = f"{len(improving)} of {counted(len(missing) - len(failed), 'model')}"
        progress.note(f"{share} had the lowest validation error in the last epoch and may improve further{advice}.")
    return failed


def _plan_training(request: TrainRequest, progress: Progress) -> TrainingPlan:
    """Check the request and plan; nothing is written."""
    options, preset = request, None
    if request.preset is not None:
        if (preset := PRESETS.get(request.preset)) is None:
            raise HrxError(unknown("preset", request.preset, PRESETS))
        default = TrainRequest(data=request.data)
        if given := [name for name in _DECIDED if getattr(request, name) != getattr(default, name)]:
            name = "BACKBONE" if given[0] == "backbones" else f"--{given[0].replace('_', '-')}"
            raise HrxError(f"--preset {request.preset} decides {name} itself. Drop {name}, or drop --preset.")
        options = replace(request, **preset.options)
    if not options.backbones:
        raise HrxError(f"No backbone is given. Known: {', '.join(NAMES)}. Or give --preset {next(iter(PRESETS))}.")
    for name in options.backbones:
        check_backbone(name, options.depths)
    settings = parse_settings(options.settings or DEFAULT_SETTINGS)
    datasets = open_source(options.data)
    if preset:
        found = {dataset.name: dataset for dataset in datasets}
        if absent := [name for name in preset.datasets if name not in found]:
            raise HrxError(f"{options.data} lacks {' and '.join(absent)}, which --preset {options.preset} trains on.")
        datasets = [found[name] for name in preset.datasets]
        progress.note(preset.note)
    return plan_training(
        options.backbones,
        datasets,
        settings,
        depths=options.depths,
        seeds=options.seeds or DEFAULT_SEEDS,
        series=options.series,
        recipe=Recipe(options.learning_rate or Recipe.learning_rate, epochs=options.epochs, batches=options.batches),
        arguments=preset.arguments if preset else {},
    )


def calibrate(request: CalibrateRequest, progress: Progress) -> Calibration:
    """Train models on constructed series and measure them; `hrx.records.calibration.judge` says what passed."""
    backbones = check_backbones([name.strip() for name in request.backbones.split(",") if name.strip()])
    find_estimator(request.estimator)
    check_directory(request.out, "--out")
    effort = FULL if request.full else QUICK
    effort = replace(effort, seeds=request.seeds or effort.seeds)
    expected = {task.label: BACKBONES[task.backbone].seconds for task in tasks(backbones, effort)}

    def started(task: CalibrationTask) -> None:
        progress.time_from_here()
        progress.say(task.label)

    def finished(task: CalibrationTask, result: ModelResult | ChannelResult) -> None:
        progress.step(task.label, task.label if result.learned else f"{task.label}, not learned")

    progress.note(f"{counted(len(expected), 'model')} to train and measure on the CPU ({effort.name} calibration)")
    progress.expect(len(expected), expected, "models")
    return run_calibration(
        backbones,
        estimator=request.estimator,
        effort=effort,
        recipe=request.recipe,
        on_start=started,
        progress=finished,
    )
