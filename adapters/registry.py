"""From a name to a model: `locate` finds a checkpoint without importing its library, `load` opens it.

A name is the embedded `bolt-mini`, a short name (`chronos-2`), a hub id, either with `@revision`, a local directory,
`family:path`, or `module:file.py:factory`. A checkpoint's family is recognised from its own `config.json`. Third
parties add a family by an entry point of the group `hrx.adapters` whose value is a `Family`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Protocol, cast

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Forecaster, Identity, ModelError
from hrx.adapters.module import ModuleFile
from hrx.errors import unknown

EMBEDDED = "bolt-mini"


@dataclass(frozen=True)
class Family:
    """What hrx knows of a family before its library is imported."""

    name: str
    loader: str
    """`module:function`, called as `function(checkpoint, identity) -> Forecaster`."""
    distribution: str
    """The PyPI distribution that must be installed."""
    extra: str
    also: tuple[str, ...] = ()
    """Other distributions that compute the forecast, and so decide a run's numbers."""
    architectures: tuple[str, ...] = ()
    """Values of `architectures` in `config.json` that this family runs."""
    config_keys: tuple[str, ...] = ()
    """Keys that together mark its `config.json`, for a library that writes no `architectures`."""
    files: str = ""
    """A pattern of its weight files, for a library that writes no `config.json` at all."""
    tensors: tuple[str, ...] = ()
    """Names that together mark its weights, for a release without a `config.json`."""
    chooser: str = ""
    """`module:function`, called as `function(hub_id, lookback, horizon) -> revision`, for a family that releases one
    checkpoint per setting."""
    unpinned: str = ""
    """A distribution that runs with today's torch but pins an older one: the extra holds what it needs, and it is
    installed without its pins."""

    def claims(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is of this family, by its content."""
        if self.files and any(checkpoint.path.glob(self.files)):
            return True
        if not checkpoint.has_config:
            return bool(self.tensors) and checkpoint.tensor_names.issuperset(self.tensors)
        if not (self.architectures or self.config_keys):
            return False
        named = set(checkpoint.config.get("architectures") or [])
        marked = bool(self.config_keys) and not named and set(self.config_keys) <= set(checkpoint.config)
        return marked or bool(named & set(self.architectures))

    @property
    def installed(self) -> str | None:
        """The installed version of the family's library."""
        return _version(self.distribution)

    @property
    def versions(self) -> str:
        """The distributions that compute its forecasts, with their versions."""
        return ", ".join(f"{name} {_version(name)}" for name in (self.distribution, *self.also))

    @property
    def install_command(self) -> str:
        without_pins = f" && pip install --no-deps {self.unpinned}" if self.unpinned else ""
        return f"pip install 'hrx[{self.extra}]'{without_pins}"


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


BUILT_IN = (
    Family(
        name="chronos-bolt",
        loader="hrx.adapters.chronos_bolt:load",
        distribution="chronos-forecasting",
        extra="chronos-bolt",
        also=("transformers",),
        architectures=("ChronosBoltModelForForecasting",),
    ),
    Family(
        name="chronos-2",
        loader="hrx.adapters.chronos_2:load",
        distribution="chronos-forecasting",
        extra="chronos-2",
        also=("transformers",),
        architectures=("Chronos2Model",),
    ),
    Family(
        name="ttm",
        loader="hrx.adapters.ttm:load",
        distribution="granite-tsfm",
        extra="ttm",
        also=("transformers",),
        architectures=("TinyTimeMixerForPrediction",),
        chooser="hrx.adapters.ttm:branch",
    ),
    Family(
        name="timesfm-2.5",
        loader="hrx.adapters.timesfm_25:load",
        distribution="timesfm",
        extra="timesfm",
        architectures=("TimesFmModelForPrediction",),
        config_keys=("torch_compile",),
        tensors=("tokenizer.hidden_layer.weight", "output_projection_quantiles.output_layer.weight"),
    ),
    Family(
        name="timesfm-3",
        loader="hrx.adapters.timesfm_3:load",
        distribution="timesfm",
        extra="timesfm",
        config_keys=("input_patch_len", "output_patch_len", "residual_block_config", "transformer_config"),
    ),
    Family(
        name="moirai-2",
        loader="hrx.adapters.moirai_2:load",
        distribution="uni2ts",
        extra="moirai-2",
        config_keys=("num_predict_token", "quantile_levels", "patch_size", "max_seq_len"),
        unpinned="uni2ts==2.0.0",
    ),
    Family(
        name="timer",
        loader="hrx.adapters.timer:load",
        distribution="sktime",
        extra="timer",
        also=("transformers",),
        architectures=("TimerForPrediction",),
    ),
    Family(
        name="timemoe",
        loader="hrx.adapters.timemoe:load",
        distribution="sktime",
        extra="timemoe",
        also=("transformers",),
        architectures=("TimeMoeForPrediction",),
    ),
    Family(
        name="visionts",
        loader="hrx.adapters.visionts:load",
        distribution="visionts",
        extra="visionts",
        files="mae_visualize_vit_*.pth",
    ),
)


@dataclass(frozen=True)
class Released:
    """A released checkpoint that has a short name."""

    name: str
    family: str
    hub_id: str


RELEASED = (
    Released("chronos-bolt-tiny", "chronos-bolt", "amazon/chronos-bolt-tiny"),
    Released("chronos-bolt-mini", "chronos-bolt", "amazon/chronos-bolt-mini"),
    Released("chronos-bolt-small", "chronos-bolt", "amazon/chronos-bolt-small"),
    Released("chronos-bolt-base", "chronos-bolt", "amazon/chronos-bolt-base"),
    Released("chronos-2", "chronos-2", "amazon/chronos-2"),
    Released("ttm-r2", "ttm", "ibm-granite/granite-timeseries-ttm-r2"),
    Released("timesfm-2.5", "timesfm-2.5", "google/timesfm-2.5-200m-pytorch"),
    Released("timesfm-3", "timesfm-3", "google/timesfm-3.0-pytorch"),
    Released("moirai-2-small", "moirai-2", "Salesforce/moirai-2.0-R-small"),
    Released("timer-base", "timer", "thuml/timer-base-84m"),
    Released("timemoe-50m", "timemoe", "Maple728/TimeMoE-50M"),
    Released("timemoe-200m", "timemoe", "Maple728/TimeMoE-200M"),
)


class Located(Protocol):
    """A model that was found and not loaded yet: enough to plan with."""

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
        return Identity(
            model=self.checkpoint.name,
            family=self.family.name,
            checkpoint=self.checkpoint.source,
            fingerprint=self.checkpoint.fingerprint,
            library=self.family.versions,
            revision=self.checkpoint.revision,
        )

    def load(self) -> Forecaster:
        self.checkpoint.verify()
        module, function = self.family.loader.split(":")
        loader = cast(Callable[[Checkpoint, Identity], Forecaster], getattr(import_module(module), function))
        try:
            return loader(self.checkpoint, self.identity)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"{self.family.distribution} could not load {self.checkpoint.path} as {self.family.name}: "
                f"{type(error).__name__}: {error}. Check that the directory is complete."
            ) from error


@lru_cache(maxsize=1)
def families() -> dict[str, Family]:
    """Every family by name: the built-in ones, and those that installed packages register."""
    found = {family.name: family for family in BUILT_IN}
    for entry in entry_points(group="hrx.adapters"):
        family = entry.load()
        if not isinstance(family, Family):
            raise ModelError(f"The entry point {entry.value!r} of hrx.adapters is not a Family. Update that package.")
        if family.name in found:
            raise ModelError(f"The entry point {entry.value!r} registers {family.name!r}, which is taken. Rename it.")
        found[family.name] = family
    return found


def short_names() -> dict[str, Released]:
    """Released checkpoints by short name."""
    return {released.name: released for released in RELEASED}


def load(name: str) -> Forecaster:
    """The model of that name, ready to run."""
    return locate(name).load()


def locate(name: str) -> Located:
    """Finds the checkpoint that `name` stands for, downloading it where it is a hub id that is not cached."""
    if name == EMBEDDED:
        return _checkpoint(Path(__file__).parent / "bolt_mini", name, name)
    prefix, _, rest = name.partition(":")
    if prefix == "module" and rest:
        return ModuleFile.parse(rest)
    if prefix in families() and rest:
        return _checkpoint(*_fetch(rest), family=families()[prefix])
    short, at, revision = name.partition("@")
    if released := short_names().get(short):
        path, _, source = _fetch(released.hub_id + at + revision)
        return _checkpoint(path, name, source, family=families()[released.family])
    return _checkpoint(*_fetch(name))


def _checkpoint(path: Path, name: str, source: str, family: Family | None = None) -> LocatedCheckpoint:
    checkpoint = Checkpoint(path.resolve(), name, source, revision=_revision(path))
    family = family or _recognise(checkpoint)
    require(family, name)
    return LocatedCheckpoint(checkpoint, family)


def require(family: Family, name: str) -> None:
    """Refuses a family whose library is not installed."""
    if family.installed is None:
        raise ModelError(
            f"{name} is a {family.name} checkpoint and needs {family.distribution}, which is not installed. "
            f"Run: {family.install_command}"
        )


def _fetch(name: str) -> tuple[Path, str, str]:
    """A local directory as it is, or the hub's snapshot: its path, what to call it, and its source."""
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path, path.resolve().name, path.resolve().name
    if name and path.exists():
        raise ModelError(f"{name} is a file. A checkpoint is a directory with config.json and its weights.")
    hub_id, _, revision = name.partition("@")
    if not _is_hub_id(hub_id):
        known = [EMBEDDED, *short_names()]
        advice = "A hub id (OWNER/NAME[@REVISION]), a directory, FAMILY:PATH and module:FILE.py:FACTORY work too."
        raise ModelError(unknown("model", name, known, advice))
    return _download(hub_id, revision or None), name, hub_id


def _is_hub_id(name: str) -> bool:
    owner, slash, repository = name.partition("/")
    return bool(slash and owner and repository) and "/" not in repository and not name.startswith((".", "~"))


def _download(hub_id: str, revision: str | None) -> Path:
    """The hub's snapshot of configuration and weights, from the cache where it is there already."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelError(
            f"{hub_id} would be downloaded with huggingface_hub, which is not installed. "
            "Install the extra of its family, as `hrx models` lists them."
        ) from None
    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=["*.json", "*.safetensors", "*.pth"]))
    except Exception as error:
        raise ModelError(
            f"{hub_id} is neither a local directory nor could it be downloaded: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no reason given'}. Check the name and the network, "
            "or download it elsewhere and give its directory."
        ) from error


def _revision(path: Path) -> str:
    """The commit of a hub snapshot, whose directory is named by it."""
    return path.name if path.parent.name == "snapshots" else ""


def _recognise(checkpoint: Checkpoint) -> Family:
    """The family that the checkpoint's own files name."""
    adapter = (checkpoint.path / "adapter_config.json").exists()
    if adapter or (checkpoint.has_config and "peft_type" in checkpoint.config):
        raise ModelError(f"{checkpoint.path} is an adapter (LoRA). Merge it into its base model and save that.")
    for family in families().values():
        if family.claims(checkpoint):
            return family
    named = checkpoint.config.get("architectures") or []
    raise ModelError(
        f"{checkpoint.path}/config.json names the architecture {', '.join(map(str, named)) or '(none)'}, which no "
        f"family of hrx runs ({', '.join(families())}). Name the family yourself with FAMILY:PATH, or bring the "
        "model as module:FILE.py:FACTORY."
    )
