"""TimeMoE against its official `generate` where that runs, and against slow definitions everywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from helpers.tiny import series
from helpers.tiny_generate import HARD, edited, hard_windows, needs_generate, opened, rotary_tables, timemoe
from sktime.libs.timemoe import TimeMoeForPrediction

from hrx.adapters import Forecaster, ModelError
from hrx.adapters.gradients import GradientPath, differentiable_input, relative_difference
from hrx.adapters.precision import DoubleTwin
from hrx.adapters.timemoe import load
from hrx.adapters.timer import GeneratingForecaster
from hrx.audit.admission.checks import DERIVATIVE_LIMIT_DOUBLE, admit
from hrx.audit.attribution.jacobian import jacobian
from hrx.audit.runner.plan import STAR, Setting

ODD = (Setting(100, 30), Setting(17, 5), Setting(333, 100), Setting(512, 250))
STAND_IN = 5e-6
"""Rounding of a whole series made anew at every step, where `generate` keeps what it has; parity itself is 1e-6."""
PARITY = 1e-6 if GeneratingForecaster.official_call == "generate" else STAND_IN


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return timemoe(tmp_path_factory.mktemp("timemoe") / "tiny-timemoe")


@pytest.fixture(scope="module")
def model(path: Path) -> GeneratingForecaster:
    return opened(load, path)


@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_the_forecast_is_that_of_generate_on_the_checkpoint_as_the_library_loads_it(
    model: GeneratingForecaster, path: Path, setting: Setting
) -> None:
    needs_generate()
    library = TimeMoeForPrediction.from_pretrained(path).eval()
    for windows in (1, 4):
        x = series(windows, setting.lookback)
        mean, std = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True)
        output = library.generate((x - mean) / std, max_new_tokens=setting.horizon)
        assert output.shape == (windows, setting.lookback + setting.horizon)
        generated = output[:, -setting.horizon :] * std + mean
        _, working = differentiable_input(x)
        ours = model.forward(working, setting.horizon)
        assert ours.requires_grad
        assert relative_difference(ours.detach(), generated) <= 1e-6
        assert relative_difference(model.official(x, setting.horizon), generated) <= 1e-6


@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_what_stands_in_for_generate_on_newer_transformers_is_its_forecast(
    model: GeneratingForecaster, monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    needs_generate()
    x = series(2, setting.lookback)
    generated = model.official(x, setting.horizon)
    monkeypatch.setattr(GeneratingForecaster, "official_call", "forward")
    assert relative_difference(model.official(x, setting.horizon), generated) <= STAND_IN


@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_forward_equals_the_official_call(model: GeneratingForecaster, setting: Setting) -> None:
    for windows in (1, 4):
        x = series(windows, setting.lookback)
        official = model.official(x, setting.horizon)
        assert official.shape == (windows, setting.horizon)
        assert not official.requires_grad
        assert relative_difference(model.forward(x, setting.horizon), official) <= PARITY


@pytest.mark.parametrize("name", HARD)
def test_hard_windows_keep_parity_and_finite_gradients(model: GeneratingForecaster, name: str) -> None:
    x = hard_windows(96)[name]
    with GradientPath():
        leaf, working = differentiable_input(x)
        y = model.forward(working, 40)
        (slope,) = torch.autograd.grad(y.nansum(), leaf)
    assert relative_difference(y.detach(), model.official(x, 40)) <= PARITY
    assert torch.isfinite(slope).all()
    assert torch.equal(y.isnan().all(dim=1), x.std(dim=1) == 0)


@pytest.mark.parametrize(
    ("horizon", "heads"),
    [(96, [64, 32]), (192, [64, 64, 64]), (24, [8, 8, 8]), (5, [1] * 5), (106, [64, 32, 8, 1, 1])],
)
def test_every_step_takes_the_longest_head_that_fits_what_is_left(
    model: GeneratingForecaster, horizon: int, heads: list[int]
) -> None:
    taken: list[int] = []
    hooks = [head.register_forward_hook(lambda _, __, y: taken.append(y.shape[-1])) for head in model._model.lm_heads]
    model.forward(series(1, 40), horizon)
    for hook in hooks:
        hook.remove()
    assert taken == heads


def test_the_decoder_reads_the_window_on_the_scale_of_its_unbiased_spread(model: GeneratingForecaster) -> None:
    read: list[torch.Tensor] = []
    hook = model._model.model.embed_layer.register_forward_hook(lambda _, given, __: read.append(given[0]))
    model.forward(series(3, 10), 1)
    hook.remove()
    torch.testing.assert_close(read[0][..., 0].std(dim=1, correction=1), torch.ones(3))
    torch.testing.assert_close(read[0][..., 0].mean(dim=1), torch.zeros(3), atol=1e-6, rtol=0)


def test_a_leaf_is_taken_as_it_is_and_no_data_is_reshaped_in_place(model: GeneratingForecaster) -> None:
    x = series(2, 40)
    leaf = x.clone().requires_grad_()
    with GradientPath() as path:
        model.predict(leaf, 70).sum().backward()
    assert not [found for found in path.rewrites if "unsqueeze" in found.operation]
    assert leaf.grad is not None
    assert leaf.grad.any()
    model.official(x, 70)
    assert x.shape == (2, 40)
    assert torch.equal(x, leaf.detach())


def test_a_forecast_does_not_depend_on_the_windows_beside_it(model: GeneratingForecaster) -> None:
    x = series(6, 96)
    alone = torch.cat([model.official(window[None], 48) for window in x])
    assert relative_difference(model.official(x, 48), alone) <= 1e-6


def test_weights_stored_in_bfloat16_run_in_float32_with_exact_rotary_tables(model: GeneratingForecaster) -> None:
    """The hub's `config.json` says bfloat16; the official call on its transformers computes in float32 all the same."""
    assert model._model.config.to_dict().get("torch_dtype", "bfloat16") in ("bfloat16", torch.bfloat16)
    assert {(p.dtype, p.requires_grad) for p in model._model.parameters()} == {(torch.float32, False)}
    assert model.unloaded() == ()
    table = model._model.model.layers[1].self_attn.rotary_emb
    cosine, sine = rotary_tables(1024, 8)
    torch.testing.assert_close(table.cos_cached.double(), cosine, atol=1e-4, rtol=0)
    torch.testing.assert_close(table.sin_cached.double(), sine, atol=1e-4, rtol=0)


def test_code_that_the_checkpoint_brings_is_never_run(path: Path, tmp_path: Path) -> None:
    copy = edited(path, tmp_path / "with-code")
    for file in ("configuration_time_moe.py", "modeling_time_moe.py"):
        (copy / file).write_text("raise SystemExit('remote code was run')\n")
    assert opened(load, copy).official(series(1, 40), 4).shape == (1, 4)


@pytest.mark.parametrize(("lookback", "words"), [(1, "at least 2, not 1"), (1025, "at most 1024, not 1025")])
def test_a_lookback_outside_the_limits_is_refused_in_words(
    model: GeneratingForecaster, lookback: int, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        model.official(series(1, lookback), 4)


def test_the_float64_twin_makes_the_same_forecast_in_float64(model: GeneratingForecaster) -> None:
    x, twin = series(2, 96), model.double()
    assert twin is not None
    forecast = twin.official(x.double(), 40)
    assert forecast.dtype == torch.float64
    assert relative_difference(twin.forward(x.double(), 40), forecast) <= 1e-12
    assert relative_difference(forecast, model.official(x, 40).double()) <= 1e-4
    assert model.official(x, 8).dtype == torch.float32


@pytest.mark.parametrize("setting", [Setting(96, 24), Setting(48, 96)], ids=str)
def test_a_checkpoint_is_admitted_by_all_five_checks(model: GeneratingForecaster, setting: Setting) -> None:
    checks = admit(model, series(2, setting.lookback), setting.horizon)
    assert [check.check for check in checks if not check.passed] == []
    assert "float64" in checks[-1].note


class Difference(NamedTuple):
    """A central finite difference of the official call beside the directional derivative."""

    error: float
    flips: int
    """How many tokens, over all layers and steps, change an expert between the two ends and the middle."""


@contextmanager
def routing(twin: DoubleTwin) -> Iterator[list[torch.Tensor]]:
    """The experts `(tokens, k)` of every layer and step run inside; their order within a token does not matter."""
    chosen: list[torch.Tensor] = []
    library = twin._converted._model  # type: ignore[attr-defined]
    k = library.config.num_experts_per_tok
    hooks = [
        layer.ffn_layer.gate.register_forward_hook(lambda _, __, y: chosen.append(y.topk(k).indices.sort().values))
        for layer in library.model.layers
    ]
    yield chosen
    for hook in hooks:
        hook.remove()


def experts(twin: DoubleTwin, x: torch.Tensor, horizon: int) -> torch.Tensor:
    with routing(twin) as chosen, torch.no_grad():
        twin.forward(x, horizon)
    return torch.cat(chosen)


def difference(
    twin: DoubleTwin, x: torch.Tensor, horizon: int, move: torch.Tensor, rows: torch.Tensor | None = None
) -> Difference:
    """Compares `J · move` with half the change of the official forecast from `x − move` to `x + move`."""
    slope = (jacobian(twin, x, horizon).jacobian[0] if rows is None else rows) @ move
    change = (twin.official(x + move, horizon) - twin.official(x - move, horizon))[0] / 2
    middle = experts(twin, x, horizon)
    flips = sum(int((experts(twin, end, horizon) != middle).any(dim=1).sum()) for end in (x - move, x + move))
    return Difference(float((slope - change).norm() / change.norm()), flips)


@pytest.fixture(scope="module")
def twin(model: GeneratingForecaster) -> Forecaster:
    return model.double()


def test_derivatives_agree_wherever_no_expert_flips(twin: DoubleTwin) -> None:
    x = series(1, 60).double()
    directions = torch.randn(6, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = jacobian(twin, x, 40).jacobian[0]
    near = [difference(twin, x, 40, direction * 1e-5, rows) for direction in directions]
    far = [difference(twin, x, 40, direction * 1e-1, rows) for direction in directions]
    smooth = [found.error for found in near if not found.flips]
    assert len(smooth) >= 5
    assert max(smooth) <= DERIVATIVE_LIMIT_DOUBLE
    assert all(found.flips for found in far)


def test_a_finite_difference_across_a_flip_is_off_and_those_beside_it_agree(twin: DoubleTwin) -> None:
    x = series(1, 60).double()
    direction = torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    start, low, high = experts(twin, x, 8), 0.0, 0.1
    assert not torch.equal(start, experts(twin, x + high * direction, 8))
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if torch.equal(start, experts(twin, x + middle * direction, 8)) else (low, middle)
    move = 1e-6 * direction
    before, across, after = (difference(twin, x + (low + shift) * direction, 8, move) for shift in (-4e-6, 0, 4e-6))
    assert (before.flips, after.flips) == (0, 0)
    assert max(before.error, after.error) <= DERIVATIVE_LIMIT_DOUBLE
    assert across.flips >= 1
    assert across.error > 1e-2
