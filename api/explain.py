"""What `import hrx` offers beside the packages: `explain`, `score` and `run_audit` on the objects that people hold.

`hrx.audit.explain` and `hrx.audit.score` are the same measurement on tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import Forecaster, Limits, ModelError, load
from hrx.adapters.contract import Scale, library_errors
from hrx.adapters.formats.module import held_model
from hrx.adapters.standardisation import Rescaled, in_own_unit
from hrx.audit.attribution import Estimate
from hrx.audit.attribution.explanation import MOST_ROWS, estimate
from hrx.audit.attribution.registry import AttributionFunction, as_estimator, find_estimator
from hrx.audit.protocol import Protocol, scored_steps
from hrx.audit.scoring.score import ScoredRun
from hrx.errors import HrxError, ProtocolError, describe_error
from hrx.gift_eval import Options, SeriesInput, TimedSeries, read_series
from hrx.gift_eval import frequency as frequencies
from hrx.gift_eval.series import UnusableSeries
from hrx.records.explanation import ExplainedModel, ExplainedTimes, Explanation, Method

if TYPE_CHECKING:
    from hrx.records.quantities import Quantities

Model = Forecaster | str | torch.nn.Module | Callable[..., Tensor]
Names = str | Sequence[str]

MOST_CELLS = 2**26
"""Entries of a matrix (B, R, L): a quarter of a gibibyte."""
LONGEST_DEFAULT = 4096
"""Lookback by default for a model that states no limit."""


def explain(
    model: Model,
    data: Any,
    horizon: int,
    *,
    lookback: int | None = None,
    steps: Sequence[int] | None = None,
    estimator: str | AttributionFunction = "input_gradient",
    settings: str | None = None,
    seed: int = 0,
    date: str = "",
    id: Names = (),
    value: Names = (),
    frequency: str = "",
    season: int | None = None,
) -> Explanation:
    """What each step of the forecast after the end of each series reads.

    `model` is a forecaster, a name or path that `hrx.load` takes, a module `(B, L) -> (B, H)`, or a fitted
    `NeuralForecast` of one model. `data` holds one or several series: a DataFrame (long or wide), a Series, an array
    `(T,)` or `(B, T)`, a list, a dict, a tensor, a gluonts dataset, a darts `TimeSeries`, a `datasets.Dataset`, a fev
    window, or the name of a source such as `"sample:elnino/M"` or `"sales.csv"`. `date`, `id` and `value` name the
    columns of a frame where they are not found, `frequency` and `season` what is not inferred.

    The model reads the last `lookback` values as 32-bit floats, in their own unit; a model of `hrx train` reads them
    standardised as in its training, and its forecast is in their unit again. By default these are as many as
    the model's limits and the shortest series allow, and at most 4096 for a model without a limit. A missing value
    repeats the one before it; a window with more than half of its values missing is refused. `steps` are the forecast
    steps that get a row, counted from 1: by default all for the input gradient, eight for every other estimator.
    `estimator` is a name, or a function `f(forward, x, step) -> attribution`.

        import pandas as pd
        frame = pd.DataFrame({"ds": pd.date_range("2024-01-31", periods=48, freq="ME"), "y": range(48)})
        x = hrx.explain("bolt-mini", frame, horizon=12)
        x.matrix.shape    # (1, 12, 48)
    """
    _check_horizon(horizon, steps)
    name = estimator if isinstance(estimator, str) else as_estimator(estimator)
    protocol = Protocol(estimator=name, estimator_settings=settings or "{}", seed=seed)
    given = read_series(data, _options(date, id, value, frequency, season))
    forecaster = _for_seasons(_as_forecaster(model), given)
    length = _lookback(forecaster, given, horizon, lookback)
    x = _windows(given, length, protocol.max_missing)
    rows = _rows(protocol, horizon, None if steps is None else np.atleast_1d(steps).tolist())
    _check_size(len(x), len(rows), length)
    forecast = _forecast(forecaster, x, horizon)
    identity = forecaster.identity
    content = partial(getattr, identity, "fingerprint")  # computed when the explanation is saved
    with library_errors(identity.model, identity.library):
        estimated = estimate(forecaster, x, horizon, protocol, steps=rows, signed=True)
    timed = given.series
    return Explanation(
        matrix=estimated.matrix.numpy(),
        signed=None if estimated.signed is None else estimated.signed.numpy(),
        forecast=forecast.numpy(),
        x=np.stack([one.series.values[-length:] for one in timed]),
        observed=np.stack([_observed(one)[-length:] for one in timed]),
        steps=estimated.steps,
        items=tuple(one.series.item for one in timed),
        times=tuple(_times(one, length, horizon) for one in timed),
        seasons=tuple(one.series.season for one in timed),
        model=ExplainedModel(identity.model, identity.checkpoint, content, identity.library),
        method=Method(name, estimated.settings, find_estimator(name).sign, seed),
        windows=given.windows,
        notes=(*_notes(given, length), *_scale_notes(forecaster)),
        forecaster=forecaster,
    )


def score(
    model: Model,
    data: Any,
    horizon: int,
    *,
    lookback: int | None = None,
    protocol: Protocol | None = None,
    date: str = "",
    id: Names = (),
    value: Names = (),
    frequency: str = "",
    season: int | None = None,
) -> Quantities:
    """The quantities of one run: of one series, or of windows `(W, L)`. Arguments as those of `explain`.

    It scores the window before the end of a series, or all rows of an array together.

        q = hrx.score("bolt-mini", "sample:elnino/M", horizon=12, lookback=96)
        q.g_margin, q.error.g_margin    # the gain and its Monte Carlo error
    """
    protocol = protocol or Protocol()
    explained = explain(
        model,
        data,
        horizon,
        lookback=lookback,
        estimator=protocol.estimator,
        settings=protocol.estimator_settings,
        seed=protocol.seed,
        date=date,
        id=id,
        value=value,
        frequency=frequency,
        season=season,
    )
    return explained.score(protocol=protocol)


def score_explanation(explained: Explanation, model: Model | None, protocol: Protocol | None) -> Quantities:
    """The quantities of an explanation of one run."""
    if len(explained) > 1 and not explained.windows:
        raise HrxError(
            f"This explanation holds {len(explained)} series, and each is a run of its own. Score one, as in "
            f"x[{explained.items[0]!r}].score(), or all: [one.score() for one in x]."
        )
    if model is None:
        raise HrxError("This explanation was read from a file, without its model. Give it: x.score(hrx.load(NAME)).")
    model = _as_forecaster(model)
    if model.identity.fingerprint != explained.model.fingerprint:
        raise HrxError(
            f"{model.identity.model} has other weights than the model of this explanation, {explained.model.name} "
            f"(sha256 {explained.model.fingerprint[:12]}). Give that model, or explain again."
        )
    method = explained.method
    if protocol is not None and protocol.estimator not in (method.estimator, Protocol.estimator):
        raise ProtocolError(
            f"The explanation is by {method.estimator}, the protocol by {protocol.estimator}. Explain with it."
        )
    used = replace(
        protocol or Protocol(seed=method.seed), estimator=method.estimator, estimator_settings=method.settings
    )
    steps = np.asarray(explained.steps, dtype=np.int64) - 1
    if missing := sorted(set(scored_steps(explained.horizon, used.scored).tolist()) - set(steps.tolist())):
        raise HrxError(
            f"Step {missing[0] + 1} is scored and has no row in this explanation. Explain without steps=, or with them."
        )
    run = ScoredRun(model, torch.as_tensor(explained.x, dtype=torch.float32), explained.horizon, used)
    matrix = torch.as_tensor(explained.matrix)
    return run.score(run.forecast, Estimate(matrix, steps=explained.steps, settings=method.settings))


def _options(date: str, id: Names, value: Names, frequency: str, season: int | None) -> Options:
    ids, values = ((one,) if isinstance(one, str) and one else tuple(one) for one in (id, value))
    if season is not None and season < 1:
        raise HrxError(f"season is {season}; give the number of values per season, as in season=24; 1 for none.")
    step = frequencies.parse(frequency).name if frequency else ""
    return Options(date, ids, values, step, season=season)


def _check_horizon(horizon: int, steps: Sequence[int] | None) -> None:
    if not _is_count(horizon):
        raise HrxError(f"horizon={horizon!r} is not a number of steps. Give a whole number of at least 1.")
    if steps is not None and not all(map(_is_whole, np.atleast_1d(steps).tolist())):
        raise HrxError(f"steps={steps!r} are not forecast steps. Give whole numbers from 1 on, as in steps=[1, 12].")
    if steps is None and horizon > MOST_ROWS:
        raise HrxError(
            f"horizon={horizon} is beyond {MOST_ROWS} steps, which would take very long. Give a shorter one, or choose "
            f"steps: steps=[1, {horizon // 2}, {horizon}]."
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 1."""
    return _is_whole(value) and bool(value >= 1)


def _as_forecaster(model: Model) -> Forecaster:
    """The model on values in the units of the series."""
    found = load(model) if isinstance(model, str) else held_model(model)
    return in_own_unit(found, found.scale) if isinstance(found.scale, Scale) else found


def _for_seasons(model: Forecaster, given: SeriesInput) -> Forecaster:
    """The model for the season of the series, where it takes one and it is known."""
    dated = {one.series.season for one in given.series if one.series.frequency or one.series.season > 1}
    variants = [model.for_season(season) for season in sorted(dated)]
    if len(variants) > 1 and any(variant is not model for variant in variants):
        raise HrxError(
            f"{model.identity.model} takes the season of a series, and these have {len(dated)} of them. Explain series "
            "of one frequency at a time, or give season=."
        )
    return variants[0] if variants else model


def _lookback(model: Forecaster, given: SeriesInput, horizon: int, asked: int | None) -> int:
    """The lookback that was asked for, or the longest that the model and every series allow."""
    shortest = min(given.series, key=lambda one: one.series.values.size).series
    name, longest = model.identity.model, shortest.values.size
    if refusal := model.limits.refusal_of_horizon(horizon):
        raise ModelError(f"{name} {refusal}.")
    if asked is not None:
        if not _is_count(asked):
            raise HrxError(f"lookback={asked!r} is not a number of values. Give a whole number of at least 1.")
        if refusal := model.limits.refusal(asked, horizon):
            raise ModelError(f"{name} {refusal}.")
        if asked > longest:
            raise UnusableSeries(
                f"Series {shortest.item} has {longest} values from its first observed one on, fewer than "
                f"lookback={asked}. Give a shorter lookback, or leave out that series."
            )
        return asked
    return default_lookback(model.limits, longest, horizon, f"{name}, at series {shortest.item} of {longest} values,")


def default_lookback(limits: Limits, longest: int, horizon: int, subject: str = "The model") -> int:
    """The longest lookback, of at most `longest` values, that the limits allow at this horizon."""
    bound = min(longest, LONGEST_DEFAULT if limits.longest_lookback is None else limits.longest_lookback)
    if limits.lookbacks is not None:
        bound = longest
    for lookback in range(bound, 0, -1):
        if limits.refusal(lookback, horizon) is None:
            return lookback
    raise ModelError(f"{subject} {limits.refusal(max(bound, 1), horizon)}.")


def _rows(protocol: Protocol, horizon: int, steps: Sequence[int] | None) -> list[int]:
    """The explained steps, from 1: those asked for, or those of the estimator."""
    if steps is None:
        every = find_estimator(protocol.estimator).every_step
        return [int(step) + 1 for step in scored_steps(horizon, horizon if every else protocol.scored)]
    if not len(steps) or not all(1 <= step <= horizon for step in steps):
        raise ProtocolError(f"steps={list(steps)} are not all within the horizon. Steps count from 1 to {horizon}.")
    return sorted({int(step) for step in steps})


def _check_size(series: int, rows: int, lookback: int) -> None:
    if series * rows * lookback > MOST_CELLS:
        raise HrxError(
            f"{series} series × {rows} steps × {lookback} inputs are more than {MOST_CELLS} entries. Explain fewer "
            "series, choose steps=, or give a shorter lookback=."
        )


def _windows(given: SeriesInput, lookback: int, most_missing: float) -> Tensor:
    """`(B, L)`: the last values of each series."""
    for one in given.series:
        share = 1 - float(_observed(one)[-lookback:].mean())
        if share > most_missing:
            raise UnusableSeries(
                f"Series {one.series.item}: {share:.0%} of its last {lookback} values are missing and would be filled "
                f"in; the limit is {most_missing:.0%}. Give a series with fewer gaps, or another lookback=."
            )
    values = np.stack([one.series.values[-lookback:] for one in given.series])
    x = torch.as_tensor(values).to(torch.float32)
    if (wrong := ~torch.isfinite(x)).any():
        place = tuple(int(index) for index in wrong.nonzero()[0])
        raise UnusableSeries(
            f"Series {given.series[place[0]].series.item}: the value {values[place]:g} is beyond the range of a 32-bit "
            "float. Divide the series by a constant."
        )
    return x


def _forecast(model: Forecaster, x: Tensor, horizon: int) -> Tensor:
    """The forecasts `(B, H)`; says which shapes a model failed on, before its Jacobian is computed."""
    try:
        with torch.no_grad():
            return model.forward(x, horizon).float()
    except HrxError:
        raise
    except Exception as error:
        raise ModelError(
            f"{model.identity.model} failed on {len(x)} windows of {x.shape[1]} values with a horizon of {horizon}: "
            f"{describe_error(error)}. If it takes windows of another length, give lookback=."
        ) from error


def _observed(one: TimedSeries) -> np.ndarray[Any, np.dtype[np.bool_]]:
    values, observed = one.series.values, one.series.observed
    return np.ones(values.size, dtype=bool) if observed is None else observed


def _times(one: TimedSeries, lookback: int, horizon: int) -> ExplainedTimes | None:
    after = one.after(horizon)
    return None if one.times is None or after is None else ExplainedTimes(one.times[-lookback:], after)


def _notes(given: SeriesInput, lookback: int) -> tuple[str, ...]:
    """How the series were read, and what was filled in."""
    read = dict.fromkeys(one.note for one in given.series if one.note)
    counts = {one.series.item: int((~_observed(one)[-lookback:]).sum()) for one in given.series}
    filled = (
        f"{item}: {count} of {lookback} values were missing and repeat the one before"
        for item, count in counts.items()
        if count
    )
    return (*read, *filled)


def _scale_notes(model: Forecaster) -> tuple[str, ...]:
    """By what the values were standardised for a model that was trained on standardised ones."""
    name = model.identity.model
    model = model._base if isinstance(model, Rescaled) else model
    if isinstance(model.scale, Scale):
        mean, std = model.scale
        return (f"{name} read (value - {mean:.6g}) / {std:.6g}, the scaling of its training",)
    if model.scale == "standardised":
        return (
            f"{name} was trained on standardised values; their mean and standard deviation are not stored, so it read "
            "the given values as they are",
        )
    return ()
