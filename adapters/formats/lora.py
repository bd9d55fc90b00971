"""LoRA adapters: merged by `peft` into their base model and written as an ordinary checkpoint.

So every check of admission applies to the result.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrx.adapters.checkpoint import ADAPTER_CONFIG, CheckpointForecaster
from hrx.adapters.contract import ModelError, model_errors
from hrx.files import read_json

if TYPE_CHECKING:
    from torch import Tensor

    from hrx.adapters.registry import Located

MERGED = "merged"
"""Folder of a merged checkpoint, in the directory of its adapter."""


def merged_directory(path: Path, locate: Callable[[str], Located]) -> Path:
    """Merges the LoRA adapter in `path` into its base model; returns the directory of the merged checkpoint.

    `locate` finds the base model that the adapter names.
    """
    file = path / ADAPTER_CONFIG
    with model_errors(f"{file} cannot be read", "Save the adapter again.", ValueError, LookupError, TypeError):
        named = read_json(file)["base_model_name_or_path"]
    if not isinstance(named, str) or not named:
        raise ModelError(f"{file} does not name a base model. Set base_model_name_or_path to a hub id or a directory.")
    try:
        from peft import PeftModel
    except ImportError:
        raise ModelError(f"{path} is merged with peft, which is not installed. Run: pip install peft") from None
    beside = path / named  # a relative directory is meant from where the adapter is, or from the working directory
    base: Any = locate(str(beside) if beside.is_dir() else named).load()
    advice = "Check that this is the base model that the adapter was trained on."
    with model_errors(f"peft could not merge {path} into {named}", advice, Exception):
        merged = PeftModel.from_pretrained(base.module, str(path)).merge_and_unload()
    with model_errors(f"cannot write {path / MERGED}", f"Copy {path} to a writable directory.", OSError):
        _write(path / MERGED, base, merged.state_dict())
    return path / MERGED


def _write(target: Path, base: CheckpointForecaster, state: dict[str, Tensor]) -> None:
    """Replaces `target` by a checkpoint with the tensors that the base's files have, and the base's configuration."""
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory(prefix=".merging-", dir=target.parent) as folder:
        scratch = Path(folder) / target.name
        scratch.mkdir()
        shutil.copy(base.checkpoint.path / "config.json", scratch)
        tensors = {name: state[base.module_name(name)].contiguous() for name, _ in base.checkpoint.tensors()}
        save_file(tensors, scratch / "model.safetensors", metadata={"format": "pt"})
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
