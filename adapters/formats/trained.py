"""Directories of trained models, read without a model library: which models they hold, trained on what.

    OUT/<backbone>-<dataset>-<L>x<H>-seed<n>/{training.json, and the weights in the format of their library}
    DIR/{configuration.json, <alias>_<n>.safetensors …}, and optional files of the training data

`hrx train` wrote the first: such a model is audited on the test split of its own series only, at its own setting and
seed. `NeuralForecast.save` wrote the second: format 2 holds no pickle; reading the older one can run code, so it is
refused. A model of neuralforecast that `hrx train` trained is both.
"""

import hashlib
import json
import math
import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import SafetensorError, safe_open

from hrx.adapters.checkpoint import TRAINING, WEIGHT_PATTERNS, Checkpoint
from hrx.adapters.contract import UNKNOWN, Architecture, ModelError, ReadScale, Scale, model_errors, training_facts
from hrx.errors import HrxError, unknown
from hrx.files import read_json, user_path

_STATED = (
    "loss", "optimiser", "learning_rate", "batch", "epochs", "patience", "arguments", "dataset", "series",
    "training_rows", "validation_rows", "library", "torch_version", "hrx_version", "device",
)  # fmt: skip
"""Facts of `training.json` that a record repeats under the same name."""


@dataclass(frozen=True)
class TrainedRun:
    """One model of `hrx train`, as its `training.json` states it."""

    path: Path
    backbone: str
    dataset: str
    series: str
    series_fingerprint: str
    lookback: int
    horizon: int
    seed: int
    training: str = ""
    """How it was trained and what it reached, as `training_facts` writes it."""
    scale: ReadScale = "standardised"

    @property
    def setting(self) -> tuple[int, int]:
        return self.lookback, self.horizon

    @property
    def trained_on(self) -> str:
        """Name of the series in messages."""
        return f"{self.dataset} series {self.series}"


@dataclass(frozen=True)
class TrainedCheckpoint(Checkpoint):
    """Weights of one of our own backbones, with what it was trained on."""

    @cached_property
    def run(self) -> TrainedRun:
        return _read_run(self.path)

    @property
    def architecture(self) -> Architecture:
        depth = self.config.get("depth")
        depth = depth if type(depth) is int else None
        return Architecture(self.run.backbone, depth, self.run.seed, self.run.training)

    @property
    def setting(self) -> tuple[int, int]:
        return self.run.setting


_FIELDS: dict[str, type] = dict.fromkeys(("backbone", "dataset", "series", "series_fingerprint"), str)
_FIELDS |= dict.fromkeys(("lookback", "horizon", "seed"), int)


def trained_runs(path: Path) -> list[TrainedRun]:
    """Trained model in a directory, or those in its folders; empty where `hrx train` wrote none."""
    if not os.path.isdir(path):
        return []
    if (path / TRAINING).is_file():
        return [_read_run(path)]
    return [_read_run(file.parent) for file in sorted(path.glob(f"[!.]*/{TRAINING}"))]


def folders_without_training(path: Path) -> list[Path]:
    """Folders beside trained models that hold model files and no `training.json`: no audit takes them."""
    if not os.path.isdir(path) or (path / TRAINING).is_file() or not next(path.glob(f"[!.]*/{TRAINING}"), None):
        return []
    folders = (folder for folder in sorted(path.glob("[!.]*/")) if not (folder / TRAINING).is_file())
    return [folder for folder in folders if any(next(folder.glob(mark), None) for mark in WEIGHT_PATTERNS)]


def training_scale(path: Path) -> ReadScale | None:
    """Scale that the model in a directory reads; None where `hrx train` did not write it."""
    return _read_run(path).scale if (path / TRAINING).is_file() else None


def _read_run(path: Path) -> TrainedRun:
    file, again = path / TRAINING, f"Remove {path} and train again."
    with model_errors(f"{file} is not a file of hrx train", again, ValueError, LookupError, TypeError):
        content: dict[str, Any] = read_json(file)
        values = {name: content[name] for name in _FIELDS}
    if wrong := [name for name, kind in _FIELDS.items() if not isinstance(values[name], kind)]:
        raise ModelError(f"{file}: {wrong[0]} is {values[wrong[0]]!r}. {again}")
    scale: ReadScale = "standardised"  # by statistics that the directory lacks
    if "mean" in content or "std" in content:
        mean, std = content.get("mean"), content.get("std")
        if not (isinstance(mean, float) and isinstance(std, float) and math.isfinite(mean) and 0 < std < math.inf):
            raise ModelError(f"{file}: mean is {mean!r} and std {std!r}, which do not standardise a series. {again}")
        scale = Scale(mean, std)
    # What decided the weights, and what they reached: the error of the epoch that is kept, not of every epoch.
    facts = {name: content.get(name, UNKNOWN) for name in _STATED}
    batches = content.get("batches", UNKNOWN)
    facts["batches_per_epoch"] = "all" if batches is None else batches
    errors, best = content.get("validation_mse"), content.get("best_epoch")
    if isinstance(errors, list) and isinstance(best, int) and 0 < best <= len(errors):
        facts |= {"best_epoch": best, "validation_mse": errors[best - 1]}
    return TrainedRun(path, **values, training=training_facts("hrx train", **facts), scale=scale)


NEURALFORECAST = "neuralforecast"
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
            training = training_facts(NEURALFORECAST, **settings, arguments=arguments)
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
        form = f"{NEURALFORECAST}:DIR or {NEURALFORECAST}:DIR:ALIAS"
        raise ModelError(f"{path} is not a directory. Write {form} with a directory that NeuralForecast.save wrote.")
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
