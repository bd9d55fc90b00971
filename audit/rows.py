"""All rows of the input Jacobians of a run's windows, from as few forward passes as they take.

The rule that keeps stored numbers independent of threads and worker count: windows are differentiated in the run's own
order, as many together as their rows fill a block of 128, by kernels that use one thread (fewer only where memory
cannot hold them). Another batch or block, or a kernel that shares its sums among threads, changes the last bits of a
gradient, and where two positions are nearly tied these bits decide which of them is deleted. No rounding of the matrix
would help, since any rule that turns numbers into an order has boundaries that noise can cross; so there is to be no
noise. Further threads take further groups of windows, whole. Forward passes wait for one another: they are Python code
that would only fight over the interpreter, and no model is asked to run in two threads at once.

- `batched`: one forward pass, then vector-Jacobian products of a whole block of rows at once. The vmap is that of
  `torch.func`: the one behind `is_grads_batched` has no rule for the backward of norms, softmax or GELU and walks
  through the rows there.
- `bare`: the same without a `GradientPath`, which is what `torch.func.jacrev` does: the same bits for less, in a model
  whose code leaves the gradient alone. `hrx.audit.way` finds out which do; where one does not after all, on windows
  that take another branch, these are `batched`.
- `replicas`: as many copies of the window as rows, one forward and one backward pass of all of them.
- `loop`: one forward pass and a backward pass a row. What the others must equal, and what is left where an operation
  cannot be batched.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath
from hrx.adapters.contract import Strategy
from hrx.adapters.gradients import Obstacles, Rewrite, backward_alone, differentiable_input
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
    threads = budget.threads(model, x[0], horizon, block, min(torch.get_num_threads(), len(groups)))
    found = x.new_empty(len(x), len(picks), *x.shape[1:])
    work = _Work(model, horizon, picks, block, GradientPath(), Lock())
    with one_thread(), _workers(threads) as each, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # of operations without a batching rule
        strategies = list(each(partial(_fill, work), groups, torch.split(found, len(groups[0]))))
    return Rows(
        jacobian=found,
        strategy=next((strategy for strategy in strategies if strategy != model.rows), model.rows),
        rewrites=work.path.rewrites,
    )


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
    path: GradientPath
    forward: Lock
    """Held during a forward pass."""


@contextmanager
def _workers(threads: int) -> Iterator[Callable[..., Iterable[Strategy]]]:
    """A `map` by so many threads."""
    if threads == 1:
        yield map
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool.map


def _fill(work: _Work, x: Tensor, rows: Tensor) -> Strategy:
    """Writes the rows `(G, R, L)` of a group of inputs, and tells how they were had."""
    with torch.enable_grad():
        part = _part(work, x, work.model.rows)
    rows.copy_(part.rows)
    return part.strategy


class _Part(NamedTuple):
    """The rows `(G, R, L)` of a group of inputs that share a forward pass."""

    rows: Tensor
    strategy: Strategy


def _part(work: _Work, x: Tensor, strategy: Strategy) -> _Part:
    try:
        with nullcontext() if strategy == "bare" else work.path:
            rows = _STRATEGIES[strategy](work, x)
    except _NotBare:
        scarce = False
    except (RuntimeError, MemoryError) as error:
        scarce = out_of_memory(error)
        if strategy == "loop" and not (scarce and len(x) > 1):
            raise
    else:
        # Without a path, 0 · NaN is not masked.
        if strategy != "bare" or torch.isfinite(rows).all():
            return _Part(rows, strategy)
        scarce = False
    # Outside the except block: there the traceback would keep the failed attempt in memory.
    if scarce and len(x) > 1:
        halves = [_part(work, some, strategy) for some in torch.split(x, -(-len(x) // 2))]
        other = next((half.strategy for half in halves if half.strategy != strategy), strategy)
        return _Part(torch.cat([half.rows for half in halves]), other)
    if scarce and work.block // 2 >= LEAST_BLOCK:
        return _part(replace(work, block=work.block // 2), x, strategy)
    return _part(work, x, "batched" if strategy == "bare" else "loop")


class _NotBare(Exception):
    """A model that was to leave the gradient alone did not."""


def _batched(work: _Work, x: Tensor) -> Tensor:
    return _products(work, x, _forecast(work, x))


def _bare(work: _Work, x: Tensor) -> Tensor:
    leaf, working = differentiable_input(x)
    work.model.check(working, work.horizon)
    with work.forward, Obstacles() as met:
        y = work.model.predict(working, work.horizon)
    if met:
        raise _NotBare
    return _products(work, x, _summed(y, leaf))


def _products(work: _Work, x: Tensor, made: _Forecast) -> Tensor:
    if not made.forecast.requires_grad:
        return _zeros(work, x)
    rows = work.picks.to(made.forecast)[:, None, :].expand(-1, len(x), -1)
    product = torch.func.vmap(partial(_gradient, made))
    blocks = torch.tensor_split(rows, ceil(len(rows) * len(x) / work.block))
    with backward_alone():
        return torch.cat([product(block) for block in blocks]).transpose(0, 1)


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
    with work.forward:
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
