"""Quantities of a run: from the matrix itself its effective rank and how far back its rows reach; from deletion errors
the gains with their Monte Carlo errors; from the forecasts the skill against naive ones.

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

from hrx.audit.protocol import Area, Protocol, deletion_counts
from hrx.audit.scoring.deletion import Orderings
from hrx.errors import HrxError
from hrx.records.quantities import (
    GAINS,
    QUANTITIES,
    SUPPORT,
    Floats,
    Gains,
    Ints,
    Quantities,
    Skill,
    Values,
    error_limit,
)

MASS = 0.9
LEAST_UNITS = 4
"""Units of draws from which on the precision is judged: fewer underestimate their error too often."""
MOST_ASSIGNED = 8
"""Scored steps whose assignments to rows are all enumerated; of more steps as many are drawn at random."""
SAME_AREA = 1e-6
"""Two areas that differ by this share of the largest one are equal but for rounding."""

LEAST_NORMAL = float(np.finfo(np.float64).tiny)


class Unscorable(HrxError):
    """A run that cannot be scored: a result, recorded as excluded with this reason."""


def summarise(
    errors: Floats,
    ordered: Orderings,
    matrix: Tensor,
    steps: Ints,
    variance: float,
    protocol: Protocol,
    stream: int,
    *,
    forecasts: int,
    flat_windows: int,
    own_variance: bool,
    fine_errors: Floats | None,
    apart: float,
) -> Quantities:
    """Everything that a run measures, from the `errors` `(W, D, V, 2, K, S)` under the orderings of its matrix."""
    paired = errors[:, :, ordered.matrix]
    samples = measure(paired, protocol, stream)
    found = {name: moments(samples[name]) for name in QUANTITIES}
    scale = {name: 1.0 if name == "insertion" else variance for name in QUANTITIES}
    areas = _area(trapezoid(errors), protocol.area)
    truncated = areas[:, :, ordered.truncated[:, :-1]] - areas[:, :, ordered.truncated[:, -1:]]
    curves = mean_curves(paired) / variance
    gaps = trapezoid(curves.swapaxes(1, 2)) @ np.array([1.0, -1.0])
    effective, reach = rank(matrix), effective_lookback(matrix)
    fine, fine_error = (None, None) if fine_errors is None else _fine(fine_errors / variance, protocol)
    return Quantities(
        normalised=_values({name: found[name].mean / scale[name] for name in QUANTITIES}),
        raw=_values({name: found[name].mean for name in QUANTITIES}),
        error=Values(*(found[name].error / scale[name] for name in QUANTITIES)),
        steps={name: found[name].steps / scale[name] for name in QUANTITIES},
        scored_steps=steps,
        variance=variance,
        variance_of="windows" if own_variance else "given",
        shared_rows=matrix.shape[1],
        support=support(matrix),
        first_deleted=int(deletion_counts(matrix.shape[2], protocol.fractions)[1]),
        fine=fine,
        fine_error=fine_error,
        p_margin=assignment_share(areas[:, :, ordered.matrix[:-1]].mean(axis=(0, 1))),
        rank=float(effective.participation.nanmean()),
        rank_entropy=float(effective.entropy.nanmean()),
        rank_dropped=int(effective.participation.isnan().sum()),
        windows=len(errors),
        flat_windows=flat_windows,
        draws=errors.shape[1],
        units=errors.shape[1] // protocol.draws_per_unit,
        forecasts=forecasts,
        insertion_dropped=int((paired[:, :, 0, 0, -1] == 0).all(axis=1).sum()),
        gap_own=float(gaps[0]),
        gap_shared=float(gaps[1]),
        curves=curves,
        truncated=np.diagonal(truncated, axis1=3, axis2=4).mean(axis=(0, 1, 3)) / variance,
        distant=_distant_gains(areas, ordered) / variance,
        effective_lookback=float(reach.nanmean()),
        effective_lookback_steps=reach[:, ordered.rows].nanmean(dim=0).numpy(),
        apart=apart,
    )


def _values(means: dict[str, float]) -> Values:
    """Means, with each margin as the exact difference of its two gains."""
    for area in ("", "_morf"):
        means["g_margin" + area] = means["g_own" + area] - means["g_shuffled" + area]
    return Values(**means)


def needs_draws(errors: Floats, variance: float, protocol: Protocol) -> bool:
    """Whether the precision setting needs more draws: the limit of an error, known from four units on, is above it."""
    windows, draws = errors.shape[:2]
    units = draws // protocol.draws_per_unit
    if protocol.precision is None or draws >= protocol.most_draws:
        return False
    if units < LEAST_UNITS:
        return True
    samples = measure(errors, protocol)
    largest = max(moments(samples[name]).error / variance for name in GAINS)
    return not error_limit(largest, windows * (units - 1)) <= protocol.precision


class Rank(NamedTuple):
    """Effective ranks, `(W,)` each; NaN where a window has none: its matrix is all zero."""

    participation: Tensor
    """`(Σσ²)² / Σσ⁴`."""
    entropy: Tensor
    """`exp(−Σ p log p)`, `p = σ/Σσ`; never below the participation ratio."""


def rank(matrix: Tensor) -> Rank:
    """Effective ranks of the matrices `(W, H, L)`."""
    sigma = torch.stack([torch.linalg.svdvals(window.double()) for window in matrix])
    power = sigma.square()
    share = sigma / sigma.sum(dim=-1, keepdim=True)
    return Rank(
        participation=power.sum(dim=-1).square() / power.square().sum(dim=-1),
        entropy=torch.exp(torch.special.entr(share).sum(dim=-1)),
    )


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


def support(matrix: Tensor) -> int:
    """How few positions hold nearly all of the shared vector's sum, the most of any window; 0 where all are zero."""
    held = [window.double().mean(dim=0).sort(descending=True).values.cumsum(dim=0) for window in matrix]
    return max(int((one < SUPPORT * one[-1]).sum()) + 1 if one[-1] > 0 else 0 for one in held)


def measure(errors: Floats, protocol: Protocol, stream: int = 0) -> dict[str, Floats]:
    """Every quantity, undivided, from the errors `(W, D, S + 1, 2, K, S)` under the scored rows and the shared vector.

    Each is `(W, U, S)`: by window, unit of draws and scored step.
    """
    grouped = errors.reshape(len(errors), -1, protocol.draws_per_unit, *errors.shape[2:])
    units: Floats = grouped.mean(axis=2)
    areas = trapezoid(units)
    samples: dict[str, Floats] = {}
    kinds: tuple[tuple[str, Area], ...] = (("", protocol.area), ("_morf", "morf"))
    for suffix, kind in kinds:
        area = _area(areas, kind)
        # Differences before means: rows that order the lookback like the shared vector give exact zeros.
        gain = area[:, :, :-1] - area[:, :, -1:]
        samples |= {name + suffix: values for name, values in _gains(gain).items()}
        if not suffix:
            steps = np.arange(gain.shape[-1])
            # A spawn key separates the permutations from the draws, which start from the same seed and stream.
            rng = np.random.default_rng(np.random.SeedSequence([protocol.seed, stream, len(steps)], spawn_key=(1,)))
            pi = rng.permuted(np.tile(steps, (protocol.permutations, 1)), axis=1)
            samples["g_shuffled_permuted"] = gain[:, :, pi, steps].mean(axis=2)
    samples["aopc"] = samples["g_own_morf"]

    means = units.mean(axis=4)
    samples["comprehensiveness"] = _own(means[:, :, :-1, 0]) - means[:, :, -1, 0]
    # Keeping only the top ρ is deleting the other 1 − ρ, least relevant first: retention is that curve backwards.
    samples["sufficiency"] = means[:, :, -1, 1] - _own(means[:, :, :-1, 1])
    # Samples whose mean is the ratio of means and whose spread is its linearised error; NaN where it divides by 0.
    everything = units[:, :, 0, 1, -1]
    top, bottom = (values.mean(axis=1, keepdims=True) for values in (samples["sufficiency"], everything))
    bottom = np.where(bottom == 0, np.nan, bottom)
    samples["insertion"] = top / bottom + (samples["sufficiency"] - top / bottom * everything) / bottom
    return samples


def _gains(gain: Floats) -> dict[str, Floats]:
    """`(W, U, S)` each, from what the rows gain over the shared vector `(W, U, S, S)`."""
    own, shuffled = _own(gain), gain.mean(axis=2)
    return {"g_own": own, "g_shuffled": shuffled, "g_margin": own - shuffled}


def _fine(errors: Floats, protocol: Protocol) -> tuple[Gains, Gains]:
    """Gains by the mean error over few deleted positions, and their errors, from `(W, D, S + 1, K, S)`."""
    grouped = errors.reshape(len(errors), -1, protocol.draws_per_unit, *errors.shape[2:])
    heights = grouped.mean(axis=(2, 4))
    found = [moments(one) for one in _gains(heights[:, :, :-1] - heights[:, :, -1:]).values()]
    own, shuffled = found[0].mean, found[1].mean
    return Gains(own, shuffled, own - shuffled), Gains(*(one.error for one in found))


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


def _distant_gains(areas: Floats, ordered: Orderings) -> Floats:
    """`(Δ,)`: gain of the rows at each distance over the shared vector, undivided.

    Where both rows of a step exist its two areas are averaged. NaN where some scored step has neither, since the mean
    would then be over other steps than that of `g_own`.
    """
    table, distant = areas.mean(axis=(0, 1)), ordered.distant
    gains = table[distant, np.arange(distant.shape[-1])] - table[ordered.matrix[-1]]
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
    scale = seasonal_error[:, None] if (seasonal_error > 0).all() else math.nan
    off = {"": forecast, "zero": np.zeros_like(truth), "last": last[:, None], "seasonal": seasonal}
    off = {name: made - truth for name, made in off.items()}
    squared = {name: float(np.mean(np.square(error))) for name, error in off.items()}
    scaled = {name: float(np.mean(np.abs(error) / scale)) for name, error in off.items()}
    return Skill(
        mse=squared[""],
        mae=float(np.mean(np.abs(off[""]))),
        mse_zero=squared["zero"],
        mse_last=squared["last"],
        mse_seasonal=squared["seasonal"],
        mase=scaled[""],
        naive_mase=scaled["last"],
        seasonal_mase=scaled["seasonal"],
    )


def forecast_variance(forecast: Tensor) -> float:
    """Variance of forecasts `(W, H)` or `(W, H, C)` over all windows and steps, summed over the channels."""
    if not torch.isfinite(forecast).all():
        raise Unscorable("non-finite forecast: the model returned NaN or infinity on these windows")
    return float(forecast.double().var(dim=(0, 1), correction=0).sum())


def usable_variance(forecast: Tensor, where: str = "every window") -> float:
    """Variance of the forecasts; refuses one that nothing can be divided by. `where` the forecasts are."""
    variance = forecast_variance(forecast)
    if variance == 0:
        raise Unscorable(f"constant forecast: the same value at every step of {where}")
    largest, type_ = float(forecast.abs().max()), torch.finfo(forecast.dtype)
    if largest < type_.tiny:
        raise Unscorable(f"subnormal forecast: no value is larger than {largest:.3g}, where {type_.dtype} loses digits")
    if not LEAST_NORMAL <= variance < math.inf:
        raise Unscorable(f"the variance of the forecasts is {variance:.3g}, beyond the range of float64")
    return variance
