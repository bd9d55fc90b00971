"""One run, from its windows to its record; what it would cost; the same measurement for an explained series.

Errors become part of the record; nothing is written here.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster, Identity, Limits, Scale
from hrx.adapters.gradients import relative_difference
from hrx.adapters.wrapped import Rescaled, in_own_unit
from hrx.audit.admission import EQUIVALENCE_LIMIT, admit, parity, to_stored
from hrx.audit.memory import MemoryBudget, out_of_memory
from hrx.audit.protocol import Protocol
from hrx.audit.runner.channels import BoundRun, bind, covariates_left_out
from hrx.audit.runner.plan import Run, RunCost, Setting, admission_windows
from hrx.audit.scoring.needed_context import needed_context
from hrx.audit.scoring.quantities import Unscorable, forecast_variance, skill, usable_variance
from hrx.audit.scoring.score import ScoredRun, moving, score_joint
from hrx.errors import describe_error, stored_reason
from hrx.gift_eval.series import MultivariateSeries, Series, UnusableSeries
from hrx.gift_eval.windows import Windows, cut, cut_region, refuse_extreme, refuse_missing, statistics
from hrx.records.context import NeededContext, kept_contexts
from hrx.records.explanation import HeldOut
from hrx.records.ledger import StoredExample
from hrx.records.quantities import DISTANCES, GAINS, QUANTITIES, TRUNCATIONS, Floats, Quantities, Skill
from hrx.records.reading import Reading
from hrx.records.record import DONE, EXCLUDED, FAILED, Record, Value

HELD_OUT = 4
"""Windows of a series that an explanation is scored on."""
PROBE_SECONDS = 15.0
PROBE_BATCH = 64


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

    def stated(self, quantities: Quantities) -> Quantities:
        """Quantities that were divided by this variance, which say so."""
        return replace(quantities, variance_of="series", variance_windows=self.windows, variance_span=self.span)


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
        # Without the name of the series: the record has columns for it.
        reason = stored_reason(error).removeprefix(f"{run.series.label}: " if run.series else "")
        result = RunResult(run.record(EXCLUDED, reason))
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


def _offset(model: Forecaster, series: Series | MultivariateSeries | None, horizon: int) -> float:
    """Mean of a series in standard deviations, where the model reads its windows in their own unit."""
    if series is None or not isinstance(model, Rescaled):
        return 0.0
    return float(np.max(np.abs(np.divide(*statistics(series, horizon)))))


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
    bound: BoundRun | None = None,
) -> SeriesForecasts:
    """Forecasts at most `count` windows that are evenly spaced over the test region of the series."""
    windows = cut_region(series, lookback, horizon, count)
    refuse_extreme(windows, series.label)
    x = bound.region(count) if bound else torch.as_tensor(windows.x, dtype=torch.float32)
    forecast = budget.forecasts(model, x, horizon)
    variance = usable_variance(forecast, "every window of the test region")
    span = float(windows.starts.max() - windows.starts.min()) / horizon
    forecast = bound.standard(forecast) if bound else forecast
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
    x = torch.as_tensor(windows.x, dtype=torch.float32)
    context = partial(needed_context, protocol=protocol, variance=variance, budget=budget, stream=stream)
    return context(model, x, horizon, errors=partial(_skill, windows=_forecast_part(windows, model.limits)))


def _context(model: Forecaster, run: Run, budget: MemoryBudget, variance: float) -> NeededContext | None:
    """Return the needed context of the run's series, the same for every seed; None where it is not requested."""
    if not run.protocol.context or run.series is None:
        return None
    stream = replace(run, seed=0).stream
    return series_context(
        model, run.series, run.setting.lookback, run.setting.horizon, run.protocol, budget, variance, stream
    )


def _shared(
    model: Forecaster, run: Run, budget: MemoryBudget, cache: SeriesCache, bound: BoundRun | None
) -> SeriesForecasts | None:
    """Return the forecasts of the run's series, from the cache where another seed needed them; None for `run`."""
    count, series = run.protocol.variance_windows, run.series
    if count == "run" or series is None:
        return None
    # The draws and the bound of the needed context are settings of the protocol.
    requested = run.protocol if run.protocol.context else None
    model = bound.point if bound else model
    key = (run.model_key, run.dataset.season, series.fingerprint, run.setting, count, requested)
    if key not in cache:
        found = forecast_series(model, series, run.setting.lookback, run.setting.horizon, count, budget, bound)
        cache[key] = found if bound else found._replace(context=_context(model, run, budget, found.variance))
    return cache[key]


def _measure(model: Forecaster, run: Run, budget: MemoryBudget, cache: SeriesCache) -> RunResult:
    windows, flat = without_flat(run.cut_windows())
    x, horizon = torch.as_tensor(windows.x, dtype=torch.float32), run.setting.horizon
    bound, left_out = bind(model, run), covariates_left_out(model, run)
    if bound:
        model, x = bound.model, bound.windows(windows.starts)
    else:
        model = in_units(multivariate(model) if x.ndim == 3 else model, run.series, horizon)
    start = time.perf_counter()
    with torch.no_grad():
        forecast = model.forward(x, horizon)
    forward_seconds = time.perf_counter() - start
    figure = parity(model, x, horizon, forecast)
    checked: dict[str, Value] = {"parity": figure, "official_call": model.official_call}

    def excluded(check: str, off: float, between: str) -> RunResult:
        reason = f"{check}: {off:.3g} against {EQUIVALENCE_LIMIT:.3g} {between}"
        return RunResult(run.record(EXCLUDED, reason).updated(check_failed=check, **checked))

    if not figure <= EQUIVALENCE_LIMIT:
        return excluded("equivalence", figure, "on the run's own windows")
    series = _shared(model, run, budget, cache, bound)
    variance = None if series is None else series.variance
    scored = ScoredRun(model, x, horizon, run.protocol, budget, run.stream, variance, forecast, flat)
    forecast, start = scored.forecast, time.perf_counter()  # refuses one that cannot be scored
    explanation = scored.explanation
    matrix_seconds = time.perf_counter() - start
    if bound:
        matrix, steps = bound.matrix(explanation, x, budget), explanation.steps
        explanation = explanation._replace(matrix=matrix[..., : run.setting.lookback])  # the target's
        scores, context = score_joint(scored, matrix, steps), None
        quantities, channel = bound.of_target(scores.joint, matrix, steps), scores.channels
    else:
        quantities, channel = scored.quantities, scored.channel_quantities
        context = _context(model, run, budget, quantities.variance) if series is None else series.context
    with torch.no_grad():
        repeated = relative_difference(model.forward(x, horizon), forecast)
    if not repeated <= EQUIVALENCE_LIMIT:
        between = "between the first forecast of the run and its repetition at the end"
        return excluded("determinism", repeated, f"{between}: the forecast depends on earlier calls")
    # Relative to the largest value that the model reads or returns: a batch of another size is rounded otherwise.
    read = x[:, : run.setting.lookback]  # of several channels the first, the target
    largest = max(float(read.abs().max()), float(forecast.abs().max())) + _offset(model, run.series, horizon)
    apart = max(one.apart for one in (quantities, channel) if one) / largest
    checked["parity"] = max(figure, apart)
    if not apart <= EQUIVALENCE_LIMIT:
        return excluded("isolation", apart, "between a window's forecast in a scored batch and in the run's own")
    if bound:
        columns = bound.columns(x, matrix, windows.y, scored.divisor, quantities.scored_steps, budget)
        point = bound.standard(budget.forecasts(bound.point, x, horizon))
        forecast = bound.standard(forecast) if not bound.model.output.is_spread else forecast / bound.scale[1]
    else:
        columns, point = {}, forecast
    values = _measured_values(quantities) | _channel_values(channel, windows.x, forecast) | columns
    values["channels_left_out"] = json.dumps(left_out) if left_out else None
    errors = _skill(point, _forecast_part(windows, model.limits)) if series is None else series.skill
    values |= {
        **{name: _number(value) for name, value in errors._asdict().items()},
        "beats_naive": int(errors.beats_naive),
        "starts": json.dumps(windows.starts.tolist()),
        "variance_run": forecast_variance(forecast),
        "series_windows": None if series is None else series.windows,
        "variance_span": None if series is None else series.span,
        "estimator_settings": explanation.settings,
        "rewrites": json.dumps(explanation.rewrites),
        "padded": model.limits.padding(run.setting.lookback),
        "forward_seconds": forward_seconds,
        "matrix_seconds": matrix_seconds,
    }
    values |= {} if context is None else context.columns()
    if x.ndim == 2 and explanation.steps:  # rows of one variate, each of a forecast step
        rows = explanation.matrix.numpy(), explanation.steps, (quantities.scored_steps + 1).tolist()
        values["reading"] = Reading.of(*rows, forecast.numpy()).to_text()
    example = None
    if run.seed == 0 and x.ndim == 2:  # one per dataset is enough, and seeds differ by a shift of the windows
        first = windows.x[0], windows.y[0], forecast[0].numpy(), explanation.matrix[0].numpy()
        example = StoredExample(run.key, *first, curves=quantities.curves)
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


def _forecast_part(windows: Windows, limits: Limits) -> Windows:
    """The windows with the channels that the model forecasts, which are those that can be compared with the truth."""
    if limits.predicted is None:
        return windows
    at = list(limits.predicted)
    kept = {name: getattr(windows, name)[..., at] for name in ("x", "y", "seasonal", "seasonal_error")}
    return windows._replace(**kept)


def _measured_values(q: Quantities) -> dict[str, Value]:
    """Fields of the record that hold quantities; truncations and distances stay NULL where they were not requested."""
    values: dict[str, Value] = {}
    for name in QUANTITIES:
        values[name] = _number(getattr(q.normalised, name))
        values[f"{name}_raw"] = _number(getattr(q.raw, name))
        values[f"{name}_se"] = _number(getattr(q.error, name))
    for name in GAINS:
        values[f"{name}_steps"] = json.dumps(q.steps[name].tolist())
    for name, gains in (("fine", q.fine), ("fine_se", q.fine_error)):
        values |= {f"{gain}_{name}": _number(value) for gain, value in (gains._asdict() if gains else {}).items()}
    values |= {f"g_own_rank_{r}": _number(g) for r, g in zip(TRUNCATIONS, q.truncated, strict=False)}
    values |= {f"g_distance_{d}": _number(g) for d, g in zip(DISTANCES, q.distant, strict=False)}
    return values | {
        "gap_own": q.gap_own,
        "gap_shared": q.gap_shared,
        "effective_lookback": _number(q.effective_lookback),
        "effective_lookback_steps": json.dumps([_number(value) for value in q.effective_lookback_steps]),
        "scored_steps": json.dumps(q.scored_steps.tolist()),
        "flat_windows": q.flat_windows,
        "p_margin": q.p_margin,
        "shared_rows": q.shared_rows,
        "support": q.support,
        "sparse": int(q.sparse),
        "insertion_dropped": q.insertion_dropped,
        "rank": _number(q.rank),
        "rank_entropy": _number(q.rank_entropy),
        "rank_dropped": q.rank_dropped,
        "variance": q.variance,
        "draws_used": q.draws,
        "forecasts": q.forecasts,
    }


def _channel_values(q: Quantities | None, x: Floats, forecast: Tensor) -> dict[str, Value]:
    """Fields of the record along the channels; none for univariate windows."""
    if q is None:
        return {}
    gains: dict[str, Value] = {f"{name}_channel": _number(getattr(q.normalised, name)) for name in GAINS}
    variates = {"channels": x.shape[2], "channels_forecast": forecast.shape[2]} if x.ndim == 3 else {}
    return gains | variates | {"rank_channel": _number(q.rank)}


def _skill(forecast: Tensor, windows: Windows) -> Skill:
    """Errors against the truth; each channel of a multivariate window counts as a window."""
    y, truth, last, seasonal = (
        np.moveaxis(values, -1, 1).reshape(-1, values.shape[1]) if values.ndim == 3 else values
        for values in (forecast.double().numpy(), windows.y, windows.x[:, -1:], windows.seasonal)
    )
    # The channels of a window follow one another.
    error = np.tile(windows.seasonal_error, len(windows.x)) if windows.x.ndim == 3 else windows.seasonal_error
    return skill(y, truth, last[:, 0], seasonal, error)


def _number(value: float) -> float | None:
    """NaN is stored as NULL."""
    return None if np.isnan(value) else float(value)


def measure_held_out(
    model: Forecaster,
    scale: tuple[float, float] | None,
    series: Series,
    lookback: int,
    horizon: int,
    protocol: Protocol,
    report: Callable[[str], None],
) -> HeldOut:
    """Measures a model on windows of the last fifth of a series; it reads values standardised by `scale`, or raw ones.

    `report` is called with what is done next.
    """
    budget, windows = MemoryBudget(), cut(series, lookback, horizon, HELD_OUT, 0)
    refuse_extreme(windows, series.label)
    (mean,), (std,) = statistics(series, horizon)
    own = model if scale == (mean, std) else Rescaled(in_own_unit(model, scale), mean, std)
    report(f"scoring the explanation on {len(windows.x)} windows with known values")
    errors, quantities, unscored = None, None, ""
    try:
        refuse_missing(series, lookback, horizon, HELD_OUT, 0, protocol.max_missing)
        kept, flat = without_flat(windows)
        x, count = torch.as_tensor(kept.x, dtype=torch.float32), protocol.variance_windows
        whole = None if count == "run" else forecast_series(own, series, lookback, horizon, count, budget)
        variance = None if whole is None else whole.variance
        scored = ScoredRun(own, x, horizon, protocol, budget, variance=variance, flat_windows=flat)
        quantities = scored.quantities if whole is None else whole.stated(scored.quantities)
        errors = _skill(scored.forecast, kept) if whole is None else whole.skill
    except (UnusableSeries, Unscorable) as error:
        unscored = str(error)
    context = None
    if protocol.context and quantities is not None:
        report("finding the needed context")
        context = series_context(own, series, lookback, horizon, protocol, budget, quantities.variance)
    report("checking the model on these windows")
    every = torch.as_tensor(windows.x, dtype=torch.float32)
    moved = every[every.amax(dim=1) > every.amin(dim=1)]
    return HeldOut(
        windows=len(windows.x),
        checks=tuple(to_stored(own.identity, check) for check in (admit(own, moved, horizon) if len(moved) else ())),
        skill=errors,
        quantities=quantities,
        unscored=unscored,
        padded=model.limits.padding(lookback),
        context=context,
    )


def estimate_model(
    model: Forecaster, settings: Mapping[Setting, Sequence[Run]], budget: MemoryBudget
) -> dict[Setting, RunCost]:
    """Return the cost of one run of a model at each setting.

    Measured on one window with the smallest number of draws and one small batch of forecasts. Once that has taken
    `PROBE_SECONDS`, larger settings are scaled by L · H instead.
    """

    def area(setting: Setting) -> int:
        return setting.lookback * setting.horizon

    costs: dict[Setting, RunCost] = {}
    largest: Setting | None = None
    start = time.perf_counter()
    for setting in sorted(settings, key=area):
        if refusal := settings[setting][0].limits(model.limits).refusal(setting.lookback, setting.horizon):
            costs[setting] = RunCost(refusal=f"{model.identity.model} {refusal}")
        elif largest and time.perf_counter() - start > PROBE_SECONDS:
            measured = costs[largest]
            seconds = (measured.seconds or 0.0) * area(setting) / area(largest)
            costs[setting] = measured._replace(seconds=seconds)
        else:
            try:
                costs[setting] = estimate_run(model, settings[setting], budget) or RunCost()
            except Exception as error:  # the runs will raise it too, and store it in their records
                costs[setting] = RunCost(note=describe_error(error))
            largest = setting if costs[setting].seconds is not None else largest
    return costs


def estimate_run(model: Forecaster, runs: Sequence[Run], budget: MemoryBudget) -> RunCost | None:
    """Return the cost of one of `runs`, measured on one real window; None where they have no window."""
    windows = admission_windows(runs)
    if windows is None:
        return None
    run, horizon = runs[0], runs[0].setting.horizon
    model = model.for_season(run.dataset.season)
    model = multivariate(model) if run.channels else model
    bound = bind(model, run)
    if bound:
        model, windows = bound.model, bound.region(1)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    memory = resident + budget.peak(model, windows[0], horizon)  # also the warm-up of the model
    protocol = replace(run.protocol, draws=run.protocol.draws_per_unit, precision=None)
    start = time.perf_counter()
    scored = ScoredRun.of(model, windows[:1], horizon, protocol, budget=budget)
    forecasts = sum(axis.forecasts for axis in (scored.quantities, scored.channel_quantities) if axis)
    first = time.perf_counter() - start
    batch = torch.cat([windows[:1]] * min(PROBE_BATCH, budget.rows(model, windows[0], horizon, PROBE_BATCH)))
    start = time.perf_counter()
    with torch.no_grad():
        model.forward(batch, horizon)
    each = (time.perf_counter() - start) / len(batch)
    further = (run.protocol.draws - protocol.draws) * forecasts / protocol.draws
    shared = run.protocol.variance_windows
    further += bound.forecasts if bound else 0
    seconds = run.windows * (first + further * each) + (0 if shared == "run" else shared * each)
    if run.protocol.context:  # at most: a cut lookback is forecast twice and the whole one once beside it
        cuts = len(kept_contexts(run.setting.lookback)) - 1
        seconds += cuts * run.protocol.context_windows * (run.protocol.draws + 3) * each
    return RunCost(seconds, memory)
