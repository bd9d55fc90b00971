"""What an estimator is asked, and what it answers: the contract of everything that fills the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.adapters.gradients import Rewrite
from hrx.audit.memory import Budget


@dataclass(frozen=True)
class Task:
    """Rows to fill, for some windows of one model."""

    model: Forecaster
    x: Tensor
    """`(W, L)`, or `(W, L, C)` for an estimator that takes several variates."""
    horizon: int
    steps: tuple[int, ...]
    """The forecast steps that get a row each. Empty: one row for the whole forecast."""
    budget: Budget
    seed: int = 0
    stream: int = 0
    """Separates the random draws of different runs under one seed."""

    @cached_property
    def picks(self) -> Tensor:
        """`(R, H)`: which steps of the forecast each row is about."""
        if not self.steps:
            return torch.ones(1, self.horizon, dtype=torch.int64)
        return torch.nn.functional.one_hot(torch.tensor(self.steps), self.horizon)

    @property
    def labels(self) -> tuple[int, ...]:
        """A number for each row that tells its random draws from those of the others."""
        return self.steps or (self.horizon,)


class Filled(NamedTuple):
    """The rows of a task."""

    matrix: Tensor
    """`(W, R, L)`, non-negative."""
    rewrites: tuple[Rewrite, ...] = ()
    """What the gradient mechanics met."""
