"""PatchTST-FM and FlowState (`granite-tsfm`), and the library's forecasting pipeline, which is TTM's official call too.

Both forecast any horizon in one pass, and their point forecast is the library's default, a mean over the predicted
quantiles. Both store the statistics of the last window in the module, and FlowState also a length in its configuration:
`predict` has a second object on the same weights, so the module of the official call never holds a gradient, which
could not be copied, and a lock lets one thread at a time run an object.

The pipeline rounds its input to fp32, so a float64 copy is compared with the library's model call. On a GPU,
PatchTST-FM computes in bfloat16, which parity with the forecast on the CPU does not admit.
"""

import copy
import logging
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Self, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tsfm_public import FlowStateForPrediction, PatchTSTFMForPrediction, TimeSeriesForecastingPipeline
from tsfm_public.models.flowstate.utils.utils import BASE_SEASON

from hrx.adapters.checkpoint import CheckpointForecaster, second_module
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard

PATCHTST_FM = Family(
    "patchtst-fm", f"{__name__}:PatchTSTFM", "granite-tsfm", "patchtst-fm", also=("transformers",),
    architectures=("PatchTSTFMForPrediction",),
    released=(
        ModelCard(
            "patchtst-fm-r1", "ibm-granite/granite-timeseries-patchtst-fm-r1", "Apache-2.0", 260_000_000, 8192,
            sources=(
                "huggingface.co/ibm-research/patchtst-fm-r1, README.md",
                "github.com/unit8co/darts, docstring of PatchTSTFMModel",
            ),
        ),
        ModelCard(
            "patchtst-fm-r1-nc", "ibm-research/patchtst-fm-r1", "CC-BY-NC-SA-4.0", 260_000_000, 8192,
            benchmark="none", sources=("huggingface.co/ibm-research/patchtst-fm-r1, README.md",),
        ),
        ModelCard(
            "patchtst-fm-r2", "ibm-granite/granite-timeseries-patchtst-fm-r2", "Apache-2.0 or OpenMDW-1.0",
            385_000_000, sources=("huggingface.co/ibm-granite/granite-timeseries-patchtst-fm-r2, README.md",),
        ),
    ),
)  # fmt: skip
FLOWSTATE = Family(
    "flowstate", f"{__name__}:FlowState", "granite-tsfm", "flowstate", also=("transformers",),
    architectures=("FlowStateForPrediction",),
    released=(
        ModelCard(
            "flowstate-r1", "ibm-granite/granite-timeseries-flowstate-r1", "Apache-2.0", 9_070_000, 2048,
            pretraining="subsets of GIFT-Eval's pretraining data and of the training corpora of Chronos",
            sources=("huggingface.co/ibm-granite/granite-timeseries-flowstate-r1, README.md",),
            branches={r"r1\.1": {"parameters": 18_500_000, "native_lookback": 4096}},
        ),
    ),
)  # fmt: skip

# The library logs a line for every call of its pipeline, and for every FlowState that it loads.
logging.getLogger("tsfm_public").setLevel(logging.WARNING)

PIPELINE = "TimeSeriesForecastingPipeline"
LONGEST_CONTEXT = 16 * 1024
"""FlowState reads no more steps than this at any scale factor."""


def run_pipeline(model: Any, windows: Tensor, steps: int, targets: int, **settings: Any) -> Tensor:
    """`(B, L, C) -> (B, steps, targets)`: the library's pipeline on a frame with one series per window.

    Each channel is a column, and the first `targets` of them are forecast. `settings` go to the pipeline and its call.
    """
    count, lookback, channels = windows.shape
    columns = [f"channel_{index}" for index in range(channels)]
    frame = pd.DataFrame(windows.reshape(-1, channels).numpy(), columns=columns)
    frame["series"] = np.repeat(np.arange(count), lookback)
    frame["time"] = np.tile(pd.date_range("2000-01-01", periods=lookback, freq="h"), count)
    token = settings.pop("frequency_token", None)
    pipeline = TimeSeriesForecastingPipeline(
        model, timestamp_column="time", id_columns=["series"],
        target_columns=columns[:targets], conditional_columns=columns[targets:],
        prediction_length=steps, batch_size=count, device="cpu", add_known_ground_truth=False, **settings,
    )  # fmt: skip
    forecast = pipeline(frame, frequency_token=token)
    values = [np.array(forecast[column].tolist(), dtype=np.float32) for column in columns[:targets]]
    return torch.from_numpy(np.stack(values, axis=-1))


class _OnePass(CheckpointForecaster):
    """A model of `granite-tsfm` that takes the horizon as an argument of its call."""

    official_call = PIPELINE

    def prepare(self) -> None:
        self._second: Any = second_module(self.module)
        self._lock = Lock()

    @property
    def arguments(self) -> dict[str, float]:
        """Further arguments of the library's call."""
        return {}

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        with self._lock:
            output = self._second(past_values=x[..., None], prediction_length=horizon, **self.arguments)
        return cast(Tensor, output.prediction_outputs[..., 0])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        """`(B, L) -> (B, H)` by the pipeline, or by the library's model call for a float64 copy."""
        self.check(x, horizon)
        windows, more = x.detach().unsqueeze(2), self.arguments
        with self._lock, torch.no_grad():
            if not self.is_converted:
                return run_pipeline(self.module, windows, horizon, 1, context_length=x.shape[1], **more).squeeze(2)
            forecast: Tensor = self.module(windows, prediction_length=horizon, **more).prediction_outputs
            return forecast.squeeze(2)


class PatchTSTFM(_OnePass):
    """Mean forecast of a PatchTST-FM checkpoint: its quantile function, integrated by the library."""

    def open_library(self) -> Any:
        return PatchTSTFMForPrediction.from_pretrained(self.checkpoint.path)

    def prepare(self) -> None:
        super().prepare()
        if (window := getattr(self._second.backbone, "patch_loss_window", None)) is not None:
            # The library adds overlapping patches in place, one by one, and the backward pass of each addition copies
            # the whole context: with a thousand patches it would take hours.
            self._second.backbone._overlap_add = partial(_add_patches, window.flatten())

    def read_limits(self) -> Limits:
        config = self.module.config
        context, masked_patches = config.context_length, config.pretrain_mask_cont * (2 if config.randomize_cpm else 1)
        masked = config.d_patch * max(masked_patches, 2)
        return Limits(
            longest_lookback=context - masked, longest_horizon=context - 1, context=context, least_horizon=masked
        )


def _add_patches(window: Tensor, patches: Tensor, original_length: int, stride: int) -> Tensor:
    """`(B, N·D, Q) -> (B, T, Q)`: the mean of overlapping patches, weighted within each by `window` `(D,)`."""
    batch, values, quantiles = patches.shape
    starts = torch.arange(values // len(window), device=patches.device) * stride
    places = (starts[:, None] + torch.arange(len(window), device=patches.device)).flatten()
    weights = window.repeat(len(starts))
    total = patches.new_zeros(batch, original_length, quantiles).index_add(1, places, patches * weights[:, None])
    return total / patches.new_zeros(original_length).index_add(0, places, weights).clamp(min=1e-6)[:, None]


@dataclass(frozen=True)
class ScaleLimits(Limits):
    """FlowState at a scale factor: it joins patches of `patch` steps, and each step beyond the first takes context."""

    patch: int = 0
    scale_factor: float = 1.0

    @classmethod
    def at(cls, config: Any, scale_factor: float) -> Self:
        """Limits of a checkpoint at a scale factor."""
        longest = min(LONGEST_CONTEXT, int(config.context_length / scale_factor))
        first = int(config.decoder_patch_len / scale_factor + 1e-6)
        return cls(
            shortest_lookback=2,  # the discretised kernel takes its second value, so one step alone raises
            longest_lookback=longest, context=longest + first, least_horizon=first,
            patch=int(config.decoder_patch_len / scale_factor), scale_factor=scale_factor,
        )  # fmt: skip

    def refusal_of_horizon(self, horizon: int) -> str | None:
        # The library drops the last patch where a pass would end it.
        whole, rest = divmod(max(0, horizon - self.least_horizon) + 1, self.patch)
        returned = whole * self.patch + (self.patch + rest - 1 if rest else 0)
        if returned >= horizon:
            return None
        return (
            f"returns {returned} steps where {horizon} are asked for: its library joins patches of {self.patch} steps "
            "and drops the last one at this horizon"
        )


class FlowState(_OnePass):
    """Mean forecast of a FlowState checkpoint at `limits.scale_factor`.

    The scale factor sets the model's time scale: 24 steps per season, the library's base, over the season of the
    series. A season of 1, which means that none is known, leaves the scale factor of the checkpoint's configuration.
    """

    limits: ScaleLimits

    def open_library(self) -> Any:
        return FlowStateForPrediction.from_pretrained(self.checkpoint.path)

    def read_limits(self) -> ScaleLimits:
        return ScaleLimits.at(self.module.config, float(self.module.config.scale_factor))

    @property
    def official_call(self) -> str:  # type: ignore[override]  # names the scale factor, so records hold it
        return f"{PIPELINE}(scale_factor={self.limits.scale_factor:.4g})"

    @property
    def arguments(self) -> dict[str, float]:
        return {"scale_factor": self.limits.scale_factor}

    def for_season(self, season: int) -> Self:
        """Return the same network at the time scale of a season, in steps."""
        if season < 1:
            raise ModelError(f"{self.identity.model} was given a season of {season}. It is at least 1.")
        scale_factor = float(self.module.config.scale_factor) if season == 1 else BASE_SEASON / season
        if scale_factor == self.limits.scale_factor:
            return self
        other = copy.copy(self)
        other.limits = ScaleLimits.at(self.module.config, scale_factor)
        return other
