"""TTM-r2 (`granite-tsfm`): a fixed context and a fixed native horizon, continued recursively beyond it.

The library's model call is differentiable as it is. The library cuts a window that is longer than the context and pads
a shorter one with zeros; both are its defaults and are audited as such. A directory or a hub id is one checkpoint at
every setting; `@auto` selects a release per lookback and horizon with the library's own rule.
"""

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

from hrx.adapters.checkpoint import CheckpointForecaster
from hrx.adapters.contract import Limits, ModelError


def select_revision(hub_id: str, lookback: int, horizon: int) -> str:
    """The revision of `hub_id` that the library selects for a setting.

    It has the longest context that the lookback fills, and is continued recursively if no release reaches the horizon.
    """
    try:
        key = get_model(
            hub_id, context_length=lookback, prediction_length=horizon, force_return="rolling", return_model_key=True
        )
    except ValueError as error:
        raise ModelError(f"{hub_id} has no release for {lookback}x{horizon}: {error}") from error
    # The library returns the key of its table; the revision stands only in the table.
    releases = yaml.safe_load(resources.files(model_paths_config).joinpath("ttm.yaml").read_text())
    return cast(str, releases["ibm-granite-models"][key]["revision"])


class TinyTimeMixer(CheckpointForecaster):
    """The point forecast of a TTM checkpoint."""

    def open_library(self) -> Any:
        return TinyTimeMixerForPrediction.from_pretrained(self.checkpoint.path)

    def read_limits(self) -> Limits:
        return Limits(longest_lookback=self.module.config.context_length)

    def prepare(self) -> None:
        self._recursive = lru_cache(maxsize=8)(self._build_recursive)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        past = x[..., None]
        token = self._frequency_token(len(x), x.device)
        if horizon <= self.module.config.prediction_length:
            y = self.module(past_values=past, freq_token=token).prediction_outputs
        else:
            # Without both masks the recursive predictor raises.
            past_mask, future_mask = torch.ones_like(past), torch.ones_like(past[:, :1]).expand(-1, horizon, -1)
            y = self._recursive(horizon)(
                past_values=past, past_observed_mask=past_mask, future_observed_mask=future_mask, freq_token=token
            ).prediction_outputs
        return cast(Tensor, y[:, :horizon, 0])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        with torch.no_grad():
            return self.predict(x, horizon)

    def _frequency_token(self, windows: int, device: torch.device) -> Tensor | None:
        """The library's token for an unknown frequency, for checkpoints with frequency prefix tuning."""
        if not self.module.config.resolution_prefix_tuning:
            return None
        return torch.full((windows,), DEFAULT_FREQUENCY_MAPPING["oov"], device=device)

    def _build_recursive(self, horizon: int) -> Any:
        native = self.module.config.prediction_length
        lengths = {"requested_prediction_length": horizon, "model_prediction_length": native}
        return RecursivePredictor(RecursivePredictorConfig(model=self.module, loss="mse", **lengths)).eval()
