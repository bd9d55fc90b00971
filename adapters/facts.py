"""What is declared about the released checkpoints: size, licence, native lengths, and what they were trained on.

Facts as data, each with the page it was read on. What is not declared is None or "unknown", never guessed. A checkpoint
is recognised by its hub id, or by its fingerprint where the weights are known; a fine-tuned copy is another model, of
which nothing is declared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hrx.adapters.contract import Identity

Leakage = Literal["declared", "possible", "none declared", "unknown"]
"""Whether a model is declared to have seen a dataset, in any part of it.

`declared`: the dataset is named among the training data. `possible`: parts of the benchmark are, but not which.
`none declared`: the training data are declared and do not hold it. `unknown`: nothing is declared.
"""
Benchmark = Literal["test", "train", "none"]


@dataclass(frozen=True)
class Facts:
    """What its makers declare about a checkpoint."""

    hub_id: str
    licence: str
    parameters: int | None = None
    """As published, rounded by the publisher."""
    native_lookback: int | None = None
    """The longest window that it reads, or the only one."""
    native_horizon: int | None = None
    """Steps of one pass; longer forecasts are continued."""
    pretraining: str = "not declared"
    benchmark: Benchmark | None = None
    """What GIFT-Eval's leaderboard says: test data were seen, training splits were used, or neither; None: nothing."""
    seen: frozenset[str] | None = None
    """Folders of GIFT-Eval that are named among its training data; None where no list of datasets is declared."""
    saw_all: bool = False
    """Whether the training splits of the whole benchmark are named."""
    synthetic: bool = False
    """Trained on generated series only: no real dataset can have been seen."""
    fingerprints: tuple[str, ...] = ()
    """Copies that are known by their content, whatever their directory is called."""
    sources: tuple[str, ...] = ()

    def leakage(self, dataset: str, *, in_gift_eval: bool) -> Leakage:
        """Whether `dataset` (`folder` or `folder/frequency`) is declared to have been seen."""
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
TTM_CARD = f"huggingface.co/{TTM}, README.md"

_CHRONOS_SEEN = frozenset(
    {
        "electricity",
        "kdd_cup_2018_with_missing",
        "m4_daily",
        "m4_hourly",
        "m4_monthly",
        "m4_weekly",
        "temperature_rain_with_missing",
    }
)
_TTM_SEEN = frozenset({"kdd_cup_2018_with_missing", "saugeenday", "solar", "us_births"})
_TTM_21_SEEN = _TTM_SEEN | {"covid_deaths", "hierarchical_sales", "temperature_rain_with_missing"}


def _bolt(size: str, parameters: int) -> Facts:
    return Facts(
        hub_id=f"amazon/chronos-bolt-{size}",
        licence="Apache-2.0",
        parameters=parameters,
        native_lookback=2048,
        native_horizon=64,
        pretraining="the training corpora of Chronos",
        benchmark="test",
        seen=_CHRONOS_SEEN,
        sources=(CHRONOS, CHRONOS_CORPUS, LEADERBOARD),
    )


FACTS = (
    Facts(
        hub_id="bolt-mini",
        licence="Apache-2.0",
        parameters=356_288,
        native_lookback=512,
        native_horizon=96,
        pretraining="generated series only",
        synthetic=True,
        sources=("adapters/bolt_mini/README.md",),
    ),
    _bolt("tiny", 9_000_000),
    _bolt("mini", 21_000_000),
    _bolt("small", 48_000_000),
    _bolt("base", 205_000_000),
    Facts(
        hub_id="amazon/chronos-2",
        licence="Apache-2.0",
        parameters=120_000_000,
        native_lookback=8192,
        pretraining="real and generated series listed in its report (arXiv 2510.15821, table 6)",
        benchmark="train",
        sources=(CHRONOS, LEADERBOARD),
    ),
    Facts(
        hub_id=TTM,
        licence="Apache-2.0",
        parameters=805_280,
        native_lookback=512,
        native_horizon=96,
        pretraining="18 public datasets named in its card, and more in the branches r2.1",
        benchmark="test",
        seen=_TTM_SEEN,
        fingerprints=("348b862b15b55bdf09f900bb9daa83393f69691254146498da3746e2b64b1a49",),
        sources=(TTM_CARD, LEADERBOARD),
    ),
    Facts(
        hub_id="google/timesfm-2.5-200m-pytorch",
        licence="Apache-2.0",
        parameters=200_000_000,
        native_lookback=16_384,
        native_horizon=1024,
        benchmark="none",
        sources=("github.com/google-research/timesfm, README.md", LEADERBOARD),
    ),
    Facts(hub_id="google/timesfm-3.0-pytorch", licence="timesfm-non-commercial-license-v1.0"),
    Facts(
        hub_id="Salesforce/moirai-2.0-R-small",
        licence="unknown",
        parameters=11_400_000,
        pretraining="GIFT-Eval's pretraining data and training splits, Chronos-Mixup, KernelSynth, internal data",
        benchmark="train",
        saw_all=True,
        sources=("arXiv 2511.11698", LEADERBOARD),
    ),
    Facts(
        hub_id="thuml/timer-base-84m",
        licence="Apache-2.0",
        parameters=84_000_000,
        native_lookback=2880,
        native_horizon=96,
        pretraining="UTSD and LOTSA",
        sources=("huggingface.co/thuml/timer-base-84m, README.md",),
    ),
    Facts(
        hub_id="Maple728/TimeMoE-50M",
        licence="Apache-2.0",
        parameters=113_000_000,
        native_lookback=4096,
        native_horizon=64,
        pretraining="Time-300B",
        sources=("huggingface.co/Maple728/TimeMoE-50M, README.md and config.json",),
    ),
    Facts(
        hub_id="Maple728/TimeMoE-200M",
        licence="Apache-2.0",
        native_lookback=4096,
        native_horizon=64,
        pretraining="Time-300B",
        sources=("huggingface.co/Maple728/TimeMoE-200M, README.md",),
    ),
)
UNKNOWN = Facts(hub_id="", licence="unknown")
"""Of a checkpoint about which nothing is declared here."""


def declared(hub_id: str) -> Facts:
    """What is declared about a released checkpoint."""
    return next((known for known in FACTS if known.hub_id == hub_id), UNKNOWN)


def facts(identity: Identity) -> Facts:
    """What is declared about a checkpoint, known by its hub id or by the content of its files."""
    for known in FACTS:
        if identity.fingerprint in known.fingerprints:
            return known
        if identity.checkpoint == known.hub_id:
            branch = identity.model.partition("@")[2]
            return _of_ttm_branch(known, branch) if known.hub_id == TTM and branch not in ("", "main") else known
    return UNKNOWN


def _of_ttm_branch(main: Facts, branch: str) -> Facts:
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
