"""Families whose library reads covariates, forecasts several series together, or gives quantiles.

Such a family implements `predict_window` and `official_window`; the calls of plain windows are these two without
covariates. The helpers below are for `predict_window` only: parity must see a mistake in them.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hrx.adapters.checkpoint import CheckpointForecaster
from hrx.adapters.contract import Forecaster
from hrx.adapters.inputs import Column, RoleName, Window


class WindowForecaster(CheckpointForecaster):
    """A checkpoint whose two calls take a `Window`."""

    def multivariate(self) -> Forecaster | None:
        if self.inputs.targets[1] == 1 or self.limits.multivariate:
            return super().multivariate()
        other = copy.copy(self)
        other.limits = replace(self.limits, multivariate=True)
        return other

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self._of_targets(self.predict_window, x, horizon)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        return self._of_targets(self.official_window, x.detach(), horizon)

    def _of_targets(self, call: Callable[[Window, int, Sequence[Column]], Tensor], x: Tensor, horizon: int) -> Tensor:
        """Point forecast `(B, H)` of windows `(B, L)`, or `(B, H, K)` of `(B, L, K)`, without covariates."""
        y = call(Window(x if self.limits.multivariate else x[..., None]), horizon, ["point"])[..., 0]
        return y if self.limits.multivariate else y[..., 0]


def as_levels(columns: Sequence[Column]) -> list[float]:
    """Return the quantile level of each column, where the point forecast is the median."""
    return [0.5 if column == "point" else float(column) for column in columns]


def split(window: Window, role: RoleName) -> tuple[Tensor | None, Tensor | None]:
    """Return a role's channels that hold numbers, and those that hold codes, each `(B, C, T)` or None."""
    values = getattr(window, role)
    if values is None:
        return None, None
    coded = torch.tensor([name in window.categorical for name in window.named(role)])
    numbers, codes = values[..., ~coded].mT, values[..., coded].mT
    return numbers if numbers.shape[1] else None, codes if codes.shape[1] else None


def encode_by_target(codes: Tensor, target: Tensor) -> Tensor:
    """`(B, C, T)`: the smoothed mean of the target `(B, L)` where a channel has the same code, `L <= T`.

    A missing code is a code of its own, a code that the past does not have gets the mean of the window, and missing
    targets do not count. Differentiable in the target.
    """
    known = target.isfinite().to(target.dtype)
    values = torch.where(target.isfinite(), target, 0.0)
    mean = values.sum(dim=1) / known.sum(dim=1).clamp_min(1)
    codes = codes.nan_to_num(nan=-torch.inf)
    same = (codes[..., :, None] == codes[..., None, : target.shape[1]]).to(target.dtype)  # (B, C, T, L)
    sums = torch.einsum("bctl,bl->bct", same, values)
    counts = torch.einsum("bctl,bl->bct", same, known)
    return (mean[:, None, None] + sums) / (1 + counts)
