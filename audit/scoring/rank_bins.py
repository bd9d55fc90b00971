"""The gain that the paper found at each rank: an estimate before any sweep. Does not import torch."""

from __future__ import annotations

from typing import Literal, NamedTuple

Worth = Literal["no", "perhaps", "yes"]


class RankBin(NamedTuple):
    """The published gain of runs with a rank in `[low, high)` (the paper's table "Rank predicts the gain")."""

    low: float
    high: float
    g_own: float
    """Median gain."""
    positive: float
    """Share of runs with a positive gain."""
    worth: Worth
    """Ours: `no` where the gain is near zero, `yes` where at least four runs of five have a positive one."""


RANK_BINS = (
    RankBin(1.0, 1.1, 0.015, 0.62, "no"),
    RankBin(1.1, 1.25, 0.074, 0.71, "perhaps"),
    RankBin(1.25, 1.5, 0.109, 0.75, "perhaps"),
    RankBin(1.5, 2.0, 0.146, 0.83, "yes"),
    RankBin(2.0, 3.0, 0.250, 0.91, "yes"),
    RankBin(3.0, float("inf"), 0.323, 0.98, "yes"),
)


def rank_bin(rank: float) -> RankBin:
    """The published bin of a participation ratio."""
    # Rounding can bring the ratio of a rank-one matrix slightly below one.
    return next(one for one in reversed(RANK_BINS) if rank >= one.low or one is RANK_BINS[0])
