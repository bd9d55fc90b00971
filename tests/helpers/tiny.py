"""Tiny randomly initialised checkpoints, built with each library's own classes and saved in its official format."""

from pathlib import Path

import torch

from helpers.tiny_moirai import moirai_2

QUANTILES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def chronos_bolt(path: Path, seed: int = 0) -> Path:
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    torch.manual_seed(seed)
    config = T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=1, num_heads=4, dropout_rate=0.0,
        architectures=["ChronosBoltModelForForecasting"], decoder_start_token_id=0, initializer_factor=0.5,
        chronos_config={
            "context_length": 512, "prediction_length": 64, "input_patch_size": 16, "input_patch_stride": 16,
            "quantiles": QUANTILES, "use_reg_token": True,
        },
    )  # fmt: skip
    ChronosBoltModelForForecasting(config).save_pretrained(path)
    return path


def chronos_2(path: Path, seed: int = 0) -> Path:
    from chronos.chronos2 import Chronos2CoreConfig, Chronos2Model

    torch.manual_seed(seed)
    config = Chronos2CoreConfig(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0, initializer_factor=0.5,
        architectures=["Chronos2Model"],
        chronos_config={
            "context_length": 512, "output_patch_size": 16, "input_patch_size": 16, "input_patch_stride": 16,
            "quantiles": QUANTILES, "use_reg_token": True, "use_arcsinh": True, "max_output_patches": 8,
        },
    )  # fmt: skip
    model = Chronos2Model(config)
    with torch.no_grad():  # untrained outputs pass through sinh, which would overflow
        for parameter in model.output_patch_embedding.parameters():
            parameter.mul_(0.05)
    model.save_pretrained(path)
    return path


def ttm(path: Path, seed: int = 0, **changes: object) -> Path:
    from tsfm_public import TinyTimeMixerConfig, TinyTimeMixerForPrediction

    torch.manual_seed(seed)
    config = TinyTimeMixerConfig(
        context_length=512, prediction_length=96, patch_length=64, patch_stride=64, d_model=24, decoder_d_model=16,
        num_layers=2, decoder_num_layers=1, adaptive_patching_levels=2, expansion_factor=2, scaling="std",
        use_decoder=True, gated_attn=True, init_processing=True, **changes,
    )  # fmt: skip
    TinyTimeMixerForPrediction(config).save_pretrained(path)
    return path


FAMILIES = {"chronos-bolt": chronos_bolt, "chronos-2": chronos_2, "ttm": ttm, "moirai-2": moirai_2}


def series(windows: int, lookback: int, seed: int = 0) -> torch.Tensor:
    """`(W, L)`: seasonal windows with noise and a drift, on the standardised scale."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(lookback)
    phase = torch.rand(windows, 1, generator=generator) * 6
    noise = 0.3 * torch.randn(windows, lookback, generator=generator)
    return torch.sin(t / 4 + phase) + 0.3 * torch.cos(t / 37 + phase) + noise + phase / 6


def hard_windows() -> dict[str, torch.Tensor]:
    """`(2, 96)` each: windows on which a statistic is zero, or a scale is far from one."""
    wave = series(2, 96)
    patches = wave.clone()
    patches[:, 32:64] = 0.5
    return {
        "flat": torch.full((2, 96), 3.0),
        "zeros": torch.zeros(2, 96),
        "flat patches": patches,
        "far from zero": wave + 1e4,
        "huge": wave * 1e6,
        "tiny": wave * 1e-6,
    }
