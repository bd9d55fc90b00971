"""A linear forecaster of several targets that reads covariates of every role; its rows are its weights."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from hrx.adapters.contract import Convert, Forecaster, Identity, Limits
from hrx.adapters.inputs import Column, Inputs, Outputs, Role, Window


class LinearChannels(Forecaster):
    """`ŷ[h, k] = Σ w[k, h, position] x[position]` over all channels; the level q adds `q · (1 + h)`.

    `weights[role]` is `(K, H, channels, length)`; change them to plant what is read.
    """

    official_call = "matmul"

    def __init__(self, lookback: int, horizon: int, targets: int = 1, past: int = 0, future: int = 0, static: int = 0):
        self.identity = Identity("linear-channels", "helpers", "generated", fingerprint="0" * 64, library="torch")
        self.limits = Limits()
        optional = Role("optional", categorical="native", missing="zero")
        self.inputs = Inputs((1, None), optional, optional, optional)
        self.outputs = Outputs((0.1, 0.5, 0.9), interpolates=True, point="median")
        draw = torch.Generator().manual_seed(1)
        channels = {
            "target": (targets, lookback), "past": (past, lookback), "future": (future, lookback + horizon),
            "static": (static, 1),
        }  # fmt: skip
        self.weights = {
            role: torch.randn(targets, horizon, *shape, generator=draw, dtype=torch.float64)
            for role, shape in channels.items() if shape[0]
        }  # fmt: skip

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self.predict_window(Window(x[..., None]), horizon, ["point"])[..., 0, 0]

    def official(self, x: Tensor, horizon: int) -> Tensor:
        return self.official_window(Window(x[..., None]), horizon, ["point"])[..., 0, 0]

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        parts = [
            torch.einsum("khcl,blc->bhk", self.weights[role].to(values), _with_time(values).nan_to_num())
            for role, values in window.roles()
        ]
        return torch.stack([torch.stack(parts).sum(dim=0) + self._level(column, horizon) for column in columns], dim=-1)

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        together = torch.cat([_with_time(values).nan_to_num().mT.flatten(1) for _, values in window.roles()], dim=1)
        weights = torch.cat([self.weights[role].flatten(2) for role, _ in window.roles()], dim=2).to(together)
        y = torch.stack([together @ one.T for one in weights], dim=-1)
        return torch.stack([y + self._level(column, horizon) for column in columns], dim=-1)

    def _level(self, column: Column, horizon: int) -> Tensor:
        level = column if isinstance(column, float) else 0.5
        return ((level - 0.5) * torch.arange(1, horizon + 1))[:, None]

    def converted(self, convert: Convert) -> Self:
        return self


def _with_time(values: Tensor) -> Tensor:
    return values[:, None] if values.ndim == 2 else values
