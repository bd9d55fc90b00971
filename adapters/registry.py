"""From a name to a model: `locate` finds a checkpoint without importing its library, `load` opens it.

A name is the embedded `bolt-mini`, a short name (`chronos-2`) or a hub id, each with an optional `@revision`, a local
directory, `family:path`, `neuralforecast:directory[:alias]`, `tslib:checkout:run`, or `module:file.py:factory`. The
family of a checkpoint is recognised by its own files.
"""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, cast

from hrx.adapters.checkpoint import ADAPTER_CONFIG, TRAINING, Checkpoint, checkpoint_directory
from hrx.adapters.contract import Forecaster, Identity, ModelError, model_errors
from hrx.adapters.families import EMBEDDED, Family, built_in, families, registration_problems, short_names
from hrx.adapters.formats.trained import (
    NEURALFORECAST,
    TrainedCheckpoint,
    TrainedRun,
    is_saved_directory,
    saved_models,
    trained_runs,
)
from hrx.adapters.formats.tslib_run import FAMILY as TSLIB
from hrx.adapters.formats.tslib_run import checkout_run
from hrx.errors import unknown
from hrx.files import read_json, user_path

AUTO = "auto"
MERGED = "merged"
"""Folder of a merged checkpoint, in the directory of its LoRA adapter."""
Pair = tuple[int, int]
"""Lookback and horizon."""
_SHOWN = 3
"""Trained models that a message names; a grid has hundreds."""


class Located(Protocol):
    """A model that is found and not loaded: enough for a plan."""

    @property
    def identity(self) -> Identity: ...

    def load(self) -> Forecaster: ...


@dataclass(frozen=True)
class LocatedCheckpoint:
    """A checkpoint and the family that runs it."""

    checkpoint: Checkpoint
    family: Family

    @cached_property
    def identity(self) -> Identity:
        found, family = self.checkpoint, self.family
        return Identity(
            model=found.name, family=family.name, checkpoint=found.source, fingerprint=found.fingerprint,
            library=family.versions, revision=found.revision, weights_dtype=found.weights_dtype,
            **found.architecture._asdict(),
        )  # fmt: skip

    def load(self) -> Forecaster:
        from hrx.adapters.wrapped import one_by_one  # imports torch

        _ = self.checkpoint.tensor_names  # reports a damaged file by path before a library reads it
        family = self.family
        loader = _imported(family, family.loader)
        what = f"{family.distribution} could not load {self.checkpoint.path} as {family.name}"
        with model_errors(what, "Check that the directory is complete."):
            return one_by_one(cast(Forecaster, loader(self.checkpoint, self.identity)))


def _imported(family: Family, name: str) -> Any:
    """`module:name` of a family, whose library may raise anything when it is imported."""
    advice = f"Fix its installation, for example in an environment of its own: {family.install_command}"
    with model_errors(f"{family.versions} cannot be imported", advice):
        return resolve_name(name)


def load(name: str, *, merge_adapter: bool = False) -> Forecaster:
    """Load the model of that name: a short name, a hub id, a directory, or `module:FILE.py:FACTORY`.

    With `merge_adapter`, a LoRA directory is merged into its base model first.

        import torch
        model = hrx.load("bolt-mini")
        model.forward(torch.zeros(4, 96), 24).shape    # (4, 24), differentiable in its input
    """
    return locate(name, merge_adapter=merge_adapter).load()


def locate(name: str, *, merge_adapter: bool = False) -> Located:
    """Finds the checkpoint of that name; a hub id that is not in the cache is downloaded.

    With `merge_adapter`, a LoRA directory is merged into its base model first, and the result is the checkpoint.
    """
    if not isinstance(name, str | os.PathLike):
        raise ModelError(f"A {type(name).__name__} is not the name of a model. Give a name, a hub id or a path.")
    name = os.fspath(name)
    if name == EMBEDDED:
        return _checkpoint(Path(__file__).parent / "bolt_mini", name, name)
    prefix, _, rest = name.partition(":")
    if prefix == "module" and rest:
        from hrx.adapters.formats.module import ModuleFile  # imports torch

        return ModuleFile.parse(rest)
    if runs := trained_runs(user_path(name)):
        if len(runs) > 1:
            shown = ", ".join(run.path.name for run in runs[:_SHOWN])
            more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
            raise ModelError(f"{name} holds {len(runs)} trained models: {shown}{more}. Name one: {runs[0].path}.")
        return _trained(runs[0])
    if saved := _saved(name):
        if len(saved) > 1:
            names = ", ".join(one.checkpoint.name.rpartition(":")[2] for one in saved)
            raise ModelError(f"{name} holds {len(saved)} models: {names}. Name one: {NEURALFORECAST}:DIR:ALIAS.")
        return saved[0]
    if prefix in families() and rest:
        return _checkpoint(*_fetch(rest), family=families()[prefix])
    short, at, revision = name.partition("@")
    if released := short_names().get(short):
        if released.download_advice:
            raise ModelError(f"{short} is not on the model hub. {released.download_advice}")
        path, _, source = _fetch(released.hub_id + at + revision)
        return _checkpoint(path, name, source, family=families()[released.family])
    path, label, source = _fetch(name)
    if merge_adapter and (path / ADAPTER_CONFIG).exists():
        path = _merged_directory(path)
    return _checkpoint(path, label, source)


def _merged_directory(path: Path) -> Path:
    """Merge the LoRA adapter in `path` into its base model; return the folder of the merged checkpoint.

    So every check of admission applies to the result.
    """
    file, target = path / ADAPTER_CONFIG, path / MERGED
    with model_errors(f"{file} cannot be read", "Save the adapter again.", ValueError, LookupError, TypeError):
        named = read_json(file)["base_model_name_or_path"]
    if not isinstance(named, str) or not named:
        raise ModelError(f"{file} does not name a base model. Set base_model_name_or_path to a hub id or a directory.")
    try:
        from peft import PeftModel
        from safetensors.torch import save_file
    except ImportError:
        raise ModelError(f"{path} is merged with peft, which is not installed. Run: pip install peft") from None
    beside = path / named  # a relative directory is meant from where the adapter is, or from the working directory
    base: Any = load(str(beside) if beside.is_dir() else named)
    advice = "Check that this is the base model that the adapter was trained on."
    with model_errors(f"peft could not merge {path} into {named}", advice, Exception):
        state = PeftModel.from_pretrained(base.module, str(path)).merge_and_unload().state_dict()
    # The tensors that the base's files have, and the base's configuration.
    tensors = {name: state[base.module_name(name)].contiguous() for name in base.checkpoint.stored}
    with (
        model_errors(f"cannot write {target}", f"Copy {path} to a writable directory.", OSError),
        TemporaryDirectory(prefix=".merging-", dir=path) as scratch,
    ):
        merged = Path(scratch) / MERGED
        merged.mkdir()
        shutil.copy(base.checkpoint.path / "config.json", merged)
        save_file(tensors, merged / "model.safetensors", metadata={"format": "pt"})
        shutil.rmtree(target, ignore_errors=True)
        merged.rename(target)
    return target


def _trained(run: TrainedRun) -> LocatedCheckpoint:
    """Model of a directory that `hrx train` wrote, by the name of that directory."""
    path = run.path.resolve()
    if not is_saved_directory(path):
        return _checkpoint(path, path.name, path.name)
    found = _saved(str(path))[0]
    return replace(found, checkpoint=replace(found.checkpoint, name=path.name))


def _saved(name: str) -> list[LocatedCheckpoint]:
    """Run of a checkout, or the models of a directory of neuralforecast by prefix or files; else empty."""
    prefix, _, rest = name.partition(":")
    if prefix == TSLIB and rest:
        return [LocatedCheckpoint(checkout_run(rest), families()[TSLIB])]
    by_prefix = prefix == NEURALFORECAST and bool(rest)
    if not by_prefix and not is_saved_directory(user_path(name)):
        return []
    found = saved_models(rest if by_prefix else name)
    require(families()[NEURALFORECAST], name)
    return [LocatedCheckpoint(checkpoint, families()[NEURALFORECAST]) for checkpoint in found]


def _checkpoint(path: Path, name: str, source: str, family: Family | None = None) -> LocatedCheckpoint:
    revision = path.name if path.parent.name == "snapshots" else ""  # the hub names a snapshot by its commit
    path = checkpoint_directory(path.resolve())
    kind = TrainedCheckpoint if (path / TRAINING).is_file() else Checkpoint
    checkpoint = kind(path, name, source, revision)
    family = family or _recognise(checkpoint)
    require(family, name)
    return LocatedCheckpoint(checkpoint, family)


class CheckpointSettings(NamedTuple):
    """A checkpoint and the settings at which it is audited."""

    located: Located
    settings: list[Pair]
    trained: TrainedRun | None = None
    """What `hrx train` trained it on: it is audited on that series, at that setting and seed only."""


def trained_setting(located: Located | Forecaster) -> Pair | None:
    """Lookback and horizon of a model that was trained for one setting; None for other models."""
    checkpoint: Checkpoint | None = getattr(located, "checkpoint", None)
    return None if checkpoint is None else checkpoint.setting


def locate_each(
    name: str, settings: Sequence[Pair], *, merge_adapter: bool = False, as_trained: bool = False
) -> list[CheckpointSettings]:
    """Checkpoints of `name` at the given settings: one for all of them, unless the name ends in `@auto`.

    A directory of neuralforecast gives all its models, and one of `hrx train` all that it trained. With `as_trained`, a
    model that was trained for one setting has that one instead of the given ones; a model of `hrx train` never has
    another.
    """
    if runs := trained_runs(user_path(name)):
        if chosen := [run for run in runs if as_trained or run.setting in settings]:
            return [CheckpointSettings(_trained(run), [run.setting], run) for run in chosen]
        known = ", ".join(f"{lookback}x{horizon}" for lookback, horizon in sorted({run.setting for run in runs}))
        raise ModelError(f"No model in {name} was trained at these settings. Drop --settings, or give some of {known}.")
    if saved := _saved(name):
        own = [as_trained and one.checkpoint.setting for one in saved]
        pairs = [[pair] if pair else list(settings) for pair in own]
        return [CheckpointSettings(one, chosen) for one, chosen in zip(saved, pairs, strict=True)]
    if name.endswith(f"@{AUTO}"):
        return _selected(name, settings)
    return [CheckpointSettings(locate(name, merge_adapter=merge_adapter), list(settings))]


def _selected(name: str, settings: Sequence[Pair]) -> list[CheckpointSettings]:
    """Releases that the library of a family selects for the settings, each a model of its own in the records."""
    short = name.removesuffix(f"@{AUTO}")
    offered = {known: r for known, r in short_names().items() if families()[r.family].revision_selector}
    if short not in offered:
        raise ModelError(
            f"{name} requests one checkpoint per setting, which only {' and '.join(offered)} offer. Drop @{AUTO}."
        )
    family = families()[offered[short].family]
    require(family, name)
    select = _imported(family, family.revision_selector)
    by_revision: dict[str, list[Pair]] = {}
    for pair in settings:
        by_revision.setdefault(select(offered[short].hub_id, *pair), []).append(pair)
    return [CheckpointSettings(locate(f"{short}@{revision}"), pairs) for revision, pairs in by_revision.items()]


def require(family: Family, name: str) -> None:
    """Raises if the library of the family is not installed."""
    if family.installed is None:
        raise ModelError(
            f"{name} is a {family.name} checkpoint and needs {family.distribution}, which is not installed. "
            f"Run: {family.install_command}"
        )


def _fetch(name: str) -> tuple[Path, str, str]:
    """Path, name and source of a local directory or of a snapshot of the hub."""
    path = user_path(name)
    if name and os.path.isdir(path):
        return path, path.resolve().name, path.resolve().name
    if name and os.path.exists(path):
        raise ModelError(f"{name} is a file. A checkpoint is a directory with config.json and its weights.")
    hub_id, _, revision = name.partition("@")
    if not re.fullmatch(r"[^./~][^/]*/[^/]+", hub_id):
        known = [EMBEDDED, *short_names()]
        advice = "A hub id (OWNER/NAME[@REVISION]), a directory, FAMILY:PATH and module:FILE.py:FACTORY work too."
        raise ModelError(unknown("model", name, known, advice + registration_problems()))
    return _download(hub_id, revision or None), name, hub_id


def _download(hub_id: str, revision: str | None) -> Path:
    """Download the snapshot of configuration and weights, or take it from the cache if it is there."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelError(
            f"{hub_id} is downloaded with huggingface_hub, which is not installed. "
            "Install the extra of its family: `hrx models` lists them."
        ) from None
    advice = "Check the name and the network, or download it elsewhere and give its directory."
    with model_errors(f"{hub_id} is not a local directory and cannot be downloaded", advice, Exception):
        path = Path(snapshot_download(hub_id, revision=revision, allow_patterns=["*.json", "*.safetensors", "*.pth"]))
        if not [*path.rglob("*.safetensors"), *path.rglob("*.pth")]:  # a release in the older format only
            path = Path(snapshot_download(hub_id, revision=revision, allow_patterns=["*.json", "*.bin"]))
        return path


def _recognise(checkpoint: Checkpoint) -> Family:
    """Family that the checkpoint's files identify."""
    path = checkpoint.path
    if (path / ADAPTER_CONFIG).exists() or ((path / "config.json").exists() and "peft_type" in checkpoint.config):
        raise ModelError(
            f"{path} is an adapter (LoRA). Merge it into its base model and save that, or give --merge-adapter."
        )
    refused = [family for family in built_in() if family.refusal]
    for family in (*refused, *families().values()):
        if family.claims(checkpoint):
            if family.refusal:
                raise ModelError(f"{path} is a {family.name} checkpoint, which hrx cannot audit: it {family.refusal}.")
            return family
    named = ", ".join(checkpoint.architectures) or "(none)"
    raise ModelError(
        f"{path}/config.json names the architecture {named}, which no family of hrx "
        f"runs ({', '.join(families())}). Name the family with FAMILY:PATH, or give the model as "
        f"module:FILE.py:FACTORY.{registration_problems()}"
    )
