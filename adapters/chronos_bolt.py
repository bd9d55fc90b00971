"""Chronos-Bolt (`chronos-forecasting`): one pass for the native horizon, nine quantile paths beyond it.

`ChronosBoltPipeline.predict` is the library's whole computation; it sits behind no-grad blocks, which
`GradientPath` undoes. The public call is `predict_quantiles`, which detaches it.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, ClassVar, cast

import torch
from chronos import ChronosBoltPipeline
from torch import Tensor

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Convert, Forecaster, Identity, Limits, ModelError, freeze


def load(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    """Opens a checkpoint directory with the library's own class."""
    return ChronosBolt(checkpoint, identity)


class ChronosForecaster(Forecaster):
    """What the families of this library share: a pipeline around one model, and the median of its quantiles."""

    pipeline_class: ClassVar[Any]

    def __init__(self, checkpoint: Checkpoint, identity: Identity):
        self.identity = identity
        self._checkpoint = checkpoint
        self._pipeline: Any = self.pipeline_class.from_pretrained(checkpoint.path, dtype=torch.float32)
        freeze(self._pipeline.model)
        self.limits = Limits(longest_lookback=self._pipeline.model_context_length)
        self._median = _median_index(self._pipeline.quantiles, checkpoint)

    def converted(self, convert: Convert) -> Forecaster:
        other = copy.copy(self)
        other._pipeline = copy.copy(self._pipeline)
        other._pipeline.model = convert(copy.deepcopy(self._pipeline.model))
        return other

    def reload(self) -> Forecaster:
        return type(self)(self._checkpoint, self.identity)

    def unloaded(self) -> tuple[str, ...]:
        return self._checkpoint.differences(self._pipeline.model)


class ChronosBolt(ChronosForecaster):
    """The median of a Chronos-Bolt checkpoint."""

    pipeline_class = ChronosBoltPipeline

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        with warnings.catch_warnings():
            ignore_long_horizon_advice()
            return cast(Tensor, self._pipeline.predict(x, prediction_length=horizon)[:, self._median])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        with warnings.catch_warnings():
            ignore_long_horizon_advice()
            _, median = self._pipeline.predict_quantiles(x, prediction_length=horizon, quantile_levels=[0.5])
        return cast(Tensor, median)


def _median_index(quantiles: list[float], checkpoint: Checkpoint) -> int:
    """Where the median stands among a checkpoint's quantiles."""
    if 0.5 not in quantiles:
        raise ModelError(f"{checkpoint.path} was trained without the median (its quantiles: {quantiles}).")
    return quantiles.index(0.5)


def ignore_long_horizon_advice() -> None:
    """The library advises against horizons beyond its native one; an audit asks for them on purpose."""
    warnings.filterwarnings("ignore", message="We recommend keeping prediction length")
