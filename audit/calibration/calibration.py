"""Runs a calibration: trains every backbone on every generator and measures each with the instrument itself.

The matrix, the gains and the rank come from the same functions as in an audit. How well scores single out the known
positions is measured by AUPRC and AUROC as in scikit-learn (average precision; ties count half), and by AUP and AUR,
the areas under precision and under recall as the threshold on the scores falls (Crabbé and van der Schaar, 2021), by
the trapezoidal rule over the thresholds that occur. These two depend on the scale of the scores, so scores are first
replaced by their ranks, evenly spaced on [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hrx.adapters import from_module
from hrx.audit.attribution import find_estimator
from hrx.audit.calibration.generators import (
    GENERATORS,
    NEGATIVE_CONTROL,
    PLANTED,
    TABLE_RANK,
    Generator,
    generate,
    plant_rank,
)  # fmt: skip
from hrx.audit.calibration.results import RECOVERED, Calibration, Example, Trial
from hrx.audit.calibration.training import BACKBONES, SCORED, least_squares_check, planted, train, windows
from hrx.audit.memory import one_thread
from hrx.audit.protocol import Protocol
from hrx.audit.scoring.rank import rank
from hrx.audit.scoring.score import ScoredRun
from hrx.errors import HrxError, unknown


class Shape(NamedTuple):
    """Lookback and horizon."""

    lookback: int
    horizon: int


@dataclass(frozen=True)
class Effort:
    """The models of a calibration."""

    name: str
    shapes: tuple[Shape, ...]
    seeds: int
    ranks: tuple[int, ...]
    """Planted ranks of the curve, at the first shape."""
    windows: int = 4
    """Windows that each model is explained and scored on."""


QUICK = Effort("quick", (Shape(96, 48),), 1, (1, 2, 4, 8, 16))
FULL = Effort("full", (Shape(96, 48), Shape(96, 96), Shape(192, 96)), 3, tuple(range(1, 17)))


class CalibrationTask(NamedTuple):
    """One model to be trained and measured."""

    backbone: str
    generator: Generator
    seed: int
    curve_only: bool

    @property
    def label(self) -> str:
        """One line that identifies it among the models of a calibration."""
        g = self.generator
        rank = f" of rank {g.rank:.0f}" if g.name == PLANTED else ""
        return f"{self.backbone} on {g.name}{rank}, {g.lookback}x{g.horizon}, seed {self.seed}"


Progress = Callable[[CalibrationTask, Trial], None]


def check_backbones(names: Sequence[str]) -> tuple[str, ...]:
    """The names without duplicates; refuses an unknown one."""
    for name in names:
        if name not in BACKBONES:
            raise HrxError(unknown("backbone", name, BACKBONES))
    if not names:
        raise HrxError(f"No backbone is given. Known: {', '.join(BACKBONES)}.")
    return tuple(dict.fromkeys(names))


def tasks(backbones: Sequence[str], effort: Effort) -> list[CalibrationTask]:
    """Every model of a calibration, in the order of training."""
    return [
        CalibrationTask(backbone, generator, seed, curve_only)
        for backbone in check_backbones(backbones)
        for generator, seed, curve_only in _generators(effort)
    ]


def _generators(effort: Effort) -> Iterator[tuple[Generator, int, bool]]:
    for seed in range(effort.seeds):
        for shape in effort.shapes:
            yield from ((generate(name, *shape, seed), seed, False) for name in GENERATORS)
        # The plantrank of the table is already a point of the curve.
        yield from (
            (plant_rank(rank, *effort.shapes[0], seed), seed, True) for rank in effort.ranks if rank != TABLE_RANK
        )


def calibrate(
    backbones: Sequence[str],
    *,
    estimator: str = "input_gradient",
    effort: Effort = QUICK,
    progress: Progress | None = None,
) -> Calibration:
    """Trains and measures every backbone on every generator, and the negative control as an exact model."""
    find_estimator(estimator)
    protocol = Protocol(estimator=estimator)
    # Small models gain nothing from a second thread, and with one the digits are the same on every machine.
    with one_thread():
        control = generate(NEGATIVE_CONTROL, *effort.shapes[0], seed=0)
        exact = _measure(planted(control), CalibrationTask("planted", control, 0, True), 1.0, protocol, effort.windows)
        trials: list[Trial] = []
        examples: dict[str, Example] = {}
        for task in tasks(backbones, effort):
            model = train(task.backbone, task.generator, task.seed)
            measured = _measure(model.module, task, model.explained, protocol, effort.windows)
            trials.append(measured.trial)
            if not task.curve_only:
                examples.setdefault(task.generator.name, measured)
            if progress is not None:
                progress(task, measured.trial)
    return Calibration(estimator, effort.name, exact.trial, tuple(trials), tuple(examples.values()))


def _measure(module: nn.Module, task: CalibrationTask, explained: float, protocol: Protocol, count: int) -> Example:
    """Gains and rank of a model, and how much of the answer the vector and the matrix recover."""
    generator = task.generator
    x, y = windows(generator, task.seed, SCORED, count)
    scored = ScoredRun(from_module(module, name=task.backbone), x, generator.horizon, protocol)
    quantities = scored.quantities
    matrix, steps = scored.explanation.matrix.double(), scored.explanation.steps
    positions = torch.from_numpy(generator.positions[steps])
    shared = matrix.mean(dim=1, keepdim=True).expand_as(matrix)
    recovered = _named("vector", recovery(shared, positions)) | _named("matrix", recovery(matrix, positions))
    trial = Trial(
        backbone=task.backbone,
        generator=generator.name,
        lookback=generator.lookback,
        horizon=generator.horizon,
        seed=task.seed,
        curve_only=task.curve_only,
        least_squares=least_squares_check(generator, task.seed),
        explained=explained,
        planted_rank=_planted_rank(generator, steps),
        measured_rank=quantities.rank,
        g_own=quantities.g_own,
        g_own_se=quantities.error.g_own,
        g_shuffled=quantities.g_shuffled,
        g_margin=quantities.g_margin,
        **recovered,
    )
    answer = np.abs(generator.weights[steps])
    return Example(
        trial, _array(x[0]), _array(y[0]), _array(scored.forecast[0]), answer, _array(matrix[0]), np.asarray(steps)
    )


def _planted_rank(generator: Generator, steps: npt.NDArray[np.int64]) -> float:
    """The rank of the answer in the estimated rows: fewer rows than the horizon have a lower rank."""
    if len(steps) == generator.horizon:
        return generator.rank
    return float(rank(torch.from_numpy(np.abs(generator.weights[steps]))[None]).participation[0])


def _named(form: str, metrics: Recovery) -> dict[str, float]:
    """Means over windows and steps, by the field names of `Trial`."""
    return {f"{name}_{form}": float(getattr(metrics, name).mean()) for name in RECOVERED}


def _array(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return values.double().numpy()


class Recovery(NamedTuple):
    """The four metrics, one number for every row of scores."""

    auprc: Tensor
    auroc: Tensor
    aup: Tensor
    aur: Tensor


def recovery(scores: Tensor, positions: Tensor) -> Recovery:
    """Scores `(…, L)` against known positions, boolean and broadcastable to the same shape; each result `(…,)`.

    Every row needs a position that is in the set and one that is not. Tied scores share one threshold, so that no
    metric depends on how ties would be broken; a row of equal scores has no range of thresholds, and areas of zero.
    """
    positions = positions.expand_as(scores)
    count = positions.sum(dim=-1)
    if not bool(((count > 0) & (count < scores.shape[-1])).all()):
        raise HrxError("A row of known positions marks none or all of them. Give rows with both kinds.")
    ordered, order = scores.double().sort(dim=-1, descending=True)
    hits = positions.gather(-1, order).double()
    first, last = _ties(ordered)
    true = hits.cumsum(dim=-1).gather(-1, last)
    precision = true / (last + 1)
    recall = true / count[..., None]
    size = scores.shape[-1]
    # From 1 for the highest to 0 for the lowest score; ties get the middle of their places.
    threshold = 1 - (first + last).double() / (2 * (size - 1))
    return Recovery(
        auprc=(hits * precision).sum(dim=-1) / count,
        auroc=_auroc(hits, threshold),
        aup=_area_under(precision, threshold),
        aur=_area_under(recall, threshold),
    )


def _ties(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """For each place of a sorted row, the first and the last place with the same score."""
    size = ordered.shape[-1]
    place = torch.arange(size, device=ordered.device).expand(ordered.shape)
    new = torch.ones_like(place, dtype=torch.bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    first = torch.where(new, place, 0).cummax(dim=-1).values
    ends = torch.roll(new, -1, dims=-1)  # a place is the last of its ties when the next one starts new ones
    last = torch.where(ends, place, size - 1).flip(-1).cummin(dim=-1).values.flip(-1)
    return first, last


def _auroc(hits: Tensor, threshold: Tensor) -> Tensor:
    """Mann and Whitney's statistic over the ranks of the true positions."""
    size = hits.shape[-1]
    true = hits.sum(dim=-1)
    below = (hits * threshold).sum(dim=-1) * (size - 1) - true * (true - 1) / 2
    return below / (true * (size - true))


def _area_under(curve: Tensor, threshold: Tensor) -> Tensor:
    # Ties have equal thresholds and equal heights: the steps between them have no width.
    return torch.trapezoid(curve.flip(-1), threshold.flip(-1), dim=-1)
