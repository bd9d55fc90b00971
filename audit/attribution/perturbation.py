"""The estimators that corrupt the window and look again: occlusion and temporal saliency rescaling.

What a corrupted position receives is the deletion's own: a value from elsewhere in the same window, in antithetic
pairs of draws. The draws are not those that score the matrix, which would then be fitted to its own test.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hrx.audit.attribution.gradients import of_variants
from hrx.audit.attribution.jacobian import one_thread
from hrx.audit.attribution.settings import TSR, Occlusion
from hrx.audit.attribution.task import Filled, Task

REARRANGED = 2
"""Tells these rearrangements from the other random draws under one seed."""
FORECASTS_AT_ONCE = 64


def replaced(task: Task, kind: str, first: int, count: int) -> Tensor:
    """`(W, D, L)`: what corrupted positions receive, in draws `first … first + count − 1`.

    A draw rearranges the window's sorted values by a random permutation, and the next one by the mirrored permutation.
    It depends on the seed, the stream, the window's place in its run and its own number only.
    """
    windows, length = task.x.shape
    if kind == "mean":
        return task.x.mean(dim=1)[:, None, None].expand(-1, count, length)
    index = np.empty((windows, count, length), dtype=np.int64)
    for w in range(windows):
        for d in range(count):
            pair, mirrored = divmod(first + d, 2)
            u = np.random.default_rng([task.seed, task.stream, w, REARRANGED, pair]).permutation(length)
            index[w, d] = length - 1 - u if mirrored else u
    ordered = torch.sort(task.x, dim=1).values[:, None].expand(-1, count, -1)
    return torch.gather(ordered, 2, torch.as_tensor(index, device=task.x.device))


def forecasts(task: Task, inputs: Tensor) -> Tensor:
    """`(W, N, L) -> (W, N, H)`, without gradients, a window's own inputs at a time."""
    at_once = task.budget.rows(task.model, task.x[0], task.horizon, FORECASTS_AT_ONCE)
    with torch.no_grad(), one_thread():
        each = [
            task.budget.forward(task.model, some, task.horizon) for own in inputs for some in torch.split(own, at_once)
        ]
    return torch.unflatten(torch.cat(each), 0, inputs.shape[:2])


def occlusion(task: Task, settings: Occlusion) -> Filled:
    """`|ŷ[h] − f(x with one span corrupted)[h]|` for every position of the span (Zeiler & Fergus 2014).

    Spans do not overlap. The magnitude is averaged over draws.
    """
    length = task.x.shape[1]
    span = -(-length // settings.spans)
    owner = torch.arange(length) // span
    spans = torch.arange(int(owner[-1]) + 1)
    corrupted = owner == spans[:, None]
    draws = replaced(task, settings.replacement, 0, 1 if settings.replacement == "mean" else settings.draws)
    inputs = torch.where(corrupted[:, None], draws[:, None], task.x[:, None, None])
    read = torch.cat([task.x[:, None], inputs.flatten(1, 2)], dim=1)
    seen = forecasts(task, read) @ task.picks.to(task.x).T
    change = torch.unflatten((seen[:, 1:] - seen[:, :1]).abs(), 1, (len(spans), -1)).mean(dim=2)
    return Filled(change[:, owner].transpose(1, 2))


def tsr(task: Task, settings: TSR) -> Filled:
    """Temporal saliency rescaling (Ismail et al. 2020, algorithm 1) of a gradient.

    The time relevance of a position is the total change of the attribution when the position is masked, by the
    window's mean. The feature relevance is the same for all positions where there is one variate: positions above the
    threshold keep their time relevance, the others a part of it.
    """
    length = task.x.shape[1]
    masked = torch.where(torch.eye(length, dtype=torch.bool), task.x.mean(dim=1)[:, None, None], task.x[:, None])
    inputs = torch.cat([task.x[:, None], masked], dim=1)
    rows = of_variants(task, inputs)
    attribution = rows.jacobian.abs() if settings.base == "saliency" else rows.jacobian * inputs[:, :, None]
    relevance = (attribution[:, 1:] - attribution[:, :1]).abs().sum(dim=-1).transpose(1, 2)
    low, high = relevance.amin(dim=-1, keepdim=True), relevance.amax(dim=-1, keepdim=True)
    scaled = (relevance - low) / torch.where(high > low, high - low, 1)
    kept = scaled > torch.quantile(scaled, settings.threshold, dim=-1, keepdim=True)
    return Filled(torch.where(kept, scaled, settings.below * scaled), rows.rewrites)
