"""What an audit would do and about what it would cost: `hrx audit --dry-run`.

The cost of a run is estimated from one window with the smallest number of draws and one small batch of forecasts. Once
a model has taken `PROBE_SECONDS`, larger settings are scaled by L · H instead of measured.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch

from hrx.adapters import Forecaster, ModelError
from hrx.audit.memory import Budget
from hrx.audit.runner.plan import ModelKey, Run, Setting, admission_windows
from hrx.audit.runner.run import multivariate
from hrx.audit.runner.worker import WorkerContext
from hrx.audit.scoring.score import score, score_channels
from hrx.errors import describe_error, without_paths

PROBE_SECONDS = 15.0
PROBE_BATCH = 64
State = Literal["stored", "to run", "cannot run"]


class RunCost(NamedTuple):
    """About what one run takes."""

    seconds: float
    memory: int
    """Bytes of the process."""


@dataclass
class ModelCost:
    """The cost of a model's runs by setting, and which settings it refuses."""

    error: str = ""
    """Why the model cannot be loaded."""
    refusals: dict[Setting, str] = field(default_factory=dict)
    runs: dict[Setting, RunCost] = field(default_factory=dict)
    note: str = ""
    """Why there is no estimate."""


class PlannedRun(NamedTuple):
    """One run of the plan."""

    key: str
    model: str
    dataset: str
    series: str
    setting: str
    seed: int
    state: State
    reason: str
    """Why it cannot run."""
    seconds: float | None
    """Estimated wall time, where there is an estimate."""


@dataclass(frozen=True)
class PlanSummary:
    """The whole plan."""

    runs: Sequence[PlannedRun]
    memory: Mapping[str, int]
    """Estimated peak memory of a process in bytes, by model."""
    notes: Sequence[str]

    def __add__(self, other: PlanSummary) -> PlanSummary:
        return PlanSummary([*self.runs, *other.runs], {**self.memory, **other.memory}, [*self.notes, *other.notes])

    @property
    def keys(self) -> set[str]:
        return {run.key for run in self.runs}

    @property
    def missing(self) -> int:
        """Runs that the ledger does not hold."""
        return sum(run.state != "stored" for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        return {"runs": [run._asdict() for run in self.runs], "memory": dict(self.memory), "notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanSummary:
        return cls([PlannedRun(**run) for run in data["runs"]], data["memory"], data["notes"])


def summarise_plan(
    runs: Iterable[Run], finished: Collection[str], costs: Mapping[ModelKey, ModelCost] | None = None
) -> PlanSummary:
    """The state of every run, with its estimated cost where `costs` are given."""
    planned, memory, notes = [], dict[str, int](), dict[str, None]()
    for run in runs:
        model = (costs or {}).get(run.model_key, ModelCost())
        refusal = f"too few values for {run.setting}" if run.series and run.refusal else run.refusal
        reason = refusal or model.error or model.refusals.get(run.setting, "")
        state: State = "stored" if run.key in finished else "cannot run" if reason else "to run"
        cost = model.runs.get(run.setting) if state == "to run" else None
        if cost:
            memory[run.identity.model] = max(cost.memory, memory.get(run.identity.model, 0))
        if model.note:
            notes[f"No estimate for {run.identity.model}: {without_paths(model.note)}"] = None
        planned.append(
            PlannedRun(
                key=run.key,
                model=run.identity.model,
                dataset=run.dataset.name,
                series=run.series_name,
                setting=str(run.setting),
                seed=run.seed,
                state=state,
                reason=without_paths(reason) if state == "cannot run" else "",
                seconds=cost.seconds if cost else None,
            )
        )
    return PlanSummary(planned, memory, list(notes))


def estimate_costs(runs: Sequence[Run], finished: Collection[str], context: WorkerContext) -> dict[ModelKey, ModelCost]:
    """Loads each model with missing runs and measures their cost at each setting."""
    missing: dict[ModelKey, dict[Setting, list[Run]]] = {}
    for run in runs:
        if run.key not in finished:
            missing.setdefault(run.model_key, {}).setdefault(run.setting, []).append(run)
    return {key: _estimate_model(key, settings, context) for key, settings in missing.items()}


def _estimate_model(key: ModelKey, settings: Mapping[Setting, Sequence[Run]], context: WorkerContext) -> ModelCost:
    costs = ModelCost()
    try:
        model = context.model(key)
    except ModelError as error:
        costs.error = str(error)
        return costs
    start = time.perf_counter()
    for setting in sorted(settings, key=_area):
        if refusal := model.limits.refusal(setting.lookback, setting.horizon):
            costs.refusals[setting] = f"{model.identity.model} {refusal}"
        elif costs.runs and time.perf_counter() - start > PROBE_SECONDS:
            costs.runs[setting] = _scale(costs.runs, setting)
        else:
            try:
                cost = estimate_run(model, settings[setting], context.budget)
            except Exception as error:  # the runs will raise it too, and store it in their records
                costs.note = describe_error(error)
            else:
                costs.runs |= {} if cost is None else {setting: cost}
    return costs


def estimate_run(model: Forecaster, runs: Sequence[Run], budget: Budget) -> RunCost | None:
    """The cost of one of `runs`, measured on one real window; None where they have no window."""
    windows = admission_windows(runs)
    if windows is None:
        return None
    run, horizon = runs[0], runs[0].setting.horizon
    model = model.for_season(run.dataset.season)
    model = multivariate(model) if run.channels else model
    memory = _resident_memory() + budget.peak(model, windows[0], horizon)  # also the warm-up of the model
    protocol = replace(run.protocol, draws=run.protocol.draws_per_unit, precision=None)
    start = time.perf_counter()
    if windows.ndim == 3:
        scores = score_channels(model, windows[:1], horizon, protocol=protocol, budget=budget)
        forecasts = scores.time.forecasts + scores.channel.forecasts
    else:
        forecasts = score(model, windows[:1], horizon, protocol=protocol, budget=budget).forecasts
    first = time.perf_counter() - start
    batch = torch.cat([windows[:1]] * min(PROBE_BATCH, budget.rows(model, windows[0], horizon, PROBE_BATCH)))
    start = time.perf_counter()
    with torch.no_grad():
        model.forward(batch, horizon)
    each = (time.perf_counter() - start) / len(batch)
    further = (run.protocol.draws - protocol.draws) * forecasts / protocol.draws
    return RunCost(run.windows * (first + further * each), memory)


def _scale(measured: Mapping[Setting, RunCost], setting: Setting) -> RunCost:
    """The cost of the largest measured setting, scaled by L · H."""
    largest = max(measured, key=_area)
    return RunCost(measured[largest].seconds * _area(setting) / _area(largest), measured[largest].memory)


def _area(setting: Setting) -> int:
    return setting.lookback * setting.horizon


def _resident_memory() -> int:
    """Peak memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
