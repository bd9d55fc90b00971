"""The channel axis: which channels a multivariate forecaster uses for each step.

`Ẽ[h, t, c]` is the importance of channel `c` at time `t` for step `h`. Summed over the channels it is the matrix of the
time axis, `(H, L)`; summed over time, that of the channel axis, `(H, C)`. Both are scored under the same protocol and
the same replacements: a position of the time axis is deleted in all channels, a channel at all times.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import Forecaster
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
            f"The channel axis needs the estimator input_gradient with the axis 'step', not {protocol.estimator} with "
            f"the axis {protocol.axis!r}. Use the default of both."
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
    """The quantities of forecasts `(W, H, C)` under a given explanation.

    Truncations and distances are swept along time only.
    """
    plain = replace(protocol, truncation=False, distance=False)
    scored = partial(score_explained, model, x, forecast, budget=budget, stream=stream)
    return ChannelScores(
        time=scored(explained.time, protocol=protocol, along="time"),
        channel=scored(explained.channel, protocol=plain, along="channel"),
    )
