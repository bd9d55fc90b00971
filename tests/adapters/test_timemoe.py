"""TimeMoE against `generate` on the library's own load where that runs, its heads, and its routing.

What it shares with other families is in test_families.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers.tiny import series
from helpers.tiny_generate import edited, needs_generate, rotary_tables, timemoe
from sktime.libs.timemoe import TimeMoeForPrediction

from hrx.adapters import ModelError, load
from hrx.adapters.device import DoubleTwin
from hrx.adapters.gradients import GradientPath, differentiable_input, relative_difference
from hrx.adapters.timer_timemoe import GeneratingForecaster
from hrx.audit.admission.checks import DERIVATIVE_LIMIT_DOUBLE
from hrx.audit.attribution.jacobian import jacobian
from hrx.audit.runner.plan import STAR, Setting

ODD = (Setting(100, 30), Setting(17, 5), Setting(333, 100), Setting(512, 250))
SUBSTITUTE_LIMIT = 5e-6
"""Rounding when the whole series is recomputed at every step, while `generate` caches; parity itself is 1e-6."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return timemoe(tmp_path_factory.mktemp("timemoe") / "tiny-timemoe")


@pytest.fixture(scope="module")
def model(path: Path) -> Any:
    return load(str(path))


@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_the_forecast_equals_generate_on_the_checkpoint_as_the_library_loads_it(
    model: Any, path: Path, setting: Setting
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
def test_the_substitute_for_generate_on_newer_transformers_computes_its_forecast(
    model: Any, monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    needs_generate()
    x = series(2, setting.lookback)
    generated = model.official(x, setting.horizon)
    monkeypatch.setattr(GeneratingForecaster, "official_call", "forward")
    assert relative_difference(model.official(x, setting.horizon), generated) <= SUBSTITUTE_LIMIT


@pytest.mark.parametrize(
    ("horizon", "heads"),
    [(96, [64, 32]), (192, [64, 64, 64]), (24, [8, 8, 8]), (5, [1] * 5), (106, [64, 32, 8, 1, 1])],
)
def test_every_step_uses_the_longest_head_that_fits_the_remaining_horizon(
    model: Any, horizon: int, heads: list[int]
) -> None:
    used: list[int] = []
    hooks = [head.register_forward_hook(lambda _, __, y: used.append(y.shape[-1])) for head in model.module.lm_heads]
    model.forward(series(1, 40), horizon)
    for hook in hooks:
        hook.remove()
    assert used == heads


def test_the_decoder_reads_the_window_divided_by_its_unbiased_standard_deviation(model: Any) -> None:
    inputs: list[torch.Tensor] = []
    hook = model.module.model.embed_layer.register_forward_hook(lambda _, given, __: inputs.append(given[0]))
    model.forward(series(3, 10), 1)
    hook.remove()
    torch.testing.assert_close(inputs[0][..., 0].std(dim=1, correction=1), torch.ones(3))
    torch.testing.assert_close(inputs[0][..., 0].mean(dim=1), torch.zeros(3), atol=1e-6, rtol=0)


def test_a_leaf_is_accepted_and_no_data_is_reshaped_in_place(model: Any) -> None:
    x = series(2, 40)
    leaf = x.clone().requires_grad_()
    with GradientPath() as path:
        model.predict(leaf, 70).sum().backward()
    assert not [r for r in path.rewrites if "unsqueeze" in r.operation]
    assert leaf.grad is not None
    assert leaf.grad.any()
    model.official(x, 70)
    assert x.shape == (2, 40)
    assert torch.equal(x, leaf.detach())


def test_weights_stored_in_bfloat16_run_in_float32_with_exact_rotary_tables(model: Any) -> None:
    """The hub's `config.json` says bfloat16; the official call on its transformers computes in float32."""
    assert model.module.config.to_dict().get("torch_dtype", "bfloat16") in ("bfloat16", torch.bfloat16)
    assert {(p.dtype, p.requires_grad) for p in model.module.parameters()} == {(torch.float32, False)}
    assert model.unloaded() == ()
    table = model.module.model.layers[1].self_attn.rotary_emb
    cosine, sine = rotary_tables(1024, 8)
    torch.testing.assert_close(table.cos_cached.double(), cosine, atol=1e-4, rtol=0)
    torch.testing.assert_close(table.sin_cached.double(), sine, atol=1e-4, rtol=0)


def test_code_in_the_checkpoint_is_never_run(path: Path, tmp_path: Path) -> None:
    copy = edited(path, tmp_path / "with-code")
    for file in ("configuration_time_moe.py", "modeling_time_moe.py"):
        (copy / file).write_text("raise SystemExit('remote code was run')\n")
    assert load(str(copy)).official(series(1, 40), 4).shape == (1, 4)


@pytest.mark.parametrize(("lookback", "words"), [(1, "at least 2, not 1"), (1025, "at most 1024, not 1025")])
def test_a_lookback_outside_the_limits_is_refused_in_a_sentence(model: Any, lookback: int, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        model.official(series(1, lookback), 4)


class Difference(NamedTuple):
    """A central finite difference of the official call beside the directional derivative."""

    error: float
    flips: int
    """How many tokens, over all layers and steps, change an expert between the two ends and the middle."""


@contextmanager
def routing(twin: DoubleTwin) -> Iterator[list[torch.Tensor]]:
    """The experts `(tokens, k)` of every layer and step run inside; their order within a token does not matter."""
    chosen: list[torch.Tensor] = []
    library = twin._converted.module  # type: ignore[attr-defined]
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
def twin(model: Any) -> Any:
    return model.double()


def test_derivatives_agree_wherever_no_expert_flips(twin: DoubleTwin) -> None:
    x = series(1, 60).double()
    directions = torch.randn(6, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = jacobian(twin, x, 40).jacobian[0]
    near = [difference(twin, x, 40, direction * 1e-5, rows) for direction in directions]
    far = [difference(twin, x, 40, direction * 1e-1, rows) for direction in directions]
    smooth = [one.error for one in near if not one.flips]
    assert len(smooth) >= 5
    assert max(smooth) <= DERIVATIVE_LIMIT_DOUBLE
    assert all(one.flips for one in far)


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
