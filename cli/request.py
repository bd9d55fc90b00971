"""What an audit was asked to do, in the terms of the other rooms: models, runs, ledger, settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hrx.adapters import Located, locate_each
from hrx.adapters.acceleration import ACCELERATIONS
from hrx.audit.attribution.settings import parse_estimator_settings
from hrx.audit.memory import GIBIBYTE
from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import Run, Setting, parse_settings, plan
from hrx.audit.runner.worker import ModelKey
from hrx.audit.way import Wanted
from hrx.cli.config import effective
from hrx.cli.isolation import Elsewhere, divide
from hrx.cli.verbs import parser
from hrx.errors import HrxError, unknown
from hrx.gift_eval import open_source
from hrx.reports.gates import parse

SWEEPS = ("truncation", "distance")


@dataclass(frozen=True)
class Request:
    """What was asked, in the terms of the other rooms."""

    models: Sequence[Located]
    runs: Sequence[Run]
    elsewhere: Sequence[Elsewhere]
    path: Path
    settings: dict[str, Any]
    memory: int
    wanted: Wanted


def understand(options: argparse.Namespace) -> Request:
    """Checks the options, finds models and data, and plans. Nothing is run or written."""
    if not 0 < options.memory < float("inf"):
        raise HrxError(f"--memory {options.memory} is no amount of memory. Give gibibytes, for example 2.")
    for gate in options.gate:
        parse(gate, absolute=True)
    protocol, wanted = _protocol(options), wanted_way(options)
    settings = parse_settings(options.settings)
    datasets = open_source(options.data)
    if options.channels and not any(dataset.variates > 1 for dataset in datasets):
        raise HrxError(
            f"No dataset of {options.data} has several variates. Leave --channels away, or give other --data."
        )
    shares = divide(options.models, options.python)
    models: dict[ModelKey, Located] = {}
    taken: dict[ModelKey, set[Setting]] = {}
    for name in shares.here:
        for choice in locate_each(name, [(setting.lookback, setting.horizon) for setting in settings]):
            who = ModelKey.of(choice.located.identity)
            models.setdefault(who, choice.located)
            taken.setdefault(who, set()).update(Setting(*pair) for pair in choice.settings)
    planned = plan(
        [model.identity for model in models.values()],
        datasets,
        settings,
        series=options.series,
        seeds=options.seeds,
        windows=options.windows,
        protocol=protocol,
        channels=options.channels,
    )
    runs = [run for run in planned if run.setting in taken[ModelKey.of(run.identity)]]
    if models:
        _refuse_hopeless(runs, options.data)
    path = options.ledger or options.out / "ledger.db"
    told = effective(options, parser())
    elsewhere = [Elsewhere(interpreter, names, told, path) for interpreter, names in shares.elsewhere.items()]
    return Request(list(models.values()), runs, elsewhere, path, told, int(options.memory * GIBIBYTE), wanted)


def wanted_way(options: argparse.Namespace) -> Wanted:
    """How the models are asked to be computed."""
    names = [name.strip() for name in options.accelerate.split(",") if name.strip()]
    for name in names:
        if name not in ACCELERATIONS:
            raise HrxError(unknown("acceleration", name, ACCELERATIONS))
    return Wanted(options.rows, tuple(name for name in ACCELERATIONS if name in names))


def _protocol(options: argparse.Namespace) -> Protocol:
    sweeps = [name for name in options.sweeps.split(",") if name]
    for name in sweeps:
        if name not in SWEEPS:
            raise HrxError(unknown("sweep", name, SWEEPS))
    if options.channels and (options.estimator, options.axis) != ("input_gradient", "step"):
        raise HrxError("--channels is measured by the input gradient alone. Leave --estimator and --axis away.")
    return Protocol(
        estimator=options.estimator,
        estimator_settings=parse_estimator_settings(options.estimator_setting),
        axis=options.axis,
        draws=options.draws,
        precision=options.precision,
        max_draws=max(options.draws, Protocol.max_draws),
        truncation="truncation" in sweeps,
        distance="distance" in sweeps,
    )


def _refuse_hopeless(runs: Sequence[Run], source: str) -> None:
    """A request in which no series admits any setting is wrong as a whole."""
    if not runs:
        raise HrxError(f"{source} holds no series. Give another --data.")
    troubles: dict[str, None] = {}
    for run in runs:
        if not run.refusal:
            return
        troubles[f"{run.refusal.rstrip('.')}."] = None
    raise HrxError(
        f"No series of {source} can be audited. {' '.join(list(troubles)[:3])} Give other --settings or --data."
    )
