"""Held-out windows of a series, whose future is known: admission checks, skill and gains of a model there."""

from collections.abc import Callable

import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster
from hrx.adapters.standardisation import Rescaled, in_own_unit
from hrx.audit.admission import admit, to_stored
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import Protocol
from hrx.audit.runner.run import forecast_series, series_context, without_flat
from hrx.audit.scoring.quantities import skill
from hrx.audit.scoring.score import ScoredRun, Unscorable
from hrx.gift_eval.series import Series, UnusableSeries
from hrx.gift_eval.windows import Windows, cut, refuse_extreme, refuse_missing, statistics
from hrx.records.explanation import HeldOut
from hrx.records.ledger import StoredCheck
from hrx.records.quantities import Quantities, Skill

WINDOWS = 4


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
    budget, windows = MemoryBudget(), cut(series, lookback, horizon, WINDOWS, 0)
    refuse_extreme(windows, series.label)
    (mean,), (std,) = statistics(series, horizon)
    own = model if scale == (mean, std) else Rescaled(in_own_unit(model, scale), mean, std)
    report(f"scoring the explanation on {len(windows.x)} windows with known values")
    try:
        refuse_missing(series, lookback, horizon, WINDOWS, 0, protocol.max_missing)
        errors, quantities = _score(own, series, windows, horizon, protocol, budget)
        unscored = ""
    except (UnusableSeries, Unscorable) as error:
        errors, quantities, unscored = None, None, str(error)
    context = None
    if protocol.context and quantities is not None:
        report("finding the needed context")
        context = series_context(own, series, lookback, horizon, protocol, budget, quantities.variance)
    report("checking the model on these windows")
    return HeldOut(
        windows=len(windows.x),
        checks=_checks(own, torch.as_tensor(windows.x, dtype=torch.float32), horizon),
        skill=errors,
        quantities=quantities,
        unscored=unscored,
        padded=model.limits.padding(lookback),
        context=context,
    )


def _checks(model: Forecaster, windows: Tensor, horizon: int) -> tuple[StoredCheck, ...]:
    """Return the admission checks on the windows that are not flat."""
    moving = windows[windows.amax(dim=1) > windows.amin(dim=1)]
    checks = admit(model, moving, horizon) if len(moving) else ()
    return tuple(to_stored(model.identity, check) for check in checks)


def _score(
    model: Forecaster, series: Series, held_out: Windows, horizon: int, protocol: Protocol, budget: MemoryBudget
) -> tuple[Skill, Quantities]:
    held_out, flat = without_flat(held_out)
    x, count = torch.as_tensor(held_out.x, dtype=torch.float32), protocol.variance_windows
    whole = None if count == "run" else forecast_series(model, series, x.shape[1], horizon, count, budget)
    variance = None if whole is None else whole.variance
    scored = ScoredRun(model, x, horizon, protocol, budget, variance=variance, flat_windows=flat)
    quantities = scored.quantities
    if whole is not None:
        return whole.skill, quantities
    forecast, last = scored.forecast.double().numpy(), held_out.x[:, -1]
    return skill(forecast, held_out.y, last, held_out.seasonal, held_out.seasonal_error), quantities
