"""The channel axis: what a multivariate forecaster reads for each step, when and in which channel.

`Ẽ[h, t, c]` is the importance of channel `c` at time `t` for step `h`. Summed over the channels it is the matrix of the
time axis, `(H, L)`; summed over time, that of the channel axis, `(H, C)`. Both are scored under the same protocol and
the same replacements: a position of the time axis is deleted in all channels, a channel at all times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import Forecaster, Limits
from hrx.audit.admission.checks import Check, admit
from hrx.audit.attribution import Explanation
from hrx.audit.attribution.jacobian import jacobian
from hrx.audit.memory import Budget
from hrx.audit.protocol import Protocol, ProtocolError
from hrx.audit.scoring.quantities import Quantities
from hrx.audit.scoring.score import Unscorable, forecast_of, score_explained


class BothAxes(NamedTuple):
    """One explanation of multivariate windows, summed over either input axis."""

    time: Explanation
    """`(W, H, L)`."""
    channel: Explanation
    """`(W, H, C)`."""


class ChannelScores(NamedTuple):
    """The quantities of one run on multivariate windows, along either input axis."""

    time: Quantities
    channel: Quantities


def score_channels(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    *,
    protocol: Protocol | None = None,
    budget: Budget | None = None,
    stream: int = 0,
) -> ChannelScores:
    """The quantities of one run on multivariate windows `x` `(W, L, C)`, along time and along the channels."""
    protocol, budget = protocol or Protocol(), budget or Budget()
    if x.ndim != 3:
        raise Unscorable(
            f"Channels are scored on windows of shape (windows, lookback, channels), not {tuple(x.shape)}."
        )
    forecast = forecast_of(model, x, horizon)
    explained = explain_both(model, x, horizon, protocol, budget)
    return score_both(model, x, forecast, explained, protocol=protocol, budget=budget, stream=stream)


def explain_both(model: Forecaster, x: Tensor, horizon: int, protocol: Protocol, budget: Budget) -> BothAxes:
    """The explanation of multivariate windows `x` `(W, L, C)` by input gradient.

    The channels of the forecast are summed before differentiating, an input axis after taking magnitudes.
    """
    if protocol.estimator != "input_gradient" or protocol.axis != "step":
        raise ProtocolError(
            f"The channel axis is read by input_gradient with the axis 'step', not by {protocol.estimator} with the "
            f"axis {protocol.axis!r}. Leave both at their defaults."
        )
    rows = jacobian(model, x, horizon, budget=budget)
    importance = rows.jacobian.abs()
    if not torch.isfinite(importance).all():
        raise Unscorable("non-finite explanation: input_gradient is NaN or infinite on these windows")
    time = Explanation(
        matrix=importance.sum(dim=3),
        steps=np.arange(horizon),
        rewrites=rows.rewrites,
        settings=protocol.estimator_settings,
    )
    return BothAxes(time, time._replace(matrix=importance.sum(dim=2)))


def score_both(
    model: Forecaster,
    x: Tensor,
    forecast: Tensor,
    explained: BothAxes,
    *,
    protocol: Protocol,
    budget: Budget,
    stream: int,
) -> ChannelScores:
    """The quantities of forecasts `(W, H, C)` under an explanation that is there already.

    Truncations and distances are swept along time only.
    """
    plain = replace(protocol, truncation=False, distance=False)
    return ChannelScores(
        time=score_explained(
            model, x, forecast, explained.time, protocol=protocol, budget=budget, stream=stream, along="time"
        ),
        channel=score_explained(
            model, x, forecast, explained.channel, protocol=plain, budget=budget, stream=stream, along="channel"
        ),
    )


def admit_channels(model: Forecaster, x: Tensor, horizon: int) -> tuple[Check, ...]:
    """The five admission checks on multivariate windows `x` `(W, L, C)`: every output against every input."""
    channels = x.shape[2]
    checks = admit(_Flat(model, channels), x.flatten(1), horizon * channels)
    return tuple(replace(check, setting=f"{x.shape[1]}x{horizon}") for check in checks)


class _Flat(Forecaster):
    """A multivariate forecaster as one of a single long window, `(B, L·C) -> (B, H·C)`."""

    def __init__(self, model: Forecaster, channels: int):
        self._model, self._channels = model, channels
        self.identity = model.identity
        self.limits = Limits()

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self._model.predict(self._unflat(x), horizon // self._channels).flatten(1)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        return self._model.official(self._unflat(x), horizon // self._channels).flatten(1)

    def double(self) -> Forecaster | None:
        return self._of(self._model.double())

    def reload(self) -> Forecaster | None:
        return self._of(self._model.reload())

    def unloaded(self) -> tuple[str, ...]:
        return self._model.unloaded()

    def _of(self, model: Forecaster | None) -> Forecaster | None:
        return None if model is None else _Flat(model, self._channels)

    def _unflat(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1, self._channels)
