"""A small model, dataset and setting for quick audits."""

import numpy as np
import torch

from hrx.adapters import Forecaster, Identity, Limits, from_module
from hrx.audit.runner.plan import Setting
from hrx.gift_eval import Dataset
from hrx.gift_eval.series import StoredSeries

SETTINGS = (Setting(32, 8),)


class Given:
    """A located model that is already loaded."""

    def __init__(self, model: Forecaster | Exception, identity: Identity | None = None):
        self._model = model
        self.identity = identity or model.identity  # type: ignore[union-attr]

    def load(self) -> Forecaster:
        if isinstance(self._model, Exception):
            raise self._model
        return self._model


def linear(seed: int = 0, limits: Limits | None = None) -> Forecaster:
    torch.manual_seed(seed)
    return from_module(torch.nn.Linear(32, 8), name=f"linear-{seed}", limits=limits)


def dataset(name: str = "waves/H", count: int = 2, length: int = 200) -> Dataset:
    def row(index: int) -> StoredSeries:
        t = np.arange(length)
        return StoredSeries(
            f"T{index}", np.sin(t / (3 + index)) + 0.1 * np.random.default_rng(index).normal(size=length)
        )

    return Dataset(name, "H", 24, "Test", count, row)
