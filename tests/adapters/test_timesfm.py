"""TimesFM-2.5 and TimesFM-3 against their library's public calls, and each way in which they go wrong in silence."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timesfm
import torch
from helpers import tiny_timesfm
from helpers.tiny import hard_windows, series
from safetensors.torch import load_file, save_file

from hrx.adapters import Forecaster, ModelError, locate, timesfm_3, timesfm_25
from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Identity
from hrx.adapters.gradients import GradientPath, differentiable_input, relative_difference
from hrx.adapters.timesfm_25 import SharedContext
from hrx.audit.admission.checks import admit
from hrx.audit.attribution.jacobian import jacobian
from hrx.audit.runner.plan import STAR, Setting

ODD = (Setting(100, 30), Setting(17, 5), Setting(333, 100), Setting(512, 250))
LOADERS = {"timesfm_25": timesfm_25.load, "timesfm_3": timesfm_3.load}


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with tiny_timesfm.small_timesfm_25():
        yield


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("timesfm")
    return {
        "timesfm_25": tiny_timesfm.timesfm_25(root / "timesfm_25"),
        "timesfm_3": tiny_timesfm.timesfm_3(root / "timesfm_3"),
    }


@pytest.fixture(scope="module")
def v25(paths: dict[str, Path]) -> Any:
    return _load("timesfm_25", paths["timesfm_25"])


@pytest.fixture(scope="module")
def v3(paths: dict[str, Path]) -> Any:
    return _load("timesfm_3", paths["timesfm_3"])


@pytest.fixture(scope="module", params=LOADERS)
def model(request: pytest.FixtureRequest, paths: dict[str, Path]) -> Any:
    return _load(request.param, paths[request.param])


def _load(name: str, path: Path) -> Forecaster:
    checkpoint = Checkpoint(path, name, name)
    return LOADERS[name](checkpoint, Identity(name, name, name, checkpoint.fingerprint, "timesfm"))


def _gradient(model: Forecaster, x: torch.Tensor, horizon: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The forecast, and the gradient of its sum."""
    with GradientPath():
        leaf, working = differentiable_input(x)
        y = model.forward(working, horizon)
        (gradient,) = torch.autograd.grad(y.sum(), leaf)
    return y.detach(), gradient


@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_forward_equals_the_public_call(model: Forecaster, setting: Setting) -> None:
    x = series(5, setting.lookback)
    y = model.forward(differentiable_input(x).working, setting.horizon)
    official = model.official(x, setting.horizon)
    assert y.requires_grad
    assert not official.requires_grad
    assert official.shape == (5, setting.horizon)
    assert official.isfinite().all()
    assert relative_difference(y.detach(), official) <= 1e-6


@pytest.mark.parametrize("name", ["flat", "zeros", "flat patches", "far from zero", "huge", "tiny"])
def test_hard_windows_keep_parity_and_finite_gradients(model: Forecaster, name: str) -> None:
    x = hard_windows()[name]
    y, gradient = _gradient(model, x, 140)
    assert y.isfinite().all()
    assert relative_difference(y, model.official(x, 140)) <= 1e-6
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("lookback", "horizon"), [(96, 24), (512, 96), (512, 192)])
def test_all_five_admission_checks_pass(model: Forecaster, lookback: int, horizon: int) -> None:
    checks = admit(model, series(1, lookback), horizon)
    assert [check for check in checks if not check.passed] == []
    assert checks[-1].note.endswith("float64")


def test_a_flat_patch_has_the_derivative_of_finite_differences(model: Forecaster) -> None:
    x = series(1, 96)
    x[:, 32:64] = 0.5
    assert [check for check in admit(model, x, 8) if not check.passed] == []


def test_a_forecast_does_not_depend_on_the_windows_beside_it(model: Forecaster) -> None:
    x = series(6, 100)
    alone = torch.cat([model.official(window[None], 48) for window in x])
    assert relative_difference(model.official(x, 48), alone) <= 1e-6
    assert relative_difference(model.forward(x, 48).detach(), alone) <= 1e-6


def test_what_the_library_writes_into_is_not_the_callers(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "forecast" if hasattr(model._library, "forecast") else "predict_batch"
    public = getattr(model._library, name)

    def careless(*arguments: Any) -> Any:
        result = public(*arguments)
        (windows,) = (given for given in arguments if isinstance(given, list))
        result = result if isinstance(result, tuple) else list(result)
        windows[0][:] = 7.0
        windows.append(np.zeros(3))
        return result

    monkeypatch.setattr(model._library, name, careless)
    x = series(2, 96)
    before = x.clone()
    assert model.official(x, 24).shape == (2, 24)
    model.forward(x, 140)
    assert torch.equal(x, before)


def test_the_float64_twin_makes_the_same_forecast_in_float64(model: Forecaster) -> None:
    x, twin = series(2, 100), model.double()
    assert twin is not None
    forecast = twin.official(x.double(), 140)
    assert forecast.dtype == torch.float64
    assert relative_difference(forecast, model.official(x, 140).double()) <= 1e-4
    assert model.official(x, 8).dtype == torch.float32


def test_every_parameter_is_the_files_own_and_a_changed_one_is_named(model: Any) -> None:
    again: Any = model.reload()
    assert model.unloaded() == again.unloaded() == ()
    network = again._library.model
    name, parameter = next(iter(network.named_parameters()))
    with torch.no_grad():
        parameter.add_(1.0)
    assert again.unloaded() == (name,)


def test_loading_prints_nothing(model: Forecaster, capfd: pytest.CaptureFixture[str]) -> None:
    model.reload()
    assert capfd.readouterr().out == ""


def test_a_window_beyond_the_context_is_refused_in_words(model: Forecaster) -> None:
    most = model.limits.longest_lookback
    assert most is not None
    with pytest.raises(ModelError, match=f"lookback of at most {most}, not {most + 1}"):
        model.forward(torch.zeros(1, most + 1), 24)


# TimesFM-2.5


def test_lookback_and_horizon_of_25_share_the_released_context() -> None:
    limits = SharedContext(longest_lookback=16256, longest_horizon=16352)
    assert limits.refusal(16256, 128) is None
    assert limits.refusal(16000, 256) is None
    assert limits.refusal(16225, 129) == "has room for 16384 steps of lookback and horizon together, not 16512"
    assert limits.refusal(16257, 1) == "reads a lookback of at most 16256, not 16257"


def test_the_library_refuses_just_what_the_limits_of_25_refuse(v25: Any) -> None:
    for lookback, horizon in [(896, 128), (897, 128), (864, 129), (768, 256), (769, 256), (32, 900)]:
        config = timesfm.ForecastConfig(max_context=lookback, max_horizon=horizon)
        try:
            v25._library.compile(config)
        except ValueError:
            assert v25.limits.refusal(lookback, horizon)
        else:
            assert v25.limits.refusal(lookback, horizon) is None


def test_a_negated_window_gets_the_negated_forecast(v25: Any) -> None:
    x = series(3, 96)
    y = v25.forward(x, 140).detach()
    assert relative_difference(-v25.forward(-x, 140).detach(), y) <= 1e-6
    one_decode = v25._decode(x, torch.zeros(x.shape, dtype=torch.bool), 140)
    assert relative_difference(one_decode, v25.official(x, 140)) > 0.1


def test_rows_clamped_at_zero_are_zero_and_no_others(v25: Any) -> None:
    x = series(2, 96).abs()
    official, rows = v25.official(x, 24), jacobian(v25, x, 24).jacobian
    assert official.min() == 0
    assert official.max() > 0
    assert torch.equal((rows == 0).all(dim=-1), official == 0)


def test_a_window_with_a_negative_value_is_not_clamped(v25: Any) -> None:
    x = series(2, 96).abs()
    x[:, 40] = -0.01
    assert v25.official(x, 24).min() < 0
    assert relative_difference(v25.forward(x, 24).detach(), v25.official(x, 24)) <= 1e-6


def test_steps_fed_back_through_the_cache_have_the_derivative_of_finite_differences(v25: Any) -> None:
    """Only steps beyond 128, where the cache that backward needs has been overwritten."""
    x, twin = series(1, 96).double(), v25.double()
    move = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fed_back = np.arange(128, 200)
    rows = jacobian(twin, x, 200, steps=fed_back).jacobian
    change = (twin.official(x + 1e-5 * move, 200) - twin.official(x - 1e-5 * move, 200))[:, fed_back] / 2e-5
    assert relative_difference(torch.einsum("whl,wl->wh", rows, move), change) <= 1e-6


def test_writes_into_the_cache_are_found_and_reported(v25: Any) -> None:
    rewrites = jacobian(v25, series(1, 96), 140, steps=np.array([130])).rewrites
    written = {rewrite.place.split(":")[0] for rewrite in rewrites if "kept in place" in rewrite.operation}
    assert written == {"timesfm/torch/transformer.py"}


def test_the_library_appends_to_a_list_that_does_not_fill_its_batches(v25: Any) -> None:
    windows = list(series(2, 96).numpy())
    v25._library.compile(timesfm.ForecastConfig(max_context=96, max_horizon=24, per_core_batch_size=3))
    v25._library.forecast(24, windows)
    assert len(windows) == 3


def test_options_that_the_projects_examples_add_leave_the_point_forecast_alone(v25: Any) -> None:
    x = series(3, 100)
    official = v25.official(x, 140)
    v25._library.compile(
        timesfm.ForecastConfig(
            max_context=512, max_horizon=256, per_core_batch_size=3,
            normalize_inputs=True, use_continuous_quantile_head=True, fix_quantile_crossing=True,
        )
    )  # fmt: skip
    point, _ = v25._library.forecast(140, list(x.numpy()))
    assert relative_difference(torch.from_numpy(point), official) <= 1e-5


def test_a_config_that_asks_for_compilation_is_not_obeyed(v25: Any, paths: dict[str, Path]) -> None:
    assert Checkpoint(paths["timesfm_25"], "", "").config["torch_compile"] is True
    assert v25._library.torch_compile is False
    assert "forward" not in vars(v25._library.model)  # where the library puts the compiled one


def test_weights_in_another_format_are_refused_in_a_sentence(paths: dict[str, Path], tmp_path: Path) -> None:
    tensors = load_file(paths["timesfm_25"] / "model.safetensors")
    save_file({f"decoder.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((paths["timesfm_25"] / "config.json").read_bytes())
    with pytest.raises(ModelError, match=r"does not hold the weights of TimesFM-2\.5 in the format of timesfm"):
        _load("timesfm_25", tmp_path)


# TimesFM-3


def test_the_point_of_3_is_the_median_after_the_quantiles_are_sorted(v3: Any) -> None:
    x = series(3, 96)
    raw = v3._model.decode(target=x[:, None], horizon=64)[:, 0, :24]
    assert (raw.diff(dim=-1) < 0).any()
    expected = torch.from_numpy(np.sort(raw.numpy(), axis=-1)[..., 4])
    assert relative_difference(v3.official(x, 24), expected) <= 1e-6
    assert relative_difference(v3.forward(x, 24).detach(), expected) <= 1e-6
    assert relative_difference(raw[..., 4], expected) > 0.1


def test_3_is_asked_for_whole_output_patches(v3: Any) -> None:
    x = series(2, 96)
    exact = v3._model.decode(target=x[:, None], horizon=70)[:, 0].sort(dim=-1).values[..., 4]
    assert relative_difference(exact, v3.official(x, 70)) > 1e-3
    assert relative_difference(v3.forward(x, 70).detach(), v3.official(x, 70)) <= 1e-6


@pytest.mark.parametrize("detrended", [True, False], ids=["steep", "level"])
def test_3_is_equal_with_and_without_its_trend_removed(v3: Any, detrended: bool) -> None:
    x = series(2, 96) + (torch.arange(96) if detrended else 0)
    y, gradient = _gradient(v3, x, 70)
    assert relative_difference(y, v3.official(x, 70)) <= 1e-6
    assert gradient.isfinite().all()
    assert [check for check in admit(v3, x[:1], 8) if not check.passed] == []


def test_a_weight_that_3_misses_in_silence_is_named(paths: dict[str, Path], tmp_path: Path) -> None:
    tensors = load_file(paths["timesfm_3"] / "model.safetensors")
    del tensors["output_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((paths["timesfm_3"] / "config.json").read_bytes())
    assert _load("timesfm_3", tmp_path).unloaded() == ("output_head.weight",)


@pytest.mark.parametrize("make", [tiny_timesfm.timesfm_25, tiny_timesfm.timesfm_3])
def test_a_tiny_checkpoint_is_the_same_for_the_same_seed(make: Callable[..., Path], tmp_path: Path) -> None:
    first, second, other = (make(tmp_path / str(i), seed) for i, seed in enumerate((0, 0, 1)))
    prints = [Checkpoint(path, "", "").fingerprint for path in (first, second, other)]
    assert prints[0] == prints[1] != prints[2]


def test_25_is_recognised_by_its_weights_where_the_release_has_no_configuration(tmp_path: Path) -> None:
    directory = tiny_timesfm.timesfm_25(tmp_path / "release")
    (directory / "config.json").unlink()
    located = locate(str(directory))
    assert located.identity.family == "timesfm-2.5"
    assert located.load().official(torch.randn(2, 96), 24).shape == (2, 24)
