"""What a worker process holds, and the tasks it is given.

A worker keeps one model loaded at a time: tasks come model by model, and two models may not fit in memory. It knows
neither the ledger nor other workers, so the same tasks run in this process, in a worker process and on a cluster.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from hrx.adapters.checkpoint import file_digest, file_state
from hrx.adapters.contract import Forecaster, Identity, Limits, ModelError
from hrx.adapters.formats.module import ModuleFile
from hrx.adapters.registry import Located, LocatedCheckpoint
from hrx.adapters.wrapped import on_device, resolve_device
from hrx.audit.admission import Check, admit, admit_channels
from hrx.audit.memory import MemoryBudget, out_of_memory
from hrx.audit.runner.channels import bind
from hrx.audit.runner.plan import ADMISSION_WINDOWS, ModelKey, Run, RunCost, Setting
from hrx.audit.runner.run import RunResult, SeriesCache, estimate_model, measure_run, multivariate
from hrx.audit.scoring.quantities import Unscorable
from hrx.errors import Exit, HrxError, describe_error, stored_reason

Result = TypeVar("Result")


@dataclass(frozen=True)
class WorkerSettings:
    """What every worker of an audit is started with."""

    models: Mapping[ModelKey, Located]
    memory: int
    """Bytes that a batch may take."""
    device: str = "cpu"
    libraries: str = ""
    """Libraries that compute beside those of the models, as `Identity.library` names them."""

    def portable(self) -> WorkerSettings:
        """Return the same for a process with another working directory."""
        models: dict[ModelKey, Located] = {}
        for key, model in self.models.items():
            source = model.source if isinstance(model, IdentifiedModel) else model
            source = ModuleFile(source.file.resolve(), source.factory) if isinstance(source, ModuleFile) else source
            known = model.content if isinstance(model, IdentifiedModel) else content(source)
            models[key] = IdentifiedModel(model.identity, source, known)
        return replace(self, models=models)


class WorkerContext:
    """Models of an audit, of which one is loaded, and the memory budget of a batch."""

    def __init__(self, settings: WorkerSettings):
        self._located = settings.models
        self._loaded: tuple[ModelKey, Forecaster] | None = None
        self._states: dict[ModelKey, list[tuple[int, ...]]] = {}
        """State of the files of each model when they were last found to be those of the plan."""
        self.device = resolve_device(settings.device)
        self.budget = MemoryBudget(settings.memory)
        self.series: SeriesCache = {}

    def model(self, key: ModelKey) -> Forecaster:
        """Return the model, loaded in place of the previous one if necessary."""
        self.refuse_changed(key)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # two models may not fit in memory
            try:
                model = self._located[key].load()
            except Exception:
                self.refuse_changed(key)  # a file that is just being replaced may raise anything
                raise
            self.refuse_changed(key)
            if ModelKey.of(model.identity) != key:
                raise ModelError(
                    f"{model.identity.model} has other weights each time it is built, so its runs cannot be "
                    "distributed or resumed. Seed the random numbers in its factory, or load its weights from a file."
                )
            self._loaded = key, on_device(model, self.device)
        return self._loaded[1]

    def refuse_changed(self, key: ModelKey) -> None:
        """Raise where the files of a model are not those of the plan; each of their states is hashed once."""
        model = self._located[key]
        source = model.source if isinstance(model, IdentifiedModel) else model
        try:
            if isinstance(source, LocatedCheckpoint):
                files = source.checkpoint.path / "config.json", *source.checkpoint.weights
            else:
                files = (source.file,) if isinstance(source, ModuleFile) else ()
            state = [file_state(file) for file in files if file.exists()]
            if state == self._states.get(key):
                return
            if isinstance(source, LocatedCheckpoint):
                same = replace(source.checkpoint).fingerprint == key.fingerprint
            else:
                same = not isinstance(model, IdentifiedModel) or model.content == content(source)
        except (HrxError, OSError) as error:
            raise FilesChanged(f"{model.identity.model} cannot be read again: {describe_error(error)}") from error
        if not same:
            raise FilesChanged(
                f"{model.identity.model} was changed after the audit was planned: its files hold another model now. "
                "Repeat the command to audit that one."
            )
        self._states[key] = state


class FilesChanged(HrxError):
    """A model whose files are not those of the plan: nothing may be stored under the fingerprint that they had."""


def content(source: Located) -> str:
    """sha256 of the file of a user's model; empty for other models."""
    return file_digest(source.file).hex() if isinstance(source, ModuleFile) else ""


@dataclass(frozen=True)
class IdentifiedModel:
    """A located model with the identity that it must have in every process."""

    identity: Identity
    source: Located
    content: str
    """`content` of its source before it was built for the plan."""

    def load(self) -> Forecaster:
        return self.source.load()


class LoadedModel(NamedTuple):
    """Properties that only the loaded model has."""

    limits: Limits
    distinct_seasons: frozenset[int]
    """Seasons at which the model computes differently, so that each needs its own admission."""
    multivariate: bool


class TaskFailed(NamedTuple):
    """Why a task has no result, in a sentence."""

    reason: str
    """For the ledger."""
    user_error: bool = False
    """Whether the model could not be loaded, which the user can fix."""
    shown: str = ""
    """Same for the terminal, where it may quote a library; empty where it is the reason itself."""


class Task(Protocol):
    """Work for one worker: it is sent there, and its result is sent back."""

    @property
    def model(self) -> ModelKey:
        """A worker process serves the tasks of one model."""

    def run_in(self, context: WorkerContext) -> TaskResult:
        """Does the work."""


TaskResult = object
"""What `run_in` of the task returns, or `TaskFailed`."""


@dataclass(frozen=True)
class LoadModel:
    """Loads a model and reports its properties."""

    model: ModelKey
    seasons: frozenset[int]

    def run_in(self, context: WorkerContext) -> LoadedModel:
        model = context.model(self.model)
        distinct = frozenset(season for season in self.seasons if model.for_season(season) is not model)
        return LoadedModel(model.limits, distinct, model.multivariate() is not None)


@dataclass(frozen=True, eq=False)
class Admit:
    """Makes the admission checks of a setting on real windows."""

    run: Run
    """One of the runs that are admitted together: they have one model, setting, season and number of channels."""
    windows: Tensor

    @cached_property
    def model(self) -> ModelKey:
        return self.run.model_key

    def run_in(self, context: WorkerContext) -> list[Check]:
        model, horizon = context.model(self.model).for_season(self.run.dataset.season), self.run.setting.horizon
        try:
            bound = bind(model, self.run)
        except Unscorable:  # each run says why in its record
            return []
        if bound:
            checks = admit(bound.model, bound.region(ADMISSION_WINDOWS), horizon, context.budget)
        elif self.run.channels:
            checks = admit_channels(multivariate(model), self.windows, horizon, context.budget)
        else:
            checks = admit(model, self.windows, horizon, context.budget)
        context.refuse_changed(self.model)
        return list(checks)


@dataclass(frozen=True)
class MeasureRun:
    """Measures one run."""

    run: Run

    @cached_property
    def model(self) -> ModelKey:
        return self.run.model_key

    def run_in(self, context: WorkerContext) -> RunResult:
        model = context.model(self.model).for_season(self.run.dataset.season)
        result = measure_run(model, self.run, context.budget, context.device.type, context.series)
        context.refuse_changed(self.model)
        return result


@dataclass(frozen=True)
class EstimateCosts:
    """Estimates the cost of a model's missing runs at each setting."""

    model: ModelKey
    settings: Mapping[Setting, Sequence[Run]]

    def run_in(self, context: WorkerContext) -> dict[Setting, RunCost]:
        return estimate_model(context.model(self.model), self.settings, context.budget)


def perform(task: Task | TaskFailed, context: WorkerContext, *, everything: bool = False) -> TaskResult:
    """Runs a task. An exception becomes its result, so that one task cannot stop the others."""
    if isinstance(task, TaskFailed):  # it could not be sent
        return task
    return guarded(lambda: task.run_in(context), everything=everything)


def guarded(call: Callable[[], Result], *, everything: bool = False) -> Result | TaskFailed:
    """Calls the code of a model. What it raises becomes the result, and what it changes in the process is restored.

    With `everything`, KeyboardInterrupt too: in a process that ignores the signal, only the model can have raised it.
    """
    caught = (BaseException,) if everything else (Exception, SystemExit)
    try:
        with _process_restored(), redirect_stdout(sys.stderr):
            return call()
    except ModelError as error:
        return TaskFailed(stored_reason(error), user_error=True, shown=str(error))
    except HrxError as error:
        return TaskFailed(stored_reason(error), shown=str(error))
    except caught as error:
        return _failure(error)


def _failure(error: BaseException) -> TaskFailed:
    memory = "out of memory: " if out_of_memory(error) else ""
    return TaskFailed(memory + stored_reason(error), shown=memory + describe_error(error))


@contextmanager
def _process_restored() -> Iterator[None]:
    """Restores the settings of torch and the working directory, which another model relies on.

    Inside, matrices are multiplied in full precision, as in a new process: the caller may have set another, and the
    numbers of a run must not depend on where it runs.
    """
    dtype, threads, precision = torch.get_default_dtype(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    gradients, directory = torch.is_grad_enabled(), Path.cwd()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_grad_enabled(gradients)
        with suppress(OSError):  # the model has deleted it
            os.chdir(directory)


def packed(value: Task | TaskResult) -> bytes:
    """Pickles a task or a result for another process; one that cannot be sent becomes the reason why."""
    try:
        return pickle.dumps(value)
    except Exception as error:
        return pickle.dumps(_failure(error))


def unpacked(data: bytes) -> Any:
    """Reads what another process has packed, or the reason why it cannot be read."""
    try:
        return pickle.loads(data)
    except Exception as error:
        return _failure(error)


class WorkerDied(NamedTuple):
    """In place of a result: the worker ended in the middle of the task."""

    how: str


class ExecutorLost(HrxError):
    """No worker is left and none can be started; everything that was stored stays."""

    exit = Exit.INCOMPLETE


class Executor(Protocol):
    """A fixed number of workers, numbered from 0, each running one task at a time."""

    size: int
    timeout: float | None
    """Seconds that a task may take; None where tasks cannot be stopped or are not limited."""

    def submit(self, worker: int, task: Task) -> None:
        """Starts a task on an idle worker. A task of the same model as the last one finds the model loaded."""

    def results(self, seconds: float | None) -> list[tuple[int, TaskResult | WorkerDied]]:
        """Waits until a task is done, at most `seconds`; returns the workers that are done, with their results.

        Raises `ExecutorLost` where all workers have ended.
        """

    def stop(self, worker: int) -> None:
        """Stops the task of a worker, however busy it is. The next task finds a new worker."""

    def close(self) -> None:
        """Stops all workers at once, even in the middle of a task."""


class InProcessExecutor:
    """One worker: this process. `submit` returns when the task is done, so a task cannot be stopped."""

    size = 1
    timeout: float | None = None

    def __init__(self, settings: WorkerSettings):
        self._context = WorkerContext(settings)
        self._results: list[tuple[int, TaskResult | WorkerDied]] = []

    def submit(self, worker: int, task: Task) -> None:
        self._results.append((worker, perform(task, self._context)))

    def results(self, seconds: float | None) -> list[tuple[int, TaskResult | WorkerDied]]:
        results, self._results = self._results, []
        return results

    def stop(self, worker: int) -> None:
        raise RuntimeError("a task in this process cannot be stopped")

    def close(self) -> None:
        """Its model goes with it."""
