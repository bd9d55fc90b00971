"""How many directions an explanation matrix holds. What the paper found at a given rank is said in `rank_bins`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rank(NamedTuple):
    """Effective ranks, `(W,)` each."""

    participation: Tensor
    """`(Σσ²)² / Σσ⁴`."""
    entropy: Tensor
    """`exp(−Σ p log p)`, `p = σ/Σσ`; never below the participation ratio."""


def rank(matrix: Tensor) -> Rank:
    """Effective ranks of the matrices `(W, H, L)`; an all-zero matrix has rank NaN."""
    sigma = torch.linalg.svdvals(matrix.double())
    power = sigma.square()
    share = sigma / sigma.sum(dim=-1, keepdim=True)
    return Rank(
        participation=power.sum(dim=-1).square() / power.square().sum(dim=-1),
        entropy=torch.exp(torch.special.entr(share).sum(dim=-1)),
    )
