"""A checkpoint on disk (configuration, weights, fingerprint), and `CheckpointForecaster`, the base of all families.

Which family runs a checkpoint is decided in `hrx.adapters.registry`.
"""

import copy
import hashlib
import os
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hrx.adapters.contract import Convert, Forecaster, Identity, Limits, ModelError, freeze
from hrx.errors import HrxError
from hrx.files import MOST_MAPPED, read_json, regular_file

WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class Checkpoint:
    """A directory in a library's official format."""

    path: Path
    name: str
    """The name that the user gave: a short name, a hub id, or the name of the directory."""
    source: str
    """A hub id, or the name of the directory."""
    revision: str = ""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of `config.json`."""
        file = self.path / "config.json"
        if not os.path.lexists(file):
            raise ModelError(
                f"{self.path} has no config.json and no weight file that identifies a family. "
                "Give a directory in the library's official format, or name the family: FAMILY:PATH."
            )
        try:
            config = read_json(file)
        except HrxError as error:
            raise ModelError(str(error)) from error
        except ValueError as error:
            raise ModelError(f"{file} cannot be read as JSON: {error}. Restore it from the release.") from error
        if not isinstance(config, dict):
            raise ModelError(f"{file} holds a {type(config).__name__}, not a JSON object. Restore it from the release.")
        return config

    @cached_property
    def weights(self) -> tuple[Path, ...]:
        """The weight files of one format; safetensors first, as in the libraries."""
        for pattern in WEIGHT_PATTERNS:
            if files := tuple(sorted(self.path.glob(pattern))):
                self.check_files()
                return files
        raise ModelError(f"{self.path} has no weights (looked for {', '.join(WEIGHT_PATTERNS)}). Download it again.")

    def check_files(self) -> None:
        """Refuses a directory with a FIFO, a device or a socket among its files: a library would wait for it."""
        try:
            for file in sorted(self.path.iterdir()):
                weights = any(file.match(pattern) for pattern in WEIGHT_PATTERNS)
                if file.exists() and (weights or not file.is_dir()):
                    regular_file(file, MOST_MAPPED)
        except OSError as error:
            raise ModelError(f"{self.path} cannot be listed: {error.strerror}.") from error
        except HrxError as error:
            raise ModelError(str(error)) from error

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the contents of `config.json` and the weight files; file names do not matter."""
        digest = hashlib.sha256()
        for file in (self.path / "config.json", *self.weights):
            if file.exists():
                with file.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    @cached_property
    def tensor_names(self) -> frozenset[str]:
        """Names of the tensors in the safetensors files; other formats are not opened."""
        names: set[str] = set()
        self.check_files()
        for file in sorted(self.path.glob("*.safetensors")):
            try:
                with safe_open(file, framework="pt") as tensors:
                    names.update(tensors.keys())
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{file} is damaged: {error}. Download it again, or check it against the release."
                ) from error
        return frozenset(names)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every named tensor of the weight files."""
        for file in self.weights:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 (a safetensors handle is not iterable)
                        yield name, tensors.get_tensor(name)
            else:
                yield from torch.load(file, map_location="cpu", weights_only=True).items()


def differing_tensors(module: torch.nn.Module, stored: Iterable[tuple[str, Tensor]]) -> tuple[str, ...]:
    """Names in the module's state that are missing from `stored` or have other values there.

    A tensor that shares its memory with a matching one (tied embeddings) counts as loaded.
    """
    state = module.state_dict()
    equal, memory = set(), set()
    for name, tensor in stored:
        held = state.get(name)
        if held is not None and held.shape == tensor.shape and torch.equal(held.cpu(), tensor.to(held.dtype)):
            equal.add(name)
            memory.add(held.data_ptr())
    return tuple(name for name, held in state.items() if name not in equal and held.data_ptr() not in memory)


@contextmanager
def ignore_warning(message: str) -> Iterator[None]:
    """Hides warnings that begin with `message`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message)
        yield


class CheckpointForecaster(Forecaster):
    """A checkpoint that its family's library opens.

    A family implements `open_library`, `read_limits`, `predict` and `official`. Freezing, conversion, reloading and the
    comparison with the file are the same for all families and are implemented here.
    """

    module_attribute: ClassVar[str] = ""
    """The attribute of the library's object that holds the torch module; empty if the object is the module itself."""

    def __init__(self, checkpoint: Checkpoint, identity: Identity):
        self.identity = identity
        self.checkpoint = checkpoint
        self.is_converted = False
        self.library: Any = self.open_library()
        freeze(self.module)
        self.limits = self.read_limits()
        self.prepare()

    @abstractmethod
    def open_library(self) -> Any:
        """The library's own object with the weights of `self.checkpoint`."""

    @abstractmethod
    def read_limits(self) -> Limits:
        """The limits of the opened checkpoint."""

    def prepare(self) -> None:
        """Derives whatever `predict` needs from `self.library`; called after loading and after each conversion."""

    @property
    def module(self) -> Any:
        """The torch module that holds the weights."""
        return getattr(self.library, self.module_attribute) if self.module_attribute else self.library

    def converted(self, convert: Convert) -> Self:
        module = convert(copy.deepcopy(self.module))
        other = copy.copy(self)
        if self.module_attribute:
            other.library = copy.copy(self.library)
            setattr(other.library, self.module_attribute, module)
        else:
            other.library = module
        other.is_converted = True
        other.prepare()
        return other

    def reload(self) -> Self:
        return type(self)(self.checkpoint, self.identity)

    def unloaded(self) -> tuple[str, ...]:
        return differing_tensors(self.module, self.checkpoint.tensors())
