"""Tiny randomly initialised checkpoints of T0 and Timestral, saved in the official format of each."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

LEVELS_21 = (0.01, *(round(0.05 * level, 2) for level in range(1, 20)), 0.99)


def t0(path: Path, seed: int = 0, **changes: Any) -> Path:
    """Conventions of `t0-beta`; other ones by `changes` of its configuration."""
    from t0 import T0Config, T0Forecaster

    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "embed_dim": 32, "num_layers": 2, "num_heads": 4, "mlp_hidden_dim": 48, "patch_size": 32, "group_every_n": 2,
        "dropout": 0.1, "quantile_levels": LEVELS_21, "scaler_eps": 0.01, "scaler_eps_mode": "std_clamp",
    }  # fmt: skip
    model = T0Forecaster.from_config(T0Config(**(settings | changes)))
    with torch.no_grad():  # untrained gaps between quantiles add up to values that overflow in sinh
        gaps = model.decoder.mlp.output_layer.bias.view(model.patch_size, -1)[:, 1:]
        gaps -= 3.0
    model.save_pretrained(path)
    return path


def timestral(path: Path, seed: int = 0, **changes: Any) -> Path:
    from timestral import TimestralConfig, TimestralModel

    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "patch_size": 32, "d_model": 32, "num_heads": 4, "mlp_hidden_dim": 48,
        "block_schedule": ("time", "time_variate"), "quantile_knots": LEVELS_21,
        "block_size": 2, "context_length": 1024,
    }  # fmt: skip
    config = TimestralConfig(**(settings | changes))
    path.mkdir(parents=True)
    config.save(path / "config.json")
    save_file(TimestralModel(config).state_dict(), path / "model.safetensors", metadata={"format": "pt"})
    return path


FAMILIES = {"t0": t0, "timestral": timestral}
