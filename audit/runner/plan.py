"""Runs of an audit: models × datasets × series × settings × seeds, each with the key it is stored under.

Reads series and model cards. Loads no model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from hrx import __version__
from hrx.adapters.contract import ADAPTER_VERSION, Identity, Limits
from hrx.adapters.families import model_card
from hrx.adapters.inputs import POINT, Output
from hrx.audit.attribution import find_estimator
from hrx.audit.protocol import PROTOCOL_VERSION, Protocol
from hrx.errors import HrxError, unknown, without_paths
from hrx.gift_eval.series import DamagedDataset, Dataset, MultivariateSeries, Series, UnusableSeries, spaced
from hrx.gift_eval.windows import Windows, admits, cut, refuse_extreme, refuse_missing
from hrx.records.quantities import Floats
from hrx.records.record import Record

ADMISSION_WINDOWS = 4
FLAT_START = 8
"""A window whose first values are equal, this many, starts flat."""


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
"""Seven settings of the paper: lookbacks at H = 96, and horizons at L = 512."""
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


class ModelKey(NamedTuple):
    """What distinguishes one model from another: the same weights under another family are another model."""

    family: str
    fingerprint: str

    @classmethod
    def of(cls, identity: Identity) -> ModelKey:
        return cls(identity.family, identity.fingerprint)


@dataclass(frozen=True)
class Run:
    """Unit that is stored, resumed and tabulated."""

    identity: Identity
    dataset: Dataset
    series: Series | MultivariateSeries | None
    """None where the series could not be read: `series_error` says why."""
    index: int
    setting: Setting
    seed: int
    windows: int
    protocol: Protocol
    series_error: HrxError | None = field(default=None, compare=False)
    output: Output = POINT
    """Which number of each forecast step is explained."""

    @cached_property
    def key(self) -> str:
        """sha256 of everything that decides the numbers.

        Without the limit on missing values, which only decides whether a run is excluded, and without the needed
        context where it is not measured.
        """
        idle = {"max_missing"}
        if not self.protocol.context:
            idle |= {"context", "context_bound", "context_windows"}
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
            "protocol": {name: value for name, value in _fields(self.protocol).items() if name not in idle},
            "protocol_version": PROTOCOL_VERSION,
        }
        if self.output != POINT:
            decisive["output"] = str(self.output)
        if self.too_many_missing:
            decisive["max_missing"] = self.protocol.max_missing
        if package := find_estimator(self.protocol.estimator).package:
            decisive["estimator_package"] = package
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    @cached_property
    def model_key(self) -> ModelKey:
        return ModelKey.of(self.identity)

    @cached_property
    def stream(self) -> int:
        """Separates the random draws of runs. Independent of the model: two checkpoints get the same draws.

        Independent of the covariates too: a model that takes none has the digits of the series alone.
        """
        alone = self.series and (replace(self.series, covariates=()) if self.series.covariates else self.series)
        source = alone.fingerprint if alone else self.dataset.name
        text = f"{source} {self.setting} {self.seed}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")

    @cached_property
    def series_name(self) -> str:
        return self.series.item if self.series else f"#{self.index}"

    @cached_property
    def channels(self) -> int:
        """Variates of its windows; 0 for univariate windows `(W, L)`."""
        return len(self.series.values) if isinstance(self.series, MultivariateSeries) else 0

    @cached_property
    def bound(self) -> str:
        """What the model is bound to besides one series, the channels of its dataset and the output; empty if nothing.

        In the key the fingerprint of the series stands for its channels.
        """
        if not isinstance(self.series, Series) or not (self.series.covariates or self.output != POINT):
            return ""
        roles = [(one.name, one.role, one.kind) for one in self.series.covariates]
        return f"{self.dataset.name}, {roles}, {self.output}"

    def limits(self, limits: Limits) -> Limits:
        """Limits of a model on this run: with covariates it need not be able to read a series alone."""
        return replace(limits, needs="") if self.bound else limits

    @cached_property
    def example_rank(self) -> tuple[int, Setting, int]:
        """Orders the runs of a dataset by their use as its example: the largest setting, then the first series."""
        return self.setting.lookback * self.setting.horizon, self.setting, -self.index

    @cached_property
    def refusal(self) -> str:
        """Why the series does not admit this setting; empty where it does."""
        if self.series is None:
            return str(self.series_error)
        length = self.series.values.shape[-1]
        if not admits(length, self.setting.lookback, self.setting.horizon):
            return f"{self.series.label} has {length} values, too few for {self.setting}"
        return ""

    @cached_property
    def too_many_missing(self) -> str:
        """Why the run is excluded where most of its test region or of a lookback was filled in; empty otherwise."""
        if self.series is None or self.refusal:
            return ""
        size = self.setting.lookback, self.setting.horizon
        try:
            refuse_missing(self.series, *size, self.windows, self.seed, self.protocol.max_missing)
        except UnusableSeries as error:
            return str(error)
        return ""

    def cut_windows(self) -> Windows:
        """Return the windows that the run is measured on: `x` is `(W, L)`, or `(W, L, C)` for a multivariate item."""
        if self.series is None:
            raise self.series_error or UnusableSeries("the series could not be read")
        if self.too_many_missing:
            raise UnusableSeries(self.too_many_missing)
        windows = cut(self.series, self.setting.lookback, self.setting.horizon, self.windows, self.seed)
        refuse_extreme(windows, self.series.label)
        return windows

    def __getstate__(self) -> dict[str, Any]:
        """For another process: without the functions that read other series, and without what is computed there."""
        state = {one.name: getattr(self, one.name) for one in fields(self)}
        return state | {"dataset": replace(self.dataset, row=_unavailable)}

    def record(self, status: str, reason: str | None = None) -> Record:
        """A record without measured values."""
        protocol = dict(_fields(self.protocol))
        return Record(
            key=self.key,
            status=status,
            reason=reason,
            **_fields(self.identity),
            adapter_version=ADAPTER_VERSION,
            dataset=self.dataset.name,
            domain=self.dataset.domain,
            frequency=self.dataset.frequency,
            season=self.dataset.season,
            series=self.series_name,
            series_fingerprint=self.series.fingerprint if self.series else None,
            missing=int(np.sum(self.series.missing)) if self.series else None,
            lookback=self.setting.lookback,
            horizon=self.setting.horizon,
            seed=self.seed,
            windows=self.windows,
            leakage=model_card(self.identity).leakage(self.dataset.name, in_gift_eval=self.dataset.catalogued),
            protocol_version=PROTOCOL_VERSION,
            protocol_seed=protocol.pop("seed"),
            **protocol,
            estimator_package=find_estimator(self.protocol.estimator).package or None,
            output=str(self.output),
            hrx_version=__version__,
            torch_version=torch.__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )


State = Literal["stored", "to run", "cannot run"]


class PlannedRun(NamedTuple):
    """One run of the plan, with its estimated cost where there is one."""

    key: str
    model: str
    fingerprint: str
    dataset: str
    series: str
    setting: str
    seed: int
    state: State
    reason: str
    """Why it cannot run."""
    seconds: float | None
    memory: int | None
    note: str


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
    output: Output = POINT,
) -> list[Run]:
    """Every run of an audit, model by model, so that each is loaded once.

    Every prefix of a model's runs is a fair sample of them: the first pass takes one series of each dataset, at
    settings that take turns; later passes take the other settings, then the other series, then the other seeds.
    With `channels`, only datasets of several variates, one run per item with all its variates.
    """
    if channels:
        datasets = [dataset for dataset in datasets if dataset.variates > 1 or dataset.damage]
    chosen = [choose_series(dataset, settings, series, channels) for dataset in datasets]
    return [
        Run(identity, dataset, item.series, item.index, setting, seed, windows, protocol, item.error, output)
        for identity in identities
        for seed in range(seeds)
        for place in range(series)
        for turn in range(len(settings))
        for number, dataset in enumerate(datasets)
        for setting in (settings[(turn + number) % len(settings)],)
        for item in chosen[number][setting][place : place + 1]
    ]


class RunCost(NamedTuple):
    """About what one run of a model at a setting takes, or why it cannot be run or estimated."""

    seconds: float | None = None
    memory: int | None = None
    """Bytes of the process."""
    refusal: str = ""
    note: str = ""
    """Why the estimate failed."""


Costs = Mapping[tuple[ModelKey, Setting], RunCost]


def summarise_plan(runs: Iterable[Run], finished: Collection[str], costs: Costs) -> list[PlannedRun]:
    """Return the state of every run, with its estimated cost where `costs` has it."""
    planned = []
    for run in runs:
        cost = costs.get((run.model_key, run.setting), RunCost())
        setting = str(run.setting)
        reason = f"too few values for {setting}" if run.series and run.refusal else run.refusal or cost.refusal
        state: State = "stored" if run.key in finished else "cannot run" if reason else "to run"
        pending = state == "to run"
        planned.append(
            PlannedRun(
                key=run.key,
                model=run.identity.model,
                fingerprint=run.identity.fingerprint,
                dataset=run.dataset.name,
                series=run.series_name,
                setting=setting,
                seed=run.seed,
                state=state,
                reason=without_paths(reason) if state == "cannot run" else "",
                seconds=cost.seconds if pending else None,
                memory=cost.memory if pending else None,
                note=without_paths(cost.note),
            )
        )
    return planned


def in_random_order(runs: Iterable[Run]) -> list[Run]:
    """Return the runs of each model in a uniform random order, the same each time; runs with the same key count once.

    `--until decided` needs it: its test is one of sampling without replacement. A hash of what is planned, without the
    model, seeds the order: two models of one plan get the same, so that their runs pair.
    """
    by_model: dict[ModelKey, dict[str, Run]] = {}
    for run in runs:
        by_model.setdefault(run.model_key, {}).setdefault(run.key, run)
    planned = (list(by_key.values()) for by_key in by_model.values())
    ordered: list[Run] = []
    for part in planned:
        planned_hash = hashlib.sha256(repr(sorted(run.stream for run in part)).encode()).digest()
        order = np.random.default_rng(int.from_bytes(planned_hash, "big")).permutation(len(part))
        ordered += [part[place] for place in order]
    return ordered


def admission_windows(runs: Iterable[Run]) -> Tensor | None:
    """Up to four real windows `(W, L)` that are not flat, from different series where there are several.

    A flat window has no derivative in a model that divides by its spread, and one that starts flat has a derivative
    that finite differences cannot resolve in a model that divides a patch by the spread so far: such windows are taken
    only where there are too few others. None where no series has a usable window: then every run is excluded for a
    reason of its own.
    """
    chosen: dict[str, Floats] = {}
    starting_flat: dict[str, Floats] = {}
    tried: set[tuple[str, int]] = set()
    for run in runs:
        if len(chosen) == ADMISSION_WINDOWS:
            break
        if run.series is None or run.series.fingerprint in chosen or (run.series.fingerprint, run.seed) in tried:
            continue
        tried.add((run.series.fingerprint, run.seed))
        with suppress(UnusableSeries):
            for x in run.cut_windows().x:
                if np.ptp(x[:FLAT_START]) > 0:
                    chosen[run.series.fingerprint] = x
                    break
                if np.ptp(x) > 0:
                    starting_flat.setdefault(run.series.fingerprint, x)
    windows = list((chosen | {name: x for name, x in starting_flat.items() if name not in chosen}).values())
    return torch.as_tensor(np.stack(windows[:ADMISSION_WINDOWS]), dtype=torch.float32) if windows else None


@dataclass(frozen=True)
class ChosenSeries:
    """A series or an item of a dataset by its index, or why it cannot be read."""

    index: int
    series: Series | MultivariateSeries | None
    error: HrxError | None = None


def choose_series(
    dataset: Dataset, settings: Sequence[Setting], series: int, channels: bool = False
) -> dict[Setting, list[ChosenSeries]]:
    """Up to `series` series of a dataset (or items) for each setting, evenly spaced among those that are long enough.

    Where none is, they are spaced among all: their runs are excluded, and say how long they are.
    """
    if dataset.damage:
        damaged = ChosenSeries(0, None, DamagedDataset(dataset.damage))
        return {setting: [damaged] for setting in settings}
    try:
        lengths = dataset.lengths()[:: dataset.variates if channels else 1]
    except (UnusableSeries, DamagedDataset):
        lengths = []  # a damaged row: reading names it
    every = range(dataset.items if channels else dataset.count)
    read: dict[int, ChosenSeries] = {}
    chosen = {}
    for setting in settings:
        enough = [i for i, length in enumerate(lengths) if admits(length, setting.lookback, setting.horizon)]
        among = enough or every
        indices = [among[place] for place in spaced(len(among), series)]
        for index in sorted(set(indices) - set(read)):
            try:
                read[index] = ChosenSeries(index, dataset.read_item(index) if channels else dataset.read(index))
            except (UnusableSeries, DamagedDataset) as error:
                read[index] = ChosenSeries(index, None, error)
        chosen[setting] = [read[index] for index in indices]
    return chosen


@lru_cache(maxsize=64)
def _fields(data: Protocol | Identity) -> Mapping[str, Any]:
    """Return the fields that thousands of runs share, converted once."""
    return data.decisive() if isinstance(data, Protocol) else asdict(data)


def _unavailable(index: int) -> NoReturn:
    raise IndexError(index)
