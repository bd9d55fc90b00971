"""Chronos-2 (`chronos-forecasting`): group attention over the batch axis, one group per series here.

The public call pads future covariates with NaN, and through them every gradient becomes NaN. Without covariates the
library computes the same forecast, so `predict` walks the pipeline's own steps with none. Beyond the native length
those steps unroll nine quantile paths.
"""

from __future__ import annotations

import math
import warnings
from typing import cast

import torch
from chronos import Chronos2Pipeline
from torch import Tensor

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.chronos_bolt import ChronosForecaster, ignore_long_horizon_advice
from hrx.adapters.contract import Forecaster, Identity

UNROLLED_QUANTILES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""The paths that `Chronos2Pipeline.predict` unrolls by default."""


def load(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    """Opens a checkpoint directory with the library's own class."""
    return Chronos2(checkpoint, identity)


class Chronos2(ChronosForecaster):
    """The median of a Chronos-2 checkpoint, each series in a group of its own."""

    pipeline_class = Chronos2Pipeline

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        pipeline = self._pipeline
        context, groups = x.to(dtype=torch.float32), torch.arange(len(x))
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
                x[:, None, :], prediction_length=horizon, quantile_levels=[0.5]
            )
        return torch.cat(cast("list[Tensor]", medians))

    def _patches(self, steps: int) -> int:
        """How many output patches one pass makes for so many steps."""
        needed: int = math.ceil(steps / self._pipeline.model_output_patch_size)
        most: int = self._pipeline.max_output_patches
        return min(needed, most)
