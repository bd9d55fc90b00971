"""ExtremalMask (Enguehard 2023): the mask and the perturbation are learned together.

Minimises `λ_1 ‖m‖₁ + λ_2 ‖NN(x)‖₁ + L(f(x), f(m x + (1 − m) NN(x)))`, norms as means over the lookback.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hrx.audit.attribution.counterfactual import Perturbation, Standardised
from hrx.audit.attribution.masks import REFERENCE_DRAWS, Problems, filled, keep_within, own_numbers, problems_of, solve
from hrx.audit.attribution.perturbation import replaced
from hrx.audit.attribution.settings import ExtremalMask
from hrx.audit.attribution.task import Filled, Task


class Learned:
    """Masks and the networks that fill in what they remove."""

    def __init__(
        self, problems: Problems, replacement: Tensor, numbers: list[np.random.Generator], settings: ExtremalMask
    ):
        self._problems, self._replacement, self._settings = problems, replacement, settings
        self._window = Standardised(problems.x)
        self._network = Perturbation(problems.x, numbers)
        self._shift = torch.zeros_like(problems.x)
        self._mask = torch.full_like(problems.x, 0.5).requires_grad_()
        self.optimiser = torch.optim.Adam([self._mask, *self._network.parameters], lr=settings.learning_rate)

    def perturbed(self, iteration: int) -> Tensor:
        drawn = self._replacement[self._problems.window, iteration]
        self._shift = self._network(self._window.z)
        return torch.lerp(self._window.shifted(drawn, self._shift), self._problems.x, self._mask)

    def penalty(self, iteration: int) -> Tensor:
        s = self._settings
        return s.mask * self._mask.mean(dim=-1) + s.perturbation * self._shift.abs().mean(dim=-1)

    def constrain(self) -> None:
        keep_within(self._mask, self._settings.area)

    def mask(self) -> Tensor:
        return self._mask


def extremalmask(task: Task, settings: ExtremalMask) -> Filled:
    """One mask per row, with a perturbation learned for it."""
    drawn = replaced(task, settings.replacement, REFERENCE_DRAWS, settings.iterations)
    solved = solve(
        task, problems_of(task), lambda some: Learned(some, drawn, own_numbers(task, some), settings), settings
    )
    return filled(task, solved)
