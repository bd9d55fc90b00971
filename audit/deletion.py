"""One deletion sweep that answers every question: each ordering deletes, every scored step is read.

Pure functions on tensors. `W` windows, `D` draws, `V` orderings (a row per scored step, then the shared vector), two
directions (most relevant first, least relevant first), `K` fractions, `S` scored steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.audit.memory import Budget
from hrx.audit.protocol import Protocol, deletion_counts

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def ranks(importance: Tensor) -> Tensor:
    """`(..., L) -> (..., L)`: the place of each position when the most important comes first, ties by position."""
    order = torch.argsort(importance, dim=-1, descending=True, stable=True)
    places = torch.arange(importance.shape[-1], device=importance.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def masks(place: Tensor, counts: npt.NDArray[np.int64]) -> Tensor:
    """`(W, V, L) -> (W, V, 2, K, L)`: which positions are deleted, most and then least relevant first."""
    k = torch.as_tensor(counts, device=place.device)[:, None]
    place = place[:, :, None, :]
    return torch.stack([place < k, place >= place.shape[-1] - k], dim=2)


def replacements(x: Tensor, protocol: Protocol, stream: int, first: int, count: int, variants: int) -> Tensor:
    """`(W, L) -> (W, J, D, L)`: what a deleted position receives, in draws `first … first + count − 1`.

    Each draw rearranges the window's own values at random. `J = 1`, one rearrangement for all `variants`
    perturbations of the window, unless draws are independent. A draw depends on the seed, the stream, the window's
    place in its run and the draw's own number, and on nothing else.
    """
    windows, length = x.shape
    shared = 1 if protocol.draws_kind != "independent" else variants
    index = np.empty((windows, shared, count, length), dtype=np.int64)
    for w in range(windows):
        for d in range(count):
            unit, second = divmod(first + d, protocol.draws_per_unit)
            rng = np.random.default_rng([protocol.seed, stream, w, unit])
            u = rng.permuted(np.tile(np.arange(length), (shared, 1)), axis=-1)
            index[w, :, d] = length - 1 - u if second else u
    sorted_x = torch.sort(x, dim=-1).values[:, None, None, :].expand(-1, shared, count, -1)
    return torch.gather(sorted_x, -1, torch.as_tensor(index, device=x.device))


class Sweep(NamedTuple):
    """What a sweep leaves behind."""

    errors: Floats
    """`(W, D, V, 2, K, S)`: squared change of the forecast at each scored step."""
    forecasts: int
    """Perturbed forecasts that were evaluated, equal ones once."""


def sweep(
    model: Forecaster,
    x: Tensor,
    forecast: Tensor,
    importance: Tensor,
    steps: npt.NDArray[np.int64],
    protocol: Protocol,
    *,
    stream: int,
    first: int,
    count: int,
    budget: Budget,
) -> Sweep:
    """Deletes by each row of `importance` `(W, V, L)` and reads every scored step of each perturbed forecast.

    `forecast` `(W, H)` is the unperturbed one. Nothing deleted leaves it as it is; everything deleted is one forecast
    per window and draw, whatever the ordering.
    """
    counts = deletion_counts(x.shape[-1], protocol.fractions)
    deleted = masks(ranks(importance), counts[1:-1])
    inner = deleted.shape[1:4]
    full = torch.ones_like(deleted[:, 0, 0, :1])
    deleted = torch.cat([deleted.flatten(1, 3), full], dim=1)
    drawn = replacements(x, protocol, stream, first, count, variants=deleted.shape[1])
    read, forecasts = _forecast_each(model, x, forecast.shape[-1], deleted, drawn, steps, budget)
    errors = np.square(read - forecast[:, steps].double().cpu().numpy()[:, None, None])

    everything = errors[:, -1][:, :, None, None, None, :]
    curves = np.moveaxis(errors[:, :-1].reshape(len(x), *inner, count, len(steps)), 4, 1)
    ends = (*curves.shape[:4], 1, len(steps))
    return Sweep(np.concatenate([np.zeros(ends), curves, np.broadcast_to(everything, ends)], axis=4), forecasts)


def _forecast_each(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    deleted: Tensor,
    drawn: Tensor,
    steps: npt.NDArray[np.int64],
    budget: Budget,
) -> tuple[Floats, int]:
    """The perturbed forecasts `(W, N, D, S)` for the masks `(W, N, L)`, each different one evaluated once."""
    windows, variants, length = deleted.shape
    draws = drawn.shape[2]
    if drawn.shape[1] == 1:
        kept, where = _unique_masks(deleted.cpu().numpy())
    else:
        kept = where = np.arange(windows * variants)
    window, variant = np.divmod(kept, variants)
    flat = deleted.reshape(-1, length)
    total = len(kept) * draws
    out = np.empty((total, len(steps)))
    rows = budget.rows(model, x[0], horizon, total)
    with torch.no_grad():
        for start in range(0, total, rows):
            mask, draw = np.divmod(np.arange(start, min(start + rows, total)), draws)
            own = drawn[window[mask], variant[mask] % drawn.shape[1], draw]
            perturbed = torch.where(flat[kept[mask]], own, x[window[mask]])
            out[start : start + rows] = model.forward(perturbed, horizon)[:, steps].double().cpu().numpy()
    read = out.reshape(len(kept), draws, len(steps))[where]
    return read.reshape(windows, variants, draws, len(steps)), total


def _unique_masks(deleted: Bools) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Index of one representative of every different (window, mask), and for each mask which one stands for it."""
    windows, variants, _ = deleted.shape
    packed = np.packbits(deleted.reshape(windows * variants, -1), axis=1)
    window = np.repeat(np.arange(windows, dtype=">u4"), variants).view(np.uint8).reshape(-1, 4)
    _, first, inverse = np.unique(
        np.concatenate([window, packed], axis=1), axis=0, return_index=True, return_inverse=True
    )
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)
