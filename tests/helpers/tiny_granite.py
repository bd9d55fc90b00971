"""Tiny randomly initialised checkpoints of the families of `granite-tsfm`, saved by the library's own classes."""

from pathlib import Path
from typing import Any

import torch

from helpers import tiny


def ttm_r3(path: Path, seed: int = 0) -> Path:
    return tiny.ttm(
        path, seed, multi_scale=True, register_tokens=2, fft_length=4, multi_quantile_head=True,
        mq_use_decoder_pool=True,
    )  # fmt: skip


def ttm_decomposed(path: Path, seed: int = 0) -> Path:
    from tsfm_public import TinyTimeMixerConfig, TinyTimeMixerForDecomposedPrediction

    torch.manual_seed(seed)
    config = TinyTimeMixerConfig(
        context_length=512, prediction_length=96, patch_length=32, patch_stride=32, d_model=16, decoder_d_model=8,
        num_layers=1, decoder_num_layers=1, adaptive_patching_levels=0, expansion_factor=2, scaling="std",
        use_decoder=True, gated_attn=True, init_processing=True, multi_quantile_head=True, mq_use_decoder_pool=True,
        multi_scale=True, register_tokens=2, decompose=True, residual_context_length=256, trend_patch_length=64,
        trend_patch_stride=64,
    )  # fmt: skip
    TinyTimeMixerForDecomposedPrediction(config).save_pretrained(path)
    return path


def patchtst_fm(path: Path, seed: int = 0, **changes: Any) -> Path:
    from tsfm_public import PatchTSTFMConfig, PatchTSTFMForPrediction

    torch.manual_seed(seed)
    settings: dict[str, Any] = {"d_patch": 16, "d_model": 32, "n_head": 4, "n_layer": 2, "num_quantile": 99}
    config = PatchTSTFMConfig(context_length=1024, prediction_length=64, **(settings | changes))
    PatchTSTFMForPrediction(config).save_pretrained(path)
    return path


def patchtst_fm_r2(path: Path, seed: int = 0) -> Path:
    return patchtst_fm(
        path, seed, patch_stride=8, patch_loss_windowing="hamming", block_type="conformer", conv_kernel_size=3,
        mlp_type="swiglu", prehead_norm=True, num_quantile=9,
    )  # fmt: skip


def flowstate(path: Path, seed: int = 0) -> Path:
    from tsfm_public import FlowStateConfig, FlowStateForPrediction

    torch.manual_seed(seed)
    config = FlowStateConfig(
        context_length=1024, embedding_feature_dim=32, encoder_num_layers=2, encoder_state_dim=32,
        encoder_num_hippo_blocks=4, decoder_patch_len=24, decoder_dim=32, decoder_type="legs",
    )  # fmt: skip
    FlowStateForPrediction(config).save_pretrained(path)
    return path


FAMILIES = {"patchtst-fm": patchtst_fm_r2, "flowstate": flowstate, "ttm-decomposed": ttm_decomposed}
"""One checkpoint of each adapter; the other builders change the architecture and not the adapter's code."""
