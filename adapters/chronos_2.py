"""Chronos-2 (`chronos-forecasting`): group attention over the batch axis, one group per window.

The public call pads future covariates with NaN, and through them every gradient becomes NaN. Without covariates the
library computes the same forecast, so `predict` walks the pipeline's own steps with none. Beyond the native length
those steps unroll nine quantile paths.

Attention over a group of one series has one weight, and that is exactly 1: scores, weights and the two projections
behind them change no bit of the forecast. For windows of one variate `predict` leaves them out.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace
from typing import Any, cast

import torch
from chronos import Chronos2Pipeline
from chronos.chronos2.layers import MHA, AttentionOutput, GroupSelfAttention
from torch import Tensor

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.chronos_bolt import ChronosForecaster, ignore_long_horizon_advice
from hrx.adapters.contract import Convert, Forecaster, Identity

UNROLLED_QUANTILES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""The paths that `Chronos2Pipeline.predict` unrolls by default."""


def load(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    """Opens a checkpoint directory with the library's own class."""
    return Chronos2(checkpoint, identity)


class Chronos2(ChronosForecaster):
    """The median of a Chronos-2 checkpoint, each window in a group of its own, with all its channels if it has any."""

    pipeline_class = Chronos2Pipeline

    def __init__(self, checkpoint: Checkpoint, identity: Identity):
        super().__init__(checkpoint, identity)
        self._apart = _apart(self._pipeline)

    def converted(self, convert: Convert) -> Forecaster:
        other = cast(Chronos2, super().converted(convert))
        other._apart = _apart(other._pipeline)
        return other

    def multivariate(self) -> Forecaster:
        together = copy.copy(self)
        together.limits = replace(self.limits, multivariate=True)
        return together

    def reload(self) -> Forecaster:
        fresh = Chronos2(self._checkpoint, self.identity)
        return fresh.multivariate() if self.limits.multivariate else fresh

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        series = self._series(x)
        groups = torch.arange(len(x)).repeat_interleave(series.shape[1])
        medians = self._medians(series.flatten(0, 1), groups, horizon)
        return self._windows(medians.reshape(*series.shape[:2], horizon))

    def _series(self, x: Tensor) -> Tensor:
        """Windows as the library takes them, `(B, C, L)`."""
        return x.transpose(1, 2) if self.limits.multivariate else x[:, None, :]

    def _windows(self, y: Tensor) -> Tensor:
        """The library's forecasts `(B, C, H)` in the shape of the windows."""
        return y.transpose(1, 2) if self.limits.multivariate else y[:, 0]

    def _medians(self, context: Tensor, groups: Tensor, horizon: int) -> Tensor:
        """`(N, L) -> (N, H)`: series of one group read one another."""
        pipeline = self._pipeline if self.limits.multivariate else self._apart
        context = context.to(dtype=torch.float32)
        step = pipeline._predict_step(context, groups, None, self._patches(horizon))
        steps, remaining = [step], horizon - step.shape[-1]
        if remaining > 0:
            quantiles = torch.tensor(UNROLLED_QUANTILES)
            context, groups, _, weights = pipeline._prepare_inputs_for_long_horizon_unrolling(
                context, groups, None, quantiles
            )
        while remaining > 0:
            step, context, _ = pipeline._autoregressive_unroll_for_long_horizon(
                context, groups, None, step, quantiles, weights, self._patches(remaining)
            )
            steps.append(step)
            remaining -= step.shape[-1]
        return torch.cat(steps, dim=-1)[:, self._median, :horizon]

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        with warnings.catch_warnings():
            ignore_long_horizon_advice()
            _, medians = self._pipeline.predict_quantiles(
                self._series(x), prediction_length=horizon, quantile_levels=[0.5]
            )
        return self._windows(torch.stack(cast("list[Tensor]", medians)))

    def _patches(self, steps: int) -> int:
        """How many output patches one pass makes for so many steps."""
        needed: int = math.ceil(steps / self._pipeline.model_output_patch_size)
        most: int = self._pipeline.max_output_patches
        return min(needed, most)


def _apart(pipeline: Any) -> Any:
    """The pipeline for series that are a group each: another model on the same weights."""
    other, weights = copy.copy(pipeline), (*pipeline.model.parameters(), *pipeline.model.buffers())
    other.model = copy.deepcopy(pipeline.model, {id(weight): weight for weight in weights})
    for module in other.model.modules():
        if isinstance(module, GroupSelfAttention):
            module.self_attention = _OneSeries(module.self_attention)
    return other


class _OneSeries(torch.nn.Module):
    """Attention of series that see nobody but themselves."""

    def __init__(self, attention: MHA):
        super().__init__()
        self.v, self.o = attention.v, attention.o

    def forward(self, states: Tensor, mask: Tensor, output_attentions: bool = False) -> AttentionOutput:
        return AttentionOutput(hidden_states=self.o(self.v(states)), attn_weights=None)
