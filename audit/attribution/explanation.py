"""The two calls that fill an explanation matrix with any estimator, and the contract between them and an estimator.

An estimator receives an `AttributionTask` and its settings and returns `EstimatedRows`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.adapters.gradients import Rewrite
from hrx.audit.attribution.functions import AttributionFunction, as_estimator
from hrx.audit.attribution.registry import BUILT_IN, Estimator, find_estimator
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import Axis, Protocol, ProtocolError, scored_steps
from hrx.errors import HrxError
from hrx.gift_eval.series import FINITE
from hrx.records.quantities import Ints


class Inapplicable(HrxError):
    """An estimator that cannot explain this model: a result, recorded as excluded with this reason."""


MOST_ROWS = 1024
"""Forecast steps that are explained without being chosen: the benchmarks have at most 900."""


@dataclass(frozen=True)
class AttributionTask:
    """The rows that an estimator has to fill, for some windows of one model."""

    model: Forecaster
    x: Tensor
    """`(W, L)`, or `(W, L, C)` for an estimator that takes several variates."""
    horizon: int
    steps: tuple[int, ...]
    """The forecast steps that get a row each. Empty: one row for the whole forecast."""
    budget: MemoryBudget
    seed: int = 0
    stream: int = 0
    """Separates the random draws of different runs under one seed."""
    signed: bool = False
    """Whether the rows are wanted with their signs too, by an estimator that has them."""

    @cached_property
    def picks(self) -> Tensor:
        """`(R, H)`: which steps of the forecast each row explains."""
        if not self.steps:
            return torch.ones(1, self.horizon, dtype=torch.int64)
        return torch.nn.functional.one_hot(torch.tensor(self.steps), self.horizon)


class EstimatedRows(NamedTuple):
    """The rows of a task."""

    matrix: Tensor
    """`(W, R, L)`, non-negative."""
    rewrites: tuple[Rewrite, ...] = ()
    """Operations that `GradientPath` replaced."""
    signed: Tensor | None = None
    """`(W, R, L)`: the rows before their magnitudes were taken; None where they were not asked for or have no sign."""


class Estimate(NamedTuple):
    """An explanation matrix and how it was computed."""

    matrix: Tensor
    """`(W, R, L)`, non-negative: importance of each input position for each estimated step."""
    rewrites: tuple[Rewrite, ...]
    steps: Ints
    """The forecast steps of the `R` rows; empty where one row explains the whole forecast."""
    settings: str
    """JSON: every setting of the estimator with its value."""
    signed: Tensor | None = None
    """`(W, R, L)`: the rows with their signs, where they were asked for and the estimator has them."""


def explain(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    *,
    estimator: str | AttributionFunction = "input_gradient",
    steps: Sequence[int] | None = None,
    budget: MemoryBudget | None = None,
    settings: str | None = None,
    axis: Axis = "step",
    seed: int = 0,
    stream: int = 0,
) -> Tensor:
    """`(W, L) -> (W, R, L)`, non-negative: the importance of each input position for each forecast step.

    `steps` lists the steps that get a row. Without it the input gradient gives all `H` and every other estimator the
    eight scored ones. `estimator` is a name, as in `docs/estimators.md`, or a function `f(forward, x, step)` (see
    `AttributionFunction`). `axis="whole"` gives one row for the whole forecast instead, as each method was published.
    `settings` is JSON of the settings that differ from their defaults. A multivariate window `(W, L, C)` gives
    `(W, R, L)` too: the channels of the forecast are summed before differentiating, those of the input after taking
    magnitudes.
    """
    name = estimator if isinstance(estimator, str) else as_estimator(estimator)
    protocol = Protocol(estimator=name, estimator_settings=settings or "{}", axis=axis, seed=seed)
    return estimate(model, x, horizon, protocol, steps=steps, budget=budget, stream=stream).matrix


def estimate(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    protocol: Protocol,
    *,
    steps: Sequence[int] | None = None,
    budget: MemoryBudget | None = None,
    stream: int = 0,
    signed: bool = False,
) -> Estimate:
    """`explain` under a protocol, with what a record stores besides the matrix."""
    estimator = find_estimator(protocol.estimator)
    _check_windows(estimator, x)
    estimated = _estimated_steps(estimator, horizon, steps, protocol)
    wanted = tuple(estimated.tolist())
    task = AttributionTask(model, x, horizon, wanted, budget or MemoryBudget(), protocol.seed, stream, signed)
    rows = estimator.load()(task, estimator.read(protocol.estimator_settings))
    return Estimate(rows.matrix, rows.rewrites, estimated, protocol.estimator_settings, rows.signed)


def refuse_infinite(x: Tensor) -> None:
    """Raises on an infinite value in the windows `(W, L[, C])`; NaN is left to the model, some take it as missing."""
    if (wrong := torch.isinf(x)).any():
        place = tuple(int(index) for index in wrong.nonzero()[0])
        raise ProtocolError(f"Windows: the value at {list(place)} is {float(x[place])}: {FINITE}")


def _check_windows(estimator: Estimator, x: Tensor) -> None:
    if x.ndim not in (2, 3) or not len(x):
        raise ProtocolError(f"Windows have the shape (windows, lookback[, channels]), not {tuple(x.shape)}.")
    refuse_infinite(x)
    if x.ndim == 3 and not estimator.multivariate:
        several = ", ".join(known.name for known in BUILT_IN if known.multivariate)
        raise ProtocolError(
            f"{estimator.name} explains windows of one variate, not of {x.shape[-1]}. The gradient estimators take "
            f"several: {several}."
        )


def _estimated_steps(estimator: Estimator, horizon: int, steps: Sequence[int] | None, protocol: Protocol) -> Ints:
    """The steps to estimate; none for the whole forecast."""
    if protocol.axis == "whole":
        if steps is not None:
            raise ProtocolError('axis="whole" gives one row for the whole forecast. Drop steps.')
        return np.empty(0, dtype=np.int64)
    if steps is None and estimator.every_step and horizon > MOST_ROWS:
        raise ProtocolError(
            f"horizon={horizon} has more than {MOST_ROWS} rows, which take very long. Give a shorter one, or choose "
            f"steps, as in steps=[0, {horizon - 1}]."
        )
    if steps is None:
        return scored_steps(horizon, horizon if estimator.every_step else protocol.scored)
    if not len(steps) or not all(0 <= step < horizon for step in steps):
        raise ProtocolError(f"steps {list(steps)} are not all within the horizon. Give indices 0 to {horizon - 1}.")
    return np.asarray(steps, dtype=np.int64)
