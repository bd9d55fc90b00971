"""Model cards of the released checkpoints: size, licence, native lengths and declared training data.

They are in `model_cards.csv`, each with its sources. A value that is not declared is None or "unknown", never guessed.
A checkpoint is recognised by its hub id, or by its fingerprint if the weights are known; a fine-tuned copy is another
model and has no card.
"""

import csv
import re
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Literal

from hrx.adapters.contract import Identity

Leakage = Literal["declared", "possible", "none declared", "unknown"]
"""Whether any part of a dataset is declared as training data of a model.

`declared`: the dataset is named. `possible`: parts of the benchmark are named, but not which. `none declared`: the
training data are declared without it. `unknown`: nothing is declared.
"""
Benchmark = Literal["test", "train", "none"]
EMBEDDED = "bolt-mini"


@dataclass(frozen=True)
class ModelCard:
    """What the publisher of a checkpoint declares about it."""

    name: str
    """The short name, as `chronos-2`."""
    family: str
    hub_id: str
    """A hub id, or the address of the weight file of a model that is not on the hub."""
    licence: str
    parameters: int | None = None
    """As published, so usually rounded."""
    native_lookback: int | None = None
    """The longest window that it reads, or the only one, in steps."""
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

    @property
    def download_advice(self) -> str:
        """How to get the weights of a model that is not on the hub; empty for one that is."""
        if not self.hub_id.startswith("https://"):
            return ""
        return f"Download {self.hub_id} into a directory of its own and give that directory."

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
        if self.benchmark in ("test", "train"):
            return "possible"
        return "none declared" if self.benchmark == "none" else "unknown"


_TTM = ("ibm-granite/granite-timeseries-ttm-r2", "ibm-granite/granite-timeseries-ttm-r3")
_FLOWSTATE = "ibm-granite/granite-timeseries-flowstate-r1"
_MORE_IN_TTM_21 = {"covid_deaths", "hierarchical_sales", "temperature_rain_with_missing"}
"""What the branches r2.1 have seen beside the datasets of the card."""


def _read_card(line: dict[str, str]) -> ModelCard:
    """A line of `model_cards.csv`. An empty cell is not declared; the names of a list are separated by semicolons."""
    values: dict[str, Any] = {name: cell for name, cell in line.items() if cell}
    values |= {name: int(cell) for name, cell in values.items() if cell.isdecimal()}
    values |= {name: cell == "yes" for name, cell in values.items() if name in ("synthetic", "saw_all")}
    lists = ("sources", "fingerprints", "seen")
    values |= {name: tuple(cell.split("; ")) for name, cell in values.items() if name in lists}
    return ModelCard(**values)


_TEXT = files(__package__).joinpath("model_cards.csv").read_text(encoding="utf-8")
MODEL_CARDS = tuple(map(_read_card, csv.DictReader(_TEXT.splitlines())))
UNKNOWN = ModelCard("", "", "", "unknown")
"""The card of a checkpoint about which nothing is declared here."""


def short_names() -> dict[str, ModelCard]:
    """Released checkpoints on the hub by short name."""
    return {card.name: card for card in MODEL_CARDS if card.name != EMBEDDED}


def published_card(hub_id: str) -> ModelCard:
    """The card of a released checkpoint."""
    return next((card for card in MODEL_CARDS if card.hub_id == hub_id), UNKNOWN)


def model_card(identity: Identity) -> ModelCard:
    """The card of a checkpoint, recognised by its hub id or by the content of its files."""
    for card in MODEL_CARDS:
        if identity.fingerprint in card.fingerprints:
            return card
        if identity.checkpoint == card.hub_id:
            branch = identity.model.partition("@")[2]
            return card if branch in ("", "main") else _branch_card(card, branch)
    return UNKNOWN


def _branch_card(main: ModelCard, branch: str) -> ModelCard:
    """The card of another branch than the main one.

    TTM releases one checkpoint per lookback and horizon, as branches such as `512-192-r2` or `90-30-ft-r2.1`.
    """
    if main.hub_id == _FLOWSTATE and branch == "r1.1":
        return replace(main, parameters=18_500_000, native_lookback=4096)
    if main.hub_id not in _TTM:
        return main
    lengths = re.match(r"(\d+)-(\d+)-", branch)
    lookback, horizon = map(int, lengths.groups()) if lengths else (None, None)
    more = _MORE_IN_TTM_21 if branch.endswith("r2.1") else ()
    seen = None if main.seen is None else (*main.seen, *more)
    return replace(main, parameters=None, native_lookback=lookback, native_horizon=horizon, seen=seen)
