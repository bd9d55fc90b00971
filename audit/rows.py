"""All rows of a window's input Jacobian from one forward pass.

The rule that keeps stored numbers independent of batch size and worker count: each window is differentiated by itself,
in one thread, by the strategy that its model declares, in blocks of 16 to 128 rows (fewer only where the memory budget
cannot hold them). A batch, a second thread or another strategy changes the last bits of a gradient, and where two
positions are nearly tied these bits decide which of them is deleted. No rounding of the matrix would help, since any
rule that turns numbers into an order has boundaries that noise can cross; so there is to be no noise. A window per
thread of Python gave the same bits and took longer: the threads wait for the interpreter at every small operation.

- `batched`: one forward pass, then vector-Jacobian products of a whole block of rows at once. The vmap is that of
  `torch.func`: the one behind `is_grads_batched` has no rule for the backward of norms, softmax or GELU and walks
  through the rows there.
- `replicas`: as many copies of the window as rows, one forward and one backward pass of all of them.
- `loop`: one forward pass and a backward pass a row. What the others must equal, and what is left where an operation
  cannot be batched.

`torch.func.jacrev` is none of them: it refuses the hooks on saved tensors that a `GradientPath` needs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath
from hrx.adapters.contract import Strategy
from hrx.adapters.gradients import Rewrite, backward_alone, differentiable_input
from hrx.audit.memory import LEAST_BLOCK, Budget, out_of_memory

ROWS_AT_ONCE = 128


class Rows(NamedTuple):
    """Signed derivatives, and how they were had."""

    jacobian: Tensor
    """`(W, S, L)`, or `(W, S, L, C)` for a multivariate model."""
    strategy: Strategy
    """The model's own, or `loop` where an operation could not be batched."""
    rewrites: tuple[Rewrite, ...]


class _Part(NamedTuple):
    """The rows `(G, R, L)` of a group of inputs that share a forward pass."""

    rows: Tensor
    strategy: Strategy


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
    block = (budget or Budget()).block(model, x[0], horizon, ROWS_AT_ONCE)
    groups = [some for own in torch.split(x, variants) for some in torch.split(own, max(1, block // len(picks)))]
    with torch.enable_grad(), one_thread(), GradientPath() as path:
        parts = [_part(model, some, horizon, picks, block) for some in groups]
    return Rows(
        jacobian=torch.cat([part.rows for part in parts]),
        strategy="loop" if any(part.strategy == "loop" for part in parts) else model.rows,
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


def _part(model: Forecaster, x: Tensor, horizon: int, picks: Tensor, block: int) -> _Part:
    strategy = model.rows
    try:
        return _Part(_STRATEGIES[strategy](model, x, horizon, picks, block), strategy)
    except RuntimeError as error:
        # Half the rows need half the memory, and down to this block they have the same bits.
        if out_of_memory(error) and block // 2 >= LEAST_BLOCK:
            return _part(model, x, horizon, picks, block // 2)
        if strategy == "loop":
            raise
    return _Part(_loop(model, x, horizon, picks, block), "loop")


def _batched(model: Forecaster, x: Tensor, horizon: int, picks: Tensor, block: int) -> Tensor:
    made = _forecast(model, x, horizon)

    def product(pick: Tensor) -> Tensor:
        return _gradient(made.forecast, made.leaf, pick)

    if not made.forecast.requires_grad:
        return x.new_zeros(len(x), len(picks), *x.shape[1:])
    rows = picks.to(made.forecast)[:, None, :].expand(-1, len(x), -1)
    with backward_alone(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # of operations without a batching rule
        products = [torch.func.vmap(product)(some) for some in torch.split(rows, block)]
    return torch.cat(products).transpose(0, 1)


def _replicas(model: Forecaster, x: Tensor, horizon: int, picks: Tensor, block: int) -> Tensor:
    every = []
    for some in torch.split(picks, max(1, block // len(x))):
        made = _forecast(model, x.repeat_interleave(len(some), dim=0), horizon)
        if not made.forecast.requires_grad:
            return x.new_zeros(len(x), len(picks), *x.shape[1:])
        with backward_alone():
            products = _gradient(made.forecast, made.leaf, some.to(made.forecast).repeat(len(x), 1))
        every.append(torch.unflatten(products, 0, (len(x), len(some))))
    return torch.cat(every, dim=1)


def _loop(model: Forecaster, x: Tensor, horizon: int, picks: Tensor, block: int) -> Tensor:
    made = _forecast(model, x, horizon)
    if not made.forecast.requires_grad:
        return x.new_zeros(len(x), len(picks), *x.shape[1:])
    rows = picks.to(made.forecast)[:, None, :].expand(-1, len(x), -1)
    return torch.stack([_gradient(made.forecast, made.leaf, row) for row in rows], dim=1)


_STRATEGIES: dict[Strategy, Callable[[Forecaster, Tensor, int, Tensor, int], Tensor]] = {
    "batched": _batched,
    "replicas": _replicas,
    "loop": _loop,
}
"""Each from the model, a group of inputs `(G, L)`, the horizon, picks `(R, H)` and the block to rows `(G, R, L)`."""


class _Forecast(NamedTuple):
    """A forecast `(G, H)`, summed over channels, and the leaf to differentiate it at."""

    forecast: Tensor
    leaf: Tensor


def _forecast(model: Forecaster, x: Tensor, horizon: int) -> _Forecast:
    leaf, working = differentiable_input(x)
    y = model.forward(working, horizon)
    return _Forecast(y.sum(dim=-1) if y.ndim == 3 else y, leaf)


def _gradient(forecast: Tensor, leaf: Tensor, pick: Tensor) -> Tensor:
    return torch.autograd.grad(forecast, leaf, pick, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
