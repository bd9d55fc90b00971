"""Checkpoints of the released sizes with random weights: recognised, loaded and admitted at 96x24.

They need up to 3 GB of memory and minutes each: `make full-size` runs them one at a time.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import tiny_multivariate, tiny_timesfm
from helpers.full_size import chronos_2
from helpers.tiny import series

from hrx.adapters import locate
from hrx.audit.admission import admit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("HRX_FULL_SIZE"),
        reason="HRX_FULL_SIZE is not set: make full-size runs checkpoints of released sizes",
    ),
]


def moirai_2(path: Path) -> Path:
    from uni2ts.model.moirai2 import Moirai2Module

    Moirai2Module(
        d_model=384, d_ff=1024, num_layers=6, patch_size=16, max_seq_len=512, attn_dropout_p=0.0, dropout_p=0.0,
        num_predict_token=4, scaling=True,
    ).save_pretrained(path)  # fmt: skip
    return path


def timesfm_25(path: Path) -> Path:
    from timesfm import TimesFM_2p5_200M_torch

    model = TimesFM_2p5_200M_torch(torch_compile=False)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if name.endswith("scale") and "per_dim" not in name:  # a norm starts at zero, which disables its layer
                parameter.fill_(1.0)
    model.save_pretrained(path)
    (path / "config.json").write_text(json.dumps(tiny_timesfm.HUB_CONFIG_25), encoding="utf-8")
    return path


def t0(path: Path) -> Path:
    from t0 import T0Config, T0Forecaster

    T0Forecaster.from_config(T0Config.large()).save_pretrained(path)
    return path


def timesfm_25_hf(path: Path) -> Path:
    from transformers import TimesFm2_5Config, TimesFm2_5ModelForPrediction

    TimesFm2_5ModelForPrediction(TimesFm2_5Config()).save_pretrained(path)
    return path


def ttm(path: Path) -> Path:
    from tsfm_public import TinyTimeMixerConfig, TinyTimeMixerForPrediction

    config = TinyTimeMixerConfig(
        context_length=512, prediction_length=96, patch_length=64, patch_stride=64, d_model=192, decoder_d_model=128,
        num_layers=2, decoder_num_layers=2, adaptive_patching_levels=3, expansion_factor=2, scaling="std",
        use_decoder=True, gated_attn=True, decoder_adaptive_patching_levels=0,
    )  # fmt: skip
    TinyTimeMixerForPrediction(config).save_pretrained(path)
    return path


def flowstate(path: Path) -> Path:
    from tsfm_public import FlowStateConfig, FlowStateForPrediction

    FlowStateForPrediction(FlowStateConfig()).save_pretrained(path)
    return path


def patchtst_fm(path: Path) -> Path:
    from tsfm_public import PatchTSTFMConfig, PatchTSTFMForPrediction

    # The release states width, patch, quantiles, context and parameters; twenty layers have that many.
    config = PatchTSTFMConfig(context_length=8192, d_model=1024, n_head=16, n_layer=20, num_quantile=99)
    PatchTSTFMForPrediction(config).save_pretrained(path)
    return path


def tirex_2(path: Path) -> Path:
    # Twelve blocks of this width have the published 38.4 M parameters, and 44.1 M more for channels.
    width, patch = 512, 32
    mixer = {"embedding_dim": width, "num_heads": 4}
    time_mixer = mixer | {"num_slstm_heads": 4}
    block = {"variate_mixer": mixer, "dropout": 0.1, "eps": 1e-7}
    templates = {kind: block | {"time_mixer": time_mixer | {"model_type": f"bi-{kind}"}} for kind in ("mlstm", "slstm")}
    return tiny_multivariate.tirex_2(
        path, stack_config={"templates": templates, "recipe": ["mlstm", "slstm"] * 6}, num_blocks=12,
        embedding_dim=width, h_expand=4, input_ff_dim=2048, context_len=2048, future_len=320, input_patch_size=patch,
        output_patch_size=patch,
        tokenizer_cfg={"output_patch_size": patch, "input_patch_size": patch, "input_patch_stride": patch},
    )  # fmt: skip


def toto_2(path: Path) -> Path:
    """Configuration of Toto-2.0-22m."""
    return tiny_multivariate.toto_2(
        path, patch_size=32, d_model=512, d_ff=1368, num_heads=8, num_groups=8, qk_dim=64, v_dim=64, num_layers=6,
        layer_group_size=6, norm_eps=1e-4, residual_attn_ratio=5.136215466577748,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("family", "build", "millions"),
    [
        ("ttm", ttm, 0.8),
        ("t0", t0, 256),
        ("flowstate", flowstate, 9.07),
        ("patchtst-fm", patchtst_fm, 260),
        ("moirai-2", moirai_2, 11),
        ("chronos-2", chronos_2, 120),
        ("timesfm-2.5", timesfm_25, 231),
        ("timesfm-2.5-hf", timesfm_25_hf, 231),
        ("tirex-2", tirex_2, 82.5),
        ("toto-2", toto_2, 22),
    ],
)
def test_a_checkpoint_of_the_released_size_is_recognised_and_admitted(
    family: str, build: Callable[[Path], Path], millions: float, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    located = locate(str(build(tmp_path / "released")))
    assert located.identity.family == family
    model = located.load()
    count = sum(parameter.numel() for parameter in model.module.parameters())  # type: ignore[attr-defined]
    assert count / 1e6 == pytest.approx(millions, rel=0.1)
    checks = admit(model, series(1, 96), 24)
    assert [check for check in checks if not check.passed] == []
