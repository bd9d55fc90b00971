"""All rows of a window's input Jacobian from one forward pass.

Each window is differentiated by itself, never in a batch with others. A batch changes the last bits of a gradient, and
bits decide near-tied orderings; so the matrix of a window is the same whatever it is audited together with. This is
the rule that keeps stored numbers independent of batch size and worker count.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath
from hrx.adapters.gradients import Rewrite, differentiable_input

Strategy = Literal["batched", "loop"]
ROWS_AT_ONCE = 32


class Rows(NamedTuple):
    """Signed derivatives, and how they were had."""

    jacobian: Tensor
    """`(W, S, L)`, or `(W, S, L, C)` for a multivariate model."""
    strategy: Strategy
    """Batched vector-Jacobian products, or one backward pass a row where an operation cannot be batched."""
    rewrites: tuple[Rewrite, ...]


def jacobian(model: Forecaster, x: Tensor, horizon: int, steps: npt.NDArray[np.int64] | None = None) -> Rows:
    """`∂ŷ[h]/∂x` of every window of `x` `(W, L)`, for the given steps or all of them.

    The forecast of a multivariate model is summed over its channels first.
    """
    chosen = torch.arange(horizon) if steps is None else torch.as_tensor(steps)
    with torch.enable_grad(), GradientPath() as path:
        each = [_one_window(model, window[None], horizon, chosen) for window in x]
    return Rows(
        jacobian=torch.cat([rows for rows, _ in each]),
        strategy="loop" if any(strategy == "loop" for _, strategy in each) else "batched",
        rewrites=path.rewrites,
    )


def _one_window(model: Forecaster, x: Tensor, horizon: int, steps: Tensor) -> tuple[Tensor, Strategy]:
    leaf, working = differentiable_input(x)
    y = model.forward(working, horizon)
    y = y.sum(dim=-1) if y.ndim == 3 else y
    if not y.requires_grad:
        return x.new_zeros(1, len(steps), *x.shape[1:]), "batched"
    # A one-hot row per step, for a batch of one window: (S, 1, H).
    picks = torch.nn.functional.one_hot(steps, horizon).to(y)[:, None, :]
    try:
        rows, strategy = _batched(y, leaf, picks), "batched"
    except RuntimeError:
        rows, strategy = _loop(y, leaf, picks), "loop"
    return rows.transpose(0, 1), "batched" if strategy == "batched" else "loop"


def _batched(y: Tensor, leaf: Tensor, picks: Tensor) -> Tensor:
    def products(block: Tensor) -> Tensor:
        (rows,) = torch.autograd.grad(
            y,
            leaf,
            block,
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return rows

    return torch.cat([products(block) for block in picks.split(ROWS_AT_ONCE)])


def _loop(y: Tensor, leaf: Tensor, picks: Tensor) -> Tensor:
    """One backward pass a row, for models with an operation that has no batching rule."""
    grads = [
        torch.autograd.grad(y, leaf, pick, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
        for pick in picks
    ]
    return torch.stack(grads)
