"""A model, a dataset and a setting so small that an audit of them takes a moment."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import Forecaster, Identity, Limits, from_module
from hrx.audit.runner.plan import Setting
from hrx.gift_eval import Dataset
from hrx.gift_eval.series import Row

SETTINGS = (Setting(32, 8),)


class Given:
    """A located model that is there already."""

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
    def row(index: int) -> Row:
        t = np.arange(length)
        return Row(f"T{index}", np.sin(t / (3 + index)) + 0.1 * np.random.default_rng(index).normal(size=length))

    return Dataset(name, "H", 24, "Test", count, row)


class OneRowAtATime(torch.autograd.Function):
    """A square whose backward asks for a number, which no batch of rows has."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * slopes[0] if float(slopes[0].abs().sum()) >= 0 else x
