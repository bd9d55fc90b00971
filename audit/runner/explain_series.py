"""One forecast of one series, explained, and the audit of that reading on held-out windows of the same series."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import Forecaster, ModelError
from hrx.adapters.contract import ADAPTER_VERSION
from hrx.audit.admission.checks import admit
from hrx.audit.ledger.store import StoredCheck
from hrx.audit.memory import Budget
from hrx.audit.protocol import Protocol
from hrx.audit.runner.explained import ExplainedForecast
from hrx.audit.scoring.baselines import skill
from hrx.audit.scoring.score import Unscorable, explanation_of, score_in_full
from hrx.gift_eval import Series, Windows, cut
from hrx.gift_eval.windows import split, standardise

WINDOWS = 4


def read_series(
    model: Forecaster,
    series: Series,
    lookback: int,
    horizon: int,
    *,
    protocol: Protocol | None = None,
    labels: tuple[str, ...] | None = None,
) -> ExplainedForecast:
    """Explains the forecast that follows the end of the series.

    `labels` are the dates of all its values. Whether the explanation may be trusted is measured where the truth is
    known: on windows of the last fifth of the series, none of which is the window that is explained.
    """
    protocol, budget = protocol or Protocol(), Budget()
    if refusal := model.limits.refusal(lookback, horizon):
        raise ModelError(f"{model.identity.model} {refusal}.")
    held_out = cut(series, lookback, horizon, WINDOWS, 0)
    scale = standardise(series.values, split(len(series.values), horizon))
    last = torch.as_tensor(scale.values[-lookback:], dtype=torch.float32)[None]
    explanation = explanation_of(model, last, horizon, protocol, budget, stream=0)
    with torch.no_grad():
        forecast = model.forward(last, horizon)[0].double().numpy()
    windows = torch.as_tensor(held_out.x, dtype=torch.float32)
    identity = model.identity
    outline = ExplainedForecast(
        model=identity.model,
        checkpoint=identity.checkpoint,
        fingerprint=identity.fingerprint,
        library=identity.library,
        series=series.item,
        estimator=protocol.estimator,
        x=np.asarray(series.values[-lookback:]),
        forecast=forecast * scale.std + scale.mean,
        matrix=explanation.matrix[0].numpy(),
        steps=tuple(int(step) for step in explanation.steps),
        labels=None if labels is None else labels[-lookback:],
        windows=len(windows),
        checks=_checks(model, windows, horizon),
        skill=None,
        quantities=None,
    )
    return _measured(outline, model, windows, held_out, horizon, protocol, budget)


def _checks(model: Forecaster, windows: Tensor, horizon: int) -> tuple[StoredCheck, ...]:
    """The admission checks on those windows that are not flat."""
    who = model.identity
    about = (who.fingerprint, who.library, ADAPTER_VERSION, torch.__version__, who.model)
    moving = windows[windows.amax(dim=1) > windows.amin(dim=1)]
    if not len(moving):
        return ()
    found = admit(model, moving, horizon)
    return tuple(StoredCheck(*about, c.setting, c.check, c.passed, c.figure, c.limit, c.note) for c in found)


def _measured(
    outline: ExplainedForecast,
    model: Forecaster,
    windows: Tensor,
    held_out: Windows,
    horizon: int,
    protocol: Protocol,
    budget: Budget,
) -> ExplainedForecast:
    """The reading with its skill and its quantities, or with the reason why there are none."""
    try:
        scored = score_in_full(model, windows, horizon, protocol=protocol, budget=budget)
    except Unscorable as error:
        return replace(outline, unscored=str(error))
    found = skill(scored.forecast.double().numpy(), held_out.y, held_out.x[:, -1], held_out.seasonal)
    return replace(outline, skill=found, quantities=scored.quantities)
