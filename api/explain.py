"""`hrx.explain`, on the objects that people hold; `hrx explain` calls the same function.

`hrx.audit.explain` is the same measurement on tensors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster, Limits, ModelError, Scale, library_errors
from hrx.adapters.formats.black_box import NOISE_SEEDS, BlackBox
from hrx.adapters.inputs import POINT, Output
from hrx.api.channels import explain_channels
from hrx.api.explanation import Explanation, as_forecaster, reads_own_unit
from hrx.api.progress import Progress, duration
from hrx.audit.admission import refuse_misleading
from hrx.audit.attribution import AttributionFunction, as_estimator, find_estimator
from hrx.audit.attribution.explanation import MOST_ROWS, estimate, estimated_steps
from hrx.audit.protocol import Protocol
from hrx.audit.runner.run import measure_held_out
from hrx.errors import HrxError, describe_error
from hrx.gift_eval import cut, read_series
from hrx.gift_eval import frequency as frequencies
from hrx.gift_eval.covariates import CovariateSeries
from hrx.gift_eval.series import TimedSeries, UnusableSeries, naming
from hrx.gift_eval.sources import SeriesInput, read_covariates
from hrx.gift_eval.tables import Options
from hrx.gift_eval.windows import scaling_end, standardise, test_start
from hrx.records.explanation import ExplainedModel, ExplainedTimes, Method

if TYPE_CHECKING:
    from hrx.records.quantities import Bools

Model = Forecaster | str | torch.nn.Module | Callable[..., Tensor]
Names = str | Sequence[str]

MOST_CELLS = 2**26
"""Entries of a matrix (B, R, L): a quarter of a gibibyte."""
LONGEST_DEFAULT = 4096
"""Lookback by default for a model that states no limit."""


class Reader(NamedTuple):
    """How a model reads a series."""

    season: int
    scale: tuple[float, float] | None


@torch.inference_mode(False)  # which has no gradients; the caller may be inside it
def explain(
    model: Model,
    data: Any,
    horizon: int,
    *,
    lookback: int | None = None,
    steps: Sequence[int] | None = None,
    estimator: str | AttributionFunction | None = None,
    settings: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    date: str = "",
    id: Names = (),
    value: Names = (),
    frequency: str = "",
    season: int | None = None,
    target: Names = (),
    past: Names = (),
    future: Names = (),
    static: Names = (),
    future_data: Any = None,
    unused: Literal["", "error", "ignore"] = "",
    output: str | float | tuple[float, float] = "point",
    held_out: bool = False,
    context_bound: float | None = None,
    check: bool = True,
    report: Callable[[str], None] | None = None,
) -> Explanation:
    """Explains the forecast after the end of each series: what each of its steps reads.

    `model` is a forecaster, a name or path that `hrx.load` takes, a module `(B, L) -> (B, H)`, or a fitted
    `NeuralForecast` of one model. `data` holds one or several series: a DataFrame (long or wide), a Series, an array
    `(T,)` or `(B, T)`, a list, a dict, a tensor, a gluonts dataset, a darts `TimeSeries`, a `datasets.Dataset`, a fev
    window, or the name of a source such as `"sample:elnino/M"` or `"sales.csv"`. `date`, `id` and `value` name the
    columns of a frame where they are not found, `frequency` and `season` what is not inferred.

    The model reads the last `lookback` values as 32-bit floats, in their own unit unless it was trained on standardised
    ones (`scale` of `hrx.from_module`); its forecast is in their unit in each case. By default these are as many as
    the model's limits and the shortest series allow (with `held_out`, its part before the last fifth), and at most 4096
    for a model without a limit. A missing value repeats the one before it; a window with more than half of its values
    missing is refused. `steps` are the forecast steps that get a row, counted from 1: by default all for the input
    gradient, eight for every other estimator. `estimator` is a name, or a function `f(forward, x, step) ->
    attribution`; by default the input gradient, or occlusion for a model of `hrx.from_callable`, whose number of
    forecasts is told first. `settings` are its own, a dict or JSON text, as `{"samples": 16}`.

    `target`, `past`, `future` and `static` name columns by their role: what is forecast (several together, or `"each"`
    by itself), what is known up to now, what is known ahead too, and what is constant. The steps ahead are the rows
    after the last target, or `future_data`. A column without a role is an error, unless `unused="ignore"`. `x.parts`
    and `x.channels` then say what each step reads of each channel. `output` is the explained number of each step:
    `"point"`, the official point forecast, `"median"`, `"mean"`, a quantile such as `0.9`, or two, whose difference is
    a spread, where the model has them.

    With `held_out`, windows of each series whose future is known say whether its explanation can be trusted:
    `x.held_out[0].trust`. With `context_bound` they also say how short the lookback can be. Otherwise `check` compares
    the forecast with an official call on these windows, and refuses a model that samples or whose gradient is
    detached. `report` is called with what is done next. The model, its mode and the data stay as they were.

        import pandas as pd
        frame = pd.DataFrame({"ds": pd.date_range("2024-01-31", periods=48, freq="ME"), "y": range(48)})
        x = hrx.explain("bolt-mini", frame, horizon=12)
        x.matrix.shape    # (1, 12, 48)
    """
    forecaster = as_forecaster(model)
    tell_cost = report or Progress().note
    report = report or (lambda what: None)
    if not _is_whole(horizon) or horizon < 1:
        raise HrxError(f"horizon={horizon!r} is not a number of steps. Give a whole number of at least 1.")
    if steps is not None and not all(map(_is_whole, np.atleast_1d(steps).tolist())):
        raise HrxError(f"steps={steps!r} are not forecast steps. Give whole numbers from 1 on, as in steps=[1, 12].")
    if steps is None and horizon > MOST_ROWS:
        raise HrxError(
            f"horizon={horizon} is beyond {MOST_ROWS} steps, which would take very long. Give a shorter one, or choose "
            f"steps: steps=[1, {horizon // 2}, {horizon}]."
        )
    estimator = estimator or ("input_gradient" if forecaster.differentiable else "occlusion")
    name = estimator if isinstance(estimator, str) else as_estimator(estimator)
    written = settings if isinstance(settings, str) else json.dumps(dict(settings or {}))
    protocol = Protocol(estimator=name, estimator_settings=written or "{}", seed=seed)
    if context_bound is not None:
        held_out, protocol = True, replace(protocol, context=True, context_bound=context_bound)
    options = reading_options(date, id, value, frequency, season)
    options = _with_roles(options, forecaster, data, target, past, future, static)._replace(
        unused=unused, future_data=future_data
    )
    explained, given = Output.parse(output), None
    if not (options.target or options.roles or future_data is not None) and explained == POINT:
        given = read_series(data, options)
    rows = sorted(set(estimated_steps(protocol, horizon, None if steps is None else np.atleast_1d(steps).tolist())))
    about: dict[str, Any] = {
        "steps": tuple(rows),
        # The fingerprint is computed when something is stored or compared.
        "model": ExplainedModel(
            forecaster.identity.model,
            forecaster.identity.checkpoint,
            partial(getattr, forecaster.identity, "fingerprint"),
            forecaster.identity.library,
        ),
        "method": Method(name, protocol.estimator_settings, find_estimator(name).sign, seed),
        "forecaster": forecaster,
    }
    if given is None or any(one.series.covariates for one in given.series):
        if context_bound is not None:
            raise HrxError("The needed context is that of one series: give no roles and no output, or no bound for it.")
        if given is None:
            several = read_covariates(data, options, horizon)
        else:
            several = [CovariateSeries.of(one) for one in given.series]
        shortest = min(several, key=lambda one: one.target.shape[1])
        longest = shortest.target.shape[1]
        if held_out and lookback is None:
            longest = max(test_start(shortest.series, horizon), 1)
        length = _length(forecaster, shortest.item, longest, horizon, lookback)
        _refuse_size(len(several), len(rows), length * sum(map(len, several[0].names.values())))
        fields = explain_channels(
            forecaster,
            several,
            length,
            horizon,
            protocol,
            rows,
            explained,
            check=check and not held_out,
            held_out=held_out,
            report=report,
            tell_cost=tell_cost,
        )
        return Explanation(**about, **fields)
    readers = find_readers(forecaster, given, horizon)
    models = {one: reads_own_unit(forecaster, *one) for one in readers}
    length = common_lookback(list(models.values()), given, horizon, lookback, held_out)
    if held_out:
        for one in given.series:
            cut(one.series, length, horizon, windows=1, seed=0)  # refused before anything is computed
    x = last_windows(given, length, protocol.max_missing)
    _refuse_size(len(x), len(rows), length)
    report(f"explaining the forecast at {length}x{horizon}")
    checked = check and not held_out  # whose windows are checked in full
    forecast, matrix, signed = _estimate(models, readers, x, horizon, protocol, rows, check=checked, report=tell_cost)
    identity, measured = forecaster.identity, []
    for one, reader in zip(given.series if held_out else (), readers, strict=False):
        with library_errors(identity.model, identity.library):
            seasonal = reads_own_unit(forecaster, reader.season, None)
            measured.append(measure_held_out(seasonal, reader.scale, one.series, length, horizon, protocol, report))
    times: list[ExplainedTimes | None] = []
    for one in given.series:
        after = one.after(horizon)
        times.append(None if one.times is None or after is None else ExplainedTimes(one.times[-length:], after))
    return Explanation(
        **about,
        matrix=matrix.numpy(),
        signed=None if signed is None else signed.numpy(),
        forecast=forecast.numpy(),
        x=np.stack([one.series.values[-length:] for one in given.series]),
        observed=np.stack([_observed(one)[-length:] for one in given.series]),
        items=tuple(one.series.item for one in given.series),
        times=tuple(times),
        seasons=tuple(one.series.season for one in given.series),
        scales=tuple(reader.scale for reader in readers),
        windows=given.windows,
        notes=(*reading_notes(forecaster, given, readers, length), *_noise(forecaster, x, horizon)),
        held_out=tuple(measured),
        series=() if given.windows else tuple(one.series for one in given.series),
    )


def reading_options(
    date: str = "", id: Names = (), value: Names = (), frequency: str = "", season: int | None = None
) -> Options:
    """Return the keywords of `explain` for columns, frequency and season as options of a source."""
    ids, values = ((one,) if isinstance(one, str) and one else tuple(one) for one in (id, value))
    if season is not None and season < 1:
        raise HrxError(f"season is {season}; give the number of values per season, as in season=24; 1 for none.")
    step = frequencies.parse(frequency).name if frequency else ""
    return Options(date, ids, values, step, season=season)


def _with_roles(
    options: Options, model: Forecaster, data: Any, target: Names, past: Names, future: Names, static: Names
) -> Options:
    """Return the options with the roles of columns: those given, else those that the model was trained with."""
    named = {"target": target, "past": past, "future": future, "static": static}
    roles: dict[str, Any] = {
        role: (names,) if isinstance(names, str) and names else tuple(names) for role, names in named.items()
    }
    if not any(roles[role] for role in ("past", "future", "static")):
        columns = {str(name) for name in data.columns} if isinstance(data, pd.DataFrame) else None
        for role in ("past", "future", "static"):
            taken = getattr(model.inputs, role)
            if taken.names and (taken.accepts == "required" or columns is None or columns.issuperset(taken.names)):
                roles[role] = taken.names
    return options._replace(**roles)


def _refuse_size(series: int, rows: int, inputs: int) -> None:
    if series * rows * inputs > MOST_CELLS:
        raise HrxError(
            f"{series} series × {rows} steps × {inputs} inputs are more than {MOST_CELLS} entries. Explain fewer "
            "series, choose steps=, or give a shorter lookback=."
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def find_readers(model: Forecaster, given: SeriesInput, horizon: int) -> list[Reader]:
    """How the model reads each series.

    The season is 1 for a model that does not take one. The scale is None for a model that reads the values themselves,
    and stored in a model or taken as in an audit otherwise: from the values before the test region. The rows of one
    array have no such region, and are standardised together.
    """
    seasons = {one.series.season for one in given.series} - {1}
    taken = {season for season in seasons if model.for_season(season) is not model}
    readers = []
    for one in given.series:
        scale = model.scale if isinstance(model.scale, Scale) else None
        if scale is None and model.scale != "raw":
            with naming(f"series {one.series.item}"):
                if given.windows:
                    together = np.concatenate([row.series.values for row in given.series])
                    found = standardise(together, len(together))
                else:
                    found = standardise(one.series.values, scaling_end(one.series, horizon) or one.series.values.size)
            scale = Scale(found.mean, found.std)
        readers.append(Reader(one.series.season if one.series.season in taken else 1, scale))
    return readers


def _estimate(
    models: Mapping[Reader, Forecaster],
    readers: Sequence[Reader],
    x: Tensor,
    horizon: int,
    protocol: Protocol,
    rows: Sequence[int],
    *,
    check: bool,
    report: Callable[[str], None],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Forecasts `(B, H)`, matrix `(B, R, L)` and signed matrix; series that are read alike share a batch."""
    estimator = find_estimator(protocol.estimator)
    forecast, matrix = x.new_empty(len(x), horizon), x.new_empty(len(x), len(rows), x.shape[1])
    signed: Tensor | None = None
    for reader, model in models.items():
        at = [number for number, one in enumerate(readers) if one == reader]
        began = time.monotonic()
        try:  # which shapes a model fails on, before its Jacobian is computed
            with torch.no_grad():
                forecast[at] = model.forward(x[at], horizon).float()
        except HrxError:
            raise
        except Exception as error:
            raise ModelError(
                f"{model.identity.model} failed on {len(at)} windows of {x.shape[1]} values with a horizon of "
                f"{horizon}: {describe_error(error)}. If it takes windows of another length, give lookback=."
            ) from error
        if not model.differentiable:
            report(_cost(model, protocol, x[at], time.monotonic() - began))
        with library_errors(model.identity.model, model.identity.library):
            estimated = estimate(model, x[at], horizon, protocol, steps=rows, signed=True)
            gradient = model.differentiable and estimator.needs_gradient
            if check:
                refuse_misleading(model, x[at], forecast[at], estimated.matrix, gradient=gradient)
        matrix[at] = estimated.matrix
        if estimated.signed is not None:
            signed = torch.empty_like(matrix) if signed is None else signed
            signed[at] = estimated.signed
    for what, values in (("forecast", forecast), ("explanation", matrix)):
        if not torch.isfinite(values).all():
            raise HrxError(f"non-finite {what}: {protocol.estimator} is NaN or infinite on these windows")
    return forecast, matrix, signed


def _noise(model: Forecaster, x: Tensor, horizon: int) -> list[str]:
    """How much the forecasts of a sampler differ between seeds."""
    if not isinstance(model, BlackBox) or not (noise := model.noise(x, horizon)).any():
        return []
    share = float((noise.square().mean() / x.var(dim=1).mean()).sqrt())
    return [
        f"{model.identity.model} was called under one seed; between {NOISE_SEEDS} seeds its forecast varies by "
        f"{share:.1%} of the windows' standard deviation"
    ]


def _cost(model: Forecaster, protocol: Protocol, x: Tensor, seconds: float) -> str:
    """How many forecasts an estimator without gradients needs of windows that were forecast once in `seconds`."""
    of_window = find_estimator(protocol.estimator).settings.read(protocol.estimator_settings, protocol.estimator)
    each = of_window.forecasts(x.shape[1])
    if each is None:  # a function of a user
        return f"{protocol.estimator} calls {model.identity.model} as often as it likes; one call took {seconds:.2g} s"
    expected = each * seconds
    time_needed = "less than 1 s" if expected < 1 else f"about {duration(expected)}"
    return f"{each * len(x)} forecasts by {model.identity.model}, {time_needed}"


def common_lookback(
    models: Sequence[Forecaster], given: SeriesInput, horizon: int, asked: int | None, held_out: bool
) -> int:
    """Return the lookback that was asked for, or the longest that the model, for each season, and all series allow."""
    shortest = min(given.series, key=lambda one: one.series.values.size).series
    longest = shortest.values.size
    if asked is None and held_out:
        longest = max(test_start(shortest, horizon), 1)
    return min(_length(model, shortest.item, longest, horizon, asked) for model in models)


def _length(model: Forecaster, item: str, longest: int, horizon: int, asked: int | None) -> int:
    """Return the lookback that was asked for, or the longest that the model and the shortest series allow."""
    name = model.identity.model
    if asked is not None and (not _is_whole(asked) or asked < 1):
        raise HrxError(f"lookback={asked!r} is not a number of values. Give a whole number of at least 1.")
    if refusal := model.limits.refusal_of_horizon(horizon) or (asked and model.limits.refusal(asked, horizon)):
        raise ModelError(f"{name} {refusal}.")
    if asked is None:
        subject = f"{name}, at series {item} of {longest} values,"
        return default_lookback(model.limits, longest, horizon, subject)
    if asked > longest:
        raise UnusableSeries(
            f"Series {item} has {longest} values from its first observed one on, fewer than lookback={asked}. Give a "
            "shorter lookback, or leave out that series."
        )
    return asked


def default_lookback(limits: Limits, longest: int, horizon: int, subject: str = "The model") -> int:
    """Return the longest lookback, of at most `longest` values, that the limits allow at this horizon."""
    bound = min(longest, LONGEST_DEFAULT if limits.longest_lookback is None else limits.longest_lookback)
    if limits.lookbacks is not None:
        bound = longest
    for lookback in range(bound, 0, -1):
        if limits.refusal(lookback, horizon) is None:
            return lookback
    raise ModelError(f"{subject} {limits.refusal(max(bound, 1), horizon)}.")


def last_windows(given: SeriesInput, lookback: int, most_missing: float) -> Tensor:
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


def _observed(one: TimedSeries) -> Bools:
    values, observed = one.series.values, one.series.observed
    return np.ones(values.size, dtype=bool) if observed is None else observed


def reading_notes(model: Forecaster, given: SeriesInput, readers: Sequence[Reader], lookback: int) -> tuple[str, ...]:
    """How the series were read, what was filled in, and by what they were standardised for a model that needs it."""
    notes = [one.note for one in given.series if one.note]
    for one in given.series:
        if count := int((~_observed(one)[-lookback:]).sum()):
            notes.append(f"{one.series.item}: {count} of {lookback} values were missing and repeat the one before")
    for one, reader in zip(given.series, readers, strict=True):
        if reader.scale is not None:
            by = f"mean and std of series {one.series.item} before its test region"
            by = "mean and std of these windows" if given.windows else by
            by = "the scaling of its training" if isinstance(model.scale, Scale) else by
            mean, std = reader.scale
            notes.append(f"{model.identity.model} read (value - {mean:.6g}) / {std:.6g}, {by}")
    return tuple(dict.fromkeys(notes))
