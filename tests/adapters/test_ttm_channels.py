"""Fine-tunes of TTM that read several channels, some of them known ahead, and the quantiles of TTM-r3."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny, tiny_granite
from helpers.covariates import Mistaken, bound, derivative_error, window

from hrx.adapters import Forecaster, ModelError, load
from hrx.adapters.inputs import Window
from hrx.audit.admission import DERIVATIVE_LIMIT, EQUIVALENCE_LIMIT, parity

pytest.importorskip("tsfm_public", reason="needs the extra ttm")

CONTEXT = 3
"""Steps before and after its own that a value known ahead reaches in these fine-tunes."""
ORDERS: dict[str, dict[str, Any]] = {
    "the order of the pipeline": {"prediction_channel_indices": [0], "exogenous_channel_indices": [1, 2]},
    "another order": {"prediction_channel_indices": [2], "exogenous_channel_indices": [0, 3]},
}


def fine_tuned(path: Path, **channels: Any) -> Forecaster:
    mixing = {"enable_forecast_channel_mixing": True, "fcm_context_length": CONTEXT}
    more = mixing if "exogenous_channel_indices" in channels else {}
    return load(str(tiny.ttm(path / "tuned", num_input_channels=4, decoder_mode="mix_channel", **more, **channels)))


@pytest.mark.parametrize("order", ORDERS)
def test_exogenous_channels_equal_the_official_call_and_reach_a_few_steps(tmp_path: Path, order: str) -> None:
    model = fine_tuned(tmp_path, **ORDERS[order])
    for lookback in (128, 512):
        given = window(lookback, 96, past=1, future=2)
        call, x = bound(model, given, 96)
        assert parity(call, x, 96) <= EQUIVALENCE_LIMIT
    assert derivative_error(call, x, 96) <= DERIVATIVE_LIMIT
    future = given.future.clone()
    future[:, 512 + 40] += 50
    y, moved = (model.official_window(one, 96, ["point"]) for one in (given, replace(given, future=future)))
    steps = (moved != y).any(dim=0).flatten().nonzero().flatten().tolist()
    assert steps == list(range(40 - CONTEXT, 40 + CONTEXT + 1))


def test_channels_that_are_not_forecast_are_past_covariates(tmp_path: Path) -> None:
    model = fine_tuned(tmp_path, prediction_channel_indices=[0, 1])
    for lookback, horizon in ((128, 96), (512, 24)):
        given = window(lookback, horizon, targets=2, past=2)
        call, x = bound(model, given, horizon)
        assert parity(call, x, horizon) <= EQUIVALENCE_LIMIT
    assert derivative_error(call, x, horizon) <= DERIVATIVE_LIMIT
    other = replace(given, past=given.past.flip(1))
    y, moved = (model.official_window(one, horizon, ["point"]) for one in (given, other))
    assert (moved != y).all()


def _late(given: Window) -> Window:
    return replace(given, future=given.future.roll(1, 1))


def _scaled(given: Window) -> Window:
    return replace(given, future=given.future * 1.1)


def _swapped(given: Window) -> Window:
    return replace(given, future=given.future.flip(-1))


@pytest.mark.parametrize("mistake", [_late, _scaled, _swapped])
def test_parity_finds_a_mistake_in_an_exogenous_channel(tmp_path: Path, mistake: Any) -> None:
    model, given = fine_tuned(tmp_path, **ORDERS["the order of the pipeline"]), window(128, 96, past=1, future=2)
    assert parity(*bound(Mistaken(model, mistake), given, 96), 96) > EQUIVALENCE_LIMIT


def test_what_does_not_fit_the_fine_tune_gets_a_sentence(tmp_path: Path) -> None:
    model = fine_tuned(tmp_path, **ORDERS["another order"])
    with pytest.raises(
        ModelError, match="reads the future values of 2 exogenous channels: name their columns with fut"
    ):
        model.forward(torch.zeros(1, 128, 4), 96)
    with pytest.raises(ModelError, match="reads exogenous values of all its 96 steps, and forecasts these, not 24"):
        bound(model, window(128, 24, past=1, future=2), 24)
    with pytest.raises(ModelError, match="needs its past covariates"):
        bound(model, window(128, 96, future=2), 96)
    call, x = bound(model, window(128, 96, past=1, future=1), 96)
    with pytest.raises(ModelError, match="reads 2 future covariates, not 1: name as many columns"):
        call.forward(x, 96)


@pytest.mark.parametrize("build", [tiny_granite.ttm_r3, tiny_granite.ttm_decomposed])
def test_quantiles_of_ttm_r3_equal_the_pipeline(tmp_path: Path, build: Any) -> None:
    model = load(str(build(tmp_path / "r3")))
    for lookback, horizon in ((512, 96), (128, 24)):
        given = window(lookback, horizon)
        for output in ("point", 0.9, (0.1, 0.9)):
            call, x = bound(model, given, horizon, output)
            assert parity(call, x, horizon) <= EQUIVALENCE_LIMIT, (output, lookback)
    assert derivative_error(call, x, horizon) <= DERIVATIVE_LIMIT
    call, x = bound(model, window(128, 120), 120, 0.9)
    with pytest.raises(ModelError, match="gives quantiles of its first 96 steps only, not of 120"):
        call.forward(x, 120)
