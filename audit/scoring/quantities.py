"""The quantities of a run: gains from deletion errors with their Monte Carlo errors, and skill against naive ones.

Also the gain that the paper found at each rank. Pure functions on arrays, without torch; shapes as in
`hrx.audit.scoring.deletion`.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hrx.audit.protocol import Area, Ints, Protocol

Floats = npt.NDArray[np.float64]


class Values(NamedTuple):
    """One number for every quantity. Positive is the good direction of all but the shuffled ones."""

    g_own: float
    g_shuffled: float
    g_margin: float
    g_shuffled_permuted: float
    """`g_shuffled` over a few random permutations, as in the paper, instead of over all of them."""
    g_own_morf: float
    g_shuffled_morf: float
    g_margin_morf: float
    comprehensiveness: float
    aopc: float
    sufficiency: float
    insertion: float
    """Already a ratio, so raw and normalised values are equal."""


QUANTITIES: tuple[str, ...] = Values._fields
GAINS = ("g_own", "g_shuffled", "g_margin")


@dataclass(frozen=True)
class Quantities:
    """Everything one run measures."""

    normalised: Values
    """Divided by the variance of the run's forecasts."""
    raw: Values
    error: Values
    """Monte Carlo standard error of the normalised values; NaN where a single unit of draws gives no spread."""
    steps: dict[str, Floats]
    """Normalised values at each scored step, by quantity."""
    scored_steps: Ints
    variance: float
    rank: float
    """Mean over the windows that have one."""
    rank_entropy: float
    rank_dropped: int
    """Windows without a rank, since their matrix is all zero."""
    draws: int
    forecasts: int
    insertion_dropped: int
    """Scored steps, over all windows, whose forecast did not change when everything was deleted."""
    gap_own: float
    """Area between MoRF and LeRF under a step's own row, normalised, for either setting of `area`."""
    gap_shared: float
    curves: Floats
    """`(3, 2, K)`, normalised: mean deletion curves under own row, shared vector and all rows; MoRF, then LeRF."""
    truncated: Floats
    """`g_own` of each truncation in `TRUNCATIONS`, normalised; empty where none was scored."""
    distant: Floats
    """The rows at each of `DISTANCES` against the shared vector, normalised; NaN where a scored step has none."""
    effective_lookback: float
    """Positions from the end that hold 90 % of a row's mass, mean of all rows that are not zero."""
    effective_lookback_steps: Floats
    """The same at each scored step, mean of the windows."""

    def __str__(self) -> str:
        """The gains with their errors, and the rank."""
        gains = [f"{name} {getattr(self, name):+.3f} ± {getattr(self.error, name):.3f}" for name in GAINS]
        return f"{', '.join(gains)}, rank {self.rank:.2f} ({self.draws} draws, {self.forecasts} forecasts)"

    def _repr_html_(self) -> str:
        """For a notebook: the gains as a table."""
        cells = "".join(
            f"<tr><td>{name}</td><td>{getattr(self, name):+.3f}</td><td>± {getattr(self.error, name):.3f}</td></tr>"
            for name in GAINS
        )
        head = "<tr><th>gain</th><th>share of the forecasts' variance</th><th>Monte Carlo error</th></tr>"
        last = f"<tr><td>rank</td><td>{self.rank:.2f}</td><td></td></tr>"
        return f"<table>{head}{cells}{last}</table>"

    @property
    def g_own(self) -> float:
        return self.normalised.g_own

    @property
    def g_shuffled(self) -> float:
        return self.normalised.g_shuffled

    @property
    def g_margin(self) -> float:
        return self.normalised.g_margin


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
    table = _area(trapezoid(errors), area).mean(axis=(0, 1))
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


class Skill(NamedTuple):
    """Errors of a run's forecasts and of the naive ones, on the standardised scale."""

    mse: float
    mae: float
    mse_zero: float
    mse_last: float
    mse_seasonal: float
    """Reported beside the verdict; not part of it."""
    mase: float = math.nan
    """Mean absolute error over the seasonal-naive error before the test region; NaN where that is zero."""
    naive_mase: float = math.nan
    """MASE of repeating the last value."""
    seasonal_mase: float = math.nan
    """MASE of repeating the last season."""

    @property
    def beats_naive(self) -> bool:
        """Whether the error is below both naive ones. A gain is meaningful only where it is."""
        return self.mse < self.mse_zero and self.mse < self.mse_last

    @property
    def beats_seasonal(self) -> bool:
        """Whether the error is below that of repeating the last season."""
        return self.mse < self.mse_seasonal


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


class RankBin(NamedTuple):
    """The published gain of runs with a rank in `[low, high)` (the paper's table "Rank predicts the gain")."""

    low: float
    high: float
    g_own: float
    """Median gain."""
    positive: float
    """Share of runs with a positive gain."""
    worth: Literal["no", "perhaps", "yes"]
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
