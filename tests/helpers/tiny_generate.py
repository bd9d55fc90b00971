"""Tiny randomly initialised Timer and TimeMoE checkpoints in the format of the hub, with the keys of its `config.json`.

Weights are larger than the library's own initialisation, so that attention and routing affect the forecast.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def timer(path: Path, seed: int = 0) -> Path:
    from sktime.libs.timer import TimerForPrediction

    torch.manual_seed(seed)
    config = {
        "architectures": ["TimerForPrediction"], "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_timer.TimerConfig",
            "AutoModelForCausalLM": "modeling_timer.TimerForPrediction",
        },
        "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.2, "input_token_len": 96,
        "intermediate_size": 48, "max_position_embeddings": 1000, "model_type": "timer", "num_attention_heads": 4,
        "num_hidden_layers": 2, "output_token_lens": [96], "rope_theta": 10000, "torch_dtype": "float32",
        "transformers_version": "4.40.1", "use_cache": True,
    }  # fmt: skip
    return _save(path, TimerForPrediction, config, torch.float32)


def timemoe(path: Path, seed: int = 0) -> Path:
    from sktime.libs.timemoe import TimeMoeForPrediction

    torch.manual_seed(seed)
    config = {
        "apply_aux_loss": True, "architectures": ["TimeMoeForPrediction"], "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_time_moe.TimeMoeConfig",
            "AutoModelForCausalLM": "modeling_time_moe.TimeMoeForPrediction",
        },
        "hidden_act": "silu", "hidden_size": 16, "horizon_lengths": [1, 8, 32, 64], "initializer_range": 0.4,
        "input_size": 1, "intermediate_size": 32, "max_position_embeddings": 1024, "model_type": "time_moe",
        "num_attention_heads": 2, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 10000, "router_aux_loss_factor": 0.02,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True,
        "use_dense": False,
    }  # fmt: skip
    return _save(path, TimeMoeForPrediction, config, torch.bfloat16)


FAMILIES = {"timer": timer, "timemoe": timemoe}


def edited(path: Path, copy: Path, **changes: Any) -> Path:
    """A copy of a checkpoint with other values in its `config.json`."""
    copy.mkdir()
    config = json.loads((path / "config.json").read_text(encoding="utf-8")) | changes
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (copy / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    return copy


def rotary_tables(positions: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine `(P, W)` of rotary positions by definition, in float64."""
    frequency = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency.repeat(2)
    return angle.cos(), angle.sin()


def _save(path: Path, library_class: Any, config: dict[str, Any], dtype: torch.dtype) -> Path:
    """Without `save_pretrained`, which writes other keys with each release of transformers and drops `auto_map`."""
    model = library_class(library_class.config_class.from_dict(config))
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    weights = {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path
