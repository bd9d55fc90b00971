"""ContraLSP (Liu et al. 2024): sparse smooth gates, and counterfactuals learned by contrast.

Minimises `L(f(x), f(m x + (1 − m) x^r)) + α Σ P(gate open) + β L_cntr(x^r)`. A gate is `m = clamp(μ' + ε, 0, 1)` with
noise `ε ~ N(0, δ²)` and `μ' = μ σ(μ τ(x))`, `τ` a network that reads the window's trend. The counterfactual `x^r` is
learned; its loss draws it from the samples it resembles to those it does not, and towards zero.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hrx.audit.attribution.counterfactual import Perturbation, Standardised
from hrx.audit.attribution.masks import REFERENCE_DRAWS, Problems, excess, filled, own_numbers, problems_of, solve
from hrx.audit.attribution.perturbation import replaced
from hrx.audit.attribution.settings import ContraLSP
from hrx.audit.attribution.task import Filled, Task


class Gates:
    """Gates, trends and counterfactuals of some problems."""

    def __init__(
        self, problems: Problems, replacement: Tensor, numbers: list[np.random.Generator], settings: ContraLSP
    ):
        self._problems, self._replacement, self._settings = problems, replacement, settings
        self._window = Standardised(problems.x)
        samples = replacement[problems.window, : settings.samples]
        self._samples = self._window.scaled(samples.transpose(0, 1)).transpose(0, 1)
        self._network = Perturbation(problems.x, numbers)
        self._trend = Trend(problems.x, numbers, settings.hidden)
        shape = (settings.iterations, problems.x.shape[-1])
        noise = np.stack([rng.standard_normal(shape, dtype=np.float32) for rng in numbers])
        self._noise = settings.noise * torch.as_tensor(noise).to(problems.x)
        self._shift = torch.zeros_like(problems.x)
        self._level = torch.ones_like(problems.x)
        self._mu = torch.ones_like(problems.x).requires_grad_()
        parameters = [self._mu, *self._network.parameters, *self._trend.parameters]
        self.optimiser = torch.optim.Adam(parameters, lr=settings.learning_rate)

    def perturbed(self, iteration: int) -> Tensor:
        drawn = self._replacement[self._problems.window, iteration]
        self._shift = self._network(self._window.z)
        self._level = self._gate_level()
        over = excess(self._level.detach(), self._settings.area)
        gate = (self._level - over + self._noise[:, iteration]).clamp(0, 1)
        return torch.lerp(self._window.shifted(drawn, self._shift), self._problems.x, gate)

    def penalty(self, iteration: int) -> Tensor:
        s = self._settings
        opening = 0.5 + 0.5 * torch.erf(self._level / (2**0.5 * s.noise)) if s.noise else self._level.clamp(0, 1)
        return s.gates * opening.mean(dim=-1) + s.contrast * self._contrast()

    def constrain(self) -> None:
        """Gates are bounded where they are read."""

    def mask(self) -> Tensor:
        level = self._gate_level().detach()
        return (level - excess(level, self._settings.area)).clamp(0, 1)

    def _gate_level(self) -> Tensor:
        return self._mu * torch.sigmoid(self._mu * self._trend(self._window.z))

    def _contrast(self) -> Tensor:
        """`(P,)`: the triplet loss by Manhattan distance, and the size of the counterfactual, per position.

        The half of the samples that is nearer to the counterfactual is its own cluster, the other half the other.
        """
        length = self._samples.shape[-1]
        distance = (self._shift[:, None] - self._samples).abs().sum(dim=-1).sort(dim=-1).values
        half = distance.shape[-1] // 2
        own, other = distance[:, :half].mean(dim=-1), distance[:, half:].mean(dim=-1)
        triplet = (other - own - self._settings.margin).clamp(min=0)
        return (triplet + self._shift.abs().sum(dim=-1)) / length


class Trend:
    """Networks `(P, L) -> (P, L)` of one hidden layer, one per problem."""

    def __init__(self, like: Tensor, numbers: list[np.random.Generator], hidden: int):
        length = like.shape[-1]
        self.parameters = [
            _uniform(like, numbers, (hidden, length), length),
            _uniform(like, numbers, (hidden, 1), length),
            _uniform(like, numbers, (length, hidden), hidden),
            _uniform(like, numbers, (length, 1), hidden),
        ]

    def __call__(self, z: Tensor) -> Tensor:
        """`(P, L) -> (P, L)`."""
        first, first_bias, second, second_bias = self.parameters
        inner = torch.relu(first @ z[..., None] + first_bias)
        return (second @ inner + second_bias)[..., 0]


def _uniform(like: Tensor, numbers: list[np.random.Generator], shape: tuple[int, int], inputs: int) -> Tensor:
    """A layer's weights as torch initialises them, each problem's from its own random numbers."""
    drawn = np.stack([rng.uniform(-1, 1, shape) for rng in numbers]) / inputs**0.5
    return torch.as_tensor(drawn).to(like).requires_grad_()


def contralsp(task: Task, settings: ContraLSP) -> Filled:
    """One mask of gates per row, with a counterfactual learned for it."""
    drawn = replaced(task, settings.replacement, REFERENCE_DRAWS, max(settings.iterations, settings.samples))
    solved = solve(
        task, problems_of(task), lambda some: Gates(some, drawn, own_numbers(task, some), settings), settings
    )
    return filled(task, solved)
