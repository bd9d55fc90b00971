"""What is trained: backbones × series × settings × depths × seeds, each published as a directory of its own.

A directory appears under its name when it is complete, so the same command continues where it stopped.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from hrx import __version__
from hrx.adapters.backbones import OWN
from hrx.adapters.neuralforecast_directory import FAMILY as NEURALFORECAST
from hrx.adapters.registry import families
from hrx.adapters.trained_directory import TRAINING
from hrx.audit.runner.plan import Setting
from hrx.audit.training import backbones
from hrx.audit.training.loop import Recipe, cut_splits, fit, learning_rate
from hrx.errors import HrxError, NotWritten
from hrx.files import make_directory, read_json, reason, shown_path
from hrx.gift_eval import Dataset, Series, spaced


@dataclass(frozen=True)
class TrainingTask:
    """One model to train."""

    backbone: str
    series: Series
    several: bool
    """Whether its dataset has several series, so that the name says which."""
    setting: Setting
    depth: int | None
    seed: int
    recipe: Recipe
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the library's class that differ from its defaults."""

    @property
    def name(self) -> str:
        """The name of its directory, which is also that of the model in records."""
        depth = [f"depth{self.depth}"] if self.depth else []
        item = [self.series.item] if self.several else []
        parts = [self.backbone, *depth, self.series.dataset, *item, str(self.setting), f"seed{self.seed}"]
        return "-".join(parts).replace(os.sep, "_")

    @property
    def stated(self) -> dict[str, Any]:
        """Everything that decides the weights, as `training.json` states it."""
        split = self.series.official
        return {
            "backbone": self.backbone,
            "depth": self.depth,
            "arguments": dict(self.arguments),
            "dataset": self.series.dataset,
            "series": self.series.item,
            "series_fingerprint": self.series.fingerprint,
            "lookback": self.setting.lookback,
            "horizon": self.setting.horizon,
            "seed": self.seed,
            "training_rows": split and split.train,
            "validation_rows": split and split.test - split.train,
            "loss": "mean squared error",
            "optimiser": "Adam",
            **asdict(self.recipe),
            "learning_rates": [learning_rate(self.recipe, epoch + 1) for epoch in range(self.recipe.epochs)],
        }


def tasks(
    names: Sequence[str],
    datasets: Iterable[Dataset],
    settings: Sequence[Setting],
    *,
    depths: Sequence[int],
    seeds: int,
    series: int,
    recipe: Recipe,
    arguments: Mapping[str, Mapping[str, Any]],
) -> list[TrainingTask]:
    """Every model to train; raises on a series without an official split or too short for a setting."""
    chosen: list[tuple[Series, bool]] = []
    for dataset in datasets:
        if dataset.damage:
            raise HrxError(dataset.damage)
        chosen += [(dataset.read(index), dataset.count > 1) for index in spaced(dataset.count, series)]
    for one, _ in chosen:
        for setting in settings:
            cut_splits(one, setting.lookback, setting.horizon)
    return [
        TrainingTask(name, one, several, setting, depth, seed, recipe, arguments.get(name, {}))
        for one, several in chosen
        for setting in settings
        for name in dict.fromkeys(names)
        for depth in (depths or (None,))
        for seed in range(seeds)
    ]


def is_trained(task: TrainingTask, out: Path) -> bool:
    """Whether its directory exists; raises where it was trained under other settings."""
    file = out / task.name / TRAINING
    if not os.path.lexists(out / task.name):
        return False
    try:
        found = read_json(file)
        other = [name for name, value in task.stated.items() if found[name] != value]
    except (HrxError, ValueError, LookupError, TypeError, OSError) as error:
        raise HrxError(
            f"{shown_path(file)} is not a file of hrx train. Remove its directory, or give another --out."
        ) from error
    if other:
        raise HrxError(
            f"{shown_path(file)} has {other[0]} {found[other[0]]!r}, not {task.stated[other[0]]!r}. "
            "Give another --out, or remove that directory."
        )
    return True


def train(task: TrainingTask, out: Path, device: torch.device) -> dict[str, Any]:
    """Trains one model and publishes its directory; returns the content of its `training.json`."""
    splits = cut_splits(task.series, task.setting.lookback, task.setting.horizon)
    size = (task.setting.lookback, task.setting.horizon)
    module = backbones.build(task.backbone, *size, task.depth, task.seed, task.arguments)
    fitted = fit(module, splits, task.recipe, task.seed, device)
    library = "" if task.backbone in OWN else families()[NEURALFORECAST].versions
    content = task.stated | {
        "best_epoch": fitted.best_epoch,
        "validation_mse": fitted.validation_mse,
        "train_mse": fitted.train_mse,
        "library": library,
        "torch_version": torch.__version__,
        "hrx_version": __version__,
        "device": device.type,
    }
    config = {name: content[name] for name in ("backbone", "lookback", "horizon", "depth")}
    make_directory(out)
    scratch = Path(tempfile.mkdtemp(prefix=".training-", dir=out))
    try:
        backbones.save(module, config, scratch / "model")
        (scratch / "model" / TRAINING).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.rename(scratch / "model", out / task.name)
    except OSError as error:
        raise NotWritten(f"{shown_path(out / task.name)} cannot be written: {reason(error)}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return content
