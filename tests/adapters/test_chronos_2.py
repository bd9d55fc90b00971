"""Chronos-2 without the scores of groups of one: forecasts of the same bits, on the same weights."""

import copy
from pathlib import Path

import pytest
import torch
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath, load
from hrx.adapters.chronos_2 import Chronos2
from hrx.adapters.gradients import differentiable_input


@pytest.fixture(scope="module")
def model(checkpoints: dict[str, Path]) -> Chronos2:
    found = load(str(checkpoints["chronos-2"]))
    assert isinstance(found, Chronos2)
    return found


def with_scores(model: Chronos2) -> Chronos2:
    """The same model with the library's own group attention."""
    other = copy.copy(model)
    other._apart = other._pipeline
    return other


@pytest.mark.parametrize("horizon", [24, 96, 200])
@pytest.mark.parametrize(("windows", "lookback"), [(1, 96), (3, 100), (40, 512)])
def test_forecasts_have_the_bits_of_the_official_call_within_and_beyond_the_native_length(
    model: Chronos2, windows: int, lookback: int, horizon: int
) -> None:
    x = series(windows, lookback)
    with torch.no_grad():
        found = model.forward(x, horizon)
    assert torch.equal(found, with_scores(model).forward(x, horizon).detach())
    assert torch.equal(found, model.official(x, horizon))


def test_a_window_with_missing_patches_has_the_forecast_of_the_official_call(model: Chronos2) -> None:
    x = series(4, 96)
    x[0, :40] = torch.nan  # whole patches
    x[1, 50:53] = torch.nan
    with torch.no_grad():
        found = model.forward(x, 24)
    assert found.isfinite().all()
    torch.testing.assert_close(found, model.official(x, 24), rtol=1e-5, atol=1e-6)


def rows(model: Forecaster, x: Tensor) -> Tensor:
    with GradientPath():
        leaf, working = differentiable_input(x)
        y = model.forward(working, 24)
        return torch.stack([torch.autograd.grad(y[:, h].sum(), leaf, retain_graph=True)[0] for h in (0, 11, 23)])


def test_gradients_in_float64_are_those_through_the_scores(model: Chronos2) -> None:
    x = series(3, 96).double()
    found, expected = model.double(), with_scores(model).double()
    assert found is not None
    # A twin is converted anew, without scores: they are put back into it.
    expected._converted._apart = expected._converted._pipeline  # type: ignore[union-attr]
    one, other = rows(found, x), rows(expected, x)  # type: ignore[arg-type]
    assert one.abs().max() > 0
    assert (one - other).abs().max() <= 1e-12 * other.abs().max()


def test_both_models_stand_on_the_same_weights_and_the_official_one_keeps_its_attention(model: Chronos2) -> None:
    ours, theirs = model._apart.model, model._pipeline.model
    places = {weight.data_ptr() for weight in theirs.parameters()}
    assert {weight.data_ptr() for weight in ours.parameters()} < places
    assert sum(w.numel() for w in ours.parameters()) < sum(w.numel() for w in theirs.parameters())
    assert model.unloaded() == ()
