"""TimesFM-2.5 in the format of `transformers` (`TimesFm2_5ModelForPrediction`): the median, up to one output patch.

The library's model call is differentiable. It pads a window with masked zeros to `forecast_context_len`, by default to
the longest context, which changes the cost and not the forecast: here to whole patches. It has no decoding beyond its
horizon; Google's own format and library (`hrx.adapters.families.timesfm`) have.

The forecast of a window without negative values is cut at zero. The library decides so for a batch as a whole, and an
audit forecasts each window by itself: `predict` cuts window by window, the official call gets windows of one kind.
"""

from typing import Any, cast

import torch
from torch import Tensor
from transformers import TimesFm2_5ModelForPrediction

from hrx.adapters.checkpoint import CheckpointForecaster
from hrx.adapters.contract import Limits
from hrx.adapters.families import Family, ModelCard

FAMILY = Family(
    "timesfm-2.5-hf", f"{__name__}:TimesFM25Transformers", "transformers", "timesfm-transformers",
    architectures=("TimesFm2_5ModelForPrediction",),
    tensors=("model.input_ff_layer.input_layer.weight", "output_projection_quantiles.output_layer.weight"),
    released=(
        ModelCard(
            "timesfm-2.5-hf", "google/timesfm-2.5-200m-transformers", "unknown", 200_000_000, 16384, 128,
            benchmark="none", sources=("github.com/google-research/timesfm, README.md",),
        ),
    ),
)  # fmt: skip


class TimesFM25Transformers(CheckpointForecaster):
    """Median of a TimesFM-2.5 checkpoint under the defaults of its configuration."""

    official_call = "TimesFm2_5ModelForPrediction.forward"

    def open_library(self) -> Any:
        return TimesFm2_5ModelForPrediction.from_pretrained(self.checkpoint.path, dtype=torch.float32)

    def module_name(self, stored: str) -> str:
        return stored.replace("mlp.ff0", "mlp.fc1").replace("mlp.ff1", "mlp.fc2")

    def read_limits(self) -> Limits:
        config = self.module.config
        return Limits(longest_lookback=config.context_length, longest_horizon=config.horizon_length)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        x = x.to(dtype=torch.float32)
        context = x.shape[1] + -x.shape[1] % self.module.config.patch_length
        y = self.module(x, forecast_context_len=context, truncate_negative=False).mean_predictions[:, :horizon]
        if not self.module.config.infer_is_positive:
            return cast(Tensor, y)
        nonnegative = (x >= 0).all(dim=-1, keepdim=True)
        return torch.where(nonnegative, torch.maximum(y, torch.zeros_like(y)), y)

    @torch.no_grad()
    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        series = x.detach().to(dtype=torch.float32)
        patch = self.library.config.patch_length
        negative = series.amin(dim=1) < 0
        y = series.new_empty(len(series), horizon)
        for kind in (negative, ~negative):
            if kind.any():
                output = self.library(list(series[kind]), forecast_context_len=-(-x.shape[1] // patch) * patch)
                y[kind] = output.mean_predictions[:, :horizon]
        return y
