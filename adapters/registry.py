"""From a name to a model: `locate` finds a checkpoint without importing its library, `load` opens it.

A name is the embedded `bolt-mini`, a short name (`chronos-2`) or a hub id, each with an optional `@revision`, a local
directory, `family:path`, `neuralforecast:directory[:alias]`, or `module:file.py:factory`. The family of a checkpoint is
recognised by its own files. Other packages add a family through an entry point of the group `hrx.adapters` with a
`Family` as its value.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from pkgutil import resolve_name
from textwrap import shorten
from typing import Any, NamedTuple, NoReturn, Protocol

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Forecaster, Identity, ModelError
from hrx.adapters.directories import checkpoint_directory, is_adapter, merged_directory
from hrx.adapters.model_card import EMBEDDED, short_names
from hrx.adapters.module import ModuleFile
from hrx.adapters.neuralforecast_directory import FAMILY as NEURALFORECAST
from hrx.adapters.neuralforecast_directory import SavedModel, is_saved_directory, saved_models
from hrx.adapters.trained_directory import TrainedRun, trained_runs
from hrx.errors import describe_error, unknown
from hrx.files import user_path
from hrx.install import install_command

AUTO = "auto"
Pair = tuple[int, int]
"""Lookback and horizon."""


@dataclass(frozen=True)
class Family:
    """How checkpoints of a family are recognised, and which library runs them."""

    name: str
    loader: str
    """`module:Class` or `module:function`, called as `loader(checkpoint, identity) -> Forecaster`."""
    distribution: str
    """The PyPI distribution of the family's library."""
    extra: str
    also: tuple[str, ...] = ()
    """Other distributions that compute the forecast; their versions are part of the identity."""
    architectures: tuple[str, ...] = ()
    """Values of `architectures` in `config.json`."""
    config_keys: tuple[str, ...] = ()
    """Keys that together identify its `config.json`, for a library that writes no `architectures`."""
    files: str = ""
    """A glob pattern of its weight files, for a library that writes no `config.json`."""
    tensors: tuple[str, ...] = ()
    """Tensor names that together identify its weights, for a release whose `config.json` is absent or another's."""
    revision_selector: str = ""
    """`module:function`, called as `(hub_id, lookback, horizon) -> revision`, for one release per setting."""
    unpinned: str = ""
    """A requirement that pins an older torch than it needs: installed without dependencies, which are in the extra."""
    licence_note: str = ""
    """Terms of the weights or of a library that a user may not expect, as a sentence."""

    def claims(self, checkpoint: Checkpoint) -> bool:
        """Whether the content of a checkpoint identifies this family."""
        if self.files and any(checkpoint.path.glob(self.files)):
            return True
        if self.tensors and checkpoint.tensor_names.issuperset(self.tensors):
            return True
        if not (checkpoint.path / "config.json").exists():
            return False
        named = set(checkpoint.config.get("architectures") or [])
        marked = bool(self.config_keys) and not named and set(self.config_keys) <= set(checkpoint.config)
        return marked or bool(named & set(self.architectures))

    @property
    def installed(self) -> str | None:
        """The installed version of the family's library, or None."""
        return _version(self.distribution)

    @property
    def versions(self) -> str:
        """The distributions that compute its forecasts with their versions, as in `Identity.library`."""
        return ", ".join(f"{name} {_version(name)}" for name in (self.distribution, *self.also))

    @property
    def install_command(self) -> str:
        """Installs the family's library into this environment."""
        return install_command(self.extra, self.unpinned)


# fmt: off
BUILT_IN = (
    Family("chronos-bolt", "hrx.adapters.chronos:ChronosBolt", "chronos-forecasting", "chronos-bolt",
           also=("transformers",), architectures=("ChronosBoltModelForForecasting",)),
    Family("chronos-2", "hrx.adapters.chronos:Chronos2", "chronos-forecasting", "chronos-2",
           also=("transformers",), architectures=("Chronos2Model",)),
    Family("ttm", "hrx.adapters.ttm:TinyTimeMixer", "granite-tsfm", "ttm",
           also=("transformers",), architectures=("TinyTimeMixerForPrediction", "TinyTimeMixerForDecomposedPrediction"),
           revision_selector="hrx.adapters.ttm:select_revision"),
    Family("patchtst-fm", "hrx.adapters.granite:PatchTSTFM", "granite-tsfm", "patchtst-fm",
           also=("transformers",), architectures=("PatchTSTFMForPrediction",)),
    Family("flowstate", "hrx.adapters.granite:FlowState", "granite-tsfm", "flowstate",
           also=("transformers",), architectures=("FlowStateForPrediction",)),
    Family("timesfm-2.5", "hrx.adapters.timesfm:TimesFM25", "timesfm", "timesfm",
           architectures=("TimesFmModelForPrediction",), config_keys=("torch_compile",),
           tensors=("tokenizer.hidden_layer.weight", "output_projection_quantiles.output_layer.weight")),
    Family("timesfm-2.5-hf", "hrx.adapters.timesfm_transformers:TimesFM25Transformers", "transformers",
           "timesfm-transformers", architectures=("TimesFm2_5ModelForPrediction",),
           tensors=("model.input_ff_layer.input_layer.weight", "output_projection_quantiles.output_layer.weight")),
    Family("timesfm-3", "hrx.adapters.timesfm:TimesFM3", "timesfm", "timesfm",
           config_keys=("input_patch_len", "output_patch_len", "residual_block_config", "transformer_config")),
    Family("moirai-2", "hrx.adapters.moirai_2:Moirai2", "uni2ts", "moirai-2",
           config_keys=("num_predict_token", "quantile_levels", "patch_size", "max_seq_len"),
           unpinned="uni2ts==2.0.0"),
    Family("t0", "hrx.adapters.t0:T0", "tfc-t0", "t0", also=("rotary-embedding-torch",),
           config_keys=("embed_dim", "group_every_n", "mlp_hidden_dim", "quantile_levels")),
    Family("timestral", "hrx.adapters.timestral:Timestral", "timecopilot-timestral", "timestral",
           config_keys=("block_schedule", "block_size", "quantile_knots"),
           licence_note="The licence of the released weights (Modified MIT) gives no rights to companies with a "
                        "revenue of more than 20 million dollars a month: read the LICENSE beside the weights."),
    Family("timer", "hrx.adapters.timer_timemoe:Timer", "sktime", "timer",
           also=("transformers",), architectures=("TimerForPrediction",)),
    Family("timemoe", "hrx.adapters.timer_timemoe:TimeMoe", "sktime", "timemoe",
           also=("transformers",), architectures=("TimeMoeForPrediction",)),
    Family("visionts", "hrx.adapters.visionts:VisionTSModel", "visionts", "visionts",
           files="mae_visualize_vit_*.pth"),
    Family("tirex-2", "hrx.adapters.tirex_2:TiRex2", "tirex-2", "tirex-2", also=("flashrnn", "mlstm_kernels"),
           config_keys=("stack_config", "tokenizer_cfg", "scaler_cfg", "future_len"),
           licence_note="Its library needs mlstm_kernels, under the NXAI Community License: a company with more than "
                        "100 million euros of revenue a year needs a commercial licence for use in a product or "
                        "service."),
    Family("toto-2", "hrx.adapters.toto_2:Toto2", "timecopilot-toto-2", "toto-2",
           also=("timecopilot-dd-unit-scaling", "unit-scaling"),
           config_keys=("layer_group_size", "num_variate_layers_per_group", "variate_layer_first")),
    Family(NEURALFORECAST, "hrx.adapters.neuralforecast:NeuralForecastModel", "neuralforecast", "neuralforecast",
           also=("pytorch-lightning",)),
    Family("hrx-trained", "hrx.adapters.backbones:TrainedBackbone", "torch", "",
           config_keys=("hrx_trained", "backbone", "lookback", "horizon")),
)
# fmt: on


class Refused(NamedTuple):
    """A model that is recognised and cannot be audited."""

    name: str
    reason: str
    architectures: tuple[str, ...] = ()
    files: str = ""

    def claims(self, checkpoint: Checkpoint) -> bool:
        """Whether the content of a checkpoint identifies this model."""
        if self.files and any(checkpoint.path.glob(self.files)):
            return True
        named = (checkpoint.path / "config.json").exists() and checkpoint.config.get("architectures")
        return bool(set(named or ()) & set(self.architectures))


REFUSED = (
    Refused("Sundial", "samples its forecast, so the forecast has no input gradient", ("SundialForPrediction",)),
    Refused(
        "TabPFN-TS",
        "fits a tabular regression on each window and forecasts from calendar features, and its differentiable mode "
        "is not its official forecast",
        files="tabpfn-*.ckpt",
    ),
)


class Registered(NamedTuple):
    """An entry point of the group `hrx.adapters`: its family, or why it has none."""

    name: str
    family: Family | None
    problem: str = ""


@lru_cache(maxsize=1)
def families() -> dict[str, Family]:
    """All families by name: the built-in ones and those that installed packages register."""
    found = [*BUILT_IN, *(entry.family for entry in _registered() if entry.family)]
    return {family.name: family for family in found}


def _registered() -> Iterator[Registered]:
    """The entry points of installed packages. One that fails affects its own family only."""
    known = {family.name for family in BUILT_IN}
    for entry in entry_points(group="hrx.adapters"):
        at = f"The entry point {entry.value!r} of hrx.adapters"
        try:
            family = entry.load()
        except (Exception, SystemExit) as error:
            yield Registered(entry.name, None, f"{at} cannot be loaded: {describe_error(error)}. Update its package.")
            continue
        if not isinstance(family, Family):
            yield Registered(entry.name, None, f"{at} is not a Family. Update its package.")
        elif family.name in known:
            yield Registered(entry.name, None, f"{at} registers {family.name!r} a second time. Rename it.")
        else:
            known.add(family.name)
            yield Registered(entry.name, family)


def _problems() -> str:
    """Why families of other packages are missing, for the message that a family is unknown."""
    return "".join(f" {entry.problem}" for entry in _registered() if entry.problem)


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
            model=found.name,
            family=family.name,
            checkpoint=found.source,
            fingerprint=found.fingerprint,
            library=family.versions,
            revision=found.revision,
            weights_dtype=found.weights_dtype,
        )

    def load(self) -> Forecaster:
        _ = self.checkpoint.tensor_names  # reports a damaged file by path before a library reads it
        loader: Callable[[Checkpoint, Identity], Forecaster] = _imported(self.family, self.family.loader)
        try:
            return loader(self.checkpoint, self.identity)
        except ModelError:
            raise
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"{self.family.distribution} could not load {self.checkpoint.path} as {self.family.name}: "
                f"{type(error).__name__}: {shorten(str(error), 300)}. Check that the directory is complete."
            ) from error


def _imported(family: Family, name: str) -> Any:
    """`module:name` of a family, whose library may raise anything when it is imported."""
    try:
        return resolve_name(name)
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"{family.versions} cannot be imported: {describe_error(error)}. Fix its installation, for "
            f"example in an environment of its own: {family.install_command}"
        ) from error


def load(name: str, *, merge_adapter: bool = False) -> Forecaster:
    """The model of that name, ready to run: a short name, a hub id, a directory, or `module:FILE.py:FACTORY`.

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
    if name == EMBEDDED:
        return _checkpoint(Path(__file__).parent / "bolt_mini", name, name)
    prefix, _, rest = name.partition(":")
    if prefix == "module" and rest:
        return ModuleFile.parse(rest)
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
    if merge_adapter and is_adapter(path):
        path = merged_directory(path, locate)
    return _checkpoint(path, label, source)


class CheckpointSettings(NamedTuple):
    """A checkpoint and the settings at which it is audited."""

    located: Located
    settings: list[Pair]
    trained: TrainedRun | None = None
    """What `hrx train` trained it on: it is audited on that series, at that setting and seed only."""


def trained_setting(located: Located) -> Pair | None:
    """The only lookback and horizon of a model that was trained for one setting; None for other models."""
    checkpoint = getattr(located, "checkpoint", None)
    if isinstance(checkpoint, SavedModel):
        return checkpoint.setting
    return next((run.setting for run in trained_runs(checkpoint.path)), None) if checkpoint else None


def _other_settings(name: str, runs: Sequence[TrainedRun]) -> NoReturn:
    known = ", ".join(f"{lookback}x{horizon}" for lookback, horizon in sorted({run.setting for run in runs}))
    raise ModelError(f"No model in {name} was trained at these settings. Drop --settings, or give some of {known}.")


def _trained(run: TrainedRun) -> LocatedCheckpoint:
    """The model of a directory that `hrx train` wrote, by the name of that directory."""
    path = run.path.resolve()
    if is_saved_directory(path):
        found = _saved(str(path))[0]
        return replace(found, checkpoint=replace(found.checkpoint, name=path.name))
    return _checkpoint(path, path.name, path.name)


def _saved(name: str) -> list[LocatedCheckpoint]:
    """The models of a directory that neuralforecast wrote, by its prefix or by its files; empty for other names."""
    prefix, _, rest = name.partition(":")
    path = user_path(name)
    if not (prefix == NEURALFORECAST and rest) and not (os.path.isdir(path) and is_saved_directory(path)):
        return []
    family = families()[NEURALFORECAST]
    found = saved_models(rest if prefix == NEURALFORECAST and rest else name)
    require(family, name)
    return [LocatedCheckpoint(checkpoint, family) for checkpoint in found]


def locate_each(
    name: str, settings: Sequence[Pair], *, merge_adapter: bool = False, as_trained: bool = False
) -> list[CheckpointSettings]:
    """The checkpoints of `name` at the given settings: one for all of them, unless the name ends in `@auto`.

    With `@auto`, a family that releases one checkpoint per lookback and horizon uses its library's own rule, and each
    selected release is a model of its own in the records. A directory of neuralforecast gives all its models, and one
    of `hrx train` all that it trained. With `as_trained`, a model that was trained for one setting has that one instead
    of the given ones; a model of `hrx train` never has another.
    """
    if runs := trained_runs(user_path(name)):
        every = [CheckpointSettings(_trained(run), [run.setting], run) for run in runs]
        return [one for one in every if as_trained or one.settings[0] in settings] or _other_settings(name, runs)
    if saved := _saved(name):
        own = [trained_setting(one) if as_trained else None for one in saved]
        return [
            CheckpointSettings(one, [pair] if pair else list(settings)) for one, pair in zip(saved, own, strict=True)
        ]
    short, _, suffix = name.rpartition("@")
    if suffix != AUTO:
        return [CheckpointSettings(locate(name, merge_adapter=merge_adapter), list(settings))]
    offered = {known: r for known, r in short_names().items() if families()[r.family].revision_selector}
    if short not in offered:
        raise ModelError(
            f"{name} requests one checkpoint per setting, which only {' and '.join(offered)} offer. Drop @{AUTO}."
        )
    family = families()[offered[short].family]
    require(family, name)
    select: Callable[[str, int, int], str] = _imported(family, family.revision_selector)
    by_revision: dict[str, list[Pair]] = {}
    for pair in settings:
        by_revision.setdefault(select(offered[short].hub_id, *pair), []).append(pair)
    return [CheckpointSettings(locate(f"{short}@{revision}"), pairs) for revision, pairs in by_revision.items()]


def _checkpoint(path: Path, name: str, source: str, family: Family | None = None) -> LocatedCheckpoint:
    revision = path.name if path.parent.name == "snapshots" else ""  # the hub names a snapshot by its commit
    checkpoint = Checkpoint(checkpoint_directory(path.resolve()), name, source, revision)
    family = family or _recognise(checkpoint)
    require(family, name)
    return LocatedCheckpoint(checkpoint, family)


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
        raise ModelError(unknown("model", name, known, advice + _problems()))
    return _download(hub_id, revision or None), name, hub_id


def _download(hub_id: str, revision: str | None) -> Path:
    """The hub's snapshot of configuration and weights, from the cache if it is there."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelError(
            f"{hub_id} is downloaded with huggingface_hub, which is not installed. "
            "Install the extra of its family: `hrx models` lists them."
        ) from None
    try:
        path = Path(snapshot_download(hub_id, revision=revision, allow_patterns=["*.json", "*.safetensors", "*.pth"]))
        if not [*path.rglob("*.safetensors"), *path.rglob("*.pth")]:  # a release in the older format only
            path = Path(snapshot_download(hub_id, revision=revision, allow_patterns=["*.json", "*.bin"]))
        return path
    except Exception as error:
        raise ModelError(
            f"{hub_id} is not a local directory and cannot be downloaded: {describe_error(error)}. "
            "Check the name and the network, or download it elsewhere and give its directory."
        ) from error


def _recognise(checkpoint: Checkpoint) -> Family:
    """The family that the checkpoint's files identify."""
    config = checkpoint.path / "config.json"
    if is_adapter(checkpoint.path) or (config.exists() and "peft_type" in checkpoint.config):
        raise ModelError(
            f"{checkpoint.path} is an adapter (LoRA). Merge it into its base model and save that, or give "
            "--merge-adapter."
        )
    for refused in REFUSED:
        if refused.claims(checkpoint):
            raise ModelError(
                f"{checkpoint.path} is a {refused.name} checkpoint, which hrx cannot audit: it {refused.reason}."
            )
    for family in families().values():
        if family.claims(checkpoint):
            return family
    named = checkpoint.config.get("architectures") or []
    raise ModelError(
        f"{checkpoint.path}/config.json names the architecture {', '.join(map(str, named)) or '(none)'}, which no "
        f"family of hrx runs ({', '.join(families())}). Name the family with FAMILY:PATH, or give the model as "
        f"module:FILE.py:FACTORY.{_problems()}"
    )


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
