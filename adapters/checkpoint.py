"""A checkpoint on disk: what it says it is, its fingerprint, and whether a model really holds its weights.

Reads files only. Which class can run it is the registry's business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from hrx.adapters.contract import ModelError

WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class Checkpoint:
    """A directory in a library's official format."""

    path: Path
    name: str
    """What the user called it: a short name, a hub id, or the directory's own name."""
    source: str
    """A hub id, or the directory's own name."""
    revision: str = ""

    @property
    def has_config(self) -> bool:
        return (self.path / "config.json").exists()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The checkpoint's own `config.json`."""
        file = self.path / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelError(
                f"{self.path} has no config.json and no weight file that a family is known by. "
                "Give a directory in the library's official format, or name the family: FAMILY:PATH."
            ) from None
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read as JSON: {error}. Restore it from the release.") from error
        if not isinstance(config, dict):
            raise ModelError(f"{file} holds a {type(config).__name__}, not a JSON object. Restore it from the release.")
        return config

    @cached_property
    def weights(self) -> tuple[Path, ...]:
        """The weight files, of one format only: libraries prefer safetensors where both are present."""
        for pattern in WEIGHT_PATTERNS:
            if files := tuple(sorted(self.path.glob(pattern))):
                return files
        raise ModelError(f"{self.path} has no weights (looked for {', '.join(WEIGHT_PATTERNS)}). Download it again.")

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over `config.json` and the weight files, by content and not by name."""
        digest = hashlib.sha256()
        for file in (self.path / "config.json", *self.weights):
            if file.exists():
                with file.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    @cached_property
    def tensor_names(self) -> frozenset[str]:
        """What the safetensors files say they hold; nothing of other formats, which do not tell without being read."""
        names: set[str] = set()
        for file in sorted(self.path.glob("*.safetensors")):
            try:
                with safe_open(file, framework="pt") as tensors:
                    names.update(tensors.keys())
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{file} is damaged: {error}. Download it again, or check it against the release."
                ) from error
        return frozenset(names)

    def verify(self) -> None:
        """Opens every safetensors file, so that damage is named here and not deep inside a library."""
        _ = self.tensor_names

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every named tensor of the weight files."""
        for file in self.weights:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 (a safetensors handle cannot be iterated itself)
                        yield name, tensors.get_tensor(name)
            else:
                yield from torch.load(file, map_location="cpu", weights_only=True).items()

    def differences(self, module: torch.nn.Module) -> tuple[str, ...]:
        """Names in the module's state that the file does not hold, or holds with other values.

        A tensor that shares its memory with one that was loaded (tied embeddings) counts as loaded.
        """
        state = module.state_dict()
        equal, memory = set(), set()
        for name, stored in self.tensors():
            held = state.get(name)
            if held is not None and held.shape == stored.shape and torch.equal(held.cpu(), stored.to(held.dtype)):
                equal.add(name)
                memory.add(held.data_ptr())
        return tuple(name for name, held in state.items() if name not in equal and held.data_ptr() not in memory)
