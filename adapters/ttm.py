"""TTM-r2 (`granite-tsfm`): a fixed context and a fixed native horizon, continued recursively beyond it.

The library's model call can be differentiated as it stands. A window longer than the context is cut by the library, a
shorter one is padded with zeros inside it; both are its default and are audited as such. The directory given is
the one checkpoint that is audited: `get_model`, which swaps checkpoints by setting, is never used.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from tsfm_public import TinyTimeMixerForPrediction
from tsfm_public.toolkit.recursive_predictor import RecursivePredictor, RecursivePredictorConfig

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Forecaster, Identity, Limits, freeze
from hrx.adapters.precision import DoubleTwin


def load(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    """Opens a checkpoint directory with the library's own class."""
    return TinyTimeMixer(checkpoint, identity)


class TinyTimeMixer(Forecaster):
    """The point forecast of a TTM checkpoint."""

    def __init__(self, checkpoint: Checkpoint, identity: Identity):
        self.identity = identity
        self._checkpoint = checkpoint
        self._model: Any = TinyTimeMixerForPrediction.from_pretrained(checkpoint.path)
        freeze(self._model)
        self.limits = Limits(longest_lookback=self._model.config.context_length)
        self._recursive = lru_cache(maxsize=8)(self._make_recursive)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        past = x[..., None]
        if horizon <= self._model.config.prediction_length:
            y = self._model(past_values=past).prediction_outputs
        else:
            # Without both masks the recursive predictor raises.
            seen, ahead = torch.ones_like(past), torch.ones_like(past[:, :1]).expand(-1, horizon, -1)
            y = self._recursive(horizon)(
                past_values=past, past_observed_mask=seen, future_observed_mask=ahead
            ).prediction_outputs
        return cast(Tensor, y[:, :horizon, 0])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        with torch.no_grad():
            return self.predict(x, horizon)

    def double(self) -> Forecaster:
        twin = copy.copy(self)
        twin._model = copy.deepcopy(self._model).double()
        twin._recursive = lru_cache(maxsize=8)(twin._make_recursive)
        return DoubleTwin(twin)

    def reload(self) -> Forecaster:
        return TinyTimeMixer(self._checkpoint, self.identity)

    def unloaded(self) -> tuple[str, ...]:
        return self._checkpoint.differences(self._model)

    def _make_recursive(self, horizon: int) -> Any:
        config = RecursivePredictorConfig(
            model=self._model,
            requested_prediction_length=horizon,
            model_prediction_length=self._model.config.prediction_length,
            loss="mse",
        )
        return RecursivePredictor(config).eval()
