"""TimesFM-2.5 and TimesFM-3 (`timesfm`): the median, computed by the library's own `decode`.

TimesFM-2.5: the public call goes through numpy, so `predict` repeats the defaults of `ForecastConfig` around `decode`:
masked zeros fill the first patch, the forecast of the negated window is subtracted (flip invariance), and a window
without negative values gets a forecast without negative values. The other options in the project's examples change the
quantiles or the rounding, not the point forecast.

TimesFM-3 forecasts the whole horizon in one pass. The audited forecast is the default of `TimesFM3Forecaster`, whose
steps `predict` repeats outside of inference mode: whole patches on both sides, and quantiles sorted. The variant for
benchmarks, `TimesFM3Evaluator`, averages with the negated window and clamps at zero, which is a different forecast.
"""

import math
from contextlib import redirect_stdout
from typing import Any, cast

import torch
from timesfm import ForecastConfig, TimesFM_2p5_200M_torch
from timesfm3.torch import TimesFM3Forecaster
from torch import Tensor

from hrx.adapters.checkpoint import CheckpointForecaster
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard

TIMESFM_25 = Family(
    "timesfm-2.5", f"{__name__}:TimesFM25", "timesfm", "timesfm",
    architectures=("TimesFmModelForPrediction",), config_keys=("torch_compile",),
    promises=("units", "sign"),  # the docstring of `ForecastConfig.force_flip_invariance`, which is on by default
    tensors=("tokenizer.hidden_layer.weight", "output_projection_quantiles.output_layer.weight"),
    released=(
        ModelCard(
            "timesfm-2.5", "google/timesfm-2.5-200m-pytorch", "Apache-2.0", 200_000_000, 16384, 1024,
            benchmark="none", sources=("github.com/google-research/timesfm, README.md",),
        ),
    ),
)  # fmt: skip
TIMESFM_3 = Family(
    "timesfm-3", f"{__name__}:TimesFM3", "timesfm", "timesfm",
    config_keys=("input_patch_len", "output_patch_len", "residual_block_config", "transformer_config"),
    released=(ModelCard("timesfm-3", "google/timesfm-3.0-pytorch", "timesfm-non-commercial-license-v1.0"),),
)  # fmt: skip

POINT = 5
"""Output that TimesFM-2.5 returns as its point forecast: the mean comes first, then nine deciles."""


class TimesFM25(CheckpointForecaster):
    """Median of a TimesFM-2.5 checkpoint under the library's default forecasting flags."""

    official_call = "TimesFM_2p5_200M_torch.forecast"
    module_attribute = "model"

    def open_library(self) -> Any:
        try:
            # If `torch_compile` is not given here, the saved config decides.
            library = TimesFM_2p5_200M_torch.from_pretrained(
                self.checkpoint.path, torch_compile=False, local_files_only=True
            )
        except RuntimeError as error:  # torch lists every name that does not match, hundreds of lines
            raise ModelError(
                f"{self.checkpoint.path} does not hold the weights of TimesFM-2.5 in the format of timesfm. "
                "Use google/timesfm-2.5-200m-pytorch, not a conversion for another library or another version."
            ) from error
        # The library moves itself to the first GPU it finds.
        library.model.to("cpu")
        library.model.device, library.model.device_count = torch.device("cpu"), 1
        return library

    def read_limits(self) -> Limits:
        model = self.module
        context = model.config.context_limit
        return Limits(
            longest_lookback=context - model.o, longest_horizon=context - model.p, context=context,
            lookback_patch=model.p, horizon_patch=model.o,
        )  # fmt: skip

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        x = x.to(dtype=torch.float32)
        window, padded = _whole_patches(x, self.module.p)
        y = (self._decode(window, padded, horizon) - self._decode(-window, padded, horizon)) / 2
        nonnegative = (x >= 0).all(dim=-1, keepdim=True)
        return torch.where(nonnegative, torch.maximum(y, torch.zeros_like(y)), y)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        self.library.compile(ForecastConfig(max_context=x.shape[1], max_horizon=horizon, per_core_batch_size=len(x)))
        # A copy: the library appends to the list it is given and may fill gaps in its arrays.
        point, _ = self.library.forecast(horizon, list(x.detach().cpu().numpy().copy()))
        return torch.from_numpy(point)

    def _decode(self, window: Tensor, padded: Tensor, horizon: int) -> Tensor:
        """`(B, N · 32) -> (B, H)`: the first pass after the last patch, then the steps fed back through the cache."""
        first, _, fed_back = self.module.decode(horizon, window, padded)
        y: Tensor = first[:, -1, :, POINT]
        if fed_back is not None:
            y = torch.cat([y, fed_back[..., POINT].flatten(1)], dim=1)
        return y[:, :horizon]


class TimesFM3(CheckpointForecaster):
    """Median of a TimesFM-3 checkpoint; each series is forecast by itself."""

    official_call = "TimesFM3Forecaster.predict_batch"
    module_attribute = "model"

    def open_library(self) -> Any:
        with redirect_stdout(None):  # the library prints progress, and standard output is for results
            return TimesFM3Forecaster.from_pretrained(str(self.checkpoint.path), device="cpu", local_files_only=True)

    def read_limits(self) -> Limits:
        return Limits(longest_lookback=self.library.global_context)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        window, padded = _whole_patches(x.to(dtype=torch.float32), self.module.input_patch_len)
        # The forecast depends on the requested horizon, and the library requests whole output patches.
        requested = horizon + -horizon % self.module.output_patch_len
        quantiles = self.module.decode(target=window[:, None], horizon=requested, mask=padded)[:, 0, :horizon]
        return cast(Tensor, quantiles.sort(dim=-1).values[..., self.library.config.median_quantile_index])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        """Public call; after a conversion the library's `decode` below it.

        The public call rounds its input to fp32, and finite differences of a rounded input measure the rounding.
        """
        self.check(x, horizon)
        if self.is_converted:
            return self._official_in_double(x, horizon)
        self.library.config.per_core_batch_size = len(x)
        forecasts = self.library.predict_batch(list(x.detach().cpu().numpy().copy()), horizon)
        return torch.stack([torch.from_numpy(y.forecast) for y in forecasts])

    @torch.no_grad()
    def _official_in_double(self, x: Tensor, horizon: int) -> Tensor:
        zeros = x.new_zeros(len(x), -x.shape[1] % self.module.input_patch_len)
        target, mask = torch.cat([zeros, x], dim=1), torch.cat([zeros == 0, torch.zeros_like(x) > 0], dim=1)
        passes = math.ceil(horizon / self.module.output_patch_len)
        quantiles = self.module.decode(target.unsqueeze(1), passes * self.module.output_patch_len, mask=mask)
        return cast(Tensor, quantiles[:, 0, :horizon].median(dim=-1).values)


def _whole_patches(x: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """Windows with zeros before them up to whole patches, and the mask of these zeros."""
    missing = -x.shape[1] % patch
    window = torch.nn.functional.pad(x, (missing, 0))
    return window, (torch.arange(window.shape[1]) < missing).expand(window.shape)
