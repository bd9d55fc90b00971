"""TimesFM-2.5 and TimesFM-3: every difference between `decode` and the public call; the rest is in test_families."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timesfm
import torch
from helpers import tiny_timesfm
from helpers.tiny import forecast_and_gradient, series
from safetensors.torch import load_file, save_file

from hrx.adapters import Limits, ModelError, load, locate
from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.gradients import relative_difference
from hrx.audit.admission import admit
from hrx.audit.attribution.gradients import jacobian


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with tiny_timesfm.small_timesfm_25():
        yield


@pytest.fixture(scope="module")
def path_25(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_timesfm.timesfm_25(tmp_path_factory.mktemp("timesfm") / "timesfm-2.5")


@pytest.fixture(scope="module")
def v25(path_25: Path) -> Any:
    return load(str(path_25))


@pytest.fixture(scope="module")
def v3(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(str(tiny_timesfm.timesfm_3(tmp_path_factory.mktemp("timesfm") / "timesfm-3")))


@pytest.fixture(params=["v25", "v3"])
def model(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.slow
def test_a_flat_patch_has_the_derivative_of_finite_differences(model: Any) -> None:
    x = series(1, 96)
    x[:, 32:64] = 0.5
    assert [check for check in admit(model, x, 8) if not check.passed] == []


def test_the_library_writes_into_copies_of_the_callers_windows(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "forecast" if hasattr(model.library, "forecast") else "predict_batch"
    public = getattr(model.library, name)

    def overwriting(*arguments: Any, **named: Any) -> Any:
        result = public(*arguments, **named)
        (windows,) = (given for given in arguments if isinstance(given, list))
        result = result if isinstance(result, tuple) else list(result)
        windows[0][:] = 7.0
        windows.append(np.zeros(3))
        return result

    monkeypatch.setattr(model.library, name, overwriting)
    x = series(2, 96)
    before = x.clone()
    assert model.official(x, 24).shape == (2, 24)
    model.forward(x, 140)
    assert torch.equal(x, before)


# TimesFM-2.5


def test_lookback_and_horizon_of_25_share_the_released_context() -> None:
    limits = Limits(longest_lookback=16256, longest_horizon=16352, context=16384, lookback_patch=32, horizon_patch=128)
    assert limits.refusal(16256, 128) is None
    assert limits.refusal(16000, 256) is None
    assert limits.refusal(16225, 129) == "reads a lookback of at most 16128, not 16225, before a horizon of 129"
    assert limits.refusal(16257, 1) == "reads a lookback of at most 16256, not 16257"


def test_the_limits_of_25_refuse_exactly_what_the_library_refuses(v25: Any) -> None:
    for lookback, horizon in [(896, 128), (897, 128), (864, 129), (768, 256), (769, 256), (32, 900)]:
        config = timesfm.ForecastConfig(max_context=lookback, max_horizon=horizon)
        try:
            v25.library.compile(config)
        except ValueError:
            assert v25.limits.refusal(lookback, horizon)
        else:
            assert v25.limits.refusal(lookback, horizon) is None


def test_a_negated_window_gets_the_negated_forecast(v25: Any) -> None:
    x = series(3, 96)
    y = v25.forward(x, 140).detach()
    assert relative_difference(-v25.forward(-x, 140).detach(), y) <= 1e-6
    one_decode = v25._decode(x, torch.zeros(x.shape, dtype=torch.bool), 140)[..., 5]
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
    """Only steps beyond 128: the cache that backward needs is overwritten there."""
    x, twin = series(1, 96).double(), v25.double()
    move = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fed_back = np.arange(128, 200)
    rows = jacobian(twin, x, 200, steps=fed_back).jacobian
    change = (twin.official(x + 1e-5 * move, 200) - twin.official(x - 1e-5 * move, 200))[:, fed_back] / 2e-5
    assert relative_difference(torch.einsum("whl,wl->wh", rows, move), change) <= 1e-6


def test_writes_into_the_cache_are_handled_and_reported(v25: Any) -> None:
    rewrites = jacobian(v25, series(1, 96), 140, steps=np.array([130])).rewrites
    written = {rewrite.place.split(":")[0] for rewrite in rewrites if "kept in place" in rewrite.operation}
    assert written == {"timesfm/torch/transformer.py"}


def test_options_in_the_projects_examples_do_not_change_the_point_forecast(v25: Any) -> None:
    x = series(3, 100)
    official = v25.official(x, 140)
    v25.library.compile(
        timesfm.ForecastConfig(
            max_context=512, max_horizon=256, per_core_batch_size=3,
            normalize_inputs=True, use_continuous_quantile_head=True, fix_quantile_crossing=True,
        )
    )  # fmt: skip
    point, _ = v25.library.forecast(140, list(x.numpy()))
    assert relative_difference(torch.from_numpy(point), official) <= 1e-5


def test_a_config_that_requests_compilation_is_ignored(v25: Any, path_25: Path) -> None:
    assert Checkpoint(path_25, "", "").config["torch_compile"] is True
    assert v25.library.torch_compile is False
    assert "forward" not in vars(v25.library.model)  # where the library stores the compiled one


def test_weights_in_another_format_are_refused_in_a_sentence(path_25: Path, tmp_path: Path) -> None:
    tensors = load_file(path_25 / "model.safetensors")
    save_file({f"decoder.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((path_25 / "config.json").read_bytes())
    with pytest.raises(ModelError, match=r"does not hold the weights of TimesFM-2\.5 in the format of timesfm"):
        load(str(tmp_path))


# TimesFM-3


def test_the_point_forecast_of_3_is_the_median_of_sorted_quantiles(v3: Any) -> None:
    x = series(3, 96)
    raw = v3.module.decode(target=x[:, None], horizon=64)[:, 0, :24]
    assert (raw.diff(dim=-1) < 0).any()
    expected = torch.from_numpy(np.sort(raw.numpy(), axis=-1)[..., 4])
    assert relative_difference(v3.official(x, 24), expected) <= 1e-6
    assert relative_difference(v3.forward(x, 24).detach(), expected) <= 1e-6
    assert relative_difference(raw[..., 4], expected) > 0.1


def test_whole_output_patches_are_requested_from_3(v3: Any) -> None:
    x = series(2, 96)
    exact = v3.module.decode(target=x[:, None], horizon=70)[:, 0].sort(dim=-1).values[..., 4]
    assert relative_difference(exact, v3.official(x, 70)) > 1e-3
    assert relative_difference(v3.forward(x, 70).detach(), v3.official(x, 70)) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("detrended", [True, False], ids=["steep", "level"])
def test_3_keeps_parity_with_and_without_detrending(v3: Any, detrended: bool) -> None:
    x = series(2, 96) + (torch.arange(96) if detrended else 0)
    y, gradient = forecast_and_gradient(v3, x, 70)
    assert relative_difference(y, v3.official(x, 70)) <= 1e-6
    assert gradient.isfinite().all()
    assert [check for check in admit(v3, x[:1], 8) if not check.passed] == []


def test_25_is_recognised_by_its_weights_if_the_release_has_no_configuration(tmp_path: Path) -> None:
    directory = tiny_timesfm.timesfm_25(tmp_path / "release")
    (directory / "config.json").unlink()
    located = locate(str(directory))
    assert located.identity.family == "timesfm-2.5"
    assert located.load().official(torch.randn(2, 96), 24).shape == (2, 24)


@pytest.mark.parametrize("architectures", [None, ["TimesFm2_5ModelForPrediction"]])
def test_the_weights_decide_the_format_and_not_the_configuration(
    path_25: Path, tmp_path: Path, architectures: list[str] | None
) -> None:
    directory = Path(shutil.copytree(path_25, tmp_path / "download"))
    config = tiny_timesfm.HUB_CONFIG_25 | ({"architectures": architectures} if architectures else {})
    (directory / "config.json").write_text(json.dumps(config))
    located = locate(str(directory))
    assert located.identity.family == "timesfm-2.5"
    x = series(2, 96)
    assert torch.equal(located.load().official(x, 24), load(str(path_25)).official(x, 24))


@pytest.mark.parametrize("shift", [0.0, 5.0], ids=["signed", "nonnegative"])
@pytest.mark.parametrize(("lookback", "horizon"), [(96, 24), (100, 30), (512, 128)])
def test_googles_implementation_and_that_of_transformers_make_the_same_forecast(
    v25: Any, tmp_path: Path, lookback: int, horizon: int, shift: float
) -> None:
    directory = tiny_timesfm.timesfm_25_transformers(tmp_path / "converted")
    located, x = locate(str(directory)), series(3, lookback) + shift
    assert located.identity.family == "timesfm-2.5-hf"
    theirs = located.load()
    assert relative_difference(theirs.official(x, horizon), v25.official(x, horizon)) <= 2e-6
    assert relative_difference(theirs.forward(x, horizon).detach(), v25.official(x, horizon)) <= 2e-6


def test_the_padding_of_transformers_does_not_change_the_forecast(tmp_path: Path) -> None:
    model: Any = load(str(tiny_timesfm.timesfm_25_transformers(tmp_path / "converted")))
    x = torch.cat([series(2, 100), series(2, 100).abs()])
    with torch.no_grad():
        alone = torch.cat([model.library([window]).mean_predictions[:, :24] for window in x])
    assert relative_difference(model.official(x, 24), alone) <= 2e-6
    assert "at most 128 steps" in str(model.limits.refusal(96, 129))
