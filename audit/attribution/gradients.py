"""The estimators that differentiate: every row from vector–Jacobian products of one forward pass per input.

Signs are dropped last, and the channels of a multivariate window are summed after that.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hrx.audit.attribution.jacobian import Rows, derivatives
from hrx.audit.attribution.settings import IntegratedGradients, Settings, SmoothGrad
from hrx.audit.attribution.task import Filled, Task

NOISE = 1
"""Tells the noise from the other random draws under one seed."""


def saliency(task: Task, _: Settings) -> Filled:
    """`|∂ŷ[h]/∂x|` (Simonyan et al. 2014). The input gradient is the same at every step of the horizon."""
    rows = derivatives(task.model, task.x, task.horizon, task.picks, task.budget)
    return _filled(task, rows.jacobian, rows)


def gradient_x_input(task: Task, _: Settings) -> Filled:
    """`|x · ∂ŷ[h]/∂x|` (Shrikumar et al. 2016)."""
    rows = derivatives(task.model, task.x, task.horizon, task.picks, task.budget)
    return _filled(task, rows.jacobian * task.x[:, None], rows)


def integrated_gradients(task: Task, settings: IntegratedGradients) -> Filled:
    """`|(x − x̄) · ∫₀¹ ∂ŷ[h]/∂x (x̄ + α (x − x̄)) dα|` (Sundararajan et al. 2017), `x̄` the window's mean."""
    rows = path_integral(task, settings)
    return _filled(task, rows.jacobian, rows)


def path_integral(task: Task, settings: IntegratedGradients) -> Rows:
    """Integrated gradients with their signs, `(W, R, L)`: a row sums to the change of its step from `x̄` to `x`.

    By Gauss–Legendre quadrature, which is exact where the derivative is a polynomial in `α` of a degree below twice
    the number of points.
    """
    nodes, weights = np.polynomial.legendre.leggauss(settings.points)
    alpha = torch.as_tensor((nodes + 1) / 2).to(task.x)
    baseline = task.x.mean(dim=1, keepdim=True)
    away = task.x - baseline
    path = baseline[:, None] + alpha.view(-1, *[1] * (task.x.ndim - 1)) * away[:, None]
    rows = of_variants(task, path)
    share = torch.as_tensor(weights / 2).to(task.x).view(-1, *[1] * task.x.ndim)
    mean = (rows.jacobian * share).sum(dim=1)
    return rows._replace(jacobian=mean * away[:, None])


def smoothgrad(task: Task, settings: SmoothGrad) -> Filled:
    """`|mean of ∂ŷ[h]/∂x (x + ε)|` over noise of a given part of the window's range (Smilkov et al. 2017)."""
    rows = of_variants(task, task.x[:, None] + noise(task, settings))
    return _filled(task, rows.jacobian.mean(dim=1), rows)


def noise(task: Task, settings: SmoothGrad) -> Tensor:
    """`(W, N, L)`: what is added to each window, from a stream of its own."""
    spread = settings.noise * (task.x.amax(dim=1, keepdim=True) - task.x.amin(dim=1, keepdim=True))
    shape = (settings.samples, *task.x.shape[1:])
    # Five numbers: with four it would be the stream of one of the draws that score the matrix.
    streams = [np.random.default_rng([task.seed, task.stream, w, NOISE, 0]) for w in range(len(task.x))]
    drawn = [stream.standard_normal(shape) for stream in streams]
    return torch.as_tensor(np.stack(drawn)).to(task.x) * spread[:, None]


def of_variants(task: Task, variants: Tensor) -> Rows:
    """The derivatives `(W, N, R, L)` at `N` variants of each window `(W, N, L)`."""
    count = variants.shape[1]
    rows = derivatives(task.model, variants.flatten(0, 1), task.horizon, task.picks, task.budget)
    return rows._replace(jacobian=torch.unflatten(rows.jacobian, 0, (-1, count)))


def _filled(task: Task, signed: Tensor, rows: Rows) -> Filled:
    matrix = signed.abs_()  # in place: nobody else has it, and it may be the largest thing in memory
    return Filled(matrix.sum(dim=-1) if task.x.ndim == 3 else matrix, rows.rewrites)
