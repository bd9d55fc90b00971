"""Multivariate windows, and linear forecasters of several channels."""

import torch

from helpers.tiny import series
from hrx.adapters import Forecaster, Limits, from_module

MULTIVARIATE = Limits(multivariate=True)


def windows(count: int, lookback: int, channels: int) -> torch.Tensor:
    return torch.stack([series(count, lookback, seed) for seed in range(channels)], dim=-1)


def mixing(weight: torch.Tensor) -> Forecaster:
    """`ŷ[h, c] = Σ weight[h, c, t, k] x[t, k]`."""

    class Mixing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(weight.clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.einsum("hctk,btk->bhc", self.weight, x)

    return from_module(Mixing(), limits=MULTIVARIATE, scale="standardised")


def one_channel_per_step(lookback: int = 12, channels: int = 8) -> Forecaster:
    """Step `h` depends on channel `h` only, in all channels of its forecast."""
    weight = torch.zeros(channels, channels, lookback, channels)
    pattern = torch.rand(channels, lookback, generator=torch.Generator().manual_seed(0)) + 0.1
    for h in range(channels):
        weight[h, :, :, h] = pattern / pattern.norm()
    return mixing(weight)
