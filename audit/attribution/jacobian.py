"""All rows of the input Jacobians of a run's windows, from as few forward passes as they take.

The rule that keeps stored numbers independent of threads and worker count: windows are differentiated in the run's own
order, as many together and as many of their rows at once as the run's settings say, by kernels that use one thread
(fewer only where memory cannot hold them). Another batch or block, or a kernel that shares its sums among threads,
changes the last bits of a gradient, and where two positions are nearly tied these bits decide which of them is deleted.
No rounding of the matrix would help, since any rule that turns numbers into an order has boundaries that noise can
cross; so there is to be no noise. Further threads take further groups of windows or, where there are none, some blocks
of a group, after a forward pass of their own. Forward passes wait for one another: they are Python code that would only
fight over the interpreter, and no model is asked to run in two threads at once.

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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
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

ROWS_AT_ONCE = 256
"""Of all windows that are differentiated together."""
WINDOWS_TOGETHER = 8
"""As many windows share a forward pass even where their rows take several blocks: operations that vmap walks through
row by row then have several windows to do in each."""
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
    threads = budget.threads(model, x[0], horizon, block, torch.get_num_threads())
    found = x.new_empty(len(x), len(picks), *x.shape[1:])
    work = _Work(model, horizon, Lock())
    together = max(1, block // len(picks), min(WINDOWS_TOGETHER, block // 2))
    pairs = list(zip(torch.split(x, together), torch.split(found, together), strict=True))
    # Replicas have several forward passes each, and their rewrites are counted in one place.
    parts = 1 if model.rows == "replicas" else max(1, threads // len(pairs))
    groups = [_portions(windows, rows, picks, block, parts) for windows, rows in pairs]
    portions = [portion for group in groups for portion in group]
    with one_thread(), _workers(min(threads, len(portions))) as each, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # of operations without a batching rule
        strategies = list(each(partial(_fill, work), portions))
    return Rows(
        jacobian=found,
        strategy=next((strategy for strategy in strategies if strategy != model.rows), model.rows),
        rewrites=_met(groups),
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
    forward: Lock
    """Held during a forward pass."""


@dataclass(frozen=True)
class _Portion:
    """What a thread does at a time: some rows of a group of windows."""

    x: Tensor
    """`(G, L)`, which share a forward pass."""
    picks: Tensor
    """`(R, H)`."""
    at_once: int
    """How many of these rows a block has."""
    found: Tensor
    """`(G, R, L)`, to be filled."""
    path: GradientPath = field(default_factory=GradientPath)

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        return torch.split(self.picks, self.at_once)


def _portions(x: Tensor, found: Tensor, picks: Tensor, block: int, parts: int) -> list[_Portion]:
    """A group of windows in at most so many parts. Which rows meet in a block does not depend on how many."""
    blocks = ceil(len(picks) * len(x) / block)
    blocks += blocks % 2 if blocks > 1 else 0  # two threads then have as many each
    at_once = ceil(len(picks) / blocks)
    size = at_once * ceil(blocks / parts)
    shares = zip(torch.split(picks, size), torch.split(found, size, dim=1), strict=True)
    return [_Portion(x, some, at_once, rows) for some, rows in shares]


def _met(groups: Iterable[Iterable[_Portion]]) -> tuple[Rewrite, ...]:
    """What all paths met. The parts of a group have the same forward pass, which counts once."""
    total: Counter[tuple[str, str]] = Counter()
    for group in groups:
        most: Counter[tuple[str, str]] = Counter()
        for portion in group:
            most |= Counter({(met.operation, met.place): met.count for met in portion.path.rewrites})
        total += most
    return tuple(Rewrite(*key, count) for key, count in sorted(total.items()))


@contextmanager
def _workers(threads: int) -> Iterator[Callable[..., Iterable[Strategy]]]:
    """A `map` by so many threads."""
    if threads == 1:
        yield map
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool.map


def _fill(work: _Work, portion: _Portion) -> Strategy:
    """Has the rows of a portion, and tells how."""
    with torch.enable_grad():
        return _filled(work, portion, work.model.rows)


def _filled(work: _Work, portion: _Portion, strategy: Strategy) -> Strategy:
    try:
        with nullcontext() if strategy == "bare" else portion.path:
            rows = _STRATEGIES[strategy](work, portion)
    except _NotBare:
        scarce = False
    except (RuntimeError, MemoryError) as error:
        scarce = out_of_memory(error)
        if strategy == "loop" and not (scarce and len(portion.x) > 1):
            raise
    else:
        # Without a path, 0 · NaN is not masked.
        if strategy != "bare" or torch.isfinite(rows).all():
            portion.found.copy_(rows)
            return strategy
        scarce = False
    # Outside the except block: there the traceback would keep the failed attempt in memory.
    if scarce and len(portion.x) > 1:
        half = -(-len(portion.x) // 2)
        pairs = zip(torch.split(portion.x, half), torch.split(portion.found, half), strict=True)
        strategies = [_filled(work, replace(portion, x=x, found=found), strategy) for x, found in pairs]
        return next((other for other in strategies if other != strategy), strategy)
    if scarce and portion.at_once // 2 >= LEAST_BLOCK:
        return _filled(work, replace(portion, at_once=portion.at_once // 2), strategy)
    return _filled(work, portion, "batched" if strategy == "bare" else "loop")


class _NotBare(Exception):
    """A model that was to leave the gradient alone did not."""


def _batched(work: _Work, portion: _Portion) -> Tensor:
    return _products(portion, _forecast(work, portion.x))


def _bare(work: _Work, portion: _Portion) -> Tensor:
    leaf, working = differentiable_input(portion.x)
    work.model.check(working, work.horizon)
    with work.forward, Obstacles() as met:
        y = work.model.predict(working, work.horizon)
    if met:
        raise _NotBare
    return _products(portion, _summed(y, leaf))


def _products(portion: _Portion, made: _Forecast) -> Tensor:
    if not made.forecast.requires_grad:
        return torch.zeros_like(portion.found)
    product = torch.func.vmap(partial(_gradient, made))
    with backward_alone():
        return torch.cat([product(_of_each_window(block, made)) for block in portion.blocks]).transpose(0, 1)


def _replicas(work: _Work, portion: _Portion) -> Tensor:
    every, windows = [], len(portion.x)
    copies = max(1, int(REPLICAS * portion.at_once))
    for some in (some for block in portion.blocks for some in torch.split(block, copies)):
        made = _forecast(work, portion.x.repeat_interleave(len(some), dim=0))
        if not made.forecast.requires_grad:
            return torch.zeros_like(portion.found)
        with backward_alone():
            products = _gradient(made, some.to(made.forecast).repeat(windows, 1))
        every.append(torch.unflatten(products, 0, (windows, len(some))))
    return torch.cat(every, dim=1)


def _loop(work: _Work, portion: _Portion) -> Tensor:
    made = _forecast(work, portion.x)
    if not made.forecast.requires_grad:
        return torch.zeros_like(portion.found)
    return torch.stack([_gradient(made, row) for row in _of_each_window(portion.picks, made)], dim=1)


_STRATEGIES: dict[Strategy, Callable[[_Work, _Portion], Tensor]] = {
    "batched": _batched,
    "bare": _bare,
    "replicas": _replicas,
    "loop": _loop,
}
"""Each from what a call shares and a portion to its rows `(G, R, L)`."""


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


def _of_each_window(picks: Tensor, made: _Forecast) -> Tensor:
    """`(R, G, H)`: the same rows of every window."""
    return picks.to(made.forecast)[:, None, :].expand(-1, len(made.forecast), -1)
