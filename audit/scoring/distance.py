"""How far away another step's row is taken from, and how far back a row reaches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hrx.audit.memory import by_window
from hrx.audit.protocol import Ints

MASS = 0.9


def rows_away(steps: Ints, estimated: Ints, distances: Sequence[int]) -> Ints:
    """`(Δ, 2, S)`: the estimated steps `h + Δ` and `h − Δ` of each scored step `h`, and −1 where there is none."""
    moved = np.asarray(distances, dtype=np.int64)[:, None, None] * np.array([1, -1])[:, None]
    wanted = steps + moved
    return np.where(np.isin(wanted, estimated), wanted, -1)


def effective_lookback(matrix: Tensor, mass: float = MASS) -> Tensor:
    """`(W, R, L) -> (W, R)`: the smallest `n` such that a row's last `n` positions hold `mass` of its sum.

    NaN for a row that is zero everywhere: it reads nothing.
    """
    return by_window(lambda window: _reach(window.double(), mass), matrix, (matrix.shape[1],))


def _reach(rows: Tensor, mass: float) -> Tensor:
    """`(R, L) -> (R,)`."""
    held = rows.flip(-1).cumsum(dim=-1)
    total = held[..., -1:]
    short = (held < mass * total).sum(dim=-1).double() + 1
    return torch.where(total[..., 0] > 0, short, torch.nan)
