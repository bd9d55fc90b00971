"""Model cards of the released checkpoints: size, licence, native lengths and declared training data.

Each entry names its sources. A value that is not declared is None or "unknown", never guessed. A checkpoint is
recognised by its hub id, or by its fingerprint if the weights are known; a fine-tuned copy is another model and has no
card.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

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
    seen: frozenset[str] | None = None
    """GIFT-Eval folders named among its training data; None if no list of datasets is declared."""
    saw_all: bool = False
    """Whether the training splits of the whole benchmark are declared as training data."""
    synthetic: bool = False
    """Trained on generated series only, so on no real dataset."""
    fingerprints: tuple[str, ...] = ()
    """Copies that are recognised by their content, whatever the name of their directory."""
    sources: tuple[str, ...] = ()

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


LEADERBOARD = "github.com/SalesforceAIResearch/gift-eval, results/*/config.json"
CHRONOS = "github.com/amazon-science/chronos-forecasting, README.md"
CHRONOS_CORPUS = "github.com/amazon-science/chronos-forecasting, scripts/evaluation/configs/in-domain.yaml"
TTM = "ibm-granite/granite-timeseries-ttm-r2"

_CHRONOS_SEEN = frozenset({"electricity", "kdd_cup_2018_with_missing", "m4_daily", "m4_hourly", "m4_monthly"})
_CHRONOS_SEEN |= {"m4_weekly", "temperature_rain_with_missing"}
_TTM_SEEN = frozenset({"kdd_cup_2018_with_missing", "saugeenday", "solar", "us_births"})
_TTM_21_SEEN = _TTM_SEEN | {"covid_deaths", "hierarchical_sales", "temperature_rain_with_missing"}


# fmt: off
def _bolt(size: str, parameters: int) -> ModelCard:
    return ModelCard(
        f"chronos-bolt-{size}", "chronos-bolt", f"amazon/chronos-bolt-{size}", "Apache-2.0", parameters, 2048, 64,
        pretraining="the training corpora of Chronos", benchmark="test", seen=_CHRONOS_SEEN,
        sources=(CHRONOS, CHRONOS_CORPUS, LEADERBOARD),
    )


MODEL_CARDS = (
    ModelCard(
        EMBEDDED, "chronos-bolt", EMBEDDED, "Apache-2.0", 356_288, 512, 96,
        pretraining="generated series only", synthetic=True, sources=("adapters/bolt_mini/README.md",),
    ),
    _bolt("tiny", 9_000_000),
    _bolt("mini", 21_000_000),
    _bolt("small", 48_000_000),
    _bolt("base", 205_000_000),
    ModelCard(
        "chronos-2", "chronos-2", "amazon/chronos-2", "Apache-2.0", 120_000_000, 8192,
        pretraining="real and generated series listed in its report (arXiv 2510.15821, table 6)",
        benchmark="train", sources=(CHRONOS, LEADERBOARD),
    ),
    ModelCard(
        "ttm-r2", "ttm", TTM, "Apache-2.0", 805_280, 512, 96,
        pretraining="18 public datasets named in its card, and more in the branches r2.1",
        benchmark="test", seen=_TTM_SEEN, sources=(f"huggingface.co/{TTM}, README.md", LEADERBOARD),
        fingerprints=("348b862b15b55bdf09f900bb9daa83393f69691254146498da3746e2b64b1a49",),
    ),
    ModelCard(
        "timesfm-2.5", "timesfm-2.5", "google/timesfm-2.5-200m-pytorch", "Apache-2.0", 200_000_000, 16_384, 1024,
        benchmark="none", sources=("github.com/google-research/timesfm, README.md", LEADERBOARD),
    ),
    ModelCard("timesfm-3", "timesfm-3", "google/timesfm-3.0-pytorch", "timesfm-non-commercial-license-v1.0"),
    ModelCard(
        "moirai-2-small", "moirai-2", "Salesforce/moirai-2.0-R-small", "unknown", 11_400_000,
        pretraining="GIFT-Eval's pretraining data and training splits, Chronos-Mixup, KernelSynth, internal data",
        benchmark="train", saw_all=True, sources=("arXiv 2511.11698", LEADERBOARD),
    ),
    ModelCard(
        "timer-base", "timer", "thuml/timer-base-84m", "Apache-2.0", 84_000_000, 2880, 96,
        pretraining="UTSD and LOTSA", sources=("huggingface.co/thuml/timer-base-84m, README.md",),
    ),
    ModelCard(
        "timemoe-50m", "timemoe", "Maple728/TimeMoE-50M", "Apache-2.0", 113_000_000, 4096, 64,
        pretraining="Time-300B", sources=("huggingface.co/Maple728/TimeMoE-50M, README.md and config.json",),
    ),
    ModelCard(
        "timemoe-200m", "timemoe", "Maple728/TimeMoE-200M", "Apache-2.0", None, 4096, 64,
        pretraining="Time-300B", sources=("huggingface.co/Maple728/TimeMoE-200M, README.md",),
    ),
)
# fmt: on
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
            return _ttm_branch_card(card, branch) if card.hub_id == TTM and branch not in ("", "main") else card
    return UNKNOWN


def _ttm_branch_card(main: ModelCard, branch: str) -> ModelCard:
    """TTM releases one checkpoint per lookback and horizon, as branches such as `512-192-r2` or `90-30-ft-r2.1`."""
    lookback, _, rest = branch.partition("-")
    horizon = rest.partition("-")[0]
    return replace(
        main,
        parameters=None,
        native_lookback=int(lookback) if lookback.isdecimal() else None,
        native_horizon=int(horizon) if horizon.isdecimal() else None,
        seen=_TTM_21_SEEN if branch.endswith("r2.1") else _TTM_SEEN,
    )
