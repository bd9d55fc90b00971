"""The options of an audit as models, runs, a ledger and worker settings."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hrx.adapters import Forecaster, Identity, Located, ModelError, locate_each, trained_setting
from hrx.adapters.device import resolve_device
from hrx.adapters.formats.module import ModuleFile, UnbuiltModel
from hrx.adapters.formats.trained_directory import TrainedRun, folders_without_training
from hrx.audit.attribution.registry import parse_estimator_settings
from hrx.audit.memory import GIBIBYTE
from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import NAMED, ModelKey, Run, Setting, in_random_order, parse_settings, plan
from hrx.audit.runner.processes import identify
from hrx.audit.runner.worker import Executor, IdentifiedModel, TaskFailed, WorkerSettings, guarded
from hrx.cli.config import effective
from hrx.cli.other_python import OtherInterpreter, Shares, divide
from hrx.cli.terminal import note
from hrx.cli.verbs import parser
from hrx.errors import HrxError, unknown, without_paths
from hrx.files import shown_path, user_path
from hrx.gift_eval import Dataset, open_source
from hrx.reports.gates import parse

DEFAULT_WORKERS = 1
"""A process of its own for the models: one that ends its process, or hangs, does not end the audit."""
SWEEPS = ("truncation", "distance", "context")


class Effort(NamedTuple):
    """What one run spends, where the options do not say it."""

    windows: int
    draws: int


EFFORTS = {"light": Effort(windows=1, draws=2), "paper": Effort(windows=4, draws=4)}
"""Series differ more than the windows of a series, and windows more than draws: `light` leaves time for more series."""


@dataclass(frozen=True)
class HeldModel:
    """A model of `hrx.run_audit` that is in memory."""

    model: Forecaster

    @property
    def identity(self) -> Identity:
        return self.model.identity

    def load(self) -> Forecaster:
        return self.model


class Held(NamedTuple):
    """What `hrx.run_audit` gives as objects, in place of names on a command line."""

    models: tuple[HeldModel, ...] = ()
    datasets: tuple[Dataset, ...] = ()


@dataclass(frozen=True)
class Request:
    """A checked request."""

    runs: Sequence[Run]
    workers: WorkerSettings
    other_interpreters: Sequence[OtherInterpreter]
    ledger: Path
    settings: dict[str, Any]
    """The effective settings."""


def understand(options: argparse.Namespace) -> Request:
    """Checks the options, finds models and data, and plans. Nothing is run or written."""
    if not 0 < options.memory < float("inf"):
        raise HrxError(f"--memory {options.memory} is not a valid amount of memory. Give gibibytes, for example 2.")
    _refuse_stops_without_effect(options)
    resolve_device(options.device)
    effort = EFFORTS[options.effort]
    options.windows = options.windows or effort.windows  # filled in, so that the effective settings state them
    options.draws = options.draws or effort.draws
    for gate in options.gate:
        parse(gate, absolute=True)
    protocol = _protocol(options)
    settings = parse_settings(options.settings)
    held: Held = getattr(options, "held", Held())
    datasets = list(held.datasets) or open_source(options.data)
    if options.channels and not any(dataset.variates > 1 for dataset in datasets):
        raise HrxError(f"No dataset of {options.data} has several variates. Drop --channels, or give other --data.")
    shares = divide(options.models, options.python) if options.models or not held.models else Shares([], {})
    models: dict[ModelKey, Located] = {ModelKey.of(model.identity): model for model in held.models}
    taken: dict[ModelKey, set[Setting]] = {key: set(settings) for key in models}
    if options.settings in NAMED:
        own_settings = ((ModelKey.of(model.identity), trained_setting(model.model)) for model in held.models)
        taken |= {key: {Setting(*pair)} for key, pair in own_settings if pair}
    trained: dict[ModelKey, TrainedRun] = {}
    pairs = [(setting.lookback, setting.horizon) for setting in settings]
    for name in shares.here:
        for folder in folders_without_training(user_path(name)):
            note(f"{shown_path(folder)} has no training.json and is not audited. Remove it and repeat hrx train.")
        for choice in locate_each(
            name, pairs, merge_adapter=options.merge_adapter, as_trained=options.settings in NAMED
        ):
            located = _identified(choice.located, options)
            key = ModelKey.of(located.identity)
            models.setdefault(key, located)
            taken.setdefault(key, set()).update(Setting(*pair) for pair in choice.settings)
            if choice.trained:
                _refuse_equal_weights(trained.setdefault(key, choice.trained), choice.trained)
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
        windows=options.windows,
        protocol=protocol,
        channels=options.channels,
    )
    runs = [run for run in planned if run.setting in taken[run.model_key]]
    if trained:
        runs = _as_trained(runs, trained, options)
    runs = in_random_order(runs) if options.until else runs
    if models:
        refuse_empty_plan(runs, options.data)
    ledger = options.ledger or options.out / "ledger.db"
    used = effective(options, parser())
    used["models"] = [*used["models"], *(f"python:{model.identity.model}" for model in held.models)]
    used["data"] = "python:data" if held.datasets else used["data"]
    return Request(
        runs=runs,
        workers=WorkerSettings(tuple(models.values()), int(options.memory * GIBIBYTE), options.device),
        other_interpreters=[OtherInterpreter(path, names, used, ledger) for path, names in shares.elsewhere.items()],
        ledger=ledger,
        settings=used,
    )


def _as_trained(runs: list[Run], trained: Mapping[ModelKey, TrainedRun], options: argparse.Namespace) -> list[Run]:
    """The runs of models of `hrx train` on the series and at the seed of their training, and all runs of others.

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
    """Raises where two trained models have the same weights: records tell models apart by them."""
    if first.path.resolve() != second.path.resolve():
        raise HrxError(
            f"{first.path.name} and {second.path.name} have the same weights, so an audit cannot tell them apart: "
            f"{first.trained_on} and {second.trained_on} have the same values, or one is a copy. Move one elsewhere."
        )


def _refuse_stops_without_effect(options: argparse.Namespace) -> None:
    if options.rank_only and (options.budget or options.until):
        option = "--budget" if options.budget else "--until"
        raise HrxError(f"{option} stops an audit of gains, and --rank-only measures none. Drop one of them.")
    if options.recheck and options.budget:
        raise HrxError(f"--recheck {options.recheck} measures that many runs, whatever --budget is. Drop --budget.")


def local_workers(options: argparse.Namespace) -> int:
    """Worker processes on this machine; 0 where models run in this process."""
    if options.engine == "ray":
        if options.workers == 0:
            raise HrxError("--workers 0 runs the models in this process, --engine ray elsewhere. Drop one of them.")
        return 1  # it builds the models of module:FILE.py:FACTORY for the plan
    return DEFAULT_WORKERS if options.workers is None else int(options.workers)


def open_executor(settings: WorkerSettings, options: argparse.Namespace, tasks: int) -> Executor:
    """The workers that the options ask for; local ones are not more than there are tasks."""
    if options.engine == "ray":
        from hrx.audit.runner.ray import RayExecutor

        return RayExecutor(settings, options.workers, options.gpus, options.address, options.timeout or None)
    return local_executor(settings, options, tasks)


def local_executor(settings: WorkerSettings, options: argparse.Namespace, tasks: int) -> Executor:
    """Worker processes on this machine, or this process."""
    if size := min(local_workers(options), tasks):
        from hrx.audit.runner.processes import ProcessExecutor

        return ProcessExecutor(settings.divided(size), size, options.timeout or None)
    from hrx.audit.runner.worker import InProcessExecutor

    return InProcessExecutor(settings)


def _identified(model: Located, options: argparse.Namespace) -> Located:
    """The model with its identity; a user's code is run in a worker process, or here where there are none."""
    if not isinstance(model, ModuleFile):
        return model
    found = identify(model, options.timeout or None) if local_workers(options) else guarded(lambda: model.identity)
    if isinstance(found, TaskFailed):
        return UnbuiltModel(model.identity_unbuilt, without_paths(found.reason), found.shown or found.reason)
    return IdentifiedModel(found, model)


def _raise_unbuilt(model: Located) -> None:
    """Raises where the only model of an audit cannot be built: a request for it alone is wrong."""
    if isinstance(model, UnbuiltModel):
        raise ModelError(model.shown)


def _protocol(options: argparse.Namespace) -> Protocol:
    sweeps = [name for name in options.sweeps.split(",") if name]
    for name in sweeps:
        if name not in SWEEPS:
            raise HrxError(unknown("sweep", name, SWEEPS))
    if options.channels and (options.estimator, options.axis) != ("input_gradient", "step"):
        raise HrxError("--channels works with the input gradient only. Drop --estimator and --axis.")
    return Protocol(
        estimator=options.estimator,
        estimator_settings=parse_estimator_settings(options.estimator_setting),
        axis=options.axis,
        draws=options.draws,
        precision=options.precision,
        max_draws=max(options.draws, Protocol.max_draws),
        truncation="truncation" in sweeps,
        distance="distance" in sweeps,
        context="context" in sweeps,
        context_bound=context_bound(options.context_bound, requested="context" in sweeps),
    )


def context_bound(given: float | None, *, requested: bool) -> float:
    """The bound of the needed context; refuses one that would have no effect."""
    if given is not None and not requested:
        raise HrxError("--context-bound belongs to the needed context. Add --sweeps context, or drop it.")
    return Protocol.context_bound if given is None else given


def refuse_empty_plan(runs: Sequence[Run], source: str) -> None:
    """Raises where no series admits any setting."""
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
