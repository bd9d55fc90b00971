"""Directories that are not a checkpoint themselves: one that holds a checkpoint in a folder, and a LoRA adapter.

An adapter is merged by `peft` into its base model, and the result is written as an ordinary checkpoint, so every check
of admission applies to it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrx.adapters.checkpoint import TRAINING, CheckpointForecaster
from hrx.adapters.contract import ModelError
from hrx.adapters.formats.trained_directory import trained_runs
from hrx.errors import HrxError, describe_error
from hrx.files import read_json

if TYPE_CHECKING:
    from torch import Tensor

    from hrx.adapters.registry import Located

ADAPTER_CONFIG = "adapter_config.json"
MERGED = "merged"
"""The folder of a merged checkpoint, in the directory of its adapter."""
_MARKS = ("config.json", ADAPTER_CONFIG, "*.safetensors", "*.bin", "*.pth", "*.ckpt")
_SHOWN = 3
"""Trained models that a message names; a grid has hundreds."""


def checkpoint_directory(path: Path) -> Path:
    """The directory itself, or the only folder below it that holds a checkpoint.

    Raises where there are several, as in the output of a trainer that saves every few steps.
    """
    if any(next(path.glob(mark), None) for mark in _MARKS):
        return path
    nested = sorted(file.parent for pattern in ("*/config.json", "*/*/config.json") for file in path.glob(pattern))
    if len(nested) > 1:
        names = ", ".join(str(folder.relative_to(path)) for folder in nested)
        raise ModelError(f"{path} holds {len(nested)} checkpoints: {names}. Give the directory of one of them.")
    return nested[0] if nested else path


def only_trained_model(path: Path) -> Path | None:
    """The folder of the only model in a directory that `hrx train` wrote; None where it holds none of them in folders.

    Raises where there are several.
    """
    if not os.path.isdir(path) or (path / TRAINING).exists() or any(next(path.glob(mark), None) for mark in _MARKS):
        return None
    names = [run.path.name for run in trained_runs(path)]
    if len(names) > 1:
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise ModelError(f"{path} holds {len(names)} trained models: {shown}. Name one: {path / names[0]}.")
    return path / names[0] if names else None


def is_adapter(path: Path) -> bool:
    """Whether a directory holds a LoRA adapter, which has no model of its own."""
    return (path / ADAPTER_CONFIG).exists()


def merged_directory(path: Path, locate: Callable[[str], Located]) -> Path:
    """Merges the LoRA adapter in `path` into its base model; returns the directory of the merged checkpoint.

    `locate` finds the base model that the adapter names.
    """
    named = _base_name(path)
    try:
        from peft import PeftModel
    except ImportError:
        raise ModelError(f"{path} is merged with peft, which is not installed. Run: pip install peft") from None
    beside = path / named  # a relative directory is meant from where the adapter is, or from the working directory
    base: Any = locate(str(beside) if beside.is_dir() else named).load()
    try:
        merged = PeftModel.from_pretrained(base.module, str(path)).merge_and_unload()
    except Exception as error:
        raise ModelError(
            f"peft could not merge {path} into {named}: {describe_error(error)}. "
            "Check that this is the base model that the adapter was trained on."
        ) from error
    try:
        _write(path / MERGED, base, merged.state_dict())
    except OSError as error:
        raise ModelError(f"cannot write {path / MERGED}: {error}. Copy {path} to a writable directory.") from error
    return path / MERGED


def _base_name(path: Path) -> str:
    """The hub id or directory of the base model that the adapter was trained on."""
    file = path / ADAPTER_CONFIG
    try:
        named = read_json(file)["base_model_name_or_path"]
    except (HrxError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"{file} cannot be read: {describe_error(error)}. Save the adapter again.") from error
    if not isinstance(named, str) or not named:
        raise ModelError(f"{file} does not name a base model. Set base_model_name_or_path to a hub id or a directory.")
    return named


def _write(target: Path, base: CheckpointForecaster, state: dict[str, Tensor]) -> None:
    """Replaces `target` by a checkpoint with the tensors that the base's files have, and the base's configuration."""
    from safetensors.torch import save_file

    scratch = Path(tempfile.mkdtemp(prefix=".merging-", dir=target.parent))
    try:
        shutil.copy(base.checkpoint.path / "config.json", scratch)
        tensors = {}
        for name, _ in base.checkpoint.tensors():
            if base.module_name(name) not in state:
                raise ModelError(f"{base.identity.model} has a tensor {name} that its library does not load.")
            tensors[name] = state[base.module_name(name)].contiguous()
        save_file(tensors, scratch / "model.safetensors", metadata={"format": "pt"})
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
