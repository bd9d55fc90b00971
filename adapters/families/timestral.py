"""Timestral (`timecopilot-timestral`): a causal transformer over patches that forecasts 21 quantiles.

`predict` runs the pass beneath the public call, which runs in inference mode, and repeats the two adjustments that are
on by default: the forecast of the negated window is subtracted (symmetric averaging), and a window without negative
values gets a forecast without negative values.

A patch is divided by the standard deviation of everything up to its end, and by no less than 1e-6: a window that starts
flat has true gradients of up to a million times the usual size there.
"""

from typing import Any

import torch
from timestral import TimestralForecaster
from torch import Tensor

from hrx.adapters.checkpoint import ChannelForecaster
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard

FAMILY = Family(
    "timestral", f"{__name__}:Timestral", "timecopilot-timestral", "timestral",
    promises=("sign",),  # symmetric averaging, on by default
    config_keys=("block_schedule", "block_size", "quantile_knots"),
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


class Timestral(ChannelForecaster):
    """Median of a Timestral checkpoint; the channels of a window are variates of one series."""

    official_call = "TimestralForecaster.forecast"
    module_attribute = "model"

    def open_library(self) -> Any:
        library = TimestralForecaster.from_pretrained(self.checkpoint.path, device="cpu")
        levels = library.quantile_levels
        if any(abs(low + high - 1) > 1e-9 for low, high in zip(levels, reversed(levels), strict=True)):
            raise ModelError(
                f"{self.checkpoint.name} forecasts the quantiles {levels}, which are not symmetric about the median: "
                "its library cannot average them with those of the negated window."
            )
        return library

    def read_limits(self) -> Limits:
        return Limits(longest_lookback=self.library.max_context)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        series = self.to_series(x.to(dtype=torch.float32))
        observed = series.isfinite()
        known = torch.where(observed, series, 0.0)
        y = (self._median(known, observed, horizon) - self._median(-known, observed, horizon)) / 2
        nonnegative = observed.any(dim=-1) & (known >= 0).all(dim=-1)
        return self.from_series(torch.where(nonnegative[..., None], y.clamp_min(0), y))

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        windows = x.detach().mT if self.limits.multivariate else x.detach()
        median: Tensor = self.library.forecast(windows, horizon).median
        # A copy outside of inference mode can be used like any tensor.
        return (median.mT if self.limits.multivariate else median.squeeze(1)).clone()

    def _median(self, known: Tensor, observed: Tensor, horizon: int) -> Tensor:
        """`(B, C, L) -> (B, C, H)`: the median of one pass of the library, without its adjustments."""
        quantiles: Tensor = self.library._forecast_raw(known, observed, horizon)
        return quantiles[..., self.library.median_index]
