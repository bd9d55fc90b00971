"""Inference code under a `GradientPath`, against the same code written out of place and finite differences."""

import inspect
import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from hrx.adapters.gradients import GradientPath, Rewrite, differentiable_input, relative_difference

NAN = float("nan")
X = torch.tensor([1.1, 1.7, 0.6, 2.3], dtype=torch.float64)
V = torch.tensor([0.3, 0.9, 1.5, 0.2], dtype=torch.float64)


class Toy(NamedTuple):
    """A function written in place, and what it computes written out of place."""

    library: Callable[[Tensor], Tensor]
    twin: Callable[[Tensor], Tensor]


def unassigned(x: Tensor) -> Tensor:
    y = x * 1.5
    squares = y * y
    y.exp_()
    y.div_(x)
    return squares + y


def write_through_view(x: Tensor) -> Tensor:
    y = x * 1.5
    squares = y * y
    y[0].mul_(3.0)
    return squares + y


def write_through_offset_view(x: Tensor) -> Tensor:
    y = x * 1.5
    squares = y * y
    y[2:].mul_(3.0)
    return squares + y


def slice_assigned(x: Tensor) -> Tensor:
    y = x * 1.5
    cubes = y**3
    y[:1] = x[1:2] * 2.0
    return cubes + y


def tail_assigned(x: Tensor) -> Tensor:
    y = x * 1.5
    cubes = y**3
    y[2:] = 0.0
    return cubes + y


def augmented(x: Tensor) -> Tensor:
    y = x.exp()
    squares = y * y
    y /= x
    return squares + y


def base_of_saved_view(x: Tensor) -> Tensor:
    y = x * 1.5
    tail = y[2:]
    cubes = tail**3
    y.mul_(x)
    return torch.cat([y, cubes])


def rectified_by_flag(x: Tensor) -> Tensor:
    y = x - 1.5
    squares = y * y
    torch.nn.functional.relu(y, inplace=True)
    return squares + y


def view_of_saved_base(x: Tensor) -> Tensor:
    y = x * 1.5
    sines = y.sin()
    view = y.view(2, 2)
    view.div_(x.view(2, 2))
    view.mul_(x.view(2, 2) ** 2)
    return sines + y


def aliased(x: Tensor) -> Tensor:
    y = x
    y /= V
    return x + y * y


TOYS = {
    "unassigned": Toy(unassigned, lambda x: (1.5 * x) ** 2 + torch.exp(1.5 * x) / x),
    "view": Toy(write_through_view, lambda x: (1.5 * x) ** 2 + 1.5 * x * torch.tensor([3.0, 1, 1, 1], dtype=x.dtype)),
    "offset view": Toy(
        write_through_offset_view,
        lambda x: (1.5 * x) ** 2 + 1.5 * x * torch.tensor([1.0, 1, 3, 3], dtype=x.dtype),
    ),
    "slice assigned": Toy(slice_assigned, lambda x: (1.5 * x) ** 3 + torch.cat([x[1:2] * 2.0, x[1:] * 1.5])),
    "tail assigned": Toy(tail_assigned, lambda x: (1.5 * x) ** 3 + torch.cat([x[:2] * 1.5, torch.zeros_like(x[2:])])),
    "augmented": Toy(augmented, lambda x: x.exp() ** 2 + x.exp() / x),
    "base of saved view": Toy(base_of_saved_view, lambda x: torch.cat([1.5 * x**2, (1.5 * x[2:]) ** 3])),
    "view of saved base": Toy(view_of_saved_base, lambda x: (1.5 * x).sin() + 1.5 * x**2),
    "flag": Toy(rectified_by_flag, lambda x: (x - 1.5) ** 2 + (x - 1.5).relu()),
    "aliased": Toy(aliased, lambda x: x / V + (x / V) ** 2),
}
# In these backward needs a tensor that was overwritten.
BREAKING = [name for name in TOYS if name != "aliased"]
toys = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


def rows(y: Tensor, leaf: Tensor, batched: bool) -> Tensor:
    """Jacobian `(out, in)`, row by row or in one batched call."""
    eye = torch.eye(len(y), dtype=y.dtype)
    if batched:
        return torch.autograd.grad(y, leaf, eye, is_grads_batched=True)[0]
    return torch.stack([torch.autograd.grad(y, leaf, e, retain_graph=True)[0] for e in eye])


def jacobian(library: Callable[[Tensor], Tensor], x: Tensor, batched: bool = False) -> Tensor:
    leaf, working = differentiable_input(x)
    with GradientPath():
        return rows(library(working), leaf, batched)


def finite_differences(f: Callable[[Tensor], Tensor], x: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences of the untouched library code, `(out, in)`."""
    columns = [(f(x + step * e) - f(x - step * e)) / (2 * step) for e in torch.eye(len(x), dtype=x.dtype)]
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("batched", [False, True], ids=["row by row", "batched"])
@toys
def test_in_place_code_has_the_value_and_gradient_of_its_twin_and_of_finite_differences(
    toy: Toy, batched: bool
) -> None:
    leaf, working = differentiable_input(X)
    with GradientPath():
        y = toy.library(working)
        slopes = rows(y, leaf, batched)
    plain = X.clone().requires_grad_()
    expected = toy.twin(plain)
    assert torch.equal(y, toy.library(X.clone()))
    assert relative_difference(y, expected) < 1e-14
    assert relative_difference(slopes, rows(expected, plain, batched=False)) < 1e-14
    assert relative_difference(slopes, finite_differences(toy.library, X)) < 1e-8


@pytest.mark.parametrize("name", BREAKING)
def test_without_the_path_the_same_code_breaks_backward(name: str) -> None:
    leaf, working = differentiable_input(X)
    y = TOYS[name].library(working)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), leaf)


def test_temporaries_that_reuse_each_other_s_memory_are_not_confused() -> None:
    def block(x: Tensor, factor: float) -> Tensor:
        y = x * factor
        squares = (y * y).sum()
        y.mul_(2.0)
        return squares

    x = torch.rand(5000, dtype=torch.float64)
    leaf, working = differentiable_input(x)
    with GradientPath():
        total = sum((block(working, float(i)) for i in range(50)), torch.zeros(()))
        (gradient,) = torch.autograd.grad(total, leaf)
    assert relative_difference(gradient, 2 * x * sum(i * i for i in range(50))) < 1e-14


def test_a_tensor_written_several_times_keeps_every_state_backward_needs() -> None:
    def library(x: Tensor) -> Tensor:
        y = x * 1.0
        total = torch.zeros_like(x)
        for _ in range(3):
            total = total + y * y
            y[1:] *= 2.0
            total = total + y.sin()
        return total

    assert relative_difference(jacobian(library, X), finite_differences(library, X)) < 1e-8


def test_a_cache_filled_in_place_passes_gradients_on() -> None:
    def library(x: Tensor) -> Tensor:
        cache = torch.zeros(2, 4, dtype=x.dtype)
        for row in range(2):
            cache[row].copy_(x * (row + 1.0))
            x = cache.sum(0) * cache[row]
        return x

    assert relative_difference(jacobian(library, X), finite_differences(library, X)) < 1e-8


def test_overwriting_after_the_path_is_closed_raises() -> None:
    leaf, working = differentiable_input(X)
    with GradientPath():
        y = working * 1.5
        total = (y * y).sum()
    y.mul_(2.0)
    with pytest.raises(RuntimeError, match="outside the GradientPath"):
        torch.autograd.grad(total, leaf)


def in_context(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x**3


@torch.no_grad()
def decorated(x: Tensor) -> Tensor:
    return x**3


def switched_off(x: Tensor) -> Tensor:
    previous = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = x**3
    torch.set_grad_enabled(previous)
    return y


def switched_off_in_context(x: Tensor) -> Tensor:
    with torch.set_grad_enabled(False):
        return x**3


def detached(x: Tensor) -> Tensor:
    return x.detach() ** 3


def wrote_into_data(x: Tensor) -> Tensor:
    y = x**2
    y.data.mul_(x)
    return y


def reshaped_after_detach(x: Tensor) -> Tensor:
    y = x.detach()
    y.unsqueeze_(0)
    return x**2 * y.squeeze(0)


CUTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "context": (in_context, "no_grad"),
    "decorator": (decorated, "no_grad"),
    "switch": (switched_off, "no_grad"),
    "switch as context": (switched_off_in_context, "no_grad"),
    "detach": (detached, "detach"),
    "torch.detach": (lambda x: torch.detach(x) ** 3, "detach"),
    "detach in place": (lambda x: (x * 1.0).detach_() ** 3, "detach_"),
    "data": (lambda x: x.data**3, "data"),
    "write into data": (wrote_into_data, "data"),
    "reshape after detach": (reshaped_after_detach, "detach"),
}
cuts = pytest.mark.parametrize(("library", "operation"), CUTS.values(), ids=CUTS)


@cuts
def test_code_that_cuts_the_graph_is_followed_and_reported(library: Callable[[Tensor], Tensor], operation: str) -> None:
    leaf, working = differentiable_input(X)
    with GradientPath() as path:
        y = library(working)
        (gradient,) = torch.autograd.grad(y.sum(), leaf)
    assert torch.allclose(y, X**3, rtol=1e-14)
    assert relative_difference(gradient, 3 * X**2) < 1e-14
    assert operation in {rewrite.operation for rewrite in path.rewrites}


@cuts
def test_without_the_path_the_cut_is_real(library: Callable[[Tensor], Tensor], operation: str) -> None:
    leaf, working = differentiable_input(X)
    y = library(working)
    if y.requires_grad:
        (gradient,) = torch.autograd.grad(y.sum(), leaf)
        assert relative_difference(gradient, 3 * X**2) > 0.1
    else:
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.autograd.grad(y.sum(), leaf)


def test_assigning_data_on_the_path_is_refused() -> None:
    working = differentiable_input(X).working
    with GradientPath(), pytest.raises(RuntimeError, match=r"test_gradients\.py:\d+ assigns `data`"):
        working.data = X.clone()


def variance(x: Tensor) -> Tensor:
    return (x - x.mean()).square().mean()


ROOTS: dict[str, Callable[[Tensor], Tensor]] = {
    "method": lambda v: v.sqrt(),
    "function": lambda v: torch.sqrt(v),
    "operator": lambda v: v**0.5,
    "power": lambda v: torch.pow(v, 0.5),
    "keyword": lambda v: torch.pow(input=v, exponent=0.5),
    "in place": lambda v: (v * 1.0).sqrt_(),
    "power in place": lambda v: (v * 1.0).pow_(0.5),
}


@pytest.mark.parametrize("root", ROOTS.values(), ids=ROOTS)
def test_the_root_of_a_zero_variance_has_gradient_zero(root: Callable[[Tensor], Tensor]) -> None:
    flat = torch.full((4,), 2.5, dtype=torch.float64)
    leaf, working = differentiable_input(flat)
    with GradientPath():
        y = root(variance(working))
        (gradient,) = torch.autograd.grad(y, leaf)
    assert y.item() == 0.0
    assert torch.equal(gradient, torch.zeros_like(flat))
    leaf, working = differentiable_input(flat)
    assert torch.autograd.grad(root(variance(working)), leaf)[0].isnan().any()


@pytest.mark.parametrize("root", ROOTS.values(), ids=ROOTS)
def test_a_root_keeps_its_gradient_beside_a_zero(root: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([0.0, 4.0], dtype=torch.float64)
    leaf, working = differentiable_input(x)
    with GradientPath():
        y = root(working)
        slopes = rows(y, leaf, batched=True)
    assert torch.equal(y, torch.tensor([0.0, 2.0], dtype=torch.float64))
    assert torch.equal(slopes, torch.tensor([[0.0, 0.0], [0.0, 0.25]], dtype=torch.float64))


@pytest.mark.parametrize(
    "window",
    [[3.0, 3.0, 3.0, 3.0], [1.0, NAN, 2.5, 0.5], [NAN, 2.0, 2.0, NAN]],
    ids=["flat", "gaps", "flat with gaps"],
)
def test_chronos_normalisation_of_flat_and_gappy_windows_has_finite_gradients(window: list[float]) -> None:
    norm = pytest.importorskip("chronos.chronos_bolt").InstanceNorm()
    x = torch.tensor([window])
    observed = ~x[0].isnan()

    def scored(x: Tensor) -> Tensor:
        scaled, (loc, scale) = norm(x)
        return torch.cat([torch.where(x.isnan(), 0.0, scaled).sin(), loc, scale], dim=-1)[0]

    leaf, working = differentiable_input(x)
    with GradientPath():
        y = scored(working)
        slopes = rows(y, leaf, batched=True)[:, 0]
    assert torch.equal(y, scored(x))
    assert slopes.isfinite().all()
    assert (slopes[:, ~observed] == 0).all()
    plain = x.clone().requires_grad_()
    assert rows(scored(plain), plain, batched=False).isnan().any()
    if len(x[0, observed].unique()) > 1:  # then the window without its gaps has an ordinary gradient
        kept = x[:, observed].requires_grad_()
        expected = rows(scored(kept), kept, batched=False)[:, 0]
        statistics = torch.tensor([True, True])
        assert relative_difference(slopes[torch.cat([observed, statistics])][:, observed], expected) < 1e-6


def test_division_of_a_gappy_window_in_place_has_finite_gradients() -> None:
    x = torch.tensor([1.0, NAN, 3.0], dtype=torch.float64)
    leaf, working = differentiable_input(x)
    with GradientPath():
        working /= torch.nanmean(working)
        (gradient,) = torch.autograd.grad(working[0], leaf)
    # a / ((a + b) / 2) at a = 1, b = 3
    assert torch.allclose(gradient, torch.tensor([3 / 8, 0.0, -1 / 8], dtype=torch.float64), rtol=1e-14)


def test_the_input_may_be_written_into_and_the_caller_s_data_is_unchanged() -> None:
    series = X.clone()
    leaf, working = differentiable_input(series)
    with GradientPath():
        working *= V
        working[1] = 0.0
        (gradient,) = torch.autograd.grad(working.sum(), leaf)
    assert torch.equal(gradient, V * torch.tensor([1.0, 0, 1, 1], dtype=V.dtype))
    assert torch.equal(series, X)
    assert torch.equal(leaf, X)
    assert not series.requires_grad


def test_writing_into_the_leaf_itself_raises() -> None:
    leaf = differentiable_input(X).leaf
    with GradientPath(), pytest.raises(RuntimeError, match="leaf Variable"):
        leaf.div_(2.0)


def test_an_input_created_inside_a_path_or_without_gradients_is_still_a_fresh_leaf() -> None:
    with GradientPath():
        working = differentiable_input(X).working
        assert differentiable_input(working).leaf.is_leaf
    with torch.no_grad():
        leaf, working = differentiable_input(X)
    assert leaf.is_leaf
    assert working.requires_grad


def test_rewrites_name_operation_place_and_count() -> None:
    def library(x: Tensor) -> Tensor:
        for _ in range(3):
            x = x.detach() * 2
        with torch.no_grad():
            x /= 4
        x[0] = 1.0
        return x

    first = inspect.getsourcelines(library)[1]
    with GradientPath() as path:
        library(differentiable_input(X).working)
    assert path.rewrites == (
        Rewrite("detach", f"adapters/test_gradients.py:{first + 2}", 3),
        Rewrite("div_ (kept in place)", f"adapters/test_gradients.py:{first + 4}", 1),
        Rewrite("no_grad", f"adapters/test_gradients.py:{first + 3}", 1),
        Rewrite("x[...] = v (kept in place)", f"adapters/test_gradients.py:{first + 5}", 1),
    )


def test_constants_and_parameters_are_not_reported() -> None:
    weight = torch.nn.Parameter(X.clone())
    with GradientPath() as path:
        assert not weight.detach().requires_grad
        constant = torch.ones(4, dtype=torch.float64)
        constant /= 2
        _ = constant.detach(), constant.data, torch.zeros(2).sqrt()
    assert path.rewrites == ()


def test_a_nested_path_is_the_active_one() -> None:
    leaf, working = differentiable_input(X)
    with GradientPath() as outer:
        with GradientPath() as inner:
            y = detached(working)
        assert inner is outer
        (gradient,) = torch.autograd.grad(detached(y).sum(), leaf)
    assert relative_difference(gradient, 9 * X**8) < 1e-14
    assert [rewrite.operation for rewrite in outer.rewrites] == ["detach"]
    assert outer.rewrites[0].count == 2


def test_one_path_object_may_be_entered_again() -> None:
    path = GradientPath()
    for _ in range(2):
        with path, path:
            in_context(differentiable_input(X).working)
    assert [rewrite.count for rewrite in path.rewrites] == [2]


def test_another_thread_is_not_affected() -> None:
    working = differentiable_input(X).working
    seen: list[bool] = []
    with GradientPath():
        other = threading.Thread(target=lambda: seen.append(in_context(working).requires_grad))
        other.start()
        other.join()
        seen.append(in_context(working).requires_grad)
    assert seen == [False, True]


def test_outside_the_path_everything_is_normal_again_even_after_an_error() -> None:
    working = differentiable_input(X).working
    with pytest.raises(ZeroDivisionError), GradientPath(), GradientPath():
        _ = 1 / 0
    assert not in_context(working).requires_grad
    assert not working.detach().requires_grad
    with GradientPath() as path:
        assert path.rewrites == ()


def test_a_path_opened_without_gradients_changes_nothing() -> None:
    working = differentiable_input(X).working
    with torch.no_grad():
        with GradientPath() as path:
            assert not torch.is_grad_enabled()
            with torch.enable_grad():
                assert (working * 2).requires_grad
            assert not torch.is_grad_enabled()
            assert not detached(working).requires_grad
        assert not torch.is_grad_enabled()
    assert path.rewrites == ()


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([1.0, -3.0], [1.0, -4.0], 0.25),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 1.0], [0.0, 0.0], float("inf")),
        ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([NAN, 1.0], [NAN, 2.0], 0.5),
        ([NAN, 1.0], [1.0, 1.0], float("inf")),
        ([1.0, 1.0], [NAN, 1.0], float("inf")),
        ([float("inf"), 1.0], [float("inf"), 2.0], 0.5),
        ([1.0], [float("inf")], float("inf")),
        ([], [], 0.0),
    ],
)
def test_relative_difference_is_the_largest_error_over_the_largest_value(
    a: list[float], b: list[float], expected: float
) -> None:
    assert relative_difference(torch.tensor(a), torch.tensor(b)) == expected


def test_relative_difference_refuses_shapes_that_would_broadcast() -> None:
    with pytest.raises(ValueError, match="shapes"):
        relative_difference(torch.zeros(3, 1), torch.zeros(3))


def test_a_write_through_out_is_seen() -> None:
    x, buffer = torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0])
    with GradientPath():
        leaf, working = differentiable_input(x)
        product = working * buffer
        torch.add(torch.zeros(2), 1.0, out=buffer)
        (slope,) = torch.autograd.grad(product.sum(), leaf)
    assert torch.equal(slope, torch.tensor([5.0, 7.0]))
