"""Copies of the embedded checkpoint with noise on its weights."""

import shutil
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def noisy_bolt_mini(folder: Path, percent: int, seed: int = 0) -> Path:
    """A checkpoint in `folder` whose weights have noise of `percent` % of each tensor's standard deviation."""
    weights = Path(str(files("hrx.adapters") / "bolt_mini"))
    noisy = folder / f"noise{percent}"
    noisy.mkdir(parents=True)
    shutil.copy(weights / "config.json", noisy)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: tensor + percent / 100 * tensor.std(correction=0) * torch.randn(tensor.shape, generator=generator)
        for name, tensor in load_file(weights / "model.safetensors").items()
    }
    save_file(tensors, noisy / "model.safetensors", metadata={"format": "pt"})
    return noisy
