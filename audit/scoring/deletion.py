"""Orderings of a run, and one deletion sweep for all quantities: each ordering deletes, every scored step is used.

Pure functions on tensors. `W` windows, `D` draws, `V` orderings, two directions (most relevant first, least relevant
first), `K` fractions, `S` scored steps. The sweep deletes the `P` positions of one input axis: the `L` time steps of a
window, in all channels, or the `C` channels, at all time steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster
from hrx.adapters.wrapped import Bound
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import Protocol, deletion_counts, fine_counts, rearranged
from hrx.audit.torch_state import one_thread
from hrx.errors import ProtocolError
from hrx.records.quantities import DISTANCES, TRUNCATIONS, Floats, Ints

Along = Literal["time", "channel"]
"""Input axis whose positions are deleted."""


class Orderings(NamedTuple):
    """Importances to delete by, each different one once, and which of them each quantity uses.

    Two quantities that must agree exactly then use the same forecasts.
    """

    importance: Tensor
    """`(W, V, P)`."""
    matrix: Ints
    """`(S + 1,)`: the row of each scored step, then the shared vector."""
    truncated: Ints
    """`(T, S + 1)`: the same for each truncation; `T = 0` where none is scored."""
    distant: Ints
    """`(Δ, 2, S)`: the rows `Δ` after and before each scored step, −1 where there is none; `Δ = 0` where not scored."""
    rows: Ints
    """`(S,)`: the row of the explanation matrix that belongs to each scored step."""


def orderings(matrix: Tensor, estimated: Ints, steps: Ints, protocol: Protocol) -> Orderings:
    """Orderings of a run with the explanation `matrix` `(W, R, P)` of the `estimated` steps.

    A matrix with the axis removed has one row, which every scored step uses, and the shared vector is that row.
    """
    if (protocol.truncation or protocol.distance) and protocol.draws_kind == "independent":
        raise ProtocolError(
            "Truncations and distances are compared under the same replacements, which independent draws do not share. "
            "Set draws_kind to 'antithetic' or 'paired'."
        )
    truncations = TRUNCATIONS if protocol.truncation else ()
    distances = np.array(DISTANCES if protocol.distance else (), dtype=np.int64)
    if protocol.axis == "whole":
        shared_row = np.zeros((1 + len(truncations), len(steps) + 1), dtype=np.int64)
        nowhere = np.full((len(distances), 2, len(steps)), -1, dtype=np.int64)
        return Orderings(matrix.double(), shared_row[0], shared_row[1:], nowhere, shared_row[0, :-1])

    rows, own = np.searchsorted(estimated, steps), np.arange(len(steps) + 1)
    listed: list[Tensor] = []

    def add(importance: Tensor) -> int:
        """Lists more orderings `(W, N, P)`; returns the place of the first."""
        place = sum(block.shape[1] for block in listed)
        listed.append(importance)
        return place

    add(_with_shared(matrix, rows))
    truncated = np.empty((len(truncations), len(own)), dtype=np.int64)
    for place, rank in enumerate(truncations):
        if rank >= min(matrix.shape[1:]):
            truncated[place] = own
        elif rank == 1:
            truncated[place] = add(torch.stack([truncate(window[None], 1)[0, :1] for window in matrix]))
        else:
            truncated[place] = own + add(
                torch.cat([_with_shared(truncate(window[None], rank), rows) for window in matrix])
            )

    # The estimated steps h + Δ and h − Δ of each scored step h.
    away = steps + distances[:, None, None] * np.array([1, -1])[:, None]
    exists = np.isin(away, estimated)
    others = np.setdiff1d(away[exists], steps)
    ordering = np.full(int(estimated[-1]) + 1, -1, dtype=np.int64)
    ordering[steps] = own[:-1]
    ordering[others] = np.arange(len(others)) + add(matrix[:, np.searchsorted(estimated, others)].double())
    distant = np.where(exists, ordering[np.where(exists, away, 0)], -1)
    return Orderings(torch.cat(listed, dim=1), own, truncated, distant, rows)


def truncate(matrix: Tensor, rank: int) -> Tensor:
    """`(W, R, L) -> (W, R, L)`: the magnitude of the matrix's rank-`rank` truncation, `|Σ_k σ_k u_k v_kᵀ|`, `k ≤ rank`.

    Computed as a projection of the matrix on its leading left singular vectors, so that positions whose columns are
    zero stay zero. At rank 1 every row is a multiple of `v_1`, and each is returned as `σ_1 v_1` itself: a factor
    changes no order, but its rounding could. A matrix that cannot exceed the rank is returned unchanged.
    """
    matrix = matrix.double()
    if rank >= min(matrix.shape[1:]):
        return matrix
    with one_thread():  # rounding decides the order of positions that a truncation leaves nearly tied
        leading: Tensor = torch.linalg.svd(matrix, full_matrices=False).U[..., :rank]
        directions = leading.mT @ matrix
        return directions.abs().expand_as(matrix) if rank == 1 else (leading @ directions).abs()


def _with_shared(matrix: Tensor, rows: Ints) -> Tensor:
    """`(W, R, P) -> (W, S + 1, P)`, in float64: the given rows, and the mean of all."""
    shared = torch.stack([window.double().mean(dim=0, keepdim=True) for window in matrix])
    return torch.cat([matrix[:, rows].double(), shared], dim=1)


def ranks(importance: Tensor) -> Tensor:
    """`(..., L) -> (..., L)`: the place of each position when the most important comes first, ties by position."""
    order = torch.argsort(importance, dim=-1, descending=True, stable=True)
    places = torch.arange(importance.shape[-1], device=importance.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def masks(place: Tensor, counts: Ints) -> Tensor:
    """`(W, V, P) -> (W, V, 2, K, P)`: which positions are deleted, most and then least relevant first."""
    k = torch.as_tensor(counts, device=place.device)[:, None]
    place = place[:, :, None, :]
    return torch.stack([place < k, place >= place.shape[-1] - k], dim=2)


def replacements(
    x: Tensor, protocol: Protocol, stream: int, first: int, count: int, variants: int, sections: Sequence[int] = ()
) -> Tensor:
    """`(W, L) -> (W, J, D, L)`: the replacements of deleted positions, in draws `first … first + count − 1`.

    Of a multivariate window `(W, L, C)`, `(W, J, D, L, C)`. `J = 1`, one rearrangement for all `variants` perturbations
    of the window, unless draws are independent. The `sections` of a packed window are rearranged by themselves.
    """
    shared = variants if protocol.draws_kind == "independent" else 1
    return rearranged(x, (protocol.seed, stream), first, count, protocol.draws_per_unit == 2, shared, sections)


@dataclass
class Sweep:
    """Deletes by each ordering and compares every scored step of each perturbed forecast with the unperturbed one."""

    model: Forecaster
    x: Tensor
    """`(W, L)`, or `(W, L, C)`."""
    forecast: Tensor
    """`(W, H)`, or `(W, H, C)`: the unperturbed one."""
    importance: Tensor
    """`(W, V, P)`."""
    steps: Ints
    protocol: Protocol
    budget: MemoryBudget
    stream: int = 0
    along: Along = "time"
    forecasts: int = 0
    """Perturbed forecasts that were evaluated; equal ones count once."""
    apart: float = 0.0
    """Largest difference of the unperturbed forecast in a batch of perturbed ones from `forecast`."""

    @property
    def _sections(self) -> tuple[int, ...]:
        return self.model.sections or ()

    def _of_channels(self, deleted: Tensor) -> Tensor:
        """`(N, C) -> (N, L)`: positions of the deleted channels of packed windows; only those with a slope count."""
        assert isinstance(self.model, Bound)
        positions = torch.zeros(len(deleted), self.x.shape[1], dtype=torch.bool)
        slopes = (channel for channel in self.model.layout.channels if channel.has_slope)
        for number, channel in enumerate(slopes):
            positions[:, channel.positions] = deleted[:, number : number + 1]
        return positions

    def errors(self, first: int, count: int) -> Floats:
        """`(W, D, V, 2, K, S)`: squared change at each scored step, in draws `first … first + count − 1`.

        Deleting nothing needs no forecast; deleting everything needs one per window and draw, for all orderings. The
        changes of a forecast's channels are summed.
        """
        counts = deletion_counts(self.importance.shape[-1], self.protocol.fractions)
        deleted = masks(ranks(self.importance), counts[1:-1])
        inner = deleted.shape[1:4]
        deleted = torch.cat([deleted.flatten(1, 3), torch.ones_like(deleted[:, 0, 0, :1])], dim=1)
        drawn = replacements(self.x, self.protocol, self.stream, first, count, deleted.shape[1], self._sections)
        errors = self.changes(deleted, drawn)

        everything = errors[:, -1][:, :, None, None, None, :]
        curves = np.moveaxis(errors[:, :-1].reshape(len(self.x), *inner, count, len(self.steps)), 4, 1)
        ends = (*curves.shape[:4], 1, len(self.steps))
        return np.concatenate([np.zeros(ends), curves, np.broadcast_to(everything, ends)], axis=4)

    def fine_errors(self, orderings: Ints, count: int) -> Floats:
        """`(W, D, V, K, S)`: the same in the first `count` draws, for the few positions of `fine_counts` that some
        orderings delete first."""
        importance = self.importance[:, : int(orderings.max()) + 1]
        counts = fine_counts(importance.shape[-1], self.protocol.fractions)
        deleted = masks(ranks(importance), counts)[:, :, 0]
        variants = deleted[0, :, :, 0].numel()
        drawn = replacements(self.x, self.protocol, self.stream, 0, count, variants, self._sections)
        errors = self.changes(deleted.flatten(1, 2), drawn)
        return np.moveaxis(errors.reshape(*deleted.shape[:3], count, -1), 3, 1)[:, :, orderings]

    def changes(self, deleted: Tensor, drawn: Tensor) -> Floats:
        """Squared changes `(W, N, D, S)` under the masks `(W, N, P)`, each different one evaluated once."""
        windows, variants, positions = deleted.shape
        draws, horizon, x = drawn.shape[2], self.forecast.shape[1], self.x
        kept = where = np.arange(windows * variants)
        if drawn.shape[1] == 1:  # equal masks of a window give equal forecasts
            packed = np.packbits(deleted.reshape(len(kept), -1).cpu().numpy(), axis=1)
            of_window = np.repeat(np.arange(windows, dtype=">u4"), variants).view(np.uint8).reshape(-1, 4)
            different = np.concatenate([of_window, packed], axis=1)
            _, kept, where = np.unique(different, axis=0, return_index=True, return_inverse=True)
            where = where.reshape(-1)
        window, variant = np.divmod(kept, variants)
        # A mask over time is the same for all channels, one over channels the same at all times.
        shape = [positions] if x.ndim == 2 else [positions, 1] if self.along == "time" else [1, positions]
        flat = deleted.reshape(-1, *shape)
        if self.along == "channel" and x.ndim == 2:
            flat = self._of_channels(flat)
        base = self.forecast[:, self.steps].double()
        total = len(kept) * draws
        out = np.empty((total, len(self.steps)))
        rows = max(1, self.budget.fastest(self.model, x[0], horizon, total + 1) - 1)
        with torch.no_grad():
            for start in range(0, total, rows):
                mask, draw = np.divmod(np.arange(start, min(start + rows, total)), draws)
                own = drawn[window[mask], variant[mask] % drawn.shape[1], draw]
                perturbed = torch.where(flat[kept[mask]], own, x[window[mask]])
                # One unperturbed window in each batch: its forecast is known, and no batch may change it.
                y = self.budget.forward(self.model, torch.cat([perturbed, x[:1]]), horizon)
                apart = (y[-1].double() - self.forecast[0].double()).abs().nan_to_num(nan=math.inf)
                self.apart = max(self.apart, float(apart.max()))
                change = (y[:-1, self.steps].double() - base[window[mask]]).square()
                out[start : start + rows] = (change if x.ndim == 2 else change.sum(dim=-1)).cpu().numpy()
        self.forecasts += total
        each = out.reshape(len(kept), draws, len(self.steps))[where]
        return each.reshape(windows, variants, draws, len(self.steps))
