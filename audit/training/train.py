"""Training of backbones on series before their test regions: which models, as tasks of workers, and their directories.

The windows and defaults are those of the Time-Series-Library. A worker trains and returns the files of the model; this
process writes them, because a worker of a cluster has another disk. A directory appears under its name when it is
complete, so the same command continues where it stopped. The test region is never read.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hrx import __version__
from hrx.adapters.checkpoint import TRAINING
from hrx.adapters.families import families
from hrx.adapters.formats.backbones import OWN
from hrx.adapters.formats.trained import NEURALFORECAST
from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import ModelKey, Setting, choose_series
from hrx.audit.runner.worker import WorkerContext
from hrx.audit.torch_state import one_thread
from hrx.audit.training import Fitted, Recipe, TrainingWindows, build, fit, save
from hrx.errors import HrxError, NotWritten
from hrx.files import make_directory, make_temporary, read_json, reason, shown_path
from hrx.gift_eval.series import Dataset, Series, UnusableSeries, naming
from hrx.gift_eval.windows import scaling_end, standardise, test_start, validation_start
from hrx.text import clean

MOST_NAME = 200
"""Bytes of a directory's name; file systems take 255."""
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
        """Name of its directory, which is also that of the model in records."""
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
            "learning_rates": [self.recipe.rate(epoch + 1) for epoch in range(self.recipe.epochs)],
        }


class PastRows(NamedTuple):
    """All that a training reads of a series: the values before its test region, and where they are split."""

    values: NDArray[np.float32]
    """(T,), standardised as an audit of the series standardises it."""
    train: int
    """Rows before it are the training split, the others the validation split."""
    lookback_inside: bool
    """Whether a validation window reads no training row before its first forecast step."""


class Splits(NamedTuple):
    """Training and validation windows of a series at one setting."""

    train: TrainingWindows
    validation: TrainingWindows


def past_rows(series: Series, horizon: int) -> PastRows:
    """Training and validation rows of a series: official ones, else those before the test region of an audit."""
    with naming(series.label):
        scaled = standardise(series.values, scaling_end(series, horizon)).values
    past = scaled[: test_start(series, horizon)].astype(np.float32)
    return PastRows(past, validation_start(series, horizon), bool(series.official and series.official.lookback_inside))


def missing_shares(series: Series, horizon: int) -> dict[str, float]:
    """How much of the `training` and of the `validation` rows of a series was missing and is filled in."""
    if series.observed is None:
        return {"training": 0.0, "validation": 0.0}
    border, end = validation_start(series, horizon), test_start(series, horizon)
    parts = {"training": series.observed[:border], "validation": series.observed[border:end]}
    return {name: float((~part).mean()) if part.size else 0.0 for name, part in parts.items()}


def cut_windows(rows: PastRows, lookback: int, horizon: int) -> Splits:
    """Every training and validation window; raises where a split holds none."""
    values = torch.tensor(rows.values)
    before = 0 if rows.lookback_inside else lookback
    places = {"training": (0, rows.train), "validation": (max(rows.train - before, 0), len(values))}
    parts = []
    for name, (first, last) in places.items():
        if last - first < lookback + horizon:
            raise UnusableSeries(
                f"its {name} split has {last - first} values, too few for {lookback}x{horizon}. "
                "Give shorter --settings."
            )
        windows = values[first:last].unfold(0, lookback + horizon, 1)
        parts.append(TrainingWindows(windows[:, :lookback], windows[:, lookback:]))
    return Splits(*parts)


def cut_splits(series: Series, lookback: int, horizon: int) -> Splits:
    """Every training and validation window of a series."""
    rows = past_rows(series, horizon)
    with naming(series.label):
        return cut_windows(rows, lookback, horizon)


class TrainedFiles(NamedTuple):
    """A trained model as a worker returns it."""

    files: Mapping[str, bytes]
    """Content of each file of its directory, by name."""
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
            module = build(self.backbone, *size, self.depth, self.seed, self.arguments)
            fitted = fit_splits(module, cut_windows(self.rows, *size), self.recipe, self.seed, device)
            with tempfile.TemporaryDirectory() as folder:
                config = {"backbone": self.backbone, "lookback": size[0], "horizon": size[1], "depth": self.depth}
                save(module, config, Path(folder) / "model")
                files = {file.name: file.read_bytes() for file in (Path(folder) / "model").iterdir()}
        return TrainedFiles(files, fitted, device.type)


def fit_splits(module: nn.Module, splits: Splits, recipe: Recipe, seed: int, device: torch.device) -> Fitted:
    """Trains on the windows of a series; the seed decides their order and the dropout."""
    order = torch.Generator().manual_seed(seed)

    def shuffled() -> Iterator[TrainingWindows]:
        x, y = splits.train
        places = torch.split(torch.randperm(len(x), generator=order), recipe.batch)
        return (TrainingWindows(x[place], y[place]) for place in places[: recipe.batches])

    return fit(module, shuffled, recipe, validation=splits.validation, seed=seed, device=device)


def worker_tasks(planned: Iterable[TrainingTask]) -> list[TrainModel]:
    """Tasks for workers; those of one series share its values."""
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
    """Libraries that train these backbones with their versions, beside torch."""
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
        "missing": missing_shares(task.series, task.setting.horizon),
        "best_epoch": fitted.best_epoch,
        "validation_mse": fitted.validation_mse,
        "train_mse": fitted.train_mse,
        "library": libraries([task.backbone]),
        "torch_version": torch.__version__,
        "hrx_version": __version__,
        "device": trained.device,
    }
    files = {**trained.files, TRAINING: (json.dumps(content, indent=1) + "\n").encode()}
    descriptor, temporary = make_temporary(make_directory(out), directory=True)
    scratch = Path(temporary)
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
        os.close(descriptor)
    return content


class TrainingPlan(NamedTuple):
    """Models to train, and why the others cannot be trained."""

    tasks: list[TrainingTask]
    refused: tuple[str, ...]
    """A sentence for each series that cannot be used at a setting; settings may share one."""


def plan_training(
    names: Sequence[str],
    datasets: Iterable[Dataset],
    settings: Sequence[Setting],
    *,
    depths: Sequence[int],
    seeds: int,
    series: int,
    recipe: Recipe,
    arguments: Mapping[str, Mapping[str, Any]],
) -> TrainingPlan:
    """Every model to train, on the series that an audit of the same data chooses.

    Raises on a damaged dataset, on a setting that no series can be trained at, and on names that are not distinct.
    """
    refused: list[tuple[Setting, str]] = []
    usable: list[tuple[Series, bool, Setting]] = []
    for dataset in datasets:
        if dataset.damage:
            raise HrxError(dataset.damage)
        for setting, chosen in choose_series(dataset, settings, series).items():
            for one in chosen:
                try:
                    if one.error:
                        raise one.error
                    assert isinstance(one.series, Series), "read without channels"
                    cut_splits(one.series, setting.lookback, setting.horizon)
                    for name, share in missing_shares(one.series, setting.horizon).items():
                        if share > Protocol.max_missing:
                            raise UnusableSeries(
                                f"{one.series.label}: {share:.1%} of its {name} rows are missing and would be filled "
                                f"in; the limit is {Protocol.max_missing:.0%}. Give a series with fewer gaps."
                            )
                except UnusableSeries as error:
                    refused.append((setting, str(error)))
                else:
                    usable.append((one.series, dataset.count > 1, setting))
    for setting in settings:
        if all(used != setting for *_, used in usable):
            reasons = (reason for at, reason in refused if at == setting)
            raise HrxError(next(reasons, "The data hold no series. Give another --data."))
    tasks = [
        TrainingTask(name, trained, several, setting, depth, seed, recipe, arguments.get(name, {}))
        for trained, several, setting in usable
        for name in dict.fromkeys(names)
        for depth in (depths or (None,))
        for seed in range(seeds)
    ]
    _check_names(tasks)
    return TrainingPlan(tasks, tuple(dict.fromkeys(reason for _, reason in refused)))


def _check_names(tasks: Iterable[TrainingTask]) -> None:
    """Raises where two models would have one directory, or a name is too long for one."""
    first: dict[str, TrainingTask] = {}
    for task in tasks:
        other = first.setdefault(task.name, task)
        if other is not task:
            raise HrxError(
                f"{other.series.label} and {task.series.label} would both be trained as {task.name}. "
                "Rename one of them."
            )
        if len(task.name.encode()) > MOST_NAME:
            raise HrxError(
                f"{task.series.label}: the directory of a model would have a name of {len(task.name.encode())} bytes, "
                f"more than {MOST_NAME}. Give the series a shorter name."
            )
