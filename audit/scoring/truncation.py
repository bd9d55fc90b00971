"""Explanation matrices reduced to their leading directions."""

from __future__ import annotations

import torch
from torch import Tensor

from hrx.audit.attribution.jacobian import one_thread


def truncate(matrix: Tensor, rank: int) -> Tensor:
    """`(W, R, L) -> (W, R, L)`: the magnitude of the matrix's rank-`rank` truncation, `|Σ_k σ_k u_k v_kᵀ|`, `k ≤ rank`.

    Computed as a projection of the matrix on its leading left singular vectors, so that positions whose columns are
    zero stay zero. At rank 1 every row is a multiple of `v_1`, and each is given as `σ_1 v_1` itself: a weight in front
    changes no order, but its rounding could. A rank that the matrix cannot exceed leaves it as it is.
    """
    matrix = matrix.double()
    if rank >= min(matrix.shape[1:]):
        return matrix
    with one_thread():
        leading: Tensor = torch.linalg.svd(matrix, full_matrices=False).U[..., :rank]
        directions = leading.mT @ matrix
        return directions.abs().expand_as(matrix) if rank == 1 else (leading @ directions).abs()
