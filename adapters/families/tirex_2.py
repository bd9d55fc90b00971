"""TiRex-2 (`tirex-2`): a recurrent model over patches that forecasts nine quantiles of up to `future_len` steps.

The public call pads a window with NaN to the model's whole context, and forecasts its differences instead of its values
where a straight line fits it well, as a numpy regression decides: the forecast is smooth only between the windows at
which the decision changes. `predict` repeats these steps for the median on the model's forward.

The library compiles two of its layers with `torch.compile`, which takes a minute, needs a C++ compiler and cannot run
inside a gradient path. hrx runs them as they are written; the forecast is the same.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from tirex2 import TimeseriesType, load_model
from tirex2.model.component.residual_block import ResidualBlock
from torch import Tensor
from torch.nn.functional import pad

from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard
from hrx.adapters.inputs import Column, Inputs, Outputs, Role, Window
from hrx.adapters.windows import WindowForecaster, as_levels

FAMILY = Family(
    "tirex-2", f"{__name__}:TiRex2", "tirex-2", "tirex-2", also=("flashrnn", "mlstm_kernels"),
    config_keys=("stack_config", "tokenizer_cfg", "scaler_cfg", "future_len"),
    inputs=Inputs(
        (1, None), past=Role("optional", missing="masked"),
        future=Role("optional", missing="masked", ahead_missing="masked"),
    ),
    outputs=Outputs((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), point="median"),
    licence_note="Its library needs mlstm_kernels, under the NXAI Community License: a company with more than 100 "
    "million euros of revenue a year needs a commercial licence for use in a product or service.",
    released=(
        ModelCard(
            "tirex-2", "NX-AI/TiRex-2", "Apache-2.0", 82_500_000, 2048, 320,
            sources=(
                "pypi.org/project/tirex-2, README.md", "github.com/NX-AI/tirex-2, conftest.py", "arXiv 2607.01204"
            ),
        ),
        ModelCard(
            "tirex-2-zs", "NX-AI/TiRex-2-gifteval-zs", "unknown", 82_500_000, 2048, 320, benchmark="none",
            sources=("github.com/NX-AI/tirex-2, docs/benchmarks.md and conftest.py",),
        ),
        ModelCard(
            "tirex-2-pretrained", "NX-AI/TiRex-2-gifteval-pretrain", "unknown", 82_500_000, 2048, 320,
            benchmark="train", sources=("github.com/NX-AI/tirex-2, docs/benchmarks.md and conftest.py",),
        ),
    ),
)  # fmt: skip

# On a machine without CUDA, importing flashrnn writes a warning to the terminal; the CPU needs none of it.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


class _Uncompiled(ResidualBlock):  # type: ignore[misc]  # the library is untyped
    """A layer of the library, called without `torch.compile`."""

    __call__ = torch.nn.Module.__call__
    _call_impl = torch.nn.Module._call_impl


class TiRex2(WindowForecaster):
    """Quantiles of a TiRex-2 checkpoint, with the test-time augmentation that its configuration asks for."""

    official_call = "ForecastModel.forecast"
    module_attribute = "model"
    inputs, outputs = FAMILY.inputs, FAMILY.outputs

    def open_library(self) -> Any:
        named = str(self.checkpoint.config.get("act_func", ""))
        if "." in named.removeprefix("torch.nn."):  # the library would import and call what the file names
            raise ModelError(
                f"{self.checkpoint.path}/config.json names the activation {named!r}, which is not a class of torch.nn. "
                "hrx runs no code that a checkpoint names: give a checkpoint with an activation of torch.nn."
            )
        precision = torch.get_float32_matmul_precision()
        try:
            library = load_model(self.checkpoint.path, device="cpu")
        finally:  # a configuration may set another for every model of the process
            torch.set_float32_matmul_precision(precision)
        for module in library.model.modules():
            if type(module) is ResidualBlock:
                module.__class__ = _Uncompiled
        return library

    def read_limits(self) -> Limits:
        levels = self.module.quantiles
        if float(levels[len(levels) // 2]) != 0.5:
            raise ModelError(
                f"{self.checkpoint.path}/config.json lists the quantiles {levels.tolist()}, and the middle one is not "
                "the median, around which tirex-2 calibrates the others. Give a checkpoint with symmetric quantiles."
            )
        self.outputs = replace(self.outputs, levels=tuple(round(level, 6) for level in levels.tolist()))
        # Beyond these the library cuts: a longer window, silently, and a longer forecast, with a line in its log.
        return Limits(longest_lookback=self.module.context_len, longest_horizon=self.module.future_len)

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        # One group for each window: targets, covariates known up to now, covariates known ahead.
        rows = [pad(window.target.mT, (0, horizon), value=torch.nan)]
        rows += [] if window.past is None else [pad(window.past.mT, (0, horizon), value=torch.nan)]
        rows += [] if window.future is None else [window.future.mT]
        together, targets = torch.cat(rows, dim=1), window.target.shape[2]
        chosen = [self.outputs.levels.index(level) for level in as_levels(columns)]
        y = self._quantiles(together, targets, horizon, chosen)
        if self.module.tta_sign_flip:
            opposite = [self.module.num_quantiles - 1 - place for place in chosen]
            y = (y - self._quantiles(-together, targets, horizon, opposite)) / 2
        return y.permute(0, 3, 1, 2)

    def _quantiles(self, rows: Tensor, targets: int, horizon: int, chosen: list[int]) -> Tensor:
        """`(B, R, L + H) -> (B, K, Q, H)`: chosen quantiles by one pass; the first `K` rows are the targets."""
        series = rows[:, :targets, :-horizon].flatten(0, 1)
        trending = self._trending(series)
        steps = torch.cat([torch.zeros_like(series[:, :1]), series[:, 1:] - series[:, :-1]], dim=1)
        values = torch.where(trending, steps, series).reshape(len(rows), targets, -1)
        rows = torch.cat([pad(values, (0, horizon), value=torch.nan), rows[:, targets:]], dim=1)
        # NaN stands for what is unknown: the time before the window and the forecast.
        before, after = self.module.context_len + horizon - rows.shape[2], self.module.future_len - horizon
        groups = torch.arange(len(rows), dtype=torch.float32).repeat_interleave(rows.shape[1])
        forecast = torch.arange(rows.shape[1]).repeat(len(rows)) < targets
        padded = pad(rows, (before, after), value=torch.nan).flatten(0, 1)
        quantiles = self.module({"x": padded, "group_vector": groups, "target_mask": forecast})
        # The patch after the last token lies beyond the future that the model was trained on.
        future = quantiles[..., : -self.module.output_patch_size][..., -self.module.future_len :]
        y = future[forecast][..., :horizon]
        middle, last, trending = self.module.num_quantiles // 2, _last_observed(series)[..., None], trending[..., None]
        median = y[:, middle : middle + 1]
        if chosen == [middle]:  # the library widens the bands about the median, which it leaves as it is
            y = torch.where(trending, last + median.cumsum(dim=-1), median)
        else:
            values, sums = self._bands(y[:, chosen] - median)
            y = torch.where(trending, last + median.cumsum(dim=-1) + sums, median + values)
        return y.reshape(len(rows), targets, len(chosen), horizon)

    def _bands(self, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Widened offsets from the median: of values, and of sums of steps from those of the steps."""
        settings, ahead = self.module.postprocessor.cfg, torch.arange(1, offset.shape[-1] + 1).to(offset)
        values = settings.raw_band_scale**0.5 * ahead ** (settings.raw_band_exponent - 0.5)
        sums = settings.diff_band_scale**0.5 * ahead ** (settings.diff_band_exponent - 0.5)
        width = offset.square().cumsum(dim=-1).sqrt() * offset.sum(dim=-1, keepdim=True).sign()
        return values * offset, sums * width

    def _trending(self, x: Tensor) -> Tensor:
        """`(N, 1)`: whether the library forecasts the differences of a series; a constant for the gradient."""
        # The library passes the window to numpy, and a gradient path would keep it attached to the graph.
        with torch._C.DisableTorchFunction(), torch.no_grad():
            wanted = self.module.tta_diff
            found = self.module.postprocessor._detect_trends(x.detach()) if wanted else [False] * len(x)
            return torch.tensor(found, device=x.device)[:, None]

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        series = [
            TimeseriesType(*(None if v is None else v[index].T for v in (window.target, window.past, window.future)))
            for index in range(len(window))
        ]
        forecasts = torch.stack(self.library.forecast(series, prediction_length=horizon))
        by_level = {round(level, 6): forecasts[:, :, i] for i, level in enumerate(self.library.quantiles.tolist())}
        return torch.stack([by_level[0.5 if one == "point" else one] for one in columns], dim=-1).transpose(1, 2)


def _last_observed(x: Tensor) -> Tensor:
    """`(N, 1)`: the last value of each series that is not NaN, or 0."""
    places = torch.arange(x.shape[1], device=x.device) * ~x.isnan()
    return x.gather(1, places.argmax(dim=1, keepdim=True)).nan_to_num(nan=0.0)
