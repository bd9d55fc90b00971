"""What fills the explanation matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.adapters.gradients import Rewrite
from hrx.audit.memory import Budget
from hrx.audit.protocol import ProtocolError
from hrx.audit.rows import jacobian
from hrx.errors import unknown

ESTIMATORS = ("input_gradient",)


class Explanation(NamedTuple):
    """An explanation matrix and how it was had."""

    matrix: Tensor
    """`(W, S, L)`, non-negative: importance of each input position for each step."""
    strategy: str
    rewrites: tuple[Rewrite, ...]


def explain(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    *,
    estimator: str = "input_gradient",
    steps: Sequence[int] | None = None,
    budget: Budget | None = None,
) -> Tensor:
    """`(W, L) -> (W, H, L)`, non-negative: the importance of each input position for each forecast step.

    `steps` picks the rows to estimate instead of all `H`. A multivariate window `(W, L, C)` gives `(W, H, L)` too:
    the channels of the forecast are summed before differentiating, those of the input after taking magnitudes.
    """
    return estimate(model, x, horizon, estimator=estimator, steps=steps, budget=budget).matrix


def estimate(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    *,
    estimator: str = "input_gradient",
    steps: Sequence[int] | None = None,
    budget: Budget | None = None,
) -> Explanation:
    """`explain`, with the bookkeeping that a record keeps."""
    if estimator not in ESTIMATORS:
        raise ProtocolError(unknown("estimator", estimator, ESTIMATORS))
    if steps is not None and not all(0 <= step < horizon for step in steps):
        raise ProtocolError(f"steps {list(steps)} reach outside the horizon. Give indices from 0 to {horizon - 1}.")
    rows = jacobian(model, x, horizon, None if steps is None else np.asarray(steps, dtype=np.int64), budget)
    magnitude = rows.jacobian.abs()
    matrix = magnitude.sum(dim=-1) if x.ndim == 3 else magnitude
    return Explanation(matrix, rows.strategy, rows.rewrites)
