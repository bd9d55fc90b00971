"""Behaviour that every family shares, on tiny checkpoints in the official format.

Runs in every environment with the families that it can import; what is special about a family has a file of its own.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import HARD, families, forecast_and_gradient, hard_windows, series

from hrx.adapters import ModelError, load
from hrx.adapters.gradients import relative_difference
from hrx.audit.admission import admit
from hrx.audit.runner.plan import STAR, Setting

FAMILIES = families()
ODD = (Setting(100, 30), Setting(17, 5), Setting(333, 100), Setting(512, 250), Setting(64, 65))
GENERATING = ("timer", "timemoe")
CHECKED_AT = {
    "timemoe": [(96, 24), (48, 96)],
    "t0": [(96, 24)],
    "timestral": [(96, 72)],  # beyond one block of its tiny checkpoint
    "visionts": [(96, 24)],
    "timesfm-2.5-hf": [(96, 24), (512, 96)],
    "patchtst-fm": [(96, 24)],
    "flowstate": [(96, 48)],
    "ttm-decomposed": [(96, 24)],
    "tirex-2": [(96, 24)],
    "toto-2": [(96, 24), (512, 96)],
}
"""Settings at which all admission checks run, for families that are checked at fewer than the others."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Iterator[str]:
    with FAMILIES[request.param].context():
        yield request.param


@pytest.fixture(scope="module")
def path(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[family].build(tmp_path_factory.mktemp("tiny") / family)


@pytest.fixture(scope="module")
def model(path: Path) -> Any:
    return load(str(path))


def reachable(model: Any, horizon: int) -> int:
    """Horizon, or the longest one of a model without steps beyond its native horizon."""
    return min(horizon, model.limits.longest_horizon or horizon)


def parity_limit(family: str, horizon: int) -> float:
    if family == "timer":  # the first patch is the same computation; beyond it the official call has no cache
        return 0.0 if horizon <= 96 else 2e-6
    if family == "timemoe":
        from hrx.adapters.families.timer_timemoe import GeneratingForecaster

        return 1e-6 if GeneratingForecaster.generates else 5e-6
    return 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_forward_equals_the_official_call_and_has_finite_gradients(family: str, model: Any, setting: Setting) -> None:
    if reason := model.limits.refusal(setting.lookback, setting.horizon):
        pytest.skip(reason)
    for windows in (1, 5):
        x = series(windows, setting.lookback)
        y, slope = forecast_and_gradient(model, x, setting.horizon)
        official = model.official(x, setting.horizon)
        assert official.shape == (windows, setting.horizon)
        assert not official.requires_grad
        assert official.isfinite().all()
        assert relative_difference(y, official) <= parity_limit(family, setting.horizon)
        assert slope.isfinite().all()
        assert slope.any()


@pytest.mark.parametrize("horizon", [24, 140])
@pytest.mark.parametrize("name", HARD)
def test_hard_windows_keep_parity_and_finite_gradients(family: str, model: Any, name: str, horizon: int) -> None:
    x, horizon = hard_windows(192 if family == "timer" else 96)[name], reachable(model, horizon)
    y, slope = forecast_and_gradient(model, x, horizon)
    assert relative_difference(y, model.official(x, horizon)) <= parity_limit(family, horizon)
    assert slope.isfinite().all()
    # Timer and TimeMoE divide by the standard deviation, and their libraries return NaN for flat windows.
    no_forecast = (x.std(dim=1) == 0) & (family in GENERATING)
    assert torch.equal(y.isnan(), no_forecast[:, None].expand_as(y))


def test_forward_without_gradients_is_the_same_forecast(family: str, model: Any) -> None:
    x = series(2, 96)
    with torch.no_grad():
        y = model.forward(x, 24)
    assert not y.requires_grad
    assert relative_difference(y, model.official(x, 24)) <= parity_limit(family, 24)


def test_the_callers_data_is_unchanged(model: Any) -> None:
    x = series(2, 100)
    before, horizon = x.clone(), reachable(model, 140)
    model.forward(x, horizon)
    model.official(x, horizon)
    assert torch.equal(x, before)


@pytest.mark.slow
def test_a_forecast_depends_neither_on_neighbouring_windows_nor_on_earlier_settings(model: Any) -> None:
    x = series(6, 192)
    together = model.official(x, 48)
    alone = torch.cat([model.official(window[None], 48) for window in x])
    assert relative_difference(together, alone) <= 1e-6
    assert relative_difference(model.forward(x, 48), alone) <= 1e-6
    model.official(series(2, 512), reachable(model, 192))
    assert torch.equal(model.official(x, 48), together)


def test_the_model_is_frozen_in_float32(model: Any) -> None:
    assert not model.module.training
    assert {(p.dtype, p.requires_grad) for p in model.module.parameters()} == {(torch.float32, False)}


def test_a_reloaded_checkpoint_is_the_same_model_and_loading_prints_nothing(
    model: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    again = model.reload()
    assert capfd.readouterr().out == ""
    assert again.identity == model.identity
    assert torch.equal(again.official(series(2, 96), 24), model.official(series(2, 96), 24))


def test_every_parameter_equals_its_file_and_a_changed_one_is_named(model: Any) -> None:
    again = model.reload()
    assert model.unloaded() == again.unloaded() == ()
    name, parameter = list(again.module.named_parameters())[-1]
    parameter.add_(1.0)
    assert again.unloaded() == (name.removeprefix("vision_model."),)


def test_the_float64_twin_computes_the_same_forecast_in_float64(model: Any) -> None:
    x, twin, horizon = series(2, 192), model.double(), reachable(model, 140)
    forecast = twin.official(x.double(), horizon)
    assert forecast.dtype == torch.float64
    assert relative_difference(twin.forward(x.double(), horizon), forecast) <= 1e-12
    assert relative_difference(forecast, model.official(x, horizon).double()) <= 1e-4
    assert torch.get_default_dtype() == torch.float32
    assert model.official(x, 8).dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "setting"),
    [(name, pair) for name in FAMILIES for pair in CHECKED_AT.get(name, [(96, 24), (512, 96), (512, 192)])],
    indirect=["family"],
)
def test_all_six_checks_admit_the_checkpoint_in_float64(model: Any, setting: tuple[int, int]) -> None:
    lookback, horizon = setting
    checks = admit(model, series(2 if lookback < 512 else 1, lookback), horizon)
    assert len(checks) == 6
    assert [check for check in checks if not check.passed] == []
    assert "float64" in checks[-1].note


@pytest.mark.parametrize("x", [torch.zeros(96), torch.zeros(2, 96, 1), torch.zeros(2, 96, dtype=torch.int64)])
def test_a_wrong_shape_is_refused_in_a_sentence(model: Any, x: torch.Tensor) -> None:
    with pytest.raises(ModelError, match=r"expects a floating-point tensor of shape \(batch, lookback\)"):
        model.forward(x, 24)


def test_a_model_that_states_its_padding_reads_a_short_window_as_zeros_before_it(model: Any) -> None:
    length = model.limits.padded_to
    if length is None:
        assert model.identity.family != "ttm" or model._decomposed
        return
    short = series(2, 40)
    filled = torch.cat([torch.zeros(2, length - 40), short], dim=1)
    torch.testing.assert_close(model.official(short, 24), model.official(filled, 24))


def test_a_window_beyond_the_context_is_refused_in_a_sentence(model: Any) -> None:
    most = model.limits.longest_lookback
    if most is None:
        pytest.skip("takes windows of any length")
    for call in (model.forward, model.official):
        with pytest.raises(ModelError, match=f"lookback of at most {most}, not {most + 1}"):
            call(torch.zeros(1, most + 1), 24)


@pytest.mark.slow
@pytest.mark.skipif("ttm" not in FAMILIES, reason="runs in the main environment")
@pytest.mark.parametrize(
    ("family", "other"), [("chronos-bolt", "tsfm_public"), ("ttm", "chronos")], indirect=["family"]
)
def test_loading_a_family_imports_no_other_familys_library(path: Path, other: str) -> None:
    code = f"import sys; from hrx.adapters import load; load({str(path)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other not in done.stdout.split()
