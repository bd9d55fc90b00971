"""Measurement of one run: forecast, matrix, sweep, quantities. Uses neither files nor clocks.

`Ẽ[h, t, c]` is the importance of channel `c` at time `t` of a multivariate window for step `h`. Summed over the
channels it is the matrix of the time axis, `(H, L)`; summed over time, that of the channel axis, `(H, C)`. Both are
scored under the same protocol and the same replacements: a position of the time axis is deleted in all channels, a
channel at all times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster
from hrx.adapters.wrapped import Bound
from hrx.audit.attribution import Estimate, Inapplicable
from hrx.audit.attribution.explanation import estimate, refuse_infinite
from hrx.audit.attribution.gradients import jacobian
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import Protocol, scored_steps
from hrx.audit.scoring.deletion import Along, Sweep, orderings
from hrx.audit.scoring.quantities import Unscorable, forecast_variance, needs_draws, summarise, usable_variance
from hrx.audit.torch_state import differentiable, plain
from hrx.errors import ProtocolError
from hrx.records.quantities import Floats, Quantities


def score(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    *,
    protocol: Protocol | None = None,
    budget: MemoryBudget | None = None,
    stream: int = 0,
    variance: float | None = None,
) -> Quantities:
    """Quantities of one run on its windows `x` `(W, L)`.

    `stream` separates the random draws of different runs under one seed. `variance` normalises the quantities: an audit
    gives that of the series' forecasts (`forecast_variance`); without it, it is that of the forecasts of `x`. Flat
    windows are left out and counted.
    """
    more = {"budget": budget or MemoryBudget(), "stream": stream, "variance": variance}
    return ScoredRun.of(model, x, horizon, protocol, **more).quantities


@dataclass(frozen=True)
class ScoredRun:
    """One run and the stages of its measurement, each computed on first use."""

    model: Forecaster
    x: Tensor
    """`(W, L)`, or `(W, L, C)`."""
    horizon: int
    protocol: Protocol = field(default_factory=Protocol)
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    stream: int = 0
    variance: float | None = None
    """What the quantities are divided by; None: the variance of the run's own forecasts."""
    known: Tensor | None = None
    """The forecasts of `x`, where they have been made already."""
    flat_windows: int = 0
    """Windows that `x` lacks because they are flat."""

    @classmethod
    def of(cls, model: Forecaster, x: Tensor, horizon: int, protocol: Protocol | None, **more: Any) -> Self:
        """Return the run on those windows that are not flat; `more` are other fields."""
        kept = moving(x)
        return cls(model, x[kept], horizon, protocol or Protocol(), flat_windows=int((~kept).sum()), **more)

    @cached_property
    @differentiable()
    def forecast(self) -> Tensor:
        """Forecasts that the run explains: `(W, H)`, or `(W, H, C)`."""
        moving(self.x)
        if self.horizon == 1:
            raise Unscorable(
                "one forecast step: its row is the shared vector too, so there is no gain to measure. Give a horizon "
                "of at least 2"
            )
        with torch.no_grad():
            return self.model.forward(plain(self.x), self.horizon) if self.known is None else self.known

    @cached_property
    def divisor(self) -> float:
        """What the quantities are divided by; refuses forecasts that cannot be scored."""
        if self.variance is None:
            return usable_variance(self.forecast)
        forecast_variance(self.forecast)  # refuses one that is not finite
        return self.variance

    @cached_property
    def explanation(self) -> Estimate:
        """Explanation that the run scores, `(W, R, L)`."""
        _ = self.divisor  # refuses what cannot be scored
        if self.x.ndim == 3 and self.protocol.estimator == "input_gradient" and self.protocol.axis == "step":
            return self._along(3)
        given = self.model, self.x, self.horizon, self.protocol
        try:
            return self._finite(estimate(*given, budget=self.budget, stream=self.stream))
        except Inapplicable as error:
            raise Unscorable(str(error)) from error

    @cached_property
    def quantities(self) -> Quantities:
        """Quantities along time."""
        return self.score(self.explanation)

    @cached_property
    def channel_quantities(self) -> Quantities | None:
        """Quantities along the channels; None for univariate windows.

        Truncations, distances and few positions are swept along time only.
        """
        if self.x.ndim == 2:
            return None
        if self.protocol.estimator != "input_gradient" or self.protocol.axis != "step":
            raise ProtocolError(
                f"The channel axis needs the estimator input_gradient with the axis 'step', not "
                f"{self.protocol.estimator} with the axis {self.protocol.axis!r}. Use the default of both."
            )
        _ = self.divisor
        unswept = replace(self, protocol=replace(self.protocol, truncation=False, distance=False, fine=False))
        return unswept.score(self._along(2), along="channel")

    @cached_property
    def _gradient(self) -> Estimate:
        """Input gradient of multivariate windows `(W, H, L, C)`; the channels of the forecast are summed before it."""
        rows = jacobian(self.model, self.x, self.horizon, budget=self.budget)
        steps, settings = tuple(range(1, self.horizon + 1)), self.protocol.estimator_settings
        return self._finite(Estimate(rows.jacobian.abs(), rows.rewrites, steps=steps, settings=settings))

    def _along(self, summed: int) -> Estimate:
        """Magnitudes summed over one input axis: dimension 3 leaves `(W, H, L)`, dimension 2 `(W, H, C)`."""
        return self._gradient._replace(matrix=self._gradient.matrix.sum(dim=summed))

    @differentiable()
    def score(self, explanation: Estimate, along: Along = "time") -> Quantities:
        """Quantities of the forecasts under an explanation: `(W, R, L)`, or `(W, R, C)` along the channels."""
        protocol, variance, matrix = self.protocol, self.divisor, explanation.matrix
        steps = scored_steps(self.horizon, protocol.scored)
        ordered = orderings(matrix, np.array(explanation.steps, dtype=np.int64) - 1, steps, protocol)
        given = ordered.importance, steps, protocol, self.budget, self.stream, along
        sweep = Sweep(self.model, self.x, self.forecast, *given)
        errors = _within_range(sweep.errors(0, protocol.draws))
        while needs_draws(errors[:, :, ordered.matrix], variance, protocol):
            done = errors.shape[1]
            more = sweep.errors(done, min(protocol.draws, protocol.most_draws - done))
            errors = np.concatenate([errors, _within_range(more)], axis=1)
        fine = _within_range(sweep.fine_errors(ordered.matrix, errors.shape[1])) if protocol.fine else None
        return summarise(
            errors,
            ordered,
            matrix,
            steps,
            variance,
            protocol,
            self.stream,
            forecasts=sweep.forecasts,
            flat_windows=self.flat_windows,
            own_variance=self.variance is None,
            fine_errors=fine,
            apart=sweep.apart,
        )

    def _finite(self, explanation: Estimate) -> Estimate:
        if not all(torch.isfinite(window).all() for window in explanation.matrix):
            raise Unscorable(f"non-finite explanation: {self.protocol.estimator} is NaN or infinite on these windows")
        return explanation


class JointScores(NamedTuple):
    """How faithful a matrix over all channels is."""

    joint: Quantities
    """Positions of all channels in one ordering."""
    channels: Quantities | None
    """Whole channels, by their sensitivities; None where fewer than two have a slope."""


def score_joint(run: ScoredRun, matrix: Tensor, steps: Sequence[int]) -> JointScores:
    """Score a standardised matrix `(W, R, P)` of a bound model by deletion; values are rearranged within a channel."""
    model = run.model
    assert isinstance(model, Bound)
    rows = Estimate(matrix, steps=tuple(steps), settings=run.protocol.estimator_settings)
    slopes = [channel for channel in model.layout.channels if channel.has_slope]
    joint = run.score(rows)
    if len(slopes) < 2:
        return JointScores(joint, None)
    sums = torch.stack([matrix[..., channel.positions].sum(dim=-1) for channel in slopes], dim=-1)
    unswept = replace(run, protocol=replace(run.protocol, truncation=False, distance=False, fine=False))
    return JointScores(joint, unswept.score(rows._replace(matrix=sums), along="channel"))


def moving(x: Tensor) -> Tensor:
    """`(W, L)` or `(W, L, C)` -> `(W,)`: which windows are not flat; raises where all are.

    In a flat window every position holds the same value, so deletion changes nothing.
    """
    if x.ndim not in (2, 3) or not len(x):
        raise Unscorable(
            "A run is scored on windows of shape (windows, lookback) or (windows, lookback, channels), "
            f"not {tuple(x.shape)}."
        )
    refuse_infinite(x)
    kept = (x.amax(dim=1) != x.amin(dim=1)).reshape(len(x), -1).any(dim=1)
    if not kept.any():
        raise Unscorable("flat windows: the same value at every position, so there is nothing to delete")
    return kept


def _within_range(errors: Floats) -> Floats:
    """Squared changes; raises where a perturbed forecast is NaN, infinite, or so large that its change is."""
    if not math.isfinite(errors.sum()):
        share = 1 - float(np.isfinite(errors).mean())
        raise Unscorable(
            f"non-finite perturbed forecast: with deleted positions, {share:.1%} of the changes are NaN or beyond the "
            "range of float64"
        )
    return errors
