"""Three minimal architectures to train on constructed ground truth: a linear map, a CNN, a vanilla Transformer.

Small on purpose: what is tested is the instrument, not the design of a forecaster. None of them is told where to look.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Tensor, nn

WIDTH = 16
KERNEL = 5
DILATIONS = (1, 2, 4)
HEADS = 2
LAYERS = 1


class Linear(nn.Module):
    """A single map from the lookback to the forecast."""

    def __init__(self, lookback: int, horizon: int):
        super().__init__()
        self.map = nn.Linear(lookback, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, L) -> (B, H)`."""
        y: Tensor = self.map(x)
        return y


class CNN(nn.Module):
    """A stack of dilated temporal convolutions with residual connections, read by one linear head."""

    def __init__(self, lookback: int, horizon: int):
        super().__init__()
        self.embed = nn.Conv1d(1, WIDTH, 1)
        self.blocks = nn.ModuleList(
            nn.Conv1d(WIDTH, WIDTH, KERNEL, padding="same", dilation=dilation) for dilation in DILATIONS
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
    """Self-attention over time steps, one token for each value, read by one linear head."""

    def __init__(self, lookback: int, horizon: int):
        super().__init__()
        self.embed = nn.Linear(1, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(lookback, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH * lookback, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, L) -> (B, H)`."""
        hidden = self.encoder(self.embed(x[..., None]) + self.place)
        y: Tensor = self.head(hidden.flatten(1))
        return y


BACKBONES = MappingProxyType[str, Callable[[int, int], nn.Module]](
    {"linear": Linear, "cnn": CNN, "transformer": Transformer}
)
