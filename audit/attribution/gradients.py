"""Rows of the input Jacobian, `∂ŷ[h]/∂x`, and the estimators that are made of them.

One forward pass per group of windows, then vector–Jacobian products of a whole block of rows at once
(`torch.func.vmap`; the vmap behind `is_grads_batched` has no rule for the backward of norms, softmax or GELU). Where
memory does not suffice, the group and then the block are halved; where an operation cannot be batched, each row gets
a backward pass of its own.

Groups and blocks depend on the run's own settings and the memory budget only, so the same command gives the same
digits. Another batch size or number of threads changes the last bits of a gradient. Signs are dropped last, and the
channels of a multivariate window are summed after that.
"""

import warnings
from collections import Counter
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster
from hrx.adapters.gradients import GradientPath, Rewrite, backward_alone, differentiable_input
from hrx.audit.attribution import AttributionTask, Estimate
from hrx.audit.attribution.settings import IntegratedGradientsSettings, Settings, SmoothGradSettings, TSRSettings
from hrx.audit.memory import LEAST_BLOCK, MemoryBudget, out_of_memory
from hrx.records.quantities import Ints

NOISE_STREAM = 1
"""Separates the noise from the other random draws under one seed."""
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
    rewrites: Counter[tuple[str, str]] = Counter()

    def fill(x: Tensor, rows: Tensor, at_once: int) -> None:
        """Writes the rows `(G, R, L)` of windows `(G, L)`, with less at once where memory does not suffice."""
        path = GradientPath()
        try:
            with path:
                found = _differentiate(model, x, horizon, picks, at_once)
            rows.copy_(found)
            rewrites.update({(met.operation, met.place): met.count for met in path.rewrites})
            return
        except (RuntimeError, MemoryError) as error:
            scarce = out_of_memory(error)
            if at_once == 0 and not (scarce and len(x) > 1):
                raise
        # Outside the except block: inside it the traceback keeps the failed attempt in memory.
        if scarce and len(x) > 1:
            half = -(-len(x) // 2)
            for some, part in zip(torch.split(x, half), torch.split(rows, half), strict=True):
                fill(some, part, at_once)
        else:
            fill(x, rows, at_once // 2 if scarce and at_once // 2 >= LEAST_BLOCK else 0)

    with torch.inference_mode(False), torch.enable_grad(), warnings.catch_warnings():
        block = (budget or MemoryBudget()).block(model, x[0], horizon, ROWS_AT_ONCE)
        together = max(1, block // len(picks), min(WINDOWS_TOGETHER, block // 2))
        result = x.new_empty(len(x), len(picks), *x.shape[1:])
        warnings.filterwarnings("ignore", "There is a performance drop")  # operations without a batching rule
        for windows, rows in zip(torch.split(x, together), torch.split(result, together), strict=True):
            blocks = ceil(len(picks) * len(windows) / block)  # one, or an even number of about equal size
            fill(windows, rows, ceil(len(picks) / (blocks + blocks % 2 if blocks > 1 else 1)))
    return Rows(result, tuple(Rewrite(*key, count) for key, count in sorted(rewrites.items())))


def _differentiate(model: Forecaster, x: Tensor, horizon: int, picks: Tensor, at_once: int) -> Tensor:
    """`(G, L) -> (G, R, L)` in blocks of `at_once` rows; 0: a backward pass per row."""
    leaf, working = differentiable_input(x)
    forecast = model.forward(working, horizon)
    forecast = forecast.sum(dim=-1) if forecast.ndim == 3 else forecast
    if not forecast.requires_grad:
        return x.new_zeros(len(x), len(picks), *x.shape[1:])

    def gradient(pick: Tensor) -> Tensor:
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        return torch.autograd.grad(forecast, leaf, pick, **options)[0]

    each = picks.to(forecast)[:, None, :].expand(-1, len(x), -1)  # (R, G, H): the same rows for every window
    if not at_once:
        return torch.stack([gradient(pick) for pick in each], dim=1)
    with backward_alone():
        batched = torch.func.vmap(gradient)
        return torch.cat([batched(block) for block in torch.split(each, at_once)]).transpose(0, 1)


def saliency(task: AttributionTask, _: Settings) -> Estimate:
    """`|∂ŷ[h]/∂x|` (Simonyan et al. 2014). The input gradient is the same at every step of the horizon."""
    return _magnitudes(task, derivatives(task.model, task.x, task.horizon, task.picks, task.budget))


def gradient_x_input(task: AttributionTask, _: Settings) -> Estimate:
    """`|x · ∂ŷ[h]/∂x|` (Shrikumar et al. 2016)."""
    rows = derivatives(task.model, task.x, task.horizon, task.picks, task.budget)
    return _magnitudes(task, rows._replace(jacobian=rows.jacobian * task.x[:, None]))


def integrated_gradients(task: AttributionTask, settings: IntegratedGradientsSettings) -> Estimate:
    """`|(x − x̄) · ∫₀¹ ∂ŷ[h]/∂x (x̄ + α (x − x̄)) dα|` (Sundararajan et al. 2017), `x̄` the mean
    of the window, or of each of its channels.

    A row with its signs sums to the change of its step from `x̄` to `x`. By Gauss–Legendre quadrature, which is exact
    where the derivative is a polynomial in `α` of a degree below twice the number of points.
    """
    nodes, weights = np.polynomial.legendre.leggauss(settings.points)
    alpha = torch.as_tensor((nodes + 1) / 2).to(task.x)
    away = task.x - task.mean
    path = task.mean[:, None] + alpha.view(-1, *[1] * (task.x.ndim - 1)) * away[:, None]
    rows = _derivatives_at(task, path)
    share = torch.as_tensor(weights / 2).to(task.x).view(-1, *[1] * task.x.ndim)
    mean = (rows.jacobian * share).sum(dim=1)
    return _magnitudes(task, rows._replace(jacobian=mean * away[:, None]))


def smoothgrad(task: AttributionTask, settings: SmoothGradSettings) -> Estimate:
    """`|mean of ∂ŷ[h]/∂x (x + ε)|` over noise of a given part of the window's range (Smilkov et al. 2017)."""
    rows = _derivatives_at(task, task.x[:, None] + noise(task, settings))
    return _magnitudes(task, rows._replace(jacobian=rows.jacobian.mean(dim=1)))


def noise(task: AttributionTask, settings: SmoothGradSettings) -> Tensor:
    """`(W, N, L)`: what is added to each window, from a random stream of its own."""
    shape = (settings.samples, *task.x.shape[1:])
    # Five numbers: four would repeat the stream of one of the draws that score the matrix.
    streams = [np.random.default_rng([task.seed, task.stream, w, NOISE_STREAM, 0]) for w in range(len(task.x))]
    drawn = [stream.standard_normal(shape) for stream in streams]
    return torch.as_tensor(np.stack(drawn)).to(task.x) * (settings.noise * task.spread)[:, None]


def tsr(task: AttributionTask, settings: TSRSettings) -> Estimate:
    """Temporal saliency rescaling (Ismail et al. 2020, algorithm 1) of a gradient.

    The time relevance of a position is the total change of the attribution when the position is replaced by the
    window's mean. With one variate the feature relevance is the same for all positions: those above the threshold keep
    their time relevance, the others a part of it.
    """
    length = task.x.shape[1]
    masked = torch.where(torch.eye(length, dtype=torch.bool), task.x.mean(dim=1)[:, None, None], task.x[:, None])
    inputs = torch.cat([task.x[:, None], masked], dim=1)
    rows = _derivatives_at(task, inputs)
    attribution = rows.jacobian.abs() if settings.base == "saliency" else rows.jacobian * inputs[:, :, None]
    relevance = (attribution[:, 1:] - attribution[:, :1]).abs().sum(dim=-1).transpose(1, 2)
    low, high = relevance.amin(dim=-1, keepdim=True), relevance.amax(dim=-1, keepdim=True)
    scaled = (relevance - low) / torch.where(high > low, high - low, 1)
    above = scaled > torch.quantile(scaled, settings.threshold, dim=-1, keepdim=True)
    return Estimate(torch.where(above, scaled, settings.below * scaled), rows.rewrites)


def _derivatives_at(task: AttributionTask, inputs: Tensor) -> Rows:
    """Derivatives `(W, N, R, L)` at `N` inputs for each window, `(W, N, L)`."""
    rows = derivatives(task.model, inputs.flatten(0, 1), task.horizon, task.picks, task.budget)
    return rows._replace(jacobian=torch.unflatten(rows.jacobian, 0, (-1, inputs.shape[1])))


def _magnitudes(task: AttributionTask, rows: Rows) -> Estimate:
    signed = rows.jacobian.clone() if task.signed and task.x.ndim == 2 else None
    matrix = rows.jacobian.abs_()  # in place: this tensor has no other user and may be the largest in memory
    return Estimate(matrix.sum(dim=-1) if task.x.ndim == 3 else matrix, rows.rewrites, signed)
