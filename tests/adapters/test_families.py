"""Every family against its library's official call, on tiny checkpoints in the official format."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.tiny import FAMILIES, hard_windows, series

from hrx.adapters import Forecaster, ModelError, load
from hrx.adapters.gradients import GradientPath, differentiable_input, relative_difference
from hrx.audit.runner.plan import STAR, Setting

ODD = (Setting(100, 30), Setting(17, 5), Setting(333, 100), Setting(512, 250))


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, checkpoints: dict[str, Path]) -> Forecaster:
    return load(str(checkpoints[request.param]))


@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_forward_equals_the_official_call(model: Forecaster, setting: Setting) -> None:
    x = series(3, setting.lookback)
    leaf, working = differentiable_input(x)
    ours = model.forward(working, setting.horizon)
    official = model.official(x, setting.horizon)
    assert ours.requires_grad
    assert official.shape == (3, setting.horizon)
    assert not official.requires_grad
    assert relative_difference(ours.detach(), official) <= 1e-6
    assert leaf.shape == x.shape


def test_forward_without_gradients_is_the_same_forecast(model: Forecaster) -> None:
    x = series(2, 96)
    with torch.no_grad():
        y = model.forward(x, 24)
    assert not y.requires_grad
    assert relative_difference(y, model.official(x, 24)) <= 1e-6


@pytest.mark.parametrize("name", ["flat", "zeros", "flat patches", "far from zero", "huge", "tiny"])
def test_hard_windows_keep_parity_and_finite_gradients(model: Forecaster, name: str) -> None:
    x = hard_windows()[name]
    with GradientPath():
        leaf, working = differentiable_input(x)
        y = model.forward(working, 24)
        (gradient,) = torch.autograd.grad(y.sum(), leaf)
    assert relative_difference(y.detach(), model.official(x, 24)) <= 1e-6
    assert torch.isfinite(gradient).all()


def test_the_callers_data_is_left_alone(model: Forecaster) -> None:
    x = series(2, 96)
    before = x.clone()
    model.forward(x, 120)
    model.official(x, 120)
    assert torch.equal(x, before)


def test_a_forecast_does_not_depend_on_the_windows_beside_it(model: Forecaster) -> None:
    x = series(6, 96)
    alone = torch.cat([model.official(window[None], 48) for window in x])
    assert relative_difference(model.official(x, 48), alone) <= 1e-6


def test_every_parameter_is_the_files_own(model: Forecaster) -> None:
    assert model.unloaded() == ()


def test_the_float64_twin_makes_the_same_forecast_in_float64(model: Forecaster) -> None:
    x, twin = series(2, 96), model.double()
    assert twin is not None
    forecast = twin.official(x.double(), 120)
    assert forecast.dtype == torch.float64
    assert relative_difference(forecast, model.official(x, 120).double()) <= 1e-4
    assert torch.get_default_dtype() == torch.float32
    assert model.official(x, 8).dtype == torch.float32


def test_a_window_beyond_the_context_is_refused_in_words(model: Forecaster) -> None:
    with pytest.raises(ModelError, match="lookback of at most 512, not 513"):
        model.forward(series(1, 513), 24)


@pytest.mark.parametrize("x", [torch.zeros(96), torch.zeros(2, 96, 1), torch.zeros(2, 96, dtype=torch.int64)])
def test_a_wrong_shape_is_refused_in_words(model: Forecaster, x: torch.Tensor) -> None:
    with pytest.raises(ModelError, match=r"expects a floating-point tensor of shape \(batch, lookback\)"):
        model.forward(x, 24)


def test_no_grad_in_the_library_is_found_and_reported(checkpoints: dict[str, Path]) -> None:
    model = load(str(checkpoints["chronos-bolt"]))
    with GradientPath() as path:
        model.forward(series(1, 96), 24)
    assert any(r.operation == "no_grad" and r.place.startswith("chronos/chronos_bolt.py:") for r in path.rewrites)


@pytest.mark.parametrize(("family", "others"), [("chronos-bolt", ["tsfm_public"]), ("ttm", ["chronos"])])
def test_loading_a_family_imports_no_other_familys_library(
    checkpoints: dict[str, Path], family: str, others: list[str]
) -> None:
    code = f"import sys; from hrx.adapters import load; load({str(checkpoints[family])!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(others) & set(done.stdout.split())
