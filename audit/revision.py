"""Why the forecast of a date changed between two origins: drift without news, and the part of each new value.

The model forecast a date at an earlier origin, `old`, and again after `k` more values had arrived, `new`. In between
lies its forecast with its own forecasts in place of the `k` values: what differs from `old` is drift, what leads on to
`new` is news. Pure functions on tensors; `hrx.api.revision` places them in a series.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster
from hrx.audit.attribution.gradients import derivatives
from hrx.audit.attribution.perturbation import every_coalition, sampled_coalitions
from hrx.audit.memory import MemoryBudget
from hrx.audit.torch_state import differentiable, plain
from hrx.records.quantities import Floats

PRECISION = 0.01
"""Share of a revision that the contributions may leave over before the path is refined."""
POINTS = (4, 24)
"""Points of the quadrature, and of its refinement: with four forecasts 60 forward and backward passes."""
FINER = (96, 384)
"""Further refinements for a precision below the default."""
MOST_EXACT = 8
"""New values up to which all their subsets are forecast, for a model without derivatives."""
ROWS_AT_ONCE = 64
"""Rows of the Jacobian that are computed together, counted over all points."""
COALITIONS = 512
"""Subsets that are forecast for more new values."""


@dataclass(frozen=True)
class RevisionParts:
    """Parts of the revisions of `D` dates by `k` new values. `old + drift + dropped + news + remainder` is `new`."""

    expected: Floats
    """`(k,)`: the old forecasts of the new values."""
    old: Floats
    """`(D,)`: forecasts of the dates at the earlier origin."""
    new: Floats
    """`(D,)`: forecasts at the later origin."""
    drift: Floats
    """`(D,)`: what the model's own forecasts change when it reads them as values."""
    dropped: Floats | None
    """`(D,)`: what the `k` oldest values change when they leave the window; None where the model takes no longer
    window, and `drift` holds it too."""
    news: Floats
    """`(D, k)`: contribution of each new value."""
    points: int
    """Points of the quadrature; 0 for Shapley values."""

    @property
    def remainder(self) -> Floats:
        """`(D,)`: what the contributions leave over."""
        dropped = 0.0 if self.dropped is None else self.dropped
        return np.asarray(self.new - self.old - self.drift - dropped - self.news.sum(axis=1))


def revise(
    model: Forecaster,
    history: Tensor,
    arrived: Tensor,
    horizon: int,
    *,
    precision: float = PRECISION,
    seed: int = 0,
) -> RevisionParts:
    """Parts of the revisions of all dates that both forecasts have.

    `history` `(L,)` is the window of the earlier origin, `arrived` `(k,)` the values after it, `1 ≤ k < horizon`. The
    later window holds as many values: the oldest leave it. Contributions are integrated gradients along the straight
    line from the forecasts of the new values to the values; Shapley values for a model without derivatives.
    """
    with differentiable():
        history, arrived = plain(history), plain(arrived)
        length, k = len(history), len(arrived)
        with torch.no_grad():
            first = model.forward(history[None], horizon)[0]
            expected = first[:k].to(history)
            own = torch.cat([history, expected])
            longer = None
            if model.limits.refusal(length + k, horizon) is None:
                longer = _double(model.forward(own[None], horizon)[0, : horizon - k])
        without, with_news = own[-length:], torch.cat([history, arrived])[-length:]
        forecasts = model.forward(torch.stack([without, with_news]).requires_grad_(), horizon)
        has_derivatives = forecasts.requires_grad
        old, (quiet, new) = _double(first[k:]), _double(forecasts[:, : horizon - k])
        news, points = np.zeros((horizon - k, k)), 0
        read = min(k, length)  # of more new values than a window holds, the model reads the last ones
        if has_derivatives:
            within = precision * np.abs(new - old)
            levels = POINTS if precision >= PRECISION else POINTS + FINER
            news[:, -read:], points = _integrated(model, without, with_news, horizon, new - quiet, within, read, levels)
        else:
            news[:, -read:] = _shapley(model, without, with_news, horizon, horizon - k, seed, read)
    drift, dropped = (quiet - old, None) if longer is None else (longer - old, quiet - longer)
    return RevisionParts(_double(expected), old, new, drift, dropped, news, points)


class _FixedBlock(MemoryBudget):
    """Blocks of one size: to count the bytes of a window takes nine forecasts. One that is too large is halved."""

    def block(self, model: Forecaster, window: Tensor, horizon: int, most: int) -> int:
        return min(most, ROWS_AT_ONCE)


def _integrated(
    model: Forecaster,
    start: Tensor,
    end: Tensor,
    horizon: int,
    change: Floats,
    within: Floats,
    read: int,
    levels: tuple[int, ...],
) -> tuple[Floats, int]:
    """`(D, read)`: integrated gradients of the last values from `start` to `end`, and the points of the quadrature.

    Dates whose contributions leave over more of their `change` than is `within` bounds get the next, finer quadrature.
    """
    news, away = np.zeros((len(change), read)), _double(end - start)[-read:]
    picks = torch.eye(horizon, dtype=torch.int64)[: len(change)]
    left = np.arange(len(change))
    for points in levels:
        nodes, weights = np.polynomial.legendre.leggauss(points)
        alpha = torch.as_tensor((nodes + 1) / 2).to(start)[:, None]
        rows = derivatives(model, start + alpha * (end - start), horizon, picks[left], _FixedBlock()).jacobian
        slope = np.tensordot(weights / 2, _double(rows[:, :, -read:]), axes=1)
        news[left] = slope * away
        left = left[np.abs(change - news.sum(axis=1))[left] > within[left]]
        if not left.size:
            break
    return news, points


def _shapley(model: Forecaster, start: Tensor, end: Tensor, horizon: int, dates: int, seed: int, read: int) -> Floats:
    """`(D, read)`: Shapley values of the last values, with those of `start` in place of absent ones."""
    exact = read <= MOST_EXACT
    found = every_coalition(read) if exact else sampled_coalitions(read, COALITIONS, np.random.default_rng(seed))
    windows = start.repeat(len(found.kept), 1)
    windows[:, -read:] = torch.where(found.kept, end[-read:], start[-read:])
    with torch.no_grad():
        y = torch.cat([model.forward(some, horizon) for some in torch.split(windows, 64)])
    return np.asarray(found.weight.numpy() @ _double(y[:, :dates])).T


def _double(values: Tensor) -> Floats:
    return values.detach().double().cpu().numpy()
