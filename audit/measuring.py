"""One run from its windows to its record. Whatever goes wrong with it becomes the record; nothing is written here."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import torch

from hrx import __version__
from hrx.adapters import Forecaster
from hrx.audit.admission import EQUIVALENCE_LIMIT, parity
from hrx.audit.baselines import skill
from hrx.audit.ledger import StoredMatrix
from hrx.audit.memory import Budget
from hrx.audit.plan import Run
from hrx.audit.quantities import GAINS, QUANTITIES
from hrx.audit.record import DONE, EXCLUDED, FAILED, Record
from hrx.audit.scoring import Scored, Unscorable, score_in_full
from hrx.gift_eval import DamagedDataset, UnusableSeries, Windows, cut


class Outcome(NamedTuple):
    """What came of one run."""

    record: Record
    matrix: StoredMatrix | None = None


def attempt(model: Forecaster, run: Run, budget: Budget) -> Outcome:
    """`measure_run`, with every error told in the record, and the time it took."""
    began = time.perf_counter()
    try:
        outcome = measure_run(model, run, budget)
    except (Unscorable, UnusableSeries) as error:
        outcome = Outcome(outline(run, EXCLUDED, _without_name(run, str(error))))
    except DamagedDataset as error:
        outcome = Outcome(outline(run, FAILED, str(error)))
    except Exception as error:  # a library may raise anything: one run must not end the audit
        outcome = Outcome(outline(run, FAILED, told(error)))
    return outcome._replace(record=outcome.record | {"seconds": time.perf_counter() - began})


def measure_run(model: Forecaster, run: Run, budget: Budget) -> Outcome:
    """One run from its windows to its record."""
    if run.trouble is not None:
        raise run.trouble
    windows = windows_of(run)
    if not np.ptp(windows.x, axis=1).any():
        raise Unscorable("flat windows: the same value at every position, so there is nothing to delete")
    x = torch.as_tensor(windows.x, dtype=torch.float32)
    figure = parity(model, x, run.setting.horizon)
    if not figure <= EQUIVALENCE_LIMIT:
        reason = f"equivalence: {figure:.3g} against {EQUIVALENCE_LIMIT:.3g} on the run's own windows"
        return Outcome(outline(run, EXCLUDED, reason) | {"check_failed": "equivalence", "parity": figure})
    scored = score_in_full(model, x, run.setting.horizon, protocol=run.protocol, budget=budget, stream=run.stream)
    record = outline(run, DONE, None) | {"parity": figure} | _measured(scored, windows)
    return Outcome(record, _picture(run, windows, scored) if run.pictured else None)


def windows_of(run: Run) -> Windows:
    """The windows that a run is measured on."""
    if run.series is None:
        raise UnusableSeries("the series could not be read")
    return cut(run.series, run.setting.lookback, run.setting.horizon, run.windows, run.seed)


def outline(run: Run, status: str, reason: str | None) -> Record:
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


def told(error: Exception) -> str:
    """A library's exception in one line, without what its traceback would say of this machine."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
    return f"{type(error).__name__}: {first}"
