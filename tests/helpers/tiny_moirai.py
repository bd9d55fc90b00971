"""A tiny randomly initialised Moirai-2.0 checkpoint, built with uni2ts's own class and saved in its official format."""

from pathlib import Path

import torch


def moirai_2(path: Path, seed: int = 0) -> Path:
    from uni2ts.model.moirai2 import Moirai2Module

    torch.manual_seed(seed)
    # One head is 64 wide, and the release makes four patches of 16 steps in one pass.
    module = Moirai2Module(
        d_model=64, d_ff=64, num_layers=1, patch_size=16, max_seq_len=32, attn_dropout_p=0.0, dropout_p=0.0,
        num_predict_token=4,
    )  # fmt: skip
    module.save_pretrained(path)
    return path
