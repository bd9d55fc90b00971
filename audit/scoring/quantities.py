"""Quantities of a run: from the matrix itself its effective rank, truncations and how far back its rows reach; from
deletion errors the gains with their Monte Carlo errors; from the forecasts the skill against naive ones.

Pure functions; shapes as in `hrx.audit.scoring.deletion`. Matrices are taken window by window: a float64 copy of all
windows at once would take twice their memory.
"""

import math
from functools import cache
from itertools import permutations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.audit.protocol import Area, Protocol
from hrx.audit.torch_state import one_thread
from hrx.records.quantities import Floats, Ints, Skill

MASS = 0.9
MOST_ASSIGNED = 8
"""Scored steps whose assignments to rows are all enumerated; of more steps as many are drawn at random."""
SAME_AREA = 1e-6
"""Two areas that differ by this share of the largest one are equal but for rounding."""


class MeanRank(NamedTuple):
    """Effective ranks of a run: means over the windows that have one, NaN where none has."""

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
        """Ranks of a run."""
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


def measure(errors: Floats, protocol: Protocol, stream: int = 0) -> dict[str, Floats]:
    """Every quantity, undivided, from the errors `(W, D, S + 1, 2, K, S)` under the scored rows and the shared vector.

    Each is `(W, U, S)`: by window, unit of draws and scored step.
    """
    grouped = errors.reshape(len(errors), -1, protocol.draws_per_unit, *errors.shape[2:])
    units: Floats = grouped.mean(axis=2)
    areas = trapezoid(units)
    morf = areas[:, :, :, 0]
    samples: dict[str, Floats] = {}
    for suffix, area in (("", _area(areas, protocol.area)), ("_morf", morf)):
        # Differences before means: rows that order the lookback like the shared vector give exact zeros.
        gain = area[:, :, :-1] - area[:, :, -1:]
        samples["g_own" + suffix] = _own(gain)
        samples["g_shuffled" + suffix] = gain.mean(axis=2)
        samples["g_margin" + suffix] = samples["g_own" + suffix] - samples["g_shuffled" + suffix]
        if not suffix:
            samples["g_shuffled_permuted"] = _permuted(gain, protocol, stream)
    samples["aopc"] = samples["g_own_morf"]

    means = units.mean(axis=4)
    samples["comprehensiveness"] = _own(means[:, :, :-1, 0]) - means[:, :, -1, 0]
    # Keeping only the top ρ is deleting the other 1 − ρ, least relevant first: retention is that curve backwards.
    samples["sufficiency"] = means[:, :, -1, 1] - _own(means[:, :, :-1, 1])
    everything = units[:, :, 0, 1, -1]
    samples["insertion"] = _ratio(samples["sufficiency"], everything)
    return samples


def mean_areas(errors: Floats, area: Area) -> Floats:
    """`(W, D, V, 2, K, S) -> (V, S)`: area of each step under each ordering, mean of windows and draws, undivided."""
    areas: Floats = _area(trapezoid(errors), area).mean(axis=(0, 1))
    return areas


def assignment_share(areas: Floats) -> float:
    """Return the share of all assignments of rows to steps that are at least as good as each step under its own row.

    `areas` `(S, S)` has a row for each row of the matrix and a column for each step. An assignment is as good as the
    mean area of the steps under the rows they get. The actual one counts, so the share is never zero.
    """
    steps = np.arange(len(areas))
    means = areas[_assignments(len(areas)), steps].mean(axis=1)
    actual = np.diagonal(areas).mean()
    return float(np.mean(means >= actual - SAME_AREA * np.abs(areas).max()))


@cache
def _assignments(steps: int) -> Ints:
    """`(n, S)`: all permutations of the steps, or `8!` of them: the actual one, and others drawn at random."""
    if steps <= MOST_ASSIGNED:
        return np.array(list(permutations(range(steps))))
    every = np.tile(np.arange(steps), (math.factorial(MOST_ASSIGNED), 1))
    every[1:] = np.random.default_rng(0).permuted(every[1:], axis=1)
    return every


def truncated_gains(errors: Floats, truncated: Ints, area: Area) -> Floats:
    """`(T,)`: `g_own` of each truncation, undivided, from errors `(W, D, V, 2, K, S)`."""
    table = _area(trapezoid(errors), area)
    own, shared = table[:, :, truncated[:, :-1]], table[:, :, truncated[:, -1:]]
    gains: Floats = np.diagonal(own - shared, axis1=3, axis2=4).mean(axis=(0, 1, 3))
    return gains


def distant_gains(errors: Floats, distant: Ints, shared: int, area: Area) -> Floats:
    """`(Δ,)`: gain of the rows at each distance over the ordering `shared`, undivided.

    Where both rows of a step exist its two areas are averaged. NaN where some scored step has neither, since the mean
    would then be over other steps than that of `g_own`.
    """
    table = mean_areas(errors, area)
    gains = table[distant, np.arange(distant.shape[-1])] - table[shared]
    exists = distant >= 0
    with np.errstate(invalid="ignore"):
        by_step: Floats = np.where(exists, gains, 0.0).sum(axis=1) / exists.sum(axis=1)
    means: Floats = by_step.mean(axis=1)
    return means


def mean_curves(errors: Floats) -> Floats:
    """`(W, D, S + 1, 2, K, S) -> (3, 2, K)`: deletion curves under own row, shared vector and all rows, undivided."""
    by_row = errors.mean(axis=(0, 1))
    own = np.diagonal(by_row[:-1], axis1=0, axis2=3).mean(axis=-1)
    return np.stack([own, by_row[-1].mean(axis=-1), by_row[:-1].mean(axis=(0, -1))])


def trapezoid(curves: Floats) -> Floats:
    """`(…, K, S) -> (…, S)`: area under curves over the evenly spaced fractions."""
    area: Floats = (curves.sum(axis=-2) - (curves[..., 0, :] + curves[..., -1, :]) / 2) / (curves.shape[-2] - 1)
    return area


def _area(areas: Floats, kind: Area) -> Floats:
    return areas[:, :, :, 0] - areas[:, :, :, 1] if kind == "gap" else areas[:, :, :, 0]


def _own(table: Floats) -> Floats:
    """`(W, U, S, S) -> (W, U, S)`: each step under its own row."""
    return np.diagonal(table, axis1=2, axis2=3)


def _permuted(table: Floats, protocol: Protocol, stream: int) -> Floats:
    """Mean over a few random permutations `π` of step `h` under row `π(h)`."""
    steps = table.shape[-1]
    # A spawn key separates the permutations from the draws, which start from the same seed and stream.
    rng = np.random.default_rng(np.random.SeedSequence([protocol.seed, stream, steps], spawn_key=(1,)))
    pi = rng.permuted(np.tile(np.arange(steps), (protocol.permutations, 1)), axis=1)
    chosen: Floats = table[:, :, pi, np.arange(steps)].mean(axis=2)
    return chosen


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Samples whose mean is the ratio of means and whose spread is its linearised error; steps with 0 below are NaN."""
    top, bottom = numerator.mean(axis=1, keepdims=True), denominator.mean(axis=1, keepdims=True)
    bottom = np.where(bottom == 0, np.nan, bottom)
    ratio = top / bottom
    samples: Floats = ratio + (numerator - ratio * denominator) / bottom
    return samples


class Moments(NamedTuple):
    """Mean and Monte Carlo standard error of one quantity, and its mean at each step."""

    mean: float
    error: float
    steps: Floats


def moments(samples: Floats) -> Moments:
    """Averages `(W, U, S)` over steps, units and windows. The error is that of the draws, for fixed windows."""
    with np.errstate(invalid="ignore"):
        observed = ~np.isnan(samples)
        weight = observed.sum(axis=2)
        by_unit = np.where(observed, samples, 0).sum(axis=2) / np.where(weight, weight, np.nan)
        per_step = np.where(observed, samples, 0).sum(axis=(0, 1)) / observed.sum(axis=(0, 1))
    by_unit = by_unit[~np.isnan(by_unit).any(axis=1)]
    windows, units = by_unit.shape
    if not windows:
        return Moments(float("nan"), float("nan"), per_step)
    error = float("nan")
    if units > 1:
        error = float(np.sqrt(by_unit.var(axis=1, ddof=1).sum() / units) / windows)
    return Moments(float(by_unit.mean()), error, per_step)


def skill(forecast: Floats, truth: Floats, last: Floats, seasonal: Floats, seasonal_error: Floats) -> Skill:
    """Errors of `forecast` `(W, H)` against `truth`; `last` `(W,)` is repeated, `seasonal` is `(W, H)`.

    `seasonal_error` `(W,)` or `(1,)` is the denominator of MASE for each window. Where one is zero or unknown there is
    no MASE.
    """
    known = bool((seasonal_error > 0).all())
    scale = seasonal_error[:, None] if known else math.nan
    return Skill(
        mse=_mse(forecast, truth),
        mae=float(np.mean(np.abs(forecast - truth))),
        mse_zero=_mse(np.zeros_like(truth), truth),
        mse_last=_mse(last[:, None], truth),
        mse_seasonal=_mse(seasonal, truth),
        mase=float(np.mean(np.abs(forecast - truth) / scale)),
        naive_mase=float(np.mean(np.abs(last[:, None] - truth) / scale)),
        seasonal_mase=float(np.mean(np.abs(seasonal - truth) / scale)),
    )


def _mse(forecast: Floats, truth: Floats) -> float:
    return float(np.mean(np.square(forecast - truth)))
