"""`hrx train`: trains backbones on series without their test regions; a preset audits them afterwards too."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hrx.adapters.device import resolve_device
from hrx.api.run_audit import run_audit
from hrx.audit.memory import GIBIBYTE
from hrx.audit.runner.plan import parse_settings
from hrx.audit.runner.processes import start_server
from hrx.audit.runner.scheduler import ListQueue, run_tasks
from hrx.audit.runner.worker import ExecutorLost, Task, TaskFailed, TaskResult, WorkerSettings
from hrx.audit.training.backbones import NAMES, check_backbone
from hrx.audit.training.loop import Recipe
from hrx.audit.training.plan import TrainingPlan, plan_training
from hrx.audit.training.train import (
    TrainedFiles,
    TrainingTask,
    TrainModel,
    is_trained,
    libraries,
    publish,
    worker_tasks,
)
from hrx.cli.main import INTERRUPTED
from hrx.cli.progress import progress
from hrx.cli.request import local_workers, open_executor
from hrx.cli.terminal import note, show
from hrx.errors import Exit, HrxError, unknown
from hrx.files import check_directory
from hrx.gift_eval import open_source
from hrx.reports.text import counted

DEFAULT_SETTINGS = "96x24,96x96,336x96"
DEFAULT_SEEDS = 3


@dataclass(frozen=True)
class Preset:
    """A selection of backbones, sets and settings that is trained and audited by one command."""

    backbones: tuple[str, ...]
    datasets: tuple[str, ...]
    settings: str
    seeds: int
    recipe: Recipe
    note: str
    """What differs from the defaults, as a sentence."""
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


PRESETS = {
    "paper-small": Preset(
        ("Linear", "CNN", "DLinear", "PatchTST"),
        ("ETTh1", "ETTh2"),
        DEFAULT_SETTINGS,
        2,
        Recipe(batches=100),
        "Fewer steps than the defaults, for two cores: an epoch is 100 random batches instead of about 270, and "
        "PatchTST has 16 hidden units, 4 heads and a feed-forward width of 128.",
        {"PatchTST": {"hidden_size": 16, "n_heads": 4, "linear_hidden_size": 128}},
    )
}


def run(options: argparse.Namespace) -> int:
    """Trains what is missing in --out; returns the exit code."""
    resolve_device(options.device)
    if local_workers(options):
        start_server()
    planned = _understand(options)
    check_directory(options.out, "--out")
    missing = [task for task in planned.tasks if not is_trained(task, options.out)]
    total, done = counted(len(planned.tasks), "model"), len(planned.tasks) - len(missing)
    note("\n".join([*planned.refused, f"{total} in {options.out}: {len(missing)} to train, {done} done"]))
    progress.expect(len(planned.tasks), {task.name: _work(task) for task in missing}, "models")
    try:
        failed = _train(missing, options) if missing else {}
    except (KeyboardInterrupt, ExecutorLost) as error:
        progress.pause()
        lost = isinstance(error, ExecutorLost)
        note(f"hrx train: {error if lost else 'stopped.'} Complete models stay; repeat the command to continue.")
        return Exit.INCOMPLETE if lost else INTERRUPTED
    progress.pause()
    trained = len(planned.tasks) - len(failed)
    code = _conclude(trained, options) if trained else Exit.DONE
    for name, why in failed.items():
        note(f"{name} is not trained: {why}")
    if failed:
        note(f"hrx train: {len(failed)} of {total} are not trained. Repeat the command to try them again.")
    return code or (Exit.INCOMPLETE if failed else Exit.DONE)


def _train(missing: Sequence[TrainingTask], options: argparse.Namespace) -> dict[str, str]:
    """Trains and writes models; returns why each of the others has none, by name."""
    planned = {task.name: task for task in missing}
    failed: dict[str, str] = {}
    improving: list[str] = []

    def started(task: Task) -> None:
        assert isinstance(task, TrainModel)
        progress.time_from_here()
        progress.say(task.name)

    def finished(task: Task, result: TaskResult) -> None:
        assert isinstance(task, TrainModel)
        if isinstance(result, TrainedFiles):
            content = publish(planned[task.name], result, options.out)
            best = content["best_epoch"]
            error = content["validation_mse"][best - 1]
            if best == content["epochs"]:
                improving.append(task.name)
            progress.step(task.name, f"{task.name}: validation MSE {error:.3f}, best after epoch {best}")
            return
        assert isinstance(result, TaskFailed)
        failed[task.name] = result.shown or result.reason
        progress.step(task.name, f"{task.name}: not trained")

    settings = WorkerSettings((), GIBIBYTE, options.device, libraries(task.backbone for task in missing))
    with closing(open_executor(settings, options, len(missing))) as executor:
        run_tasks(ListQueue(worker_tasks(missing), finished), executor, on_start=started)
    if improving:
        progress.pause()
        advice = "" if options.preset else ": raise --epochs or --learning-rate, with another --out"
        share = f"{len(improving)} of {counted(len(missing) - len(failed), 'model')}"
        note(f"{share} had the lowest validation error in the last epoch and may improve further{advice}.")
    return failed


def _conclude(trained: int, options: argparse.Namespace) -> int:
    """Audits the models of a preset, or says how to audit those that are trained."""
    if options.preset:
        return _audit(options)
    series = "" if options.series == 3 else f" --series {options.series}"
    show(f"{counted(trained, 'trained model')} in {options.out}")
    show(f"Audit: hrx audit {options.out} --data {options.data}{series}")
    return Exit.DONE


def _understand(options: argparse.Namespace) -> TrainingPlan:
    """Checks the options and plans; nothing is written."""
    preset = _preset(options)
    names = list(preset.backbones) if preset else options.backbones
    if not names:
        raise HrxError(f"No backbone is given. Known: {', '.join(NAMES)}. Or give --preset {next(iter(PRESETS))}.")
    depths = tuple(options.depth or ())
    for name in names:
        check_backbone(name, depths)
    settings = parse_settings(preset.settings if preset else options.settings or DEFAULT_SETTINGS)
    datasets = open_source(options.data)
    if preset:
        found = {dataset.name: dataset for dataset in datasets}
        if absent := [name for name in preset.datasets if name not in found]:
            raise HrxError(f"{options.data} lacks {' and '.join(absent)}, which --preset {options.preset} trains on.")
        datasets = [found[name] for name in preset.datasets]
        note(preset.note)
    given = Recipe(options.learning_rate or Recipe.learning_rate, epochs=options.epochs, batches=options.batches)
    return plan_training(
        names,
        datasets,
        settings,
        depths=depths,
        seeds=preset.seeds if preset else options.seeds or DEFAULT_SEEDS,
        series=options.series,
        recipe=preset.recipe if preset else given,
        arguments=preset.arguments if preset else {},
    )


def _preset(options: argparse.Namespace) -> Preset | None:
    """The preset that is asked for; refuses options that it decides itself."""
    if options.preset is None:
        return None
    if options.preset not in PRESETS:
        raise HrxError(unknown("preset", options.preset, PRESETS))
    decided = {
        "BACKBONE": options.backbones,
        "--settings": options.settings,
        "--seeds": options.seeds,
        "--depth": options.depth,
        "--batches": options.batches,
        "--learning-rate": options.learning_rate,
        "--epochs": options.epochs != Recipe.epochs,
    }
    if given := [name for name, value in decided.items() if value]:
        raise HrxError(f"--preset {options.preset} decides {given[0]} itself. Drop {given[0]}, or drop --preset.")
    return PRESETS[options.preset]


def _work(task: TrainingTask) -> float:
    """Relative time of a training; only the proportions matter, for the remaining time."""
    slow = {"Linear": 1.0, "CNN": 8.0, "DLinear": 3.0, "NLinear": 3.0}.get(task.backbone, 30.0)
    return slow * task.setting.lookback


def _as_option(seconds: float) -> str:
    """A time as `--timeout` takes it: at most six digits before the point."""
    return f"{seconds:.3f}s" if seconds < 1e6 else f"{seconds / 3600:.0f}h"


def _audit(options: argparse.Namespace) -> int:
    """Audits all models in --out under the paper's effort, and shows what `hrx audit` shows of them."""
    out: Path = options.out / "audit"
    engine = {name: getattr(options, name) for name in ("workers", "engine", "address", "gpus", "device")}
    engine["timeout"] = _as_option(options.timeout)
    summary = run_audit(str(options.out), data=options.data, out=out, effort="paper", **engine)
    show(str(summary))
    show(f"Page: hrx report {summary.ledger} --out {out / 'page'}")
    return int(summary.exit)
