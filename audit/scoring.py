"""One run's measurement: matrix, sweep, quantities. Touches no file and no clock."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.audit.deletion import Floats, sweep
from hrx.audit.estimators import Explanation, estimate
from hrx.audit.memory import Budget
from hrx.audit.protocol import Protocol, scored_steps
from hrx.audit.quantities import GAINS, QUANTITIES, Moments, Quantities, Values, measure, moments
from hrx.audit.rank import rank
from hrx.errors import HrxError


class Unscorable(HrxError):
    """A run that has no score: a result, to be recorded as excluded with this reason."""


class Scored(NamedTuple):
    """Everything one run's measurement produces."""

    quantities: Quantities
    explanation: Explanation
    forecast: Tensor
    """`(W, H)`."""


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
) -> Scored:
    """`score`, with the matrix and the forecasts it came from."""
    protocol, budget = protocol or Protocol(), budget or Budget()
    if x.ndim != 2 or not len(x):
        raise Unscorable(f"A run is scored on windows of shape (windows, lookback), not {tuple(x.shape)}.")
    with torch.no_grad():
        forecast = model.forward(x, horizon)
    variance = _variance(forecast)
    explanation = estimate(model, x, horizon, estimator=protocol.estimator, budget=budget)
    matrix = explanation.matrix
    if not torch.isfinite(matrix).all():
        raise Unscorable("non-finite gradient: the derivative of the forecast is NaN or infinite on these windows")
    steps = scored_steps(horizon, protocol.scored)
    shared = matrix.double().mean(dim=1, keepdim=True)
    importance = torch.cat([matrix[:, steps].double(), shared], dim=1)

    errors, forecasts = np.empty((len(x), 0)), 0
    while (first := errors.shape[1]) < protocol.draws or _continue(errors, variance, protocol):
        count = min(protocol.draws, protocol.most_draws - first)
        done = sweep(
            model,
            x,
            forecast,
            importance,
            steps,
            protocol,
            stream=stream,
            first=first,
            count=count,
            budget=budget,
        )
        errors = np.concatenate([errors, done.errors], axis=1) if first else done.errors
        forecasts += done.forecasts

    measured = measure(errors, protocol)
    found = {name: moments(measured.samples[name]) for name in QUANTITIES}
    ranks = rank(matrix)
    quantities = Quantities(
        normalised=_values({name: found[name].mean / _scale(name, variance) for name in QUANTITIES}),
        raw=_values({name: found[name].mean for name in QUANTITIES}),
        error=Values(*(found[name].error / _scale(name, variance) for name in QUANTITIES)),
        steps={name: found[name].steps / _scale(name, variance) for name in QUANTITIES},
        scored_steps=steps,
        variance=variance,
        rank=float(ranks.participation.mean()),
        rank_entropy=float(ranks.entropy.mean()),
        draws=errors.shape[1],
        forecasts=forecasts,
        insertion_dropped=measured.insertion_dropped,
    )
    return Scored(quantities, explanation, forecast)


def _variance(forecast: Tensor) -> float:
    """The variance of the forecast over all windows and steps of the run."""
    if not torch.isfinite(forecast).all():
        raise Unscorable("non-finite forecast: the model returned NaN or infinity on these windows")
    variance = float(forecast.double().var(correction=0))
    if variance == 0:
        raise Unscorable("constant forecast: the same value at every step of every window")
    return variance


def _values(means: dict[str, float]) -> Values:
    """The means as they are, but the margins as the exact difference of the two gains."""
    for area in ("", "_morf"):
        means["g_margin" + area] = means["g_own" + area] - means["g_shuffled" + area]
    return Values(**means)


def _scale(name: str, variance: float) -> float:
    return 1.0 if name == "insertion" else variance


def _continue(errors: Floats, variance: float, protocol: Protocol) -> bool:
    """Whether a wanted precision calls for more draws."""
    if protocol.precision is None or errors.shape[1] >= protocol.most_draws:
        return False
    measured = measure(errors, protocol)
    found: list[Moments] = [moments(measured.samples[name]) for name in GAINS]
    worst = max(moment.error / variance for moment in found)
    return not worst <= protocol.precision
