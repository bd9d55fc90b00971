"""A small model, dataset and setting for quick audits."""

from pathlib import Path

import numpy as np
import torch

from hrx.adapters import Forecaster, Limits, from_module
from hrx.audit.runner.plan import Setting
from hrx.audit.training.train import TrainingTask, publish, worker_tasks
from hrx.gift_eval import Dataset
from hrx.gift_eval.series import StoredSeries

SETTINGS = (Setting(32, 8),)


def linear(seed: int = 0, limits: Limits | None = None) -> Forecaster:
    torch.manual_seed(seed)
    return from_module(torch.nn.Linear(32, 8), name=f"linear-{seed}", limits=limits, scale="standardised")


def dataset(name: str = "waves/H", count: int = 2, length: int = 200) -> Dataset:
    def row(index: int) -> StoredSeries:
        t = np.arange(length)
        return StoredSeries(
            f"T{index}", np.sin(t / (3 + index)) + 0.1 * np.random.default_rng(index).normal(size=length)
        )

    return Dataset(name, "H", 24, "Test", count, row)


def train(task: TrainingTask, out: Path) -> None:
    """Trains one model in this process and writes its directory."""
    (one,) = worker_tasks([task])
    publish(task, one.run_on(torch.device("cpu")), out)
