"""Scheduling loop, and what runs in it: an audit as a queue of tasks, stored runs measured again, estimates of cost.

For each model, one task loads it; for each setting, one task admits it on real windows; then each run is a task. All
writes happen here, in one process. An error of one run becomes that run's record, and the others go on.
"""

import hashlib
import heapq
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from hrx.adapters.contract import ModelError
from hrx.audit.admission import CHECK_NAMES, to_stored, versions
from hrx.audit.runner.plan import Costs, ModelKey, Run, RunCost, Setting, admission_windows
from hrx.audit.runner.run import RunResult, no_channel_axis
from hrx.audit.runner.worker import (
    Admit,
    EstimateCosts,
    Executor,
    LoadedModel,
    LoadModel,
    MeasureRun,
    Task,
    TaskFailed,
    TaskResult,
    WorkerDied,
)
from hrx.errors import without_paths
from hrx.gift_eval.series import spaced
from hrx.records.decision import PlanTest, sign_of
from hrx.records.ledger import Ledger, StoredCheck
from hrx.records.merge import Difference, differences
from hrx.records.record import DONE, EXCLUDED, FAILED, Record

Progress = Callable[[Run, Record], None]
NextTask = Callable[[ModelKey | None], Task | None]
"""Returns the next task for a worker that has a model in memory, or None while there is none."""
RETRIES = 1
"""How often a task is submitted again after its worker died."""


def died_twice(how: str) -> str:
    """Why a task has no result after its second worker died."""
    return f"its worker process died twice ({how})"


def out_of_time(timeout: float | None) -> str:
    """Why a task was stopped."""
    return f"took longer than {timeout:g} s, the limit of --timeout, and was stopped"


def in_order(tasks: Iterable[Task]) -> NextTask:
    """Independent tasks, one after another."""
    left = iter(tasks)
    return lambda loaded: next(left, None)


class _Running(NamedTuple):
    task: Task
    attempts: int
    deadline: float
    """On the clock `time.monotonic`."""


def run_tasks(
    next_task: NextTask,
    executor: Executor,
    stopping: Callable[[], bool] = lambda: False,
    on_start: Callable[[Task], None] = lambda task: None,
) -> Iterator[tuple[Task, TaskResult]]:
    """Runs tasks and yields the result of each; `next_task` is asked again after a result has been handled.

    Once `stopping` returns true, running tasks are finished and no others started. A task that exceeds the time-out of
    the executor is stopped and fails. `on_start` is called before a task is submitted, for progress. Raises
    `ExecutorLost` where the executor has no worker left.
    """
    idle: dict[int, ModelKey | None] = dict.fromkeys(range(executor.size))
    running: dict[int, _Running] = {}

    def submit(worker: int, task: Task, attempts: int) -> None:
        running[worker] = _Running(task, attempts, time.monotonic() + (executor.timeout or math.inf))
        executor.submit(worker, task)

    while True:
        for worker, loaded in list(idle.items()):
            if not stopping() and (task := next_task(loaded)):
                del idle[worker]
                on_start(task)
                submit(worker, task, 1)
        if not running:
            return
        for worker, result in _finished(running, executor):
            task, attempts, _ = running.pop(worker)
            if isinstance(result, WorkerDied):
                if stopping():
                    continue
                if attempts <= RETRIES:
                    submit(worker, task, attempts + 1)
                    continue
                result = TaskFailed(died_twice(result.how))
            idle[worker] = task.model
            yield task, result


def _finished(running: Mapping[int, _Running], executor: Executor) -> Iterator[tuple[int, TaskResult]]:
    """Waits until a task is done, or over its deadline: then it is stopped."""
    first = min(one.deadline for one in running.values())
    results = executor.results(None if first == math.inf else max(0.0, first - time.monotonic()))
    yield from results
    now, done = time.monotonic(), {worker for worker, _ in results}
    for worker in [worker for worker, one in running.items() if one.deadline <= now and worker not in done]:
        executor.stop(worker)
        yield worker, TaskFailed(out_of_time(executor.timeout))


def execute(
    runs: Sequence[Run],
    ledger: Ledger,
    executor: Executor,
    *,
    progress: Progress,
    stopping: Callable[[], bool] = lambda: False,
    on_start: Callable[[Task], None] = lambda task: None,
    until_decided: bool = False,
) -> None:
    """Measure and store every run that the ledger does not hold yet.

    With `until_decided`, a model gets no further run once the sign of its `g_margin` is decided; `runs` must then be in
    random order.
    """
    audit = _Audit(runs, ledger, progress, until_decided)
    for task, result in run_tasks(audit.next, executor, stopping, on_start):
        audit.finish(task, result)


@dataclass(frozen=True)
class _Group:
    """Runs of a model that share one admission."""

    setting: Setting
    season: int
    """0 where the model does not depend on the season."""
    channels: int
    bound: str
    """`Run.bound` of the runs."""
    planned: list[Run] = field(default_factory=list)
    missing: list[Run] = field(default_factory=list)


class _Audit:
    """Missing runs of an audit, with the loading and admission tasks they depend on."""

    def __init__(self, runs: Sequence[Run], ledger: Ledger, progress: Progress, until_decided: bool):
        self._ledger, self._progress = ledger, progress
        self._checks: dict[tuple[str, ...], list[StoredCheck]] = {}
        for check in ledger.checks():
            self._checks.setdefault((*check[:4], check.setting, check.windows), []).append(check)
        self._finished = ledger.finished([run.key for run in runs])
        self._examples: dict[tuple[ModelKey, str], list[Run]] = {}
        """For each model and dataset, the scored run with the largest setting so far."""
        with_example = set(ledger.example_keys())
        self._place = {run.key: place for place, run in enumerate(runs)}
        self._runs: dict[ModelKey, list[Run]] = {}
        for run in runs:
            self._runs.setdefault(run.model_key, []).append(run)
            if run.key in with_example:
                self._examples.setdefault((run.model_key, run.dataset.name), []).append(run)
        self._tests: dict[ModelKey, PlanTest] = {}
        if until_decided:
            self._tests = {key: PlanTest(run.key for run in planned) for key, planned in self._runs.items()}
            stored = {run.key: run for run in runs if run.key in self._finished}
            for record in ledger.records(stored):
                self._add_sign(stored[record.key], record)
        self._admitting: dict[Task, _Group] = {}
        self._queues: dict[ModelKey, list[tuple[int, int, Task]]] = {key: [] for key in self._runs}
        self._count = itertools.count()
        for key, planned in self._runs.items():
            if not self._decided(key) and any(run.key not in self._finished for run in planned):
                self._push(LoadModel(key, frozenset(run.dataset.season for run in planned)), planned[0])

    def next(self, loaded: ModelKey | None) -> Task | None:
        candidates = ([loaded] if loaded else []) + list(self._queues)
        queues = (self._queues[key] for key in candidates if not self._decided(key))
        return next((heapq.heappop(queue)[2] for queue in queues if queue), None)

    def finish(self, task: Task, result: TaskResult) -> None:
        if isinstance(task, LoadModel):
            self._on_loaded(self._runs[task.model], result)
        elif isinstance(task, Admit):
            self._on_admitted(self._admitting.pop(task), task.windows, result)
        else:
            assert isinstance(task, MeasureRun)
            if isinstance(result, TaskFailed):
                result = RunResult(task.run.record(FAILED, result.reason))
            assert isinstance(result, RunResult)
            if result.record.key != task.run.key:
                other = "its worker has other versions of hrx, torch or the library than this process"
                result = RunResult(task.run.record(FAILED, other))
            self._write(task.run, result)

    def _decided(self, model: ModelKey) -> bool:
        return model in self._tests and self._tests[model].decision.sign is not None

    def _add_sign(self, run: Run, record: Record) -> None:
        if test := self._tests.get(run.model_key):
            test.add(run.key, sign_of(record.status, record.beats_naive, record.g_margin))

    def _on_loaded(self, planned: Sequence[Run], model: TaskResult) -> None:
        missing = [run for run in planned if run.key not in self._finished]
        if isinstance(model, TaskFailed):
            if len(self._runs) == 1 and model.user_error:
                raise ModelError(model.shown or model.reason)
            for run in missing:
                self._write(run, RunResult(run.record(FAILED, model.reason)))
            return
        assert isinstance(model, LoadedModel)
        if len(self._runs) == 1:
            _refuse_all_runs(model, planned)
        groups: dict[tuple[Setting, int, int, str], _Group] = {}
        for run in planned:
            season = run.dataset.season if run.dataset.season in model.distinct_seasons else 0
            place = run.setting, season, run.channels, run.bound
            groups.setdefault(place, _Group(*place)).planned.append(run)
            if run.key not in self._finished:
                groups[place].missing.append(run)
        for group in groups.values():
            if group.missing:
                self._start_group(group, model)

    def _start_group(self, group: _Group, model: LoadedModel) -> None:
        """Queues the admission of a group, or its runs where none is needed."""
        identity = group.planned[0].identity
        if refusal := group.planned[0].limits(model.limits).refusal(group.setting.lookback, group.setting.horizon):
            return self._exclude(group, f"{identity.model} {refusal}")
        if group.channels and not model.multivariate:
            return self._exclude(group, no_channel_axis(identity))
        if refusal := model.limits.refusal_of_channels(group.channels):
            return self._exclude(group, f"{identity.model} {refusal}")
        windows = admission_windows(group.planned)
        if windows is None:
            return self._admit(group, [])
        checks = self._checks.get((*versions(identity), str(group.setting), _digest(windows, group)), [])
        # Where one is missing, as one whose row is damaged, all are made again unless another one failed.
        if {check.check for check in checks} >= CHECK_NAMES or not all(check.passed for check in checks):
            return self._admit(group, checks)
        task = Admit(group.planned[0], windows)
        self._admitting[task] = group
        return self._push(task, group.missing[0])

    def _on_admitted(self, group: _Group, windows: Tensor, result: TaskResult) -> None:
        if isinstance(result, TaskFailed):
            return self._exclude(group, f"admission: {result.reason}", status=FAILED)
        assert isinstance(result, list)
        digest = _digest(windows, group)
        checks = [to_stored(group.planned[0].identity, check, digest) for check in result]
        self._ledger.write_all(checks)
        return self._admit(group, checks)

    def _admit(self, group: _Group, checks: Sequence[StoredCheck]) -> None:
        """Queues the runs of an admitted group, or excludes them."""
        failed = next((check for check in checks if not check.passed), None)
        if failed is None:
            for run in group.missing:
                self._push(MeasureRun(run), run)
        else:
            reason = f"{failed.check}: {failed.figure:.3g} against {failed.limit:.3g} ({failed.note})"
            self._exclude(group, reason, check_failed=failed.check)

    def _exclude(self, group: _Group, reason: str, *, status: str = EXCLUDED, check_failed: str | None = None) -> None:
        """Stores the runs of a group unmeasured. A series that could not be read has a reason of its own."""
        for run in group.missing:
            if run.series_error is None:
                self._write(run, RunResult(run.record(status, reason).updated(check_failed=check_failed)))
            else:
                self._push(MeasureRun(run), run)

    def _write(self, run: Run, result: RunResult) -> None:
        record, example = result
        if record.reason:
            record = record.updated(reason=without_paths(record.reason))
        kept = self._examples.setdefault((run.model_key, run.dataset.name), [])
        if example is not None and all(run.example_rank > other.example_rank for other in kept):
            self._ledger.write(record, example, replacing=[other.key for other in kept])
            kept[:] = [run]
        else:
            self._ledger.write(record)
        self._add_sign(run, record)
        self._progress(run, record)

    def _push(self, task: Task, first: Run) -> None:
        """Queues a task at the place of the first run that needs it."""
        heapq.heappush(self._queues[first.model_key], (self._place[first.key], next(self._count), task))


def _digest(windows: Tensor, group: _Group) -> str:
    """sha256 of the windows of an admission, and of the season where the model depends on it."""
    season = f"season {group.season}".encode() if group.season else b""
    return hashlib.sha256(windows.numpy().tobytes() + season + group.bound.encode()).hexdigest()


def _refuse_all_runs(model: LoadedModel, runs: Sequence[Run]) -> None:
    """Raises where the only model of an audit can take none of the settings, or none of the variates."""
    limits, name = model.limits, runs[0].identity.model
    refusals = {run.setting: run.limits(limits).refusal(run.setting.lookback, run.setting.horizon) for run in runs}
    if all(refusals.values()):
        raise ModelError(f"{name} {'; '.join(dict.fromkeys(map(str, refusals.values())))}.")
    variates = {run.channels: limits.refusal_of_channels(run.channels) for run in runs if run.series is not None}
    if variates and all(variates.values()):
        asked = " and --channels" if 0 in variates else ""
        raise ModelError(f"{name} {next(iter(variates.values()))}{asked}.")


class Recheck(NamedTuple):
    """One stored run, measured again."""

    run: Run
    differences: Sequence[Difference]
    error: str = ""
    """Why it could not be measured again."""

    @property
    def same(self) -> bool:
        """Whether it has the same numbers but for rounding and the order of nearly tied positions."""
        return not self.error and all(one.tied for one in self.differences)


def recheck(
    runs: Sequence[Run],
    ledger: Ledger,
    executor: Executor,
    count: int,
    stopping: Callable[[], bool] = lambda: False,
    on_start: Callable[[Task], None] = lambda task: None,
) -> Iterator[Recheck]:
    """Measures `count` scored runs of the plan again, evenly spaced over it, and compares. Writes nothing."""
    stored = {record.key: record for record in ledger.records(run.key for run in runs)}
    scored = [run for run in runs if run.key in stored and stored[run.key].status == DONE]
    tasks = (MeasureRun(scored[index]) for index in spaced(len(scored), count))
    for task, result in run_tasks(in_order(tasks), executor, stopping, on_start):
        assert isinstance(task, MeasureRun)
        if isinstance(result, TaskFailed):
            yield Recheck(task.run, (), result.shown or result.reason)
            continue
        assert isinstance(result, RunResult)
        if result.record.status == FAILED:
            yield Recheck(task.run, (), str(result.record.reason))
        else:
            yield Recheck(task.run, differences(stored[task.run.key], result.record))


def estimate_costs(runs: Sequence[Run], finished: Collection[str], executor: Executor) -> Costs:
    """Loads each model with missing runs and measures the cost of a run at each setting.

    A model that cannot be loaded is refused at every setting, or raises where it is the only one.
    """
    missing: dict[ModelKey, dict[Setting, list[Run]]] = {}
    for run in runs:
        if run.key not in finished:
            missing.setdefault(run.model_key, {}).setdefault(run.setting, []).append(run)
    costs: dict[tuple[ModelKey, Setting], RunCost] = {}
    tasks = [EstimateCosts(key, settings) for key, settings in missing.items()]
    for task, result in run_tasks(in_order(tasks), executor):
        assert isinstance(task, EstimateCosts)
        if isinstance(result, dict):
            costs |= {(task.model, setting): cost for setting, cost in result.items()}
            continue
        assert isinstance(result, TaskFailed)
        if len({run.model_key for run in runs}) == 1:
            raise ModelError(result.reason)
        costs |= {(task.model, setting): RunCost(refusal=result.reason) for setting in task.settings}
    return costs
