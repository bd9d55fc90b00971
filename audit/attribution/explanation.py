"""Two calls that fill an explanation matrix with any estimator."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster
from hrx.audit.attribution import (
    BUILT_IN,
    AttributionFunction,
    AttributionTask,
    Estimate,
    Inapplicable,
    as_estimator,
    find_estimator,
)
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import Axis, Protocol, scored_steps
from hrx.audit.torch_state import differentiable, plain
from hrx.errors import HrxError, ProtocolError
from hrx.gift_eval.series import FINITE

MOST_ROWS = 1024
"""Forecast steps that are explained without being chosen: the benchmarks have at most 900."""


def explain(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    *,
    estimator: str | AttributionFunction = "input_gradient",
    steps: Sequence[int] | None = None,
    budget: MemoryBudget | None = None,
    settings: str | None = None,
    axis: Axis = "step",
    seed: int = 0,
    stream: int = 0,
) -> Tensor:
    """`(W, L) -> (W, R, L)`, non-negative: the importance of each input position for each forecast step.

    `steps` lists the steps that get a row, from 1. Without it the input gradient gives all `H` and every other
    estimator the eight scored ones. `estimator` is a name, as in `docs/estimators.md`, or a function
    `f(forward, x, step)` (see `AttributionFunction`). `axis="whole"` gives one row for the whole forecast instead, as
    each method was published. `settings` is JSON of the settings that differ from their defaults. A multivariate window
    `(W, L, C)` gives `(W, R, L)` too: the channels of the forecast are summed before differentiating, those of the
    input after taking magnitudes.
    """
    name = estimator if isinstance(estimator, str) else as_estimator(estimator)
    protocol = Protocol(estimator=name, estimator_settings=settings or "{}", axis=axis, seed=seed)
    return estimate(model, x, horizon, protocol, steps=steps, budget=budget, stream=stream).matrix


def estimate(
    model: Forecaster,
    x: Tensor,
    horizon: int,
    protocol: Protocol,
    *,
    steps: Sequence[int] | None = None,
    budget: MemoryBudget | None = None,
    stream: int = 0,
    signed: bool = False,
) -> Estimate:
    """`explain` under a protocol, with what a record stores besides the matrix.

    The same under `no_grad` and `inference_mode`; the windows and torch's global state stay as they were.
    """
    estimator = find_estimator(protocol.estimator)
    if x.ndim not in (2, 3) or not len(x):
        raise ProtocolError(f"Windows have the shape (windows, lookback[, channels]), not {tuple(x.shape)}.")
    refuse_infinite(x)
    if x.ndim == 3 and not estimator.multivariate:
        several = ", ".join(known.name for known in BUILT_IN.values() if known.multivariate)
        raise ProtocolError(
            f"{estimator.name} explains windows of one variate, not of {x.shape[-1]}. The gradient estimators take "
            f"several: {several}."
        )
    if model.sections and len(model.sections) > 1 and not estimator.several:
        several = ", ".join(known.name for known in BUILT_IN.values() if known.several)
        raise ProtocolError(
            f"{estimator.name} explains one series, not the {len(model.sections)} channels of this window. These take "
            f"several: {several}."
        )
    if not model.differentiable and estimator.needs_gradient:
        raise Inapplicable(
            f"{model.identity.model} has no derivatives, which {estimator.name} needs. Choose occlusion, "
            "shapley_segments, winit, or a function f(forward, x, step)."
        )
    estimated = estimated_steps(protocol, horizon, steps)
    with differentiable():
        x = plain(x)
        task = AttributionTask(model, x, horizon, estimated, budget or MemoryBudget(), protocol.seed, stream, signed)
        settings = estimator.settings.read(protocol.estimator_settings, estimator.name)
        try:
            rows = estimator.load()(task, settings)
        except RuntimeError as error:
            if "nference tensor" not in str(error):
                raise
            raise HrxError(
                f"{model.identity.model} holds tensors that were made under torch.inference_mode(), through which "
                "there is no gradient. Build or load the model outside of it."
            ) from error
    missing: Tensor = x.isnan()[:, None]
    if model.sections and bool(missing.any()):  # a missing value has no importance
        with_signs = None if rows.signed is None else rows.signed.masked_fill(missing, 0)
        rows = rows._replace(matrix=rows.matrix.masked_fill(missing, 0), signed=with_signs)
    return rows._replace(steps=estimated, settings=protocol.estimator_settings)


def refuse_infinite(x: Tensor) -> None:
    """Raises on an infinite value in the windows `(W, L[, C])`; NaN is left to the model, some take it as missing."""
    if (wrong := torch.isinf(x)).any():
        place = tuple(int(index) for index in wrong.nonzero()[0])
        raise ProtocolError(f"Windows: the value at {list(place)} is {float(x[place])}: {FINITE}")


def estimated_steps(protocol: Protocol, horizon: int, steps: Sequence[int] | None) -> tuple[int, ...]:
    """Return the steps that get a row, from 1: those asked for, or the estimator's; none for the whole forecast."""
    every_step = find_estimator(protocol.estimator).every_step
    if protocol.axis == "whole":
        if steps is not None:
            raise ProtocolError('axis="whole" gives one row for the whole forecast. Drop steps.')
        return ()
    if steps is None and every_step and horizon > MOST_ROWS:
        raise ProtocolError(
            f"horizon={horizon} has more than {MOST_ROWS} rows, which take very long. Give a shorter one, or choose "
            f"steps, as in steps=[1, {horizon}]."
        )
    if steps is None:
        return tuple((scored_steps(horizon, horizon if every_step else protocol.scored) + 1).tolist())
    if not len(steps) or not all(1 <= step <= horizon for step in steps):
        raise ProtocolError(f"steps={list(steps)} are not all within the horizon. Steps count from 1 to {horizon}.")
    return tuple(int(step) for step in steps)
