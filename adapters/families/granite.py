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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tsfm_public import FlowStateForPrediction, PatchTSTFMForPrediction, TimeSeriesForecastingPipeline
from tsfm_public.models.flowstate.utils.utils import BASE_SEASON

from hrx.adapters.checkpoint import second_module
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard
from hrx.adapters.inputs import Column, Outputs, Window
from hrx.adapters.windows import WindowForecaster

PATCHTST_FM = Family(
    "patchtst-fm", f"{__name__}:PatchTSTFM", "granite-tsfm", "patchtst-fm", also=("transformers",),
    architectures=("PatchTSTFMForPrediction",),
    outputs=Outputs(tuple(step / 100 for step in range(1, 100)), point="mean"),
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
    outputs=Outputs((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), point="mean"),
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


def run_pipeline(
    model: Any, windows: Tensor, steps: int, targets: int, columns: Sequence[Column], future: Tensor | None = None,
    **settings: Any,
) -> Tensor:  # fmt: skip
    """`(B, L, C) -> (B, steps, targets, Q)`: the library's pipeline on a frame with one series per window.

    Each channel is a column. The first `targets` of them are forecast, the next ones are known ahead: `future`
    `(B, steps, known)`. `settings` go to the pipeline and its call.
    """
    count, lookback, channels = windows.shape
    names = [f"channel_{index}" for index in range(channels)]
    known = names[targets : targets + (0 if future is None else future.shape[2])]
    dates = pd.date_range("2000-01-01", periods=lookback + steps, freq="h")

    def frame(values: Tensor, held: list[str], times: pd.DatetimeIndex) -> pd.DataFrame:
        made = pd.DataFrame(values.reshape(-1, len(held)).numpy(), columns=held)
        made["series"] = np.repeat(np.arange(count), len(times))
        made["time"] = np.tile(times, count)
        return made

    token = settings.pop("frequency_token", None)
    pipeline = TimeSeriesForecastingPipeline(
        model, timestamp_column="time", id_columns=["series"], target_columns=names[:targets],
        observable_columns=known, conditional_columns=names[targets + len(known) :],
        prediction_length=steps, batch_size=count, device="cpu", add_known_ground_truth=False, **settings,
    )  # fmt: skip
    ahead = {} if future is None else {"future_time_series": frame(future, known, dates[lookback:])}
    forecast = pipeline(frame(windows, names, dates[:lookback]), frequency_token=token, **ahead)
    levels = {} if set(columns) <= {"point", "mean"} else {round(q, 6): f"_q{q}" for q in model.config.quantile_levels}
    ends = ["" if one in ("point", "mean") else levels[one] for one in columns]
    values = [[forecast[name + end].tolist() for end in ends] for name in names[:targets]]
    return torch.from_numpy(np.array(values, dtype=np.float32)).permute(2, 3, 0, 1)


class _OnePass(WindowForecaster):
    """A model of `granite-tsfm` that takes the horizon as an argument of its call."""

    official_call = PIPELINE

    def prepare(self) -> None:
        self._second: Any = second_module(self.module)
        self._lock = Lock()
        levels = tuple(round(level, 6) for level in self.module.config.quantile_levels)
        self.outputs = Outputs(levels, point="mean")

    @property
    def arguments(self) -> dict[str, Any]:
        """Further arguments of the library's call."""
        return {}

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        with self._lock:
            output = self._second(past_values=window.target, prediction_length=horizon, **self.arguments)
        return chosen_columns(output, self.outputs.levels, columns)

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        """Run the pipeline, or the library's model call for a float64 copy."""
        windows, more = window.target, self.arguments
        with self._lock, torch.no_grad():
            if not self.is_converted:
                return run_pipeline(self.module, windows, horizon, 1, columns, context_length=windows.shape[1], **more)
            output = self.module(windows, prediction_length=horizon, **more)
            by_level = dict(zip(self.module.config.quantile_levels, output.quantile_outputs.unbind(1), strict=True))
            by_column = {round(level, 6): y for level, y in by_level.items()}
            by_column |= dict.fromkeys(("point", "mean"), output.prediction_outputs)
            return torch.stack([by_column[one] for one in columns], dim=-1)


def chosen_columns(output: Any, levels: Sequence[float], columns: Sequence[Column]) -> Tensor:
    """`(B, H, K, Q)` of an output of the library, whose point forecast is its own."""
    chosen = [
        output.prediction_outputs if one in ("point", "mean") else output.quantile_outputs[:, levels.index(float(one))]
        for one in columns
    ]
    return torch.stack(chosen, dim=-1)


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
    def arguments(self) -> dict[str, Any]:
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
