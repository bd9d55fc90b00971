"""All rows of the input Jacobians of a run's windows, from as few forward passes as they take.

The rule that keeps stored numbers independent of threads and worker count: windows are differentiated in the run's own
order, as many together as their rows fill a block of 128, by kernels that use one thread (fewer only where the memory
budget cannot hold them). Another batch, or a kernel that shares its sums among threads, changes the last bits of a
gradient, and where two positions are nearly tied these bits decide which of them is deleted. No rounding of the matrix
would help, since any rule that turns numbers into an order has boundaries that noise can cross; so there is to be no
noise. Further threads differentiate further blocks of the same forward pass, which leaves the bits as they are.

- `batched`: one forward pass, then vector-Jacobian products of a whole block of rows at once. The vmap is that of
  `torch.func`: the one behind `is_grads_batched` has no rule for the backward of norms, softmax or GELU and walks
  through the rows there.
- `bare`: the same without a `GradientPath`, which is what `torch.func.jacrev` does: the same bits for less, in a model
  whose code leaves the gradient alone. `hrx.audit.way` finds out which do.
- `replicas`: as many copies of the window as rows, one forward and one backward pass of all of them.
- `loop`: one forward pass and a backward pass a row. What the others must equal, and what is left where an operation
  cannot be batched.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
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
REPLICAS = 1 / 4
"""Of a block: the graph of a copy holds more than the products of a row."""


class Rows(NamedTuple):
    """Signed derivatives, and how they were had."""

    jacobian: Tensor
    """`(W, S, L)`, or `(W, S, L, C)` for a multivariate model."""
    strategy: Strategy
    """The model's own, or the one that took its place where it did not work."""
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


def derivatives(model: Forecaster, x: Tensor, horizon: int, picks: Tensor, budget: Budget | None = None) -> Rows:
    """Derivatives of weighted sums of the forecast, `Σ_h picks[r, h] ŷ[h]` for the rows of `picks` `(R, H)`."""
    budget = budget or Budget()
    block = budget.block(model, x[0], horizon, ROWS_AT_ONCE)
    groups = torch.split(x, max(1, block // len(picks)))
    # Each thread has a block of the usual size at least: smaller ones have other bits.
    wanted = min(torch.get_num_threads(), len(picks), max(1, len(groups[-1]) * len(picks) // LEAST_BLOCK))
    threads = budget.threads(model, x[0], horizon, block, wanted)
    with torch.enable_grad(), one_thread(), _helpers(threads) as helpers:
        work = _Work(model, horizon, picks, block, threads, helpers, GradientPath())
        found = x.new_empty(len(x), len(picks), *x.shape[1:])
        places = torch.split(found, len(groups[0]))
        strategies = [_fill(work, some, rows) for some, rows in zip(groups, places, strict=True)]
    return Rows(
        jacobian=found,
        strategy=next((strategy for strategy in strategies if strategy != model.rows), model.rows),
        rewrites=work.path.rewrites,
    )


def _fill(work: _Work, x: Tensor, rows: Tensor) -> Strategy:
    """Writes the rows `(G, R, L)` of a group of inputs, and tells how they were had."""
    part = _part(work, x, work.model.rows)
    rows.copy_(part.rows)
    return part.strategy


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Work:
    """What all windows of a call share."""

    model: Forecaster
    horizon: int
    picks: Tensor
    """`(R, H)`."""
    block: int
    threads: int
    helpers: ThreadPoolExecutor | None
    """Where there are several threads."""
    path: GradientPath

    def blocks(self, rows: Tensor) -> Sequence[Tensor]:
        """The rows `(R, G, H)` of `G` inputs in blocks of one size, enough of them for all threads."""
        return torch.tensor_split(rows, max(ceil(rows.shape[0] * rows.shape[1] / self.block), self.threads))

    def each(self, product: Callable[[Tensor], Tensor], blocks: Sequence[Tensor]) -> Tensor:
        """The products of all blocks, one after the other, had by all threads."""
        return torch.cat(list(map(product, blocks) if self.helpers is None else self.helpers.map(product, blocks)))


@contextmanager
def _helpers(threads: int) -> Iterator[ThreadPoolExecutor | None]:
    if threads == 1:
        yield None
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool


class _Part(NamedTuple):
    """The rows `(G, R, L)` of a group of inputs that share a forward pass."""

    rows: Tensor
    strategy: Strategy


def _part(work: _Work, x: Tensor, strategy: Strategy) -> _Part:
    try:
        with nullcontext() if strategy == "bare" else work.path:
            rows = _STRATEGIES[strategy](work, x)
    except RuntimeError as error:
        # Half the rows need half the memory, and down to this block they have the same bits.
        if out_of_memory(error) and work.block // 2 >= LEAST_BLOCK:
            return _part(replace(work, block=work.block // 2), x, strategy)
        if strategy == "loop":
            raise
    else:
        # Without a path, 0 · NaN is not masked.
        if strategy != "bare" or torch.isfinite(rows).all():
            return _Part(rows, strategy)
    return _part(work, x, "batched" if strategy == "bare" else "loop")


def _batched(work: _Work, x: Tensor) -> Tensor:
    return _products(work, x, _forecast(work, x))


def _bare(work: _Work, x: Tensor) -> Tensor:
    leaf, working = differentiable_input(x)
    work.model.check(working, work.horizon)
    return _products(work, x, _summed(work.model.predict(working, work.horizon), leaf))


def _products(work: _Work, x: Tensor, made: _Forecast) -> Tensor:
    def product(rows: Tensor) -> Tensor:
        with backward_alone():
            return torch.func.vmap(partial(_gradient, made))(rows)

    if not made.forecast.requires_grad:
        return _zeros(work, x)
    rows = work.picks.to(made.forecast)[:, None, :].expand(-1, len(x), -1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # of operations without a batching rule
        return work.each(product, work.blocks(rows)).transpose(0, 1)


def _replicas(work: _Work, x: Tensor) -> Tensor:
    every = []
    for some in torch.split(work.picks, max(1, int(REPLICAS * work.block) // len(x))):
        made = _forecast(work, x.repeat_interleave(len(some), dim=0))
        if not made.forecast.requires_grad:
            return _zeros(work, x)
        with backward_alone():
            products = _gradient(made, some.to(made.forecast).repeat(len(x), 1))
        every.append(torch.unflatten(products, 0, (len(x), len(some))))
    return torch.cat(every, dim=1)


def _loop(work: _Work, x: Tensor) -> Tensor:
    made = _forecast(work, x)
    if not made.forecast.requires_grad:
        return _zeros(work, x)
    rows = work.picks.to(made.forecast)[:, None, :].expand(-1, len(x), -1)
    return torch.stack([_gradient(made, row) for row in rows], dim=1)


_STRATEGIES: dict[Strategy, Callable[[_Work, Tensor], Tensor]] = {
    "batched": _batched,
    "bare": _bare,
    "replicas": _replicas,
    "loop": _loop,
}
"""Each from what a call shares and a group of inputs `(G, L)` to rows `(G, R, L)`."""


class _Forecast(NamedTuple):
    """A forecast `(G, H)`, summed over channels, and the leaf to differentiate it at."""

    forecast: Tensor
    leaf: Tensor


def _forecast(work: _Work, x: Tensor) -> _Forecast:
    leaf, working = differentiable_input(x)
    return _summed(work.model.forward(working, work.horizon), leaf)


def _summed(y: Tensor, leaf: Tensor) -> _Forecast:
    return _Forecast(y.sum(dim=-1) if y.ndim == 3 else y, leaf)


def _gradient(made: _Forecast, pick: Tensor) -> Tensor:
    return torch.autograd.grad(
        made.forecast, made.leaf, pick, retain_graph=True, allow_unused=True, materialize_grads=True
    )[0]


def _zeros(work: _Work, x: Tensor) -> Tensor:
    """The rows of a forecast that does not hang on its input."""
    return x.new_zeros(len(x), len(work.picks), *x.shape[1:])
