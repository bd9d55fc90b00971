"""Measures the needed context: one more ordering of the deletion sweep, oldest value first, and its check.

The check forecasts from a lookback that is really cut. It can disagree with the sweep: a model may hardly read old
values and still depend on them, through its normalisation, its positions or the zeros that fill a short window.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster
from hrx.audit.memory import MemoryBudget, out_of_memory
from hrx.audit.protocol import Protocol
from hrx.audit.scoring.deletion import Sweep, masks, ranks, replacements
from hrx.audit.scoring.quantities import usable_variance
from hrx.errors import ProtocolError, stored_reason
from hrx.records.context import NeededContext, kept_contexts
from hrx.records.quantities import Ints, Skill

MOST_REPEATS, REPEAT_SECONDS = 5, 0.25
"""A short call is timed several times, since a busy machine disturbs it more than a long one."""


def needed_context(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    *,
    errors: Callable[[Tensor], Skill] | None = None,
    protocol: Protocol | None = None,
    kept: Ints | None = None,
    variance: float | None = None,
    budget: MemoryBudget | None = None,
    stream: int = 0,
) -> NeededContext:
    """How short the lookback of the windows `x` `(W, L)` or `(W, L, C)` can be before their forecasts change.

    `errors` compares forecasts `(W, H)` with the truth, where it is known. `kept` are the contexts to try (default:
    `kept_contexts(L)`), `variance` divides the changes (default: that of the forecasts of `x`). `protocol` has the
    bound, the draws and their seed. Example: `needed_context(model, x, 24).needed`.
    """
    protocol, budget, lookback = protocol or Protocol(), budget or MemoryBudget(), x.shape[1]
    contexts = kept_contexts(lookback)
    if kept is not None:
        contexts = np.unique(np.append(np.asarray(kept, dtype=np.int64), lookback))[::-1]
        if contexts[-1] < 1 or contexts[0] > lookback:
            raise ProtocolError(f"A kept context is between 1 and the lookback {lookback}, not {kept}.")
    full = budget.forecasts(model, x, horizon)
    variance = usable_variance(full) if variance is None else variance

    oldest_first = torch.arange(lookback, 0, -1, dtype=torch.float64).expand(len(x), 1, lookback)
    sweep = Sweep(model, x, full, oldest_first, np.arange(full.shape[1]), protocol, budget, stream)
    deleted = masks(ranks(oldest_first), lookback - contexts[1:])[:, 0, 0]
    drawn = replacements(x, protocol, stream, 0, protocol.draws, variants=deleted.shape[1])
    replaced = sweep.changes(deleted, drawn).mean(axis=(0, 2, 3))

    def taken(context: int) -> int:
        """Shortest lookback from the context on that the model takes."""
        lengths = range(context, lookback)
        return next((length for length in lengths if model.limits.refusal(length, horizon) is None), lookback)

    lookbacks = [taken(context) for context in contexts.tolist()]
    cuts = {one: _cut(model, x, one, horizon, budget) for one in dict.fromkeys(lookbacks) if one != lookback}
    cuts[lookback] = _Cut(full, np.nan, np.nan)
    measured = [cuts[one] for one in lookbacks]
    found = [None if errors is None or one.forecast is None else errors(one.forecast) for one in measured]
    return NeededContext(
        bound=protocol.context_bound,
        windows=len(x),
        kept=contexts,
        change=np.array([0.0, *replaced]) / variance,
        lookbacks=np.array(lookbacks),
        cut_change=np.array([_change(one.forecast, full) for one in measured]) / variance,
        mse=np.array([np.nan if one is None else one.mse for one in found]),
        mase=np.array([np.nan if one is None else one.mase for one in found]),
        cut_seconds=np.array([one.seconds for one in measured]),
        full_seconds=np.array([one.full_seconds for one in measured]),
        padded_to=model.limits.padded_to,
        refusal=next((one.refusal for one in cuts.values() if one.refusal), ""),
    )


class _Cut(NamedTuple):
    """Forecasts from a cut lookback and their time, beside that of the whole one; None where the model raised."""

    forecast: Tensor | None
    seconds: float
    full_seconds: float
    refusal: str = ""


def _cut(model: Forecaster, x: Tensor, lookback: int, horizon: int, budget: MemoryBudget) -> _Cut:
    """Forecasts from the last `lookback` values, timed side by side with the whole lookback."""
    short = x[:, -lookback:]
    try:
        forecast = budget.forecasts(model, short, horizon)
    except Exception as error:  # a model may take one lookback only, and need not declare it
        if out_of_memory(error):
            raise
        return _Cut(None, np.nan, np.nan, f"a lookback of {lookback}: {stored_reason(error)}")
    if not torch.isfinite(forecast).all():
        return _Cut(None, np.nan, np.nan, f"a lookback of {lookback}: the forecast is NaN or infinite")
    # In turns; both have been made before, so neither is a first.
    clock, seconds = time.perf_counter, list[tuple[float, float]]()
    start = clock()
    while not seconds or (len(seconds) < MOST_REPEATS and clock() - start < REPEAT_SECONDS):
        began = clock()
        budget.forecasts(model, x, horizon)
        between = clock()
        budget.forecasts(model, short, horizon)
        seconds.append((clock() - between, between - began))
    return _Cut(forecast, *np.min(seconds, axis=0).tolist())


def _change(forecast: Tensor | None, full: Tensor) -> float:
    """Mean squared change over windows and steps, summed over the channels."""
    if forecast is None:
        return np.nan
    change = (forecast.double() - full.double()).square()
    return float((change if change.ndim == 2 else change.sum(dim=-1)).mean())
