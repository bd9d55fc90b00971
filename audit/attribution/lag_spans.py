"""Estimators that perturb segments of the lookback, counted by lag: grouped Shapley values, and WinIT.

Perturbed positions get the protocol's replacements. Every row is read from the same forecasts.
"""

from math import factorial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.audit.attribution.explanation import AttributionTask, EstimatedRows
from hrx.audit.attribution.perturbation import forecasts, lag_segments, replacements_of
from hrx.audit.attribution.registry import ShapleySegmentsSettings, WinITSettings

PERMUTATION_STREAM = 4
"""Separates the permutations from the other random draws under one seed."""


class Coalitions(NamedTuple):
    """Coalitions of `S` segments, and how their values add up to Shapley values."""

    kept: Tensor
    """`(N, S)`: whether a coalition keeps a segment."""
    weight: Tensor
    """`(S, N)`, float64: weight of each value in the Shapley value of each segment."""


def every_coalition(segments: int) -> Coalitions:
    """All `2^S` coalitions with the weights of the definition."""
    kept = (torch.arange(2**segments)[:, None] >> torch.arange(segments)) & 1 == 1
    size = kept.sum(dim=1)
    # A coalition of k others is joined in k! (S − 1 − k)! of the S! orders.
    share = [factorial(k) * factorial(segments - 1 - k) / factorial(segments) for k in range(segments)]
    table = torch.tensor([0.0, *share, 0.0], dtype=torch.float64)
    return Coalitions(kept, torch.where(kept.T, table[size], -table[size + 1]))


def sampled_coalitions(segments: int, count: int, rng: np.random.Generator) -> Coalitions:
    """About `count` coalitions: those that grow along random orders of the segments, each with its reverse."""
    pairs = max(1, count // (2 * (segments + 1)))
    drawn = rng.permuted(np.tile(np.arange(segments), (pairs, 1)), axis=1)
    place = torch.as_tensor(np.concatenate([drawn, drawn[:, ::-1]]).argsort(axis=1))  # (M, S): when a segment joins
    joined = torch.arange(segments + 1)[:, None] > place[:, None]  # (M, S + 1, S)
    after = (torch.arange(segments + 1)[:, None] == place[:, None] + 1).double()
    before = (torch.arange(segments + 1)[:, None] == place[:, None]).double()
    return Coalitions(joined.flatten(0, 1), ((after - before) / len(place)).flatten(0, 1).T)


def shapley_segments(task: AttributionTask, settings: ShapleySegmentsSettings) -> EstimatedRows:
    """Magnitude of the Shapley value of each lag segment; its positions share it (TimeSHAP, Bento et al. 2021).

    The value of a coalition is the row's forecast with every other segment replaced, mean of the draws.
    """
    owner = lag_segments(task.x.shape[1], settings.segments)
    segments = int(owner.max()) + 1
    if 2**segments <= settings.coalitions:
        games = [every_coalition(segments)] * len(task.x)
    else:
        keys = [[task.seed, task.stream, w, PERMUTATION_STREAM, 0] for w in range(len(task.x))]
        games = [sampled_coalitions(segments, settings.coalitions, np.random.default_rng(key)) for key in keys]
    kept = torch.stack([game.kept for game in games])[:, :, owner]  # (W, N, L)
    change = _explained(task, ~kept, settings.replacement, settings.draws).mean(dim=2)  # (W, N, R)
    value = torch.stack([game.weight for game in games]) @ change
    return EstimatedRows(value.abs()[:, owner].transpose(1, 2).to(task.x))


def winit(task: AttributionTask, settings: WinITSettings) -> EstimatedRows:
    """How much farther the forecast moves when the span joins the later ones (WinIT, Leung et al. 2023).

    `max(0, D(j) − D(j + 1))`, where `D(j)` is the mean magnitude of the row's change when span `j` and all later ones
    are replaced; `D` is zero after the last span.
    """
    owner = lag_segments(task.x.shape[1], settings.spans)
    perturbed = owner <= torch.arange(int(owner.max()) + 1)[:, None]  # (S, L): from lag segment s to the end
    change = _explained(task, perturbed.expand(len(task.x), -1, -1), settings.replacement, settings.draws)
    distance = change.abs().mean(dim=2)  # (W, S, R)
    gain = torch.diff(distance, dim=1, prepend=torch.zeros_like(distance[:, :1])).clamp(min=0)
    return EstimatedRows(gain[:, owner].transpose(1, 2).to(task.x))


def _explained(task: AttributionTask, perturbed: Tensor, replacement: str, draws: int) -> Tensor:
    """`(W, N, L) -> (W, N, D, R)`, float64: change of each row when the positions are replaced, for each draw."""
    drawn = replacements_of(task, replacement, 0, 1 if replacement == "mean" else draws)
    inputs = torch.where(perturbed[:, :, None], drawn[:, None], task.x[:, None, None])
    y = forecasts(task, torch.cat([task.x[:, None], inputs.flatten(1, 2)], dim=1)).double()
    explained = y @ task.picks.to(y).T
    return torch.unflatten(explained[:, 1:] - explained[:, :1], 1, inputs.shape[1:3])
