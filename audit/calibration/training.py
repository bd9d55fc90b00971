"""Three small backbones, and their training on a generator.

Small on purpose: calibration tests the instrument, not the design of a forecaster. Every number follows from the seed.
A recipe decides the inputs and how long a backbone is trained on them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hrx.adapters.formats.backbones import CNN, WIDTH
from hrx.audit.calibration.generators import Generator, inputs, sinusoids
from hrx.errors import HrxError, unknown
from hrx.records import calibration as results

HEADS = 2
LAYERS = 1
TRAINING, HELD_OUT, SCORED = range(3)
"""Random streams of inputs under one seed; no window occurs in two of them."""
HELD_OUT_WINDOWS = 512
FIT_WINDOWS_PER_POSITION = 10


class TransformerBackbone(nn.Module):
    """Self-attention over time steps, one token for each value, followed by one linear head."""

    def __init__(self, lookback: int, horizon: int):
        super().__init__()
        self.embed = nn.Linear(1, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(lookback, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH * lookback, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, L) -> (B, H)`."""
        hidden = self.encoder(self.embed(x[..., None]) + self.position)
        y: Tensor = self.head(hidden.flatten(1))
        return y


@dataclass(frozen=True)
class Backbone:
    """An architecture, and the length, batch size and learning rate of its training."""

    build: Callable[[int, int], nn.Module]
    """`(lookback, horizon) -> module`."""
    steps: int
    batch: int
    rate: float
    seconds: float
    """Approximate time of training and measuring on one core; only ratios matter, for the remaining time."""


BACKBONES = MappingProxyType(
    {
        "linear": Backbone(nn.Linear, 500, 64, 0.02, seconds=0.7),
        "cnn": Backbone(CNN, 200, 24, 0.01, seconds=2),
        "transformer": Backbone(TransformerBackbone, 200, 24, 0.01, seconds=3),
    }
)


@dataclass(frozen=True)
class Recipe:
    """The inputs of a calibration and the training of its backbones."""

    name: str
    inputs: Callable[[np.random.Generator, int, int], npt.NDArray[np.float32]]
    """`(rng, windows, lookback) -> (windows, lookback)`."""
    windows: int = 0
    """Windows that are drawn once; 0: every batch is new, so nothing can be memorised."""
    epochs: int = 0
    batch: int = 0
    rate: float = 0.0


CONVERGED = Recipe(results.CONVERGED, inputs)
"""Every batch is new, for as many steps and at the rate of the backbone: nearly exact models."""
SHORT = Recipe("short", sinusoids, windows=4000, epochs=10, batch=32, rate=1e-3)
"""Ten epochs over 4,000 windows: models about as converged as those of the published table."""
RECIPES = MappingProxyType({recipe.name: recipe for recipe in (CONVERGED, SHORT)})


def check_backbones(names: Sequence[str]) -> tuple[str, ...]:
    """The names without duplicates; refuses an unknown one."""
    for name in names:
        if name not in BACKBONES:
            raise HrxError(unknown("backbone", name, BACKBONES))
    if not names:
        raise HrxError(f"No backbone is given. Known: {', '.join(BACKBONES)}.")
    return tuple(dict.fromkeys(names))


class TrainedBackbone(NamedTuple):
    """A model, and the share of the target's variance that it explains on held-out windows."""

    module: nn.Module
    explained: float


class GeneratedWindows(NamedTuple):
    """Inputs `(W, L)` and targets `(W, H)` of a generator."""

    x: Tensor
    y: Tensor


def train(name: str, generator: Generator, seed: int, recipe: Recipe = CONVERGED) -> TrainedBackbone:
    """A backbone by name, trained on the generator's windows by mean squared error."""
    check_backbones([name])
    backbone = BACKBONES[name]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        module = backbone.build(generator.lookback, generator.horizon)
    if recipe.windows:
        optimiser = torch.optim.Adam(module.parameters(), lr=recipe.rate)
        for batch in _epochs(generator, seed, recipe):
            _step(module, optimiser, batch)
    else:
        rng = np.random.default_rng([seed, TRAINING])
        optimiser = torch.optim.Adam(module.parameters(), lr=backbone.rate)
        steps = backbone.steps
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, backbone.rate, total_steps=steps, pct_start=0.1)
        for _ in range(steps):
            _step(module, optimiser, _windows(generator, rng, backbone.batch, recipe))
            schedule.step()
    held = windows(generator, seed, HELD_OUT, HELD_OUT_WINDOWS, recipe)
    with torch.no_grad():
        return TrainedBackbone(module.eval(), explained(module(held.x), held.y))


def _epochs(generator: Generator, seed: int, recipe: Recipe) -> Iterator[GeneratedWindows]:
    """The batches of every epoch over the same windows, in a new order each time."""
    x, y = windows(generator, seed, TRAINING, recipe.windows, recipe)
    order = np.random.default_rng([seed, TRAINING, recipe.windows])
    for _ in range(recipe.epochs):
        for batch in torch.split(torch.from_numpy(order.permutation(recipe.windows)), recipe.batch):
            yield GeneratedWindows(x[batch], y[batch])


def _step(module: nn.Module, optimiser: torch.optim.Optimizer, batch: GeneratedWindows) -> None:
    loss = (module(batch.x) - batch.y).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def planted(generator: Generator) -> nn.Module:
    """The generator itself as a model, exact and untrained."""
    module = nn.Linear(generator.lookback, generator.horizon, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(generator.weights))
    return module


def windows(generator: Generator, seed: int, stream: int, count: int, recipe: Recipe = CONVERGED) -> GeneratedWindows:
    """The first windows of a random stream, the same in every call."""
    return _windows(generator, np.random.default_rng([seed, stream]), count, recipe)


def _windows(generator: Generator, rng: np.random.Generator, count: int, recipe: Recipe) -> GeneratedWindows:
    x = torch.from_numpy(recipe.inputs(rng, count, generator.lookback))
    return GeneratedWindows(x, x @ torch.from_numpy(generator.weights).to(x).T)


def explained(forecast: Tensor, target: Tensor) -> float:
    """The share of the variance of `target` `(W, H)` that a forecast explains, around the mean of each step."""
    residual = (forecast - target).double().square().sum()
    spread = (target - target.mean(dim=0)).double().square().sum()
    return float(1 - residual / spread)


def least_squares(fit: GeneratedWindows, held_out: GeneratedWindows) -> float:
    """Share of variance that a least-squares fit on `fit` explains of `held_out`: the paper's check of a generator."""
    solution = torch.linalg.lstsq(_with_constant(fit.x), fit.y.double()).solution
    return explained(_with_constant(held_out.x) @ solution, held_out.y)


def least_squares_check(generator: Generator, seed: int, recipe: Recipe = CONVERGED) -> float:
    """`least_squares` of training windows and held-out ones."""
    fit = windows(generator, seed, TRAINING, FIT_WINDOWS_PER_POSITION * generator.lookback, recipe)
    return least_squares(fit, windows(generator, seed, HELD_OUT, HELD_OUT_WINDOWS, recipe))


def _with_constant(x: Tensor) -> Tensor:
    return torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
