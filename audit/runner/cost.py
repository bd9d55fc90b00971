"""What a plan will take: what each model can run, and about how long and how much memory, from a short probe.

The probe measures one window with as few draws as there can be, and one small batch of forecasts; a run has more
windows and more draws of the same. The larger settings are not measured but scaled once a model has cost enough time.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from hrx.adapters import Forecaster, ModelError
from hrx.audit.admission.results import admission_windows
from hrx.audit.memory import Budget
from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import Run, Setting
from hrx.audit.runner.run import together
from hrx.audit.runner.worker import ModelKey, WorkerContext
from hrx.audit.scoring.channels import score_channels
from hrx.audit.scoring.score import score_in_full
from hrx.errors import describe_error

PROBE_SECONDS = 15.0
PROBE_BATCH = 64


class Estimate(NamedTuple):
    """About what one run takes."""

    seconds: float
    memory: int
    """Bytes of the process."""


@dataclass
class Surveyed:
    """What is known of a model before its runs."""

    trouble: str = ""
    """Why it cannot be loaded."""
    refusals: dict[Setting, str] = field(default_factory=dict)
    """Settings that it cannot take, and why."""
    estimates: dict[Setting, Estimate] = field(default_factory=dict)
    note: str = ""
    """Why there is no estimate, where there is none."""


def survey(runs: Sequence[Run], finished: Collection[str], bench: WorkerContext) -> dict[ModelKey, Surveyed]:
    """Opens each model that has anything left to do, and probes it at the settings that are left."""
    left: dict[ModelKey, dict[Setting, list[Run]]] = {}
    for run in runs:
        if run.key not in finished:
            left.setdefault(ModelKey.of(run.identity), {}).setdefault(run.setting, []).append(run)
    return {who: _one(who, settings, bench) for who, settings in left.items()}


def _one(who: ModelKey, settings: dict[Setting, list[Run]], bench: WorkerContext) -> Surveyed:
    found = Surveyed()
    try:
        model = bench.model(who)
    except ModelError as error:
        found.trouble = str(error)
        return found
    began = time.perf_counter()
    for setting in sorted(settings, key=_area):
        if refusal := model.limits.refusal(setting.lookback, setting.horizon):
            found.refusals[setting] = f"{model.identity.model} {refusal}"
        elif found.estimates and time.perf_counter() - began > PROBE_SECONDS:
            found.estimates[setting] = _scaled(found.estimates, setting)
        else:
            try:
                estimate = probe(model, settings[setting], bench.budget)
            except Exception as error:  # the runs will meet it too, and tell it in their records
                found.note = describe_error(error)
            else:
                found.estimates |= {} if estimate is None else {setting: estimate}
    return found


def probe(model: Forecaster, runs: Sequence[Run], budget: Budget) -> Estimate | None:
    """About what a run takes, measured on one real window of `runs`; None where they have none."""
    windows = admission_windows(runs)
    if windows is None:
        return None
    run, horizon = runs[0], runs[0].setting.horizon
    model = model.for_season(run.dataset.season)
    model = together(model) if run.channels else model
    memory = _resident() + budget.peak(model, windows[0], horizon)  # the first look at the model warms it up, too
    least = replace(run.protocol, draws=run.protocol.draws_per_unit, precision=None)
    began = time.perf_counter()
    forecasts = _forecasts(model, windows[:1], horizon, least, budget)
    first = time.perf_counter() - began
    batch = torch.cat([windows[:1]] * min(PROBE_BATCH, budget.rows(model, windows[0], horizon, PROBE_BATCH)))
    began = time.perf_counter()
    with torch.no_grad():
        model.forward(batch, horizon)
    each = (time.perf_counter() - began) / len(batch)
    further = (run.protocol.draws - least.draws) * forecasts / least.draws
    return Estimate(run.windows * (first + further * each), memory)


def _forecasts(model: Forecaster, x: Tensor, horizon: int, protocol: Protocol, budget: Budget) -> int:
    """Measures a window, and tells how many perturbed forecasts that took."""
    if x.ndim == 3:
        both = score_channels(model, x, horizon, protocol=protocol, budget=budget)
        return both.time.forecasts + both.channel.forecasts
    return score_in_full(model, x, horizon, protocol=protocol, budget=budget).quantities.forecasts


def _scaled(measured: dict[Setting, Estimate], setting: Setting) -> Estimate:
    """From the largest setting that was measured, by the area of the matrix."""
    largest = max(measured, key=_area)
    share = _area(setting) / _area(largest)
    return Estimate(measured[largest].seconds * share, measured[largest].memory)


def _area(setting: Setting) -> int:
    return setting.lookback * setting.horizon


def _resident() -> int:
    """The most memory that this process has held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
