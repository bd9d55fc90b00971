"""`hrx audit`: plan, run what is missing, and show what came of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hrx.adapters import EMBEDDED, locate
from hrx.audit.engine import execute
from hrx.audit.ledger import Ledger
from hrx.audit.memory import GIBIBYTE, Budget
from hrx.audit.plan import Run, parse_settings, plan
from hrx.audit.protocol import Protocol
from hrx.audit.record import FAILED, Record
from hrx.cli.progress import Progress
from hrx.cli.screen import show
from hrx.errors import Exit, HrxError
from hrx.gift_eval import admits, open_source
from hrx.reports import heatmaps, read, render, summarise


def audit(options: argparse.Namespace) -> int:
    """Carries out an audit and returns its exit code."""
    if not 0 < options.memory < float("inf"):
        raise HrxError(f"--memory {options.memory} is no amount of memory. Give gibibytes, for example 2.")
    protocol = Protocol(
        draws=options.draws, precision=options.precision, max_draws=max(options.draws, Protocol.max_draws)
    )
    settings = parse_settings(options.settings)
    datasets = open_source(options.data)
    located = [locate(name) for name in options.models or [EMBEDDED]]
    models = list({(model.identity.family, model.identity.fingerprint): model for model in located}.values())
    runs = plan(
        [model.identity for model in models],
        datasets,
        settings,
        series=options.series,
        seeds=options.seeds,
        windows=options.windows,
        protocol=protocol,
    )
    _refuse_hopeless(runs, options.data)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HrxError(f"--out {options.out} cannot be made: {error}. Give a directory that may be written.") from error
    path = options.ledger or options.out / "ledger.db"
    with Ledger.open(path) as ledger:
        finished = ledger.finished()
        known = sum(run.key in finished for run in runs)
        if not options.json:
            print(_opening(runs, known, path), file=sys.stderr)
        progress = Progress(len(runs), known)
        execute(
            runs,
            models,
            ledger,
            budget=Budget(int(options.memory * GIBIBYTE)),
            progress=lambda run, record: progress.step(_said(run, record)),
        )
    return _report(runs, path, options)


def _refuse_hopeless(runs: Sequence[Run], source: str) -> None:
    """A request in which no series admits any setting is wrong as a whole."""
    if not runs:
        raise HrxError(f"{source} holds no series. Give another --data.")
    troubles: dict[str, None] = {}
    for run in runs:
        if run.series is None:
            troubles[str(run.trouble)] = None
        elif admits(len(run.series.values), run.setting.lookback, run.setting.horizon):
            return
        else:
            troubles[f"{run.series.label} has {len(run.series.values)} values, too few for {run.setting}."] = None
    raise HrxError(
        f"No series of {source} can be audited. {' '.join(list(troubles)[:3])} Give other --settings or --data."
    )


def _opening(runs: Sequence[Run], known: int, path: Path) -> str:
    models = len({run.identity.fingerprint for run in runs})
    datasets = len({run.dataset.name for run in runs})
    stored = f", {known} of them in the ledger already" if known else ""
    return f"{len(runs)} runs ({models} model{'s' * (models > 1)}, {datasets} datasets){stored}: {path}"


def _said(run: Run, record: Record) -> str:
    return f"{run.identity.model} {run.dataset.name} {run.setting} {record['status']}"


def _report(runs: Sequence[Run], path: Path, options: argparse.Namespace) -> int:
    """Shows the runs of this audit, whatever else the ledger holds."""
    keys = {run.key for run in runs}
    frame = read(path)
    frame = frame[frame["key"].isin(keys)]
    with Ledger.open(path, create=False) as ledger:
        summaries = summarise(frame, ledger.checks())
    pictures = heatmaps(path, options.out, keys)
    if options.json:
        print(json.dumps({"ledger": str(path), "models": [summary.as_json() for summary in summaries]}, indent=1))
    else:
        show(render(summaries))
        show(f"\nLedger: {path}\nPictures: {len(pictures)} heat maps in {options.out}")
    return Exit.INCOMPLETE if (frame["status"] == FAILED).any() else Exit.DONE
