"""`hrx train`: trains backbones on the official splits of a benchmark; a preset audits them afterwards too."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hrx.adapters.device import resolve_device
from hrx.audit.runner.plan import parse_settings
from hrx.audit.training.backbones import NAMES, check_backbone
from hrx.audit.training.loop import Recipe
from hrx.audit.training.train import TrainingTask, is_trained, tasks, train
from hrx.cli.from_python import run_audit
from hrx.cli.main import INTERRUPTED
from hrx.cli.progress import progress
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
    device = resolve_device(options.device)
    planned = _understand(options)
    check_directory(options.out, "--out")
    missing = [task for task in planned if not is_trained(task, options.out)]
    done = len(planned) - len(missing)
    note(f"{counted(len(planned), 'model')} in {options.out}: {len(missing)} to train, {done} done")
    progress.expect(len(planned), {task.name: _work(task) for task in missing}, "models")
    try:
        for task in missing:
            progress.time_from_here()
            progress.say(task.name)
            content = train(task, options.out, device)
            best = content["best_epoch"]
            error = content["validation_mse"][best - 1]
            progress.step(task.name, f"{task.name}: validation MSE {error:.3f}, best after epoch {best}")
    except KeyboardInterrupt:
        progress.pause()
        note("hrx train: stopped. Complete models stay; repeat the command to continue.")
        return INTERRUPTED
    progress.pause()
    if options.preset:
        return _audit(options)
    series = "" if options.series == 3 else f" --series {options.series}"
    show(f"{counted(len(planned), 'trained model')} in {options.out}")
    show(f"Audit: hrx audit {options.out} --data {options.data}{series}")
    return Exit.DONE


def _understand(options: argparse.Namespace) -> list[TrainingTask]:
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
    return tasks(
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


def _audit(options: argparse.Namespace) -> int:
    """Audits all models in --out under the paper's effort, and shows what `hrx audit` shows of them."""
    out: Path = options.out / "audit"
    summary = run_audit(str(options.out), data=options.data, out=out, effort="paper", device=options.device)
    show(str(summary))
    show(f"Page: hrx report {summary.ledger} --out {out / 'page'}")
    return int(summary.exit)
