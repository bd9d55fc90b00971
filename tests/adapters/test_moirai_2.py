"""Moirai-2.0: its in-place scaler, gaps, recursion over quantile paths, and refusals; the rest is in test_families."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import QUANTILES, forecast_and_gradient, moirai_2, series
from torch import Tensor
from uni2ts.model.moirai2 import Moirai2Forecast, Moirai2Module

from hrx.adapters import Forecaster, ModelError, load
from hrx.adapters.gradients import GradientPath, differentiable_input, relative_difference

NATIVE = 64
"""Steps of one pass: four patches of 16."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moirai_2(tmp_path_factory.mktemp("moirai") / "tiny")


@pytest.fixture(scope="module")
def model(path: Path) -> Forecaster:
    return load(str(path))


def library(path: Path, lookback: int, horizon: int) -> Moirai2Forecast:
    """Call the library by itself, without the adapter."""
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


def test_the_official_call_is_the_librarys_median(model: Forecaster, path: Path) -> None:
    x = series(2, 96)
    assert torch.equal(model.official(x, 80), quantiles(path, x, 80)[:, QUANTILES.index(0.5)])


def test_a_window_of_one_value_has_the_official_forecast(model: Forecaster) -> None:
    x = series(5, 1)
    assert relative_difference(model.forward(x, 1), model.official(x, 1)) <= 1e-6


def test_backward_needs_the_gradient_path_because_the_scaler_writes_in_place(model: Forecaster) -> None:
    leaf, working = differentiable_input(series(1, 96))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model.predict(working, 24).sum().backward()
    with GradientPath() as path:
        leaf, working = differentiable_input(series(1, 96))
        model.forward(working, 24).sum().backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert "uni2ts/module/packed_scaler.py:121" in {rewrite.place for rewrite in path.rewrites}


def test_gaps_are_filled_as_in_the_library_and_get_no_gradient(model: Forecaster) -> None:
    x = series(2, 96)
    x[0, 40:50] = torch.nan
    x[1, :20] = torch.nan
    y, slope = forecast_and_gradient(model, x, 24)
    assert torch.isfinite(y).all()
    assert relative_difference(y, model.official(x, 24)) <= 1e-6
    assert relative_difference(y, model.official(x.nan_to_num(0.0), 24)) > 1e-3
    assert torch.isfinite(slope).all()
    assert not slope[x.isnan()].any()


def test_the_callers_gaps_are_kept_although_the_library_overwrites_them(model: Forecaster, path: Path) -> None:
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
    steps = [quantiles(path, x, NATIVE)]
    for _ in range(2):
        contexts = [torch.cat([x, *(step[:, q] for step in steps)], dim=-1) for q in range(9)]
        each = torch.cat([quantiles(path, context, NATIVE) for context in contexts], dim=1)
        steps.append(torch.quantile(each, torch.tensor(QUANTILES), dim=1).transpose(0, 1))
    slow = torch.cat(steps, dim=-1)[:, QUANTILES.index(0.5)]
    assert relative_difference(model.forward(x, 3 * NATIVE), slow) <= 1e-5

    # Feeding only the median back is another forecast.
    median = quantiles(path, x, NATIVE)[:, 4]
    next_median = quantiles(path, torch.cat([x, median], dim=-1), NATIVE)[:, 4]
    assert relative_difference(next_median, slow[:, NATIVE : 2 * NATIVE]) > 1e-3


def test_a_forecast_beyond_the_position_table_does_not_change_later_ones(path: Path) -> None:
    # The library extends its table of positions on demand and keeps it.
    model, x = load(str(path)), series(2, 512)
    before = model.official(x, 24)
    model.official(x, 250)
    assert torch.equal(model.official(x, 24), before)


def test_loading_prints_nothing_to_standard_error(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(str(path))
    assert capsys.readouterr().err == ""


def test_a_checkpoint_without_the_median_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = moirai_2(tmp_path / "tiny")
    config = json.loads((path / "config.json").read_text())
    config["quantile_levels"][4] = 0.51
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="the median is not among them"):
        load(str(path))
