"""What one run measures: gains with their errors, and skill against naive forecasts.

Plain data, without torch; the published gain by rank stands beside it.
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


def t_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t, by which a standard error becomes half of a 95 % interval."""
    from scipy.special import stdtrit  # the command line starts without it

    return float(stdtrit(degrees, 0.975)) if degrees > 0 else math.nan


def error_limit(error: float, degrees: int) -> float:
    """Return what a standard error estimated with these degrees of freedom is below, with 95 % confidence."""
    from scipy.special import chdtri

    return error * math.sqrt(degrees / chdtri(degrees, 0.95)) if degrees > 0 else math.nan


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
SUPPORT = 0.99
"""Share of the shared vector's sum that its support holds."""


class Gains(NamedTuple):
    """The three gains by themselves."""

    g_own: float
    g_shuffled: float
    g_margin: float


SHORTEST_SPAN = 5
"""Horizons that the forecasts behind a variance span: the variance of a shorter region is too small, which makes gains
too large (nine times with a single start), so that such runs are left out of a verdict."""


@dataclass(frozen=True, repr=False)
class Quantities:
    """Everything one run measures."""

    normalised: Values
    """Divided by `variance`."""
    raw: Values
    error: Values
    """Monte Carlo standard error of the normalised values; NaN where a single unit of draws gives no spread.

    What is shown after a ± is `plus_minus`, half of a 95 % interval."""
    steps: dict[str, Floats]
    """Normalised values at each scored step, by quantity."""
    scored_steps: Ints
    variance: float
    variance_of: Literal["series", "windows", "given"]
    """What forecasts it is of: `variance_windows` of the series, as in an audit; the run's own windows, which are not
    comparable with an audit; or what a caller gave."""
    shared_rows: int
    """Rows whose mean is the shared vector."""
    support: int
    """Positions that hold 99 % of the shared vector's sum, the most of any window."""
    first_deleted: int
    """Positions that the first fraction deletes."""
    fine: Gains | None
    """Gains by the mean error after the 1, 2, 4, … most relevant positions are deleted, up to `first_deleted`;
    normalised, None where they were not measured."""
    fine_error: Gains | None
    """Their Monte Carlo standard errors."""
    p_margin: float
    """Share of all assignments of the scored rows to the scored steps whose mean area is at least the actual one's."""
    rank: float
    """Mean over the windows that have one."""
    rank_entropy: float
    rank_dropped: int
    """Windows without a rank, since their matrix is all zero."""
    windows: int
    flat_windows: int
    """Windows of the run that are left out of everything else: the same value at every position."""
    draws: int
    units: int
    """Independent observations among the draws of a window: antithetic pairs, or single draws."""
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
    """Rows at each of `DISTANCES` against the shared vector, normalised; NaN where a scored step has none."""
    effective_lookback: float
    """Positions from the end that hold 90 % of a row's mass, mean of all rows that are not zero."""
    effective_lookback_steps: Floats
    """As above, at each scored step, mean of the windows."""
    apart: float = 0.0
    """Largest difference of a window's forecast in a scored batch from its forecast in the run's own batch."""
    variance_windows: int = 0
    """Forecasts of the series behind `variance`; 0 where it is of others."""
    variance_span: float = math.nan
    """From the first to the last of them, in horizons."""

    def __str__(self) -> str:
        """Show the gains with their errors, `p_margin` and the rank, and what they rest on."""
        found = ", ".join([*map("".join, self._shown), f"p_margin {show_p(self.p_margin)}", f"rank {self.rank:.2f}"])
        return f"{found} ({self.draws} draws, {self.forecasts} forecasts)\n{self.certainty}\n{self.basis}"

    def __repr__(self) -> str:
        return f"<Quantities: {str(self).partition(' (')[0]}>"

    def _repr_html_(self) -> str:
        """Show the gains as a table in a notebook."""
        import pandas as pd  # the command line starts without it

        heads = ("share of the forecasts' variance", "over draws")
        rows = [*self._shown, ("p_margin ", show_p(self.p_margin), ""), ("rank ", f"{self.rank:.2f}", "")]
        table = pd.DataFrame([cells[1:] for cells in rows], [cells[0].strip() for cells in rows], heads)
        return f"{table.to_html(border=0)}<p>{self.certainty} {self.basis}</p>"

    @property
    def _shown(self) -> list[tuple[str, str, str]]:
        """Name, value and error of each gain."""
        gains = {name: getattr(self, name) for name in GAINS}
        gains |= {f"{name}_fine": value for name, value in (self.fine._asdict() if self.fine else {}).items()}
        error = {name: f" ± {self.plus_minus(name):.3f}" if self.degrees else "" for name in gains}
        return [(f"{name} ", f"{value:+.3f}", error[name]) for name, value in gains.items()]

    @property
    def degrees(self) -> int:
        """Degrees of freedom of `error`."""
        return self.windows * (self.units - 1)

    def plus_minus(self, name: str) -> float:
        """Half of the 95 % interval of a quantity over draws; NaN where a single unit of draws gives no spread.

        The gains over few positions are `g_own_fine`, `g_shuffled_fine` and `g_margin_fine`.
        """
        errors: Values | Gains | None = self.fine_error if name.endswith("_fine") else self.error
        return t_quantile(self.degrees) * float(getattr(errors, name.removesuffix("_fine")))

    @property
    def certainty(self) -> str:
        """What ± covers, and how many flat windows are left out."""
        are = "window is" if self.flat_windows == 1 else "windows are"
        flat = f" {self.flat_windows} flat {are} left out." if self.flat_windows else ""
        if not self.degrees:
            return f"{self.draws} draws of a window have no ±: its degrees of freedom are windows × (pairs − 1).{flat}"
        which = "this window" if self.windows == 1 else f"these {self.windows} windows"
        count = "1 degree" if self.degrees == 1 else f"{self.degrees} degrees"
        covers = f"± is a 95 % interval over random draws for {which}, with {count} of freedom"
        return f"{covers}; it covers nothing else.{flat}"

    @property
    def basis(self) -> str:
        """What the gains are divided by, which rows make the shared vector, and whether they rest on too few values."""
        divided = {
            "series": f"the variance of {self.variance_windows} forecasts over the test region of the series",
            "windows": "the variance of the forecasts of the given windows, so they cannot be compared with an audit's",
            "given": "the variance that was given",
        }
        said = [f"Gains are divided by {divided[self.variance_of]}."]
        if self.variance_span < SHORTEST_SPAN:
            span = f"These start within {self.variance_span:.1f} horizons, less than {SHORTEST_SPAN}"
            said.append(f"{span}, so their variance is too small and the gains are too large.")
        horizon, rows = int(self.scored_steps[-1]) + 1, self.shared_rows
        scored = "scored" if rows == len(self.scored_steps) else "given"
        which = f"all {rows}" if rows == horizon else f"the {rows} {scored}"
        said.append(f"The shared vector is the mean of {which} rows." if rows > 1 else "One row serves all steps.")
        return " ".join([*said, self.few_values]).strip()

    @property
    def few_values(self) -> str:
        """What follows where the model is `sparse`; empty where it is not."""
        if not self.sparse:
            return ""
        fine = "; g_own_fine deletes fewer" if self.fine else ": measure g_own_fine, by --sweeps fine"
        return (
            f"The model reads few values: {self.support} hold {SUPPORT:.0%} of the shared vector, and the first "
            f"fraction deletes {self.first_deleted}. So g_own is near 0 whatever the rows are{fine}."
        )

    @property
    def sparse(self) -> bool:
        """Whether the first deleted fraction holds all that the model reads, so that `g_own` says nothing."""
        return 0 < self.support <= self.first_deleted

    @property
    def g_own(self) -> float:
        return self.normalised.g_own

    @property
    def g_shuffled(self) -> float:
        return self.normalised.g_shuffled

    @property
    def g_margin(self) -> float:
        return self.normalised.g_margin


def show_p(p: float) -> str:
    """Show a share that is judged against chance."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


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
    """Published gain of runs with a rank in `[low, high)` (the paper's table "Rank predicts the gain")."""

    low: float
    high: float
    g_own: float
    """Median gain."""
    positive: float
    """Share of runs with a positive gain."""


RANK_BINS = (
    RankBin(1.0, 1.1, 0.015, 0.62),
    RankBin(1.1, 1.25, 0.074, 0.71),
    RankBin(1.25, 1.5, 0.109, 0.75),
    RankBin(1.5, 2.0, 0.146, 0.83),
    RankBin(2.0, 3.0, 0.250, 0.91),
    RankBin(3.0, float("inf"), 0.323, 0.98),
)
