"""Timestral (`timecopilot-timestral`): a causal transformer over patches that forecasts 21 quantiles.

`predict` runs the pass beneath the public call, which runs in inference mode, and repeats the two adjustments that are
on by default: the forecast of the negated window is subtracted (symmetric averaging), and a window without negative
values gets a forecast without negative values.

A patch is divided by the standard deviation of everything up to its end, and by no less than 1e-6: a window that starts
flat has true gradients of up to a million times the usual size there.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from timestral import TimestralForecaster
from torch import Tensor

from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard
from hrx.adapters.inputs import Column, Inputs, Outputs, Role, RoleName, Window
from hrx.adapters.windows import WindowForecaster, as_levels, encode_by_target, split

FAMILY = Family(
    "timestral", f"{__name__}:Timestral", "timecopilot-timestral", "timestral",
    promises=("sign",),  # symmetric averaging, on by default
    config_keys=("block_schedule", "block_size", "quantile_knots"),
    inputs=Inputs(
        (1, None), past=Role("optional", categorical="encoded", missing="masked"),
        future=Role("optional", categorical="encoded", missing="masked", ahead_missing="masked"),
    ),
    outputs=Outputs((0.01, *(step / 20 for step in range(1, 20)), 0.99), point="median"),
    licence_note="The licence of the released weights (Modified MIT) gives no rights to companies with a revenue "
    "of more than 20 million dollars a month: read the LICENSE beside the weights.",
    released=tuple(
        ModelCard(
            f"timestral-{millions}m", f"mistralai/Timestral-{millions}M", "Modified MIT", millions * 1_000_000,
            32768, 1024,
            sources=(
                "pypi.org/project/timecopilot-timestral, README.md",
                "docs.mistral.ai/models/timestral-1-0-209m.md",
                "huggingface.co/general-forecast/timestral-28m, README.md",
            ),
        )
        for millions in (5, 28, 123, 209)
    ),
)  # fmt: skip


class Timestral(WindowForecaster):
    """Quantiles of a Timestral checkpoint; the channels of a window are variates of one series."""

    official_call = "TimestralForecaster.forecast"
    module_attribute = "model"
    inputs, outputs = FAMILY.inputs, FAMILY.outputs

    def open_library(self) -> Any:
        library = TimestralForecaster.from_pretrained(self.checkpoint.path, device="cpu")
        levels = library.quantile_levels
        if any(abs(low + high - 1) > 1e-9 for low, high in zip(levels, reversed(levels), strict=True)):
            raise ModelError(
                f"{self.checkpoint.name} forecasts the quantiles {levels}, which are not symmetric about the median: "
                "its library cannot average them with those of the negated window."
            )
        self.outputs = replace(self.outputs, levels=tuple(levels))
        if not library.supports_covariates:
            self.inputs = Inputs((1, None))
        elif not library.supports_known_covariates:
            self.inputs = replace(self.inputs, future=Role())
        return library

    def read_limits(self) -> Limits:
        return Limits(longest_lookback=self.library.max_context)

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        series = window.target.mT.to(dtype=torch.float32)
        observed = series.isfinite()
        known = torch.where(observed, series, 0.0)
        past, future = self._numbers(window, "past"), self._numbers(window, "future")
        upper = self._quantiles(known, observed, horizon, past, future)
        mirrored = self._quantiles(-known, observed, horizon, past, future, -1)
        y = (upper - mirrored.flip(-1)) / 2
        nonnegative = observed.any(dim=-1) & (known >= 0).all(dim=-1)
        y = torch.where(nonnegative[..., None, None], y.clamp_min(0), y)
        return y[..., [self.outputs.levels.index(level) for level in as_levels(columns)]].transpose(1, 2)

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        rows: dict[str, Tensor] = {}
        arguments = {"past": "past_covariates", "future": "known_covariates"}
        for role, values in window.roles():
            for place, name in enumerate(window.named(role) if role in arguments else ()):
                kind = "categorical_" * (name in window.categorical) + arguments[role]
                row = values[:, None, :, place]
                rows[kind] = torch.cat([rows[kind], row], dim=1) if kind in rows else row
        forecast = self.library.forecast(window.target.mT, horizon, **rows)
        chosen = [forecast.median if one == "point" else forecast.quantile(one) for one in columns]
        # A copy outside of inference mode can be used like any tensor.
        return torch.stack(chosen, dim=-1).transpose(1, 2).clone()

    def _quantiles(
        self, known: Tensor, observed: Tensor, horizon: int, past: Tensor | None, future: Tensor | None, sign: int = 1
    ) -> Tensor:
        """`(B, K, H, Q)` of one pass of the library, without its adjustments; covariates times `sign`."""
        rows = {"past_covariates": past, "known_covariates": future}
        rows = {name: None if values is None else values * sign for name, values in rows.items()}
        quantiles: Tensor = self.library._forecast_raw(known, observed, horizon, **rows)
        return quantiles

    def _numbers(self, window: Window, role: RoleName) -> Tensor | None:
        """`(B, C, T)`: numbers, then codes by the target, each missing one filled; with several targets as they are."""
        numbers, codes = split(window, role)
        if codes is not None and window.target.shape[2] == 1:
            target = window.target[..., 0]
            steps = torch.arange(target.shape[1], device=target.device)
            newest = torch.where(target.isfinite(), steps, -1).cummax(dim=1).values
            target = torch.where(newest >= 0, target.gather(1, newest.clamp_min(0)), torch.nan)
            target = torch.where(steps >= len(steps) - self.library.max_context, target, torch.nan)
            encoded = encode_by_target(codes, target)
            # A missing code before the first target is padding, not a code.
            padding = codes.isnan()[..., : len(steps)] & target.isnan()[:, None]
            codes = torch.where(torch.nn.functional.pad(padding, (0, codes.shape[2] - len(steps))), torch.nan, encoded)
        given = [values.to(dtype=torch.float32) for values in (numbers, codes) if values is not None]
        return torch.cat(given, dim=1) if given else None
