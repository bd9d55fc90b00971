"""Which runs there are: models × datasets × series × settings × seeds, each with a key that decides whether it is done.

Reads series and checkpoint facts, runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NoReturn

import numpy as np
import torch

from hrx.adapters import Identity, facts
from hrx.adapters.contract import ADAPTER_VERSION
from hrx.audit.attribution.registry import package_of
from hrx.audit.ledger.record import Record
from hrx.audit.protocol import PROTOCOL_VERSION, Protocol
from hrx.errors import HrxError, unknown
from hrx.gift_eval import DamagedDataset, Dataset, MultivariateSeries, Series, UnusableSeries, admits, spaced


@dataclass(frozen=True, order=True)
class Setting:
    """One lookback and horizon."""

    lookback: int
    horizon: int

    def __str__(self) -> str:
        return f"{self.lookback}x{self.horizon}"


QUICK = (Setting(96, 24), Setting(512, 96))
STAR = tuple(Setting(lookback, 96) for lookback in (96, 192, 320, 512)) + tuple(
    Setting(512, horizon) for horizon in (24, 48, 192)
)
"""The seven settings of the paper: lookbacks at H = 96, and horizons at L = 512."""
NAMED = {"quick": QUICK, "star": STAR}


def parse_settings(text: str) -> tuple[Setting, ...]:
    """`star`, `quick`, or pairs such as `96x24,512x96`."""
    if text in NAMED:
        return NAMED[text]
    if not re.fullmatch(r"\d{1,7}x\d{1,7}(,\d{1,7}x\d{1,7})*", text):
        raise HrxError(unknown("settings", text, NAMED, "Pairs work too: LOOKBACKxHORIZON,… as in 96x24,512x96."))
    settings = tuple(dict.fromkeys(Setting(*map(int, pair.split("x"))) for pair in text.split(",")))
    for setting in settings:
        if not (setting.lookback and setting.horizon):
            raise HrxError(f"The setting {setting} has a zero. Lookback and horizon are at least 1.")
    return settings


@dataclass(frozen=True)
class Run:
    """The unit that is stored, resumed and tabulated."""

    identity: Identity
    dataset: Dataset
    series: Series | MultivariateSeries | None
    """None where the series could not be read: then `trouble` says why."""
    index: int
    setting: Setting
    seed: int
    windows: int
    protocol: Protocol
    trouble: HrxError | None = field(default=None, compare=False)
    pictured: bool = False
    """Whether it may be the one of its dataset whose first window is kept with its matrix, for a picture."""

    @cached_property
    def key(self) -> str:
        """sha256 of everything that decides the numbers."""
        decisive: dict[str, Any] = {
            "family": self.identity.family,
            "fingerprint": self.identity.fingerprint,
            "library": self.identity.library,
            "torch": torch.__version__.split("+")[0],
            "adapter_version": ADAPTER_VERSION,
            "dataset": self.dataset.name,
            "series": self.series.fingerprint if self.series else self.index,
            "season": self.dataset.season,
            "setting": str(self.setting),
            "seed": self.seed,
            "windows": self.windows,
            "protocol": _fields(self.protocol),
            "protocol_version": PROTOCOL_VERSION,
        }
        if package := package_of(self.protocol.estimator):
            decisive["estimator_package"] = package
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    @property
    def stream(self) -> int:
        """Separates this run's draws from others'. Free of the model, so that two checkpoints meet the same draws."""
        source = self.series.fingerprint if self.series else self.dataset.name
        text = f"{source} {self.setting} {self.seed}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")

    @property
    def channels(self) -> int:
        """Variates of its windows; 0 where they are `(W, L)`."""
        return len(self.series.values) if isinstance(self.series, MultivariateSeries) else 0

    @property
    def size(self) -> tuple[int, Setting, int]:
        """Orders the runs of a dataset by how much a picture of them shows: the largest setting, the first series."""
        return self.setting.lookback * self.setting.horizon, self.setting, -self.index

    @property
    def refusal(self) -> str:
        """Why the series cannot be run at this setting, empty where it can."""
        if self.series is None:
            return str(self.trouble)
        length = self.series.values.shape[-1]
        if not admits(length, self.setting.lookback, self.setting.horizon):
            return f"{self.series.label} has {length} values, too few for {self.setting}"
        return ""

    def portable(self) -> Run:
        """The same run for another process: with the series that was read, without the way to read others."""
        return replace(self, dataset=replace(self.dataset, row=_read_already))

    def facts(self) -> Record:
        """The part of the record that is known before the run."""
        protocol = dict(_fields(self.protocol))
        return {
            "key": self.key,
            **_fields(self.identity),
            "adapter_version": ADAPTER_VERSION,
            "dataset": self.dataset.name,
            "domain": self.dataset.domain,
            "frequency": self.dataset.frequency,
            "season": self.dataset.season,
            "series": self.series.item if self.series else f"#{self.index}",
            "series_fingerprint": self.series.fingerprint if self.series else None,
            "missing": int(np.sum(self.series.missing)) if self.series else None,
            "lookback": self.setting.lookback,
            "horizon": self.setting.horizon,
            "seed": self.seed,
            "windows": self.windows,
            "leakage": facts(self.identity).leakage(self.dataset.name, in_gift_eval=self.dataset.catalogued),
            "protocol_version": PROTOCOL_VERSION,
            "protocol_seed": protocol.pop("seed"),
            **protocol,
        }


def plan(
    identities: Iterable[Identity],
    datasets: Sequence[Dataset],
    settings: Sequence[Setting],
    *,
    series: int,
    seeds: int,
    windows: int,
    protocol: Protocol,
    channels: bool = False,
) -> list[Run]:
    """Every run of an audit, model by model and setting by setting, so that a model is loaded once.

    With `channels`, the items of datasets that have several variates, each with all of them together.
    """
    if channels:
        datasets = [dataset for dataset in datasets if dataset.variates > 1 or dataset.damage]
    chosen = [(dataset, list(_read(dataset, series, channels))) for dataset in datasets]
    return [
        Run(
            identity,
            dataset,
            found,
            index,
            setting,
            seed,
            windows,
            protocol,
            trouble,
            pictured=seed == 0,
        )
        for identity in identities
        for setting in settings
        for dataset, all_found in chosen
        for index, found, trouble in all_found
        for seed in range(seeds)
    ]


Found = tuple[int, Series | MultivariateSeries | None, HrxError | None]
"""A series of a dataset by its index, or why it cannot be read."""


def _read(dataset: Dataset, series: int, channels: bool) -> Iterator[Found]:
    """Up to so many evenly spaced series of a dataset, or items."""
    if dataset.damage:
        yield 0, None, DamagedDataset(dataset.damage)
    for index in spaced(dataset.items if channels else dataset.count, series):
        try:
            yield index, dataset.read_item(index) if channels else dataset.read(index), None
        except (UnusableSeries, DamagedDataset) as error:
            yield index, None, error


@lru_cache(maxsize=64)
def _fields(data: Protocol | Identity) -> Mapping[str, Any]:
    """The fields of what thousands of runs share, made once."""
    return data.decisive() if isinstance(data, Protocol) else asdict(data)


def _read_already(index: int) -> NoReturn:
    raise IndexError(index)
