"""Timer against `generate` on the library's own load where that runs, and against slow definitions everywhere.

What it shares with other families is in test_families.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import hard_windows, series
from helpers.tiny_generate import edited, needs_generate, rotary_tables, timer
from sktime.libs.timer import TimerConfig, TimerForPrediction

from hrx.adapters import Forecaster, ModelError, load
from hrx.adapters.device import double_precision
from hrx.adapters.gradients import GradientPath, differentiable_input, relative_difference
from hrx.adapters.timer_timemoe import GeneratingForecaster, ignore_mask_warning
from hrx.audit.runner.plan import STAR, Setting

ODD = (Setting(100, 30), Setting(333, 100), Setting(512, 250))


def parity_limit(horizon: int) -> float:
    """The first patch is the same computation; beyond it the two differ by a cache."""
    return 0.0 if horizon <= 96 else 2e-6


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return timer(tmp_path_factory.mktemp("timer") / "tiny-timer")


@pytest.fixture(scope="module")
def model(path: Path) -> Any:
    return load(str(path))


def gradient(model: Forecaster, x: torch.Tensor, horizon: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The forecast, and the gradient of the sum of its finite values."""
    with GradientPath():
        leaf, working = differentiable_input(x)
        y = model.forward(working, horizon)
        (slope,) = torch.autograd.grad(y.nansum(), leaf)
    return y.detach(), slope


@pytest.mark.parametrize("windows", [1, 5])
@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_the_forecast_equals_generate_on_the_checkpoint_as_the_library_loads_it(
    model: Any, path: Path, setting: Setting, windows: int
) -> None:
    needs_generate()
    x = series(windows, setting.lookback)
    generated = TimerForPrediction.from_pretrained(path).eval().generate(x, max_new_tokens=setting.horizon)
    _, working = differentiable_input(x)
    ours = model.forward(working, setting.horizon)
    assert ours.requires_grad
    assert relative_difference(ours.detach(), generated) <= parity_limit(setting.horizon)
    assert relative_difference(model.official(x, setting.horizon), generated) <= 1e-6


@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_the_substitute_for_generate_on_newer_transformers_computes_its_forecast(
    model: Any, monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    needs_generate()
    x = series(3, setting.lookback)
    generated = model.official(x, setting.horizon)
    monkeypatch.setattr(GeneratingForecaster, "official_call", "forward")
    assert relative_difference(model.official(x, setting.horizon), generated) <= parity_limit(setting.horizon)


def test_a_flat_window_has_no_forecast_and_does_not_change_its_neighbour(model: Any) -> None:
    x = hard_windows(192)["one of two flat"]
    y, slope = gradient(model, x, 120)
    assert y[0].isnan().all()
    assert not slope[0].any()
    assert relative_difference(y[1:], model.official(x[1:], 120)) <= 2e-6


def test_the_oldest_values_that_do_not_fill_a_patch_are_not_read(model: Any) -> None:
    x = series(2, 333)
    y, slope = gradient(model, x, 100)
    assert not slope[:, : 333 - 288].any()
    assert slope[:, 333 - 288 :].all()
    assert torch.equal(y, model.forward(x[:, -288:], 100))


def test_a_window_shorter_than_a_patch_is_refused_in_a_sentence(model: Any) -> None:
    with pytest.raises(ModelError, match="needs a lookback of at least 96, not 95"):
        model.official(series(1, 95), 24)


def test_the_forecast_moves_and_scales_with_the_window(model: Any) -> None:
    x = series(2, 192).double()
    twin = model.double()
    assert relative_difference(twin.forward(7 * x + 5, 200), 7 * twin.forward(x, 200) + 5) <= 1e-9


def test_every_later_patch_is_standardised_by_its_own_statistics(model: Any) -> None:
    """By definition: the decoder on the whole series; the window and each forecast patch have scales of their own."""
    twin = model.double()
    x, library = series(2, 192).double(), twin._converted.module

    @ignore_mask_warning()
    @double_precision()
    def unrolled(own_scale: bool) -> torch.Tensor:
        scales = [(x.mean(1, keepdim=True), x.std(1, keepdim=True))]
        tokens, patches = (x - scales[0][0]) / scales[0][1], []
        for _ in range(3):
            hidden = library.model(input_ids=tokens, use_cache=False, return_dict=True).last_hidden_state
            patches.append(library.lm_heads[0](hidden[:, -1]) * scales[-1][1] + scales[-1][0])
            scales.append(
                (patches[-1].mean(1, keepdim=True), patches[-1].std(1, keepdim=True)) if own_scale else scales[0]
            )
            tokens = torch.cat([tokens, (patches[-1] - scales[-1][0]) / scales[-1][1]], dim=1)
        return torch.cat(patches, dim=1)

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
    model, x = load(f"timer:{tmp_path}"), series(2, 45)
    for horizon in (5, 8, 24, 31, 77):
        assert relative_difference(model.forward(x, horizon), model.official(x, horizon)) <= 2e-6
    assert model.limits.shortest_lookback == 8
    assert not gradient(model, x, 31)[1][:, :5].any()


def test_heads_that_do_not_forecast_whole_patches_are_refused_in_a_sentence(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="size mismatch"):
        load(str(edited(path, tmp_path / "other-head", output_token_lens=[64])))
    torch.manual_seed(0)
    config = TimerConfig(input_token_len=8, output_token_lens=[12], hidden_size=8, num_attention_heads=2)
    TimerForPrediction(config).save_pretrained(tmp_path / "partial-patches")
    with pytest.raises(ModelError, match=r"forecasts \[12\] steps at once and reads patches of 8"):
        load(f"timer:{tmp_path / 'partial-patches'}")


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_rotary_tables_are_their_definition_on_every_transformers(path: Path, tmp_path: Path, stored: str) -> None:
    copy = edited(path, tmp_path / stored, torch_dtype=stored)
    model: Any = load(str(copy))
    table = model.module.model.layers[1].self_attn.rotary_emb
    cosine, sine = rotary_tables(1000, 8)
    torch.testing.assert_close(table.cos_cached.double(), cosine, atol=1e-4, rtol=0)
    torch.testing.assert_close(table.sin_cached.double(), sine, atol=1e-4, rtol=0)


def test_code_in_the_checkpoint_is_never_run(path: Path, tmp_path: Path) -> None:
    copy = edited(path, tmp_path / "with-code")
    for file in ("configuration_timer.py", "modeling_timer.py"):
        (copy / file).write_text("raise SystemExit('remote code was run')\n")
    assert load(str(copy)).official(series(1, 96), 24).shape == (1, 24)


def test_windows_of_any_precision_are_accepted(model: Any) -> None:
    x = series(2, 96)
    assert torch.equal(model.forward(x.double(), 24), model.forward(x, 24))
