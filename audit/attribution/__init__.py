"""Explanation matrix: what an estimator declares, what it is given and what it returns.

`settings` has what can be set, `registry` the estimators by name, `explanation` the calls that fill a matrix.
`docs/estimators.md` defines each estimator. Imports torch only when an estimator runs, so that a request is checked
without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from hrx.audit.attribution.settings import Settings, setting
from hrx.errors import HrxError

if TYPE_CHECKING:
    from torch import Tensor

    from hrx.adapters.contract import Forecaster
    from hrx.adapters.gradients import Rewrite
    from hrx.audit.memory import MemoryBudget

__all__ = ["AttributionTask", "Estimate", "Estimator", "Inapplicable", "Settings", "setting"]

Sign = Literal["", "slope", "contribution"]


class Inapplicable(HrxError):
    """An estimator that cannot explain this model: a result, recorded as excluded with this reason."""


@dataclass(frozen=True)
class AttributionTask:
    """Rows that an estimator has to fill, for some windows of one model."""

    model: Forecaster
    x: Tensor
    """`(W, L)`, or `(W, L, C)` for an estimator that takes several variates."""
    horizon: int
    steps: tuple[int, ...]
    """Forecast steps that get a row each, from 1. Empty: one row for the whole forecast."""
    budget: MemoryBudget
    seed: int = 0
    stream: int = 0
    """Separates the random draws of different runs under one seed."""
    signed: bool = False
    """Whether the rows are wanted with their signs too, by an estimator that has them."""

    @cached_property
    def picks(self) -> Tensor:
        """`(R, H)`: which steps of the forecast each row explains."""
        import torch

        if not self.steps:
            return torch.ones(1, self.horizon, dtype=torch.int64)
        return torch.nn.functional.one_hot(torch.tensor(self.steps) - 1, self.horizon)


class Estimate(NamedTuple):
    """An explanation matrix and how it was computed. An estimator fills the first three."""

    matrix: Tensor
    """`(W, R, L)`, non-negative: importance of each input position for each estimated step."""
    rewrites: tuple[Rewrite, ...] = ()
    """Operations that `GradientPath` replaced."""
    signed: Tensor | None = None
    """`(W, R, L)`: the rows before their magnitudes were taken; None where they were not asked for or have no sign."""
    steps: tuple[int, ...] = ()
    """Forecast steps of the `R` rows, from 1; empty where one row explains the whole forecast."""
    settings: str = "{}"
    """JSON: every setting of the estimator with its value."""


Fill = Callable[[AttributionTask, Any], Estimate]
"""A function of the task and the estimator's settings."""


@dataclass(frozen=True)
class Estimator:
    """A method that fills rows of the matrix."""

    name: str
    fill: str | Fill
    """Function, or `module:function` of one that is imported on first use."""
    settings: type[Settings] = Settings
    """A frozen dataclass of which every field is a `setting` with a default."""
    every_step: bool = False
    """Whether all steps of the horizon are estimated by default, instead of the scored ones only."""
    multivariate: bool = False
    """Whether it takes windows of several variates `(W, L, C)`."""
    sign: Sign = ""
    """What a row with its sign is: `slope`, the change of the forecast per unit of an input; `contribution`, the part
    of the forecast that an input is given; empty where the method has no sign."""

    def load(self) -> Fill:
        """Function that fills the rows."""
        if not isinstance(self.fill, str):
            return self.fill
        module, function = self.fill.split(":")
        return cast("Fill", getattr(import_module(module), function))
