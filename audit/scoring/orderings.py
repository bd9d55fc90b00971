"""What a sweep deletes by: a row for each scored step and the shared vector, and on request those of further sweeps.

Each different ordering is listed once. Who reads which is kept beside them as indices, so that two readers that must
agree exactly read one and the same forecast.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.audit.ledger.record import DISTANCES, TRUNCATIONS
from hrx.audit.memory import by_window
from hrx.audit.protocol import Ints, Protocol, ProtocolError
from hrx.audit.scoring.distance import rows_away
from hrx.audit.scoring.truncation import truncate


class Orderings(NamedTuple):
    """Importances to delete by, and where each reader finds its own."""

    importance: Tensor
    """`(W, V, P)`."""
    matrix: Ints
    """`(S + 1,)`: the row of each scored step, then the shared vector."""
    truncated: Ints
    """`(T, S + 1)`: the same of each truncation; `T = 0` where none is scored."""
    distant: Ints
    """`(Δ, 2, S)`: the rows `Δ` after and before each scored step, −1 where there is none; `Δ = 0` where not scored."""


def orderings(matrix: Tensor, estimated: Ints, steps: Ints, protocol: Protocol) -> Orderings:
    """The orderings of a run with the explanation `matrix` `(W, R, P)`, whose rows are those of the `estimated` steps.

    A matrix with the axis removed has one row, which every scored step reads, and the shared vector is that row.
    """
    if (protocol.truncation or protocol.distance) and protocol.draws_kind == "independent":
        raise ProtocolError(
            "Truncations and distances are compared under the same replacements, which independent draws do not have. "
            "Set draws_kind to 'antithetic' or 'paired'."
        )
    truncations = TRUNCATIONS if protocol.truncation else ()
    distances = DISTANCES if protocol.distance else ()
    if protocol.axis == "whole":
        alike = np.zeros((1 + len(truncations), len(steps) + 1), dtype=np.int64)
        nowhere = np.full((len(distances), 2, len(steps)), -1, dtype=np.int64)
        return Orderings(matrix.double(), alike[0], alike[1:], nowhere)

    rows = np.searchsorted(estimated, steps)
    listed = [_with_shared(matrix, rows)]
    own = np.arange(len(steps) + 1)
    truncated = np.empty((len(truncations), len(own)), dtype=np.int64)
    for place, rank in enumerate(truncations):
        if rank >= min(matrix.shape[1:]):
            truncated[place] = own
        elif rank == 1:
            truncated[place] = _count(listed)
            listed.append(by_window(lambda window: truncate(window[None], 1)[0, :1], matrix, (1, matrix.shape[2])))
        else:
            truncated[place] = _count(listed) + own
            reduced = partial(_reduced, rank=rank, rows=rows)
            listed.append(by_window(reduced, matrix, (len(own), matrix.shape[2])))

    away = rows_away(steps, estimated, distances)
    others = np.setdiff1d(away[away >= 0], steps)
    found = np.full(int(estimated[-1]) + 1, -1, dtype=np.int64)
    found[steps], found[others] = own[:-1], _count(listed) + np.arange(len(others))
    listed.append(matrix[:, np.searchsorted(estimated, others)].double())
    return Orderings(torch.cat(listed, dim=1), own, truncated, np.where(away < 0, -1, found[away]))


def _with_shared(matrix: Tensor, rows: Ints) -> Tensor:
    """`(W, R, P) -> (W, S + 1, P)`, in float64: some rows, and the mean of all."""
    shared = by_window(lambda window: window.double().mean(dim=0, keepdim=True), matrix, (1, matrix.shape[2]))
    return torch.cat([matrix[:, rows].double(), shared], dim=1)


def _reduced(window: Tensor, rank: int, rows: Ints) -> Tensor:
    """`(R, P) -> (S + 1, P)`: what is read of a truncation."""
    return _with_shared(truncate(window[None], rank), rows)[0]


def _count(listed: list[Tensor]) -> int:
    return sum(block.shape[1] for block in listed)
