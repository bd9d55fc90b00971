"""A literal implementation of the definitions: one forecast at a time, loops everywhere.

Independent of `hrx.audit`: from the matrix and the replacements it computes everything else.
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
    """One run, measured slowly. `replacements[w][d]` replaces deleted positions of window `w` in draw `d`.

    With `channels=True`, the channels of windows `(W, L, C)` are deleted instead of times.
    """

    def __init__(
        self,
        forecast: Forecast,
        x: np.ndarray,
        matrix: np.ndarray,
        replacements: np.ndarray,
        fractions: int,
        channels: bool = False,
    ):
        self.forecast, self.x, self.matrix, self.replacements = forecast, x, matrix, replacements
        self.channels = channels
        self.base = [forecast(window) for window in x]
        self.steps = steps_of(len(self.base[0]))
        self.counts = fraction_counts(matrix.shape[2], fractions)
        self.variance = np.var(np.stack(self.base), axis=(0, 1), dtype=np.float64).sum()
        self._orderings: dict[tuple[int, int | None], list[int]] = {}
        self._forecasts: dict[tuple, np.ndarray] = {}

    def ordering(self, w: int, row: int | None) -> list[int]:
        """Positions, most important first, ties by position; `None` is the shared vector."""
        if (w, row) not in self._orderings:
            m = self.matrix[w].astype(np.float64)
            v = m.mean(axis=0) if row is None else m[row]
            self._orderings[w, row] = sorted(range(len(v)), key=lambda t: (-v[t], t))
        return self._orderings[w, row]

    def error_without(self, w: int, d: int, h: int, deleted: frozenset[int]) -> float:
        """Squared change of step `h` when positions are replaced, summed over the forecast's channels."""
        if (w, d, deleted) not in self._forecasts:
            perturbed = self.x[w].copy()
            for position in deleted:
                place = (slice(None), position) if self.channels else position
                perturbed[place] = self.replacements[w][d][place]
            self._forecasts[w, d, deleted] = self.forecast(perturbed)
        changed, before = self._forecasts[w, d, deleted][h], self.base[w][h]
        return float(np.sum((changed.astype(np.float64) - before.astype(np.float64)) ** 2))

    def curve(self, w: int, d: int, h: int, row: int | None, most_first: bool) -> list[float]:
        order = self.ordering(w, row)
        order = order if most_first else order[::-1]
        return [self.error_without(w, d, h, frozenset(order[:k])) if k else 0.0 for k in self.counts]

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
        quantities = {}
        for suffix, kind in (("", "gap"), ("_morf", "morf")):
            own = self.average(lambda w, d, h, kind=kind: self.area(w, d, h, h, kind))
            shared = self.average(lambda w, d, h, kind=kind: self.area(w, d, h, None, kind))
            other = self.average(lambda w, d, h, kind=kind: fmean(self.area(w, d, h, r, kind) for r in self.steps))
            quantities["g_own" + suffix], quantities["g_shuffled" + suffix] = own - shared, other - shared
            quantities["g_margin" + suffix] = own - other
        quantities["aopc"] = quantities["g_own_morf"]
        quantities["comprehensiveness"] = self.average(
            lambda w, d, h: fmean(self.curve(w, d, h, h, True)) - fmean(self.curve(w, d, h, None, True))
        )
        quantities["sufficiency"] = self.average(
            lambda w, d, h: fmean(self.retention(w, d, h, None)) - fmean(self.retention(w, d, h, h))
        )
        quantities["insertion"] = fmean(
            self.insertion(w, h, h) - self.insertion(w, h, None) for w in range(len(self.x)) for h in self.steps
        )
        return quantities

    def retention(self, w: int, d: int, h: int, row: int | None) -> list[float]:
        """Error when only the top ρ is kept, over the grid."""
        order = self.ordering(w, row)
        length, errors = len(order), []
        for j in range(len(self.counts)):
            kept = set(order[: length - self.counts[len(self.counts) - 1 - j]])
            errors.append(self.error_without(w, d, h, frozenset(t for t in range(length) if t not in kept)))
        return errors

    def distance_gain(self, distance: int) -> float:
        """Gain of the rows at a distance over the shared vector, undivided."""

        def gain(w: int, d: int, h: int) -> float:
            rows = [row for row in (h + distance, h - distance) if 0 <= row < len(self.base[w])]
            return fmean(self.area(w, d, h, row) for row in rows) - self.area(w, d, h, None)

        return self.average(gain)

    def fine_gains(self) -> dict[str, float]:
        """Gains by the mean error after 1, 2, 4, … deletions up to the first fraction, undivided."""
        counts = [2**j for j in range(20) if 2**j <= self.counts[1]]

        def height(w: int, d: int, h: int, row: int | None) -> float:
            order = self.ordering(w, row)
            return fmean(self.error_without(w, d, h, frozenset(order[:k])) for k in counts)

        own = self.average(lambda w, d, h: height(w, d, h, h))
        shared = self.average(lambda w, d, h: height(w, d, h, None))
        other = self.average(lambda w, d, h: fmean(height(w, d, h, row) for row in self.steps))
        return {"g_own": own - shared, "g_shuffled": other - shared, "g_margin": own - other}

    def mean_curve(self, rows: Callable[[int], list[int | None]], most_first: bool) -> list[float]:
        """Deletion curve, undivided, averaged over windows, draws, scored steps and the rows of a step."""
        curves = [
            self.curve(w, d, h, row, most_first)
            for w in range(len(self.x))
            for d in range(len(self.replacements[w]))
            for h in self.steps
            for row in rows(h)
        ]
        return [fmean(values) for values in zip(*curves, strict=True)]

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


def truncation(matrix: np.ndarray, rank: int) -> np.ndarray:
    """`|Σ σ_k u_k v_kᵀ|` over the leading `rank` directions, one outer product at a time."""
    u, sigma, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    total = np.zeros(matrix.shape)
    for k in range(min(rank, len(sigma))):
        total += sigma[k] * np.outer(u[:, k], v[k])
    return np.abs(total)


def positions_from_the_end(row: list[float], mass: float) -> int:
    """The number of last positions that hold this share of a row's sum."""
    held = 0.0
    for count, value in enumerate(reversed(row), start=1):
        held += value
        if held >= mass * sum(row):
            return count
    raise AssertionError("a row of zeros")
