"""The local engine: takes a plan through models, one run after another, and writes each result before the next begins.

Whatever goes wrong with one run becomes that run's record; the rest go on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch

from hrx import __version__
from hrx.adapters import Forecaster, Identity, Located, ModelError
from hrx.adapters.contract import ADAPTER_VERSION
from hrx.audit.admission import EQUIVALENCE_LIMIT, admit, parity
from hrx.audit.baselines import Floats, skill
from hrx.audit.ledger import Ledger, StoredCheck, StoredMatrix
from hrx.audit.memory import Budget
from hrx.audit.plan import Run, Setting
from hrx.audit.quantities import GAINS, QUANTITIES
from hrx.audit.record import DONE, EXCLUDED, FAILED, Record
from hrx.audit.scoring import Scored, Unscorable, score_in_full
from hrx.gift_eval import DamagedDataset, UnusableSeries, Windows, cut

ADMISSION_WINDOWS = 4

Progress = Callable[[Run, Record], None]


class Outcome(NamedTuple):
    """What came of one run."""

    record: Record
    matrix: StoredMatrix | None = None


def execute(
    runs: Sequence[Run], models: Iterable[Located], ledger: Ledger, *, budget: Budget, progress: Progress
) -> None:
    """Carries out every run that the ledger does not hold yet, and stores it."""
    finished = ledger.finished()
    located = {_whose(model.identity): model for model in models}
    for who, group in groupby(runs, key=lambda run: _whose(run.identity)):
        mine = list(group)
        pending = [run for run in mine if run.key not in finished]
        if not pending:
            continue
        try:
            model = located[who].load()
        except ModelError as error:
            if len(located) == 1:
                raise
            for run in pending:
                _store(ledger, run, Outcome(_outline(run, FAILED, str(error))), progress)
            continue
        if len(located) == 1:
            _refuse_every_setting(model, mine)
        for setting, at_setting in groupby(mine, key=lambda run: run.setting):
            planned = list(at_setting)
            missing = [run for run in planned if run.key not in finished]
            if missing:
                _execute_setting(model, setting, planned, missing, ledger, budget, progress)


def _whose(identity: Identity) -> tuple[str, str]:
    """What tells one model from another: the same weights under another family are another model."""
    return identity.family, identity.fingerprint


def _refuse_every_setting(model: Forecaster, runs: Sequence[Run]) -> None:
    """The only model of an audit, if it can take none of the settings, was asked the wrong thing."""
    refusals = {run.setting: model.limits.refusal(run.setting.lookback, run.setting.horizon) for run in runs}
    if all(refusals.values()):
        raise ModelError(f"{model.identity.model} {'; '.join(dict.fromkeys(map(str, refusals.values())))}.")


def _execute_setting(
    model: Forecaster,
    setting: Setting,
    planned: Sequence[Run],
    missing: Sequence[Run],
    ledger: Ledger,
    budget: Budget,
    progress: Progress,
) -> None:
    """The `missing` runs of a setting, after admission on windows of all that were `planned`."""
    refused = _admission_refusal(model, setting, planned, ledger)
    for run in missing:
        if refused and run.trouble is None:
            outcome = Outcome(_outline(run, EXCLUDED, None) | refused)
        else:  # a series that could not be read has a better reason of its own
            outcome = _attempt(model, run, budget)
        _store(ledger, run, outcome, progress)


def _admission_refusal(model: Forecaster, setting: Setting, planned: Sequence[Run], ledger: Ledger) -> Record:
    """Why no run of a setting may be scored, as a part of their records; empty where they may."""
    if refusal := model.limits.refusal(setting.lookback, setting.horizon):
        return {"reason": f"{model.identity.model} {refusal}"}
    try:
        checks = admission(model, setting, planned, ledger)
    except Exception as error:  # a library may raise anything: one setting must not end the audit
        return {"status": FAILED, "reason": f"admission: {_told(error)}"}
    for check in checks:
        if not check.passed:
            reason = f"{check.check}: {check.figure:.3g} against {check.limit:.3g} ({check.note})"
            return {"reason": reason, "check_failed": check.check}
    return {}


def admission(model: Forecaster, setting: Setting, runs: Sequence[Run], ledger: Ledger) -> Sequence[StoredCheck]:
    """The five checks of a setting on real windows of its runs; from the ledger where these were checked already."""
    windows = admission_windows(runs)
    if windows is None:
        return []
    digest = hashlib.sha256(windows.numpy().tobytes()).hexdigest()
    about = (model.identity.fingerprint, model.identity.library, ADAPTER_VERSION, torch.__version__)
    stored = [
        check
        for check in ledger.checks()
        if check[:4] == about and check.setting == str(setting) and check.windows == digest
    ]
    if not stored:
        stored = [
            StoredCheck(*about, model.identity.model, c.setting, c.check, c.passed, c.figure, c.limit, c.note, digest)
            for c in admit(model, windows, setting.horizon)
        ]
        ledger.write_checks(stored)
    return stored


def admission_windows(runs: Sequence[Run]) -> torch.Tensor | None:
    """Up to four real windows `(W, L)` that are not flat, of different series where there are several.

    A flat window has no derivative in a model that divides by its spread. None where no series has any window at all
    or only flat ones: then every run is excluded for a reason of its own.
    """
    found: dict[str, Floats] = {}
    for run in runs:
        if run.series is not None and run.series.fingerprint not in found and len(found) < ADMISSION_WINDOWS:
            with suppress(UnusableSeries):
                for x in _cut(run).x:
                    if np.ptp(x) > 0:
                        found[run.series.fingerprint] = x
                        break
    return torch.as_tensor(np.stack(list(found.values())), dtype=torch.float32) if found else None


def _attempt(model: Forecaster, run: Run, budget: Budget) -> Outcome:
    began = time.perf_counter()
    try:
        outcome = measure_run(model, run, budget)
    except (Unscorable, UnusableSeries) as error:
        outcome = Outcome(_outline(run, EXCLUDED, _without_name(run, str(error))))
    except DamagedDataset as error:
        outcome = Outcome(_outline(run, FAILED, str(error)))
    except Exception as error:  # a library may raise anything: one run must not end the audit
        outcome = Outcome(_outline(run, FAILED, _told(error)))
    return outcome._replace(record=outcome.record | {"seconds": time.perf_counter() - began})


def measure_run(model: Forecaster, run: Run, budget: Budget) -> Outcome:
    """One run from its windows to its record."""
    if run.trouble is not None:
        raise run.trouble
    windows = _cut(run)
    if not np.ptp(windows.x, axis=1).any():
        raise Unscorable("flat windows: the same value at every position, so there is nothing to delete")
    x = torch.as_tensor(windows.x, dtype=torch.float32)
    figure = parity(model, x, run.setting.horizon)
    if not figure <= EQUIVALENCE_LIMIT:
        reason = f"equivalence: {figure:.3g} against {EQUIVALENCE_LIMIT:.3g} on the run's own windows"
        return Outcome(_outline(run, EXCLUDED, reason) | {"check_failed": "equivalence", "parity": figure})
    scored = score_in_full(model, x, run.setting.horizon, protocol=run.protocol, budget=budget, stream=run.stream)
    record = _outline(run, DONE, None) | {"parity": figure} | _measured(scored, windows)
    return Outcome(record, _picture(run, windows, scored) if run.pictured else None)


def _cut(run: Run) -> Windows:
    if run.series is None:
        raise UnusableSeries("the series could not be read")
    return cut(run.series, run.setting.lookback, run.setting.horizon, run.windows, run.seed)


def _outline(run: Run, status: str, reason: str | None) -> Record:
    """A record before its numbers: the run's facts, what became of it, and when."""
    return run.facts() | {
        "status": status,
        "reason": reason,
        "hrx_version": __version__,
        "torch_version": torch.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _measured(scored: Scored, windows: Windows) -> Record:
    """The part of the record that the run itself found out."""
    q = scored.quantities
    forecast = scored.forecast.double().numpy()
    naive = skill(forecast, windows.y, windows.x[:, -1], windows.seasonal)
    values: Record = {}
    for name in QUANTITIES:
        values[name] = _number(getattr(q.normalised, name))
        values[f"{name}_raw"] = _number(getattr(q.raw, name))
        values[f"{name}_se"] = _number(getattr(q.error, name))
    for name in GAINS:
        values[f"{name}_steps"] = json.dumps(q.steps[name].tolist())
    return values | {
        **naive._asdict(),
        "beats_naive": int(naive.beats_naive),
        "scored_steps": json.dumps(q.scored_steps.tolist()),
        "starts": json.dumps(windows.starts.tolist()),
        "insertion_dropped": q.insertion_dropped,
        "rank": q.rank,
        "rank_entropy": q.rank_entropy,
        "variance": q.variance,
        "draws_used": q.draws,
        "forecasts": q.forecasts,
        "rows_strategy": scored.explanation.strategy,
        "rewrites": json.dumps(scored.explanation.rewrites),
    }


def _number(value: float) -> float | None:
    """NaN is no number in SQL: it is stored as NULL."""
    return None if np.isnan(value) else value


def _picture(run: Run, windows: Windows, scored: Scored) -> StoredMatrix:
    return StoredMatrix(
        key=run.key,
        x=windows.x[0],
        truth=windows.y[0],
        forecast=scored.forecast[0].numpy(),
        matrix=scored.explanation.matrix[0].numpy(),
    )


def _without_name(run: Run, reason: str) -> str:
    """The reason alone: the record names dataset and series in columns of their own."""
    return reason.removeprefix(f"{run.series.label}: ") if run.series else reason


def _told(error: Exception) -> str:
    """A library's exception in one line, without what its traceback would say of this machine."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
    return f"{type(error).__name__}: {first}"


def _store(ledger: Ledger, run: Run, outcome: Outcome, progress: Progress) -> None:
    ledger.write(outcome.record, outcome.matrix)
    progress(run, outcome.record)
