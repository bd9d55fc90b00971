"""What the explanation matrix itself shows: effective rank, truncations, and how far back its rows reach.

Computed window by window: a float64 copy of all windows at once
would take twice the memory of the matrices.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from hrx.audit.torch_state import one_thread

MASS = 0.9


class MeanRank(NamedTuple):
    """The effective ranks of a run: means over the windows that have one, NaN where none has."""

    participation: float
    entropy: float
    dropped: int
    """Windows left out: an all-zero matrix has no rank."""


class Rank(NamedTuple):
    """Effective ranks, `(W,)` each; NaN where a window has none."""

    participation: Tensor
    """`(Σσ²)² / Σσ⁴`."""
    entropy: Tensor
    """`exp(−Σ p log p)`, `p = σ/Σσ`; never below the participation ratio."""

    def mean(self) -> MeanRank:
        """The ranks of a run."""
        dropped = int(self.participation.isnan().sum())
        return MeanRank(float(self.participation.nanmean()), float(self.entropy.nanmean()), dropped)


def rank(matrix: Tensor) -> Rank:
    """Effective ranks of the matrices `(W, H, L)`; an all-zero matrix has rank NaN."""
    sigma = torch.stack([torch.linalg.svdvals(window.double()) for window in matrix])
    power = sigma.square()
    share = sigma / sigma.sum(dim=-1, keepdim=True)
    return Rank(
        participation=power.sum(dim=-1).square() / power.square().sum(dim=-1),
        entropy=torch.exp(torch.special.entr(share).sum(dim=-1)),
    )


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


def effective_lookback(matrix: Tensor, mass: float = MASS) -> Tensor:
    """`(W, R, L) -> (W, R)`: the smallest `n` such that a row's last `n` positions hold `mass` of its sum.

    NaN for a row that is zero everywhere.
    """

    def of_window(rows: Tensor) -> Tensor:
        held = rows.double().flip(-1).cumsum(dim=-1)
        total = held[:, -1:]
        short = (held < mass * total).sum(dim=-1).double() + 1
        return torch.where(total[:, 0] > 0, short, torch.nan)

    return torch.stack([of_window(window) for window in matrix])
