"""Families of checkpoints: how each is recognised, which library runs it, and what its publisher declares.

A file of this folder, or of `formats`, holds everything about its families and declares each by `NAME = Family(…)`.
Other packages add a family through an entry point of the group `hrx.adapters` with a `Family` as its value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hrx.adapters.inputs import Inputs, Outputs, Role
from hrx.errors import describe_error, install_command

if TYPE_CHECKING:
    from hrx.adapters.checkpoint import Checkpoint
    from hrx.adapters.contract import Identity

EMBEDDED = "bolt-mini"
Benchmark = Literal["test", "train", "none"]
Leakage = Literal["declared", "possible", "none declared", "unknown"]
"""Whether any part of a dataset is declared as training data of a model.

`declared`: the dataset is named. `possible`: parts of the benchmark are named, but not which. `none declared`: the
training data are declared without it. `unknown`: nothing is declared.
"""
_LEADERBOARD = "github.com/SalesforceAIResearch/gift-eval, results/*/config.json"
"""Source of every `ModelCard.benchmark`."""
_FOLDERS = tuple(Path(__file__).parents[1] / name for name in ("families", "formats"))


@dataclass(frozen=True)
class ModelCard:
    """What the publisher of a checkpoint declares about it; what is not declared is None or "unknown"."""

    name: str
    """A short name, as `chronos-2`."""
    hub_id: str
    """A hub id, or the address of the weight file of a model that is not on the hub."""
    licence: str
    parameters: int | None = None
    """As published, so usually rounded."""
    native_lookback: int | None = None
    """Longest window that it reads, or the only one, in steps."""
    native_horizon: int | None = None
    """Steps of one pass; longer forecasts are continued recursively."""
    pretraining: str = "not declared"
    benchmark: Benchmark | None = None
    """What GIFT-Eval's leaderboard states: trained on test data, on training splits, or on neither; None: no entry."""
    seen: tuple[str, ...] | None = None
    """GIFT-Eval folders named among its training data; None if no list of datasets is declared."""
    saw_all: bool = False
    """Whether the training splits of the whole benchmark are declared as training data."""
    synthetic: bool = False
    """Trained on generated series only, so on no real dataset."""
    fingerprints: tuple[str, ...] = ()
    """Copies that are recognised by their content, whatever the name of their directory."""
    sources: tuple[str, ...] = ()
    branches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What differs in other branches than the main one, by a pattern of their names; its groups are whole numbers."""
    family: str = ""

    @property
    def download_advice(self) -> str:
        """How to get the weights of a model that is not on the hub; empty for one that is."""
        elsewhere = self.hub_id.startswith("https://")
        return f"Download {self.hub_id} into a directory of its own and give that directory." if elsewhere else ""

    def leakage(self, dataset: str, *, in_gift_eval: bool) -> Leakage:
        """Whether `dataset` (`folder` or `folder/frequency`) is declared as training data."""
        if self.synthetic:
            return "none declared"
        if not in_gift_eval:
            return "unknown"
        if self.saw_all:
            return "declared"
        if self.seen is not None:
            return "declared" if dataset.split("/")[0] in self.seen else "none declared"
        by_leaderboard: dict[str | None, Leakage] = {"test": "possible", "train": "possible", "none": "none declared"}
        return by_leaderboard.get(self.benchmark, "unknown")

    def of_branch(self, branch: str) -> ModelCard:
        """Card of a branch, by the first pattern that it matches."""
        for pattern, facts in self.branches.items():
            if branch not in ("", "main") and (found := re.fullmatch(pattern, branch)):
                lengths: dict[str, Any] = {name: int(text) for name, text in found.groupdict().items()}
                return replace(self, **facts, **lengths)
        return self


UNKNOWN_CARD = ModelCard("", "", "unknown")
"""Card of a checkpoint about which nothing is declared here."""


@dataclass(frozen=True)
class Family:
    """How checkpoints of a family are recognised, and which library runs them."""

    name: str
    loader: str = ""
    """`module:Class` or `module:function`, called as `loader(checkpoint, identity) -> Forecaster`."""
    distribution: str = ""
    """PyPI distribution of the family's library."""
    extra: str = ""
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
    promises: tuple[str, ...] = ()
    """Properties of the contract that its publisher documents, such as `sign`, beside those of every forecaster."""
    revision_selector: str = ""
    """`module:function`, called as `(hub_id, lookback, horizon) -> revision`, for one release per setting."""
    unpinned: str = ""
    """A requirement that pins an older torch than it needs: installed without dependencies, which are in the extra."""
    licence_note: str = ""
    """Terms of the weights or of a library that a user may not expect, as a sentence."""
    released: tuple[ModelCard, ...] = ()
    inputs: Inputs = field(default_factory=Inputs)
    """What its official call reads beside one series; a checkpoint may take less, or have inputs that it requires."""
    outputs: Outputs = field(default_factory=Outputs)
    """What its official call gives beside the point forecast; the levels of a checkpoint may be others."""
    refusal: str = ""
    """Why hrx cannot audit such a model, as a clause; empty for one that it can."""

    def claims(self, checkpoint: Checkpoint) -> bool:
        """Whether the content of a checkpoint identifies this family."""
        if self.files and any(checkpoint.path.glob(self.files)):
            return True
        if self.tensors and checkpoint.tensor_names.issuperset(self.tensors):
            return True
        if not (checkpoint.path / "config.json").exists():
            return False
        if checkpoint.architectures:
            return not set(self.architectures).isdisjoint(checkpoint.architectures)
        return bool(self.config_keys) and set(self.config_keys) <= set(checkpoint.config)

    @property
    def installed(self) -> str | None:
        """Installed version of the family's library, or None."""
        return _version(self.distribution)

    @property
    def versions(self) -> str:
        """Distributions that compute its forecasts with their versions, as in `Identity.library`."""
        return ", ".join(f"{name} {_version(name)}" for name in (self.distribution, *self.also))

    @property
    def install_command(self) -> str:
        """Installs the family's library into this environment."""
        return install_command(self.extra, self.unpinned)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


SUNDIAL = Family(
    "Sundial", architectures=("SundialForPrediction",),
    refusal="samples its forecast, so the forecast has no input gradient",
)  # fmt: skip
TABPFN_TS = Family(
    "TabPFN-TS", files="tabpfn-*.ckpt",
    refusal="fits a tabular regression on each window and forecasts from calendar features, and its differentiable "
    "mode is not its official forecast",
)  # fmt: skip


@cache
def built_in() -> tuple[Family, ...]:
    """Families that the files of hrx declare, refused ones too."""
    found = []
    for file in (file for folder in _FOLDERS for file in sorted(folder.glob("*.py"))):
        names: dict[str, Any] = {one.__name__: one for one in (Family, ModelCard, Inputs, Outputs, Role)}
        names["__name__"] = f"hrx.adapters.{file.parent.name}.{file.stem}"
        for node in ast.parse(file.read_text(encoding="utf-8"), str(file)).body:
            # Each is evaluated alone: importing the file would import torch and a model library.
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Family("):
                found.append(eval(compile(ast.Expression(node.value), str(file), "eval"), names))
    return tuple(found)


@cache
def families() -> dict[str, Family]:
    """Families that hrx runs, by name: the built-in ones and those that installed packages register."""
    found = [*built_in(), *(family for family in _registered() if isinstance(family, Family))]
    return {family.name: family for family in found if not family.refusal}


def _registered() -> Iterator[Family | str]:
    """Families of the entry points of installed packages, a sentence for each that has none."""
    known = {family.name for family in built_in()}
    for entry in entry_points(group="hrx.adapters"):
        at = f"The entry point {entry.value!r} of hrx.adapters"
        try:
            family = entry.load()
        except (Exception, SystemExit) as error:
            yield f"{at} cannot be loaded: {describe_error(error)}. Update its package."
            continue
        if not isinstance(family, Family):
            yield f"{at} is not a Family. Update its package."
        elif family.name in known:
            yield f"{at} registers {family.name!r} a second time. Rename it."
        else:
            known.add(family.name)
            yield family


def registration_problems() -> str:
    """Why families of other packages are missing, as sentences for the message that a family is unknown."""
    return "".join(f" {problem}" for problem in _registered() if isinstance(problem, str))


@cache
def model_cards() -> tuple[ModelCard, ...]:
    """Cards of all released checkpoints."""
    cards = [replace(card, family=family.name) for family in families().values() for card in family.released]
    return tuple(replace(c, sources=(*c.sources, _LEADERBOARD)) if c.benchmark else c for c in cards)


def short_names() -> dict[str, ModelCard]:
    """Released checkpoints on the hub by short name."""
    return {card.name: card for card in model_cards() if card.name != EMBEDDED}


def published_card(hub_id: str) -> ModelCard:
    """Card of a released checkpoint."""
    return next((card for card in model_cards() if card.hub_id == hub_id), UNKNOWN_CARD)


def model_card(identity: Identity) -> ModelCard:
    """Card of a checkpoint, recognised by its hub id or by the content of its files.

    A fine-tuned copy is another model and has no card.
    """
    for card in model_cards():
        if identity.fingerprint in card.fingerprints:
            return card
        if identity.checkpoint == card.hub_id:
            return card.of_branch(identity.model.partition("@")[2])
    return UNKNOWN_CARD
