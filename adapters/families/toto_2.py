"""Toto-2 (`timecopilot-toto-2`, or Datadog's `toto-2`): a transformer over patches that forecasts nine quantiles.

The official call is `Toto2Model.forecast` with its defaults: one pass for any horizon, without block decoding. The
library's GluonTS wrapper has other defaults (a scale for patches with few values, a cap on the quantiles) and is not
what is compared here. `predict` marks the forecast as masked and calls the model's `forward`.

Its layers (`dd_unit_scaling`) multiply by one factor forward and by another backward, on purpose: it keeps the
gradients of a training run near one. The forecast is right, and backward returns something other than its derivative,
finite and plausible: only finite differences show it. Under `exact_gradients` both factors are the same.

A window whose length is not a multiple of the patch is padded on its left with masked zeros, as by that wrapper. The
scale of a patch is the standard deviation of the values so far, at least 1e-6. Where a window starts flat, the forecast
therefore has true slopes of 1e5 and more that hold within 1e-9 of the window only, shorter than the steps of the
derivative check.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from dd_unit_scaling.scale import _ScaledGrad
from torch import Tensor
from torch.nn.functional import pad
from toto2 import Toto2Model

from hrx.adapters.checkpoint import ChannelForecaster
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard

FAMILY = Family(
    "toto-2", f"{__name__}:Toto2", "timecopilot-toto-2", "toto-2",
    also=("timecopilot-dd-unit-scaling", "unit-scaling"),
    config_keys=("layer_group_size", "num_variate_layers_per_group", "variate_layer_first"),
    released=tuple(
        ModelCard(
            f"toto-2-{size.lower()}", f"Datadog/Toto-2.0-{size}", "Apache-2.0", parameters, benchmark="train",
            pretraining="Datadog's own metrics and generated series",
            sources=("github.com/DataDog/toto, README.md", "arXiv 2605.20119"),
        )
        for size, parameters in (
            ("4m", 4_000_000), ("22m", 22_000_000), ("313m", 313_000_000), ("1B", 1_000_000_000),
            ("2.5B", 2_500_000_000),
        )
    ),
)  # fmt: skip


class _Exact(threading.local):
    """Whether this thread runs a forward pass whose gradient is to be the derivative."""

    active = False


_exact = _Exact()


def _store_factor(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
    """Called by torch after each scaled operation, to store what its backward needs."""
    _, forward, backward = inputs
    ctx.bwd_scale = forward if _exact.active else backward


@contextmanager
def exact_gradients() -> Iterator[None]:
    """Around a forward pass in this thread: backward, inside or later, takes the derivative of what was computed."""
    # It belongs to a class of the library, and so to the whole process, in which a user may train a model.
    _ScaledGrad.setup_context = staticmethod(_store_factor)
    before, _exact.active = _exact.active, True
    try:
        yield
    finally:
        _exact.active = before


class Toto2(ChannelForecaster):
    """Median of a Toto-2 checkpoint."""

    official_call = "Toto2Model.forecast"

    def open_library(self) -> Any:
        return Toto2Model.from_pretrained(self.checkpoint.path)

    def read_limits(self) -> Limits:
        config = self.module.config
        if config.num_output_patches != 1:
            raise ModelError(
                f"{self.checkpoint.path}/config.json sets num_output_patches to {config.num_output_patches}. "
                "Toto2Model.forecast runs with 1 only."
            )
        patch = config.patch_size
        # Lookback and horizon share a table of positions, one for each patch.
        positions = min(len(m.cos) for name, m in self.module.named_modules() if name.endswith("query_proj"))
        most = (positions - 1) * patch
        return Limits(longest_lookback=most, longest_horizon=most, context=positions * patch, horizon_patch=patch)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        series, patch = self.to_series(x), self.module.config.patch_size
        patches = math.ceil(horizon / patch)
        before, after = -series.shape[2] % patch, patches * patch
        observed = pad(~series.isnan(), (before, 0))
        # The library takes the newest patch as observed, whatever the mask says.
        observed = torch.cat([observed[..., :-patch], torch.ones_like(observed[..., -patch:])], dim=-1)
        with exact_gradients():
            output = self.module(
                target=pad(torch.where(series.isnan(), 0.0, series), (before, after)),
                target_mask=pad(observed, (0, after), value=True),
                cpm_mask=pad(torch.ones_like(observed), (0, after), value=False),
                series_ids=torch.zeros(series.shape[:2], dtype=torch.long),  # the channels of a window are one group
                num_return_steps=patches + 1,
            )
        # Each patch forecasts the next one in standard deviations of the values so far, under an inverse sinh.
        values = output.quantiles[..., :-1, :].sinh()
        shape = (*series.shape[:2], patches, patch)
        loc, scale = (statistic[..., patch:].reshape(shape) for statistic in (output.loc, output.scale))
        median = list(self.module.output_head.knots).index(0.5)
        quantiles = self.module._clamp_nonfinite(values * scale + loc).sort(dim=0).values
        return self.from_series(quantiles[median].flatten(2)[..., :horizon])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        target = x.detach().mT if self.limits.multivariate else x.detach().unsqueeze(1)
        patch_size = self.library.config.patch_size
        missing = (patch_size - target.shape[-1] % patch_size) % patch_size
        target = torch.cat([target.new_full((*target.shape[:2], missing), torch.nan), target], dim=-1)
        mask = torch.isfinite(target)
        inputs = {"target": target.nan_to_num(nan=0.0), "target_mask": mask, "series_ids": mask[..., 0].long() * 0}
        quantiles = self.library.forecast(inputs, horizon)
        median = dict(zip(self.library.output_head.knots, quantiles, strict=True))[0.5]
        return cast(Tensor, median.mT if self.limits.multivariate else median.squeeze(1))
