"""How well scores single out known positions: AUPRC, AUROC, AUP, AUR, for whole batches of rows at once.

AUPRC and AUROC are those of scikit-learn (average precision; ties count half). AUP and AUR are the areas under
precision and under recall as the threshold on the scores falls (Crabbé and van der Schaar, 2021), by the trapezoidal
rule over the thresholds that occur. These two depend on the scale of the scores and not on their order alone, so scores
are replaced by their ranks, evenly spaced on [0, 1], before any threshold is set.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrx.errors import HrxError


class Recovery(NamedTuple):
    """The four metrics, one number for every row of scores."""

    auprc: Tensor
    auroc: Tensor
    aup: Tensor
    aur: Tensor


def recovery(scores: Tensor, positions: Tensor) -> Recovery:
    """Scores `(…, L)` against known positions, boolean and broadcastable to the same shape; each result `(…,)`.

    Every row needs a position that is in the set and one that is not. Tied scores share one threshold, so that no
    metric depends on how ties would be broken; a row of equal scores has no range of thresholds, and areas of zero.
    """
    positions = positions.expand_as(scores)
    count = positions.sum(dim=-1)
    if not bool(((count > 0) & (count < scores.shape[-1])).all()):
        raise HrxError("A row of known positions holds none or all of them. Give rows with both kinds.")
    ordered, order = scores.double().sort(dim=-1, descending=True)
    hits = positions.gather(-1, order).double()
    first, last = _ties(ordered)
    true = hits.cumsum(dim=-1).gather(-1, last)
    precision = true / (last + 1)
    recall = true / count[..., None]
    size = scores.shape[-1]
    # From 1 for the highest to 0 for the lowest score; ties stand at the middle of their places.
    threshold = 1 - (first + last).double() / (2 * (size - 1))
    return Recovery(
        auprc=(hits * precision).sum(dim=-1) / count,
        auroc=_auroc(hits, threshold),
        aup=_area(precision, threshold),
        aur=_area(recall, threshold),
    )


def _ties(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """For each place of a sorted row, the first and the last place that holds the same score."""
    size = ordered.shape[-1]
    place = torch.arange(size, device=ordered.device).expand(ordered.shape)
    new = torch.ones_like(place, dtype=torch.bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    first = torch.where(new, place, 0).cummax(dim=-1).values
    ends = torch.roll(new, -1, dims=-1)  # a place ends its ties when the next one begins new ones
    last = torch.where(ends, place, size - 1).flip(-1).cummin(dim=-1).values.flip(-1)
    return first, last


def _auroc(hits: Tensor, threshold: Tensor) -> Tensor:
    """Mann and Whitney's statistic over the ranks of the true positions."""
    size = hits.shape[-1]
    true = hits.sum(dim=-1)
    below = (hits * threshold).sum(dim=-1) * (size - 1) - true * (true - 1) / 2
    return below / (true * (size - true))


def _area(curve: Tensor, threshold: Tensor) -> Tensor:
    # Tied places have equal thresholds and equal heights: the steps between them have no width.
    return torch.trapezoid(curve.flip(-1), threshold.flip(-1), dim=-1)
