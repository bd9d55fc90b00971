"""The two calls that fill an explanation matrix, with any estimator, and the checks at their door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.adapters.gradients import Rewrite
from hrx.audit.attribution.registry import Estimator, find_estimator
from hrx.audit.attribution.settings import read_settings
from hrx.audit.attribution.task import Task
from hrx.audit.memory import Budget
from hrx.audit.protocol import Axis, Ints, Protocol, ProtocolError, scored_steps


class Explanation(NamedTuple):
    """An explanation matrix and how it was had."""

    matrix: Tensor
    """`(W, R, L)`, non-negative: importance of each input position for each step that was estimated."""
    rewrites: tuple[Rewrite, ...]
    steps: Ints
    """The forecast steps of the `R` rows; empty where the one row is about the whole forecast."""
    settings: str
    """JSON: every setting of the estimator, with the value it had."""


def explain(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    *,
    estimator: str = "input_gradient",
    steps: Sequence[int] | None = None,
    budget: Budget | None = None,
    settings: str | None = None,
    axis: Axis = "step",
    seed: int = 0,
    stream: int = 0,
) -> Tensor:
    """`(W, L) -> (W, R, L)`, non-negative: the importance of each input position for each forecast step.

    `steps` names the steps that get a row. Without it the input gradient gives all `H` and every other estimator the
    eight scored ones. `axis="whole"` gives one row for the whole forecast instead, as each method was published.
    `settings` is JSON of those that are not to have their defaults. A multivariate window `(W, L, C)` gives
    `(W, R, L)` too: the channels of the forecast are summed before differentiating, those of the input after taking
    magnitudes.
    """
    return estimate(
        model,
        x,
        horizon,
        estimator=estimator,
        steps=steps,
        budget=budget,
        settings=settings,
        axis=axis,
        seed=seed,
        stream=stream,
    ).matrix


def estimate(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    *,
    estimator: str = "input_gradient",
    steps: Sequence[int] | None = None,
    budget: Budget | None = None,
    settings: str | None = None,
    axis: Axis = "step",
    seed: int = 0,
    stream: int = 0,
) -> Explanation:
    """`explain`, with the bookkeeping that a record keeps."""
    found = find_estimator(estimator)
    chosen = read_settings(estimator, found.settings, settings or "{}")
    _refuse(found, x)
    rows = _rows(found, horizon, steps, axis)
    task = Task(model, x, horizon, tuple(rows.tolist()), budget or Budget(), seed, stream)
    filled = found.load()(task, chosen)
    return Explanation(filled.matrix, filled.rewrites, rows, chosen.as_json())


def _refuse(found: Estimator, x: Tensor) -> None:
    if x.ndim not in (2, 3) or not len(x):
        raise ProtocolError(f"Windows have the shape (windows, lookback[, channels]), not {tuple(x.shape)}.")
    if x.ndim == 3 and not found.multivariate:
        raise ProtocolError(
            f"{found.name} explains windows of one variate, not of {x.shape[-1]}. The gradient estimators take "
            "several: input_gradient, saliency, gradient_x_input, integrated_gradients, smoothgrad."
        )


def _rows(found: Estimator, horizon: int, steps: Sequence[int] | None, axis: Axis) -> Ints:
    """The steps to estimate; none for the whole forecast."""
    if axis == "whole":
        if steps is not None:
            raise ProtocolError('axis="whole" gives one row for the whole forecast. Leave out steps.')
        return np.empty(0, dtype=np.int64)
    if steps is None:
        return scored_steps(horizon, horizon if found.every_step else Protocol.scored)
    if not len(steps) or not all(0 <= step < horizon for step in steps):
        raise ProtocolError(f"steps {list(steps)} reach outside the horizon. Give indices from 0 to {horizon - 1}.")
    return np.asarray(steps, dtype=np.int64)
