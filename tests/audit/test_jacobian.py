"""Jacobian rows against one backward pass per step, and what happens where memory or a batching rule is missing."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath, from_module, load
from hrx.adapters.gradients import backward_alone, differentiable_input
from hrx.audit import Protocol, explain, score
from hrx.audit.attribution.gradients import ROWS_AT_ONCE, WINDOWS_TOGETHER, derivatives, jacobian
from hrx.errors import HrxError, ProtocolError

FAMILIES = ("chronos-bolt", "chronos-2", "ttm", "moirai-2")


def one_backward_pass_per_step(model: Forecaster, x: Tensor, horizon: int) -> Tensor:
    """`(W, H, L)`: a forward and a backward pass for every window and step."""
    rows = []
    for window in x:
        for h in range(horizon):
            with GradientPath():
                leaf, working = differentiable_input(window[None])
                rows.append(torch.autograd.grad(model.forward(working, horizon)[0, h], leaf)[0][0])
    return torch.stack(rows).unflatten(0, (len(x), horizon))


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_equal_those_of_one_backward_pass_per_step(checkpoints: dict[str, Path], family: str) -> None:
    model, x = load(str(checkpoints[family])), series(2, 96)
    expected = one_backward_pass_per_step(model, x, 20)
    # One pass per step of this random Chronos-2 is itself 2.2e-6 from the rows in float64: rounding.
    bound = 2e-6 if family == "chronos-2" else 1e-6
    assert (jacobian(model, x, 20).jacobian - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_in_float64_they_agree_to_ten_digits(checkpoints: dict[str, Path], family: str) -> None:
    model, x = load(str(checkpoints[family])).double(), series(2, 96).double()
    assert model is not None
    expected = one_backward_pass_per_step(model, x, 20)
    assert expected.dtype == torch.float64
    assert (jacobian(model, x, 20).jacobian - expected).abs().max() <= 1e-10 * expected.abs().max()


@pytest.mark.parametrize(
    ("windows", "horizon", "expected"),
    [
        (25, 24, [10, 10, 5]),  # as many as fill a block
        (10, 96, [8, 2]),  # eight, although their rows need several blocks
        (1, 96, [1]),
    ],
)
def test_windows_of_a_run_share_a_forward_pass(windows: int, horizon: int, expected: list[int]) -> None:
    assert (ROWS_AT_ONCE, WINDOWS_TOGETHER) == (256, 8)
    batches = []

    def forecast(x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            batches.append(len(x))
        return (x * x)[:, :horizon]

    x = series(windows, 100)
    rows = jacobian(from_module(forecast), x, horizon).jacobian
    assert batches == expected
    assert torch.equal(rows, torch.diag_embed(2 * x)[:, :horizon])


def count_blocks(monkeypatch: pytest.MonkeyPatch, most: int = 10**9) -> list[tuple[int, int]]:
    """Records `(rows, windows)` of every block; one of more than `most` rows in all runs out of memory."""
    blocks, vmap = [], torch.func.vmap

    def limited(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def call(block: Tensor) -> Tensor:
            blocks.append((block.shape[0], block.shape[1]))
            if block.shape[0] * block.shape[1] > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            result: Tensor = vmap(function)(block)
            return result

        return call

    monkeypatch.setattr(torch.func, "vmap", limited)
    return blocks


def test_a_block_holds_rows_of_all_windows_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = count_blocks(monkeypatch)
    jacobian(from_module(lambda x: (x * x)[:, :96]), series(8, 100), 96)
    assert blocks == 4 * [(24, 8)]


def test_more_rows_than_a_block_holds_need_several_blocks() -> None:
    horizon = 2 * ROWS_AT_ONCE + 5
    weight = torch.randn(16, horizon, generator=torch.Generator().manual_seed(0))
    rows = jacobian(from_module(lambda x: x @ weight), series(2, 16), horizon).jacobian
    assert torch.allclose(rows, weight.T.expand(2, -1, -1))


def test_weighted_sums_of_the_forecast_have_the_weighted_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, picks = torch.randn(16, 12, generator=generator), torch.randn(5, 12, generator=generator)
    model, x = from_module(lambda x: torch.sin(x) @ weight), series(6, 16)
    expected = (picks @ weight.T) * torch.cos(x)[:, None]
    assert torch.allclose(derivatives(model, x, 12, picks).jacobian, expected, atol=1e-5)


def test_a_forecast_that_does_not_use_the_window_has_rows_of_zeros() -> None:
    model = from_module(lambda x: torch.ones(len(x), 12))
    rows = jacobian(model, series(2, 16), 12, steps=np.array([3, 7])).jacobian
    assert torch.equal(rows, torch.zeros(2, 2, 16))


def test_a_root_at_zero_has_a_zero_gradient_and_is_listed_as_a_rewrite() -> None:
    x = series(2, 16)
    result = jacobian(from_module(lambda x: (x * (x > 0)).sqrt()[:, :12]), x, 12)
    slopes = torch.where(x > 0, 0.5 / x.clamp_min(1e-30).sqrt(), 0.0)
    assert (x[:, :12] <= 0).any()
    assert torch.allclose(result.jacobian, torch.diag_embed(slopes)[:, :12])
    assert [(met.operation, met.count) for met in result.rewrites] == [("sqrt (zero gradient where undefined)", 1)]


def test_rewrites_are_counted_over_all_groups_of_windows() -> None:
    def forecast(x: Tensor) -> Tensor:
        return (x * x.detach())[:, :96]

    (met,) = jacobian(from_module(forecast), series(10, 100), 96).rewrites
    assert (met.operation, met.count) == ("detach", 2)


class Clamped(torch.nn.Module):
    """Divides by the window's spread; where the spread of one window is small, the gradient of all is cut."""

    def forward(self, x: Tensor) -> Tensor:
        spread = x.std(dim=1, keepdim=True)
        if (spread < 0.5).any():
            with torch.no_grad():
                spread = spread.clamp_min(0.5)
        return (x / spread)[:, :12]


def test_a_branch_under_no_grad_is_differentiated() -> None:
    model, x = from_module(Clamped()), series(3, 16)
    x[1] *= 0.01
    result = jacobian(model, x, 12)
    expected = one_backward_pass_per_step(model, x, 12)
    assert torch.allclose(result.jacobian, expected, atol=1e-6)
    assert [met.operation for met in result.rewrites] == ["no_grad"]
    assert not jacobian(model, x[[0, 2]], 12).rewrites


def test_a_model_that_overwrites_its_input_is_differentiated() -> None:
    def forecast(x: Tensor) -> Tensor:
        squared = x * x
        x += 1.0
        return squared[:, :12]

    x = series(2, 16)
    assert torch.equal(jacobian(from_module(forecast), x, 12).jacobian, torch.diag_embed(2 * x)[:, :12])


class OneRowAtATime(torch.autograd.Function):
    """A square whose backward converts a tensor to a number, which vmap refuses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * slopes[0] if float(slopes[0].abs().sum()) >= 0 else x


def test_an_operation_that_cannot_be_batched_gets_a_backward_pass_per_row() -> None:
    model, x = from_module(lambda x: OneRowAtATime.apply(x)[:, :12]), series(2, 16)
    assert torch.allclose(jacobian(model, x, 12).jacobian, torch.diag_embed(2 * x)[:, :12])


class Overwriting(torch.autograd.Function):
    """A square whose backward destroys what it saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        slope = 2 * x * slopes[0]
        x.zero_()
        return slope


def test_a_backward_that_overwrites_what_it_needs_is_guarded_or_refused_never_wrong() -> None:
    x = torch.tensor([2.0, 3.0])
    with GradientPath():
        leaf, working = differentiable_input(x)
        total = Overwriting.apply(working).sum()
        first, second = (torch.autograd.grad(total, leaf, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, 2 * x)
    assert torch.equal(second, 2 * x)
    with GradientPath():
        leaf, working = differentiable_input(x)
        total = Overwriting.apply(working).sum()
        with backward_alone():
            torch.autograd.grad(total, leaf, retain_graph=True)
            with pytest.raises(RuntimeError, match="overwritten"):
                torch.autograd.grad(total, leaf)


def test_rows_that_do_not_fit_in_memory_are_computed_in_smaller_blocks(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = load(str(checkpoints["chronos-bolt"])), series(1, 96)
    plenty = jacobian(model, x, 80).jacobian
    blocks = count_blocks(monkeypatch, most=40)
    rows = jacobian(model, x, 80).jacobian
    assert blocks == [(80, 1), (40, 1), (40, 1)]
    assert (rows - plenty).abs().max() <= 1e-6 * plenty.abs().max()


def test_windows_that_do_not_fit_in_memory_together_are_differentiated_in_smaller_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = series(5, 32)
    blocks = count_blocks(monkeypatch, most=50)
    rows = jacobian(from_module(lambda x: (x * x)[:, :24]), x, 24).jacobian
    assert blocks == [(24, 5), (24, 3), (24, 2), (24, 1), (24, 2)]
    assert torch.equal(rows, torch.diag_embed(2 * x)[:, :24])


def test_rows_for_which_no_block_fits_in_memory_get_a_backward_pass_each(monkeypatch: pytest.MonkeyPatch) -> None:
    x = series(1, 100)
    blocks = count_blocks(monkeypatch, most=1)
    rows = jacobian(from_module(lambda x: (x * x)[:, :70]), x, 70).jacobian
    assert blocks == [(70, 1), (35, 1), (17, 1)]
    assert torch.equal(rows, torch.diag_embed(2 * x)[:, :70])


@pytest.mark.parametrize("error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()])
def test_a_forward_pass_that_runs_out_of_memory_is_repeated_with_fewer_windows(error: Exception) -> None:
    batches = []

    def limited(x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            batches.append(len(x))
            if len(x) > 3:
                raise error
        return (x * x)[:, :2]

    x = series(8, 32)
    rows = jacobian(from_module(limited), x, 2, np.array([1])).jacobian
    assert batches == [8, 4, 2, 2, 4, 2, 2]
    assert torch.equal(rows[:, 0], torch.nn.functional.one_hot(torch.tensor(1), 32) * 2 * x)


def test_an_error_of_the_model_itself_is_raised() -> None:
    def broken(x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("no such buffer")
        return x[:, :4]

    with pytest.raises(RuntimeError, match="no such buffer"):
        jacobian(from_module(broken), series(2, 16), 4)


def test_a_horizon_with_very_many_rows_is_refused_at_once_unless_steps_are_chosen() -> None:
    model = from_module(lambda x: x.mean(dim=1, keepdim=True).expand(-1, 5000))
    x = torch.randn(1, 8)
    with pytest.raises(ProtocolError, match=r"horizon=5000 has more than 1024 rows.*steps=\[1, 5000\]"):
        explain(model, x, horizon=5000)
    assert explain(model, x, horizon=5000, steps=[1, 5000]).shape == (1, 2, 8)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["input_gradient", "integrated_gradients", "occlusion", "dynamask", "captum:Saliency"])
def test_a_matrix_is_right_where_the_caller_has_disabled_gradients(mode: Any, name: str) -> None:
    module, x = torch.nn.Sequential(torch.nn.Linear(24, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6)), series(2, 24)
    settings = '{"iterations": 5}' if name == "dynamask" else None
    expected = explain(from_module(module), x, 6, estimator=name, settings=settings)
    with mode():
        inside = explain(from_module(module), x + 0, 6, estimator=name, settings=settings)
    assert torch.equal(inside, expected)
    assert expected.any()
    assert inside.mul_(2).isfinite().all()


def test_a_gradient_under_inference_mode_is_the_weight_of_a_linear_model() -> None:
    module = torch.nn.Linear(24, 6)
    with torch.inference_mode():
        rows = jacobian(from_module(module), series(2, 24) + 0, 6).jacobian
    torch.testing.assert_close(rows, module.weight.detach().expand(2, -1, -1))


def test_a_module_that_was_built_under_inference_mode_is_copied_and_other_tensors_of_it_are_refused() -> None:
    with torch.inference_mode():
        module, weight = torch.nn.Linear(24, 6), torch.randn(24, 6)
        rows = explain(from_module(module), series(1, 24), 6)
        model = from_module(lambda x: x @ weight)
        with pytest.raises(HrxError, match=r"holds tensors that were made under torch\.inference_mode\(\)"):
            explain(model, series(1, 24), 6)
    np.testing.assert_allclose(rows[0].numpy(), np.abs(module.weight.detach().numpy()), rtol=1e-6)
    with pytest.raises(HrxError, match="Build or load the model outside of it"):
        score(model, series(1, 24), 6)


def test_explaining_and_scoring_leave_the_global_state_and_the_windows_as_they_were() -> None:
    def careless(x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
        return x @ weight

    def state() -> list[Any]:
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
        generators = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        return [*modes, torch.get_float32_matmul_precision(), torch.get_num_threads(), *generators]

    weight, x = torch.randn(24, 6), series(2, 24).requires_grad_()
    before, values = state(), x.detach().clone()
    for name in ("input_gradient", "occlusion"):
        matrix = explain(from_module(careless), x, 6, estimator=name)
        score(from_module(careless), x, 6, protocol=Protocol(estimator=name))
        assert state() == before
        assert not matrix.requires_grad
    assert torch.equal(x, values)
    assert x.requires_grad
    assert x.grad is None
