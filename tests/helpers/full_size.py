"""Checkpoints of released sizes with random weights, which tests and benchmarks share."""

from pathlib import Path

import torch

CHRONOS_2_QUANTILES = [0.01, *(round(0.05 * level, 2) for level in range(1, 20)), 0.99]


def chronos_2(path: Path) -> Path:
    """Chronos-2 as released, 120 million parameters, saved in its official format."""
    from chronos.chronos2 import Chronos2CoreConfig, Chronos2Model

    config = Chronos2CoreConfig(
        d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, dropout_rate=0.0, initializer_factor=0.05,
        architectures=["Chronos2Model"],
        chronos_config={
            "context_length": 8192, "output_patch_size": 16, "input_patch_size": 16, "input_patch_stride": 16,
            "quantiles": CHRONOS_2_QUANTILES, "use_reg_token": True, "use_arcsinh": True, "max_output_patches": 64,
        },
    )  # fmt: skip
    model = Chronos2Model(config)
    with torch.no_grad():  # untrained outputs pass through sinh, which would overflow
        for parameter in model.output_patch_embedding.parameters():
            parameter.mul_(0.05)
    model.save_pretrained(path)
    return path
