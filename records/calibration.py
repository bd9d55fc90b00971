"""Results of a calibration, and the criteria that judge the instrument. Plain numbers: no torch, no files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan
from statistics import median
from typing import NamedTuple

from hrx.records.quantities import Floats, Ints

NEGATIVE_CONTROL, PLANTED = "sparsenull", "plantrank"
GENERATORS = (NEGATIVE_CONTROL, "sparsesplit", "sparseband", "sparseshift", "lagmix", PLANTED)
"""Constructed ground truth, in the order of the table; `hrx.audit.generators` makes it."""
COVMIX = "covmix"
"""Ground truth over several channels, for the linear backbone."""
LEAST_AUPRC, MOST_IDLE = 0.95, 0.05
"""What the matrix over all channels must recover, and how often a channel that does nothing may be called read."""
LEARNED = 0.98
"""Share of the held-out variance that a least-squares fit and a backbone must explain to count as evidence."""
CONVERGED = "converged"
"""Recipe that the planted rank is judged under."""
CONTROL_TOLERANCE = 0.02
"""How far the gain on the exact control may be from zero, beyond twice its Monte Carlo error."""
RISING = "rank rises with the plant"
LEAST_SLOPE = 0.5
"""Least slope of the measured rank over the planted one, from the lowest planted rank to the highest."""
RECOVERED = ("auprc", "auroc", "aup", "aur")
QUANTITIES = (
    "g_own", "g_shuffled", "g_margin", *(f"{name}_{form}" for name in RECOVERED for form in ("vector", "matrix"))
)  # fmt: skip


@dataclass(frozen=True)
class ModelResult:
    """One trained model, measured against the generator that it was trained on."""

    backbone: str
    generator: str
    lookback: int
    horizon: int
    seed: int
    curve_only: bool
    """Only a point of the curve of planted ranks, not part of the table."""
    least_squares: float
    """Share of the held-out variance that a least-squares fit explains."""
    explained: float
    """Share that the backbone explains."""
    planted_rank: float
    measured_rank: float
    g_own: float
    g_own_se: float
    g_shuffled: float
    g_margin: float
    auprc_vector: float
    auprc_matrix: float
    auroc_vector: float
    auroc_matrix: float
    aup_vector: float
    aup_matrix: float
    aur_vector: float
    aur_matrix: float

    @property
    def learned(self) -> bool:
        """Whether it counts as evidence: both a least-squares fit and the backbone explain the target."""
        return min(self.least_squares, self.explained) >= LEARNED

    @property
    def auprc_gap(self) -> float:
        return self.auprc_matrix - self.auprc_vector


@dataclass(frozen=True)
class ChannelResult:
    """One model trained on `covmix`."""

    backbone: str
    lookback: int
    horizon: int
    seed: int
    explained: float
    """Share of the held-out variance that the backbone explains."""
    auprc: float
    """Of the matrix over the positions of all channels."""
    ordered: bool
    """Whether the effects of the channels have the order of the planted ones."""
    audits: int
    idle_read: int
    """Audits, of one window each, that call the channel read that does nothing."""
    g_margin: float
    """Of the matrix over all channels."""
    g_margin_channels: float
    """Of the order of the channels."""

    @property
    def learned(self) -> bool:
        """Whether it counts as evidence."""
        return self.explained >= LEARNED


@dataclass(frozen=True)
class Example:
    """One window of a trained model, for a figure."""

    result: ModelResult
    x: Floats
    """`(L,)`."""
    target: Floats
    """`(H,)`."""
    forecast: Floats
    """`(H,)`."""
    answer: Floats
    """`(R, L)`: magnitudes of the weights at the steps that were estimated."""
    matrix: Floats
    """`(R, L)`."""
    steps: Ints
    """`(R,)`: the steps of the rows, from 0."""


@dataclass(frozen=True)
class Calibration:
    """All trained models of one calibration."""

    estimator: str
    effort: str
    exact_control: ModelResult
    """Negative control as an exact, untrained model: any gain on it comes from the instrument."""
    results: tuple[ModelResult, ...]
    examples: tuple[Example, ...]
    recipe: str = CONVERGED
    """Name of the inputs and the training."""
    channels: tuple[ChannelResult, ...] = ()
    """Models of `covmix`."""

    @property
    def backbones(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(result.backbone for result in self.results))

    def table(self, backbone: str, generator: str | None = None) -> list[ModelResult]:
        """Models behind a cell of the table, learned or not."""
        table = [result for result in self.results if result.backbone == backbone and not result.curve_only]
        return [result for result in table if generator in (None, result.generator)]

    def evidence(self, backbone: str, generator: str | None = None) -> list[ModelResult]:
        """Those of them that count as evidence."""
        return [result for result in self.table(backbone, generator) if result.learned]

    def curve(self, backbone: str) -> list[Point]:
        """Planted against measured rank, the median over the shapes and seeds of learned models, by planted rank."""
        measured: dict[float, list[float]] = {}
        for result in self.results:
            if result.backbone == backbone and result.generator == PLANTED and result.learned:
                measured.setdefault(round(result.planted_rank, 6), []).append(result.measured_rank)
        return [Point(planted, median(measured[planted])) for planted in sorted(measured)]


class Point(NamedTuple):
    """A planted rank and the measured one."""

    planted: float
    measured: float


class Criterion(NamedTuple):
    """One property of a sound instrument, and whether it holds."""

    criterion: str
    backbone: str
    passed: bool
    figure: str


def median_of(results: Iterable[ModelResult], name: str) -> float:
    """Median of a quantity; NaN for no results."""
    values = [float(getattr(result, name)) for result in results]
    return median(values) if values else nan


def judge(calibration: Calibration) -> tuple[Criterion, ...]:
    """Every criterion: that of the exact control, then those of each backbone."""
    control = calibration.exact_control
    # Rows that are multiples of one vector order the lookback alike: only noise of estimator and draws remains.
    tolerance = CONTROL_TOLERANCE + (0 if isnan(control.g_own_se) else 2 * control.g_own_se)
    figure = f"g_own {control.g_own + 0.0:+.3f}, rank {control.measured_rank:.3f}"
    exact = Criterion("no gain on the exact control", "planted", abs(control.g_own) <= tolerance, figure)
    each = (one for backbone in calibration.backbones for one in _judge_backbone(calibration, backbone))
    return exact, *each, *_judge_channels(calibration)


def _judge_backbone(calibration: Calibration, backbone: str) -> Iterator[Criterion]:
    missing = [name for name in GENERATORS if not calibration.evidence(backbone, name)]
    learned = f"not learned: {', '.join(missing)}" if missing else "at least 98 % explained"
    yield Criterion("every generator learned", backbone, not missing, learned)
    gap = median_of(calibration.evidence(backbone, NEGATIVE_CONTROL), "auprc_gap")
    yield Criterion("negative control not positive", backbone, gap <= 0, f"AUPRC gap {gap:+.3f}")
    evidence = [result for result in calibration.evidence(backbone) if result.generator != NEGATIVE_CONTROL]
    own, shuffled, margin = (median_of(evidence, name) for name in ("g_own", "g_shuffled", "g_margin"))
    gains = f"own {own:+.3f}, shuffled {shuffled:+.3f}, margin {margin:+.3f}"
    yield Criterion("gains in the ideal directions", backbone, own > 0 > shuffled and margin > own, gains)
    vector, matrix = median_of(evidence, "auprc_vector"), median_of(evidence, "auprc_matrix")
    yield Criterion("matrix above vector", backbone, matrix > vector, f"AUPRC {vector:.3f} → {matrix:.3f}")
    if calibration.recipe != CONVERGED:  # a model that has not converged does not have the planted rank
        return
    curve = calibration.curve(backbone)
    if len(curve) < 2:
        yield Criterion(RISING, backbone, False, "fewer than two planted ranks were learned")
        return
    slope = (curve[-1].measured - curve[0].measured) / (curve[-1].planted - curve[0].planted)
    rises = all(low.measured < high.measured for low, high in pairwise(curve)) and slope >= LEAST_SLOPE
    off = max(abs(point.measured / point.planted - 1) for point in curve)
    yield Criterion(RISING, backbone, rises, f"slope {slope:.2f}, at most {100 * off:.1f} % off")


def _judge_channels(calibration: Calibration) -> Iterator[Criterion]:
    learned = [result for result in calibration.channels if result.learned]
    if not calibration.channels or calibration.recipe != CONVERGED:
        return
    backbone, audits = calibration.channels[0].backbone, sum(result.audits for result in learned)
    auprc = min((result.auprc for result in learned), default=nan)
    yield Criterion(f"{COVMIX}: channels recovered", backbone, auprc >= LEAST_AUPRC, f"AUPRC {auprc:.3f}")
    ordered = sum(result.ordered for result in learned)
    figure = f"{ordered} of {len(learned)} models"
    yield Criterion(f"{COVMIX}: channels in order", backbone, 0 < ordered == len(learned), figure)
    idle = sum(result.idle_read for result in learned)
    figure = f"read in {idle} of {audits} audits"
    yield Criterion(f"{COVMIX}: idle channel not read", backbone, audits > 0 and idle <= MOST_IDLE * audits, figure)


def verdict(criteria: Sequence[Criterion]) -> str:
    """One sentence on the instrument."""
    failed = [f"{one.criterion} ({one.backbone}: {one.figure})" for one in criteria if not one.passed]
    if failed:
        return f"NOT sound: {len(failed)} of {len(criteria)} criteria fail: {'; '.join(failed)}."
    if any(one.criterion == RISING for one in criteria):
        return (
            "sound: the negative control is not positive, the gains point in the ideal directions, and the measured "
            "rank rises with the planted one, on every backbone."
        )
    return (
        "sound: the negative control is not positive and the gains point in the ideal directions, on every backbone. "
        "The planted rank is not judged on models that have not converged."
    )
