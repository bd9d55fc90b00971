"""Explanations of forecasts that read covariates or several targets, or of another output than the point forecast.

Each forecast is that of a model bound to the layout of its window. Entries of channels without a slope, effects and
sensitivities are those of `hrx.audit.covariates`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster, ModelError, library_errors
from hrx.adapters.inputs import POINT, Layout, Output, Window
from hrx.adapters.wrapped import Bound
from hrx.audit.admission import admit, refuse_misleading, to_stored
from hrx.audit.attribution import find_estimator
from hrx.audit.attribution.explanation import estimate, estimated_steps
from hrx.audit.covariates import (
    Blocks,
    channel_effects,
    effect_forecasts,
    replaced_rows,
    standardised,
    with_sensitivity,
)
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import Protocol
from hrx.audit.runner.run import HELD_OUT
from hrx.audit.scoring.quantities import Unscorable, skill, usable_variance
from hrx.audit.scoring.score import ScoredRun, score_joint
from hrx.errors import HrxError, describe_error
from hrx.gift_eval.covariates import Arrays, CovariateSeries
from hrx.gift_eval.series import UnusableSeries
from hrx.gift_eval.windows import cut, scaling_end, statistics
from hrx.records.channels import ChannelEffect
from hrx.records.explanation import ExplainedTimes, HeldOut, Part
from hrx.records.quantities import Skill

BAND = (0.1, 0.5, 0.9)
"""Quantile levels that are forecast beside the explained output, where the model has them."""


class _Explained(NamedTuple):
    """One forecast with what it reads of each channel."""

    item: str
    target: str
    forecast: Tensor
    """`(1, H)`."""
    quantiles: Mapping[float, Tensor]
    parts: Mapping[str, Part]
    effects: tuple[ChannelEffect, ...]
    variance: float
    note: str = ""
    """By what effects and gains are divided, where it is not the variance over the test region."""
    held_out: HeldOut | None = None


def explain_channels(
    model: Forecaster,
    series: Sequence[CovariateSeries],
    lookback: int,
    horizon: int,
    protocol: Protocol,
    steps: Sequence[int],
    output: Output,
    *,
    check: bool,
    held_out: bool,
    report: Callable[[str], None],
    tell_cost: Callable[[str], None],
) -> dict[str, Any]:
    """Return the fields of an `Explanation`: one forecast for each series and target."""
    first = series[0]
    for one in series:
        if one.names != first.names:
            raise HrxError(
                f"Series {one.item} has the channels {_listed(one)}, series {first.item} {_listed(first)}. Explain "
                "series with other channels apart."
            )
    found, notes = list[_Explained](), list[str]()
    for one in series:
        season = one.series.season
        seasonal = model.for_season(season) if season > 1 else model
        window = as_window(one, one.window(lookback, horizon))
        notes += _notes(seasonal, one, window, lookback, horizon)
        layout = Layout.of(window, horizon, one.kinds)
        history = _History.of(one, layout)
        for number, target in enumerate(layout.names["target"]):
            bound = Bound(seasonal, layout, number, output)
            if not model.differentiable:
                tell_cost(_cost(bound, protocol))
            report(f"explaining the forecast of {target} at {lookback}x{horizon}")
            with library_errors(model.identity.model, model.identity.library):
                explained = _explain(seasonal, bound, one, window, history, protocol, steps, check=check)
                if held_out:
                    measured = _held_out(seasonal, bound, one, history, protocol, explained.variance, report)
                    explained = explained._replace(held_out=measured)
            several = len(layout.names["target"]) > 1
            notes += [explained.note] if explained.note else []
            found.append(explained._replace(item=f"{one.item}/{target}" if several else one.item))
    by_item = [one for one in series for _ in first.names["target"]]
    own = [(one.parts[one.target], one.forecast) for one in found]
    if output.is_spread and (crossing := float(torch.cat([one.forecast for one in found]).lt(0).float().mean())):
        notes.append(f"the quantiles of the spread cross at {crossing:.1%} of the steps")
    several = len(first.names) > 1 or len(first.names["target"]) > 1
    return {
        "matrix": np.concatenate([part.matrix for part, _ in own]),
        "signed": None if own[0][0].signed is None else np.concatenate([part.signed for part, _ in own]),
        "forecast": torch.cat([forecast for _, forecast in own]).numpy(),
        "x": np.concatenate([part.values for part, _ in own]),
        "observed": np.concatenate([part.observed for part, _ in own]),
        "items": tuple(one.item for one in found),
        "times": tuple(_times(one, lookback, horizon) for one in by_item),
        "seasons": tuple(one.series.season for one in by_item),
        "scales": (None,) * len(found),
        "notes": tuple(dict.fromkeys(notes)),
        "output": str(output),
        "quantiles": {
            level: torch.cat([one.quantiles[level] for one in found]).numpy() for level in found[0].quantiles
        },
        "parts": {name: _stacked([one.parts[name] for one in found]) for name in found[0].parts} if several else {},
        "targets": tuple(one.target for one in found),
        "effects": tuple(one.effects for one in found) if several else (),
        "variances": tuple(one.variance for one in found),
        "held_out": tuple(one.held_out for one in found if one.held_out),
    }


def as_window(series: CovariateSeries, arrays: Arrays) -> Window:
    """Return the window of arrays by role, in float64."""
    codes = frozenset(name for name, kind in series.kinds.items() if kind == "categorical")
    tensors: dict[str, Any] = {role: torch.as_tensor(values) for role, values in arrays.items()}
    return Window(**tensors, names=series.names, categorical=codes)


class _History(NamedTuple):
    """What is known of the channels before the window's forecast."""

    blocks: Blocks
    scales: Mapping[str, float]

    @classmethod
    def of(cls, series: CovariateSeries, layout: Layout) -> "_History":
        """Blocks from before the test region; from the whole series where fewer than two fit there."""
        length, blocks = series.target.shape[1], dict[str, Any]()
        for channel in layout.channels:
            known = series.blocks(channel.name, channel.length, scaling_end(series.series, layout.horizon) or length)
            if len(known) < 2 and channel.role != "static":
                known = series.blocks(channel.name, channel.length, length)
            blocks[channel.name] = known
        scales = {name: 0.0 if np.isnan(std) else std for name, std in series.scales(layout.horizon).items()}
        return cls(blocks, scales)


def _explain(
    model: Forecaster,
    bound: Bound,
    series: CovariateSeries,
    window: Window,
    history: _History,
    protocol: Protocol,
    steps: Sequence[int],
    *,
    check: bool,
) -> _Explained:
    layout, budget = bound.layout, MemoryBudget()
    horizon, exact = layout.horizon, layout.pack(window)
    x, window = exact.float(), window.map(Tensor.float)
    try:
        with torch.no_grad():
            forecast = bound.forward(x, horizon).float()
            levels = [level for level in BAND if model.outputs.refusal(Output((level,))) is None]
            columns = forecast[..., None]
            if levels:
                columns = model.predict_window(window, horizon, levels)[:, :, bound.explained].float()
    except HrxError:
        raise
    except Exception as error:
        raise ModelError(
            f"{model.identity.model} failed on the {len(layout.channels)} channels of series {series.item}: "
            f"{describe_error(error)}."
        ) from error
    rows = _rows(bound, x, history, protocol, steps, budget)
    matrix, signed = rows.matrix, rows.signed
    if check:
        # A spread is a small difference of large numbers, whose rounding it has.
        least = float(window.target.abs().max()) if bound.output.is_spread else 0.0
        refuse_misleading(bound, x, forecast, rows.slopes, gradient=rows.gradient, least=least)
    variance, divided_by = _variance(model, bound, series, forecast, protocol)
    effects = list[ChannelEffect]()
    if len(layout.channels) > 1:
        effects = channel_effects(bound, x, history.blocks, variance, seed=protocol.seed, budget=budget)
        effects = with_sensitivity(effects, bound, matrix)
    for what, values in (("forecast", forecast), ("explanation", matrix)):
        if not torch.isfinite(values).all():
            raise HrxError(f"non-finite {what}: {protocol.estimator} is NaN or infinite on series {series.item}")
    parts = {}
    for at, channel in enumerate(layout.channels):
        given = exact[:, channel.positions].numpy()
        observed = ~np.isnan(given)
        if channel.role == "target":  # the first channels, of which gaps were filled
            given, observed = series.target[None, at, -layout.lookback :], series.observed[None, at, -layout.lookback :]
        parts[channel.name] = Part(
            role=channel.role,
            kind=channel.kind,
            matrix=matrix[..., channel.positions].float().numpy(),
            signed=None if signed is None else signed[..., channel.positions].float().numpy(),
            values=given,
            observed=observed,
            labels=series.labels.get(channel.name, ()),
        )
    target = layout.names["target"][bound.explained]
    quantiles = {level: columns[..., number] for number, level in enumerate(levels)}
    note = f"{series.item}: effects and gains are divided by {divided_by}" if divided_by else ""
    return _Explained(series.item, target, forecast, quantiles, parts, tuple(effects), variance, note=note)


class _Rows(NamedTuple):
    """Rows of packed windows, `(W, R, P)`."""

    matrix: Tensor
    """Entries of all channels, comparable: slopes per standard deviation, changes of the others."""
    signed: Tensor | None
    slopes: Tensor
    """As the estimator returned them."""
    gradient: bool


def _rows(
    bound: Bound, x: Tensor, history: _History, protocol: Protocol, steps: Sequence[int], budget: MemoryBudget
) -> _Rows:
    method, layout = find_estimator(protocol.estimator), bound.layout
    found = estimate(bound, x, layout.horizon, protocol, steps=steps, budget=budget, signed=True)
    gradient, signed = bound.differentiable and method.needs_gradient, found.signed
    if len(layout.channels) == 1 or not method.needs_gradient:
        return _Rows(found.matrix.double(), signed, found.matrix, gradient)
    scales = history.scales if method.sign == "slope" else dict.fromkeys(history.scales, 1.0)
    others = replaced_rows(bound, x, history.blocks, seed=protocol.seed, budget=budget)
    if signed is not None:
        signed = signed.double().clone()
        for channel in layout.channels:
            signed[..., channel.positions] *= scales[channel.name] if channel.has_slope else torch.nan
    return _Rows(standardised(bound, found.matrix, scales, others, steps), signed, found.matrix, gradient)


def _held_out(
    model: Forecaster,
    bound: Bound,
    series: CovariateSeries,
    history: _History,
    protocol: Protocol,
    variance: float,
    report: Callable[[str], None],
) -> HeldOut:
    """Measure the bound model on windows of the last fifth of a series, as `measure_held_out` does for one channel."""
    layout, budget, at = bound.layout, MemoryBudget(), bound.explained
    lookback, horizon = layout.lookback, layout.horizon
    windows = series.windows(lookback, horizon, HELD_OUT, 0)
    x = layout.pack(as_window(series, windows.arrays)).float()
    report(f"scoring the explanation on {len(x)} windows with known values")
    quantities, errors, unscored = None, None, ""
    try:
        point = Bound(model, layout, at, POINT)
        errors = _skill(series, at, budget.forecasts(point, x, horizon), lookback, horizon)
        steps = estimated_steps(protocol, horizon, None)
        run = ScoredRun(bound, x, horizon, protocol, budget, variance=variance)
        quantities = score_joint(run, _rows(bound, x, history, protocol, steps, budget).matrix, steps).joint
    except (UnusableSeries, Unscorable) as error:
        unscored = str(error)
    report("checking the model on these windows")
    checks = tuple(to_stored(bound.identity, one) for one in admit(bound, x, horizon))
    return HeldOut(len(x), checks, errors, quantities, unscored, model.limits.padding(lookback))


def _skill(series: CovariateSeries, at: int, forecast: Tensor, lookback: int, horizon: int) -> Skill:
    """Errors of point forecasts `(W, H)` of one target on its held-out windows, standardised."""
    known = cut(series.series, lookback, horizon, HELD_OUT, 0)
    x, y, seasonal = (values if values.ndim == 2 else values[..., at] for values in (known.x, known.y, known.seasonal))
    mean, std = (both[at] for both in statistics(series.series, horizon))
    own = (forecast.double().numpy() - mean) / std
    return skill(own, y, x[:, -1], seasonal, known.seasonal_error[at : at + 1])


def _cost(bound: Bound, protocol: Protocol) -> str:
    """How many forecasts the channels of one window take by a model without derivatives."""
    method = find_estimator(protocol.estimator)
    own = method.settings.read(protocol.estimator_settings, method.name).forecasts(bound.layout.size)
    region = 0 if protocol.variance_windows == "run" else protocol.variance_windows
    return f"about {(own or 0) + effect_forecasts(bound) + region} forecasts by {bound.identity.model}"


def _variance(
    model: Forecaster, bound: Bound, series: CovariateSeries, forecast: Tensor, protocol: Protocol
) -> tuple[float, str]:
    """Variance of the point forecasts over the test region; without one, another, and what that is."""
    layout, count = bound.layout, protocol.variance_windows
    point = Bound(model, layout, bound.explained, POINT)
    try:
        if count != "run":
            arrays = series.region(layout.lookback, layout.horizon, count).arrays
            x = layout.pack(as_window(series, arrays)).float()
            if point.refusal_of_missing(x) is None:
                return usable_variance(MemoryBudget().forecasts(point, x, layout.horizon)), ""
    except (UnusableSeries, Unscorable):
        pass
    apart = "which does not compare with those of an audit"
    try:
        return usable_variance(forecast), f"the variance of this forecast alone, {apart}"
    except Unscorable:
        values = float(series.target[bound.explained, -layout.lookback :].var())
    what = "the variance of the values of the window" if values else "one"
    return values or 1.0, f"{what}, since the forecast is constant, {apart}"


def _notes(model: Forecaster, series: CovariateSeries, window: Window, lookback: int, horizon: int) -> list[str]:
    """What was missing and what the model makes of it; refuses missing values that it does not take."""
    notes = [series.note] if series.note else []
    for name, seen in zip(series.names["target"], series.observed[:, -lookback:], strict=True):
        if count := int((~seen).sum()):
            notes.append(f"{series.item}: {count} of {lookback} values of {name} were missing and repeat the last one")
    times = _times(series, lookback, horizon)
    every = None if times is None else times.inputs.append(times.forecasts)
    for role, values in window.roles():
        if role == "target":
            continue
        taken = getattr(model.inputs, role)
        for name, column in zip(window.named(role), values[0].T if values.ndim == 3 else values.T, strict=True):
            missing = torch.isnan(column).numpy()
            for part, how in ((slice(0, lookback), taken.missing), (slice(lookback, None), taken.ahead_missing)):
                if not missing[part].any():
                    continue
                first = part.start + int(missing[part].argmax())
                place = _place(every, first, lookback, role == "static")
                if how == "refused":
                    raise UnusableSeries(
                        f"Series {series.item}: {name!r} is missing {place}, and {model.identity.model} takes no "
                        f"missing values of {role} covariates. Fill them in, or drop {name}."
                    )
                count, says = int(missing[part].sum()), "known as missing" if how == "masked" else "read as zero"
                notes.append(f"{series.item}: {count} values of {name} are missing, the first {place}: {says}")
    return notes


def _place(times: pd.Index | None, at: int, lookback: int, static: bool) -> str:
    if static:
        return "(it is static)"
    if times is not None:
        return f"at {str(times[at]).removesuffix(' 00:00:00')}"
    return f"{lookback - at} steps before the forecast" if at < lookback else f"at step {at - lookback + 1} ahead"


def _times(series: CovariateSeries, lookback: int, horizon: int) -> ExplainedTimes | None:
    after = series.after(horizon)
    return None if series.times is None or after is None else ExplainedTimes(series.times[-lookback:], after)


def _listed(series: CovariateSeries) -> str:
    return ", ".join(f"{name} ({role})" for role, names in series.names.items() for name in names)


def _stacked(parts: Sequence[Part]) -> Part:
    """Return one channel of all series."""
    first = parts[0]
    return Part(
        role=first.role,
        kind=first.kind,
        matrix=np.concatenate([one.matrix for one in parts]),
        signed=None if first.signed is None else np.concatenate([one.signed for one in parts]),
        values=np.concatenate([one.values for one in parts]),
        observed=np.concatenate([one.observed for one in parts]),
        labels=first.labels,
    )
