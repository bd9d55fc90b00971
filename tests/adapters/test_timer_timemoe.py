"""Timer and TimeMoE against `generate` on the library's own load where that runs, and against slow definitions.

What they share with other families is in test_families.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers.tiny import forecast_and_gradient, hard_windows, series
from helpers.tiny_generate import FAMILIES, edited, rotary_tables
from sktime.libs.timemoe import TimeMoeForPrediction
from sktime.libs.timer import TimerConfig, TimerForPrediction

from hrx.adapters import ModelError, load
from hrx.adapters.checkpoint import ignore_warning
from hrx.adapters.families.timer_timemoe import MASK_MOVES, GeneratingForecaster
from hrx.adapters.gradients import GradientPath, relative_difference
from hrx.adapters.wrapped import DoubleTwin, double_precision
from hrx.audit.admission import DERIVATIVE_LIMIT_DOUBLE
from hrx.audit.attribution.gradients import jacobian
from hrx.audit.runner.plan import STAR, Setting

needs_generate = pytest.mark.skipif(
    not GeneratingForecaster.generates,
    reason="generate runs with transformers 4.40 only: this test runs in the environment .venv-generate",
)
SETTINGS = (*STAR, Setting(100, 30), Setting(333, 100), Setting(512, 250))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: build(tmp_path_factory.mktemp("tiny") / name) for name, build in FAMILIES.items()}


@pytest.fixture(scope="module")
def timer(paths: dict[str, Path]) -> Any:
    return load(str(paths["timer"]))


@pytest.fixture(scope="module")
def timemoe(paths: dict[str, Path]) -> Any:
    return load(str(paths["timemoe"]))


@needs_generate
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_timer_equals_generate_on_the_checkpoint_as_the_library_loads_it(
    timer: Any, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    # The first patch is the same computation; beyond it the two differ by a cache.
    limit = 0.0 if setting.horizon <= 96 else 2e-6
    library = TimerForPrediction.from_pretrained(paths["timer"]).eval()
    for windows in (1, 5):
        x = series(windows, setting.lookback)
        generated = library.generate(x, max_new_tokens=setting.horizon)
        assert relative_difference(forecast_and_gradient(timer, x, setting.horizon)[0], generated) <= limit
        assert relative_difference(timer.official(x, setting.horizon), generated) <= 1e-6
    # The substitute on newer transformers computes the same forecast.
    monkeypatch.setattr(GeneratingForecaster, "generates", False)
    assert relative_difference(timer.official(x, setting.horizon), generated) <= limit


@needs_generate
@pytest.mark.parametrize("setting", [*SETTINGS, Setting(17, 5)], ids=str)
def test_timemoe_equals_generate_on_the_checkpoint_as_the_library_loads_it(
    timemoe: Any, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    library = TimeMoeForPrediction.from_pretrained(paths["timemoe"]).eval()
    for windows in (1, 4):
        x = series(windows, setting.lookback)
        mean, std = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True)
        output = library.generate((x - mean) / std, max_new_tokens=setting.horizon)
        assert output.shape == (windows, setting.lookback + setting.horizon)
        generated = output[:, -setting.horizon :] * std + mean
        assert relative_difference(forecast_and_gradient(timemoe, x, setting.horizon)[0], generated) <= 1e-6
        assert relative_difference(timemoe.official(x, setting.horizon), generated) <= 1e-6
    # The substitute on newer transformers recomputes the whole series at every step, which rounds differently.
    monkeypatch.setattr(GeneratingForecaster, "generates", False)
    assert relative_difference(timemoe.official(x, setting.horizon), generated) <= 5e-6


@pytest.mark.parametrize(("name", "module"), [("timer", "timer"), ("timemoe", "time_moe")])
def test_code_in_the_checkpoint_is_never_run(paths: dict[str, Path], tmp_path: Path, name: str, module: str) -> None:
    copy = edited(paths[name], tmp_path / "with-code")
    for file in (f"configuration_{module}.py", f"modeling_{module}.py"):
        (copy / file).write_text("raise SystemExit('remote code was run')\n")
    assert load(str(copy)).official(series(1, 96), 4).shape == (1, 4)


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "positions"), [("timer", 1000), ("timemoe", 1024)])
def test_rotary_tables_equal_their_definition_whatever_the_stored_precision(
    paths: dict[str, Path], tmp_path: Path, name: str, positions: int, stored: str
) -> None:
    """TimeMoE's `config.json` on the hub says bfloat16; the official call on its transformers computes in float32."""
    model: Any = load(str(edited(paths[name], tmp_path / stored, torch_dtype=stored)))
    assert {p.dtype for p in model.module.parameters()} == {torch.float32}
    assert model.unloaded() == ()
    table = model.module.model.layers[1].self_attn.rotary_emb
    cosine, sine = rotary_tables(positions, 8)
    torch.testing.assert_close(table.cos_cached.double(), cosine, atol=1e-4, rtol=0)
    torch.testing.assert_close(table.sin_cached.double(), sine, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "lookback", "sentence"),
    [("timer", 95, "at least 96, not 95"), ("timemoe", 1, "at least 2, not 1")],
)
def test_a_lookback_that_is_too_short_is_refused_in_a_sentence(
    paths: dict[str, Path], name: str, lookback: int, sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence):
        load(str(paths[name])).official(series(1, lookback), 4)


@pytest.mark.parametrize("name", FAMILIES)
def test_windows_of_any_precision_are_accepted(paths: dict[str, Path], name: str) -> None:
    model, x = load(str(paths[name])), series(2, 96)
    assert torch.equal(model.forward(x.double(), 24), model.forward(x, 24))


# Timer


def test_a_flat_window_has_no_forecast_and_does_not_change_its_neighbour(timer: Any) -> None:
    x = hard_windows(192)["one of two flat"]
    y, slope = forecast_and_gradient(timer, x, 120)
    assert y[0].isnan().all()
    assert not slope[0].any()
    assert relative_difference(y[1:], timer.official(x[1:], 120)) <= 2e-6


def test_the_oldest_values_that_do_not_fill_a_patch_are_not_read(timer: Any) -> None:
    x = series(2, 333)
    y, slope = forecast_and_gradient(timer, x, 100)
    assert not slope[:, : 333 - 288].any()
    assert slope[:, 333 - 288 :].all()
    assert torch.equal(y, timer.forward(x[:, -288:], 100))


def test_the_forecast_moves_and_scales_with_the_window(timer: Any) -> None:
    x = series(2, 192).double()
    twin = timer.double()
    assert relative_difference(twin.forward(7 * x + 5, 200), 7 * twin.forward(x, 200) + 5) <= 1e-9


def test_every_later_patch_is_standardised_by_its_own_statistics(timer: Any) -> None:
    """By definition: the decoder on the whole series; the window and each forecast patch have scales of their own."""
    twin = timer.double()
    x, library = series(2, 192).double(), twin._base.module

    @ignore_warning(MASK_MOVES)
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
    assert not forecast_and_gradient(model, x, 31)[1][:, :5].any()


def test_heads_that_do_not_forecast_whole_patches_are_refused_in_a_sentence(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="size mismatch"):
        load(str(edited(paths["timer"], tmp_path / "other-head", output_token_lens=[64])))
    torch.manual_seed(0)
    config = TimerConfig(input_token_len=8, output_token_lens=[12], hidden_size=8, num_attention_heads=2)
    TimerForPrediction(config).save_pretrained(tmp_path / "partial-patches")
    with pytest.raises(ModelError, match=r"forecasts \[12\] steps at once and reads patches of 8"):
        load(f"timer:{tmp_path / 'partial-patches'}")


# TimeMoE


@pytest.mark.parametrize(
    ("horizon", "heads"),
    [(96, [64, 32]), (192, [64, 64, 64]), (24, [8, 8, 8]), (5, [1] * 5), (106, [64, 32, 8, 1, 1])],
)
def test_every_step_uses_the_longest_head_that_fits_the_remaining_horizon(
    timemoe: Any, horizon: int, heads: list[int]
) -> None:
    used: list[int] = []
    hooks = [head.register_forward_hook(lambda _, __, y: used.append(y.shape[-1])) for head in timemoe.module.lm_heads]
    timemoe.forward(series(1, 40), horizon)
    for hook in hooks:
        hook.remove()
    assert used == heads


def test_the_decoder_reads_the_window_divided_by_its_unbiased_standard_deviation(timemoe: Any) -> None:
    inputs: list[torch.Tensor] = []
    hook = timemoe.module.model.embed_layer.register_forward_hook(lambda _, given, __: inputs.append(given[0]))
    timemoe.forward(series(3, 10), 1)
    hook.remove()
    torch.testing.assert_close(inputs[0][..., 0].std(dim=1, correction=1), torch.ones(3))
    torch.testing.assert_close(inputs[0][..., 0].mean(dim=1), torch.zeros(3), atol=1e-6, rtol=0)


def test_a_leaf_is_accepted_and_no_data_is_reshaped_in_place(timemoe: Any) -> None:
    x = series(2, 40)
    leaf = x.clone().requires_grad_()
    with GradientPath() as path:
        timemoe.predict(leaf, 70).sum().backward()
    assert not [r for r in path.rewrites if "unsqueeze" in r.operation]
    assert leaf.grad is not None
    assert leaf.grad.any()
    timemoe.official(x, 70)
    assert x.shape == (2, 40)
    assert torch.equal(x, leaf.detach())


class Difference(NamedTuple):
    """A central finite difference of the official call beside the directional derivative."""

    error: float
    flips: int
    """How many tokens, over all layers and steps, change an expert between the two ends and the middle."""


@contextmanager
def routing(twin: DoubleTwin) -> Iterator[list[torch.Tensor]]:
    """Experts `(tokens, k)` of every layer and step run inside; their order within a token does not matter."""
    chosen: list[torch.Tensor] = []
    library = twin._base.module  # type: ignore[attr-defined]
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
def twin(timemoe: Any) -> Any:
    return timemoe.double()


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
