"""The local engine: takes a plan through models, one run after another, and writes each result before the next begins.

Whatever goes wrong with one run becomes that run's record; the rest go on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby

import numpy as np
import torch

from hrx.adapters import Forecaster, Identity, Located, ModelError
from hrx.adapters.contract import ADAPTER_VERSION
from hrx.audit.admission import admit
from hrx.audit.baselines import Floats
from hrx.audit.ledger import Ledger, StoredCheck
from hrx.audit.measuring import Outcome, attempt, outline, told, windows_of
from hrx.audit.memory import Budget
from hrx.audit.plan import Run, Setting
from hrx.audit.record import EXCLUDED, FAILED, Record
from hrx.gift_eval import UnusableSeries

ADMISSION_WINDOWS = 4

Progress = Callable[[Run, Record], None]


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
                _store(ledger, run, Outcome(outline(run, FAILED, str(error))), progress)
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
            outcome = Outcome(outline(run, EXCLUDED, None) | refused)
        else:  # a series that could not be read has a better reason of its own
            outcome = attempt(model, run, budget)
        _store(ledger, run, outcome, progress)


def _admission_refusal(model: Forecaster, setting: Setting, planned: Sequence[Run], ledger: Ledger) -> Record:
    """Why no run of a setting may be scored, as a part of their records; empty where they may."""
    if refusal := model.limits.refusal(setting.lookback, setting.horizon):
        return {"reason": f"{model.identity.model} {refusal}"}
    try:
        checks = admission(model, setting, planned, ledger)
    except Exception as error:  # a library may raise anything: one setting must not end the audit
        return {"status": FAILED, "reason": f"admission: {told(error)}"}
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
                for x in windows_of(run).x:
                    if np.ptp(x) > 0:
                        found[run.series.fingerprint] = x
                        break
    return torch.as_tensor(np.stack(list(found.values())), dtype=torch.float32) if found else None


def _store(ledger: Ledger, run: Run, outcome: Outcome, progress: Progress) -> None:
    ledger.write(outcome.record, outcome.matrix)
    progress(run, outcome.record)
