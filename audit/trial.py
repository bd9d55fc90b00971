"""Accelerations on trial: each proves on a model's own windows that it changes nothing and saves time, or stays off.

The yardstick is the official call of the model without any. What a trial found is told; nothing is stored here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.adapters.acceleration import ACCELERATIONS, Accelerated, Acceleration, obstacle
from hrx.adapters.gradients import relative_difference
from hrx.audit.admission.checks import EQUIVALENCE_LIMIT, parity
from hrx.audit.attribution.jacobian import jacobian
from hrx.audit.memory import MOST_ROWS, Budget
from hrx.errors import describe_error

ROWS_LIMIT = 1e-4
"""For derivatives, which rounding moves further than forecasts."""
IN_GRADIENTS: tuple[Acceleration, ...] = ("cuda", "bf16")
"""Those that rows of the Jacobian go through as well."""
TURNS = 5
ROWS = "rows of the Jacobian"


class Trial(NamedTuple):
    """What became of one acceleration."""

    acceleration: Acceleration
    kept: bool
    parity: float | None
    """`max|a−b| / max|b|` of forecasts against the official call, the worst; None where there is no such number."""
    speed: float | None
    """How many times as fast as without it, on forecasts of a batch; None where it never came to that."""
    note: str
    """Why it is off, in a clause; empty where it is kept."""


class Tried(NamedTuple):
    """A model with what was kept, or the model itself where nothing was."""

    model: Forecaster
    trials: tuple[Trial, ...]


class Comparison(NamedTuple):
    """How far something is from what it should be, `max|a−b| / max|b|`."""

    what: str
    figure: float

    @property
    def limit(self) -> float:
        return ROWS_LIMIT if self.what == ROWS else EQUIVALENCE_LIMIT


def try_out(model: Forecaster, x: Tensor, horizon: int, wanted: Sequence[Acceleration], budget: Budget) -> Tried:
    """The wanted accelerations one after the other, each on top of those kept so far.

    `x` are windows `(W, L)`, or `(W, L, C)` for a multivariate model, on which the model itself is admitted.
    """
    tried = Tried(model, ())
    if not wanted:
        return tried
    bench = _Bench(model, x, horizon, budget)
    for acceleration in (one for one in ACCELERATIONS if one in wanted):
        found = _tried(acceleration, tried, bench)
        tried = Tried(found.model, (*tried.trials, *found.trials))
    return tried


def decide(acceleration: Acceleration, comparisons: Sequence[Comparison], speed: float) -> Trial:
    """Whether an acceleration is kept: everything within its limit, and faster."""
    forecasts = max(one.figure for one in comparisons if one.what != ROWS)
    beyond = [one for one in comparisons if not one.figure <= one.limit]
    note = ""
    if beyond:
        worst = max(beyond, key=lambda one: one.figure / one.limit)
        note = f"{worst.what} differ by {worst.figure:.2g}, more than {worst.limit:.0e}"
    elif not speed > 1:
        note = f"no faster: {speed:.2g} times"
    return Trial(acceleration, not note, forecasts if isfinite(forecasts) else None, speed, note)


class _Bench:
    """What the trials of a model share: its batches, its official forecasts, its own rows."""

    def __init__(self, model: Forecaster, x: Tensor, horizon: int, budget: Budget):
        self.model, self.x, self.horizon, self.budget = model, x, horizon, budget

    @cached_property
    def batch(self) -> Tensor:
        """Windows to time forecasts on."""
        return varied(self.x, self.budget.fastest(self.model, self.x[0], self.horizon, MOST_ROWS))

    @cached_property
    def _expected(self) -> list[tuple[str, Tensor, Tensor]]:
        """What is compared: windows, and the official forecasts of them."""
        crowd = varied(self.x, max(len(self.batch), len(self.x) + 1))
        return [
            (what, some, self.model.official(some.clone(), self.horizon))
            for what, some in (("forecasts", self.x), ("forecasts of a larger batch", crowd))
        ]

    def compare(self, model: Forecaster, acceleration: Acceleration) -> list[Comparison]:
        """Forecasts against the official call and, where gradients are accelerated too, rows against the model's."""
        found = [
            Comparison(what, relative_difference(_forecast(model, some, self.horizon), official))
            for what, some, official in self._expected
        ]
        # The official call of an accelerated model is that of the model itself.
        found.append(Comparison("forecasts with gradients", parity(model, self.x, self.horizon)))
        if acceleration in IN_GRADIENTS:
            found.append(Comparison(ROWS, relative_difference(self._rows(model), self._own_rows)))
        return found

    def speed(self, model: Forecaster, without: Forecaster) -> float:
        """How many times as fast as `without`: the best of a few turns each, taken alternately."""
        turns = [(self._seconds(model), self._seconds(without)) for _ in range(TURNS)]
        return min(slow for _, slow in turns) / min(quick for quick, _ in turns)

    def _seconds(self, model: Forecaster) -> float:
        began = time.perf_counter()
        _forecast(model, self.batch, self.horizon)
        return time.perf_counter() - began

    @cached_property
    def _own_rows(self) -> Tensor:
        return self._rows(self.model)

    def _rows(self, model: Forecaster) -> Tensor:
        return jacobian(model, self.x[:1], self.horizon, budget=self.budget).jacobian


def _tried(acceleration: Acceleration, so_far: Tried, bench: _Bench) -> Tried:
    """One trial, and the model after it."""
    kept = [trial.acceleration for trial in so_far.trials if trial.kept]
    reason = obstacle(acceleration, "cuda" if "cuda" in kept else "cpu")
    if reason:
        return Tried(so_far.model, (Trial(acceleration, False, None, None, reason),))
    try:
        candidate = Accelerated(bench.model, [*kept, acceleration])
        comparisons = bench.compare(candidate, acceleration)
        trial = decide(acceleration, comparisons, bench.speed(candidate, so_far.model))
    except Exception as error:  # a compiler, a driver or a library may raise anything: the model runs without
        return Tried(so_far.model, (Trial(acceleration, False, None, None, describe_error(error)),))
    return Tried(candidate if trial.kept else so_far.model, (trial,))


def varied(x: Tensor, size: int) -> Tensor:
    """`size` windows made of those of `x`, shifted and scaled so that no two are the same."""
    tiles = -(-size // len(x))
    moved = [x.roll(tile, dims=1) * (1 + tile / 64) for tile in range(1, tiles + 1)]
    return torch.cat(moved)[:size]


def _forecast(model: Forecaster, x: Tensor, horizon: int) -> Tensor:
    with torch.no_grad():
        return model.forward(x, horizon)
