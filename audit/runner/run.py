"""One run from its windows to its record. Whatever goes wrong with it becomes the record; nothing is written here."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx import __version__
from hrx.adapters import Forecaster, Identity
from hrx.audit.admission.checks import EQUIVALENCE_LIMIT, parity
from hrx.audit.attribution import Explanation
from hrx.audit.ledger.record import DISTANCES, DONE, EXCLUDED, FAILED, TRUNCATIONS, Record
from hrx.audit.ledger.store import StoredExample
from hrx.audit.memory import Budget
from hrx.audit.runner.plan import Run
from hrx.audit.scoring.baselines import skill
from hrx.audit.scoring.channels import explain_both, score_both
from hrx.audit.scoring.quantities import GAINS, QUANTITIES, Quantities
from hrx.audit.scoring.rank import Rank, rank
from hrx.audit.scoring.score import Unscorable, explanation_of, forecast_of, score_explained
from hrx.audit.way import DECLARED, Way
from hrx.errors import describe_error
from hrx.gift_eval import DamagedDataset, MultivariateSeries, UnusableSeries, Windows, cut, cut_item

UNEQUAL = "equivalence"
"""The check that every run repeats on its own windows."""


class Outcome(NamedTuple):
    """What came of one run."""

    record: Record
    matrix: StoredExample | None = None


def attempt(model: Forecaster, run: Run, budget: Budget, way: Way = DECLARED) -> Outcome:
    """`measure_run`, with every error told in the record, and the time it took."""
    began = time.perf_counter()
    try:
        outcome = measure_run(model, run, budget, way)
    except (Unscorable, UnusableSeries) as error:
        outcome = Outcome(outline(run, EXCLUDED, _without_name(run, str(error))))
    except DamagedDataset as error:
        outcome = Outcome(outline(run, FAILED, str(error)))
    except Exception as error:  # a library may raise anything: one run must not end the audit
        outcome = Outcome(outline(run, FAILED, describe_error(error)))
    return outcome._replace(record=outcome.record | {"seconds": time.perf_counter() - began})


def measure_run(model: Forecaster, run: Run, budget: Budget, way: Way = DECLARED) -> Outcome:
    """One run from its windows to its record; `way` says how the model that is given is computed."""
    windows = _usable_windows(run)
    x = torch.as_tensor(windows.x, dtype=torch.float32)
    model = together(model) if x.ndim == 3 else model
    figure = parity(model, x, run.setting.horizon)
    computed: Record = {"parity": figure, "accelerations": " ".join(way.accelerations), "probe": way.probe}
    if not figure <= EQUIVALENCE_LIMIT:
        reason = f"equivalence: {figure:.3g} against {EQUIVALENCE_LIMIT:.3g} on the run's own windows"
        return Outcome(outline(run, EXCLUDED, reason) | {"check_failed": UNEQUAL} | computed)
    found = _measurement(model, x, run, budget)
    record = outline(run, DONE, None) | _measured(found, windows) | computed
    return Outcome(record, _picture(run, windows, found) if run.pictured and x.ndim == 2 else None)


def rank_run(model: Forecaster, run: Run, budget: Budget) -> Rank:
    """The ranks of a run's windows, before any deletion: a forward pass and the matrix, and nothing else."""
    x = torch.as_tensor(_usable_windows(run).x, dtype=torch.float32)
    model = together(model) if x.ndim == 3 else model
    forecast_of(model, x, run.setting.horizon)
    return rank(explanation_of(model, x, run.setting.horizon, run.protocol, budget, run.stream).matrix)


def _usable_windows(run: Run) -> Windows:
    if run.trouble is not None:
        raise run.trouble
    windows = windows_of(run)
    if not np.ptp(windows.x, axis=1).any():
        raise Unscorable("flat windows: the same value at every position, so there is nothing to delete")
    return windows


def together(model: Forecaster) -> Forecaster:
    """The model as it reads all channels of a window at once."""
    multivariate = model.multivariate()
    if multivariate is None:
        raise Unscorable(no_channels(model.identity))
    return multivariate


def no_channels(identity: Identity) -> str:
    """Why a model has no channel axis."""
    return f"{identity.model} reads one variate at a time, so there is no channel axis"


class _Measurement(NamedTuple):
    """What one run found out, and how long its first two stages took."""

    forecast: Tensor
    explanation: Explanation
    quantities: Quantities
    channel: Quantities | None
    """Along the channels, where the windows have several."""
    forward_seconds: float
    matrix_seconds: float


def _measurement(model: Forecaster, x: Tensor, run: Run, budget: Budget) -> _Measurement:
    """The stages of `score_in_full`, or of `score_channels`, with a look at the clock between them."""
    protocol, stream, horizon = run.protocol, run.stream, run.setting.horizon
    began = time.perf_counter()
    forecast = forecast_of(model, x, horizon)
    forecasted = time.perf_counter()
    if x.ndim == 3:
        both = explain_both(model, x, horizon, protocol, budget)
        seconds = forecasted - began, time.perf_counter() - forecasted
        scores = score_both(model, x, forecast, both, protocol=protocol, budget=budget, stream=stream)
        return _Measurement(forecast, both.time, scores.time, scores.channel, *seconds)
    explanation = explanation_of(model, x, horizon, protocol, budget, stream)
    seconds = forecasted - began, time.perf_counter() - forecasted
    found = score_explained(model, x, forecast, explanation, protocol=protocol, budget=budget, stream=stream)
    return _Measurement(forecast, explanation, found, None, *seconds)


def windows_of(run: Run) -> Windows:
    """The windows that a run is measured on."""
    if run.series is None:
        raise UnusableSeries("the series could not be read")
    request = run.setting.lookback, run.setting.horizon, run.windows, run.seed
    if isinstance(run.series, MultivariateSeries):
        return cut_item(run.series, *request)
    return cut(run.series, *request)


def outline(run: Run, status: str, reason: str | None) -> Record:
    """A record before its numbers: the run's facts, what became of it, and when."""
    return run.facts() | {
        "status": status,
        "reason": reason,
        "hrx_version": __version__,
        "torch_version": torch.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _measured(found: _Measurement, windows: Windows) -> Record:
    """The part of the record that the run itself found out."""
    q = found.quantities
    values: Record = {}
    for name in QUANTITIES:
        values[name] = _number(getattr(q.normalised, name))
        values[f"{name}_raw"] = _number(getattr(q.raw, name))
        values[f"{name}_se"] = _number(getattr(q.error, name))
    for name in GAINS:
        values[f"{name}_steps"] = json.dumps(q.steps[name].tolist())
    return (
        values
        | _skilled(found.forecast, windows)
        | _swept(q)
        | _along_channels(found.channel, windows)
        | {
            "scored_steps": json.dumps(q.scored_steps.tolist()),
            "starts": json.dumps(windows.starts.tolist()),
            "insertion_dropped": q.insertion_dropped,
            "rank": q.rank,
            "rank_entropy": q.rank_entropy,
            "rank_dropped": q.rank_dropped,
            "variance": q.variance,
            "draws_used": q.draws,
            "forecasts": q.forecasts,
            "estimator_settings": found.explanation.settings,
            "rows_strategy": found.explanation.strategy,
            "rewrites": json.dumps(found.explanation.rewrites),
            "forward_seconds": found.forward_seconds,
            "matrix_seconds": found.matrix_seconds,
        }
    )


def _skilled(forecast: Tensor, windows: Windows) -> Record:
    """Errors against the truth; each channel of a multivariate window counts as a window."""
    y, truth, last, seasonal = (
        np.moveaxis(values, -1, 1).reshape(-1, values.shape[1]) if values.ndim == 3 else values
        for values in (forecast.double().numpy(), windows.y, windows.x[:, -1:], windows.seasonal)
    )
    naive = skill(y, truth, last[:, 0], seasonal)
    return {**naive._asdict(), "beats_naive": int(naive.beats_naive)}


def _swept(q: Quantities) -> Record:
    """Curves' areas, truncations, distances and reach."""
    reach = [_number(value) for value in q.effective_lookback_steps]
    found: Record = {
        "gap_own": q.gap_own,
        "gap_shared": q.gap_shared,
        "effective_lookback": _number(q.effective_lookback),
        "effective_lookback_steps": json.dumps(reach),
    }
    # Empty where it was not asked for: then the columns stay NULL.
    found |= {f"g_own_rank_{r}": _number(g) for r, g in zip(TRUNCATIONS, q.truncated, strict=False)}
    return found | {f"g_distance_{d}": _number(g) for d, g in zip(DISTANCES, q.distant, strict=False)}


def _along_channels(q: Quantities | None, windows: Windows) -> Record:
    if q is None:
        return {}
    gains: Record = {f"{name}_channel": _number(getattr(q.normalised, name)) for name in GAINS}
    return gains | {"channels": windows.x.shape[2], "rank_channel": _number(q.rank)}


def _number(value: float) -> float | None:
    """NaN is no number in SQL: it is stored as NULL."""
    return None if np.isnan(value) else float(value)


def _picture(run: Run, windows: Windows, found: _Measurement) -> StoredExample:
    return StoredExample(
        key=run.key,
        x=windows.x[0],
        truth=windows.y[0],
        forecast=found.forecast[0].numpy(),
        matrix=found.explanation.matrix[0].numpy(),
        curves=found.quantities.curves,
    )


def _without_name(run: Run, reason: str) -> str:
    """The reason alone: the record names dataset and series in columns of their own."""
    return reason.removeprefix(f"{run.series.label}: ") if run.series else reason
