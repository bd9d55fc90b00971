"""The rows of the matrix: every strategy against the plain loop, and what they may not depend on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from helpers.small import OneRowAtATime
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath, from_module, load
from hrx.adapters.contract import Strategy
from hrx.adapters.gradients import backward_alone, differentiable_input
from hrx.audit import rows
from hrx.audit.attribution.jacobian import ROWS_AT_ONCE, WINDOWS_TOGETHER, derivatives, jacobian
from hrx.audit.memory import Budget

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


def strategies_of(family: str) -> tuple[Strategy, ...]:
    """Of these families the code of TTM alone leaves the gradient as it is."""
    return tuple(name for name in get_args(Strategy) if name != "bare" or family == "ttm")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_strategy_gives_the_rows_of_one_backward_pass_per_step(checkpoints: dict[str, Path], family: str) -> None:
    model, x = load(str(checkpoints[family])), series(2, 96)
    expected = one_backward_pass_per_step(model, x, 20)
    for strategy in strategies_of(family):
        model.rows = strategy
        found = jacobian(model, x, 20)
        assert found.strategy == strategy
        # One pass per step of this random Chronos-2 is itself 2.2e-6 from the rows in float64: rounding.
        bound = 2e-6 if family == "chronos-2" else 1e-6
        assert (found.jacobian - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_in_float64_every_strategy_agrees_with_it_to_ten_digits(checkpoints: dict[str, Path], family: str) -> None:
    model, x = load(str(checkpoints[family])).double(), series(2, 96).double()
    assert model is not None
    expected = one_backward_pass_per_step(model, x, 20)
    assert expected.dtype == torch.float64
    for strategy in strategies_of(family):
        model.rows = strategy
        found = jacobian(model, x, 20)
        assert found.strategy == strategy
        assert (found.jacobian - expected).abs().max() <= 1e-10 * expected.abs().max()


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
        assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("windows", "horizon"), [(3, 20), (5, 80), (11, 80)])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_rows_of_a_run_have_the_same_bits_in_one_thread_or_several(
    checkpoints: dict[str, Path], family: str, windows: int, horizon: int
) -> None:
    model, x = load(str(checkpoints[family])), series(windows, 96)
    with threads(1):
        once = jacobian(model, x, horizon)
    assert once.strategy == "batched"
    for count in (2, 3):
        with threads(count):
            again = jacobian(model, x, horizon)
        assert torch.equal(once.jacobian, again.jacobian)
        assert (again.strategy, again.rewrites) == (once.strategy, once.rewrites)


class Wide(torch.nn.Module):
    """Three tokens of a width at which a matrix product of few rows sums in another order than one of many."""

    def __init__(self, horizon: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(32, 1280), torch.nn.GELU(), torch.nn.Linear(1280, 1280), torch.nn.GELU()
        )
        self.head = torch.nn.Linear(3 * 1280, horizon)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.unflatten(1, (3, 32))).flatten(1))


@pytest.mark.parametrize("horizon", [24, 96])
def test_so_have_those_of_a_model_whose_products_depend_on_how_many_there_are(horizon: int) -> None:
    model = from_module(Wide(horizon))
    for windows in (1, 7):
        x = series(windows, 96)
        with threads(1):
            once = jacobian(model, x, horizon).jacobian
        for count in (2, 4):
            with threads(count):
                assert torch.equal(jacobian(model, x, horizon).jacobian, once)


@pytest.mark.parametrize("strategy", ["batched", "bare"])
@pytest.mark.parametrize(
    ("windows", "horizon", "count", "expected"),
    [
        (25, 24, 1, [10, 10, 5]),  # as many as fill a block
        (10, 96, 1, [8, 2]),  # eight, though they take several
        (10, 96, 2, [8, 2]),
        (4, 96, 2, [4, 4]),  # a forward pass for each thread
        (1, 96, 2, [1]),
    ],
)
def test_windows_of_a_run_share_a_forward_pass(
    strategy: Any, windows: int, horizon: int, count: int, expected: list[int]
) -> None:
    assert (ROWS_AT_ONCE, WINDOWS_TOGETHER) == (256, 8)
    batches = []

    def forecast(x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            batches.append(len(x))
        return (x * x)[:, :horizon]

    model, x = from_module(forecast), series(windows, 100)
    model.rows = strategy
    with threads(count):
        found = jacobian(model, x, horizon)
    assert sorted(batches, reverse=True) == expected
    assert torch.equal(found.jacobian, torch.diag_embed(2 * x)[:, :horizon])


def test_rows_at_once_are_as_many_as_a_block_holds_of_all_windows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def product(function: Any) -> Any:
        def vmapped(block: Tensor) -> Tensor:
            sizes.append(block.shape[:2])
            return torch.vmap(function)(block)

        return vmapped

    monkeypatch.setattr(torch.func, "vmap", product)
    model = from_module(lambda x: (x * x)[:, :96])
    for count in (1, 2, 3):
        sizes.clear()
        with threads(count):
            jacobian(model, series(8, 100), 96)
        assert sorted(sizes) == 4 * [(24, 8)]


def test_rows_that_are_not_finite_in_one_part_of_a_window_are_told_alike_with_any_threads() -> None:
    half = ROWS_AT_ONCE // 2 + 1

    def forecast(x: Tensor) -> Tensor:
        return torch.cat([x[:, :half] ** 2, (x * (x > 0)).sqrt()[:, half : 2 * half]], dim=1)

    model, x = from_module(forecast), series(1, 2 * half)
    model.rows = "bare"
    with threads(1):
        once = jacobian(model, x, 2 * half)
    with threads(2):
        again = jacobian(model, x, 2 * half)
    slopes = torch.where(x > 0, 0.5 / x.clamp_min(1e-30).sqrt(), 0.0)
    expected = torch.diag_embed(torch.cat([2 * x[:, :half], slopes[:, half:]], dim=1))
    assert (x[:, half:] <= 0).any()
    assert torch.allclose(once.jacobian, expected)
    assert torch.equal(once.jacobian, again.jacobian)
    assert once.strategy == again.strategy == "batched"
    assert once.rewrites == again.rewrites
    assert once.rewrites


def test_a_model_without_obstacles_has_the_same_bits_without_a_gradient_path(checkpoints: dict[str, Path]) -> None:
    model, x = load(str(checkpoints["ttm"])), series(2, 96)
    inside = jacobian(model, x, 80)
    model.rows = "bare"
    for count in (1, 2):
        with threads(count):
            outside = jacobian(model, x, 80)
        assert outside.strategy == "bare"
        assert torch.equal(outside.jacobian, inside.jacobian)


def test_rows_that_are_not_finite_without_a_gradient_path_are_had_inside_one() -> None:
    model, x = from_module(lambda x: (x * (x > 0)).sqrt()[:, :12]), series(2, 16)
    model.rows = "bare"
    found = jacobian(model, x, 12)
    slopes = torch.where(x > 0, 0.5 / x.clamp_min(1e-30).sqrt(), 0.0)
    assert (x[:, :12] <= 0).any()
    assert found.strategy == "batched"
    assert torch.allclose(found.jacobian, torch.diag_embed(slopes)[:, :12])


class Clamped(torch.nn.Module):
    """Divides by the window's spread, and where one of them is small cuts the gradient of all."""

    def forward(self, x: Tensor) -> Tensor:
        spread = x.std(dim=1, keepdim=True)
        if (spread < 0.5).any():
            with torch.no_grad():
                spread = spread.clamp_min(0.5)
        return (x / spread)[:, :12]


def test_a_branch_that_cuts_the_gradient_is_differentiated_inside_a_gradient_path() -> None:
    model, x = from_module(Clamped()), series(3, 16)
    x[1] *= 0.01
    expected = jacobian(model, x, 12)
    assert expected.rewrites
    model.rows = "bare"
    found = jacobian(model, x, 12)
    assert found.strategy == "batched"
    assert torch.equal(found.jacobian, expected.jacobian)
    assert jacobian(model, x[[0, 2]], 12).strategy == "bare"


def test_a_model_that_writes_over_what_backward_needs_is_differentiated_inside_a_gradient_path() -> None:
    def forecast(x: Tensor) -> Tensor:
        squared = x * x
        x += 1.0
        return squared[:, :12]

    model, x = from_module(forecast), series(2, 16)
    model.rows = "bare"
    found = jacobian(model, x, 12)
    assert found.strategy == "batched"
    assert torch.equal(found.jacobian, torch.diag_embed(2 * x)[:, :12])


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_more_rows_than_a_block_holds_are_had_in_several(strategy: Any) -> None:
    horizon = 2 * ROWS_AT_ONCE + 5
    weight = torch.randn(16, horizon, generator=torch.Generator().manual_seed(0))
    model = from_module(lambda x: x @ weight)
    model.rows = strategy
    assert torch.allclose(jacobian(model, series(2, 16), horizon).jacobian, weight.T.expand(2, -1, -1))


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_weighted_sums_of_the_forecast_have_the_weighted_rows(strategy: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, picks = torch.randn(16, 12, generator=generator), torch.randn(5, 12, generator=generator)
    model, x = from_module(lambda x: torch.sin(x) @ weight), series(6, 16)
    model.rows = strategy
    expected = (picks @ weight.T) * torch.cos(x)[:, None]
    assert torch.allclose(derivatives(model, x, 12, picks).jacobian, expected, atol=1e-5)


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_a_forecast_that_does_not_read_the_window_has_rows_of_zeros(strategy: Any) -> None:
    model = from_module(lambda x: torch.ones(len(x), 12))
    model.rows = strategy
    rows = jacobian(model, series(2, 16), 12, steps=np.array([3, 7])).jacobian
    assert torch.equal(rows, torch.zeros(2, 2, 16))


def test_an_operation_that_cannot_be_batched_is_differentiated_row_by_row_and_said_to_be() -> None:
    model, x = from_module(lambda x: OneRowAtATime.apply(x)[:, :12]), series(2, 16)
    found = jacobian(model, x, 12)
    assert found.strategy == "loop"
    assert torch.allclose(found.jacobian, torch.diag_embed(2 * x)[:, :12])


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


def scarce(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Memory for so many products at once; the list is filled with how many were asked for."""
    asked, whole = [], rows._products

    def products(portion: Any, made: Any) -> Tensor:
        asked.append(min(portion.at_once, len(portion.picks)) * len(portion.x))
        if asked[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(portion, made)

    monkeypatch.setattr(rows, "_products", products)
    return asked


def test_rows_that_do_not_fit_in_memory_are_had_in_smaller_blocks(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = load(str(checkpoints["chronos-bolt"])), series(1, 96)
    plenty = jacobian(model, x, 80)
    asked = scarce(monkeypatch, most=40)
    found = jacobian(model, x, 80)
    assert found.strategy == "batched"
    assert asked == [80, 40]
    assert (found.jacobian - plenty.jacobian).abs().max() <= 1e-6 * plenty.jacobian.abs().max()


@pytest.mark.parametrize("strategy", ["batched", "bare"])
def test_windows_that_do_not_fit_in_memory_together_are_had_apart(
    monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    model, x = from_module(lambda x: (x * x)[:, :24]), series(5, 32)
    model.rows = strategy
    asked = scarce(monkeypatch, most=50)
    found = jacobian(model, x, 24)
    assert found.strategy == strategy
    assert asked == [5 * 24, 3 * 24, 2 * 24, 24, 2 * 24]
    assert torch.equal(found.jacobian, torch.diag_embed(2 * x)[:, :24])


@pytest.mark.parametrize("error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()])
@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_a_forward_pass_that_takes_few_windows_is_given_few(strategy: Any, error: Exception) -> None:
    def picky(x: Tensor) -> Tensor:
        if len(x) > 3:
            raise error
        return (x * x)[:, :2]

    model, x = from_module(picky), series(4, 32)
    model.rows = strategy
    steps = np.array([1])
    budget = Budget()
    budget._measured[("", torch.float32, torch.Size([32]), 2)] = np.zeros(3)
    model.identity = replace(model.identity, fingerprint="")
    found = jacobian(model, x, 2, steps, budget)
    assert found.strategy == strategy
    assert torch.equal(found.jacobian[:, 0], torch.nn.functional.one_hot(torch.tensor(1), 32) * 2 * x)
