"""The measurement of one run: matrix, sweep, quantities. Uses neither files nor clocks."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.audit.attribution import Explanation, estimate, find_estimator
from hrx.audit.memory import Budget
from hrx.audit.protocol import Ints, Protocol, scored_steps
from hrx.audit.scoring.deletion import Along, Floats, Orderings, orderings, sweep
from hrx.audit.scoring.quantities import (
    GAINS,
    QUANTITIES,
    Quantities,
    Values,
    distant_gains,
    mean_curves,
    measure,
    moments,
    trapezoid,
    truncated_gains,
)
from hrx.audit.scoring.rank import effective_lookback, rank
from hrx.errors import HrxError


class Unscorable(HrxError):
    """A run that cannot be scored: a result, recorded as excluded with this reason."""


class ScoredRun(NamedTuple):
    """Everything one run's measurement produces."""

    quantities: Quantities
    explanation: Explanation
    forecast: Tensor
    """`(W, H)`, or `(W, H, C)` of a multivariate model."""


def score(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    *,
    protocol: Protocol | None = None,
    budget: Budget | None = None,
    stream: int = 0,
) -> Quantities:
    """The quantities of one run on its windows `x` `(W, L)`.

    `stream` separates the random draws of different runs under one seed.
    """
    return score_in_full(model, x, horizon, protocol=protocol, budget=budget, stream=stream).quantities


def score_in_full(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    *,
    protocol: Protocol | None = None,
    budget: Budget | None = None,
    stream: int = 0,
) -> ScoredRun:
    """`score`, with the matrix and the forecasts behind it."""
    protocol, budget = protocol or Protocol(), budget or Budget()
    forecast = forecast_of(model, x, horizon)
    explanation = explanation_of(model, x, horizon, protocol, budget, stream)
    quantities = score_explained(model, x, forecast, explanation, protocol=protocol, budget=budget, stream=stream)
    return ScoredRun(quantities, explanation, forecast)


def forecast_of(model: Forecaster, x: Tensor, horizon: int) -> Tensor:
    """The forecasts that a run explains: `(W, L) -> (W, H)`, or `(W, L, C) -> (W, H, C)`; refuses constant ones."""
    if x.ndim not in (2, 3) or not len(x):
        raise Unscorable(
            "A run is scored on windows of shape (windows, lookback) or (windows, lookback, channels), "
            f"not {tuple(x.shape)}."
        )
    with torch.no_grad():
        forecast = model.forward(x, horizon)
    _variance(forecast)
    return forecast


def explanation_of(
    model: Forecaster, x: Tensor, horizon: int, protocol: Protocol, budget: Budget, stream: int
) -> Explanation:
    """The explanation that a run scores."""
    # An estimator that does not estimate all steps estimates the scored ones.
    everywhere = protocol.axis == "whole" or find_estimator(protocol.estimator).every_step
    explanation = estimate(
        model,
        x,
        horizon,
        estimator=protocol.estimator,
        steps=None if everywhere else scored_steps(horizon, protocol.scored).tolist(),
        budget=budget,
        settings=protocol.estimator_settings,
        axis=protocol.axis,
        seed=protocol.seed,
        stream=stream,
    )
    if not all(torch.isfinite(window).all() for window in explanation.matrix):
        raise Unscorable(f"non-finite explanation: {protocol.estimator} is NaN or infinite on these windows")
    return explanation


def score_explained(
    model: Forecaster,
    x: Tensor,
    forecast: Tensor,
    explanation: Explanation,
    *,
    protocol: Protocol,
    budget: Budget,
    stream: int,
    along: Along = "time",
) -> Quantities:
    """The quantities of forecasts `(W, H)` under a given explanation of them.

    `explanation.matrix` is `(W, R, L)`, or `(W, R, C)` along the channels of multivariate windows.
    """
    variance = _variance(forecast)
    steps = scored_steps(forecast.shape[1], protocol.scored)
    ordered = orderings(explanation.matrix, explanation.steps, steps, protocol)
    delete = partial(sweep, model, x, forecast, ordered.importance)
    errors, forecasts = np.empty((len(x), 0)), 0
    while (first := errors.shape[1]) < protocol.draws or _continue(errors[:, :, ordered.matrix], variance, protocol):
        count = min(protocol.draws, protocol.most_draws - first)
        swept = delete(steps, protocol, stream=stream, first=first, count=count, budget=budget, along=along)
        errors = np.concatenate([errors, swept.errors], axis=1) if first else swept.errors
        forecasts += swept.forecasts
    return _quantities(errors, ordered, explanation, steps, variance, forecasts, protocol, stream)


def _quantities(
    errors: Floats,
    ordered: Orderings,
    explanation: Explanation,
    steps: Ints,
    variance: float,
    forecasts: int,
    protocol: Protocol,
    stream: int,
) -> Quantities:
    """The quantities from the errors `(W, D, V, 2, K, S)` and the matrix."""
    paired = errors[:, :, ordered.matrix]
    measured = measure(paired, protocol, stream)
    means = {name: moments(measured.samples[name]) for name in QUANTITIES}
    curves = mean_curves(paired) / variance
    gaps = trapezoid(curves.swapaxes(1, 2)) @ np.array([1.0, -1.0])
    ranks = rank(explanation.matrix).mean()
    reach = effective_lookback(explanation.matrix)
    at = np.zeros_like(steps) if protocol.axis == "whole" else np.searchsorted(explanation.steps, steps)
    return Quantities(
        normalised=_values({name: means[name].mean / _scale(name, variance) for name in QUANTITIES}),
        raw=_values({name: means[name].mean for name in QUANTITIES}),
        error=Values(*(means[name].error / _scale(name, variance) for name in QUANTITIES)),
        steps={name: means[name].steps / _scale(name, variance) for name in QUANTITIES},
        scored_steps=steps,
        variance=variance,
        rank=ranks.participation,
        rank_entropy=ranks.entropy,
        rank_dropped=ranks.dropped,
        draws=errors.shape[1],
        forecasts=forecasts,
        insertion_dropped=measured.insertion_dropped,
        gap_own=float(gaps[0]),
        gap_shared=float(gaps[1]),
        curves=curves,
        truncated=truncated_gains(errors, ordered.truncated, protocol.area) / variance,
        distant=distant_gains(errors, ordered.distant, ordered.matrix[-1], protocol.area) / variance,
        effective_lookback=float(reach.nanmean()),
        effective_lookback_steps=reach[:, at].nanmean(dim=0).numpy(),
    )


def _variance(forecast: Tensor) -> float:
    """The variance of the forecast over all windows and steps of the run, summed over its channels."""
    if not torch.isfinite(forecast).all():
        raise Unscorable("non-finite forecast: the model returned NaN or infinity on these windows")
    variance = float(forecast.double().var(dim=(0, 1), correction=0).sum())
    if variance == 0:
        raise Unscorable("constant forecast: the same value at every step of every window")
    return variance


def _values(means: dict[str, float]) -> Values:
    """The means, with each margin as the exact difference of its two gains."""
    for area in ("", "_morf"):
        means["g_margin" + area] = means["g_own" + area] - means["g_shuffled" + area]
    return Values(**means)


def _scale(name: str, variance: float) -> float:
    return 1.0 if name == "insertion" else variance


def _continue(errors: Floats, variance: float, protocol: Protocol) -> bool:
    """Whether the precision setting needs more draws."""
    if protocol.precision is None or errors.shape[1] >= protocol.most_draws:
        return False
    measured = measure(errors, protocol)
    worst = max(moments(measured.samples[name]).error / variance for name in GAINS)
    return not worst <= protocol.precision
