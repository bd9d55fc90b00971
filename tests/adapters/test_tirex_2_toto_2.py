"""What is special about TiRex-2 and Toto-2: scaled gradients, trends, limits, channels, what is refused."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny, tiny_multivariate
from helpers.tiny import forecast_and_gradient, series
from safetensors.torch import load_file, save_file

from hrx.adapters import ModelError, load
from hrx.adapters.gradients import relative_difference
from hrx.audit.admission import admit, admit_channels, parity

if "toto-2" not in tiny.families():
    pytest.skip("runs in the main environment", allow_module_level=True)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("multivariate")
    return {name: build(root / name) for name, build in tiny_multivariate.FAMILIES.items()}


@pytest.fixture(scope="module")
def tirex(paths: dict[str, Path]) -> Any:
    return load(str(paths["tirex-2"]))


@pytest.fixture(scope="module")
def toto(paths: dict[str, Path]) -> Any:
    return load(str(paths["toto-2"]))


def ramps(windows: int, lookback: int) -> torch.Tensor:
    """`(W, L)`: rising and falling lines with a little noise, which TiRex-2 forecasts by their differences."""
    line = torch.linspace(-2, 2, lookback)
    return torch.stack([line * (-1) ** index for index in range(windows)]) + 0.1 * series(windows, lookback)


def test_without_exact_gradients_only_the_derivative_check_refuses_toto_2(
    toto: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = series(2, 96)
    right = forecast_and_gradient(toto, x, 24)
    monkeypatch.setattr("hrx.adapters.families.toto_2.exact_gradients", nullcontext)
    wrong = forecast_and_gradient(toto, x, 24)
    assert torch.equal(wrong[0], right[0])
    assert wrong[1].isfinite().all()
    assert relative_difference(wrong[1], right[1]) > 0.1
    assert [check.check for check in admit(toto, x, 24) if not check.passed] == ["derivative"]


def test_unit_scaled_layers_keep_their_training_gradient_elsewhere() -> None:
    from dd_unit_scaling.scale import scale_bwd, scale_fwd

    from hrx.adapters.families.toto_2 import exact_gradients

    def slope() -> float:
        x = torch.ones((), requires_grad=True)
        return float(torch.autograd.grad(scale_fwd(scale_bwd(x, 5.0), 3.0), x)[0])

    assert slope() == 5.0
    with exact_gradients(), ThreadPoolExecutor(1) as other:
        assert slope() == 3.0
        assert other.submit(slope).result() == 5.0
    assert slope() == 5.0


def test_the_padded_forecast_of_toto_2_is_that_of_its_gluonts_predictor(toto: Any) -> None:
    import pandas as pd
    from toto2 import Toto2GluonTSModel, Toto2GluonTSModelConfig

    x = series(3, 100)
    config = Toto2GluonTSModelConfig(
        prediction_length=30, context_length=1024, target_dim=1, scaler_fallback_min_obs=0, quantile_real_cap_k=0.0
    )
    predictor = Toto2GluonTSModel(toto.module, config).create_predictor(batch_size=3, device="cpu")
    entries = [{"target": window.numpy(), "start": pd.Period("2000-01-01", freq="h")} for window in x]
    medians = [torch.as_tensor(forecast.quantile(0.5)) for forecast in predictor.predict(entries)]
    assert relative_difference(toto.official(x, 30), torch.stack(medians)) <= 1e-6


def test_lookback_and_horizon_of_toto_2_share_its_table_of_positions(toto: Any) -> None:
    assert toto.limits.refusal(8190 * 16, 32) is None
    assert toto.limits.refusal(8190 * 16 + 1, 32) == (
        f"reads a lookback of at most {8190 * 16}, not {8190 * 16 + 1}, before a horizon of 32"
    )
    small = toto.reload()
    for module in small.module.modules():
        if hasattr(module, "theta"):
            module.cos, module.sin = module.cos[:8], module.sin[:8]
    limits = small.read_limits()
    assert limits.refusal(6 * 16, 32) is None
    assert limits.refusal(6 * 16 + 1, 32) is not None
    assert small.official(series(1, 6 * 16), 32).shape == (1, 32)
    with pytest.raises(IndexError):  # the library's own table ends there
        small.official(series(1, 6 * 16 + 1), 32)


def test_the_steep_slopes_where_a_window_of_toto_2_starts_flat_are_true(toto: Any) -> None:
    x = series(1, 96).double()
    x[:, :40] = 0.0
    twin = toto.double()
    _, slope = forecast_and_gradient(twin, x, 24)
    assert slope[:, :32].abs().max() > 1e4
    move = 1e-12 * torch.randn(1, 96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    change = (twin.official(x + move, 24) - twin.official(x - move, 24)).sum() / 2
    torch.testing.assert_close((slope * move).sum(), change, rtol=1e-5, atol=0)


def test_tirex_2_forecasts_the_differences_of_trending_windows(tirex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.cat([ramps(2, 96), series(2, 96)])
    assert tirex._trending(x).flatten().tolist() == [True, True, False, False]
    assert parity(tirex, x, 24) <= 1e-6
    assert [check for check in admit(tirex, ramps(2, 96), 24) if not check.passed] == []
    plain = tirex.reload()
    plain.module.tta_diff = False
    apart = (plain.official(x, 24) - tirex.official(x, 24)).abs().amax(dim=1)
    assert (apart > 0).tolist() == [True, True, False, False]
    monkeypatch.setattr(type(tirex), "_trending", lambda self, x: torch.zeros(len(x), 1, dtype=torch.bool))
    assert parity(tirex, x, 24) > 1e-2


def test_tirex_2_refuses_what_its_library_cuts(tirex: Any) -> None:
    from tirex2 import TimeseriesType

    with pytest.raises(ModelError, match="forecasts at most 256 steps, not 257"):
        tirex.official(series(1, 96), 257)

    def library_forecast(x: torch.Tensor, steps: int) -> torch.Tensor:
        given = TimeseriesType(target=x, past_covariates=None, future_covariates=None)
        return tirex.library.forecast([given], prediction_length=steps)[0]

    assert library_forecast(series(1, 96), 257).shape[-1] == 256
    x = series(1, 520)
    other = torch.cat([x[:, :8] + 1, x[:, 8:]], dim=1)
    assert torch.equal(library_forecast(x, 24), library_forecast(other, 24))
    with pytest.raises(ModelError, match="reads a lookback of at most 512, not 520"):
        tirex.forward(x, 24)


def test_tirex_2_compiles_nothing_and_leaves_the_precision_of_the_process_as_it_is(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    before, compiled = torch.get_float32_matmul_precision(), counters["frames"]["total"]
    try:
        path = tiny_multivariate.tirex_2(tmp_path / "model", matmul_precision="medium")  # sets it for the process
        torch.set_float32_matmul_precision("highest")
        model: Any = load(str(path))
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)
    model.official(series(1, 32), 8)
    assert counters["frames"]["total"] == compiled


@pytest.mark.parametrize("name", ["tirex-2", "toto-2"])
def test_gaps_and_another_architecture_keep_parity(name: str, paths: dict[str, Path], tmp_path: Path) -> None:
    others: dict[str, Callable[[Path], Path]] = {
        "tirex-2": partial(
            tiny_multivariate.tirex_2, tta_sign_flip=False, scaler_cfg={}, stack_out_norm_config=None, use_qk_norm=False
        ),
        "toto-2": partial(
            tiny_multivariate.toto_2, qk_norm=True, per_dim_scale=False, use_xpos=False, num_heads=4, num_groups=2
        ),
    }
    for path in (paths[name], others[name](tmp_path / name)):
        model = load(str(path))
        x = series(2, 100)
        x[0, 10:30], x[1, -3:] = torch.nan, torch.nan
        y, slope = forecast_and_gradient(model, x, 24)
        assert relative_difference(y, model.official(x, 24)) <= 1e-6
        assert y.isfinite().all()
        assert slope.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tirex-2", "toto-2"])
def test_channels_are_read_together_and_windows_apart(name: str, paths: dict[str, Path]) -> None:
    single = load(str(paths[name]))
    model: Any = single.multivariate()
    x = torch.stack([series(3, 100), series(3, 100, seed=1)], dim=-1)
    y = model.forward(x, 20)
    assert y.shape == (3, 20, 2)
    assert relative_difference(y, model.official(x, 20)) <= 1e-6
    assert relative_difference(y[..., 0], single.forward(x[..., 0], 20)) > 1e-3
    moved = x.clone()
    moved[0, :, 1] += torch.sin(torch.arange(100.0))
    changed = (model.forward(moved, 20) - y).abs().amax(dim=1)
    assert (changed[0] > 1e-4).all()
    assert (changed[1:] <= 1e-6).all()
    assert [check for check in admit_channels(model, x[:1], 4) if not check.passed] == []


@pytest.mark.parametrize("name", ["tirex-2", "toto-2"])
def test_two_threads_get_the_forecasts_and_gradients_of_one(name: str, paths: dict[str, Path]) -> None:
    model = load(str(paths[name]))
    windows = [series(1, 48 + 8 * seed, seed) for seed in range(3)] * 2
    expected = [forecast_and_gradient(model, x, 8) for x in windows]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda x: forecast_and_gradient(model, x, 8), windows))
    for (y, slope), (y_alone, slope_alone) in zip(found, expected, strict=True):
        assert torch.equal(y, y_alone)
        assert torch.equal(slope, slope_alone)


def changed_config(path: Path, to: Path, **changes: Any) -> str:
    """A copy of a checkpoint with other entries in its `config.json`."""
    to.mkdir()
    config = json.loads((path / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | changes))
    (to / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    return str(to)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("tirex-2", {"act_func": "os.abort"}, r"names the activation 'os\.abort', which is not a class of torch\.nn"),
        ("tirex-2", {"quantiles": [0.1, 0.4, 0.9]}, "tirex-2 could not load .* size mismatch"),
        ("tirex-2", {"future_len": 100}, "tirex-2 could not load .* future_len"),
        ("toto-2", {"num_output_patches": 2}, "timecopilot-toto-2 could not load .* size mismatch"),
        ("toto-2", {"d_model": 33}, "timecopilot-toto-2 could not load .* d_model"),
    ],
)
def test_a_configuration_that_cannot_be_run_is_refused_in_a_sentence(
    name: str, changes: dict[str, Any], reason: str, paths: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=reason):
        load(changed_config(paths[name], tmp_path / "changed", **changes))


def test_a_checkpoint_whose_official_call_has_no_median_or_does_not_run_is_refused(tmp_path: Path) -> None:
    levels = [0.1, 0.2, 0.5]
    with pytest.raises(ModelError, match="and the middle one is not the median"):
        load(str(tiny_multivariate.tirex_2(tmp_path / "tirex", quantiles=levels)))
    with pytest.raises(ModelError, match=r"sets num_output_patches to 2\. Toto2Model\.forecast runs with 1 only"):
        load(str(tiny_multivariate.toto_2(tmp_path / "toto", num_output_patches=2)))


@pytest.mark.parametrize("name", ["tirex-2", "toto-2"])
def test_a_checkpoint_that_lacks_a_tensor_is_refused_with_its_name(
    name: str, paths: dict[str, Path], tmp_path: Path
) -> None:
    directory = Path(changed_config(paths[name], tmp_path / "incomplete"))
    tensors = load_file(directory / "model.safetensors")
    removed = sorted(tensors)[0]
    del tensors[removed]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"could not load .*{removed}"):
        load(str(directory))
