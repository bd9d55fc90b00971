"""One training: as a task of a worker, and as the directory that its result becomes.

A worker trains and returns the files of the model. This process writes them, because a worker of a cluster has another
disk. A directory appears under its name when it is complete, so the same command continues where it stopped.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hrx import __version__
from hrx.adapters.checkpoint import TRAINING
from hrx.adapters.families import families
from hrx.adapters.formats.backbones import OWN
from hrx.adapters.formats.neuralforecast_directory import FAMILY as NEURALFORECAST
from hrx.audit.runner.plan import ModelKey, Setting
from hrx.audit.runner.worker import WorkerContext
from hrx.audit.torch_state import one_thread
from hrx.audit.training import backbones
from hrx.audit.training.loop import Fitted, PastRows, Recipe, cut_windows, fit, learning_rate, missing_shares, past_rows
from hrx.errors import HrxError, NotWritten
from hrx.files import make_directory, read_json, reason, shown_path
from hrx.gift_eval import Series
from hrx.gift_eval.windows import scaling_end, standardise, test_start, validation_start
from hrx.text import clean

TRAININGS = ModelKey("hrx train", "")
"""All trainings share the worker processes: a process of its own would import the library again for each."""


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
        return clean("-".join(parts)).replace(os.sep, "_")

    @property
    def stated(self) -> dict[str, Any]:
        """Everything that decides the weights, as `training.json` states it."""
        validation = validation_start(self.series, self.setting.horizon)
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
            "training_rows": validation,
            "validation_rows": test_start(self.series, self.setting.horizon) - validation,
            "loss": "mean squared error",
            "optimiser": "Adam",
            **asdict(self.recipe),
            "learning_rates": [learning_rate(self.recipe, epoch + 1) for epoch in range(self.recipe.epochs)],
        }


class TrainedFiles(NamedTuple):
    """A trained model as a worker returns it."""

    files: Mapping[str, bytes]
    """The content of each file of its directory, by name."""
    fitted: Fitted
    device: str


@dataclass(frozen=True)
class TrainModel:
    """Trains one model. It holds no value of the test region, so that none can enter the weights."""

    name: str
    backbone: str
    rows: PastRows
    setting: Setting
    depth: int | None
    seed: int
    recipe: Recipe
    arguments: Mapping[str, Any]
    model: ModelKey = TRAININGS

    def run_in(self, context: WorkerContext) -> TrainedFiles:
        return self.run_on(context.device)

    def run_on(self, device: torch.device) -> TrainedFiles:
        """Trains on one thread: the weights are the same for any number of workers and of cores."""
        size = self.setting.lookback, self.setting.horizon
        with one_thread():
            module = backbones.build(self.backbone, *size, self.depth, self.seed, self.arguments)
            fitted = fit(module, cut_windows(self.rows, *size), self.recipe, self.seed, device)
            with tempfile.TemporaryDirectory() as folder:
                config = {"backbone": self.backbone, "lookback": size[0], "horizon": size[1], "depth": self.depth}
                backbones.save(module, config, Path(folder) / "model")
                files = {file.name: file.read_bytes() for file in (Path(folder) / "model").iterdir()}
        return TrainedFiles(files, fitted, device.type)


def worker_tasks(planned: Iterable[TrainingTask]) -> list[TrainModel]:
    """The tasks for workers; those of one series share its values."""
    rows: dict[tuple[str, int], PastRows] = {}
    found = []
    for one in planned:
        place = one.series.fingerprint, one.setting.horizon
        if place not in rows:
            rows[place] = past_rows(one.series, one.setting.horizon)
        more = one.setting, one.depth, one.seed, one.recipe, one.arguments
        found.append(TrainModel(one.name, one.backbone, rows[place], *more))
    return found


def libraries(names: Iterable[str]) -> str:
    """The libraries that train these backbones with their versions, beside torch."""
    return "" if all(name in OWN for name in names) else families()[NEURALFORECAST].versions


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


def publish(task: TrainingTask, trained: TrainedFiles, out: Path) -> dict[str, Any]:
    """Writes the directory of a trained model; returns the content of its `training.json`."""
    fitted, end = trained.fitted, scaling_end(task.series, task.setting.horizon)
    scale = standardise(task.series.values, end)
    content = task.stated | {
        "scaling_rows": end,
        "mean": scale.mean,
        "std": scale.std,
        "missing": missing_shares(task.series, task.setting.horizon)._asdict(),
        "best_epoch": fitted.best_epoch,
        "validation_mse": fitted.validation_mse,
        "train_mse": fitted.train_mse,
        "library": libraries([task.backbone]),
        "torch_version": torch.__version__,
        "hrx_version": __version__,
        "device": trained.device,
    }
    files = {**trained.files, TRAINING: (json.dumps(content, indent=1) + "\n").encode()}
    make_directory(out)
    scratch = Path(tempfile.mkdtemp(prefix=".training-", dir=out))
    try:
        (scratch / "model").mkdir()
        for name, data in files.items():
            (scratch / "model" / name).write_bytes(data)
        os.rename(scratch / "model", out / task.name)
    except OSError as error:
        if not is_trained(task, out):  # another command may have trained it meanwhile
            raise NotWritten(f"{shown_path(out / task.name)} cannot be written: {reason(error)}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return content


def train(task: TrainingTask, out: Path, device: torch.device) -> dict[str, Any]:
    """Trains one model in this process and writes its directory; returns the content of its `training.json`."""
    (one,) = worker_tasks([task])
    return publish(task, one.run_on(device), out)
