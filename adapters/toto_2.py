"""Toto-2 (`timecopilot-toto-2`, or Datadog's `toto-2`): a transformer over patches that forecasts nine quantiles.

The official call is `Toto2Model.forecast` with its defaults: one pass for any horizon, without block decoding. The
library's GluonTS wrapper has other defaults (a scale for patches with few values, a cap on the quantiles) and is not
what is compared here. `predict` marks the forecast as masked and calls the model's `forward`.

**The library's gradient is wrong on purpose.** Its layers are unit-scaled: `dd_unit_scaling` multiplies by one factor
forward and by another backward, which keeps gradients near one in training. The forecast is right, and backward
silently returns something other than its derivative. `exact_gradients` makes both factors the same.

A window whose length is no multiple of the patch is padded on its left with masked zeros, as the GluonTS wrapper does.
The scale of a patch is the standard deviation of the values so far, so a window that starts flat has gradients of 1e6
and more there: true ones.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from dd_unit_scaling.scale import _ScaledGrad
from torch import Tensor
from torch.nn.functional import pad
from toto2 import Toto2Model

from hrx.adapters.checkpoint import CheckpointForecaster
from hrx.adapters.contract import Limits, ModelError


class _Exact(threading.local):
    """Whether this thread runs a forward pass whose gradient is to be the derivative."""

    active = False


_exact = _Exact()


def _keep_backward_scale(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
    """Replaces the library's function of this name, which always takes the factor of the backward pass."""
    _, forward_scale, backward_scale = inputs
    ctx.bwd_scale = forward_scale if _exact.active else backward_scale


# The class belongs to the whole process, in which a user may train a model: outside `exact_gradients` nothing changes.
_ScaledGrad.setup_context = staticmethod(_keep_backward_scale)


@contextmanager
def exact_gradients() -> Iterator[None]:
    """Around a forward pass: unit-scaled layers get the derivative of what they compute. One thread, also nested."""
    before, _exact.active = _exact.active, True
    try:
        yield
    finally:
        _exact.active = before


@dataclass(frozen=True)
class PositionLimits(Limits):
    """Lookback and horizon, each in whole patches, share a table of positions."""

    patch: int = 1
    positions: int = 0

    def refusal(self, lookback: int, horizon: int) -> str | None:
        room = (self.positions + -horizon // self.patch) * self.patch
        if self.patch <= room < lookback:
            return f"reads a lookback of at most {room}, not {lookback}, before a horizon of {horizon}"
        return super().refusal(lookback, horizon)


class Toto2(CheckpointForecaster):
    """The median of a Toto-2 checkpoint."""

    official_call = "Toto2Model.forecast"

    def open_library(self) -> Any:
        return Toto2Model.from_pretrained(self.checkpoint.path)

    def read_limits(self) -> PositionLimits:
        config = self.module.config
        if config.num_output_patches != 1:
            raise ModelError(
                f"{self.checkpoint.path}/config.json sets num_output_patches to {config.num_output_patches}. "
                "Toto2Model.forecast runs with 1 only."
            )
        tables = [m.cos for name, m in self.module.named_modules() if name.endswith("query_proj")]
        positions = min(len(table) for table in tables)
        most = (positions - 1) * config.patch_size
        return PositionLimits(
            longest_lookback=most, longest_horizon=most, patch=config.patch_size, positions=positions
        )

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        patch = self.module.config.patch_size
        patches = -(-horizon // patch)
        before, after = -x.shape[1] % patch, patches * patch
        observed = pad(~x.isnan(), (before, 0))
        # The library takes the newest patch as observed, whatever the mask says.
        observed = torch.cat([observed[:, :-patch], torch.ones_like(observed[:, -patch:])], dim=1)
        with exact_gradients():
            output = self.module(
                target=pad(torch.where(x.isnan(), 0.0, x), (before, after))[:, None],
                target_mask=pad(observed, (0, after), value=True)[:, None],
                cpm_mask=pad(torch.ones_like(observed), (0, after), value=False)[:, None],
                series_ids=torch.zeros(len(x), 1, dtype=torch.long),
                num_return_steps=patches + 1,
            )
        # Each patch forecasts the next one in standard deviations of the values so far, under an inverse sinh.
        values = output.quantiles[:, :, 0, :-1].flatten(2).sinh()
        loc, scale = output.loc[:, 0, patch:], output.scale[:, 0, patch:]
        quantiles = self.module._clamp_nonfinite((values * scale + loc).unflatten(2, (patches, patch))).flatten(2)
        return cast(Tensor, quantiles.sort(dim=0).values[self._median_index, :, :horizon])

    @property
    def _median_index(self) -> int:
        return list(self.module.output_head.knots).index(0.5)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        patch_size = self.library.config.patch_size
        missing = (patch_size - x.shape[1] % patch_size) % patch_size
        series = torch.cat([x.new_full((len(x), missing), torch.nan), x.detach()], dim=1).unsqueeze(1)
        mask = torch.isfinite(series)
        quantiles = self.library.forecast(
            {"target": series.nan_to_num(nan=0.0), "target_mask": mask, "series_ids": mask[..., 0].long() * 0},
            horizon,
        )
        by_level = dict(zip(self.library.output_head.knots, quantiles, strict=True))
        return cast(Tensor, by_level[0.5].squeeze(1))
