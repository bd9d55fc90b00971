"""Directories that `hrx train` wrote: which model was trained on what, read without a model library.

    OUT/<backbone>-<dataset>-<L>x<H>-seed<n>/{training.json, and the weights in the format of their library}

A model that was trained on one series is audited on the test split of that series only, at its own setting and seed.
"""

import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hrx.adapters.checkpoint import TRAINING, WEIGHT_PATTERNS, Checkpoint
from hrx.adapters.contract import UNKNOWN, Architecture, ModelError, ReadScale, Scale, model_errors, training_facts
from hrx.files import read_json

_STATED = (
    "loss", "optimiser", "learning_rate", "batch", "epochs", "patience", "arguments", "dataset", "series",
    "training_rows", "validation_rows", "library", "torch_version", "hrx_version", "device",
)  # fmt: skip
"""Facts of `training.json` that a record repeats under the same name."""


@dataclass(frozen=True)
class TrainedRun:
    """One model of `hrx train`, as its `training.json` states it."""

    path: Path
    backbone: str
    dataset: str
    series: str
    series_fingerprint: str
    lookback: int
    horizon: int
    seed: int
    training: str = ""
    """How it was trained and what it reached, as `training_facts` writes it."""
    scale: ReadScale = "standardised"

    @property
    def setting(self) -> tuple[int, int]:
        return self.lookback, self.horizon

    @property
    def trained_on(self) -> str:
        """Name of the series in messages."""
        return f"{self.dataset} series {self.series}"


@dataclass(frozen=True)
class TrainedCheckpoint(Checkpoint):
    """Weights of one of our own backbones, with what it was trained on."""

    @cached_property
    def run(self) -> TrainedRun:
        return _read(self.path)

    @property
    def architecture(self) -> Architecture:
        depth = self.config.get("depth")
        depth = depth if type(depth) is int else None
        return Architecture(self.run.backbone, depth, self.run.seed, self.run.training)

    @property
    def setting(self) -> tuple[int, int]:
        return self.run.setting


_FIELDS: dict[str, type] = dict.fromkeys(("backbone", "dataset", "series", "series_fingerprint"), str)
_FIELDS |= dict.fromkeys(("lookback", "horizon", "seed"), int)


def trained_runs(path: Path) -> list[TrainedRun]:
    """Trained model in a directory, or those in its folders; empty where `hrx train` wrote none."""
    if not os.path.isdir(path):
        return []
    if (path / TRAINING).is_file():
        return [_read(path)]
    return [_read(file.parent) for file in sorted(path.glob(f"[!.]*/{TRAINING}"))]


def folders_without_training(path: Path) -> list[Path]:
    """Folders beside trained models that hold model files and no `training.json`: no audit takes them."""
    if not os.path.isdir(path) or (path / TRAINING).is_file() or not next(path.glob(f"[!.]*/{TRAINING}"), None):
        return []
    folders = (folder for folder in sorted(path.glob("[!.]*/")) if not (folder / TRAINING).is_file())
    return [folder for folder in folders if any(next(folder.glob(mark), None) for mark in WEIGHT_PATTERNS)]


def training_scale(path: Path) -> ReadScale | None:
    """Scale that the model in a directory reads; None where `hrx train` did not write it."""
    return _read(path).scale if (path / TRAINING).is_file() else None


def _read(path: Path) -> TrainedRun:
    file, again = path / TRAINING, f"Remove {path} and train again."
    with model_errors(f"{file} is not a file of hrx train", again, ValueError, LookupError, TypeError):
        content: dict[str, Any] = read_json(file)
        values = {name: content[name] for name in _FIELDS}
    if wrong := [name for name, kind in _FIELDS.items() if not isinstance(values[name], kind)]:
        raise ModelError(f"{file}: {wrong[0]} is {values[wrong[0]]!r}. {again}")
    scale: ReadScale = "standardised"  # by statistics that the directory lacks
    if "mean" in content or "std" in content:
        mean, std = content.get("mean"), content.get("std")
        if not (isinstance(mean, float) and isinstance(std, float) and math.isfinite(mean) and 0 < std < math.inf):
            raise ModelError(f"{file}: mean is {mean!r} and std {std!r}, which do not standardise a series. {again}")
        scale = Scale(mean, std)
    # What decided the weights, and what they reached: the error of the epoch that is kept, not of every epoch.
    facts = {name: content.get(name, UNKNOWN) for name in _STATED}
    batches = content.get("batches", UNKNOWN)
    facts["batches_per_epoch"] = "all" if batches is None else batches
    errors, best = content.get("validation_mse"), content.get("best_epoch")
    if isinstance(errors, list) and isinstance(best, int) and 0 < best <= len(errors):
        facts |= {"best_epoch": best, "validation_mse": errors[best - 1]}
    return TrainedRun(path, **values, training=training_facts("hrx train", **facts), scale=scale)
