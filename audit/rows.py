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
VARIANT_ROWS_AT_ONCE = 128
"""For estimators that differentiate many variants of a window; fewer passes cost less on a small model."""


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
    return derivatives(model, x, horizon, torch.nn.functional.one_hot(chosen, horizon), budget)


def derivatives(
    model: Forecaster, x: Tensor, horizon: int, picks: Tensor, budget: Budget | None = None, *, variants: int = 1
) -> Rows:
    """Derivatives of weighted sums of the forecast, `Σ_h picks[r, h] ŷ[h]` for the rows of `picks` `(R, H)`.

    `x` may hold several `variants` of each window in turn. Those of one window are differentiated together, as many as
    their rows fill a block.
    """
    # Backward holds about what the forward pass of as many windows allocates.
    wanted = ROWS_AT_ONCE if variants == 1 else VARIANT_ROWS_AT_ONCE
    block = (budget or Budget()).rows(model, x[0], horizon, wanted)
    group = max(1, block // len(picks))
    with torch.enable_grad(), one_thread(), GradientPath() as path:
        groups = [some for own in torch.split(x, variants) for some in torch.split(own, group)]
        each = [_some(model, some, horizon, picks, block) for some in groups]
    return Rows(
        jacobian=torch.cat([rows for rows, _ in each]),
        strategy="loop" if any(strategy == "loop" for _, strategy in each) else "batched",
        rewrites=path.rewrites,
    )


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _some(model: Forecaster, x: Tensor, horizon: int, picks: Tensor, block: int) -> tuple[Tensor, Strategy]:
    """The rows `(G, R, L)` of a group of inputs `(G, L)` that share one forward pass."""
    leaf, working = differentiable_input(x)
    y = model.forward(working, horizon)
    y = y.sum(dim=-1) if y.ndim == 3 else y
    if not y.requires_grad:
        return x.new_zeros(len(x), len(picks), *x.shape[1:]), "batched"
    rows = picks.to(y)[:, None, :].expand(-1, len(x), -1)
    try:
        return _batched(y, leaf, rows, block).transpose(0, 1), "batched"
    except RuntimeError:
        return _loop(y, leaf, rows).transpose(0, 1), "loop"


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
