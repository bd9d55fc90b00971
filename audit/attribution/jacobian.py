"""Rows of the input Jacobian, `∂ŷ[h]/∂x`, for all windows of a run.

One forward pass per group of windows, then vector–Jacobian products of a whole block of rows at once
(`torch.func.vmap`; the vmap behind `is_grads_batched` has no rule for the backward of norms, softmax or GELU). Where
memory does not suffice, the group and then the block are halved; where an operation cannot be batched, each row gets
a backward pass of its own.

Groups and blocks depend on the run's own settings and the memory budget only, so the same command gives the same
digits. Another batch size or number of threads changes the last bits of a gradient.
"""

import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath
from hrx.adapters.gradients import Rewrite, backward_alone, differentiable_input
from hrx.audit.memory import LEAST_BLOCK, MemoryBudget, out_of_memory
from hrx.records.quantities import Ints

ROWS_AT_ONCE = 256
"""Rows of a block, counted over all windows of its group."""
WINDOWS_TOGETHER = 8
"""Windows that share a forward pass even where their rows need several blocks: an operation that vmap runs row by row
then processes several windows per row."""


class Rows(NamedTuple):
    """Signed derivatives."""

    jacobian: Tensor
    """`(W, R, L)`, or `(W, R, L, C)` for a multivariate model."""
    rewrites: tuple[Rewrite, ...]
    """Operations that `GradientPath` replaced during the forward passes."""


def jacobian(
    model: Forecaster, x: Tensor, horizon: int, steps: Ints | None = None, budget: MemoryBudget | None = None
) -> Rows:
    """`∂ŷ[h]/∂x` of every window of `x` `(W, L)` or `(W, L, C)`, for the given steps or all of them.

    The forecast of a multivariate model is summed over its channels first.
    """
    chosen = torch.arange(horizon) if steps is None else torch.as_tensor(steps)
    return derivatives(model, x, horizon, torch.nn.functional.one_hot(chosen, horizon), budget)


def derivatives(model: Forecaster, x: Tensor, horizon: int, picks: Tensor, budget: MemoryBudget | None = None) -> Rows:
    """Derivatives of weighted sums of the forecast, `Σ_h picks[r, h] ŷ[h]` for the rows of `picks` `(R, H)`."""
    block = (budget or MemoryBudget()).block(model, x[0], horizon, ROWS_AT_ONCE)
    together = max(1, block // len(picks), min(WINDOWS_TOGETHER, block // 2))
    work = _Derivatives(model, horizon, picks)
    result = x.new_empty(len(x), len(picks), *x.shape[1:])
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # operations without a batching rule
        for windows, rows in zip(torch.split(x, together), torch.split(result, together), strict=True):
            work.fill(windows, rows, _rows_per_block(len(picks), len(windows), block))
    return Rows(result, tuple(Rewrite(*key, count) for key, count in sorted(work.rewrites.items())))


def _rows_per_block(rows: int, windows: int, block: int) -> int:
    """Rows of each window in a block of a group: a single block, or an even number of about equal size."""
    blocks = ceil(rows * windows / block)
    return ceil(rows / (blocks + blocks % 2 if blocks > 1 else 1))


@dataclass
class _Derivatives:
    """The derivatives of one call, group by group."""

    model: Forecaster
    horizon: int
    picks: Tensor
    """`(R, H)`."""
    rewrites: Counter[tuple[str, str]] = field(default_factory=Counter)

    def fill(self, x: Tensor, rows: Tensor, at_once: int) -> None:
        """Writes the rows `(G, R, L)` of windows `(G, L)`, with less at once where memory does not suffice."""
        try:
            rows.copy_(self._differentiate(x, at_once))
            return
        except (RuntimeError, MemoryError) as error:
            scarce = out_of_memory(error)
            if at_once == 0 and not (scarce and len(x) > 1):
                raise
        # Outside the except block: inside it the traceback keeps the failed attempt in memory.
        if scarce and len(x) > 1:
            half = -(-len(x) // 2)
            for some, part in zip(torch.split(x, half), torch.split(rows, half), strict=True):
                self.fill(some, part, at_once)
        else:
            self.fill(x, rows, at_once // 2 if scarce and at_once // 2 >= LEAST_BLOCK else 0)

    def _differentiate(self, x: Tensor, at_once: int) -> Tensor:
        """`(G, L) -> (G, R, L)` in blocks of `at_once` rows; 0: a backward pass per row."""
        with GradientPath() as path:
            leaf, working = differentiable_input(x)
            forecast = self.model.forward(working, self.horizon)
            forecast = forecast.sum(dim=-1) if forecast.ndim == 3 else forecast
            gradient = partial(_gradient, forecast, leaf)
            # (R, G, H): the same rows for every window.
            picks = self.picks.to(forecast)[:, None, :].expand(-1, len(x), -1)
            if not forecast.requires_grad:
                rows = x.new_zeros(len(picks), *x.shape)
            elif at_once:
                with backward_alone():
                    batched = torch.func.vmap(gradient)
                    rows = torch.cat([batched(block) for block in torch.split(picks, at_once)])
            else:
                rows = torch.stack([gradient(pick) for pick in picks])
        self.rewrites.update({(met.operation, met.place): met.count for met in path.rewrites})
        return rows.transpose(0, 1)


def _gradient(forecast: Tensor, leaf: Tensor, pick: Tensor) -> Tensor:
    return torch.autograd.grad(forecast, leaf, pick, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
