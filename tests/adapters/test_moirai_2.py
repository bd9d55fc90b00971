"""Moirai-2.0 against uni2ts's official call, on a tiny checkpoint in the official format."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import QUANTILES, hard_windows, series
from helpers.tiny_moirai import moirai_2
from safetensors.torch import load_file, save_file
from torch import Tensor
from uni2ts.model.moirai2 import Moirai2Forecast, Moirai2Module

from hrx.adapters import Forecaster, ModelError
from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Identity
from hrx.adapters.gradients import GradientPath, differentiable_input, relative_difference
from hrx.adapters.moirai_2 import load
from hrx.audit.admission.checks import admit
from hrx.audit.runner.plan import STAR, Setting

ODD = (Setting(100, 30), Setting(17, 5), Setting(333, 100), Setting(512, 250), Setting(1, 1), Setting(64, 65))
NATIVE = 64
"""Steps that one pass makes: four patches of 16."""


def opened(path: Path) -> Forecaster:
    checkpoint = Checkpoint(path, "tiny", "tiny")
    return load(checkpoint, Identity("tiny", "moirai-2", "tiny", checkpoint.fingerprint, "uni2ts 2.0.0"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moirai_2(tmp_path_factory.mktemp("moirai") / "tiny")


@pytest.fixture(scope="module")
def model(path: Path) -> Forecaster:
    return opened(path)


def library(path: Path, lookback: int, horizon: int) -> Moirai2Forecast:
    """The library by itself, with no line of the adapter in between."""
    return Moirai2Forecast(
        module=Moirai2Module.from_pretrained(path),
        prediction_length=horizon,
        context_length=lookback,
        target_dim=1,
        feat_dynamic_real_dim=0,
        past_feat_dynamic_real_dim=0,
    )


def quantiles(path: Path, x: Tensor, horizon: int) -> Tensor:
    """`(B, L) -> (B, 9, H)`."""
    return torch.from_numpy(library(path, x.shape[1], horizon).predict(list(x.clone().numpy())))


def gradient(model: Forecaster, x: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
    """The forecast, and the gradient of its sum."""
    with GradientPath():
        leaf, working = differentiable_input(x)
        y = model.forward(working, horizon)
        return y.detach(), torch.autograd.grad(y.sum(), leaf)[0]


@pytest.mark.parametrize("windows", [1, 5])
@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_forward_equals_the_official_call_and_has_finite_gradients(
    model: Forecaster, setting: Setting, windows: int
) -> None:
    x = series(windows, setting.lookback)
    ours, slope = gradient(model, x, setting.horizon)
    official = model.official(x, setting.horizon)
    assert official.shape == (windows, setting.horizon)
    assert relative_difference(ours, official) <= 1e-6
    assert torch.isfinite(slope).all()
    assert slope.any()


def test_the_official_call_is_the_librarys_median(model: Forecaster, path: Path) -> None:
    x = series(2, 96)
    assert torch.equal(model.official(x, 80), quantiles(path, x, 80)[:, QUANTILES.index(0.5)])


def test_forward_without_gradients_is_the_same_forecast(model: Forecaster) -> None:
    x = series(2, 96)
    with torch.no_grad():
        y = model.forward(x, 24)
    assert not y.requires_grad
    assert relative_difference(y, model.official(x, 24)) <= 1e-6


@pytest.mark.parametrize("horizon", [24, 100])
@pytest.mark.parametrize("name", ["flat", "zeros", "flat patches", "far from zero", "huge", "tiny"])
def test_hard_windows_keep_parity_and_finite_gradients(model: Forecaster, name: str, horizon: int) -> None:
    x = hard_windows()[name]
    y, slope = gradient(model, x, horizon)
    assert relative_difference(y, model.official(x, horizon)) <= 1e-6
    assert torch.isfinite(slope).all()


def test_backward_needs_the_gradient_path_because_the_scaler_writes_in_place(model: Forecaster) -> None:
    leaf, working = differentiable_input(series(1, 96))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model.predict(working, 24).sum().backward()
    with GradientPath() as found:
        leaf, working = differentiable_input(series(1, 96))
        model.forward(working, 24).sum().backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert "uni2ts/module/packed_scaler.py:121" in {rewrite.place for rewrite in found.rewrites}


def test_gaps_are_read_as_the_library_reads_them_and_get_no_gradient(model: Forecaster) -> None:
    x = series(2, 96)
    x[0, 40:50] = torch.nan
    x[1, :20] = torch.nan
    y, slope = gradient(model, x, 24)
    assert torch.isfinite(y).all()
    assert relative_difference(y, model.official(x, 24)) <= 1e-6
    assert relative_difference(y, model.official(x.nan_to_num(0.0), 24)) > 1e-3
    assert torch.isfinite(slope).all()
    assert not slope[x.isnan()].any()


def test_the_callers_data_is_left_alone_although_the_library_overwrites_it(model: Forecaster, path: Path) -> None:
    x = series(2, 96)
    x[:, 40:50] = torch.nan
    before = x.clone()
    model.official(x, 120)
    model.forward(x, 120)
    assert torch.equal(x.isnan(), before.isnan())
    assert torch.equal(x.nan_to_num(), before.nan_to_num())
    given = x.numpy().copy()
    library(path, 96, 24).predict(list(given))
    assert not np.isnan(given).any()


def test_a_long_forecast_recurses_over_nine_quantile_paths(model: Forecaster, path: Path) -> None:
    x = series(2, 96)
    paths = quantiles(path, x, NATIVE)
    steps = [paths]
    for _ in range(2):
        contexts = [torch.cat([x, *(step[:, q] for step in steps)], dim=-1) for q in range(9)]
        each = torch.cat([quantiles(path, context, NATIVE) for context in contexts], dim=1)
        steps.append(torch.quantile(each, torch.tensor(QUANTILES), dim=1).transpose(0, 1))
    slow = torch.cat(steps, dim=-1)[:, QUANTILES.index(0.5)]
    assert relative_difference(model.forward(x, 3 * NATIVE), slow) <= 1e-5

    # Feeding the median back alone is another forecast.
    median = quantiles(path, x, NATIVE)[:, 4]
    next_median = quantiles(path, torch.cat([x, median], dim=-1), NATIVE)[:, 4]
    assert relative_difference(next_median, slow[:, NATIVE : 2 * NATIVE]) > 1e-3


def test_a_forecast_beyond_the_position_table_leaves_later_ones_unchanged(path: Path) -> None:
    # The library extends its table of positions on demand and keeps it.
    model, x = opened(path), series(2, 512)
    before = model.official(x, 24)
    model.official(x, 250)
    assert torch.equal(model.official(x, 24), before)


def test_a_forecast_does_not_depend_on_the_windows_beside_it(model: Forecaster) -> None:
    x = series(6, 96)
    alone = torch.cat([model.official(window[None], 120) for window in x])
    assert relative_difference(model.official(x, 120), alone) <= 1e-6


def test_every_parameter_is_the_files_own(model: Forecaster) -> None:
    assert model.unloaded() == ()


def test_a_parameter_missing_from_the_file_is_named_although_the_library_loads_it(path: Path, tmp_path: Path) -> None:
    headless = shutil.copytree(path, tmp_path / "headless")
    kept = load_file(headless / "model.safetensors")
    del kept["out_proj.output_layer.weight"]
    save_file(kept, headless / "model.safetensors")
    broken = opened(headless)
    assert broken.unloaded() == ("out_proj.output_layer.weight",)
    (check,) = (c for c in admit(broken, series(1, 96), 12) if c.check == "trained head")
    assert not check.passed
    assert check.figure == 1


def test_loading_prints_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened(path)
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_the_float64_twin_makes_the_same_forecast_in_float64(model: Forecaster) -> None:
    x, twin = series(2, 96), model.double()
    assert twin is not None
    forecast = twin.official(x.double(), 120)
    assert forecast.dtype == torch.float64
    assert relative_difference(twin.forward(x.double(), 120), forecast) <= 1e-12
    assert relative_difference(forecast, model.official(x, 120).double()) <= 1e-4
    assert torch.get_default_dtype() == torch.float32
    assert model.official(x, 8).dtype == torch.float32


def test_a_window_beyond_the_declared_length_is_refused_in_words(model: Forecaster) -> None:
    with pytest.raises(ModelError, match="lookback of at most 512, not 513"):
        model.forward(series(1, 513), 24)


def test_a_checkpoint_without_the_median_is_refused_in_words(tmp_path: Path) -> None:
    path = moirai_2(tmp_path / "tiny")
    config = json.loads((path / "config.json").read_text())
    config["quantile_levels"][4] = 0.51
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="the median is not among them"):
        opened(path)


@pytest.mark.parametrize(
    ("setting", "windows"), [(Setting(96, 24), 2), (Setting(512, 96), 1), (Setting(512, 192), 1)], ids=str
)
def test_all_five_checks_admit_the_checkpoint_in_float64(model: Forecaster, setting: Setting, windows: int) -> None:
    checks = admit(model, series(windows, setting.lookback), setting.horizon)
    assert len(checks) == 5
    assert all(check.passed for check in checks), checks
    assert "float64" in checks[-1].note
