"""What one run measures: gains with their errors, skill against naive forecasts, and the published gain by rank.

Plain data, without torch.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]
Bools = npt.NDArray[np.bool_]

TRUNCATIONS = (1, 2, 4, 8)
DISTANCES = (1, 2, 4, 8, 16, 32)


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
