"""One run, from its windows to its record. Errors become part of the record; nothing is written here."""

import json
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster, Identity, Limits, Scale
from hrx.adapters.gradients import relative_difference
from hrx.adapters.standardisation import Rescaled, in_own_unit
from hrx.audit.admission import EQUIVALENCE_LIMIT, parity
from hrx.audit.attribution import Estimate
from hrx.audit.memory import MemoryBudget, out_of_memory
from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import Run
from hrx.audit.scoring.needed_context import ForecastErrors, needed_context
from hrx.audit.scoring.quantities import skill
from hrx.audit.scoring.score import ScoredRun, Unscorable, forecast_variance, moving, usable_variance
from hrx.errors import stored_reason
from hrx.gift_eval.series import MultivariateSeries, Series, UnusableSeries
from hrx.gift_eval.windows import Windows, cut_region, refuse_extreme, statistics
from hrx.records.ledger import StoredExample
from hrx.records.quantities import DISTANCES, GAINS, QUANTITIES, TRUNCATIONS, NeededContext, Quantities, Skill
from hrx.records.record import DONE, EXCLUDED, FAILED, Record, Value


class RunResult(NamedTuple):
    """Record of a run, and its first window with its matrix."""

    record: Record
    example: StoredExample | None = None


class SeriesForecasts(NamedTuple):
    """What the unperturbed forecasts over the test region of a series give: all its runs at a setting share it."""

    variance: float
    """Over all forecasts and steps, summed over the channels."""
    skill: Skill
    windows: int
    span: float
    """From the first to the last forecast start, in horizons."""
    context: NeededContext | None = None
    """Where it is measured."""


SeriesCache = dict[tuple[object, ...], SeriesForecasts]
"""Forecasts of each model, series and setting seen so far."""


def measure_run(
    model: Forecaster, run: Run, budget: MemoryBudget, device: str = "cpu", series: SeriesCache | None = None
) -> RunResult:
    """Measures one run. An error becomes the reason of an excluded or failed record.

    `series` keeps what the seeds of a series share between calls.
    """
    start = time.perf_counter()
    try:
        result = _measure(model, run, budget, {} if series is None else series)
    except (Unscorable, UnusableSeries) as error:
        result = RunResult(run.record(EXCLUDED, _without_label(run, stored_reason(error))))
    except Exception as error:  # a library may raise anything: one run must not stop the audit
        memory = "out of memory: " if out_of_memory(error) else ""
        result = RunResult(run.record(FAILED, memory + stored_reason(error)))
    return result._replace(record=result.record.updated(seconds=time.perf_counter() - start, device=device))


def in_units(model: Forecaster, series: Series | MultivariateSeries | None, horizon: int) -> Forecaster:
    """The model on standardised windows of a series, which it reads in their unit or by the scale of its training.

    A released model scales its windows itself, so it reads them as they are. Series of the Time-Series-Library have no
    other unit.
    """
    if not model.reads_units or series is None or (isinstance(series, Series) and series.official):
        return model
    scale = model.scale if isinstance(model.scale, Scale) else None
    return Rescaled(in_own_unit(model, scale), *statistics(series, horizon))


def multivariate(model: Forecaster) -> Forecaster:
    """Return the model as it reads all channels of a window together."""
    together = model.multivariate()
    if together is None:
        raise Unscorable(no_channel_axis(model.identity))
    return together


def no_channel_axis(identity: Identity) -> str:
    """Why a model has no channel axis."""
    return f"{identity.model} reads one variate at a time, so there is no channel axis"


def forecast_series(
    model: Forecaster,
    series: Series | MultivariateSeries,
    lookback: int,
    horizon: int,
    count: int,
    budget: MemoryBudget,
) -> SeriesForecasts:
    """Forecasts at most `count` windows that are evenly spaced over the test region of the series."""
    windows = cut_region(series, lookback, horizon, count)
    refuse_extreme(windows, series.label)
    x = torch.as_tensor(windows.x, dtype=torch.float32)
    rows = budget.fastest(model, x[0], horizon, len(x))
    with torch.no_grad():
        forecast = torch.cat([budget.forward(model, some, horizon) for some in torch.split(x, rows)]).cpu()
    variance = usable_variance(forecast, "every window of the test region")
    span = float(windows.starts.max() - windows.starts.min()) / horizon
    return SeriesForecasts(variance, _skill(forecast, _forecast_part(windows, model.limits)), len(x), span)


def series_context(
    model: Forecaster,
    series: Series | MultivariateSeries,
    lookback: int,
    horizon: int,
    protocol: Protocol,
    budget: MemoryBudget,
    variance: float,
    stream: int = 0,
) -> NeededContext:
    """Return the needed context of a series, on windows that are evenly spaced over its test region."""
    windows = cut_region(series, lookback, horizon, protocol.context_windows)
    compared = _forecast_part(windows, model.limits)

    def errors(forecast: Tensor) -> ForecastErrors:
        found = _skill(forecast, compared)
        return ForecastErrors(found.mse, found.mase)

    return needed_context(
        model,
        torch.as_tensor(windows.x, dtype=torch.float32),
        horizon,
        errors=errors,
        protocol=protocol,
        variance=variance,
        budget=budget,
        stream=stream,
    )


def _context(model: Forecaster, run: Run, budget: MemoryBudget, variance: float) -> NeededContext | None:
    """Return the needed context of the run's series, the same for every seed; None where it is not requested."""
    if not run.protocol.context or run.series is None:
        return None
    stream = replace(run, seed=0).stream
    return series_context(
        model, run.series, run.setting.lookback, run.setting.horizon, run.protocol, budget, variance, stream
    )


def _shared(model: Forecaster, run: Run, budget: MemoryBudget, cache: SeriesCache) -> SeriesForecasts | None:
    """Return the forecasts of the run's series, from the cache where another seed needed them; None for `run`."""
    count, series = run.protocol.variance_windows, run.series
    if count == "run" or series is None:
        return None
    # The draws and the bound of the needed context are settings of the protocol.
    requested = run.protocol if run.protocol.context else None
    key = (run.model_key, run.dataset.season, series.fingerprint, run.setting, count, requested)
    if key not in cache:
        found = forecast_series(model, series, run.setting.lookback, run.setting.horizon, count, budget)
        cache[key] = found._replace(context=_context(model, run, budget, found.variance))
    return cache[key]


def _measure(model: Forecaster, run: Run, budget: MemoryBudget, cache: SeriesCache) -> RunResult:
    windows, flat = without_flat(run.cut_windows())
    x, horizon = torch.as_tensor(windows.x, dtype=torch.float32), run.setting.horizon
    model = in_units(multivariate(model) if x.ndim == 3 else model, run.series, horizon)
    start = time.perf_counter()
    with torch.no_grad():
        forecast = model.forward(x, horizon)
    seconds = time.perf_counter() - start
    figure = parity(model, x, horizon, forecast)
    checked: dict[str, Value] = {"parity": figure, "official_call": model.official_call}

    def excluded(check: str, off: float, between: str) -> RunResult:
        reason = f"{check}: {off:.3g} against {EQUIVALENCE_LIMIT:.3g} {between}"
        return RunResult(run.record(EXCLUDED, reason).updated(check_failed=check, **checked))

    if not figure <= EQUIVALENCE_LIMIT:
        return excluded("equivalence", figure, "on the run's own windows")
    series = _shared(model, run, budget, cache)
    variance = None if series is None else series.variance
    scored = ScoredRun(model, x, horizon, run.protocol, budget, run.stream, variance, forecast, flat)
    measured = _score(scored, seconds)
    context = _context(model, run, budget, measured.quantities.variance) if series is None else series.context
    with torch.no_grad():
        repeated = relative_difference(model.forward(x, horizon), forecast)
    if not repeated <= EQUIVALENCE_LIMIT:
        between = "between the first forecast of the run and its repetition at the end"
        return excluded("determinism", repeated, f"{between}: the forecast depends on earlier calls")
    values = _values(measured, _forecast_part(windows, model.limits), series)
    values["padded"] = model.limits.padding(run.setting.lookback)
    values |= {} if context is None else context.columns()
    # Seed 0 only: one example per dataset is enough, and the seeds differ by a shift of the windows.
    example = _example(run, windows, measured) if run.seed == 0 and x.ndim == 2 else None
    return RunResult(run.record(DONE).updated(**checked, **values), example)


class MovingWindows(NamedTuple):
    """Windows of a run that are not flat, and how many are."""

    windows: Windows
    flat: int


def without_flat(windows: Windows) -> MovingWindows:
    """Leave the flat windows out; raises where all are."""
    kept = moving(torch.as_tensor(windows.x, dtype=torch.float32)).numpy()
    of_window = {name: getattr(windows, name)[kept] for name in ("x", "y", "starts", "seasonal")}
    return MovingWindows(windows._replace(**of_window), int((~kept).sum()))


class _Measured(NamedTuple):
    """Measurement of one run, and the wall time of its first two stages."""

    forecast: Tensor
    explanation: Estimate
    quantities: Quantities
    channel: Quantities | None
    """Along the channels of multivariate windows."""
    channels: int
    """Variates of the windows; 0 for univariate ones."""
    forward_seconds: float
    matrix_seconds: float


def _score(scored: ScoredRun, forward_seconds: float) -> _Measured:
    """Return the stages of a scored run; the time of the matrix is measured."""
    forecast, start = scored.forecast, time.perf_counter()
    if scored.x.ndim == 2:
        explanation = scored.explanation
        seconds = forward_seconds, time.perf_counter() - start
        return _Measured(forecast, explanation, scored.quantities, None, 0, *seconds)
    explanation = scored.both_axes["time"]
    seconds = forward_seconds, time.perf_counter() - start
    return _Measured(forecast, explanation, *scored.channel_scores, scored.x.shape[2], *seconds)


def _forecast_part(windows: Windows, limits: Limits) -> Windows:
    """The windows with the channels that the model forecasts, which are those that can be compared with the truth."""
    if limits.predicted is None:
        return windows
    at = list(limits.predicted)
    kept = {name: getattr(windows, name)[..., at] for name in ("x", "y", "seasonal", "seasonal_error")}
    return windows._replace(**kept)


def _values(measured: _Measured, windows: Windows, series: SeriesForecasts | None) -> dict[str, Value]:
    """Return the measured fields of the record."""
    q = measured.quantities
    values: dict[str, Value] = {}
    for name in QUANTITIES:
        values[name] = _number(getattr(q.normalised, name))
        values[f"{name}_raw"] = _number(getattr(q.raw, name))
        values[f"{name}_se"] = _number(getattr(q.error, name))
    for name in GAINS:
        values[f"{name}_steps"] = json.dumps(q.steps[name].tolist())
    errors = _skill(measured.forecast, windows) if series is None else series.skill
    return values | {
        **{name: _number(value) for name, value in errors._asdict().items()},
        "beats_naive": int(errors.beats_naive),
        **_sweep_values(q),
        **_channel_values(measured),
        "scored_steps": json.dumps(q.scored_steps.tolist()),
        "flat_windows": q.flat_windows,
        "starts": json.dumps(windows.starts.tolist()),
        "p_margin": q.p_margin,
        "insertion_dropped": q.insertion_dropped,
        "rank": _number(q.rank),
        "rank_entropy": _number(q.rank_entropy),
        "rank_dropped": q.rank_dropped,
        "variance": q.variance,
        "variance_run": forecast_variance(measured.forecast),
        "series_windows": None if series is None else series.windows,
        "variance_span": None if series is None else series.span,
        "draws_used": q.draws,
        "forecasts": q.forecasts,
        "estimator_settings": measured.explanation.settings,
        "rewrites": json.dumps(measured.explanation.rewrites),
        "forward_seconds": measured.forward_seconds,
        "matrix_seconds": measured.matrix_seconds,
    }


def _skill(forecast: Tensor, windows: Windows) -> Skill:
    """Errors against the truth; each channel of a multivariate window counts as a window."""
    y, truth, last, seasonal = (
        np.moveaxis(values, -1, 1).reshape(-1, values.shape[1]) if values.ndim == 3 else values
        for values in (forecast.double().numpy(), windows.y, windows.x[:, -1:], windows.seasonal)
    )
    # The channels of a window follow one another.
    error = np.tile(windows.seasonal_error, len(windows.x)) if windows.x.ndim == 3 else windows.seasonal_error
    return skill(y, truth, last[:, 0], seasonal, error)


def _sweep_values(q: Quantities) -> dict[str, Value]:
    """Areas, effective lookback and, where they were requested, truncations and distances."""
    values: dict[str, Value] = {
        "gap_own": q.gap_own,
        "gap_shared": q.gap_shared,
        "effective_lookback": _number(q.effective_lookback),
        "effective_lookback_steps": json.dumps([_number(value) for value in q.effective_lookback_steps]),
    }
    # Empty where they were not requested: the columns stay NULL.
    values |= {f"g_own_rank_{r}": _number(g) for r, g in zip(TRUNCATIONS, q.truncated, strict=False)}
    return values | {f"g_distance_{d}": _number(g) for d, g in zip(DISTANCES, q.distant, strict=False)}


def _channel_values(measured: _Measured) -> dict[str, Value]:
    q = measured.channel
    if q is None:
        return {}
    gains: dict[str, Value] = {f"{name}_channel": _number(getattr(q.normalised, name)) for name in GAINS}
    counts = {"channels": measured.channels, "channels_forecast": measured.forecast.shape[2]}
    return gains | counts | {"rank_channel": _number(q.rank)}


def _number(value: float) -> float | None:
    """NaN is stored as NULL."""
    return None if np.isnan(value) else float(value)


def _example(run: Run, windows: Windows, measured: _Measured) -> StoredExample:
    return StoredExample(
        key=run.key,
        x=windows.x[0],
        truth=windows.y[0],
        forecast=measured.forecast[0].numpy(),
        matrix=measured.explanation.matrix[0].numpy(),
        curves=measured.quantities.curves,
    )


def _without_label(run: Run, reason: str) -> str:
    """Return the reason alone: the record has columns for dataset and series."""
    return reason.removeprefix(f"{run.series.label}: ") if run.series else reason
