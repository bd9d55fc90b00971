"""TiRex-2 (`tirex-2`): a recurrent model over patches that forecasts nine quantiles of up to `future_len` steps.

The public call pads a window with NaN to the model's whole context, and forecasts its differences instead of its values
where a straight line fits it well, as a numpy regression decides: the forecast is smooth only between the windows at
which the decision changes. `predict` repeats these steps for the median on the model's forward.

The library compiles two of its layers with `torch.compile`, which takes a minute, needs a C++ compiler and cannot run
inside a gradient path. hrx runs them as they are written; the forecast is the same.
"""

import logging
from typing import Any

import torch
from tirex2 import TimeseriesType, load_model
from tirex2.model.component.residual_block import ResidualBlock
from torch import Tensor
from torch.nn.functional import pad

from hrx.adapters.checkpoint import ChannelForecaster
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard

FAMILY = Family(
    "tirex-2", f"{__name__}:TiRex2", "tirex-2", "tirex-2", also=("flashrnn", "mlstm_kernels"),
    config_keys=("stack_config", "tokenizer_cfg", "scaler_cfg", "future_len"),
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


class TiRex2(ChannelForecaster):
    """Median of a TiRex-2 checkpoint, with the test-time augmentation that its configuration asks for."""

    official_call = "ForecastModel.forecast"
    module_attribute = "model"

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
        # Beyond these the library cuts: a longer window, silently, and a longer forecast, with a line in its log.
        return Limits(longest_lookback=self.module.context_len, longest_horizon=self.module.future_len)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        series = self.to_series(x)
        # The channels of a window are a group; each attends to the others of its group.
        groups = torch.arange(len(series), dtype=torch.float32).repeat_interleave(series.shape[1])
        y = self._medians(series.flatten(0, 1), groups, horizon)
        if self.module.tta_sign_flip:
            y = (y - self._medians(-series.flatten(0, 1), groups, horizon)) / 2
        return self.from_series(y.reshape(*series.shape[:2], horizon))

    def _medians(self, x: Tensor, groups: Tensor, horizon: int) -> Tensor:
        """`(N, L) -> (N, H)` by one pass of the model."""
        trending = self._trending(x)
        steps = torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:] - x[:, :-1]], dim=1)
        rows = torch.where(trending, steps, x)
        # NaN stands for what is unknown: the time before the window and the forecast.
        padded = pad(rows, (self.module.context_len - x.shape[1], self.module.future_len), value=torch.nan)
        targets = torch.ones(len(x), dtype=torch.bool)  # none is a covariate
        quantiles = self.module({"x": padded, "group_vector": groups, "target_mask": targets})
        # The patch after the last token lies beyond the future that the model was trained on.
        future = quantiles[..., : -self.module.output_patch_size][..., -self.module.future_len :]
        median = future[:, self.module.num_quantiles // 2, :horizon]
        return torch.where(trending, _last_observed(x) + median.cumsum(dim=-1), median)

    def _trending(self, x: Tensor) -> Tensor:
        """`(N, 1)`: whether the library forecasts the differences of a series; a constant for the gradient."""
        # The library passes the window to numpy, and a gradient path would keep it attached to the graph.
        with torch._C.DisableTorchFunction(), torch.no_grad():
            wanted = self.module.tta_diff
            found = self.module.postprocessor._detect_trends(x.detach()) if wanted else [False] * len(x)
            return torch.tensor(found, device=x.device)[:, None]

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        windows = x.detach().mT if self.limits.multivariate else x.detach().unsqueeze(1)
        series = [TimeseriesType(target=each, past_covariates=None, future_covariates=None) for each in windows]
        forecasts = torch.stack(self.library.forecast(series, prediction_length=horizon))
        median = [round(level, 6) for level in self.library.quantiles.tolist()].index(0.5)
        return forecasts[:, :, median].mT if self.limits.multivariate else forecasts[:, 0, median]


def _last_observed(x: Tensor) -> Tensor:
    """`(N, 1)`: the last value of each series that is not NaN, or 0."""
    places = torch.arange(x.shape[1], device=x.device) * ~x.isnan()
    return x.gather(1, places.argmax(dim=1, keepdim=True)).nan_to_num(nan=0.0)
