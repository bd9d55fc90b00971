"""Chronos: the no-grad blocks of Chronos-Bolt, and Chronos-2 without the attention scores of groups of one series."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath, load
from hrx.adapters.families.chronos import Chronos2
from hrx.adapters.gradients import differentiable_input


@pytest.fixture(scope="module")
def model(checkpoints: dict[str, Path]) -> Any:
    return load(str(checkpoints["chronos-2"]))


def with_scores(model: Chronos2) -> Chronos2:
    """Return the same model with the library's own group attention."""
    other = copy.copy(model)
    other.univariate_pipeline = other.library
    return other


def test_no_grad_in_the_library_is_handled_and_reported(checkpoints: dict[str, Path]) -> None:
    with GradientPath() as path:
        load(str(checkpoints["chronos-bolt"])).forward(series(1, 96), 24)
    assert any(r.operation == "no_grad" and r.place.startswith("chronos/chronos_bolt.py:") for r in path.rewrites)


@pytest.mark.parametrize("horizon", [24, 96, 200])
@pytest.mark.parametrize(("windows", "lookback"), [(1, 96), (3, 100), (40, 512)])
def test_forecasts_have_the_bits_of_the_official_call_within_and_beyond_the_native_horizon(
    model: Chronos2, windows: int, lookback: int, horizon: int
) -> None:
    x = series(windows, lookback)
    with torch.no_grad():
        y = model.forward(x, horizon)
    assert torch.equal(y, with_scores(model).forward(x, horizon).detach())
    assert torch.equal(y, model.official(x, horizon))


def test_a_window_with_missing_patches_has_the_forecast_of_the_official_call(model: Chronos2) -> None:
    x = series(4, 96)
    x[0, :40] = torch.nan  # whole patches
    x[1, 50:53] = torch.nan
    with torch.no_grad():
        y = model.forward(x, 24)
    assert y.isfinite().all()
    torch.testing.assert_close(y, model.official(x, 24), rtol=1e-5, atol=1e-6)


def test_gradients_in_float64_equal_those_through_the_scores(model: Chronos2) -> None:
    def rows(twin: Forecaster) -> Tensor:
        with GradientPath():
            leaf, working = differentiable_input(series(3, 96).double())
            y = twin.forward(working, 24)
            return torch.stack([torch.autograd.grad(y[:, h].sum(), leaf, retain_graph=True)[0] for h in (0, 11, 23)])

    without, scored = model.double(), model.double()
    assert without is not None
    scored._base = with_scores(scored._base)  # type: ignore[union-attr]
    ours, expected = rows(without), rows(scored)  # type: ignore[arg-type]
    assert ours.abs().max() > 0
    assert (ours - expected).abs().max() <= 1e-12 * expected.abs().max()


def test_both_models_share_their_weights_and_the_official_one_keeps_its_attention(model: Chronos2) -> None:
    ours, theirs = model.univariate_pipeline.model, model.library.model
    addresses = {weight.data_ptr() for weight in theirs.parameters()}
    assert {weight.data_ptr() for weight in ours.parameters()} < addresses
    assert sum(w.numel() for w in ours.parameters()) < sum(w.numel() for w in theirs.parameters())
    assert model.unloaded() == ()


@pytest.mark.parametrize("family", ["chronos-2", "chronos-bolt"])
def test_forecasts_equal_those_of_the_librarys_data_frame_call(checkpoints: dict[str, Path], family: str) -> None:
    forecaster, x = load(str(checkpoints[family])), series(3, 96)
    times = pd.date_range("2020-01-01", periods=96, freq="h")
    frame = pd.concat(
        pd.DataFrame({"item_id": name, "timestamp": times, "target": window.numpy()})
        for name, window in zip("abc", x, strict=True)
    )
    library: Any = forecaster
    forecast = library.library.predict_df(frame, prediction_length=24, quantile_levels=[0.5])
    median = torch.tensor(forecast["0.5"].to_numpy(np.float32)).reshape(3, 24)
    torch.testing.assert_close(forecaster.forward(x, 24).detach(), median, rtol=1e-5, atol=1e-6)
