"""One deletion sweep that answers every question: each ordering deletes, every scored step is read.

Pure functions on tensors. `W` windows, `D` draws, `V` orderings (of what: `orderings.py`), two directions
(most relevant first, least relevant first), `K` fractions, `S` scored steps. What is deleted are the `P` positions of
one input axis: the `L` time steps of a window, with all its channels, or the `C` channels, with all their time steps.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.audit.memory import Budget
from hrx.audit.protocol import Protocol, deletion_counts

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Along = Literal["time", "channel"]
"""The input axis whose positions are deleted."""


def ranks(importance: Tensor) -> Tensor:
    """`(..., L) -> (..., L)`: the place of each position when the most important comes first, ties by position."""
    order = torch.argsort(importance, dim=-1, descending=True, stable=True)
    places = torch.arange(importance.shape[-1], device=importance.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def masks(place: Tensor, counts: npt.NDArray[np.int64]) -> Tensor:
    """`(W, V, P) -> (W, V, 2, K, P)`: which positions are deleted, most and then least relevant first."""
    k = torch.as_tensor(counts, device=place.device)[:, None]
    place = place[:, :, None, :]
    return torch.stack([place < k, place >= place.shape[-1] - k], dim=2)


def replacements(x: Tensor, protocol: Protocol, stream: int, first: int, count: int, variants: int) -> Tensor:
    """`(W, L) -> (W, J, D, L)`: what a deleted position receives, in draws `first … first + count − 1`.

    Each draw rearranges the window's own values at random; of a multivariate window `(W, L, C)`, those of each channel
    by themselves, which gives `(W, J, D, L, C)`. `J = 1`, one rearrangement for all `variants` perturbations of the
    window, unless draws are independent. A draw depends on the seed, the stream, the window's place in its run and the
    draw's own number, and on nothing else.
    """
    windows, length, channels = len(x), x.shape[1], x[0, 0].numel()
    shared = 1 if protocol.draws_kind != "independent" else variants
    index = np.empty((windows, shared, count, length, channels), dtype=np.int64)
    for w in range(windows):
        for d in range(count):
            unit, second = divmod(first + d, protocol.draws_per_unit)
            rng = np.random.default_rng([protocol.seed, stream, w, unit])
            u = rng.permuted(np.tile(np.arange(length), (shared, channels, 1)), axis=-1).swapaxes(1, 2)
            index[w, :, d] = length - 1 - u if second else u
    ordered = torch.sort(x, dim=1).values.reshape(windows, 1, 1, length, channels).expand(-1, shared, count, -1, -1)
    drawn = torch.gather(ordered, 3, torch.as_tensor(index, device=x.device))
    return drawn if x.ndim == 3 else drawn[..., 0]


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
    along: Along = "time",
) -> Sweep:
    """Deletes by each row of `importance` `(W, V, P)` and reads every scored step of each perturbed forecast.

    `forecast` `(W, H)`, or `(W, H, C)`, is the unperturbed one. Nothing deleted leaves it as it is; everything deleted
    is one forecast per window and draw, whatever the ordering. The changes of a forecast's channels are summed.
    """
    counts = deletion_counts(importance.shape[-1], protocol.fractions)
    deleted = masks(ranks(importance), counts[1:-1])
    inner = deleted.shape[1:4]
    full = torch.ones_like(deleted[:, 0, 0, :1])
    deleted = torch.cat([deleted.flatten(1, 3), full], dim=1)
    drawn = replacements(x, protocol, stream, first, count, variants=deleted.shape[1])
    errors, forecasts = _errors(model, x, forecast, deleted, drawn, steps, budget, along)

    everything = errors[:, -1][:, :, None, None, None, :]
    curves = np.moveaxis(errors[:, :-1].reshape(len(x), *inner, count, len(steps)), 4, 1)
    ends = (*curves.shape[:4], 1, len(steps))
    return Sweep(np.concatenate([np.zeros(ends), curves, np.broadcast_to(everything, ends)], axis=4), forecasts)


def _errors(
    model: Forecaster,
    x: Tensor,
    forecast: Tensor,
    deleted: Tensor,
    drawn: Tensor,
    steps: npt.NDArray[np.int64],
    budget: Budget,
    along: Along,
) -> tuple[Floats, int]:
    """The squared changes `(W, N, D, S)` under the masks `(W, N, P)`, each different one evaluated once."""
    windows, variants, positions = deleted.shape
    draws, horizon = drawn.shape[2], forecast.shape[1]
    if drawn.shape[1] == 1:
        kept, where = _unique_masks(deleted.cpu().numpy())
    else:
        kept = where = np.arange(windows * variants)
    window, variant = np.divmod(kept, variants)
    # A mask over time is the same for all channels, one over channels the same at all times.
    flat = deleted.reshape(-1, *([positions] if x.ndim == 2 else [positions, 1] if along == "time" else [1, positions]))
    base = forecast[:, steps].double()
    total = len(kept) * draws
    out = np.empty((total, len(steps)))
    rows = budget.fastest(model, x[0], horizon, total)
    with torch.no_grad():
        for start in range(0, total, rows):
            mask, draw = np.divmod(np.arange(start, min(start + rows, total)), draws)
            own = drawn[window[mask], variant[mask] % drawn.shape[1], draw]
            perturbed = torch.where(flat[kept[mask]], own, x[window[mask]])
            change = (budget.forward(model, perturbed, horizon)[:, steps].double() - base[window[mask]]).square()
            out[start : start + rows] = (change if x.ndim == 2 else change.sum(dim=-1)).cpu().numpy()
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
