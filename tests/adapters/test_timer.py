"""Timer against its official `generate` where that runs, and against slow definitions everywhere."""

from pathlib import Path

import pytest
import torch
from helpers.tiny import series
from helpers.tiny_generate import HARD, edited, hard_windows, needs_generate, opened, rotary_tables, timer
from safetensors.torch import load_file, save_file
from sktime.libs.timer import TimerConfig, TimerForPrediction

from hrx.adapters import Forecaster, ModelError
from hrx.adapters.gradients import GradientPath, differentiable_input, relative_difference
from hrx.adapters.precision import DoubleTwin, _double_precision
from hrx.adapters.timer import GeneratingForecaster, load, quiet
from hrx.audit.admission.checks import admit
from hrx.audit.runner.plan import STAR, Setting

ODD = (Setting(100, 30), Setting(333, 100), Setting(512, 250))


def bound(horizon: int) -> float:
    """Within the first patch the computation is the same one; beyond it the two differ by a cache."""
    return 0.0 if horizon <= 96 else 2e-6


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return timer(tmp_path_factory.mktemp("timer") / "tiny-timer")


@pytest.fixture(scope="module")
def model(path: Path) -> GeneratingForecaster:
    return opened(load, path)


def gradient(model: Forecaster, x: torch.Tensor, horizon: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The forecast, and the gradient of the sum of what is not NaN in it."""
    with GradientPath():
        leaf, working = differentiable_input(x)
        y = model.forward(working, horizon)
        (slope,) = torch.autograd.grad(y.nansum(), leaf)
    return y.detach(), slope


@pytest.mark.parametrize("windows", [1, 5])
@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_the_forecast_is_that_of_generate_on_the_checkpoint_as_the_library_loads_it(
    model: GeneratingForecaster, path: Path, setting: Setting, windows: int
) -> None:
    needs_generate()
    x = series(windows, setting.lookback)
    generated = TimerForPrediction.from_pretrained(path).eval().generate(x, max_new_tokens=setting.horizon)
    _, working = differentiable_input(x)
    ours = model.forward(working, setting.horizon)
    assert ours.requires_grad
    assert relative_difference(ours.detach(), generated) <= bound(setting.horizon)
    assert relative_difference(model.official(x, setting.horizon), generated) <= 1e-6


@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_what_stands_in_for_generate_on_newer_transformers_is_its_forecast(
    model: GeneratingForecaster, monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    needs_generate()
    x = series(3, setting.lookback)
    generated = model.official(x, setting.horizon)
    monkeypatch.setattr(GeneratingForecaster, "official_call", "forward")
    assert relative_difference(model.official(x, setting.horizon), generated) <= bound(setting.horizon)


@pytest.mark.parametrize("windows", [1, 5])
@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_forward_equals_the_official_call(model: GeneratingForecaster, setting: Setting, windows: int) -> None:
    x = series(windows, setting.lookback)
    official = model.official(x, setting.horizon)
    assert official.shape == (windows, setting.horizon)
    assert not official.requires_grad
    assert relative_difference(model.forward(x, setting.horizon), official) <= bound(setting.horizon)


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("horizon", [24, 120])
def test_hard_windows_keep_parity_and_finite_gradients(model: GeneratingForecaster, name: str, horizon: int) -> None:
    x = hard_windows(192)[name]
    y, slope = gradient(model, x, horizon)
    assert relative_difference(y, model.official(x, horizon)) <= 2e-6
    assert torch.isfinite(slope).all()


def test_a_flat_window_has_no_forecast_and_leaves_its_neighbour_alone(model: GeneratingForecaster) -> None:
    x = hard_windows(192)["one of two flat"]
    y, slope = gradient(model, x, 120)
    assert y[0].isnan().all()
    assert not slope[0].any()
    assert relative_difference(y[1:], model.official(x[1:], 120)) <= 2e-6


def test_the_oldest_values_that_fill_no_patch_are_not_read(model: GeneratingForecaster) -> None:
    x = series(2, 333)
    y, slope = gradient(model, x, 100)
    assert not slope[:, : 333 - 288].any()
    assert slope[:, 333 - 288 :].all()
    assert torch.equal(y, model.forward(x[:, -288:], 100))


def test_a_window_shorter_than_a_patch_is_refused_in_words(model: GeneratingForecaster) -> None:
    with pytest.raises(ModelError, match="needs a lookback of at least 96, not 95"):
        model.official(series(1, 95), 24)


def test_the_forecast_moves_and_scales_with_the_window(model: GeneratingForecaster) -> None:
    x = series(2, 192).double()
    twin = model.double()
    assert twin is not None
    assert relative_difference(twin.forward(7 * x + 5, 200), 7 * twin.forward(x, 200) + 5) <= 1e-9


def test_every_later_patch_is_standardised_by_its_own_statistics(model: GeneratingForecaster) -> None:
    """By definition: the decoder on the whole series, window and each forecast patch on scales of their own."""
    twin = model.double()
    assert isinstance(twin, DoubleTwin)
    x, library = series(2, 192).double(), twin._converted._model  # type: ignore[attr-defined]

    @quiet()
    @_double_precision()
    def unrolled(own_scale: bool) -> torch.Tensor:
        scales = [(x.mean(1, keepdim=True), x.std(1, keepdim=True))]
        tokens, made = (x - scales[0][0]) / scales[0][1], []
        for _ in range(3):
            hidden = library.model(input_ids=tokens, use_cache=False, return_dict=True).last_hidden_state
            made.append(library.lm_heads[0](hidden[:, -1]) * scales[-1][1] + scales[-1][0])
            scales.append((made[-1].mean(1, keepdim=True), made[-1].std(1, keepdim=True)) if own_scale else scales[0])
            tokens = torch.cat([tokens, (made[-1] - scales[-1][0]) / scales[-1][1]], dim=1)
        return torch.cat(made, dim=1)

    forecast = twin.forward(x, 288)
    assert forecast.dtype == torch.float64
    assert relative_difference(forecast, unrolled(own_scale=True)) <= 1e-9
    assert relative_difference(forecast, unrolled(own_scale=False)) > 1e-2


def test_patch_and_head_lengths_are_those_of_the_configuration(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = TimerConfig(
        input_token_len=8, output_token_lens=[8, 24], hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, initializer_range=0.3,
    )  # fmt: skip
    TimerForPrediction(config).save_pretrained(tmp_path)
    model, x = opened(load, tmp_path), series(2, 45)
    for horizon in (5, 8, 24, 31, 77):
        assert relative_difference(model.forward(x, horizon), model.official(x, horizon)) <= 2e-6
    assert model.limits.shortest_lookback == 8
    assert not gradient(model, x, 31)[1][:, :5].any()


def test_heads_that_make_no_whole_patches_are_refused_in_words(path: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="size mismatch"):
        opened(load, edited(path, tmp_path / "other-head", output_token_lens=[64]))
    torch.manual_seed(0)
    config = TimerConfig(input_token_len=8, output_token_lens=[12], hidden_size=8, num_attention_heads=2)
    TimerForPrediction(config).save_pretrained(tmp_path / "no-whole-patches")
    with pytest.raises(ModelError, match=r"forecasts \[12\] steps at once and reads patches of 8"):
        opened(load, tmp_path / "no-whole-patches")


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_rotary_tables_are_their_definition_on_every_transformers(path: Path, tmp_path: Path, stored: str) -> None:
    copy = edited(path, tmp_path / stored, torch_dtype=stored)
    table = opened(load, copy)._model.model.layers[1].self_attn.rotary_emb
    cosine, sine = rotary_tables(1000, 8)
    torch.testing.assert_close(table.cos_cached.double(), cosine, atol=1e-4, rtol=0)
    torch.testing.assert_close(table.sin_cached.double(), sine, atol=1e-4, rtol=0)


def test_code_that_the_checkpoint_brings_is_never_run(path: Path, tmp_path: Path) -> None:
    copy = edited(path, tmp_path / "with-code")
    for file in ("configuration_timer.py", "modeling_timer.py"):
        (copy / file).write_text("raise SystemExit('remote code was run')\n")
    assert opened(load, copy).official(series(1, 96), 24).shape == (1, 24)


def test_a_weight_that_the_file_lacks_is_named(model: GeneratingForecaster, path: Path, tmp_path: Path) -> None:
    assert model.unloaded() == ()
    copy = edited(path, tmp_path / "headless")
    weights = load_file(copy / "model.safetensors")
    weights.pop("lm_heads.0.weight")
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert opened(load, copy).unloaded() == ("lm_heads.0.weight",)


def test_the_model_is_frozen_in_float32_and_takes_windows_of_any_precision(model: GeneratingForecaster) -> None:
    assert not model._model.training
    assert {(p.dtype, p.requires_grad) for p in model._model.parameters()} == {(torch.float32, False)}
    x = series(2, 96)
    assert torch.equal(model.forward(x.double(), 24), model.forward(x, 24))


def test_the_callers_data_is_left_alone(model: GeneratingForecaster) -> None:
    x = series(2, 100)
    before = x.clone()
    model.forward(x, 120)
    model.official(x, 120)
    assert torch.equal(x, before)


def test_a_forecast_does_not_depend_on_the_windows_beside_it(model: GeneratingForecaster) -> None:
    x = series(6, 192)
    alone = torch.cat([model.official(window[None], 48) for window in x])
    assert relative_difference(model.official(x, 48), alone) <= 1e-6


def test_the_float64_twin_makes_the_same_forecast_in_float64(model: GeneratingForecaster) -> None:
    x, twin = series(2, 192), model.double()
    assert twin is not None
    forecast = twin.official(x.double(), 200)
    assert forecast.dtype == torch.float64
    assert relative_difference(twin.forward(x.double(), 200), forecast) <= 1e-12
    assert relative_difference(forecast, model.official(x, 200).double()) <= 1e-4
    assert model.official(x, 8).dtype == torch.float32


@pytest.mark.parametrize("setting", [Setting(96, 24), Setting(512, 96), Setting(512, 192)], ids=str)
def test_a_checkpoint_is_admitted_by_all_five_checks(model: GeneratingForecaster, setting: Setting) -> None:
    checks = admit(model, series(2, setting.lookback), setting.horizon)
    assert [check.check for check in checks if not check.passed] == []
    assert "float64" in checks[-1].note
