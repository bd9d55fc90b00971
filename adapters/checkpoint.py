"""A checkpoint on disk (configuration, weights, fingerprint), and `CheckpointForecaster`, the base of all families.

Which family runs a checkpoint is decided in `hrx.adapters.registry`.
"""

from __future__ import annotations

import copy
import fnmatch
import hashlib
import os
import re
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from safetensors import SafetensorError, safe_open

from hrx.adapters.contract import Architecture, Convert, Forecaster, Identity, Limits, ModelError, freeze, model_errors
from hrx.files import MOST_MAPPED, read_json, regular_file

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""What the libraries read first; each may be cut into the shards that `NAME.index.json` lists."""
WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pth", "*.ckpt")
ADAPTER_CONFIG = "adapter_config.json"
"""What marks a LoRA adapter, which has no model of its own."""
TRAINING = "training.json"
"""What `hrx train` writes beside the weights."""
STATE_OF_TRAINING = ("training_args.bin", "optimizer.bin", "scheduler.bin")
_FLOATING = ("float64", "float32", "float16", "bfloat16")
_NUMBER_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64", "BOOL": "bool",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "U8": "uint8",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
"""Names of safetensors' types where they differ from torch's; a type that is not listed keeps its own."""


def checkpoint_directory(path: Path) -> Path:
    """Return the directory itself, or the only folder below it that holds a checkpoint.

    Raises where there are several, as in the output of a trainer that saves every few steps.
    """
    if any(next(path.glob(mark), None) for mark in ("config.json", ADAPTER_CONFIG, *WEIGHT_PATTERNS)):
        return path
    nested = sorted(file.parent for pattern in ("*/config.json", "*/*/config.json") for file in path.glob(pattern))
    if len(nested) > 1:
        names = ", ".join(str(folder.relative_to(path)) for folder in nested)
        raise ModelError(f"{path} holds {len(nested)} checkpoints: {names}. Give the directory of one of them.")
    return nested[0] if nested else path


def file_digest(file: Path) -> bytes:
    """sha256 of a file, read once per process and state of the file."""
    with model_errors(f"{file} cannot be read", "Check its permissions.", OSError):
        return _digest(file, file_state(file))


def file_state(file: Path) -> tuple[int, ...]:
    """What changes whenever the content of a file does, or the file is replaced."""
    state = file.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


@lru_cache(maxsize=256)
def _digest(file: Path, _state: tuple[int, ...]) -> bytes:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


class Stored(NamedTuple):
    """A tensor in a file: its number type, as `float32`, and its shape."""

    kind: str
    shape: tuple[int, ...]


def read_state(file: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Tensors by name of a file that torch wrote, without running code that is in it; on `meta` without their values.

    A trainer may have put them below the key `model` or `state_dict`.
    """
    import torch

    # A damaged archive may fail anywhere in the reader.
    with model_errors(f"{file} cannot be read as weights", "Restore it, or save it as safetensors."):
        content = torch.load(file, map_location=device, weights_only=True)
    below = [content[key] for key in ("model", "state_dict") if key in content] if isinstance(content, dict) else []
    state = next((one for one in below if isinstance(one, dict)), content)
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ModelError(f"{file} holds a {type(content).__name__}, not a state dict: tensors by name. Save that.")
    return state


@dataclass(frozen=True)
class Checkpoint:
    """A directory in a library's official format."""

    path: Path
    name: str
    """Name that the user gave: a short name, a hub id, or the name of the directory."""
    source: str
    """A hub id, or the name of the directory."""
    revision: str = ""

    @cached_property
    def config(self) -> dict[str, Any]:
        """Content of `config.json`."""
        file = self.path / "config.json"
        if not os.path.lexists(file):
            raise ModelError(
                f"{self.path} has no config.json and no weight file that identifies a family. "
                "Give a directory in the library's official format, or name the family: FAMILY:PATH."
            )
        with model_errors(f"{file} cannot be read as JSON", "Restore it from the release.", ValueError):
            config = read_json(file)
        if not isinstance(config, dict):
            raise ModelError(f"{file} holds a {type(config).__name__}, not a JSON object. Restore it from the release.")
        return config

    @property
    def architectures(self) -> list[str]:
        """Names of the classes that `config.json` is for; empty where it has no list of them."""
        named = self.config.get("architectures")
        return [one for one in named if isinstance(one, str)] if isinstance(named, list) else []

    @cached_property
    def weights(self) -> tuple[Path, ...]:
        """Weight files that the libraries read: one file, or the shards of an index; safetensors first."""
        self.check_files()
        for name in WEIGHT_FILES:
            if (self.path / name).exists():
                return (self.path / name,)
            if (index := self.path / f"{name}.index.json").exists():
                return self._shards(index)
        for pattern in WEIGHT_PATTERNS:
            if files := tuple(f for f in sorted(self.path.glob(pattern)) if f.name not in STATE_OF_TRAINING):
                return files
        raise ModelError(f"{self.path} has no weights (looked for {', '.join(WEIGHT_PATTERNS)}). {self.restore}")

    @property
    def restore(self) -> str:
        """What to do where files are missing or damaged, as a sentence."""
        if (self.path / TRAINING).is_file():
            return f"Train it again: remove {self.path} and repeat hrx train."
        return "Download it again, or check it against the release."

    def _shards(self, index: Path) -> tuple[Path, ...]:
        damage = ValueError, LookupError, AttributeError, TypeError
        with model_errors(f"{index} is not an index of weight files", "Download it again.", *damage):
            named = sorted(set(read_json(index)["weight_map"].values()))
            files = tuple(self.path / name for name in named)
        if outside := [name for name in named if Path(name).name != name]:
            raise ModelError(f"{index} names {outside[0]!r}, which is not in its directory. Download it again.")
        if absent := [file.name for file in files if not file.exists()]:
            raise ModelError(f"{self.path} lacks {', '.join(absent)}, which {index.name} lists. Download it again.")
        return files

    def check_files(self) -> None:
        """Refuses a directory with a FIFO, a device or a socket among its files: a library would wait for it."""
        with model_errors(f"{self.path} cannot be listed", "Check its permissions.", OSError):
            for file in sorted(self.path.iterdir()):
                weights = any(file.match(pattern) for pattern in WEIGHT_PATTERNS)
                if file.exists() and (weights or not file.is_dir()):
                    regular_file(file, MOST_MAPPED)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the contents of `config.json` and the weight files; file names do not matter."""
        files = (self.path / "config.json", *self.weights)
        return hashlib.sha256(b"".join(file_digest(file) for file in files if file.exists())).hexdigest()

    @cached_property
    def tensor_names(self) -> frozenset[str]:
        """Names of the tensors in the safetensors files; other formats are not opened."""
        return frozenset(self._headers)

    @property
    def weights_dtype(self) -> str:
        """Floating-point types in the safetensors files, as `bfloat16`; empty for other formats."""
        return ", ".join(sorted({one.kind for one in self._headers.values()}.intersection(_FLOATING)))

    @property
    def architecture(self) -> Architecture:
        """Class, depth and training seed, for a format of models that users train."""
        return Architecture()

    @property
    def setting(self) -> tuple[int, int] | None:
        """Lookback and horizon of a model that was trained for one setting; None for other models."""
        return None

    @property
    def stored(self) -> dict[str, Stored]:
        """Tensors of the weight files by name, without their values."""
        if self._headers:
            return self._headers
        read = (one for file in self.weights for one in read_state(file, "meta").items())
        return {name: Stored(str(one.dtype).removeprefix("torch."), tuple(one.shape)) for name, one in read}

    @cached_property
    def _headers(self) -> dict[str, Stored]:
        """Tensors of the safetensors files, by name."""
        headers: dict[str, Stored] = {}
        present = self.weights if any(self.path.glob("*.safetensors")) else ()
        for file in (file for file in present if file.suffix == ".safetensors"):
            with (
                model_errors(f"{file} is damaged", self.restore, SafetensorError, OSError),
                safe_open(file, framework="np") as tensors,
            ):
                for name in tensors.keys():  # noqa: SIM118 (a safetensors handle is not iterable)
                    kind, shape = (part := tensors.get_slice(name)).get_dtype(), tuple(part.get_shape())
                    headers[name] = Stored(_NUMBER_TYPES.get(kind, kind), shape)
        return headers

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every named tensor of the weight files."""
        for file in self.weights:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 (a safetensors handle is not iterable)
                        yield name, tensors.get_tensor(name)
            else:
                yield from read_state(file).items()


def differing_tensors(module: torch.nn.Module, stored: Iterable[tuple[str, Tensor]]) -> tuple[str, ...]:
    """Names in the module's state that are missing from `stored` or have other values there.

    A tensor that shares its memory with a matching one (tied embeddings) counts as loaded.
    """
    import torch

    state = module.state_dict()
    equal, memory = set(), set()
    for name, tensor in stored:
        held = state.get(name)
        if held is not None and held.shape == tensor.shape and torch.equal(held.cpu(), tensor.to(held.dtype)):
            equal.add(name)
            memory.add(held.data_ptr())
    return tuple(name for name, held in state.items() if name not in equal and held.data_ptr() not in memory)


def second_module(module: torch.nn.Module) -> torch.nn.Module:
    """Another module object on the same weights: what is set on one does not affect the other."""
    weights = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module, {id(weight): weight for weight in weights})


@contextmanager
def ignore_warning(message: str) -> Iterator[None]:
    """Hides warnings that begin with `message`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message)
        yield


class CheckpointForecaster(Forecaster):
    """A checkpoint that its family's library opens.

    A family implements `open_library`, `read_limits`, `predict`, `official` and `official_call`. Freezing, conversion,
    reloading and the comparison with the file are the same for all families and are implemented here.
    """

    module_attribute: ClassVar[str] = ""
    """Attribute of the library's object that holds the torch module; empty if the object is the module itself."""
    ignored: ClassVar[tuple[str, ...]] = ("*.rotary_emb.inv_freq",)
    """Patterns of tensors in released files that the library computes anew: rotary tables, by older transformers."""

    def __init__(self, checkpoint: Checkpoint, identity: Identity):
        self.identity = identity
        self.checkpoint = checkpoint
        self.is_converted = False
        self.library: Any = self.open_library()
        self.check_stored()
        freeze(self.module)
        self.limits = self.read_limits()
        self.prepare()

    @abstractmethod
    def open_library(self) -> Any:
        """Load `self.checkpoint` with the library; return its own object."""

    @abstractmethod
    def read_limits(self) -> Limits:
        """Limits of the opened checkpoint."""

    def prepare(self) -> None:
        """Derives whatever `predict` needs from `self.library`; called after loading and after each conversion."""

    @property
    def module(self) -> Any:
        """Torch module that holds the weights."""
        return getattr(self.library, self.module_attribute) if self.module_attribute else self.library

    @property
    def stored_module(self) -> Any:
        """Part of the module whose state the files hold."""
        return self.module

    def check_stored(self) -> None:
        """Refuses files of another model than the one that was built: other types, tensors unused, tensors missing.

        A family with files in a format of its own overrides it, as it does `unloaded`.
        """
        path, held = self.checkpoint.path, self.stored_module.state_dict()
        parameters = {name for name, _ in self.stored_module.named_parameters(remove_duplicate=False)}
        ignored = [*map(fnmatch.translate, self.ignored)]
        ignored += getattr(self.module, "_keys_to_ignore_on_load_unexpected", None) or ()  # of transformers
        filled, unused = set(), []
        for file_name, (kind, shape) in self.checkpoint.stored.items():
            name = self.module_name(file_name)
            if name not in held:
                unused += [] if any(re.search(pattern, file_name) for pattern in ignored) else [file_name]
                continue
            floating = held[name].is_floating_point() or name in parameters
            if floating and kind not in _FLOATING and not (held[name].is_complex() and kind == "complex64"):
                raise ModelError(
                    f"{path} stores {file_name} as {kind}, not as floating-point numbers. Give weights that are "
                    f"neither quantised nor converted: {', '.join(_FLOATING)}."
                )
            if shape == tuple(held[name].shape):
                filled.add(name)
        if unused:
            raise ModelError(
                f"{path} holds tensors that the model does not use ({len(unused)}, first {unused[0]}): its "
                "configuration describes another model. Give the configuration that was saved with these weights."
            )
        memory = {held[name].data_ptr() for name in filled}
        # A tensor that shares its memory with one of the file, as tied embeddings do, has no name of its own there.
        if missing := [name for name, one in held.items() if name not in filled and one.data_ptr() not in memory]:
            raise ModelError(
                f"{path} lacks tensors of the model ({len(missing)}, first {missing[0]}), which would keep random "
                f"values. {self.checkpoint.restore}"
            )

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
        again = type(self)(self.checkpoint, self.identity)
        again.limits = self.limits  # with the season and the channels that it was given
        return again

    def module_name(self, stored: str) -> str:
        """Name in the module's state of a tensor in the file, where the library renames it."""
        return stored

    def unloaded(self) -> tuple[str, ...]:
        stored = ((self.module_name(name), tensor) for name, tensor in self.checkpoint.tensors())
        return differing_tensors(self.stored_module, stored)
