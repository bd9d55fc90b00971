"""Directories that `NeuralForecast.save` wrote: which models they hold, read without the library.

    DIR/{configuration.json, <alias>_<n>.safetensors …}, and optional files of the training data

Format 2 holds no pickle. The older one does: reading it can run code, so it is refused.
"""

import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import SafetensorError, safe_open

from hrx.adapters.checkpoint import TRAINING, Checkpoint
from hrx.adapters.contract import Architecture, ModelError, model_errors, training_facts
from hrx.adapters.formats.trained_directory import trained_runs
from hrx.errors import HrxError, unknown
from hrx.files import read_json, user_path

FAMILY = "neuralforecast"
CONFIGURATION = "configuration.json"
SIDECAR = "configuration.safetensors"
"""Arrays of the configuration."""
_NOT_MODELS = (SIDECAR, "dataset.safetensors")
_FORMAT = "2"
_DEPTHS = (
    "encoder_layers", "e_layers", "num_encoder_layers", "encoder_n_layers", "encoder_n_blocks", "n_block", "num_layers",
    "n_layers", "n_hidden_layers", "n_rnn_layers",
)  # fmt: skip
"""Arguments of the library's classes for the number of layers. A list of blocks per stack is not one depth."""

_TRAINING = (
    "loss", "learning_rate", "max_steps", "num_lr_decays", "early_stop_patience_steps", "val_check_steps",
    "batch_size", "windows_batch_size", "step_size", "optimizer", "optimizer_kwargs", "lr_scheduler",
    "lr_scheduler_kwargs", "scaler_type", "local_scaler_type",
)  # fmt: skip
"""Stored arguments that decide how a model is trained, whatever its class."""
_NOT_ARGUMENTS = (
    "h", "input_size", "random_seed", "alias", "valid_loss", "val_monitor", "valid_batch_size",
    "inference_windows_batch_size", "inference_input_size", "n_samples", "drop_last_loader", "dataloader_kwargs",
    "accelerator", "devices", "logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary",
)  # fmt: skip
"""Stored arguments that have a column of their own, or decide no weight."""


@dataclass(frozen=True)
class SavedModel(Checkpoint):
    """One model of a directory."""

    file: str = ""
    directory: TemporaryDirectory[str] | None = None
    """Of a model in memory: it lasts as long as this object."""

    @cached_property
    def weights(self) -> tuple[Path, ...]:
        self.check_files()
        return (self.path / self.file,)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the model's tensors and metadata, and the scaler that the directory applies to every series."""
        content = self.weights[0].read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        try:  # the library writes the keys of the header in a random order
            header = json.dumps(json.loads(content[8:start]), sort_keys=True).encode()
        except ValueError:  # loading reports the damage
            header, start = b"", 0
        digest = hashlib.sha256(header + content[start:])
        digest.update(json.dumps(_configuration(self.path).get("local_scaler_type")).encode())
        return digest.hexdigest()

    @property
    def setting(self) -> tuple[int, int] | None:
        """Lookback and horizon that the model was trained for; None if its file does not say."""
        try:
            lookback, horizon = int(self._arguments["input_size"]), int(self._arguments["h"])
        except (ValueError, LookupError, TypeError):
            return None
        return (lookback if lookback > 0 else 3 * horizon), horizon

    @property
    def architecture(self) -> Architecture:
        stored = {name: value for name, value in self._arguments.items() if value is not None}
        model_class = str(self._metadata.get("model_class", ""))
        depth = next((stored[name] for name in _DEPTHS if type(stored.get(name)) is int), None)
        seed = stored.get("random_seed")
        # As `hrx train` states it where that wrote the directory; else what the library stored, without the rows.
        training = next((run.training for run in trained_runs(self.path) if run.backbone == model_class), "")
        if not training:
            stored["local_scaler_type"] = _configuration(self.path).get("local_scaler_type") or "none"
            loss = stored.get("loss")
            stored["loss"] = str(loss.get("cls", "")) if isinstance(loss, dict) else ""
            settings = {name: stored[name] for name in _TRAINING if name in stored}
            arguments = {name: value for name, value in stored.items() if name not in (*_TRAINING, *_NOT_ARGUMENTS)}
            training = training_facts(FAMILY, **settings, arguments=arguments)
        return Architecture(model_class, depth, seed if type(seed) is int else None, training)

    @cached_property
    def _metadata(self) -> dict[str, str]:
        """What the library stored beside the weights; empty for a damaged file, which loading reports."""
        try:
            with safe_open(self.weights[0], framework="np") as tensors:
                return tensors.metadata() or {}
        except (SafetensorError, OSError):
            return {}

    @cached_property
    def _arguments(self) -> dict[str, Any]:
        """Arguments that the model was built with."""
        try:
            arguments = json.loads(self._metadata["hyper_parameters"])
        except (ValueError, LookupError):
            return {}
        return arguments if isinstance(arguments, dict) else {}


def is_saved_directory(path: Path) -> bool:
    """Whether `NeuralForecast.save` wrote a directory; other tools write a `configuration.json` too."""
    try:
        return "nf_format" in read_json(path / CONFIGURATION)
    except (HrxError, OSError, ValueError, TypeError):
        return False


def saved_models(text: str) -> list[SavedModel]:
    """Models of `DIR`, or the one of `DIR:ALIAS`.

    A model is named by its alias, or by its file where several have the same alias: `NHITS_0`, `NHITS_1`.
    """
    path, alias = user_path(text), ""
    if not os.path.isdir(path) and ":" in text:
        head, _, alias = text.rpartition(":")
        path = user_path(head)
    if not os.path.isdir(path):
        raise ModelError(
            f"{path} is not a directory. Write {FAMILY}:DIR or {FAMILY}:DIR:ALIAS with a directory that "
            "NeuralForecast.save wrote."
        )
    path = path.resolve()
    files = _named_files(path)
    if alias and alias not in files:
        raise ModelError(f"{path}: {unknown('model', alias, files)}")
    chosen = {alias: files[alias]} if alias else files
    return [SavedModel(path, f"{path.name}:{name}", path.name, file=file) for name, file in chosen.items()]


def _named_files(path: Path) -> dict[str, str]:
    """File names of the models of a directory by the name of the model."""
    _configuration(path)
    files = sorted(file.name for file in path.glob("*.safetensors") if file.name not in _NOT_MODELS)
    if not files:
        restore = "Save it again with NeuralForecast.save."
        if (path / TRAINING).is_file():
            restore = Checkpoint(path, path.name, path.name).restore
        raise ModelError(f"{path} has a {CONFIGURATION} and no model. {restore}")
    aliases = {file: file.removesuffix(".safetensors").rpartition("_")[0] for file in files}
    count = Counter(aliases.values())
    return {
        alias if alias and count[alias] == 1 else file.removesuffix(".safetensors"): file
        for file, alias in aliases.items()
    }


def _configuration(path: Path) -> dict[str, Any]:
    """What the library stored about all models of a directory."""
    file = path / CONFIGURATION
    if not os.path.lexists(file):
        if next(path.glob("*.ckpt"), None) or next(path.glob("*.pkl"), None):
            raise ModelError(
                f"{path} is in neuralforecast's older format, which holds pickles: reading them can run code. If you "
                f"trust it, convert it with `python -m neuralforecast.migrate {path}` and give the result."
            )
        raise ModelError(f"{path} has no {CONFIGURATION}. Give a directory that NeuralForecast.save wrote.")
    damage = ValueError, LookupError, TypeError
    with model_errors(f"{file} is not a configuration of neuralforecast", "Save it again.", *damage):
        content = read_json(file)
        found, configuration = content["nf_format"], content["configuration"]
    if found != _FORMAT or not isinstance(configuration, dict):
        raise ModelError(
            f"{file} has the format {found!r}, not {_FORMAT!r}, which hrx reads. Save the models again with "
            "neuralforecast 3.3."
        )
    return configuration
