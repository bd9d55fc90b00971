"""Estimators that perturb the window: occlusion, and the solver that the three mask methods share.

A perturbed position receives a value from elsewhere in the same window, in antithetic pairs of draws, as in the
deletion sweep. The draws are not those of the sweep: the matrix would otherwise be fitted to its own test.

Mask methods solve one problem per window and row: keep as little of the window as possible while the forecast at the
row's step stays the same. `P` problems form one batch. Losses are summed, optimisers work element by element and each
problem has its own draws, so solving them together equals solving each alone. The error is divided by that of deleting
everything, so that the weights of a penalty mean the same for every model, window and step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import GradientPath
from hrx.adapters.gradients import differentiable_input
from hrx.audit.attribution.explanation import AttributionTask, EstimatedRows
from hrx.audit.attribution.registry import OcclusionSettings
from hrx.audit.memory import one_thread, out_of_memory

REARRANGEMENT_STREAM = 2
"""Separates these rearrangements from the other random draws under one seed."""
FORECASTS_AT_ONCE = 64
PROBLEMS_AT_ONCE = 64
"""Fewer only where memory cannot hold them: another batch size changes the last bits."""
REFERENCE_DRAWS = 8


def rearranged(x: Tensor, key: Sequence[int], first: int, count: int, pairs: bool = True, shared: int = 1) -> Tensor:
    """`(W, L) -> (W, J, D, L)`: random rearrangements of each window's values, draws `first … first + count − 1`.

    In `pairs`, the second draw gives each position the value of the opposite rank. The channels of a multivariate
    window `(W, L, C)` are rearranged by themselves. `J = shared` of them are drawn together. A draw depends only on
    the key (seed, stream of the run, and what the draw is for), the window's place in its run and the draw's number.
    """
    windows, length, channels = len(x), x.shape[1], x[0, 0].numel()
    index = np.empty((windows, shared, count, length, channels), dtype=np.int64)
    seed, stream, *purpose = key
    for w in range(windows):
        for d in range(count):
            unit, second = divmod(first + d, 2 if pairs else 1)
            rng = np.random.default_rng([seed, stream, w, *purpose, unit])
            u = rng.permuted(np.tile(np.arange(length), (shared, channels, 1)), axis=-1).swapaxes(1, 2)
            index[w, :, d] = length - 1 - u if second else u
    ordered = torch.sort(x, dim=1).values.reshape(windows, 1, 1, length, channels).expand(-1, shared, count, -1, -1)
    drawn = torch.gather(ordered, 3, torch.as_tensor(index, device=x.device))
    return drawn if x.ndim == 3 else drawn[..., 0]


def replacements_of(task: AttributionTask, kind: str, first: int, count: int) -> Tensor:
    """`(W, D, L)`: the replacements of perturbed positions, in draws `first … first + count − 1`."""
    if kind == "mean":
        return task.x.mean(dim=1)[:, None, None].expand(-1, count, task.x.shape[1])
    return rearranged(task.x, (task.seed, task.stream, REARRANGEMENT_STREAM), first, count)[:, 0]


def forecasts(task: AttributionTask, inputs: Tensor) -> Tensor:
    """`(W, N, L) -> (W, N, H)`, without gradients, the inputs of one window at a time."""
    at_once = task.budget.rows(task.model, task.x[0], task.horizon, FORECASTS_AT_ONCE)
    with torch.no_grad(), one_thread():
        parts = [part for own in inputs for part in torch.split(own, at_once)]
        y = torch.cat([task.budget.forward(task.model, part, task.horizon) for part in parts])
    return torch.unflatten(y, 0, inputs.shape[:2])


def occlusion(task: AttributionTask, settings: OcclusionSettings) -> EstimatedRows:
    """`|ŷ[h] − f(x with one span corrupted)[h]|` for every position of the span (Zeiler & Fergus 2014).

    Spans do not overlap. The magnitude is averaged over draws.
    """
    length = task.x.shape[1]
    span = -(-length // settings.spans)
    owner = torch.arange(length) // span
    spans = torch.arange(int(owner[-1]) + 1)
    corrupted = owner == spans[:, None]
    draws = replacements_of(task, settings.replacement, 0, 1 if settings.replacement == "mean" else settings.draws)
    inputs = torch.where(corrupted[:, None], draws[:, None], task.x[:, None, None])
    inputs = torch.cat([task.x[:, None], inputs.flatten(1, 2)], dim=1)
    explained = forecasts(task, inputs) @ task.picks.to(task.x).T
    change = torch.unflatten((explained[:, 1:] - explained[:, :1]).abs(), 1, (len(spans), -1)).mean(dim=2)
    return EstimatedRows(change[:, owner].transpose(1, 2))


def lag_segments(length: int, count: int) -> Tensor:
    """`(L,)`: the segment of each position, 0 for the latest; each has `⌈L / count⌉` positions, the oldest the rest."""
    return torch.arange(length - 1, -1, -1) // -(-length // count)


class MaskProblems(NamedTuple):
    """Mask problems along the batch axis."""

    x: Tensor
    """`(P, L)`."""
    window: Tensor
    """`(P,)`: the window of each problem, by its place in the run."""
    label: Tensor
    """`(P,)`: the forecast step, or the horizon for a problem about the whole forecast."""
    picks: Tensor
    """`(P, H)`: which steps of the forecast are to be preserved."""
    forecast: Tensor
    """`(P, H)`: the forecast of the unperturbed window."""
    scale: Tensor
    """`(P,)`: the error when everything is deleted, mean of some draws."""
    variant: Tensor
    """`(P,)`: distinguishes several problems of one row."""

    def part(self, start: int, count: int) -> MaskProblems:
        """Consecutive problems."""
        return MaskProblems(*(values[start : start + count] for values in self))

    def repeated(self, count: int) -> MaskProblems:
        """`count` variants of each problem, side by side."""
        each = MaskProblems(*(values.repeat_interleave(count, dim=0) for values in self))
        return each._replace(variant=torch.arange(count).repeat(len(self.x)))

    def error(self, y: Tensor) -> Tensor:
        """`(…, P, H) -> (…, P)`: squared change at the steps to be preserved, relative to deleting everything."""
        return (torch.square(y - self.forecast) * self.picks).sum(dim=-1) / self.scale


class MaskMethod(ABC):
    """A mask method's optimisation of some problems. Every parameter and result has the problems as one axis."""

    optimiser: torch.optim.Optimizer
    """Over the parameters, element by element."""

    def __init__(self, drawn: Tensor, problems: MaskProblems):
        self._drawn, self._problems = drawn, problems

    @abstractmethod
    def perturbed(self, iteration: int) -> Tensor:
        """`(P, L)`: the windows under the current masks, differentiable in the parameters."""

    @abstractmethod
    def penalty(self, iteration: int) -> Tensor:
        """`(P,)`: the penalty of the current masks, differentiable in the parameters."""

    @abstractmethod
    def mask(self) -> Tensor:
        """`(P, L)`: the current masks, in [0, 1]."""

    def constrain(self) -> None:  # noqa: B027 (optional: not every method projects)
        """Projects the parameters back into their domain after a step, where that is needed."""

    def _blend(self, iteration: int, mask: Tensor, shift: Tensor | float = 0) -> Tensor:
        """`(P, L)`: the windows where the mask is 1, and this iteration's replacements, shifted, where it is 0."""
        return torch.lerp(self._drawn[self._problems.window, iteration] + shift, self._problems.x, mask)


def mask_problems(task: AttributionTask) -> MaskProblems:
    """The problems of a task, window by window and row by row."""
    rows = len(task.picks)
    picks = task.picks.to(task.x)
    everything = replacements_of(task, "rearranged", 0, REFERENCE_DRAWS)
    y = forecasts(task, torch.cat([task.x[:, None], everything], dim=1))
    change = torch.square(y[:, 1:] - y[:, :1]).mean(dim=1) @ picks.T
    scale = torch.where(change > 0, change, 1)
    return MaskProblems(
        x=task.x.repeat_interleave(rows, dim=0),
        window=torch.arange(len(task.x)).repeat_interleave(rows),
        label=torch.tensor(task.steps or (task.horizon,)).repeat(len(task.x)),
        picks=picks.repeat(len(task.x), 1),
        forecast=y[:, 0].repeat_interleave(rows, dim=0),
        scale=scale.flatten(),
        variant=torch.zeros(scale.numel(), dtype=torch.int64),
    )


def solve(
    task: AttributionTask, problems: MaskProblems, begin: Callable[[MaskProblems], MaskMethod], iterations: int
) -> EstimatedRows:
    """The masks that minimise error and penalty of every problem.

    In batches, which are halved where memory does not suffice; `begin` starts the optimisation of one.
    """
    path = GradientPath()
    at_once = task.budget.rows(task.model, task.x[0], task.horizon, PROBLEMS_AT_ONCE)
    masks: list[Tensor] = []
    start = 0
    # Hundreds of optimiser steps amplify the last bits of a sum that is split over threads.
    with torch.enable_grad(), one_thread():
        while start < len(problems.x):
            part = problems.part(start, at_once)
            try:
                masks.append(_minimise(task, part, begin(part), iterations, path))
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or len(part.x) == 1:
                    raise
                at_once = len(part.x) // 2
            else:
                start += len(part.x)
    return EstimatedRows(torch.unflatten(torch.cat(masks), 0, (len(task.x), -1)), path.rewrites)


def _minimise(
    task: AttributionTask, problems: MaskProblems, method: MaskMethod, iterations: int, path: GradientPath
) -> Tensor:
    """The masks `(P, L)` of problems that are solved in one batch."""
    for iteration in range(iterations):
        perturbed = method.perturbed(iteration)
        with path:  # around the model only, not around the method's own code
            leaf, working = differentiable_input(perturbed)
            error = problems.error(task.model.forward(working, task.horizon))
            (slope,) = torch.autograd.grad(error.sum(), leaf, allow_unused=True, materialize_grads=True)
        # A problem whose gradient is not finite takes no step, and does not affect the others.
        slope = torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0)
        method.optimiser.zero_grad()
        torch.autograd.backward([perturbed, method.penalty(iteration).sum()], [slope, None])
        method.optimiser.step()
        with torch.no_grad():
            method.constrain()
    return method.mask().detach()
