"""The measurement read literally from its definitions: one forecast at a time, loops everywhere, nothing shared.

Independent of `hrx.audit`; it is given the matrix and the replacements, and computes all the rest.
"""

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

import numpy as np
import torch

Forecast = Callable[[np.ndarray], np.ndarray]


def gradient_rows(forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`(W, L) -> (W, H, L)`: one window, one step, one backward pass at a time."""
    rows = []
    for window in x:
        of_window = []
        horizon = forward(window[None]).shape[1]
        for h in range(horizon):
            leaf = window[None].clone().requires_grad_()
            forward(leaf)[0, h].backward()
            of_window.append(leaf.grad[0].abs())
        rows.append(torch.stack(of_window))
    return torch.stack(rows)


def fraction_counts(length: int, fractions: int) -> list[int]:
    """`round(ρL)` with halves up below the middle, and mirrored above it."""
    counts = []
    for j in range(fractions):
        i = min(j, fractions - 1 - j)
        k = int(i * length / (fractions - 1) + 0.5)
        counts.append(k if j <= (fractions - 1) / 2 else length - k)
    return counts


def steps_of(horizon: int, count: int = 8) -> list[int]:
    if horizon <= count:
        return list(range(horizon))
    return [int(i * (horizon - 1) / (count - 1) + 0.5) for i in range(count)]


class Run:
    """One run, measured slowly. `replacements[w][d]` is what a deleted position of window `w` receives in draw `d`."""

    def __init__(self, forecast: Forecast, x: np.ndarray, matrix: np.ndarray, replacements: np.ndarray, fractions: int):
        self.forecast, self.x, self.matrix, self.replacements = forecast, x, matrix, replacements
        self.base = [forecast(window) for window in x]
        self.steps = steps_of(len(self.base[0]))
        self.counts = fraction_counts(x.shape[1], fractions)
        self.variance = np.var(np.stack(self.base), dtype=np.float64)
        self._orderings: dict[tuple[int, int | None], list[int]] = {}
        self._seen: dict[tuple, np.ndarray] = {}

    def ordering(self, w: int, row: int | None) -> list[int]:
        """Positions, most important first, ties by position; `None` is the shared vector."""
        if (w, row) not in self._orderings:
            m = self.matrix[w].astype(np.float64)
            v = m.mean(axis=0) if row is None else m[row]
            self._orderings[w, row] = sorted(range(len(v)), key=lambda t: (-v[t], t))
        return self._orderings[w, row]

    def deletion_error(self, w: int, d: int, h: int, row: int | None, k: int, most_first: bool) -> float:
        order = self.ordering(w, row)
        deleted = frozenset((order if most_first else order[::-1])[:k])
        if not deleted:
            return 0.0
        if (w, d, deleted) not in self._seen:
            perturbed = self.x[w].copy()
            for t in deleted:
                perturbed[t] = self.replacements[w][d][t]
            self._seen[w, d, deleted] = self.forecast(perturbed)
        return float(self._seen[w, d, deleted][h]) - float(self.base[w][h])

    def curve(self, w: int, d: int, h: int, row: int | None, most_first: bool) -> list[float]:
        return [self.deletion_error(w, d, h, row, k, most_first) ** 2 for k in self.counts]

    def area(self, w: int, d: int, h: int, row: int | None, kind: str = "gap") -> float:
        morf = _trapezoid(self.curve(w, d, h, row, True))
        return morf - _trapezoid(self.curve(w, d, h, row, False)) if kind == "gap" else morf

    def average(self, of: Callable[[int, int, int], float]) -> float:
        """Mean of `of(window, draw, step)` over draws, scored steps and windows."""
        return fmean(
            of(w, d, h) for w in range(len(self.x)) for d in range(len(self.replacements[w])) for h in self.steps
        )

    def quantities(self) -> dict[str, float]:
        """Every quantity, undivided."""
        found = {}
        for suffix, kind in (("", "gap"), ("_morf", "morf")):
            own = self.average(lambda w, d, h, kind=kind: self.area(w, d, h, h, kind))
            shared = self.average(lambda w, d, h, kind=kind: self.area(w, d, h, None, kind))
            other = self.average(lambda w, d, h, kind=kind: fmean(self.area(w, d, h, r, kind) for r in self.steps))
            found["g_own" + suffix], found["g_shuffled" + suffix] = own - shared, other - shared
            found["g_margin" + suffix] = own - other
        found["aopc"] = found["g_own_morf"]
        found["comprehensiveness"] = self.average(
            lambda w, d, h: fmean(self.curve(w, d, h, h, True)) - fmean(self.curve(w, d, h, None, True))
        )
        found["sufficiency"] = self.average(
            lambda w, d, h: fmean(self.retention(w, d, h, None)) - fmean(self.retention(w, d, h, h))
        )
        found["insertion"] = fmean(
            self.insertion(w, h, h) - self.insertion(w, h, None) for w in range(len(self.x)) for h in self.steps
        )
        return found

    def retention(self, w: int, d: int, h: int, row: int | None) -> list[float]:
        """Error when only the top ρ is kept, over the grid."""
        order = self.ordering(w, row)
        length, errors = len(order), []
        for j in range(len(self.counts)):
            kept = set(order[: length - self.counts[len(self.counts) - 1 - j]])
            perturbed = np.array(
                [self.x[w][t] if t in kept else self.replacements[w][d][t] for t in range(length)], self.x.dtype
            )
            errors.append((float(self.forecast(perturbed)[h]) - float(self.base[w][h])) ** 2)
        return errors

    def insertion(self, w: int, h: int, row: int | None) -> float:
        """`mean_ρ 1 − ε̃(ρ)/ε̃(0)`, errors averaged over draws first."""
        curves = [self.retention(w, d, h, row) for d in range(len(self.replacements[w]))]
        mean = [fmean(errors) for errors in zip(*curves, strict=True)]
        return fmean(1 - error / mean[0] for error in mean)


def _trapezoid(values: list[float]) -> float:
    width = 1 / (len(values) - 1)
    return sum((a + b) / 2 * width for a, b in pairwise(values))


def participation_ratio(matrix: np.ndarray) -> float:
    eigenvalues = np.linalg.eigvalsh(matrix.astype(np.float64) @ matrix.astype(np.float64).T)
    return float(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())
