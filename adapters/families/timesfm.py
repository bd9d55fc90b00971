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
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from timesfm import ForecastConfig, TimesFM_2p5_200M_torch
from timesfm3.torch import TimesFM3Forecaster
from torch import Tensor

from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard
from hrx.adapters.inputs import Column, Inputs, Outputs, Role, Window
from hrx.adapters.windows import WindowForecaster, as_levels

TIMESFM_25 = Family(
    "timesfm-2.5", f"{__name__}:TimesFM25", "timesfm", "timesfm",
    architectures=("TimesFmModelForPrediction",), config_keys=("torch_compile",),
    promises=("units", "sign"),  # the docstring of `ForecastConfig.force_flip_invariance`, which is on by default
    tensors=("tokenizer.hidden_layer.weight", "output_projection_quantiles.output_layer.weight"),
    outputs=Outputs((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), mean=True, point="median"),
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
    inputs=Inputs((1, None), past=Role("optional"), future=Role("optional")),
    outputs=Outputs((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), point="median"),
    released=(ModelCard("timesfm-3", "google/timesfm-3.0-pytorch", "timesfm-non-commercial-license-v1.0"),),
)  # fmt: skip

POINT = 5
"""Output that TimesFM-2.5 returns as its point forecast: the mean comes first, then nine deciles."""


class TimesFM25(WindowForecaster):
    """Median of a TimesFM-2.5 checkpoint under the library's default forecasting flags."""

    official_call = "TimesFM_2p5_200M_torch.forecast"
    module_attribute = "model"
    outputs = TIMESFM_25.outputs

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

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        x = window.target[..., 0].to(dtype=torch.float32)
        series, padded = _whole_patches(x, self.module.p)
        mirrored = self._decode(-series, padded, horizon)
        # The mean comes first, then the deciles; those of the negated window are mirrored.
        mirrored = torch.cat([mirrored[..., :1], mirrored[..., 1:].flip(-1)], dim=-1)
        y = (self._decode(series, padded, horizon) - mirrored) / 2
        nonnegative = (x >= 0).all(dim=-1)[:, None, None]
        y = torch.where(nonnegative, torch.maximum(y, torch.zeros_like(y)), y)
        chosen = [0 if one == "mean" else POINT if one == "point" else round(10 * one) for one in columns]
        return y[:, :, None, chosen]

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        lookback = window.target.shape[1]
        self.library.compile(ForecastConfig(max_context=lookback, max_horizon=horizon, per_core_batch_size=len(window)))
        # A copy: the library appends to the list it is given and may fill gaps in its arrays.
        point, quantiles = self.library.forecast(horizon, list(window.target[..., 0].numpy().copy()))
        names = ("mean", 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
        by_name = dict(zip(names, np.moveaxis(quantiles, -1, 0), strict=True)) | {"point": point}
        return torch.from_numpy(np.stack([by_name[one] for one in columns], axis=-1)).unsqueeze(2)

    def _decode(self, window: Tensor, padded: Tensor, horizon: int) -> Tensor:
        """`(B, N · 32) -> (B, H, 10)`: the first pass after the last patch, then the steps fed back by the cache."""
        first, _, fed_back = self.module.decode(horizon, window, padded)
        y: Tensor = first[:, -1]
        if fed_back is not None:
            y = torch.cat([y, fed_back.flatten(1, 2)], dim=1)
        return y[:, :horizon]


class TimesFM3(WindowForecaster):
    """Quantiles of a TimesFM-3 checkpoint, sorted."""

    official_call = "TimesFM3Forecaster.predict_batch"
    module_attribute = "model"
    inputs, outputs = TIMESFM_3.inputs, TIMESFM_3.outputs

    def open_library(self) -> Any:
        with redirect_stdout(None):  # the library prints progress, and standard output is for results
            library = TimesFM3Forecaster.from_pretrained(str(self.checkpoint.path), device="cpu", local_files_only=True)
        self.outputs = replace(self.outputs, levels=tuple(library.config.quantiles))
        return library

    def read_limits(self) -> Limits:
        return Limits(longest_lookback=self.library.global_context)

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        target, padded = _whole_patches(window.target.mT.to(dtype=torch.float32), self.module.input_patch_len)
        missing = target.shape[2] - window.target.shape[1]
        past, future = (
            None if values is None else torch.nn.functional.pad(values.mT.to(dtype=torch.float32), (missing, 0))
            for values in (window.past, window.future)
        )
        # The forecast depends on the requested horizon. The library requests whole output patches, unless covariates
        # that are known ahead end before.
        requested = horizon + -horizon % self.module.output_patch_len if window.future is None else horizon
        quantiles = self.module.decode(
            target=target, horizon=requested, mask=padded, past_only_covariates=past, past_future_covariates=future
        )[:, : window.target.shape[2], :horizon]  # fmt: skip
        chosen = [self.outputs.levels.index(level) for level in as_levels(columns)]
        return cast(Tensor, quantiles.sort(dim=-1).values[..., chosen].transpose(1, 2))

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        """Public call; after a conversion the library's `decode` below it.

        The public call rounds its input to fp32, and finite differences of a rounded input measure the rounding.
        """
        if self.is_converted:
            return self._official_in_double(window, horizon, columns)
        self.library.config.per_core_batch_size = len(window)
        arrays = {role: list(values.numpy().swapaxes(1, 2).copy()) for role, values in window.roles()}
        forecasts = self.library.predict_batch(
            arrays["target"], horizon, past_only_covariates=arrays.get("past"),
            past_future_covariates=arrays.get("future"), return_quantiles=True,
        )  # fmt: skip
        levels = self.library.config.quantiles
        found = [
            [y.forecast if one == "point" else y.quantiles[..., levels.index(one)] for one in columns]
            for y in forecasts
        ]
        return torch.from_numpy(np.array(found)).permute(0, 3, 2, 1)

    @torch.no_grad()
    def _official_in_double(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        target = window.target.mT
        missing = -target.shape[2] % self.module.input_patch_len
        mask = torch.cat([target.new_ones(len(target), missing), torch.zeros_like(target[:, 0])], dim=1) > 0

        def started(values: Tensor) -> Tensor:
            return torch.cat([values.new_zeros(len(values), values.shape[2], missing), values.mT], dim=2)

        steps = math.ceil(horizon / self.module.output_patch_len) * self.module.output_patch_len
        past, future = window.past, window.future
        quantiles = self.module.decode(
            started(window.target), steps, None if past is None else started(past),
            None if future is None else started(future), mask=mask,
        )[:, : target.shape[1], :horizon].sort(dim=-1).values  # fmt: skip
        by_level = dict(zip(self.library.config.quantiles, quantiles.unbind(-1), strict=True))
        return torch.stack([by_level[0.5 if one == "point" else one] for one in columns], dim=-1).transpose(1, 2)


def _whole_patches(x: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """Windows `(B, …, L)` with zeros before them up to whole patches, and the mask `(B, N · patch)` of these zeros."""
    missing = -x.shape[-1] % patch
    window = torch.nn.functional.pad(x, (missing, 0))
    return window, (torch.arange(window.shape[-1]) < missing).expand(len(x), -1)
