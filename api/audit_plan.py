"""From an `AuditRequest` to the work: models, runs, executors, and the shares of other interpreters.

Nothing is run or written here. `--python FAMILY=PATH` names an interpreter for a family whose libraries exclude those
of this one: it gets its share of the request as JSON and works into the same ledger. Its plan is requested first, since
only it knows the library versions that decide the keys.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Forecaster, ModelError
from hrx.adapters.families import EMBEDDED, families, short_names
from hrx.adapters.formats.module import ModuleFile, UnbuiltModel
from hrx.adapters.formats.trained import NEURALFORECAST, TrainedRun, folders_without_training, is_saved_directory
from hrx.adapters.formats.tslib_run import FAMILY as TSLIB
from hrx.adapters.inputs import Output
from hrx.adapters.registry import CheckpointSettings, Located, locate_each, trained_setting
from hrx.adapters.wrapped import resolve_device
from hrx.api.progress import Progress, Stop
from hrx.audit.attribution import parse_estimator_settings
from hrx.audit.memory import GIBIBYTE
from hrx.audit.protocol import Protocol
from hrx.audit.request import AuditRequest, Engine, local_workers
from hrx.audit.runner.plan import NAMED, ModelKey, PlannedRun, Run, Setting, in_random_order, parse_settings, plan
from hrx.audit.runner.processes import ProcessExecutor, identify, start_server
from hrx.audit.runner.worker import (
    Admit,
    Executor,
    IdentifiedModel,
    InProcessExecutor,
    LoadModel,
    MeasureRun,
    Task,
    TaskFailed,
    WorkerSettings,
    content,
    guarded,
)
from hrx.errors import Exit, HrxError, unknown, without_paths
from hrx.files import shown_path, user_path
from hrx.gift_eval import Dataset, open_source
from hrx.gift_eval.series import StoredSeries, TimedSeries
from hrx.options import as_settings, options_of
from hrx.records.ledger import Ledger, LedgerError
from hrx.reports.gates import parse
from hrx.reports.text import counted

SWEEPS = ("truncation", "distance", "fine", "context")
_PREFIXES = ("module", TSLIB)
"""Names of models that begin so are code of the user's, run by any interpreter that has its packages."""
_CHILD = "import sys; from hrx.api.audit import run_child; sys.exit(run_child(*sys.argv[1:]))"


def held_datasets(series: Sequence[TimedSeries], name: str) -> list[Dataset]:
    """Return series in memory as datasets, one for each frequency."""
    groups: dict[tuple[str, int], list[StoredSeries]] = {}
    for one in (timed.series for timed in series):
        # With its gaps, which an audit counts and fills itself.
        values = one.values if one.observed is None else np.where(one.observed, one.values, np.nan)
        groups.setdefault((one.frequency, one.season), []).append(StoredSeries(one.item, values))
    return [
        Dataset(f"{name}/{frequency}" if frequency else name, frequency, season, "", len(rows), rows.__getitem__)
        for (frequency, season), rows in groups.items()
    ]


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


def plan_audit(
    request: AuditRequest,
    progress: Progress,
    held: Sequence[Forecaster] = (),
    held_data: Sequence[Dataset] = (),
) -> AuditPlan:
    """Check a request, find models and data beside those held in memory, and plan. Nothing is run or written."""
    progress.say("finding models and series")
    if local_workers(request):
        start_server()  # the worker processes start beside the planning
    options = request.completed()
    resolve_device(options.device)
    for gate in options.gate:
        parse(gate, absolute=True)
    protocol = _protocol(options)
    settings = parse_settings(options.settings)
    datasets = list(held_data) or open_source(options.data)
    if options.channels and not any(dataset.variates > 1 for dataset in datasets):
        raise HrxError(f"No dataset of {options.data} has several variates. Drop --channels, or give other --data.")
    if joint := [dataset.name for dataset in datasets if dataset.joint and not options.channels]:
        raise HrxError(
            f"The targets of {joint[0]} are forecast together, which hrx explain measures and an audit does not. Write "
            "target=each for forecasts of their own, or add --channels."
        )
    shares = divide(options.models, options.python) if options.models or not held else {}
    found = _find_models(shares.pop(None, []), held, settings, options, progress)
    models = {key: one.located for key, one in found.items()}
    for model in models.values():
        if len(models) == 1 and isinstance(model, UnbuiltModel) and not shares:
            raise ModelError(model.shown)  # a request for it alone is wrong
    taken = {key: {Setting(*pair) for pair in one.settings} for key, one in found.items()}
    trained = {key: one.trained for key, one in found.items() if one.trained}
    runs = plan(
        [model.identity for model in models.values()],
        datasets,
        (*settings, *sorted(set().union(*taken.values()) - set(settings))),
        series=options.series,
        seeds=max(options.seeds, *(1 + run.seed for run in trained.values())) if trained else options.seeds,
        windows=options.windows or 1,
        protocol=protocol,
        channels=options.channels,
        output=Output.parse(options.output),
    )
    runs = [run for run in runs if run.setting in taken[run.model_key]]
    if trained:
        runs = _as_trained(runs, trained, options)
    runs = in_random_order(runs) if options.until else runs
    if models:
        refuse_empty_plan(runs, options.data)
    given = tuple(f"python:{model.identity.model}" for model in held)
    return AuditPlan(
        replace(options, models=options.models + given, data="python:data" if held_data else options.data),
        runs,
        WorkerSettings(models, int(options.memory * GIBIBYTE), options.device),
        [OtherInterpreter(path, names, options) for path, names in shares.items() if path],
    )


def _find_models(
    names: Sequence[str],
    held: Sequence[Forecaster],
    settings: Sequence[Setting],
    options: AuditRequest,
    progress: Progress,
) -> dict[ModelKey, CheckpointSettings]:
    """Return each model of this interpreter with its settings, and with its training if `hrx train` made it."""
    pairs, as_trained = [(setting.lookback, setting.horizon) for setting in settings], options.settings in NAMED
    choices = []
    for model in held:
        own = trained_setting(model) if as_trained else None
        choices.append(CheckpointSettings(model, [own] if own else pairs))
    for name in names:
        for folder in folders_without_training(user_path(name)):
            shown = shown_path(folder)
            progress.note(f"{shown} has no training.json and is not audited. Remove it and repeat hrx train.")
        choices += locate_each(name, pairs, merge_adapter=options.merge_adapter, as_trained=as_trained)
    found: dict[ModelKey, CheckpointSettings] = {}
    for located, own_settings, trained in choices:
        identified = _identified(located, options)
        first = found.setdefault(key := ModelKey.of(identified.identity), CheckpointSettings(identified, [], trained))
        if first.trained and trained and first.trained.path.resolve() != trained.path.resolve():
            raise HrxError(  # records tell models apart by their weights
                f"{first.trained.path.name} and {trained.path.name} have the same weights, so an audit cannot tell "
                f"them apart: {first.trained.trained_on} and {trained.trained_on} have the same values, or one is a "
                "copy. Move one elsewhere."
            )
        found[key] = first._replace(settings=first.settings + own_settings, trained=first.trained or trained)
    return found


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
    if size := min(local_workers(options), tasks):
        return ProcessExecutor(replace(settings, memory=settings.memory // size), size, options.timeout or None)
    return InProcessExecutor(settings)


def _identified(model: Located, options: AuditRequest) -> Located:
    """Return the model with its identity; a user's code is run in a worker process, or here where there are none."""
    if not isinstance(model, ModuleFile):
        return model
    file = content(model)
    found = identify(model, options.timeout or None) if local_workers(options) else guarded(lambda: model.identity)
    if isinstance(found, TaskFailed):
        return UnbuiltModel(model.identity_unbuilt, without_paths(found.reason), found.shown or found.reason)
    return IdentifiedModel(found, model, file)


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
        fine="fine" in sweeps,
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


def divide(models: Sequence[str], python: Sequence[str]) -> dict[Path | None, list[str]]:
    """Return the models of each interpreter, as `FAMILY=PATH` sends them; those of this one under None."""
    interpreters, known = {}, [*families(), *_PREFIXES]
    for entry in python:
        family, _, text = entry.partition("=")
        if not text:
            raise HrxError(f"--python {entry} is not FAMILY=PATH. For example --python timer=.venv-timer/bin/python.")
        if family not in known:
            raise HrxError(f"--python {entry}: {unknown('family', family, known)}")
        interpreters[family] = path = user_path(text)
        if not os.path.isfile(path):
            raise HrxError(f"--python {entry}: {path} is not a file. Give the python of an environment that has hrx.")
    shares: dict[Path | None, list[str]] = {}
    for name in models or [EMBEDDED]:
        shares.setdefault(interpreters.get(family_of(name)), []).append(name)
    return shares


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

    def audit(self, stop: Stop, *, recheck: int = 0) -> int:
        """Run its share in the time that is left, with its progress on this terminal. Return its exit code."""
        process = self._start("audit", replace(self._request, budget=stop.left), subprocess.DEVNULL, str(recheck))
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
        asked = {name: value for name, value in as_settings(request).items() if name in options_of(AuditRequest)}
        command = [str(self._interpreter), "-c", _CHILD, action, json.dumps(asked), *more]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, text=True, start_new_session=True)

    def _check(self, code: int) -> None:
        if code in (Exit.WRONG_REQUEST, Exit.CRASHED, 1):  # 1: python could not import hrx; its message is above
            raise HrxError(
                f"{self._interpreter} could not audit {', '.join(self._models)}: see its message above. Check that "
                "hrx and the library of the family are installed there."
            )


def announcer(runs: Sequence[Run], progress: Progress) -> Callable[[Task], None]:
    """Return what says of each task what it does when it starts."""
    names = {run.model_key: run.identity.model for run in runs}

    def announce(task: Task) -> None:
        match task:
            case LoadModel():
                progress.say(f"loading {names[task.model]}")
            case Admit():
                progress.say(f"checking {names[task.model]} at {task.run.setting}")
            case MeasureRun():
                progress.time_from_here()
                progress.say(label(task.run))

    return announce


def label(run: Run) -> str:
    return f"{run.identity.model} {run.dataset.name} {run.setting}"
