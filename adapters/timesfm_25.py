"""TimesFM-2.5 (`timesfm`): the median of a decoder that continues beyond 128 steps through a key-value cache.

The public call goes through numpy, so `predict` repeats its few steps around the library's own `decode`: zeros that are
masked fill the first patch, the forecast of the negated window is subtracted (flip invariance), and a window without
negative values gets a forecast without any. These are the defaults of `ForecastConfig`. The other options that the
project's examples switch on change the quantiles or the rounding, not the point forecast.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from timesfm import ForecastConfig, TimesFM_2p5_200M_torch
from torch import Tensor

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Convert, Forecaster, Identity, Limits, ModelError, freeze

POINT = 5
"""The output that the library returns as its point forecast: the mean comes first, then nine deciles."""


@dataclass(frozen=True)
class SharedContext(Limits):
    """Lookback and horizon, each rounded up to whole patches, share one context."""

    context: int = 16384
    input_patch: int = 32
    output_patch: int = 128

    def refusal(self, lookback: int, horizon: int) -> str | None:
        taken = _rounded_up(lookback, self.input_patch) + _rounded_up(horizon, self.output_patch)
        if not (reason := super().refusal(lookback, horizon)) and taken > self.context:
            return f"has room for {self.context} steps of lookback and horizon together, not {taken}"
        return reason


def load(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    """Opens a checkpoint directory with the library's own class."""
    return TimesFM25(checkpoint, identity)


class TimesFM25(Forecaster):
    """The median of a TimesFM-2.5 checkpoint under the library's default forecasting flags."""

    def __init__(self, checkpoint: Checkpoint, identity: Identity):
        self.identity = identity
        self._checkpoint = checkpoint
        self._library: Any = _open(checkpoint)
        model = self._library.model
        self.limits = SharedContext(
            longest_lookback=model.config.context_limit - model.o,
            longest_horizon=model.config.context_limit - model.p,
            context=model.config.context_limit,
            input_patch=model.p,
            output_patch=model.o,
        )

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        x = x.to(dtype=torch.float32)
        missing = _rounded_up(x.shape[1], self._library.model.p) - x.shape[1]
        window = torch.nn.functional.pad(x, (missing, 0))
        padded = (torch.arange(window.shape[1]) < missing).expand(window.shape)
        y = (self._decode(window, padded, horizon) - self._decode(-window, padded, horizon)) / 2
        nonnegative = (x >= 0).all(dim=-1, keepdim=True)
        return torch.where(nonnegative, torch.maximum(y, torch.zeros_like(y)), y)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        self._library.compile(ForecastConfig(max_context=x.shape[1], max_horizon=horizon, per_core_batch_size=len(x)))
        # The library appends to the list it is given and may fill gaps in its arrays: both are made for it.
        point, _ = self._library.forecast(horizon, list(x.detach().cpu().numpy().copy()))
        return torch.from_numpy(point)

    def converted(self, convert: Convert) -> Forecaster:
        other = copy.copy(self)
        other._library = copy.copy(self._library)
        other._library.model = convert(copy.deepcopy(self._library.model))
        return other

    def reload(self) -> Forecaster:
        return TimesFM25(self._checkpoint, self.identity)

    def unloaded(self) -> tuple[str, ...]:
        return self._checkpoint.differences(self._library.model)

    def _decode(self, window: Tensor, padded: Tensor, horizon: int) -> Tensor:
        """`(B, N · 32) -> (B, H)`: the first pass after the last patch, then the steps fed back through the cache."""
        first, _, fed_back = self._library.model.decode(horizon, window, padded)
        y: Tensor = first[:, -1, :, POINT]
        if fed_back is not None:
            y = torch.cat([y, fed_back[..., POINT].flatten(1)], dim=1)
        return y[:, :horizon]


def _open(checkpoint: Checkpoint) -> Any:
    try:
        # Without the word here, `torch_compile` of the saved config decides.
        library = TimesFM_2p5_200M_torch.from_pretrained(checkpoint.path, torch_compile=False, local_files_only=True)
    except RuntimeError as error:  # torch's list of every name that does not fit, hundreds of lines
        raise ModelError(
            f"{checkpoint.path} does not hold the weights of TimesFM-2.5 in the format of timesfm. "
            "Take google/timesfm-2.5-200m-pytorch, not a conversion for another library or another version."
        ) from error
    # The library moves itself to the first GPU it finds.
    library.model.to("cpu")
    library.model.device, library.model.device_count = torch.device("cpu"), 1
    freeze(library.model)
    return library


def _rounded_up(steps: int, patch: int) -> int:
    return -(-steps // patch) * patch
