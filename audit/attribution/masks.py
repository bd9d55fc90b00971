"""One mask problem per window and row, all of them solved together: what the three mask methods share.

A problem is to keep as little of its window as possible while the forecast at its step stays what it was. `P` problems
stand along the batch axis; losses are summed, optimisers work element by element and draws belong to a problem, so
solving together is solving each alone. Each method brings its mask, its perturbation and its penalty.

The error is divided by that of deleting everything, so that the weights of a penalty mean the same for every model,
window and step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath
from hrx.adapters.gradients import differentiable_input
from hrx.audit.attribution.jacobian import one_thread
from hrx.audit.attribution.perturbation import forecasts, replaced
from hrx.audit.attribution.settings import Mask
from hrx.audit.attribution.task import Filled, Task
from hrx.audit.memory import out_of_memory

PROBLEMS_AT_ONCE = 64
"""Fewer only where memory cannot hold them: a batch of another size would change the last bits."""
REFERENCE_DRAWS = 8
INITIAL = 3
"""Tells a problem's own random numbers from the other draws under one seed."""


class Problems(NamedTuple):
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
    """`(P, H)`: what they are."""
    scale: Tensor
    """`(P,)`: the error when everything is deleted, mean of some draws."""
    variant: Tensor
    """`(P,)`: tells several problems for one row from each other."""

    def some(self, start: int, count: int) -> Problems:
        """Some of them that follow one another."""
        return Problems(*(values[start : start + count] for values in self))

    def variants(self, count: int) -> Problems:
        """Several problems for each row, side by side."""
        each = Problems(*(values.repeat_interleave(count, dim=0) for values in self))
        return each._replace(variant=torch.arange(count).repeat(len(self.x)))

    def error(self, y: Tensor) -> Tensor:
        """`(…, P, H) -> (…, P)`: squared change at the steps to be preserved, relative to deleting everything."""
        return (torch.square(y - self.forecast) * self.picks).sum(dim=-1) / self.scale


class Method(Protocol):
    """A mask method in the middle of its optimisation. Every parameter and result has the problems as one axis."""

    @property
    def optimiser(self) -> torch.optim.Optimizer:
        """Over the parameters, element by element."""

    def perturbed(self, iteration: int) -> Tensor:
        """`(P, L)`: the windows under the present masks, differentiable in the parameters."""

    def penalty(self, iteration: int) -> Tensor:
        """`(P,)`: what is paid for the present masks, differentiable in the parameters."""

    def constrain(self) -> None:
        """Brings the parameters back to where they may be, after a step."""

    def mask(self) -> Tensor:
        """`(P, L)`: the present masks, in [0, 1]."""


def problems_of(task: Task) -> Problems:
    """The problems of a task, window by window and row by row."""
    rows = len(task.picks)
    picks = task.picks.to(task.x)
    everything = replaced(task, "rearranged", 0, REFERENCE_DRAWS)
    seen = forecasts(task, torch.cat([task.x[:, None], everything], dim=1))
    change = torch.square(seen[:, 1:] - seen[:, :1]).mean(dim=1) @ picks.T
    scale = torch.where(change > 0, change, 1)
    return Problems(
        x=task.x.repeat_interleave(rows, dim=0),
        window=torch.arange(len(task.x)).repeat_interleave(rows),
        label=torch.tensor(task.labels).repeat(len(task.x)),
        picks=picks.repeat(len(task.x), 1),
        forecast=seen[:, 0].repeat_interleave(rows, dim=0),
        scale=scale.flatten(),
        variant=torch.zeros(scale.numel(), dtype=torch.int64),
    )


class Solved(NamedTuple):
    """The masks of all problems and how they were had."""

    masks: Tensor
    """`(P, L)`."""
    path: GradientPath


def solve(task: Task, problems: Problems, begin: Callable[[Problems], Method], settings: Mask) -> Solved:
    """Minimises error and penalty of every problem, as many at once as memory holds: half as many where it does not."""
    path = GradientPath()
    at_once = task.budget.rows(task.model, task.x[0], task.horizon, PROBLEMS_AT_ONCE)
    masks: list[Tensor] = []
    start = 0
    while start < len(problems.x):
        some = problems.some(start, at_once)
        try:
            masks.append(_solved(task, some, begin, settings.iterations, path))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or len(some.x) == 1:
                raise
            at_once = len(some.x) // 2
        else:
            start += len(some.x)
    return Solved(torch.cat(masks), path)


def _solved(
    task: Task, problems: Problems, begin: Callable[[Problems], Method], iterations: int, path: GradientPath
) -> Tensor:
    """The masks `(P, L)` of problems that are solved in one batch."""
    with torch.enable_grad(), one_thread():
        method = begin(problems)
        for iteration in range(iterations):
            _step(task.model, task.horizon, problems, method, iteration, path)
        return method.mask().detach()


def _step(
    model: Forecaster, horizon: int, problems: Problems, method: Method, iteration: int, path: GradientPath
) -> None:
    """One step of the optimiser. The model is differentiated by itself: its path is not for the method's own code."""
    perturbed = method.perturbed(iteration)
    with path:
        leaf, working = differentiable_input(perturbed)
        error = problems.error(model.forward(working, horizon))
        (slope,) = torch.autograd.grad(error.sum(), leaf, allow_unused=True, materialize_grads=True)
    # A problem whose gradient is not finite takes no part in the step, and cannot spoil the others.
    slope = torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0)
    method.optimiser.zero_grad()
    torch.autograd.backward([perturbed, method.penalty(iteration).sum()], [slope, None])
    method.optimiser.step()
    with torch.no_grad():
        method.constrain()


def excess(mask: Tensor, area: float | Tensor) -> Tensor:
    """`(P, L) -> (P, 1)`: the least `θ ≥ 0` with which `clamp(mask − θ, 0, 1)` keeps at most `area` of the lookback.

    Subtracting it is the Euclidean projection onto the masks within budget. By bisection, to the last bits of fp32.
    """
    allowed = area * mask.shape[-1]
    low = torch.zeros_like(mask[:, :1])
    high = mask.amax(dim=-1, keepdim=True).clamp(min=0)
    for _ in range(30):
        middle = (low + high) / 2
        over = (mask - middle).clamp(0, 1).sum(dim=-1, keepdim=True) > allowed
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    fits = mask.clamp(0, 1).sum(dim=-1, keepdim=True) <= allowed
    return torch.where(fits, torch.zeros_like(high), high)


def keep_within(mask: Tensor, area: float | Tensor) -> None:
    """Moves parameters that are masks to the nearest ones in [0, 1] and within budget, in place."""
    mask.sub_(excess(mask, area)).clamp_(0, 1)


def own_numbers(task: Task, problems: Problems) -> list[np.random.Generator]:
    """A random stream for each problem, told by its window and its row."""
    pairs = zip(problems.window.tolist(), problems.label.tolist(), strict=True)
    return [np.random.default_rng([task.seed, task.stream, w, INITIAL, label]) for w, label in pairs]


def filled(task: Task, solved: Solved) -> Filled:
    """The masks as rows of the matrix."""
    return Filled(torch.unflatten(solved.masks, 0, (len(task.x), -1)), solved.path.rewrites)
