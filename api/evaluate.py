"""`hrx.evaluate`: a model on GIFT-Eval's official windows, by its official call; `hrx evaluate` calls it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hrx import __version__
from hrx.adapters.contract import Forecaster, ModelError, Scale, library_errors
from hrx.adapters.inputs import Output, Window
from hrx.api.explain import Model, default_lookback
from hrx.api.explanation import as_forecaster, reads_own_unit
from hrx.errors import HrxError
from hrx.gift_eval import open_source
from hrx.gift_eval.catalogue import folders
from hrx.gift_eval.evaluation import chosen_configurations, forecasts, measure, official_test
from hrx.gift_eval.leaderboard import score as score_naive
from hrx.gift_eval.series import UnusableSeries
from hrx.records.evaluation import LEVELS, Evaluated, Evaluation
from hrx.records.ledger import utc_now

if TYPE_CHECKING:
    from hrx.gift_eval import Dataset
    from hrx.records.quantities import Floats


def evaluate(
    model: Model,
    data: str = "gift-eval",
    *,
    out: str | Path | None = None,
    report: Callable[[str], None] | None = None,
) -> Evaluation:
    """Evaluates a model on the official windows of every configuration that `data` holds.

    The model forecasts by its library's official call, in the unit of the series, from as much of each history as it
    reads: nine quantiles where that call gives them, else the point forecast. Metrics are computed by gluonts'
    evaluator, as on the leaderboard. With `out` the file is written after each configuration, and the same call goes on
    where it ended.

        e = hrx.evaluate("chronos-2", "gift-eval:us_births/D", out="evaluation.json")
        e.to_frame()    # the columns of the leaderboard's all_results.csv
    """
    forecaster = as_forecaster(model)
    datasets = [one for one in open_source(data) if one.name in {folder.name for folder in folders()}]
    if not datasets:
        raise HrxError(f"{data!r} holds no dataset of GIFT-Eval, and only these have official windows. Give gift-eval.")
    stored = _stored(out, forecaster)
    found: list[Evaluated] = []
    for dataset in datasets:
        for row in _evaluate(forecaster, dataset, stored, report or (lambda what: None)):
            found.append(row)
            others = [one for name, one in stored.items() if name not in {each.config for each in found}]
            if out is not None:
                _evaluation(forecaster, [*found, *others]).save(out)
    return _evaluation(forecaster, found)


def _stored(out: str | Path | None, model: Forecaster) -> dict[str, Evaluated]:
    """Configurations that were evaluated before, by name; refuses a file of other weights."""
    if out is None or not os.path.exists(out):
        return {}
    before = Evaluation.load(out)
    if before.fingerprint != model.identity.fingerprint:
        raise HrxError(
            f"{out} holds an evaluation of {before.model} (sha256 {before.fingerprint[:12]}), not of these weights. "
            "Give another file."
        )
    return {row.config: row for row in before.done} if before.hrx == __version__ else {}


def _evaluation(model: Forecaster, rows: list[Evaluated]) -> Evaluation:
    identity = model.identity
    about = identity.model, identity.checkpoint, identity.fingerprint, identity.library, model.official_call
    quantiles = _gives_quantiles(model)
    return Evaluation(*about, identity.weights_dtype or "float32", quantiles, __version__, utc_now(), tuple(rows))


def _evaluate(
    model: Forecaster, dataset: Dataset, stored: dict[str, Evaluated], report: Callable[[str], None]
) -> Iterator[Evaluated]:
    folder = next(one for one in folders() if one.name == dataset.name)
    chosen = chosen_configurations(dataset)
    if all(one.name in stored for one in chosen):
        yield from (stored[one.name] for one in chosen)
        return
    seasonal = {one.configuration: one.seasonal.mase for one in score_naive([dataset])}
    for one in chosen:
        if one.name in stored:
            yield stored[one.name]
            continue
        about = one.name, folder.domain, folder.variates
        try:
            test = official_test(dataset, one)
            report(f"{one.name}: forecasting {test.instances} windows")
            made = forecasts(test, partial(_forecast, model, dataset.season, one.prediction_length))
            with library_errors(model.identity.model, model.identity.library):
                metrics = measure(test, made, quantiles=_gives_quantiles(model))
            yield Evaluated(*about, test.windows, test.instances, metrics, seasonal[one.name])
        except (UnusableSeries, ModelError) as error:
            yield Evaluated(*about, 0, 0, {}, reason=str(error))


def _gives_quantiles(model: Forecaster) -> bool:
    return all(model.outputs.refusal(Output((level,))) is None for level in LEVELS)


def _forecast(model: Forecaster, season: int, horizon: int, histories: list[Floats]) -> Floats:
    """`(n, H, Q)`: official forecasts, of histories of one length together."""
    model = model.for_season(season)
    lengths = [
        default_lookback(model.limits, len(one), horizon, f"{model.identity.model}, at a history of {len(one)} values,")
        for one in histories
    ]
    made: list[Floats] = [np.empty(0)] * len(histories)
    for length in sorted(set(lengths)):
        at = [number for number, one in enumerate(lengths) if one == length]
        x = torch.as_tensor(np.stack([histories[number][-length:] for number in at]), dtype=torch.float32)
        for number, values in zip(at, _official(model, x, horizon).double().numpy(), strict=True):
            made[number] = values
    return np.stack(made)


@torch.no_grad()
def _official(model: Forecaster, x: torch.Tensor, horizon: int) -> torch.Tensor:
    """`(B, L) -> (B, H, Q)` by the official call, in the unit of `x`."""
    if model.scale == "standardised":  # by what each history says, since nothing else is known when it is forecast
        mean, std = x.mean(dim=1, keepdim=True), x.std(dim=1, keepdim=True).clamp(min=1e-8)
        return model.official((x - mean) / std, horizon)[..., None] * std[..., None] + mean[..., None]
    if isinstance(model.scale, Scale):
        return reads_own_unit(model, 1, model.scale).official(x, horizon)[..., None]
    if _gives_quantiles(model):
        return model.official_window(Window(x[..., None]), horizon, list(LEVELS))[:, :, 0]
    return model.official(x, horizon)[..., None]
