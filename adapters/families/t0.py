"""T0 (`tfc-t0`): a causal transformer over patches that forecasts quantiles, up to 1024 steps in one pass.

The audited forecast is the median of the public call with its defaults; the publisher's scores use four adjustments
that are off by default. Beyond one pass every requested level is fed back as a path of its own, so the median depends
on the levels. `predict` makes the forecast from the library's parts: its rollout around one pass of scaler and model.
"""

from contextlib import redirect_stdout
from typing import Any

import torch
from t0 import T0Forecaster, TimeSeries
from t0.levels import get_rollout_quantile_levels
from t0.quantile import sanitize_predictions
from t0.rollout import rollout
from torch import Tensor

from hrx.adapters.checkpoint import ChannelForecaster
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard

FAMILY = Family(
    "t0", f"{__name__}:T0", "tfc-t0", "t0", also=("rotary-embedding-torch",),
    config_keys=("embed_dim", "group_every_n", "mlp_hidden_dim", "quantile_levels"),
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


class T0(ChannelForecaster):
    """Median of a T0 checkpoint; the channels of a window are variates of one series."""

    official_call = "T0Forecaster.predict"

    def open_library(self) -> Any:
        with redirect_stdout(None):  # the loader prints, and standard output is for results
            module = T0Forecaster.from_pretrained(self.checkpoint.path)
        levels = module.config.quantile_levels
        if not levels[0] <= 0.5 <= levels[-1]:
            raise ModelError(
                f"{self.checkpoint.name} forecasts the quantiles {levels}, which do not enclose the median."
            )
        # A static method that the library keeps on the object and does not use: it cannot be copied.
        vars(module.transformer.rotary_emb).pop("apply_rotary_emb", None)
        return module

    def read_limits(self) -> Limits:
        return Limits()  # it reads windows of any length, and continues beyond one pass

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        patch, longest_pass = self.module.patch_size, self.module.max_horizon
        trained = self.module.config.quantile_levels
        levels = get_rollout_quantile_levels(trained, LEVELS)
        series = self.to_series(x.to(dtype=torch.float32))  # NaN is a missing value
        rows = TimeSeries.from_array(series)
        quantiles = rollout(rows, self._pass, horizon, x.shape[1], patch, longest_pass, trained, levels)
        medians: Tensor = sanitize_predictions(quantiles)[..., levels.index(0.5)]
        return self.from_series(medians.reshape(*series.shape[:2], horizon))

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        windows = x.detach().mT if self.limits.multivariate else x.detach()
        median: Tensor = self.module.predict(windows, horizon).median
        # A copy outside of inference mode can be used like any tensor.
        return (median.mT if self.limits.multivariate else median).clone()

    def _pass(self, window: TimeSeries, steps: int) -> Tensor:
        """Quantiles `(rows, steps, Q)` of the last `steps` of a window, both whole patches."""
        scaler, patch = self.module.scaler, self.module.patch_size
        scaled, statistics = scaler.scale_input(window)
        patches: Tensor = scaler.rescale_predictions(self.module(scaled), statistics, patch)
        first = (window.seq_len - steps) // patch - 1  # the output at a patch forecasts the next one
        return patches[:, first : first + steps // patch].flatten(1, 2)
