"""Tiny randomly initialised checkpoints, built with each library's own classes and saved in its official format."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

from hrx.adapters import Forecaster, GradientPath
from hrx.adapters.gradients import differentiable_input

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


def moirai_2(path: Path, seed: int = 0) -> Path:
    from uni2ts.model.moirai2 import Moirai2Module

    torch.manual_seed(seed)
    # One head is 64 wide, and the release forecasts four patches of 16 steps in one pass.
    module = Moirai2Module(
        d_model=64, d_ff=64, num_layers=1, patch_size=16, max_seq_len=32, attn_dropout_p=0.0, dropout_p=0.0,
        num_predict_token=4,
    )  # fmt: skip
    module.save_pretrained(path)
    return path


FAMILIES = {"chronos-bolt": chronos_bolt, "chronos-2": chronos_2, "ttm": ttm, "moirai-2": moirai_2}


class TinyFamily(NamedTuple):
    """How a tiny checkpoint of a family is built."""

    build: Callable[[Path], Path]
    context: Callable[[], AbstractContextManager[None]] = nullcontext
    """Must be open while the checkpoint is built, loaded and run."""


def families() -> dict[str, TinyFamily]:
    """Families that this environment runs.

    VisionTS needs an environment of its own, and so does `generate`, the official call of Timer and TimeMoE.
    """
    from helpers import tiny_granite, tiny_multivariate, tiny_t0_timestral, tiny_timesfm, tiny_visionts

    if tiny_visionts.importable():
        return {"visionts": TinyFamily(tiny_visionts.visionts, tiny_visionts.tiny_architecture)}
    import transformers

    from helpers import tiny_generate

    generating = {name: TinyFamily(build) for name, build in tiny_generate.FAMILIES.items()}
    if transformers.__version__.startswith("4.40."):
        return generating
    timesfm = {
        "timesfm-2.5": TinyFamily(tiny_timesfm.timesfm_25, tiny_timesfm.small_timesfm_25),
        "timesfm-2.5-hf": TinyFamily(tiny_timesfm.timesfm_25_transformers),
        "timesfm-3": TinyFamily(tiny_timesfm.timesfm_3),
    }
    plain = FAMILIES | tiny_granite.FAMILIES | tiny_multivariate.FAMILIES | tiny_t0_timestral.FAMILIES
    return {name: TinyFamily(build) for name, build in plain.items()} | timesfm | generating


def series(windows: int, lookback: int, seed: int = 0) -> torch.Tensor:
    """`(W, L)`: seasonal windows with noise and a drift, on the standardised scale."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(lookback)
    phase = torch.rand(windows, 1, generator=generator) * 6
    noise = 0.3 * torch.randn(windows, lookback, generator=generator)
    return torch.sin(t / 4 + phase) + 0.3 * torch.cos(t / 37 + phase) + noise + phase / 6


HARD = ("flat", "zeros", "one of two flat", "flat patches", "far from zero", "huge", "tiny")


def hard_windows(lookback: int = 96) -> dict[str, torch.Tensor]:
    """`(2, L)` by the names in `HARD`: windows with a statistic of zero or a scale far from one."""
    wave = series(2, lookback)
    patches, one_flat = wave.clone(), wave.clone()
    patches[:, lookback // 3 : 2 * lookback // 3] = 0.5
    one_flat[0] = 3.0
    windows = (torch.full_like(wave, 3.0), wave * 0, one_flat, patches, wave + 1e4, wave * 1e6, wave * 1e-6)
    return dict(zip(HARD, windows, strict=True))


def forecast_and_gradient(model: Forecaster, x: torch.Tensor, horizon: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Forecast `(B, H)`, and the gradient `(B, L)` of the sum of its values that are not NaN."""
    with GradientPath():
        leaf, working = differentiable_input(x)
        y = model.forward(working, horizon)
        assert y.requires_grad
        return y.detach(), torch.autograd.grad(y.nansum(), leaf)[0]
