"""TTM-r2 (`granite-tsfm`): a fixed context and a fixed native horizon, continued recursively beyond it.

The library's model call can be differentiated as it stands. A window longer than the context is cut by the library, a
shorter one is padded with zeros inside it; both are its default and are audited as such. A directory or a hub id is
the one checkpoint that it is at every setting; the library's own choice among its releases by lookback and horizon is
made only where it is asked for, by `@auto`.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from importlib import resources
from typing import Any, cast

import torch
import yaml
from torch import Tensor
from tsfm_public import TinyTimeMixerForPrediction
from tsfm_public.resources import model_paths_config
from tsfm_public.toolkit.get_model import get_model
from tsfm_public.toolkit.recursive_predictor import RecursivePredictor, RecursivePredictorConfig
from tsfm_public.toolkit.time_series_preprocessor import DEFAULT_FREQUENCY_MAPPING

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Convert, Forecaster, Identity, Limits, ModelError, freeze


def load(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    """Opens a checkpoint directory with the library's own class."""
    return TinyTimeMixer(checkpoint, identity)


def branch(hub_id: str, lookback: int, horizon: int) -> str:
    """The release that the library itself takes for a setting: a revision of `hub_id`.

    The longest context that the lookback fills, continued recursively where no release reaches the horizon.
    """
    try:
        key = get_model(
            hub_id, context_length=lookback, prediction_length=horizon, force_return="rolling", return_model_key=True
        )
    except ValueError as error:
        raise ModelError(f"{hub_id} has no release for {lookback}x{horizon}: {error}") from error
    releases = yaml.safe_load(resources.files(model_paths_config).joinpath("ttm.yaml").read_text())
    return cast(str, releases["ibm-granite-models"][key]["revision"])


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
        token = self._frequency_token(len(x), x.device)
        if horizon <= self._model.config.prediction_length:
            y = self._model(past_values=past, freq_token=token).prediction_outputs
        else:
            # Without both masks the recursive predictor raises.
            seen, ahead = torch.ones_like(past), torch.ones_like(past[:, :1]).expand(-1, horizon, -1)
            y = self._recursive(horizon)(
                past_values=past, past_observed_mask=seen, future_observed_mask=ahead, freq_token=token
            ).prediction_outputs
        return cast(Tensor, y[:, :horizon, 0])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        with torch.no_grad():
            return self.predict(x, horizon)

    def converted(self, convert: Convert) -> Forecaster:
        other = copy.copy(self)
        other._model = convert(copy.deepcopy(self._model))
        other._recursive = lru_cache(maxsize=8)(other._make_recursive)
        return other

    def reload(self) -> Forecaster:
        return TinyTimeMixer(self._checkpoint, self.identity)

    def unloaded(self) -> tuple[str, ...]:
        return self._checkpoint.differences(self._model)

    def _frequency_token(self, windows: int, device: torch.device) -> Tensor | None:
        """The library's token for a frequency that it does not know, for the checkpoints that are tuned by one."""
        if not self._model.config.resolution_prefix_tuning:
            return None
        return torch.full((windows,), DEFAULT_FREQUENCY_MAPPING["oov"], device=device)

    def _make_recursive(self, horizon: int) -> Any:
        config = RecursivePredictorConfig(
            model=self._model,
            requested_prediction_length=horizon,
            model_prediction_length=self._model.config.prediction_length,
            loss="mse",
        )
        return RecursivePredictor(config).eval()
