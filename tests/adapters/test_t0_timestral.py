"""What is special about T0 and Timestral: continued forecasts, gaps, clipping, flat beginnings, bad checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny, tiny_t0_timestral
from helpers.tiny import forecast_and_gradient, series
from safetensors.torch import load_file, save_file

from hrx.adapters import GradientPath, ModelError, load
from hrx.adapters.gradients import differentiable_input, relative_difference
from hrx.audit.admission import admit_channels

if "t0" not in tiny.families():
    pytest.skip("runs in the main environment", allow_module_level=True)

BUILD = tiny_t0_timestral.FAMILIES


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("models")
    return {name: load(str(build(root / name))) for name, build in BUILD.items()}


def derivative_error(model: Any, x: torch.Tensor, horizon: int, step: float = 1e-5) -> float:
    """Relative error in float64 of the derivative of a random sum of the forecast along a random direction.

    It is compared with central differences of the official call.
    """
    twin, x, generator = model.double(), x.double(), torch.Generator().manual_seed(0)
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    weights = torch.randn(len(x), horizon, generator=generator, dtype=x.dtype)
    with GradientPath():
        leaf, working = differentiable_input(x)
        (slope,) = torch.autograd.grad((twin.forward(working, horizon) * weights).sum(), leaf)
    ahead, behind = ((twin.official(x + sign * step * direction, horizon) * weights).sum() for sign in (1, -1))
    return relative_difference((slope * direction).sum(), (ahead - behind) / (2 * step))


@pytest.mark.parametrize(
    "conventions",
    [
        {"quantile_levels": (0.1, 0.25, 0.5, 0.75, 0.9), "scaler_eps": 0.1, "scaler_eps_mode": "variance_offset"},
        {"xpos_scale_layout": "halves", "scaler_zero_no_value": False},
        {"quantile_levels": (0.2, 0.45, 0.7), "group_every_n": -1, "patch_size": 16},
    ],
    ids=["t0-alpha", "t0-gamma", "levels without the median"],
)
def test_t0_runs_under_the_conventions_of_its_configuration(conventions: dict[str, Any], tmp_path: Path) -> None:
    model: Any = load(str(BUILD["t0"](tmp_path / "model", **conventions)))
    model.module.max_horizon = 32
    x = series(2, 50)
    for horizon in (20, 70):
        assert relative_difference(forecast_and_gradient(model, x, horizon)[0], model.official(x, horizon)) == 0
    assert derivative_error(model, x, 40) < 1e-6


def test_the_median_of_t0_beyond_one_pass_is_that_of_the_default_levels(models: dict[str, Any]) -> None:
    model, x = models["t0"].reload(), series(2, 64)
    model.module.max_horizon = 32
    y, slope = forecast_and_gradient(model, x, 100)
    assert torch.equal(y, model.official(x, 100))
    assert slope.isfinite().all()
    other = model.module.predict(x, 100, quantile_levels=[0.5]).median
    assert torch.equal(y[:, :32], other[:, :32])
    assert relative_difference(y[:, 32:], other[:, 32:]) > 1e-3
    assert derivative_error(model, x, 70) < 1e-6


@pytest.mark.parametrize("family", BUILD)
def test_a_missing_value_is_left_out_by_forward_as_by_the_official_call(models: dict[str, Any], family: str) -> None:
    model, x = models[family], series(2, 100)
    x[0, :40], x[1, 60:64] = torch.nan, torch.nan
    y, slope = forecast_and_gradient(model, x, 70)
    assert torch.equal(y, model.official(x, 70))
    assert y.isfinite().all()
    assert slope[x.isfinite()].isfinite().all()
    assert not slope[x.isnan()].any()


@pytest.mark.parametrize("family", BUILD)
def test_the_channels_of_a_window_are_forecast_together(models: dict[str, Any], family: str) -> None:
    alone, joint = models[family], models[family].multivariate()
    x = torch.stack([series(2, 40, seed) for seed in range(3)], dim=2)
    y = joint.forward(x, 36)
    assert y.shape == (2, 36, 3)
    assert torch.equal(y, joint.official(x, 36))
    other = x.clone()
    other[..., 1] += torch.linspace(0, 1, 40)
    assert relative_difference(joint.official(other, 36)[..., 0], y[..., 0]) > 1e-4
    assert relative_difference(alone.official(x[..., 0], 36), y[..., 0]) > 1e-4
    assert [check for check in admit_channels(joint, x[:1], 4) if not check.passed] == []


def test_timestral_clips_the_forecast_of_a_window_without_negative_values(models: dict[str, Any]) -> None:
    model, x = models["timestral"], series(4, 96)
    falling = x - x.amin(dim=1, keepdim=True) + torch.linspace(3, 0, 96).square()
    clipped, free = model.official(falling, 24), model.official(falling - 1e-3 - falling.min(), 24)
    y, slope = forecast_and_gradient(model, falling, 24)
    assert torch.equal(y, clipped)
    assert (clipped == 0).any()
    assert (free < 0).any()
    assert slope.isfinite().all()


def test_the_large_gradients_of_a_window_that_starts_flat_are_true(models: dict[str, Any]) -> None:
    model, x = models["timestral"], series(1, 96)
    x[:, :32] = 0.5
    _, slope = forecast_and_gradient(model, x, 24)
    assert slope[:, :32].abs().max() > 1e4 * slope[:, 32:].abs().max()
    # The first patch is divided by 1e-6, so steps must be far shorter than that.
    assert derivative_error(model, x, 24, step=1e-10) < 1e-3


def changed(family: str, path: Path, **values: object) -> str:
    """A checkpoint whose configuration has other values; None removes the key."""
    file = BUILD[family](path) / "config.json"
    config = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return str(path)


@pytest.mark.parametrize(
    ("family", "values", "sentence"),
    [
        ("t0", {"quantile_levels": [0.8, 0.6]}, r"tfc-t0 could not load .* quantile_levels must be sorted"),
        ("t0", {"num_heads": None}, r"tfc-t0 could not load .* 'num_heads'.* Check that the directory is complete"),
        ("timestral", {"context": 512}, r"timecopilot-timestral could not load .* unknown config keys: \['context'\]"),
        ("timestral", {"d_model": 64}, r"timecopilot-timestral could not load .* size mismatch"),
    ],
)
def test_a_bad_configuration_gets_a_sentence(
    family: str, values: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=sentence):
        load(changed(family, tmp_path / "bad", **values))


def test_levels_without_a_median_that_the_library_can_form_are_refused(tmp_path: Path) -> None:
    above = BUILD["t0"](tmp_path / "above", quantile_levels=(0.6, 0.8))
    with pytest.raises(
        ModelError, match=r"above forecasts the quantiles \(0\.6, 0\.8\), which do not enclose the median"
    ):
        load(str(above))
    uneven = BUILD["timestral"](tmp_path / "uneven", quantile_knots=(0.1, 0.5, 0.8))
    with pytest.raises(
        ModelError, match=r"uneven forecasts the quantiles \(0\.1, 0\.5, 0\.8\), which are not symmetric"
    ):
        load(str(uneven))


@pytest.mark.parametrize("family", BUILD)
def test_damaged_and_missing_weights_get_a_sentence(family: str, tmp_path: Path) -> None:
    weights = BUILD[family](tmp_path / "model") / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged"):
        load(str(weights.parent))
    weights.unlink()
    with pytest.raises(ModelError, match="has no weights"):
        load(str(weights.parent))


def test_timestral_without_a_tensor_is_refused_by_its_library(tmp_path: Path) -> None:
    file = BUILD["timestral"](tmp_path / "model") / "model.safetensors"
    tensors = load_file(file)
    del tensors["head.projection.output_layer.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"could not load .* Missing key\(s\) in state_dict: \"head\.projection"):
        load(str(file.parent))
