"""How many directions an explanation matrix holds. What the paper found at a given rank is said in `rank_bins`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrx.audit.memory import by_window


class MeanRank(NamedTuple):
    """The effective ranks of a run: means over the windows that have one, NaN where none has."""

    participation: float
    entropy: float
    dropped: int
    """Windows left out: an all-zero matrix holds no direction, so it has no rank."""


class Rank(NamedTuple):
    """Effective ranks, `(W,)` each; NaN where a window has none."""

    participation: Tensor
    """`(Σσ²)² / Σσ⁴`."""
    entropy: Tensor
    """`exp(−Σ p log p)`, `p = σ/Σσ`; never below the participation ratio."""

    def mean(self) -> MeanRank:
        """What a run says of its windows."""
        dropped = int(self.participation.isnan().sum())
        return MeanRank(float(self.participation.nanmean()), float(self.entropy.nanmean()), dropped)


def rank(matrix: Tensor) -> Rank:
    """Effective ranks of the matrices `(W, H, L)`; an all-zero matrix has rank NaN."""
    # Window by window: all of them in float64 at once would take twice the memory of the matrices themselves.
    sigma = by_window(lambda window: torch.linalg.svdvals(window.double()), matrix, (min(matrix.shape[1:]),))
    power = sigma.square()
    share = sigma / sigma.sum(dim=-1, keepdim=True)
    return Rank(
        participation=power.sum(dim=-1).square() / power.square().sum(dim=-1),
        entropy=torch.exp(torch.special.entr(share).sum(dim=-1)),
    )
