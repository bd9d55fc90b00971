"""Three mask methods, Dynamask, ExtremalMask and ContraLSP, and the solver that they share.

One problem per window and row: keep as little of the window as possible while the forecast at the row's step stays the
same. `P` problems form one batch. Losses are summed, optimisers work element by element and each problem has its own
draws, so solving them together equals solving each alone. The error is divided by that of deleting everything, so that
the weights of a penalty mean the same for every model, window and step.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.gradients import GradientPath, differentiable_input
from hrx.audit.attribution import AttributionTask, Estimate
from hrx.audit.attribution.perturbation import forecasts, replacements_of
from hrx.audit.attribution.settings import ContraLSPSettings, DynamaskSettings, ExtremalMaskSettings, MaskSettings
from hrx.audit.memory import out_of_memory
from hrx.audit.torch_state import one_thread

PROBLEMS_AT_ONCE = 64
"""Fewer only where memory cannot hold them: another batch size changes the last bits."""
REFERENCE_DRAWS = 8
INITIAL_STREAM = 3
"""Separates a problem's own random numbers from the other draws under one seed."""
GATES = 3
"""Reset, update and candidate of a GRU, in torch's order."""


class MaskProblems(NamedTuple):
    """Mask problems along the batch axis."""

    x: Tensor
    """`(P, L)`."""
    window: Tensor
    """`(P,)`: the window of each problem, by its place in the run."""
    label: Tensor
    """`(P,)`: the forecast step from 0, or the horizon for the whole forecast; what a problem's draws depend on."""
    picks: Tensor
    """`(P, H)`: which steps of the forecast are to be preserved."""
    forecast: Tensor
    """`(P, H)`: the forecast of the unperturbed window."""
    scale: Tensor
    """`(P,)`: the error when everything is deleted, mean of some draws."""
    variant: Tensor
    """`(P,)`: distinguishes several problems of one row."""

    @classmethod
    def of(cls, task: AttributionTask, variants: int) -> MaskProblems:
        """Problems of a task, window by window and row by row, with the variants of a row side by side."""
        rows, picks = len(task.picks), task.picks.to(task.x)
        everything = replacements_of(task, "rearranged", 0, REFERENCE_DRAWS)
        y = forecasts(task, torch.cat([task.x[:, None], everything], dim=1))
        change = torch.square(y[:, 1:] - y[:, :1]).mean(dim=1) @ picks.T
        one_each = cls(
            x=task.x.repeat_interleave(rows, dim=0),
            window=torch.arange(len(task.x)).repeat_interleave(rows),
            label=torch.tensor(task.steps or (task.horizon + 1,)).sub(1).repeat(len(task.x)),
            picks=picks.repeat(len(task.x), 1),
            forecast=y[:, 0].repeat_interleave(rows, dim=0),
            scale=torch.where(change > 0, change, 1).flatten(),
            variant=torch.zeros(change.numel(), dtype=torch.int64),
        )
        each = cls(*(values.repeat_interleave(variants, dim=0) for values in one_each))
        return each._replace(variant=torch.arange(variants).repeat(change.numel()))

    def error(self, y: Tensor) -> Tensor:
        """`(…, P, H) -> (…, P)`: squared change at the steps to be preserved, relative to deleting everything."""
        return (torch.square(y - self.forecast) * self.picks).sum(dim=-1) / self.scale


class MaskMethod:
    """A mask method's optimisation of some problems. Every parameter and result has the problems as one axis."""

    optimiser: torch.optim.Optimizer
    """Over the parameters, element by element."""

    def __init__(self, task: AttributionTask, drawn: Tensor, settings: Any, problems: MaskProblems):
        self._drawn, self._settings, self._problems = drawn, settings, problems
        self._area: float | Tensor = settings.area
        """Part of the lookback that a mask may keep."""
        self._mask = torch.full_like(problems.x, 0.5).requires_grad_()

    def perturbed(self, iteration: int) -> Tensor:
        """`(P, L)`: the windows under the current masks, differentiable in the parameters."""
        return self._blend(iteration, self._mask)

    def penalty(self, iteration: int) -> Tensor:
        """`(P,)`: the penalty of the current masks, differentiable in the parameters."""
        raise NotImplementedError

    def mask(self) -> Tensor:
        """`(P, L)`: the current masks, in [0, 1] and within budget."""
        return self._mask.detach()

    def constrain(self) -> None:
        """Moves the masks to the nearest ones in [0, 1] and within budget, after a step."""
        self._mask.sub_(excess(self._mask, self._area)).clamp_(0, 1)

    def _blend(self, iteration: int, mask: Tensor, shift: Tensor | float = 0) -> Tensor:
        """`(P, L)`: the windows where the mask is 1, and this iteration's replacements, shifted, where it is 0."""
        return torch.lerp(self._drawn[self._problems.window, iteration] + shift, self._problems.x, mask)


def solve(task: AttributionTask, method: type[MaskMethod], settings: MaskSettings, problems: MaskProblems) -> Estimate:
    """Masks that minimise error and penalty of every problem, in batches that are halved where memory is too small."""
    drawn = replacements_of(task, settings.replacement, REFERENCE_DRAWS, settings.iterations)
    path = GradientPath()
    at_once = task.budget.rows(task.model, task.x[0], task.horizon, PROBLEMS_AT_ONCE)
    masks: list[Tensor] = []
    start = 0
    # Hundreds of optimiser steps amplify the last bits of a sum that is split over threads.
    with torch.enable_grad(), one_thread():
        while start < len(problems.x):
            part = MaskProblems(*(values[start : start + at_once] for values in problems))
            try:
                masks.append(_minimise(task, part, method(task, drawn, settings, part), settings.iterations, path))
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or len(part.x) == 1:
                    raise
                at_once = len(part.x) // 2
            else:
                start += len(part.x)
    return Estimate(torch.unflatten(torch.cat(masks), 0, (len(task.x), -1)), path.rewrites)


def _minimise(
    task: AttributionTask, problems: MaskProblems, method: MaskMethod, iterations: int, path: GradientPath
) -> Tensor:
    """Masks `(P, L)` of problems that are solved in one batch."""
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
    return method.mask()


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


class _Dynamask(MaskMethod):
    """Masks that shrink to their areas; a masked position fades to its replacement."""

    def __init__(self, task: AttributionTask, drawn: Tensor, settings: DynamaskSettings, problems: MaskProblems):
        super().__init__(task, drawn, settings, problems)
        length = problems.x.shape[-1]
        areas = settings.area / 2.0 ** torch.arange(settings.halvings, -1, -1)
        kept = (areas[problems.variant] * length).floor().clamp(min=1)[:, None]
        self._area = kept / length
        self._target = (torch.arange(length) >= length - kept).to(problems.x)
        self.optimiser = torch.optim.SGD([self._mask], lr=settings.learning_rate, momentum=settings.momentum)

    def penalty(self, iteration: int) -> Tensor:
        s: DynamaskSettings = self._settings
        weight = s.size * math.exp(math.log(s.dilation) * iteration / s.iterations)
        size = torch.square(self._target - self._mask.sort(dim=-1).values).mean(dim=-1)
        jumps = self._mask.diff(dim=-1).abs().mean(dim=-1)
        return weight * size + s.time * jumps


def dynamask(task: AttributionTask, settings: DynamaskSettings) -> Estimate:
    """Dynamask (Crabbé & van der Schaar 2021): the mask of the least area that still preserves the forecast.

    Minimises `L_e + λ_a L_a + λ_c L_c`: the error; the distance of the sorted mask from one that keeps exactly the
    area; jumps in time. `λ_a` grows with the iterations. Problems of several areas, each half the next, are solved side
    by side, and the smallest area whose error stays below a threshold is taken: the extremal mask of the paper's
    section 3.3.
    """
    areas = settings.halvings + 1
    problems = MaskProblems.of(task, areas)
    solved = solve(task, _Dynamask, settings, problems)
    # The error of each mask, under other draws than those it was optimised with.
    draws = replacements_of(task, settings.replacement, 0, REFERENCE_DRAWS)
    inputs = torch.lerp(draws[:, None], task.x[:, None, None], solved.matrix[:, :, None])
    y = torch.unflatten(forecasts(task, inputs.flatten(1, 2)), 1, (-1, REFERENCE_DRAWS))
    error = problems.error(y.flatten(0, 1).transpose(0, 1)).mean(dim=0).reshape(len(task.x), -1, areas)
    enough = error <= settings.error
    chosen = torch.where(enough.any(dim=-1), enough.int().argmax(dim=-1), error.argmin(dim=-1))
    masks = torch.unflatten(solved.matrix, 1, (-1, areas))
    return solved._replace(matrix=torch.take_along_dim(masks, chosen[..., None, None], dim=2)[:, :, 0])


class _LearnedPerturbation(MaskMethod):
    """A mask method that learns a shift of the replacements, on the window's own scale."""

    def __init__(self, task: AttributionTask, drawn: Tensor, settings: Any, problems: MaskProblems):
        super().__init__(task, drawn, settings, problems)
        x = problems.x
        # Zero is the window's mean: the prior of the perturbation.
        self._mean, spread = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True, correction=0)
        self._spread = torch.where(spread > 0, spread, 1)
        self._z = (x - self._mean) / self._spread
        rows = zip(problems.window.tolist(), problems.label.tolist(), strict=True)
        self._streams = [np.random.default_rng([task.seed, task.stream, w, INITIAL_STREAM, row]) for w, row in rows]
        self._network = PerturbationNetwork(x, self._streams)
        self._shift = torch.zeros_like(x)

    def _shift_and_blend(self, iteration: int, mask: Tensor) -> Tensor:
        self._shift = self._network(self._z)
        return self._blend(iteration, mask, self._spread * self._shift)


class _ExtremalMask(_LearnedPerturbation):
    """Masks and the networks that fill in what they remove."""

    def __init__(self, task: AttributionTask, drawn: Tensor, settings: ExtremalMaskSettings, problems: MaskProblems):
        super().__init__(task, drawn, settings, problems)
        self.optimiser = torch.optim.Adam([self._mask, *self._network.parameters], lr=settings.learning_rate)

    def perturbed(self, iteration: int) -> Tensor:
        return self._shift_and_blend(iteration, self._mask)

    def penalty(self, iteration: int) -> Tensor:
        s: ExtremalMaskSettings = self._settings
        return s.mask * self._mask.mean(dim=-1) + s.perturbation * self._shift.abs().mean(dim=-1)


def extremalmask(task: AttributionTask, settings: ExtremalMaskSettings) -> Estimate:
    """ExtremalMask (Enguehard 2023): the mask and the perturbation are learned together.

    Minimises `λ_1 ‖m‖₁ + λ_2 ‖NN(x)‖₁ + L(f(x), f(m x + (1 − m) NN(x)))`, norms as means over the lookback.
    """
    return solve(task, _ExtremalMask, settings, MaskProblems.of(task, 1))


class _ContraLSP(_LearnedPerturbation):
    """Gates, trends and counterfactuals of some problems."""

    def __init__(self, task: AttributionTask, drawn: Tensor, settings: ContraLSPSettings, problems: MaskProblems):
        super().__init__(task, drawn, settings, problems)
        samples = replacements_of(task, settings.replacement, REFERENCE_DRAWS, settings.samples)[problems.window]
        self._samples = (samples - self._mean[:, None]) / self._spread[:, None]
        x, streams = problems.x, self._streams
        length, hidden = x.shape[-1], settings.hidden

        def layer(shape: tuple[int, int], inputs: int) -> Tensor:
            """Weights as torch initialises them, each problem's from its own random stream."""
            drawn = np.stack([rng.uniform(-1, 1, shape) for rng in streams]) / inputs**0.5
            return torch.as_tensor(drawn).to(x).requires_grad_()

        # A network of one hidden layer that reads the window's trend.
        self._trend = [layer((hidden, length), length), layer((hidden, 1), length)]
        self._trend += [layer((length, hidden), hidden), layer((length, 1), hidden)]
        noise = np.stack([rng.standard_normal((settings.iterations, length), dtype=np.float32) for rng in streams])
        self._noise = settings.noise * torch.as_tensor(noise).to(x)
        self._level = torch.ones_like(x)
        self._mu = torch.ones_like(x).requires_grad_()
        parameters = [self._mu, *self._network.parameters, *self._trend]
        self.optimiser = torch.optim.Adam(parameters, lr=settings.learning_rate)

    def perturbed(self, iteration: int) -> Tensor:
        self._level = self._gate_level()
        over = excess(self._level.detach(), self._area)
        return self._shift_and_blend(iteration, (self._level - over + self._noise[:, iteration]).clamp(0, 1))

    def penalty(self, iteration: int) -> Tensor:
        """Penalty of the open gates, and of the counterfactual: its size and the triplet loss by Manhattan distance.

        The half of the samples that is nearer to the counterfactual is its own cluster, the other half the other.
        """
        s: ContraLSPSettings = self._settings
        opening = 0.5 + 0.5 * torch.erf(self._level / (2**0.5 * s.noise)) if s.noise else self._level.clamp(0, 1)
        distance = (self._shift[:, None] - self._samples).abs().sum(dim=-1).sort(dim=-1).values
        half = distance.shape[-1] // 2
        own, other = distance[:, :half].mean(dim=-1), distance[:, half:].mean(dim=-1)
        triplet = (other - own - s.margin).clamp(min=0)
        contrast = (triplet + self._shift.abs().sum(dim=-1)) / self._samples.shape[-1]
        return s.gates * opening.mean(dim=-1) + s.contrast * contrast

    def mask(self) -> Tensor:
        level = self._gate_level().detach()
        return (level - excess(level, self._area)).clamp(0, 1)

    def constrain(self) -> None:
        """Leaves the parameters: only the masks that follow from them are bound by the budget."""

    def _gate_level(self) -> Tensor:
        first, first_bias, second, second_bias = self._trend
        inner = torch.relu(first @ self._z[..., None] + first_bias)
        return self._mu * torch.sigmoid(self._mu * (second @ inner + second_bias)[..., 0])


def contralsp(task: AttributionTask, settings: ContraLSPSettings) -> Estimate:
    """ContraLSP (Liu et al. 2024): sparse smooth gates, and counterfactuals learned by contrast.

    Minimises `L(f(x), f(m x + (1 − m) x^r)) + α Σ P(gate open) + β L_cntr(x^r)`. A gate is `m = clamp(μ' + ε, 0, 1)`
    with noise `ε ~ N(0, δ²)` and `μ' = μ σ(μ τ(x))`, where the network `τ` reads the window's trend. The counterfactual
    `x^r` is learned; its loss draws it from the samples it resembles to those it does not, and towards zero.
    """
    return solve(task, _ContraLSP, settings, MaskProblems.of(task, 1))


class PerturbationNetwork:
    """Networks `(P, L) -> (P, L)`, one per problem: a bidirectional GRU and a linear layer.

    One hidden unit per direction: the official experiments of ExtremalMask and ContraLSP take as many units as there
    are variates. The state is then a single number, so backward is one recursion of products, and the rest is computed
    for all positions at once.
    """

    def __init__(self, like: Tensor, streams: list[np.random.Generator]):
        """Weights as torch initialises them, each network's from its own random stream."""
        recurrent = 2 * 4 * GATES
        drawn = np.stack([rng.uniform(-1, 1, recurrent + 3) for rng in streams], axis=-1)
        weights = torch.as_tensor(drawn).to(like)
        # Weights of the input and of the state, and the bias of either, for both directions: (4, 3, 2, P).
        self._recurrent = torch.unflatten(weights[:recurrent], 0, (4, GATES, 2)).clone().requires_grad_()
        self._linear = (weights[recurrent:] / 2**0.5).clone().requires_grad_()
        self.parameters = [self._recurrent, self._linear]

    def __call__(self, z: Tensor) -> Tensor:
        """`(P, L) -> (P, L)`."""
        series = torch.stack([z.T, z.T.flip(0)], dim=1)
        of_input, of_state, input_bias, state_bias = self._recurrent.unbind()
        gates = series[:, None] * of_input + input_bias
        states = gru_states(gates, of_state, state_bias)
        weight_forth, weight_back, bias = self._linear.unbind()
        return (weight_forth * states[:, 0] + weight_back * states[:, 1].flip(0) + bias).T


def gru_states(gates: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """States `(L, 2, P)` of GRUs with one unit, from their inputs to the gates `(L, 3, 2, P)`."""
    states: Tensor = _Recurrence.apply(gates, weight, bias)  # type: ignore[no-untyped-call]
    return states


class _Recurrence(torch.autograd.Function):
    """`h ← u h + (1 − u) c` with `r, u = σ(g + w h + b)` and `c = tanh(g_c + r (w_c h + b_c))`.

    In numpy: the arrays of one position are so small that the overhead of torch's calls would dominate.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        g, w, b = gates.detach().cpu().numpy(), weight.detach().cpu().numpy(), bias.detach().cpu().numpy()
        opened, inner, candidate = np.empty_like(g[:, :2]), np.empty_like(g[:, 2]), np.empty_like(g[:, 2])
        states = np.zeros((len(g) + 1, *g.shape[2:]), dtype=g.dtype)
        fixed = g[:, :2] + b[:2]
        for t, h in enumerate(states[:-1]):
            opened[t] = 0.5 + 0.5 * np.tanh(0.5 * (fixed[t] + w[:2] * h))
            inner[t] = w[2] * h + b[2]
            candidate[t] = np.tanh(g[t, 2] + opened[t, 0] * inner[t])
            states[t + 1] = candidate[t] + opened[t, 1] * (h - candidate[t])
        ctx.kept = (w, states, opened, inner, candidate)
        return torch.from_numpy(states[1:].copy()).to(gates)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (slope,) = slopes
        w, states, opened, inner, candidate = ctx.kept
        before, reset, update = states[:-1], opened[:, 0], opened[:, 1]
        # Derivatives of a state in the input of each gate, then in the previous state.
        to_candidate = (1 - update) * (1 - candidate**2)
        to_update = (before - candidate) * update * (1 - update)
        to_reset = to_candidate * inner * reset * (1 - reset)
        chain = update + to_update * w[1] + to_reset * w[0] + to_candidate * reset * w[2]
        total = slope.cpu().numpy().copy()
        for t in range(len(total) - 1, 0, -1):
            total[t - 1] += chain[t] * total[t]
        entering = np.stack([to_reset, to_update, to_candidate], axis=1) * total[:, None]
        of_state = entering.copy()
        of_state[:, 2] *= reset
        gradients = (entering, (of_state * before[:, None]).sum(axis=0), of_state.sum(axis=0))
        by_gates, by_weight, by_bias = (torch.from_numpy(values).to(slope) for values in gradients)
        return by_gates, by_weight, by_bias
