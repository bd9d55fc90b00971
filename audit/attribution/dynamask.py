"""Dynamask (Crabbé & van der Schaar 2021): the mask of the least area that still preserves the forecast.

Minimises `L_e + λ_a L_a + λ_c L_c`: the error; the distance of the sorted mask from one that keeps exactly the area;
jumps in time. `λ_a` grows along the way. Problems of several areas are solved side by side, and the smallest area whose
error stays below a threshold is taken: the extremal mask of its section 3.3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hrx.audit.attribution.masks import REFERENCE_DRAWS, Problems, filled, keep_within, problems_of, solve
from hrx.audit.attribution.perturbation import forecasts, replaced
from hrx.audit.attribution.settings import Dynamask
from hrx.audit.attribution.task import Filled, Task


class Fading:
    """Masks on the way to their areas; a masked position fades to its replacement."""

    def __init__(self, problems: Problems, areas: Tensor, replacement: Tensor, settings: Dynamask):
        length = problems.x.shape[-1]
        self._problems, self._settings = problems, settings
        self._replacement = replacement
        kept = (areas[problems.variant] * length).floor().clamp(min=1)[:, None]
        self._area = kept / length
        self._wanted = (torch.arange(length) >= length - kept).to(problems.x)
        self._mask = torch.full_like(problems.x, 0.5).requires_grad_()
        self.optimiser = torch.optim.SGD([self._mask], lr=settings.learning_rate, momentum=settings.momentum)

    def perturbed(self, iteration: int) -> Tensor:
        return torch.lerp(self._replacement[self._problems.window, iteration], self._problems.x, self._mask)

    def penalty(self, iteration: int) -> Tensor:
        s = self._settings
        weight = s.size * math.exp(math.log(s.dilation) * iteration / s.iterations)
        size = torch.square(self._wanted - self._mask.sort(dim=-1).values).mean(dim=-1)
        jumps = self._mask.diff(dim=-1).abs().mean(dim=-1)
        return weight * size + s.time * jumps

    def constrain(self) -> None:
        keep_within(self._mask, self._area)

    def mask(self) -> Tensor:
        return self._mask


def dynamask(task: Task, settings: Dynamask) -> Filled:
    """One mask per row, of the smallest area that preserves what the row is about."""
    areas = settings.area / 2.0 ** torch.arange(settings.halvings, -1, -1)
    replacement = replaced(task, settings.replacement, REFERENCE_DRAWS, settings.iterations)
    problems = problems_of(task).variants(len(areas))
    solved = solve(task, problems, lambda some: Fading(some, areas, replacement, settings), settings)
    error = torch.unflatten(_error(task, problems, solved.masks, settings), 0, (-1, len(areas)))
    enough = error <= settings.error
    chosen = torch.where(enough.any(dim=-1), enough.int().argmax(dim=-1), error.argmin(dim=-1))
    masks = torch.unflatten(solved.masks, 0, (-1, len(areas)))
    return filled(task, solved._replace(masks=masks[torch.arange(len(masks)), chosen]))


def _error(task: Task, problems: Problems, masks: Tensor, settings: Dynamask) -> Tensor:
    """`(P,)`: the error of each mask, under other draws than it was found with."""
    draws = replaced(task, settings.replacement, 0, REFERENCE_DRAWS)
    own = torch.unflatten(masks, 0, (len(task.x), -1))
    inputs = torch.lerp(draws[:, None], task.x[:, None, None], own[:, :, None])
    seen = torch.unflatten(forecasts(task, inputs.flatten(1, 2)), 1, (-1, REFERENCE_DRAWS))
    return problems.error(seen.flatten(0, 1).transpose(0, 1)).mean(dim=0)
