"""Explains one forecast of one series, and scores the explanation on held-out windows of the same series."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import Forecaster, ModelError
from hrx.adapters.contract import Scale
from hrx.adapters.standardisation import Rescaled, in_own_unit
from hrx.audit.admission.checks import admit, to_stored
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import Protocol
from hrx.audit.runner.run import forecast_series, in_units, series_context
from hrx.audit.scoring.quantities import skill
from hrx.audit.scoring.score import ScoredRun, Unscorable
from hrx.gift_eval import Series, UnusableSeries, Windows, cut, refuse_extreme, refuse_missing
from hrx.gift_eval.windows import scaling_end, standardise, statistics
from hrx.records.explained import ExplainedForecast
from hrx.records.ledger import StoredCheck
from hrx.records.quantities import Quantities, Skill

WINDOWS = 4


def explain_series(
    model: Forecaster,
    series: Series,
    lookback: int,
    horizon: int,
    *,
    protocol: Protocol | None = None,
    labels: tuple[str, ...] | None = None,
    report: Callable[[str], None] = lambda what: None,
) -> ExplainedForecast:
    """Explains the forecast that follows the end of the series.

    `labels` are the dates of all its values. The explanation is scored where the truth is known: on windows of the
    last fifth of the series, none of which is the window that is explained. `report` is called with what is done next.
    """
    protocol, budget = protocol or Protocol(), MemoryBudget()
    if refusal := model.limits.refusal(lookback, horizon):
        raise ModelError(f"{model.identity.model} {refusal}.")
    model = _on_windows(model, series, horizon)
    _refuse_missing(series, lookback, protocol.max_missing)
    held_out = cut(series, lookback, horizon, WINDOWS, 0)
    refuse_extreme(held_out, series.label)
    scale = standardise(series.values, scaling_end(series, horizon))
    last = torch.as_tensor(scale.values[-lookback:], dtype=torch.float32)[None]
    report(f"explaining the forecast at {lookback}x{horizon}")
    explanation = ScoredRun(model, last, horizon, protocol, budget).explanation
    with torch.no_grad():
        forecast = model.forward(last, horizon)[0].double().numpy()
    report(f"scoring the explanation on {len(held_out.x)} windows with known values")
    try:
        refuse_missing(series, lookback, horizon, WINDOWS, 0, protocol.max_missing)
        skill_, quantities, unscored = _score(model, series, held_out, horizon, protocol, budget)
    except UnusableSeries as error:
        skill_, quantities, unscored = None, None, str(error)
    context = None
    if protocol.context and quantities is not None:
        report("finding the needed context")
        context = series_context(model, series, lookback, horizon, protocol, budget, quantities.variance)
    report("checking the model on these windows")
    checks = _checks(model, torch.as_tensor(held_out.x, dtype=torch.float32), horizon)
    identity = model.identity
    return ExplainedForecast(
        model=identity.model,
        checkpoint=identity.checkpoint,
        fingerprint=identity.fingerprint,
        library=identity.library,
        series=series.item,
        estimator=protocol.estimator,
        x=np.asarray(series.values[-lookback:]),
        forecast=forecast * scale.std + scale.mean,
        matrix=explanation.matrix[0].numpy(),
        steps=tuple(step - 1 for step in explanation.steps),
        labels=None if labels is None else labels[-lookback:],
        windows=len(held_out.x),
        checks=checks,
        skill=skill_,
        quantities=quantities,
        unscored=unscored,
        padded=model.limits.padding(lookback),
        context=context,
    )


def _on_windows(model: Forecaster, series: Series, horizon: int) -> Forecaster:
    """The model on standardised windows of a series; one whose training scale is stored reads values of that scale.

    The series may have grown since the training, so that its own mean and standard deviation are others.
    """
    if not isinstance(model.scale, Scale):
        return in_units(model, series, horizon)
    return Rescaled(in_own_unit(model, model.scale), *statistics(series, horizon))


def _refuse_missing(series: Series, lookback: int, limit: float) -> None:
    """Raises where more than the share `limit` of the explained window was filled in."""
    share = 0.0 if series.observed is None else float((~series.observed[-lookback:]).mean())
    if share > limit:
        raise UnusableSeries(
            f"{series.label}: {share:.0%} of the last {lookback} values are missing and would be filled in; the limit "
            f"is {limit:.0%}. Give a series with fewer gaps, or another --lookback."
        )


def _checks(model: Forecaster, windows: Tensor, horizon: int) -> tuple[StoredCheck, ...]:
    """The admission checks on the windows that are not flat."""
    moving = windows[windows.amax(dim=1) > windows.amin(dim=1)]
    checks = admit(model, moving, horizon) if len(moving) else ()
    return tuple(to_stored(model.identity, check) for check in checks)


def _score(
    model: Forecaster, series: Series, held_out: Windows, horizon: int, protocol: Protocol, budget: MemoryBudget
) -> tuple[Skill | None, Quantities | None, str]:
    """Skill and quantities, or the reason why there are none."""
    windows = torch.as_tensor(held_out.x, dtype=torch.float32)
    count = protocol.variance_windows
    try:
        whole = None if count == "run" else forecast_series(model, series, windows.shape[1], horizon, count, budget)
        scored = ScoredRun(
            model, windows, horizon, protocol, budget, variance=None if whole is None else whole.variance
        )
        quantities = scored.quantities
    except Unscorable as error:
        return None, None, str(error)
    if whole is not None:
        return whole.skill, quantities, ""
    forecast, last = scored.forecast.double().numpy(), held_out.x[:, -1]
    return skill(forecast, held_out.y, last, held_out.seasonal, held_out.seasonal_error), quantities, ""
