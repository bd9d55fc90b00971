"""Trains a backbone on a generator, and says how much of the target it came to explain.

Every batch is drawn anew, so nothing can be learned by heart, and every number follows from the seed. Which models are
worth explaining is decided by `LEARNED`: what a model has not learned, its explanation cannot be held against.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hrx.audit.calibration.backbones import BACKBONES
from hrx.audit.calibration.generators import Generator, inputs
from hrx.errors import HrxError, unknown

TRAINING, HELD_OUT, SCORED = range(3)
"""Streams of inputs under one seed: no window of one is ever in another."""
HELD_OUT_WINDOWS = 512
FIT_WINDOWS_PER_POSITION = 10


@dataclass(frozen=True)
class Recipe:
    """How long and how fast a backbone learns."""

    steps: int
    batch: int
    rate: float
    seconds: float
    """What training and measuring take on one core, about: only ratios matter, to say how long the rest will take."""


RECIPES = MappingProxyType(
    {
        "linear": Recipe(500, 64, 0.02, seconds=0.7),
        "cnn": Recipe(200, 24, 0.01, seconds=2),
        "transformer": Recipe(200, 24, 0.01, seconds=3),
    }
)


class Trained(NamedTuple):
    """A model, and the share of the target's variance that it explains on held-out windows."""

    module: nn.Module
    explained: float


class Windows(NamedTuple):
    """Inputs `(W, L)` and targets `(W, H)` of a generator."""

    x: Tensor
    y: Tensor


def train(backbone: str, generator: Generator, seed: int, recipe: Recipe | None = None) -> Trained:
    """A backbone by name, trained on the generator's windows by mean squared error."""
    if backbone not in BACKBONES:
        raise HrxError(unknown("backbone", backbone, BACKBONES))
    recipe = recipe or RECIPES[backbone]
    rng = np.random.default_rng([seed, TRAINING])
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        module = BACKBONES[backbone](generator.lookback, generator.horizon)
    optimiser = torch.optim.Adam(module.parameters(), lr=recipe.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=recipe.steps, pct_start=0.1)
    for _ in range(recipe.steps):
        x, y = _windows(generator, rng, recipe.batch)
        loss = (module(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    held = windows(generator, seed, HELD_OUT, HELD_OUT_WINDOWS)
    with torch.no_grad():
        return Trained(module.eval(), explained(module(held.x), held.y))


def planted(generator: Generator) -> nn.Module:
    """The generator itself as a model, exact and untrained."""
    module = nn.Linear(generator.lookback, generator.horizon, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(generator.weights))
    return module


def windows(generator: Generator, seed: int, stream: int, count: int) -> Windows:
    """The first windows of a stream, the same every time."""
    return _windows(generator, np.random.default_rng([seed, stream]), count)


def _windows(generator: Generator, rng: np.random.Generator, count: int) -> Windows:
    x = torch.from_numpy(inputs(rng, count, generator.lookback))
    return Windows(x, x @ torch.from_numpy(generator.weights).to(x).T)


def explained(forecast: Tensor, target: Tensor) -> float:
    """The share of the variance of `target` `(W, H)` that a forecast explains, around the mean of each step."""
    residual = (forecast - target).double().square().sum()
    spread = (target - target.mean(dim=0)).double().square().sum()
    return float(1 - residual / spread)


def least_squares(fit: Windows, held_out: Windows) -> float:
    """What a linear least-squares fit on some windows explains of others: the paper's check of a generator."""
    solution = torch.linalg.lstsq(_with_constant(fit.x), fit.y.double()).solution
    return explained(_with_constant(held_out.x) @ solution, held_out.y)


def least_squares_check(generator: Generator, seed: int) -> float:
    """`least_squares` from training windows to held-out ones."""
    fit = windows(generator, seed, TRAINING, FIT_WINDOWS_PER_POSITION * generator.lookback)
    return least_squares(fit, windows(generator, seed, HELD_OUT, HELD_OUT_WINDOWS))


def _with_constant(x: Tensor) -> Tensor:
    return torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
