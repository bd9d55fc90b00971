"""Backbones that hrx holds itself: a linear map, a small convolutional network, a Transformer to calibrate with.

`hrx train` writes them as `config.json` and `model.safetensors`; `BackboneForecaster` opens such a directory. Other
backbones are classes of a library, which saves and opens them itself.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hrx.adapters.checkpoint import CheckpointForecaster
from hrx.adapters.contract import Limits, model_errors
from hrx.adapters.families import Family
from hrx.adapters.formats.trained import training_scale

FAMILY = Family(
    "hrx-trained", f"{__name__}:BackboneForecaster", "torch",
    config_keys=("hrx_trained", "backbone", "lookback", "horizon"),
)  # fmt: skip
WIDTH = 16


class CNN(nn.Module):
    """A stack of dilated temporal convolutions with residual connections, followed by one linear head."""

    def __init__(self, lookback: int, horizon: int, depth: int = 3):
        super().__init__()
        self.embed = nn.Conv1d(1, WIDTH, 1)
        self.blocks = nn.ModuleList(
            nn.Conv1d(WIDTH, WIDTH, 5, padding="same", dilation=2**place) for place in range(depth)
        )
        self.head = nn.Linear(WIDTH * lookback, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, L) -> (B, H)`."""
        hidden = self.embed(x[:, None, :])
        for block in self.blocks:
            hidden = hidden + nn.functional.gelu(block(hidden))
        y: Tensor = self.head(hidden.flatten(1))
        return y


class Transformer(nn.Module):
    """Self-attention over time steps, one token for each value, followed by one linear head."""

    def __init__(self, lookback: int, horizon: int):
        super().__init__()
        self.embed = nn.Linear(1, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(lookback, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH * lookback, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, L) -> (B, H)`."""
        hidden = self.encoder(self.embed(x[..., None]) + self.position)
        y: Tensor = self.head(hidden.flatten(1))
        return y


OWN: MappingProxyType[str, type[nn.Module]] = MappingProxyType({"Linear": nn.Linear, "CNN": CNN})
"""Those of `hrx train`, by name: each is built as `(lookback, horizon)`, the CNN also with `depth`."""


def build(config: dict[str, Any]) -> nn.Module:
    """Module of a `config.json`, with random weights."""
    more = {"depth": config["depth"]} if config.get("depth") else {}
    return OWN[config["backbone"]](config["lookback"], config["horizon"], **more)


class BackboneForecaster(CheckpointForecaster):
    """A backbone of hrx at the lookback and horizon that it was trained for."""

    official_call = "the layers by their formulas"

    def open_library(self) -> nn.Module:
        what = f"{self.checkpoint.path} does not hold a backbone of hrx train"
        with model_errors(what, "Train it again.", LookupError, TypeError, RuntimeError):
            module = build(self.checkpoint.config)
            module.load_state_dict(load_file(self.checkpoint.weights[0]))
        return module

    def prepare(self) -> None:
        self.scale = training_scale(self.checkpoint.path) or "standardised"

    def read_limits(self) -> Limits:
        lookback, horizon = self.checkpoint.config["lookback"], self.checkpoint.config["horizon"]
        return Limits(lookback, lookback, lookbacks=(lookback,), longest_horizon=horizon)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        y: Tensor = self.module(x)[:, :horizon]
        return y

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        weights = {name: tensor.to(x.dtype) for name, tensor in self.module.state_dict().items()}
        formula = _FORMULAS[self.checkpoint.config["backbone"]]
        with torch.inference_mode():
            y = formula(x.detach(), weights)[:, :horizon]
        return y.clone()


def _linear(x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """`(B, L) -> (B, H)` from the weights of `nn.Linear`."""
    return x @ weights["weight"].T + weights["bias"]


def _cnn(x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """`(B, L) -> (B, H)` from the weights of `CNN`, without its modules: a mistake there must not be here too."""
    hidden = weights["embed.weight"][:, 0] * x[:, None, :] + weights["embed.bias"][:, None]
    place = 0
    while (kernel := weights.get(f"blocks.{place}.weight")) is not None:
        apart = 2**place
        margin = apart * (kernel.shape[2] // 2)
        padded = nn.functional.pad(hidden, (margin, margin))
        inner = nn.functional.conv1d(padded, kernel, weights[f"blocks.{place}.bias"], dilation=apart)
        hidden = hidden + inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        place += 1
    return hidden.reshape(len(x), -1) @ weights["head.weight"].T + weights["head.bias"]


_FORMULAS: MappingProxyType[str, Callable[[Tensor, Mapping[str, Tensor]], Tensor]]
_FORMULAS = MappingProxyType({"Linear": _linear, "CNN": _cnn})
"""By backbone: the forecast from its weights alone, which parity compares with the module."""
