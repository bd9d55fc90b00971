"""A tiny VisionTS checkpoint in the official format, and the import of `visionts` beside a CPU-only torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

ARCHITECTURE = "mae_tiny"
FILE = "mae_visualize_vit_tiny.pth"


def importable() -> bool:
    """Whether `visionts` is installed; if so, torchvision is imported, with its operators declared if necessary."""
    if find_spec("visionts") is None:
        return False
    _import_torchvision()
    return True


@contextmanager
def tiny_architecture() -> Iterator[None]:
    """Registers the file name of the tiny autoencoder with the library, for building and for loading."""
    from visionts.model import MAE_ARCH

    MAE_ARCH[ARCHITECTURE] = [_autoencoder, FILE]
    try:
        yield
    finally:
        del MAE_ARCH[ARCHITECTURE]


def visionts(path: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    path.mkdir(parents=True, exist_ok=True)
    torch.save({"model": _autoencoder().state_dict()}, path / FILE)
    return path


def _autoencoder(embed_dim: int = 32) -> torch.nn.Module:
    """As many patches as `mae_base`, each a quarter of the size, and a narrow network."""
    from visionts.models_mae import MaskedAutoencoderViT

    return MaskedAutoencoderViT(
        img_size=112, patch_size=8, embed_dim=embed_dim, depth=2, num_heads=4, mlp_ratio=2,
        decoder_embed_dim=32, decoder_depth=1, decoder_num_heads=4,
    )  # fmt: skip


def _import_torchvision() -> None:
    """torchvision's compiled operators need another build of torch; declared without a body they allow the import."""
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
        import_module("torchvision")
