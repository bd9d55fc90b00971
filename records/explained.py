"""One explained forecast, and whether its explanation can be trusted. Needs no torch: pages are made from it."""

from dataclasses import dataclass
from enum import Enum

from hrx.records.ledger import StoredCheck
from hrx.records.quantities import Floats, NeededContext, Quantities, Skill

SURE = 2.0
"""A gain is positive where it exceeds this many Monte Carlo errors."""


class Trust(Enum):
    """Whether an explanation can be trusted, worst first. The first that applies is the verdict."""

    NOT_ADMITTED = "not admitted"
    NOT_SCORED = "not scored"
    NOT_BETTER_THAN_NAIVE = "not better than naive"
    NO_EVIDENCE = "no evidence"
    SHARED = "shared"
    OWN_ROWS = "own rows"


@dataclass(frozen=True)
class ExplainedForecast:
    """One forecast of one series with its matrix, and the scores on held-out windows of the same series."""

    model: str
    checkpoint: str
    fingerprint: str
    library: str
    series: str
    estimator: str
    x: Floats
    """`(L,)`, in the unit of the series."""
    forecast: Floats
    """`(H,)`, in the unit of the series."""
    matrix: Floats
    """`(R, L)`, on the standardised scale."""
    steps: tuple[int, ...]
    """The forecast step of each row, from 0."""
    labels: tuple[str, ...] | None
    """The date of each value of `x`, where there are dates."""
    windows: int
    """Held-out windows behind the checks, the skill and the quantities."""
    checks: tuple[StoredCheck, ...]
    skill: Skill | None
    quantities: Quantities | None
    unscored: str = ""
    """Why there are no quantities."""
    padded: int = 0
    """Zeros that the library puts before `x` and the model reads as observed values."""
    context: NeededContext | None = None
    """Where it was requested and the series could be scored."""

    @property
    def failed(self) -> tuple[StoredCheck, ...]:
        return tuple(check for check in self.checks if not check.passed)

    @property
    def trust(self) -> Trust:
        """The verdict."""
        if self.failed:
            return Trust.NOT_ADMITTED
        if self.quantities is None or self.skill is None:
            return Trust.NOT_SCORED
        if not self.skill.beats_naive:
            return Trust.NOT_BETTER_THAN_NAIVE
        if not self.surely_positive("g_margin"):
            return Trust.NO_EVIDENCE
        return Trust.OWN_ROWS if self.surely_positive("g_own") else Trust.SHARED

    def surely_positive(self, gain: str) -> bool:
        """Whether a gain exceeds zero by more than its Monte Carlo error explains."""
        if self.quantities is None:
            return False
        value, error = getattr(self.quantities.normalised, gain), getattr(self.quantities.error, gain)
        return bool(value > SURE * error)
