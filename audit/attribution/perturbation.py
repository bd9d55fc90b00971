"""Estimators that perturb parts of the lookback: occlusion, grouped Shapley values by lag, and WinIT.

A perturbed position receives a value from elsewhere in the same window, in antithetic pairs of draws, as in the
deletion sweep. The draws are not those of the sweep: the matrix would otherwise be fitted to its own test. Every row
is read from the same forecasts.
"""

from collections.abc import Callable
from math import factorial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.audit.attribution import AttributionTask, Estimate
from hrx.audit.attribution.settings import OcclusionSettings, ShapleySegmentsSettings, WinITSettings
from hrx.audit.protocol import rearranged
from hrx.audit.torch_state import one_thread

REARRANGEMENT_STREAM = 2
"""Separates these rearrangements from the other random draws under one seed."""
PERMUTATION_STREAM = 4
"""Separates the permutations from the other random draws under one seed."""
FORECASTS_AT_ONCE = 64


def replacements_of(task: AttributionTask, kind: str, first: int, count: int) -> Tensor:
    """`(W, D, L)`: the replacements of perturbed positions, in draws `first … first + count − 1`."""
    if kind == "mean":
        return task.mean[:, None].expand(-1, count, -1)
    key = task.seed, task.stream, REARRANGEMENT_STREAM
    return rearranged(task.x, key, first, count, sections=task.sections)[:, 0]


def forecasts(task: AttributionTask, inputs: Tensor) -> Tensor:
    """`(W, N, L) -> (W, N, H)`, without gradients, the inputs of one window at a time."""
    at_once = task.budget.rows(task.model, task.x[0], task.horizon, FORECASTS_AT_ONCE)
    with torch.no_grad(), one_thread():
        parts = [part for own in inputs for part in torch.split(own, at_once)]
        y = torch.cat([task.budget.forward(task.model, part, task.horizon) for part in parts])
    return torch.unflatten(y, 0, inputs.shape[:2])


def occlusion(task: AttributionTask, settings: OcclusionSettings) -> Estimate:
    """`|ŷ[h] − f(x with one span corrupted)[h]|` for every position of the span (Zeiler & Fergus 2014).

    Spans do not overlap; each channel has its own. The magnitude is averaged over draws.
    """
    span = -(-task.sections[0] // settings.spans)
    owner = _each_channel(task, lambda length: torch.arange(length) // span)
    spans = torch.arange(int(owner[-1]) + 1)
    corrupted = owner == spans[:, None]
    draws = replacements_of(task, settings.replacement, 0, 1 if settings.replacement == "mean" else settings.draws)
    inputs = torch.where(corrupted[:, None], draws[:, None], task.x[:, None, None])
    inputs = torch.cat([task.x[:, None], inputs.flatten(1, 2)], dim=1)
    explained = forecasts(task, inputs) @ task.picks.to(task.x).T
    change = torch.unflatten((explained[:, 1:] - explained[:, :1]).abs(), 1, (len(spans), -1)).mean(dim=2)
    return Estimate(change[:, owner].transpose(1, 2))


def _each_channel(task: AttributionTask, owners: Callable[[int], Tensor]) -> Tensor:
    """`(L,)`: the group of each position, from those of each channel by its length, counted on."""
    parts: list[Tensor] = []
    for length in task.sections:
        parts.append(owners(length) + (parts[-1].max() + 1 if parts else 0))
    return torch.cat(parts)


def lag_segments(length: int, count: int) -> Tensor:
    """`(L,)`: the segment of each position, 0 for the latest; each has `⌈L / count⌉` positions, the oldest the rest."""
    return torch.arange(length - 1, -1, -1) // -(-length // count)


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


def shapley_segments(task: AttributionTask, settings: ShapleySegmentsSettings) -> Estimate:
    """Magnitude of the Shapley value of each lag segment of each channel; its positions share it (TimeSHAP, Bento et
    al. 2021).

    The value of a coalition is the row's forecast with every other segment replaced, mean of the draws.
    """
    owner = _each_channel(task, lambda length: lag_segments(length, settings.segments))
    segments = int(owner.max()) + 1
    if 2**segments <= settings.coalitions:
        games = [every_coalition(segments)] * len(task.x)
    else:
        keys = [[task.seed, task.stream, w, PERMUTATION_STREAM, 0] for w in range(len(task.x))]
        games = [sampled_coalitions(segments, settings.coalitions, np.random.default_rng(key)) for key in keys]
    kept = torch.stack([game.kept for game in games])[:, :, owner]  # (W, N, L)
    change = _explained(task, ~kept, settings.replacement, settings.draws).mean(dim=2)  # (W, N, R)
    value = torch.stack([game.weight for game in games]) @ change
    return Estimate(value.abs()[:, owner].transpose(1, 2).to(task.x))


def winit(task: AttributionTask, settings: WinITSettings) -> Estimate:
    """How much farther the forecast moves when the span joins the later ones (WinIT, Leung et al. 2023).

    `max(0, D(j) − D(j + 1))`, where `D(j)` is the mean magnitude of the row's change when span `j` and all later ones
    are replaced; `D` is zero after the last span.
    """
    owner = lag_segments(task.x.shape[1], settings.spans)
    perturbed = owner <= torch.arange(int(owner.max()) + 1)[:, None]  # (S, L): from lag segment s to the end
    change = _explained(task, perturbed.expand(len(task.x), -1, -1), settings.replacement, settings.draws)
    distance = change.abs().mean(dim=2)  # (W, S, R)
    gain = torch.diff(distance, dim=1, prepend=torch.zeros_like(distance[:, :1])).clamp(min=0)
    return Estimate(gain[:, owner].transpose(1, 2).to(task.x))


def _explained(task: AttributionTask, perturbed: Tensor, replacement: str, draws: int) -> Tensor:
    """`(W, N, L) -> (W, N, D, R)`, float64: change of each row when the positions are replaced, for each draw."""
    drawn = replacements_of(task, replacement, 0, 1 if replacement == "mean" else draws)
    inputs = torch.where(perturbed[:, :, None], drawn[:, None], task.x[:, None, None])
    y = forecasts(task, torch.cat([task.x[:, None], inputs.flatten(1, 2)], dim=1)).double()
    explained = y @ task.picks.to(y).T
    return torch.unflatten(explained[:, 1:] - explained[:, :1], 1, inputs.shape[1:3])
