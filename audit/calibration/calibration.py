"""Runs a calibration: trains every backbone on every generator and measures each with the instrument itself.

The matrix, the gains and the rank come from the same functions as in an audit. Results are plain numbers
(`hrx.audit.calibration.results`); writing them down is left to `hrx.reports.calibration`.
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
from hrx.audit.attribution.jacobian import one_thread
from hrx.audit.calibration.backbones import BACKBONES
from hrx.audit.calibration.generators import (
    GENERATORS,
    NEGATIVE_CONTROL,
    PLANTED,
    TABLE_RANK,
    Generator,
    generate,
    plant_rank,
)  # fmt: skip
from hrx.audit.calibration.metrics import Recovery, recovery
from hrx.audit.calibration.results import RECOVERED, Calibration, Example, Trial
from hrx.audit.calibration.training import SCORED, least_squares_check, planted, train, windows
from hrx.audit.protocol import Protocol
from hrx.audit.scoring.rank import rank
from hrx.audit.scoring.score import score_in_full
from hrx.errors import HrxError, unknown


class Shape(NamedTuple):
    """Lookback and horizon."""

    lookback: int
    horizon: int


@dataclass(frozen=True)
class Effort:
    """How much a calibration does."""

    name: str
    shapes: tuple[Shape, ...]
    seeds: int
    ranks: tuple[int, ...]
    """Planted ranks of the curve, at the first shape."""
    windows: int = 4
    """Windows that each model is explained and scored on."""


QUICK = Effort("quick", (Shape(96, 48),), 1, (1, 2, 4, 8, 16))
FULL = Effort("full", (Shape(96, 48), Shape(96, 96), Shape(192, 96)), 3, tuple(range(1, 17)))


class Task(NamedTuple):
    """One model to be trained and measured."""

    backbone: str
    generator: Generator
    seed: int
    curve_only: bool

    @property
    def label(self) -> str:
        """What tells it from the other models of a calibration."""
        made = self.generator
        rank = f" of rank {made.rank:.0f}" if made.name == PLANTED else ""
        return f"{self.backbone} on {made.name}{rank}, {made.lookback}x{made.horizon}, seed {self.seed}"


Said = Callable[[Task, Trial], None]


def check_backbones(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each once; refuses one that is not known."""
    for name in names:
        if name not in BACKBONES:
            raise HrxError(unknown("backbone", name, BACKBONES))
    if not names:
        raise HrxError(f"No backbone is named. Known: {', '.join(BACKBONES)}.")
    return tuple(dict.fromkeys(names))


def tasks(backbones: Sequence[str], effort: Effort) -> list[Task]:
    """Every model of a calibration, in the order in which they are made."""
    return [
        Task(backbone, generator, seed, curve_only)
        for backbone in check_backbones(backbones)
        for generator, seed, curve_only in _answers(effort)
    ]


def _answers(effort: Effort) -> Iterator[tuple[Generator, int, bool]]:
    for seed in range(effort.seeds):
        for shape in effort.shapes:
            yield from ((generate(name, *shape, seed), seed, False) for name in GENERATORS)
        # The table's own plantrank is a point of the curve already.
        yield from (
            (plant_rank(rank, *effort.shapes[0], seed), seed, True) for rank in effort.ranks if rank != TABLE_RANK
        )


def calibrate(
    backbones: Sequence[str],
    *,
    estimator: str = "input_gradient",
    effort: Effort = QUICK,
    progress: Said | None = None,
) -> Calibration:
    """Trains and measures every backbone on every generator, and the negative control as an exact model."""
    find_estimator(estimator)
    protocol = Protocol(estimator=estimator)
    # Small models gain nothing from a second thread, and with one the digits are the same on every machine.
    with one_thread():
        control = generate(NEGATIVE_CONTROL, *effort.shapes[0], seed=0)
        exact = _measure(planted(control), Task("planted", control, 0, True), 1.0, protocol, effort.windows)
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


def _measure(module: nn.Module, task: Task, explained: float, protocol: Protocol, count: int) -> Example:
    """A model under the instrument: gains, rank, and what vector and matrix recover of the answer."""
    generator = task.generator
    x, y = windows(generator, task.seed, SCORED, count)
    scored = score_in_full(from_module(module, name=task.backbone), x, generator.horizon, protocol=protocol)
    matrix, steps = scored.explanation.matrix.double(), scored.explanation.steps
    positions = torch.from_numpy(generator.positions[steps])
    shared = matrix.mean(dim=1, keepdim=True).expand_as(matrix)
    found = _named("vector", recovery(shared, positions)) | _named("matrix", recovery(matrix, positions))
    quantities = scored.quantities
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
        **found,
    )
    answer = np.abs(generator.weights[steps])
    return Example(
        trial, _array(x[0]), _array(y[0]), _array(scored.forecast[0]), answer, _array(matrix[0]), np.asarray(steps)
    )


def _planted_rank(generator: Generator, steps: npt.NDArray[np.int64]) -> float:
    """The rank of the answer in the rows that were estimated: fewer rows than the horizon hold less of it."""
    if len(steps) == generator.horizon:
        return generator.rank
    return float(rank(torch.from_numpy(np.abs(generator.weights[steps]))[None]).participation[0])


def _named(form: str, found: Recovery) -> dict[str, float]:
    """Means over windows and steps, by the names of a trial."""
    return {f"{name}_{form}": float(getattr(found, name).mean()) for name in RECOVERED}


def _array(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return values.double().numpy()
