"""All rows of a window's input Jacobian from one forward pass.

The rule that keeps stored numbers independent of batch size and worker count: each window is differentiated by itself,
in one thread, in blocks of 32 rows (fewer only where the memory budget cannot hold them). A batch or a second thread
changes the last bits of a gradient, and where two positions are nearly tied these bits decide which of them is deleted.
No rounding of the matrix would help, since any rule that turns numbers into an order has boundaries that noise can
cross; so there is to be no noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath
from hrx.adapters.gradients import Rewrite, differentiable_input
from hrx.audit.memory import Budget

Strategy = Literal["batched", "loop"]
ROWS_AT_ONCE = 32


class Rows(NamedTuple):
    """Signed derivatives, and how they were had."""

    jacobian: Tensor
    """`(W, S, L)`, or `(W, S, L, C)` for a multivariate model."""
    strategy: Strategy
    """Batched vector-Jacobian products, or one backward pass a row where an operation cannot be batched."""
    rewrites: tuple[Rewrite, ...]


def jacobian(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    steps: npt.NDArray[np.int64] | None = None,
    budget: Budget | None = None,
) -> Rows:
    """`∂ŷ[h]/∂x` of every window of `x` `(W, L)`, for the given steps or all of them.

    The forecast of a multivariate model is summed over its channels first.
    """
    chosen = torch.arange(horizon) if steps is None else torch.as_tensor(steps)
    # Backward holds about what the forward pass of as many windows allocates.
    block = (budget or Budget()).rows(model, x[0], horizon, ROWS_AT_ONCE)
    with torch.enable_grad(), _one_thread(), GradientPath() as path:
        each = [_one_window(model, window[None], horizon, chosen, block) for window in x]
    return Rows(
        jacobian=torch.cat([rows for rows, _ in each]),
        strategy="loop" if any(strategy == "loop" for _, strategy in each) else "batched",
        rewrites=path.rewrites,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _one_window(model: Forecaster, x: Tensor, horizon: int, steps: Tensor, block: int) -> tuple[Tensor, Strategy]:
    leaf, working = differentiable_input(x)
    y = model.forward(working, horizon)
    y = y.sum(dim=-1) if y.ndim == 3 else y
    if not y.requires_grad:
        return x.new_zeros(1, len(steps), *x.shape[1:]), "batched"
    # A one-hot row per step, for a batch of one window: (S, 1, H).
    picks = torch.nn.functional.one_hot(steps, horizon).to(y)[:, None, :]
    try:
        return _batched(y, leaf, picks, block).transpose(0, 1), "batched"
    except RuntimeError:
        return _loop(y, leaf, picks).transpose(0, 1), "loop"


def _batched(y: Tensor, leaf: Tensor, picks: Tensor, block: int) -> Tensor:
    products = [
        torch.autograd.grad(
            y, leaf, some, is_grads_batched=True, retain_graph=True, allow_unused=True, materialize_grads=True
        )[0]
        for some in torch.split(picks, block)
    ]
    return torch.cat(products)


def _loop(y: Tensor, leaf: Tensor, picks: Tensor) -> Tensor:
    """One backward pass a row, for models with an operation that has no batching rule."""
    grads = [
        torch.autograd.grad(y, leaf, pick, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
        for pick in picks
    ]
    return torch.stack(grads)
