"""T0 (`tfc-t0`): a causal transformer over patches that forecasts quantiles, up to 1024 steps in one pass.

The audited forecast is the median of the public call with its defaults; the publisher's scores use four adjustments
that are off by default. Beyond one pass every requested level is fed back as a path of its own, so the median depends
on the levels. `predict` makes the forecast from the library's parts: its rollout around one pass of scaler and model.
"""

from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any, cast

import torch
from t0 import T0Forecaster, TimeSeries
from t0.levels import get_rollout_quantile_levels
from t0.quantile import sanitize_predictions
from t0.rollout import rollout
from t0.types import VariateType
from torch import Tensor
from torch.nn.functional import pad

from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard
from hrx.adapters.inputs import Column, Inputs, Outputs, Role, Window
from hrx.adapters.windows import WindowForecaster, as_levels

FAMILY = Family(
    "t0", f"{__name__}:T0", "tfc-t0", "t0", also=("rotary-embedding-torch",),
    config_keys=("embed_dim", "group_every_n", "mlp_hidden_dim", "quantile_levels"),
    inputs=Inputs(
        (1, None), past=Role("optional", missing="masked"),
        future=Role("optional", missing="masked", ahead_missing="masked"),
    ),
    outputs=Outputs((0.1, 0.3, 0.5, 0.7, 0.9), interpolates=True, point="median"),
    released=tuple(
        ModelCard(
            f"t0-{release}", f"theforecastingcompany/t0-{release}", "Apache-2.0", parameters, native_horizon=1024,
            sources=("pypi.org/project/tfc-t0, README.md",),
        )
        for release, parameters in (("alpha", 102_000_000), ("beta", 256_000_000), ("gamma", 256_000_000))
    ),
)  # fmt: skip

LEVELS = (0.1, 0.5, 0.9)
"""Levels that the public call requests by default."""


class T0(WindowForecaster):
    """Quantiles of a T0 checkpoint; the channels of a window are variates of one series."""

    official_call = "T0Forecaster.predict"
    inputs, outputs = FAMILY.inputs, FAMILY.outputs

    def open_library(self) -> Any:
        with redirect_stdout(None):  # the loader prints, and standard output is for results
            module = T0Forecaster.from_pretrained(self.checkpoint.path)
        levels = module.config.quantile_levels
        if not levels[0] <= 0.5 <= levels[-1]:
            raise ModelError(
                f"{self.checkpoint.name} forecasts the quantiles {levels}, which do not enclose the median."
            )
        self.outputs = replace(self.outputs, levels=tuple(levels))
        # A static method that the library keeps on the object and does not use: it cannot be copied.
        vars(module.transformer.rotary_emb).pop("apply_rotary_emb", None)
        return module

    def read_limits(self) -> Limits:
        return Limits()  # it reads windows of any length, and continues beyond one pass

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        patch, longest_pass = self.module.patch_size, self.module.max_horizon
        trained = self.module.config.quantile_levels
        levels = get_rollout_quantile_levels(trained, LEVELS if "point" in columns else sorted(as_levels(columns)))
        lookback, targets = window.target.shape[1:]
        quantiles = rollout(_rows(window), self._pass, horizon, lookback, patch, longest_pass, trained, levels)
        chosen = [list(levels).index(level) for level in as_levels(columns)]
        y: Tensor = sanitize_predictions(quantiles)[..., chosen]
        return y.reshape(len(window), targets, horizon, len(columns)).transpose(1, 2)

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        levels = {} if "point" in columns else {"quantile_levels": sorted(columns)}
        if window.past is None:
            future = None if window.future is None else window.future.mT
            forecast = self.module.predict(window.target.mT, horizon, future_covariates=future, **levels)
            quantiles = forecast.quantiles
        else:  # only a TimeSeries takes covariates that end with the window
            series = TimeSeries.batch([_series(part, horizon) for part in window.each()])
            forecast = self.module.predict(series, horizon, context_length=window.target.shape[1], **levels)
            quantiles = forecast.quantiles.unflatten(0, (len(window), -1))
        by_level = dict(zip(forecast.quantile_levels, quantiles.unbind(-1), strict=True))
        # A copy outside of inference mode can be used like any tensor.
        return (
            torch.stack([by_level[0.5 if one == "point" else one] for one in columns], dim=-1).transpose(1, 2).clone()
        )

    def _pass(self, window: TimeSeries, steps: int) -> Tensor:
        """Quantiles `(rows, steps, Q)` of the last `steps` of a window, both whole patches."""
        scaler, patch = self.module.scaler, self.module.patch_size
        scaled, statistics = scaler.scale_input(window)
        patches: Tensor = scaler.rescale_predictions(self.module(scaled), statistics, patch)
        first = (window.seq_len - steps) // patch - 1  # the output at a patch forecasts the next one
        return patches[:, first : first + steps // patch].flatten(1, 2)


def _rows(window: Window) -> TimeSeries:
    """All targets, then all past covariates, then all known ahead, with NaN as missing values."""
    parts, lookback = [], window.target.shape[1]
    ahead = 0 if window.future is None else window.future.shape[1] - lookback
    for role, kind in (("target", 0), ("past", 1), ("future", 2)):
        values = getattr(window, role)
        if values is None:
            continue
        rows = values.to(dtype=torch.float32).mT.flatten(0, 1)  # (B * C, T)
        mask = torch.where(rows.isnan(), 2, 0).to(torch.int8)  # missing, observed
        if role != "future":  # withheld for the steps ahead
            rows, mask = pad(rows, (0, ahead)), pad(mask, (0, ahead), value=4)
        groups = torch.arange(len(window), device=rows.device).repeat_interleave(values.shape[2])
        parts.append(
            (torch.where(mask == 2, 0.0, rows), mask, groups[:, None].expand_as(mask), torch.full_like(mask, kind))
        )
    values, mask, groups, kinds = (torch.cat(column) for column in zip(*parts, strict=True))
    return TimeSeries(values, mask, groups, kinds.long())


def _series(window: Window, horizon: int) -> TimeSeries:
    """One window as the library takes it, for the official call."""
    future = None if window.future is None else window.future.mT
    series = TimeSeries.from_array(window.target.mT, future, horizon=horizon)
    past = TimeSeries.from_array(cast(Tensor, window.past).mT, horizon=horizon)
    kinds = torch.full_like(past.variate_type, VariateType.HISTORICAL)
    fields = zip(
        (series.variates, series.mask, series.group_ids, series.variate_type),
        (past.variates, past.mask, past.group_ids, kinds), strict=True,
    )  # fmt: skip
    return TimeSeries(*(torch.cat(pair) for pair in fields))
