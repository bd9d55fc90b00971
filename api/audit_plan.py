"""From an `AuditRequest` to the work: models, runs, executors, and the shares of other interpreters.

Nothing is run or written here. `--python FAMILY=PATH` names an interpreter for a family whose libraries exclude those
of this one: it gets its share of the request as JSON and works into the same ledger. Its plan is requested first, since
only it knows the library versions that decide the keys.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Forecaster, Identity, ModelError
from hrx.adapters.device import resolve_device
from hrx.adapters.families import EMBEDDED, families, short_names
from hrx.adapters.formats.module import ModuleFile, UnbuiltModel
from hrx.adapters.formats.neuralforecast_directory import FAMILY as NEURALFORECAST
from hrx.adapters.formats.neuralforecast_directory import is_saved_directory
from hrx.adapters.formats.trained_directory import TrainedRun, folders_without_training
from hrx.adapters.formats.tslib_run import FAMILY as TSLIB
from hrx.adapters.registry import Located, locate_each, trained_setting
from hrx.api.progress import Events, Stop
from hrx.audit.attribution.registry import parse_estimator_settings
from hrx.audit.memory import GIBIBYTE
from hrx.audit.protocol import Protocol
from hrx.audit.request import AuditRequest, Engine, local_workers
from hrx.audit.runner.plan import NAMED, ModelKey, PlannedRun, Run, Setting, in_random_order, parse_settings, plan
from hrx.audit.runner.processes import identify, start_server
from hrx.audit.runner.worker import (
    Admit,
    Executor,
    IdentifiedModel,
    LoadModel,
    MeasureRun,
    Task,
    TaskFailed,
    WorkerSettings,
    guarded,
)
from hrx.errors import Exit, HrxError, unknown, without_paths
from hrx.files import shown_path, user_path
from hrx.gift_eval import Dataset, open_source
from hrx.options import as_settings
from hrx.records.ledger import Ledger, LedgerError
from hrx.reports.gates import parse
from hrx.reports.text import counted

SWEEPS = ("truncation", "distance", "context")
MODULE = "module"
"""Family name of `module:FILE.py:FACTORY` in `--python`."""
_PREFIXES = (MODULE, TSLIB)
"""Names of models that begin so are code of the user's, run by any interpreter that has its packages."""
_CHILD = "import sys; from hrx.api.audit_modes import run_child; sys.exit(run_child(*sys.argv[1:]))"


@dataclass(frozen=True)
class HeldModel:
    """A model of `hrx.run_audit` that is in memory."""

    model: Forecaster

    @property
    def identity(self) -> Identity:
        return self.model.identity

    def load(self) -> Forecaster:
        return self.model


class InMemory(NamedTuple):
    """What `hrx.run_audit` gives as objects, in place of names on a command line."""

    models: tuple[HeldModel, ...] = ()
    datasets: tuple[Dataset, ...] = ()


@dataclass(frozen=True)
class AuditPlan:
    """A checked request with its runs."""

    request: AuditRequest
    """With every default that decides a number filled in."""
    runs: Sequence[Run]
    workers: WorkerSettings
    others: Sequence["OtherInterpreter"]

    @property
    def ledger(self) -> Path:
        return self.request.ledger_path


def plan_audit(request: AuditRequest, held: InMemory | None = None, events: Events | None = None) -> AuditPlan:
    """Check a request, find models and data, and plan. Nothing is run or written."""
    held, events, options = held or InMemory(), events or Events(), request.completed()
    resolve_device(options.device)
    for gate in options.gate:
        parse(gate, absolute=True)
    protocol = _protocol(options)
    settings = parse_settings(options.settings)
    datasets = list(held.datasets) or open_source(options.data)
    if options.channels and not any(dataset.variates > 1 for dataset in datasets):
        raise HrxError(f"No dataset of {options.data} has several variates. Drop --channels, or give other --data.")
    shares = divide(options.models, options.python) if options.models or not held.models else Shares([], {})
    models, taken, trained = _find_models(shares.here, held, settings, options, events)
    own = {setting for each in taken.values() for setting in each} - set(settings)
    settings = (*settings, *sorted(own))  # runs at settings that a model does not take are dropped below
    if len(models) == 1 and not shares.elsewhere:
        _raise_unbuilt(*models.values())
    planned = plan(
        [model.identity for model in models.values()],
        datasets,
        settings,
        series=options.series,
        seeds=max(options.seeds, *(1 + run.seed for run in trained.values())) if trained else options.seeds,
        windows=options.windows or 1,
        protocol=protocol,
        channels=options.channels,
    )
    runs = [run for run in planned if run.setting in taken[run.model_key]]
    if trained:
        runs = _as_trained(runs, trained, options)
    runs = in_random_order(runs) if options.until else runs
    if models:
        refuse_empty_plan(runs, options.data)
    given = tuple(f"python:{model.identity.model}" for model in held.models)
    used = replace(options, models=options.models + given, data="python:data" if held.datasets else options.data)
    return AuditPlan(
        request=used,
        runs=runs,
        workers=WorkerSettings(tuple(models.values()), int(options.memory * GIBIBYTE), options.device),
        others=[OtherInterpreter(path, names, options) for path, names in shares.elsewhere.items()],
    )


class _Found(NamedTuple):
    """Models of this interpreter."""

    models: dict[ModelKey, Located]
    taken: dict[ModelKey, set[Setting]]
    """Settings of each."""
    trained: dict[ModelKey, TrainedRun]
    """Those of `hrx train`."""


def _find_models(
    names: Sequence[str], held: InMemory, settings: Sequence[Setting], options: AuditRequest, events: Events
) -> _Found:
    models: dict[ModelKey, Located] = {ModelKey.of(model.identity): model for model in held.models}
    taken: dict[ModelKey, set[Setting]] = {key: set(settings) for key in models}
    if options.settings in NAMED:
        own_settings = ((ModelKey.of(model.identity), trained_setting(model.model)) for model in held.models)
        taken |= {key: {Setting(*pair)} for key, pair in own_settings if pair}
    trained: dict[ModelKey, TrainedRun] = {}
    pairs = [(setting.lookback, setting.horizon) for setting in settings]
    for name in names:
        for folder in folders_without_training(user_path(name)):
            shown = shown_path(folder)
            events.note(f"{shown} has no training.json and is not audited. Remove it and repeat hrx train.")
        for choice in locate_each(
            name, pairs, merge_adapter=options.merge_adapter, as_trained=options.settings in NAMED
        ):
            located = _identified(choice.located, options)
            key = ModelKey.of(located.identity)
            models.setdefault(key, located)
            taken.setdefault(key, set()).update(Setting(*pair) for pair in choice.settings)
            if choice.trained:
                _refuse_equal_weights(trained.setdefault(key, choice.trained), choice.trained)
    return _Found(models, taken, trained)


def _as_trained(runs: list[Run], trained: Mapping[ModelKey, TrainedRun], options: AuditRequest) -> list[Run]:
    """Return the runs of models of `hrx train` on the series and at the seed of their training, and all runs of others.

    Raises where a model would have none: it would be absent from the verdict in silence.
    """
    kept = []
    for run in runs:
        one = trained.get(run.model_key)
        if one is None:
            if run.seed < options.seeds:
                kept.append(run)
        elif run.seed == one.seed and run.series and run.series.fingerprint == one.series_fingerprint:
            kept.append(run)
    absent = [one for key, one in trained.items() if key not in {run.model_key for run in kept}]
    if absent:
        others = f", and so for {len(absent) - 1} more" if len(absent) > 1 else ""
        raise HrxError(
            f"{absent[0].path.name} was trained on {absent[0].trained_on}, which is not among the series of "
            f"{options.data} that --series {options.series} chooses{others}. Give the --data and --series of hrx train."
        )
    return kept


def _refuse_equal_weights(first: TrainedRun, second: TrainedRun) -> None:
    """Raise where two trained models have the same weights: records tell models apart by them."""
    if first.path.resolve() != second.path.resolve():
        raise HrxError(
            f"{first.path.name} and {second.path.name} have the same weights, so an audit cannot tell them apart: "
            f"{first.trained_on} and {second.trained_on} have the same values, or one is a copy. Move one elsewhere."
        )


def make_plan(request: AuditRequest, held: InMemory | None, events: Events) -> AuditPlan:
    """Return the plan of a request, with the server of the worker processes started first, beside it."""
    events.say("finding models and series")
    if local_workers(request):
        start_server()
    return plan_audit(request, held, events)


def stored_part(plan: AuditPlan, ledger: Ledger) -> str:
    """How much of the plan is stored, as a sentence."""
    done = len(ledger.finished(run.key for run in plan.runs))
    total = counted(len(plan.runs), "run")
    return f"{done} of {total} are in {plan.ledger}. Repeat the command to continue."


def refuse_damaged(ledger: Ledger) -> None:
    """Raise where a ledger is damaged."""
    if faults := ledger.integrity(1):
        raise LedgerError(
            f"{ledger.path} is damaged ({faults[0]}), so nothing is added to it. Save what can still be read with: "
            f"hrx merge {ledger.path} --into NEW.db, and continue with --ledger NEW.db."
        )


def open_executor(settings: WorkerSettings, options: Engine, tasks: int) -> Executor:
    """Return the workers that the options ask for; local ones are not more than there are tasks."""
    if options.engine == "ray":
        from hrx.audit.runner.ray import RayExecutor

        return RayExecutor(settings, options.workers, options.gpus, options.address, options.timeout or None)
    return local_executor(settings, options, tasks)


def local_executor(settings: WorkerSettings, options: Engine, tasks: int) -> Executor:
    """Worker processes on this machine, or this process."""
    if size := min(local_workers(options), tasks):
        from hrx.audit.runner.processes import ProcessExecutor

        return ProcessExecutor(settings.divided(size), size, options.timeout or None)
    from hrx.audit.runner.worker import InProcessExecutor

    return InProcessExecutor(settings)


def _identified(model: Located, options: AuditRequest) -> Located:
    """Return the model with its identity; a user's code is run in a worker process, or here where there are none."""
    if not isinstance(model, ModuleFile):
        return model
    found = identify(model, options.timeout or None) if local_workers(options) else guarded(lambda: model.identity)
    if isinstance(found, TaskFailed):
        return UnbuiltModel(model.identity_unbuilt, without_paths(found.reason), found.shown or found.reason)
    return IdentifiedModel(found, model)


def _raise_unbuilt(model: Located) -> None:
    """Raise where the only model of an audit cannot be built: a request for it alone is wrong."""
    if isinstance(model, UnbuiltModel):
        raise ModelError(model.shown)


def _protocol(options: AuditRequest) -> Protocol:
    sweeps = [name for name in options.sweeps.split(",") if name]
    for name in sweeps:
        if name not in SWEEPS:
            raise HrxError(unknown("sweep", name, SWEEPS))
    if options.channels and (options.estimator, options.axis) != ("input_gradient", "step"):
        raise HrxError("--channels works with the input gradient only. Drop --estimator and --axis.")
    draws = options.draws or Protocol.draws
    return Protocol(
        estimator=options.estimator,
        estimator_settings=parse_estimator_settings(options.estimator_setting),
        axis=options.axis,
        draws=draws,
        precision=options.precision,
        max_draws=max(draws, Protocol.max_draws),
        truncation="truncation" in sweeps,
        distance="distance" in sweeps,
        context="context" in sweeps,
        context_bound=context_bound(options.context_bound, requested="context" in sweeps),
    )


def context_bound(given: float | None, *, requested: bool) -> float:
    """Return the bound of the needed context; refuse one that would have no effect."""
    if given is not None and not requested:
        raise HrxError("--context-bound belongs to the needed context. Add --sweeps context, or drop it.")
    return Protocol.context_bound if given is None else given


def refuse_empty_plan(runs: Sequence[Run], source: str) -> None:
    """Raise where no series admits any setting."""
    if not runs:
        raise HrxError(f"{source} holds no series. Give another --data.")
    reasons: dict[str, None] = {}
    for run in runs:
        if not run.refusal:
            return
        reasons[f"{run.refusal.rstrip('.')}."] = None
    raise HrxError(
        f"No series of {source} can be audited. {' '.join(list(reasons)[:3])} Give other --settings or --data."
    )


class Shares(NamedTuple):
    """Models of each interpreter."""

    here: list[str]
    elsewhere: dict[Path, list[str]]
    """By interpreter."""


def divide(models: Sequence[str], python: Sequence[str]) -> Shares:
    """Return the models of this interpreter, and those of others as `FAMILY=PATH` sends them."""
    interpreters = dict(_parse(entry) for entry in python)
    here: list[str] = []
    elsewhere: dict[Path, list[str]] = {}
    for name in models or [EMBEDDED]:
        interpreter = interpreters.get(family_of(name))
        (here if interpreter is None else elsewhere.setdefault(interpreter, [])).append(name)
    return Shares(here, elsewhere)


def _parse(entry: str) -> tuple[str, Path]:
    family, equals, text = entry.partition("=")
    known = [*families(), *_PREFIXES]
    if not equals or not text:
        raise HrxError(f"--python {entry} is not FAMILY=PATH. For example --python timer=.venv-timer/bin/python.")
    if family not in known:
        raise HrxError(f"--python {entry}: {unknown('family', family, known)}")
    path = user_path(text)
    if not os.path.isfile(path):
        raise HrxError(f"--python {entry}: {path} is not a file. Give the python of an environment that has hrx.")
    return family, path


def family_of(name: str) -> str:
    """Return the family of a model by its name or its files, whether or not its library is installed here."""
    prefix, colon, rest = name.partition(":")
    if colon and rest and (prefix in families() or prefix in _PREFIXES):
        return prefix
    if name == EMBEDDED:
        return "chronos-bolt"
    if released := short_names().get(name.partition("@")[0]):
        return released.family
    path = user_path(name)
    if name and os.path.isdir(path):
        if is_saved_directory(path):
            return NEURALFORECAST
        checkpoint = Checkpoint(path.resolve(), path.name, path.name)
        return next((family.name for family in families().values() if family.claims(checkpoint)), "")
    return ""  # a hub id that is not on disk: audited by this interpreter, unless written FAMILY:ID


class OtherInterpreter:
    """Another interpreter with its share of an audit."""

    def __init__(self, interpreter: Path, models: Sequence[str], request: AuditRequest):
        self._interpreter, self._models = interpreter, tuple(models)
        # Gates are judged once, over the runs of all interpreters.
        self._request = replace(request, models=self._models, python=(), gate=(), undecided=None)

    def plan(self, *, estimate: bool) -> list[PlannedRun]:
        """Its plan; with `estimate`, the cost of each run."""
        process = self._start("estimate" if estimate else "plan", self._request, subprocess.PIPE)
        assert process.stdout
        output = process.stdout.read()  # not communicate(), which would close the pipe that keeps it alive
        self._check(process.wait())
        return [PlannedRun(**run) for run in json.loads(output)]

    def audit(self, stop: Stop, *, budget: float | None = None, recheck: int = 0) -> int:
        """Run its share for at most `budget` seconds, with its progress on this terminal. Return its exit code."""
        limit = None if budget is None else max(round(budget, 3), 0.001)
        request = replace(self._request, budget=limit)
        process = self._start("audit", request, subprocess.DEVNULL, str(recheck))
        stop.listeners.append(process.send_signal)
        try:
            process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            stop.listeners.remove(process.send_signal)
        # Its plan was read before, so hrx is there, and 1 means that a model failed admission.
        if recheck or process.returncode != Exit.GATE_FAILED:
            self._check(process.returncode)
        return process.returncode

    def _start(self, action: str, request: AuditRequest, stdout: int, *more: str) -> subprocess.Popen[str]:
        # In a session of its own, so that a signal from the keyboard reaches it once, through this process. The pipe
        # closes when this process ends, however that happens.
        command = [str(self._interpreter), "-c", _CHILD, action, json.dumps(as_settings(request)), *more]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, text=True, start_new_session=True)

    def _check(self, code: int) -> None:
        if code in (Exit.WRONG_REQUEST, Exit.CRASHED, 1):  # 1: python could not import hrx; its message is above
            raise HrxError(
                f"{self._interpreter} could not audit {', '.join(self._models)}: see its message above. Check that "
                "hrx and the library of the family are installed there."
            )


class Announcer:
    """Says what a task does when it starts."""

    def __init__(self, runs: Sequence[Run], events: Events):
        self._events = events
        self._names = {run.model_key: run.identity.model for run in runs}

    def __call__(self, task: Task) -> None:
        match task:
            case LoadModel():
                self._events.say(f"loading {self._names[task.model]}")
            case Admit():
                self._events.say(f"checking {self._names[task.model]} at {task.run.setting}")
            case MeasureRun():
                self._events.time_from_here()
                self._events.say(label(task.run))


def label(run: Run) -> str:
    return f"{run.identity.model} {run.dataset.name} {run.setting}"
