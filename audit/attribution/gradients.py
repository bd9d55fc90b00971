"""The estimators that differentiate: every row from vector–Jacobian products of one forward pass per input.

Signs are dropped last, and the channels of a multivariate window are summed after that.
"""

import numpy as np
import torch
from torch import Tensor

from hrx.audit.attribution.explanation import AttributionTask, EstimatedRows
from hrx.audit.attribution.jacobian import Rows, derivatives
from hrx.audit.attribution.registry import IntegratedGradientsSettings, Settings, SmoothGradSettings, TSRSettings

NOISE_STREAM = 1
"""Separates the noise from the other random draws under one seed."""


def saliency(task: AttributionTask, _: Settings) -> EstimatedRows:
    """`|∂ŷ[h]/∂x|` (Simonyan et al. 2014). The input gradient is the same at every step of the horizon."""
    return _magnitudes(task, derivatives(task.model, task.x, task.horizon, task.picks, task.budget))


def gradient_x_input(task: AttributionTask, _: Settings) -> EstimatedRows:
    """`|x · ∂ŷ[h]/∂x|` (Shrikumar et al. 2016)."""
    rows = derivatives(task.model, task.x, task.horizon, task.picks, task.budget)
    return _magnitudes(task, rows._replace(jacobian=rows.jacobian * task.x[:, None]))


def integrated_gradients(task: AttributionTask, settings: IntegratedGradientsSettings) -> EstimatedRows:
    """`|(x − x̄) · ∫₀¹ ∂ŷ[h]/∂x (x̄ + α (x − x̄)) dα|` (Sundararajan et al. 2017), `x̄` the window's mean."""
    return _magnitudes(task, path_integral(task, settings))


def path_integral(task: AttributionTask, settings: IntegratedGradientsSettings) -> Rows:
    """Integrated gradients with their signs, `(W, R, L)`: a row sums to the change of its step from `x̄` to `x`.

    By Gauss–Legendre quadrature, which is exact where the derivative is a polynomial in `α` of a degree below twice
    the number of points.
    """
    nodes, weights = np.polynomial.legendre.leggauss(settings.points)
    alpha = torch.as_tensor((nodes + 1) / 2).to(task.x)
    baseline = task.x.mean(dim=1, keepdim=True)
    away = task.x - baseline
    path = baseline[:, None] + alpha.view(-1, *[1] * (task.x.ndim - 1)) * away[:, None]
    rows = _derivatives_at(task, path)
    share = torch.as_tensor(weights / 2).to(task.x).view(-1, *[1] * task.x.ndim)
    mean = (rows.jacobian * share).sum(dim=1)
    return rows._replace(jacobian=mean * away[:, None])


def smoothgrad(task: AttributionTask, settings: SmoothGradSettings) -> EstimatedRows:
    """`|mean of ∂ŷ[h]/∂x (x + ε)|` over noise of a given part of the window's range (Smilkov et al. 2017)."""
    rows = _derivatives_at(task, task.x[:, None] + noise(task, settings))
    return _magnitudes(task, rows._replace(jacobian=rows.jacobian.mean(dim=1)))


def noise(task: AttributionTask, settings: SmoothGradSettings) -> Tensor:
    """`(W, N, L)`: what is added to each window, from a random stream of its own."""
    spread = settings.noise * (task.x.amax(dim=1, keepdim=True) - task.x.amin(dim=1, keepdim=True))
    shape = (settings.samples, *task.x.shape[1:])
    # Five numbers: four would repeat the stream of one of the draws that score the matrix.
    streams = [np.random.default_rng([task.seed, task.stream, w, NOISE_STREAM, 0]) for w in range(len(task.x))]
    drawn = [stream.standard_normal(shape) for stream in streams]
    return torch.as_tensor(np.stack(drawn)).to(task.x) * spread[:, None]


def tsr(task: AttributionTask, settings: TSRSettings) -> EstimatedRows:
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
    return EstimatedRows(torch.where(above, scaled, settings.below * scaled), rows.rewrites)


def _derivatives_at(task: AttributionTask, inputs: Tensor) -> Rows:
    """The derivatives `(W, N, R, L)` at `N` inputs for each window, `(W, N, L)`."""
    rows = derivatives(task.model, inputs.flatten(0, 1), task.horizon, task.picks, task.budget)
    return rows._replace(jacobian=torch.unflatten(rows.jacobian, 0, (-1, inputs.shape[1])))


def _magnitudes(task: AttributionTask, rows: Rows) -> EstimatedRows:
    signed = rows.jacobian.clone() if task.signed and task.x.ndim == 2 else None
    matrix = rows.jacobian.abs_()  # in place: this tensor has no other user and may be the largest in memory
    return EstimatedRows(matrix.sum(dim=-1) if task.x.ndim == 3 else matrix, rows.rewrites, signed)
