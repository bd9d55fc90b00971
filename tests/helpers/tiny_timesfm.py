"""Tiny randomly initialised TimesFM checkpoints, saved in the official format by the library's own classes.

The `config.json` of TimesFM-2.5 has no size: the architecture is an attribute of its class. `small_timesfm_25` replaces
it and must be open while such a checkpoint is built, loaded and run.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file

WIDTH = 32
QUANTILES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]

RELEASED_CONFIG_25 = {
    "architectures": ["TimesFmModelForPrediction"], "model_type": "timesfm", "context_length": 16384,
    "horizon_length": 128, "patch_length": 32, "quantile_horizon_length": 1024, "quantiles": QUANTILES,
    "torch_compile": True,
}  # fmt: skip
"""Keys of the released `config.json`, from secondary sources. The library reads only `torch_compile`."""

HUB_CONFIG_25 = {
    "context_length": 16384, "decode_index": 5, "force_flip_invariance": True, "head_dim": 80, "hidden_size": 1280,
    "horizon_length": 128, "infer_is_positive": True, "intermediate_size": 1280, "model_type": "timesfm2_5",
    "num_attention_heads": 16, "num_hidden_layers": 20, "output_quantile_len": 1024, "patch_length": 32,
    "quantiles": QUANTILES,
}  # fmt: skip
"""Keys of transformers' class, which the release in Google's format has as well."""


@contextmanager
def small_timesfm_25() -> Iterator[None]:
    """TimesFM-2.5 with the released patch lengths, and everything else small."""
    import pytest
    from timesfm.configs import ResidualBlockConfig, StackedTransformersConfig, TransformerConfig
    from timesfm.timesfm_2p5.timesfm_2p5_base import TimesFM_2p5_200M_Definition
    from timesfm.timesfm_2p5.timesfm_2p5_torch import TimesFM_2p5_200M_torch_module

    def block(inputs: int, outputs: int, bias: bool) -> ResidualBlockConfig:
        return ResidualBlockConfig(
            input_dims=inputs, hidden_dims=WIDTH, output_dims=outputs, use_bias=bias, activation="swish"
        )

    class Small(TimesFM_2p5_200M_Definition):
        context_limit = 1024  # not a field of the dataclass, so not an argument

    transformer = TransformerConfig(
        model_dims=WIDTH, hidden_dims=WIDTH, num_heads=2, attention_norm="rms", feedforward_norm="rms", qk_norm="rms",
        use_bias=False, use_rotary_position_embeddings=True, ff_activation="swish", fuse_qkv=True,
    )  # fmt: skip
    small = Small(
        output_quantile_len=256,
        tokenizer=block(64, WIDTH, bias=True),
        stacked_transformers=StackedTransformersConfig(num_layers=2, transformer=transformer),
        output_projection_point=block(WIDTH, 128 * 10, bias=False),
        output_projection_quantiles=block(WIDTH, 256 * 10, bias=False),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimesFM_2p5_200M_torch_module, "config", small)
        yield


def timesfm_25(path: Path, seed: int = 0) -> Path:
    from timesfm import TimesFM_2p5_200M_torch

    torch.manual_seed(seed)
    with small_timesfm_25():
        model = TimesFM_2p5_200M_torch(torch_compile=False)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if name.endswith("scale") and "per_dim" not in name:  # a norm starts at zero, which disables its layer
                parameter.fill_(1.0)
    model.save_pretrained(path)
    (path / "config.json").write_text(json.dumps(RELEASED_CONFIG_25), encoding="utf-8")
    return path


def timesfm_3(path: Path, seed: int = 0) -> Path:
    from timesfm3.torch import ResidualBlockConfig, StackedTransformersConfig, TimesFM3Torch, TransformerConfig

    torch.manual_seed(seed)
    transformer = TransformerConfig(
        model_dims=WIDTH, hidden_dims=WIDTH, num_heads=2, attention_norm="rms", feedforward_norm="rms", qk_norm="rms",
        use_bias=False, use_rope_seq=True, use_rope_var=False, ff_activation="relu", deterministic=True,
    )  # fmt: skip
    TimesFM3Torch(
        residual_block_config=ResidualBlockConfig(
            hidden_dims=WIDTH, output_dims=WIDTH, use_bias=False, activation="relu"
        ),
        transformer_config=StackedTransformersConfig(num_layers=2, transformer=transformer),
    ).save_pretrained(path)
    return path


def timesfm_25_transformers(path: Path, seed: int = 0) -> Path:
    """Weights of `timesfm_25(seed)` in the format of transformers, saved by its own class."""
    from transformers import TimesFm2_5Config, TimesFm2_5ModelForPrediction

    with tempfile.TemporaryDirectory() as folder:
        google = load_file(timesfm_25(Path(folder) / "google", seed) / "model.safetensors")
    sizes = {
        "context_length": 1024, "num_hidden_layers": 2, "hidden_size": WIDTH, "intermediate_size": WIDTH,
        "head_dim": WIDTH // 2, "num_attention_heads": 2, "num_key_value_heads": 2, "output_quantile_len": 256,
    }  # fmt: skip
    model = TimesFm2_5ModelForPrediction(TimesFm2_5Config(**sizes))
    model.load_state_dict(transformers_names(google))
    model.save_pretrained(path)
    return path


_TRANSFORMERS_NAMES = {
    "tokenizer": "model.input_ff_layer", "hidden_layer": "input_layer", "stacked_xf": "model.layers",
    "attn.out": "self_attn.o_proj", "attn.query_ln.scale": "self_attn.q_norm.weight",
    "attn.key_ln.scale": "self_attn.k_norm.weight", "attn.per_dim_scale.per_dim_scale": "self_attn.scaling",
    "ff0": "mlp.fc1", "ff1": "mlp.fc2", "pre_attn_ln.scale": "input_layernorm.weight",
    "post_attn_ln.scale": "post_attention_layernorm.weight", "pre_ff_ln.scale": "pre_feedforward_layernorm.weight",
    "post_ff_ln.scale": "post_feedforward_layernorm.weight",
}  # fmt: skip


def transformers_names(google: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Google's tensors under the names of transformers; queries, keys and values are one tensor in Google's format."""
    converted = {}
    for name, tensor in google.items():
        for theirs, ours in _TRANSFORMERS_NAMES.items():
            name = name.replace(theirs, ours)
        if name.endswith("attn.qkv_proj.weight"):
            for part, weight in zip("qkv", tensor.chunk(3), strict=True):
                converted[name.replace("attn.qkv_proj", f"self_attn.{part}_proj")] = weight.contiguous()
        else:
            converted[name] = tensor
    return converted
