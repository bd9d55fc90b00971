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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from dd_unit_scaling.scale import _ScaledGrad
from torch import Tensor
from torch.nn.functional import pad
from toto2 import Toto2Model

from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard
from hrx.adapters.inputs import Column, Inputs, Outputs, Role, Window
from hrx.adapters.windows import WindowForecaster, as_levels

FAMILY = Family(
    "toto-2", f"{__name__}:Toto2", "timecopilot-toto-2", "toto-2",
    also=("timecopilot-dd-unit-scaling", "unit-scaling"),
    config_keys=("layer_group_size", "num_variate_layers_per_group", "variate_layer_first"),
    inputs=Inputs(
        (1, None), past=Role("optional", missing="masked"),
        future=Role("optional", missing="masked", ahead_missing="masked"),
    ),
    outputs=Outputs((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), point="median"),
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


class Toto2(WindowForecaster):
    """Quantiles of a Toto-2 checkpoint.

    Covariates known up to now are further targets, as in the library's GluonTS wrapper. The forecast of a patch reads
    what is known ahead up to the patch before it, so its first `patch_size` steps read none.
    """

    official_call = "Toto2Model.forecast"
    inputs, outputs = FAMILY.inputs, FAMILY.outputs

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

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        patch, (lookback, targets) = self.module.config.patch_size, window.target.shape[1:]
        patches = math.ceil(horizon / patch)
        before, after = -lookback % patch, patches * patch
        rows = window.target.mT if window.past is None else torch.cat([window.target, window.past], dim=2).mT
        observed = pad(~rows.isnan(), (before, 0))
        # The library takes the newest patch as observed, whatever the mask says.
        observed = torch.cat([observed[..., :-patch], torch.ones_like(observed[..., -patch:])], dim=-1)
        observed = pad(observed, (0, after), value=True)
        given = torch.arange(before + lookback + after).expand(observed.shape) < before + lookback
        rows = pad(rows, (before, after))
        if window.future is not None:  # masked ahead, one by one, where a value is not known
            known = pad(window.future.mT, (before, after - horizon), value=torch.nan)
            ahead = torch.arange(known.shape[2]) >= before + lookback
            rows = torch.cat([rows, known], dim=1)
            observed = torch.cat([observed, ~known.isnan() | ahead], dim=1)
            given = torch.cat([given, ~known.isnan() | ~ahead], dim=1)
        with exact_gradients():
            output = self.module(
                target=torch.where(rows.isnan(), 0.0, rows),
                target_mask=observed,
                cpm_mask=given,
                series_ids=torch.zeros(rows.shape[:2], dtype=torch.long),  # the channels of a window are one group
                num_return_steps=patches + 1,
            )
        # Each patch forecasts the next one in standard deviations of the values so far, under an inverse sinh.
        values = output.quantiles[..., :-1, :].sinh()
        shape = (*rows.shape[:2], patches, patch)
        loc, scale = (statistic[..., patch:].reshape(shape) for statistic in (output.loc, output.scale))
        quantiles: Tensor = self.module._clamp_nonfinite(values * scale + loc).sort(dim=0).values[:, :, :targets]
        chosen = [self.outputs.levels.index(level) for level in as_levels(columns)]
        return quantiles[chosen].flatten(3)[..., :horizon].permute(1, 3, 2, 0)

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        lookback, patch_size = window.target.shape[1], self.library.config.patch_size
        missing = (patch_size - lookback % patch_size) % patch_size
        series = torch.cat([one for one in (window.target, window.past) if one is not None], dim=2)
        series = torch.cat([series.new_full((len(window), missing, series.shape[2]), torch.nan), series], dim=1).mT
        mask = torch.isfinite(series)
        inputs = {"target": series.nan_to_num(nan=0.0), "target_mask": mask, "series_ids": mask[..., 0].long() * 0}
        if window.future is not None:
            gap = window.future.new_full((len(window), missing, window.future.shape[2]), torch.nan)
            known = torch.cat([gap, window.future], dim=1).mT
            inputs |= {"known_dynamic": known.nan_to_num(nan=0.0), "known_dynamic_mask": known.isfinite()}
            inputs["known_dynamic_series_ids"] = known[..., 0].isnan().long() * 0
        quantiles = self.library.forecast(inputs, horizon)[:, :, : window.target.shape[2]]
        by_level = dict(zip(self.library.output_head.knots, quantiles, strict=True))
        return torch.stack([by_level[0.5 if one == "point" else one] for one in columns], dim=-1).transpose(1, 2)
