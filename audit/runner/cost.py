"""What an audit would do and about what it would cost: `hrx audit --dry-run`.

The cost of a run is estimated from one window with the smallest number of draws and one small batch of forecasts. Once
a model has taken `PROBE_SECONDS`, larger settings are scaled by L · H instead of measured.
"""

import resource
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from hrx.adapters.contract import Forecaster, ModelError
from hrx.audit.memory import MemoryBudget
from hrx.audit.runner.plan import ModelKey, PlannedRun, Run, Setting, State, admission_windows
from hrx.audit.runner.run import multivariate
from hrx.audit.runner.scheduler import in_order, run_tasks
from hrx.audit.runner.worker import Executor, TaskFailed, WorkerContext
from hrx.audit.scoring.score import score, score_channels
from hrx.errors import describe_error, without_paths
from hrx.records.quantities import kept_contexts

PROBE_SECONDS = 15.0
PROBE_BATCH = 64


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
        reason = f"too few values for {run.setting}" if run.series and run.refusal else run.refusal
        reason = reason or cost.refusal
        state: State = "stored" if run.key in finished else "cannot run" if reason else "to run"
        pending = state == "to run"
        planned.append(
            PlannedRun(
                key=run.key,
                model=run.identity.model,
                fingerprint=run.identity.fingerprint,
                dataset=run.dataset.name,
                series=run.series_name,
                setting=str(run.setting),
                seed=run.seed,
                state=state,
                reason=without_paths(reason) if state == "cannot run" else "",
                seconds=cost.seconds if pending else None,
                memory=cost.memory if pending else None,
                note=without_paths(cost.note),
            )
        )
    return planned


@dataclass(frozen=True)
class EstimateCosts:
    """Estimates the cost of a model's missing runs at each setting."""

    model: ModelKey
    settings: Mapping[Setting, Sequence[Run]]

    def run_in(self, context: WorkerContext) -> dict[Setting, RunCost]:
        return estimate_model(context.model(self.model), self.settings, context.budget)


def estimate_costs(runs: Sequence[Run], finished: Collection[str], executor: Executor) -> Costs:
    """Loads each model with missing runs and measures the cost of a run at each setting.

    A model that cannot be loaded is refused at every setting, or raises where it is the only one.
    """
    missing: dict[ModelKey, dict[Setting, list[Run]]] = {}
    for run in runs:
        if run.key not in finished:
            missing.setdefault(run.model_key, {}).setdefault(run.setting, []).append(run)
    only_model = len({run.model_key for run in runs}) == 1
    costs: dict[tuple[ModelKey, Setting], RunCost] = {}
    tasks = [EstimateCosts(key, settings) for key, settings in missing.items()]
    for task, result in run_tasks(in_order(tasks), executor):
        assert isinstance(task, EstimateCosts)
        if isinstance(result, dict):
            costs |= {(task.model, setting): cost for setting, cost in result.items()}
            continue
        assert isinstance(result, TaskFailed)
        if only_model:
            raise ModelError(result.reason)
        costs |= {(task.model, setting): RunCost(refusal=result.reason) for setting in task.settings}
    return costs


def estimate_model(
    model: Forecaster, settings: Mapping[Setting, Sequence[Run]], budget: MemoryBudget
) -> dict[Setting, RunCost]:
    """Return the cost of one run of a model at each setting."""
    costs: dict[Setting, RunCost] = {}
    largest: Setting | None = None
    start = time.perf_counter()
    for setting in sorted(settings, key=_area):
        if refusal := model.limits.refusal(setting.lookback, setting.horizon):
            costs[setting] = RunCost(refusal=f"{model.identity.model} {refusal}")
        elif largest and time.perf_counter() - start > PROBE_SECONDS:
            measured = costs[largest]
            seconds = (measured.seconds or 0.0) * _area(setting) / _area(largest)
            costs[setting] = measured._replace(seconds=seconds)
        else:
            try:
                costs[setting] = estimate_run(model, settings[setting], budget) or RunCost()
            except Exception as error:  # the runs will raise it too, and store it in their records
                costs[setting] = RunCost(note=describe_error(error))
            largest = setting if costs[setting].seconds is not None else largest
    return costs


def estimate_run(model: Forecaster, runs: Sequence[Run], budget: MemoryBudget) -> RunCost | None:
    """Return the cost of one of `runs`, measured on one real window; None where they have no window."""
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
    shared = run.protocol.variance_windows
    seconds = run.windows * (first + further * each) + (0 if shared == "run" else shared * each)
    return RunCost(seconds + _context_forecasts(run) * each, memory)


def _context_forecasts(run: Run) -> int:
    """Forecasts of the needed context, at most: a cut lookback is forecast twice and the whole one once beside it."""
    protocol = run.protocol
    if not protocol.context:
        return 0
    return (len(kept_contexts(run.setting.lookback)) - 1) * protocol.context_windows * (protocol.draws + 3)


def _area(setting: Setting) -> int:
    return setting.lookback * setting.horizon


def _resident_memory() -> int:
    """Peak memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
