"""Tiny randomly initialised checkpoints of TiRex-2 and Toto-2, in the format that each library reads."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from helpers.tiny import QUANTILES


def tirex_2_config(**changes: Any) -> dict[str, Any]:
    """Content of a `config.json` with one block of each kind."""
    width, patch = 32, 32
    block = {
        "variate_mixer": {"embedding_dim": width, "num_heads": 2},
        "dropout": 0.1,
        "eps": 1e-7,
    }
    mixer = {"embedding_dim": width, "num_heads": 2, "num_slstm_heads": 2}
    templates = {kind: block | {"time_mixer": mixer | {"model_type": f"bi-{kind}"}} for kind in ("mlstm", "slstm")}
    return {
        "stack_config": {"templates": templates, "recipe": ["mlstm", "slstm"]},
        "num_blocks": 2,
        "embedding_dim": width,
        "input_patch_size": patch,
        "output_patch_size": patch,
        "quantiles": QUANTILES,
        "tokenizer_cfg": {"output_patch_size": patch, "input_patch_size": patch, "input_patch_stride": patch},
        "scaler_cfg": {"use_arcsinh": True, "binaryaware": True},
        "h_expand": 2,
        "context_len": 512,
        "future_len": 256,
        "input_ff_dim": 48,
        "act_func": "SiLU",
        "dropout": 0.1,
        "stack_out_norm_config": {"eps": 1e-7},
        "tta_sign_flip": True,
        "tta_diff": True,
    } | changes


def tirex_2(path: Path, seed: int = 0, **changes: Any) -> Path:
    from tirex2 import TiRex2
    from tirex2._state_dict import shared_tensor_groups

    config = tirex_2_config(**changes)
    torch.manual_seed(seed)
    model = TiRex2(**config, device="cpu")
    # The file holds a tensor that has several names under the first of them, as the library's converter writes it.
    aliases = {name for group in shared_tensor_groups(model) for name in group[1:]}
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in aliases}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def toto_2(path: Path, seed: int = 0, **changes: Any) -> Path:
    from toto2 import Toto2Model, Toto2ModelConfig

    # The switches are those of the releases; the widths are not.
    settings: dict[str, Any] = {
        "patch_size": 16, "d_model": 32, "num_heads": 2, "num_layers": 2, "layer_group_size": 2,
        "num_variate_layers_per_group": 1, "variate_layer_first": False, "attn_bias": True, "qk_norm": False,
        "per_dim_scale": True, "use_xpos": True, "residual_mult": 0.75, "residual_attn_ratio": 2.0,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = Toto2Model(Toto2ModelConfig(**(settings | changes)))
    with torch.no_grad():  # biases start at zero, with which all quantiles of a flat window are one
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(std=0.5)
    model.save_pretrained(path)
    return path


FAMILIES = {"tirex-2": tirex_2, "toto-2": toto_2}
