"""The network that learns a perturbation: a bidirectional GRU and a linear layer, as ExtremalMask and ContraLSP use it.

Every problem has a network of its own, with one hidden unit per direction (the official experiments take as many units
as there are variates). With one unit the state is a number, so its derivative is one too: backward is a single
recursion of products, and all the rest is done for every position at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
GATES = 3
"""Reset, update and candidate, in torch's order."""


class Perturbation:
    """Networks `(P, L) -> (P, L)`, one per problem."""

    def __init__(self, like: Tensor, numbers: list[np.random.Generator]):
        """Weights as torch initialises them, each network's from its own random numbers."""
        recurrent = 2 * 4 * GATES
        drawn = np.stack([rng.uniform(-1, 1, recurrent + 3) for rng in numbers], axis=-1)
        weights = torch.as_tensor(drawn).to(like)
        # Of the input, of the state, and the bias of either; for both directions: (4, 3, 2, P).
        self._recurrent = torch.unflatten(weights[:recurrent], 0, (4, GATES, 2)).clone().requires_grad_()
        self._linear = (weights[recurrent:] / 2**0.5).clone().requires_grad_()
        self.parameters = [self._recurrent, self._linear]

    def __call__(self, z: Tensor) -> Tensor:
        """`(P, L) -> (P, L)`."""
        series = torch.stack([z.T, z.T.flip(0)], dim=1)
        of_input, of_state, input_bias, state_bias = self._recurrent.unbind()
        gates = series[:, None] * of_input + input_bias
        states = _recurrence(gates, of_state, state_bias)
        weight_forth, weight_back, bias = self._linear.unbind()
        return (weight_forth * states[:, 0] + weight_back * states[:, 1].flip(0) + bias).T


def _recurrence(gates: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """States `(L, 2, P)` of GRUs with one unit, from their inputs to the gates `(L, 3, 2, P)`."""
    states: Tensor = _Recurrence.apply(gates, weight, bias)  # type: ignore[no-untyped-call]
    return states


class _Recurrence(torch.autograd.Function):
    """`h ← u h + (1 − u) c` with `r, u = σ(g + w h + b)` and `c = tanh(g_c + r (w_c h + b_c))`.

    In numpy: the arrays of one position are so small that torch would spend its time on bookkeeping.
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
        # Derivatives of a state in what enters each gate, then in the state before it.
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
        found = (entering, (of_state * before[:, None]).sum(axis=0), of_state.sum(axis=0))
        by_gates, by_weight, by_bias = (torch.from_numpy(values).to(slope) for values in found)
        return by_gates, by_weight, by_bias


class Standardised:
    """Windows on a scale of their own, where zero is the window's mean: the prior of a learned perturbation."""

    def __init__(self, x: Tensor):
        self._mean = x.mean(dim=-1, keepdim=True)
        spread = x.std(dim=-1, keepdim=True, correction=0)
        self._spread = torch.where(spread > 0, spread, 1)
        self.z = self.scaled(x)

    def scaled(self, x: Tensor) -> Tensor:
        """To the window's own scale."""
        return (x - self._mean) / self._spread

    def shifted(self, x: Tensor, shift: Tensor) -> Tensor:
        """`x` moved by a shift on the window's own scale."""
        return x + self._spread * shift
