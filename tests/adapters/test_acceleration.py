"""Accelerations: what each computes, and what a machine that cannot do it says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import series
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hrx.adapters import ModelError, acceleration, from_module, load
from hrx.adapters.acceleration import ACCELERATIONS, Accelerated, obstacle
from hrx.adapters.gradients import relative_difference


@pytest.fixture
def needs(request: pytest.FixtureRequest) -> None:
    """Skips where the machine cannot do what a test is about."""
    if reason := obstacle(request.param):
        pytest.skip(reason)


with_compiler = pytest.mark.parametrize("needs", ["compile"], indirect=True)
with_bf16 = pytest.mark.parametrize("needs", ["bf16"], indirect=True)


class Waves(torch.nn.Module):
    """A small model that counts how often its own Python code is run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(32, 8)
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self.calls.append(len(x))
        return torch.sin(self.layer(x))


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """What a machine cannot do is found out once; a test that changes the machine must not be remembered."""
    yield
    acceleration._obstacle_to_bf16.cache_clear()
    acceleration._obstacle_to_compile.cache_clear()


@with_compiler
def test_a_compiled_model_makes_the_same_forecasts_of_any_batch_without_running_its_python_code(needs: None) -> None:
    module = Waves()
    model = from_module(module)
    compiled = Accelerated(model, ["compile"])
    with torch.no_grad():
        for size in (1, 2, 5, 64):
            x = series(size, 32)
            expected = model.forward(x, 8)
            module.calls.clear()
            assert relative_difference(compiled.forward(x, 8), expected) <= 1e-6
            assert module.calls == []


@with_compiler
def test_rows_of_a_compiled_model_are_differentiated_uncompiled_with_the_bits_of_the_model(needs: None) -> None:
    module, x = Waves(), series(2, 32)
    model = from_module(module)
    found = []
    for one in (model, Accelerated(model, ["compile"])):
        leaf = x.clone().requires_grad_()
        module.calls.clear()
        found.append(torch.autograd.grad(one.forward(leaf, 8).sum(), leaf)[0])
        assert module.calls == [2]
    assert torch.equal(*found)


@with_bf16
def test_bf16_rounds_inside_the_model_and_returns_the_type_of_the_windows(needs: None) -> None:
    model, x = from_module(Waves()), series(4, 32)
    y = Accelerated(model, ["bf16"]).forward(x, 8)
    assert y.dtype == x.dtype
    assert 1e-4 < relative_difference(y, model.forward(x, 8)) < 1e-1


def test_the_yardstick_of_an_accelerated_model_is_the_official_call_of_the_model_itself() -> None:
    model, x = from_module(Waves()), series(3, 32)
    fast = Accelerated(model, ["bf16"])
    assert torch.equal(fast.official(x, 8), model.official(x, 8))
    assert (fast.identity, fast.limits, fast.rows) == (model.identity, model.limits, model.rows)
    assert fast.unloaded() == model.unloaded()
    assert fast.reload() is None
    twin, expected = fast.double(), model.double()
    assert twin is not None
    assert expected is not None
    assert torch.equal(twin.official(x.double(), 8), expected.official(x.double(), 8))


def test_accelerations_are_applied_in_one_order_whatever_the_order_they_are_named_in() -> None:
    assert Accelerated(from_module(Waves()), ["compile", "bf16"]).accelerations == ("bf16", "compile")
    assert ACCELERATIONS == ("cuda", "bf16", "compile")


def test_a_model_is_copied_to_its_device_and_the_original_stays_where_it_is() -> None:
    module, x = Waves(), series(3, 32)
    model = from_module(module)
    moved = Accelerated(model, ["cuda"], device="cpu")
    assert torch.equal(moved.forward(x, 8), model.forward(x, 8))
    there = Accelerated(model, ["cuda"], device="meta")
    copy: Any = there._model
    assert {p.device.type for p in copy.predictor.parameters()} == {"meta"}
    assert {p.device.type for p in module.parameters()} == {"cpu"}


def test_a_callable_that_is_no_module_cannot_be_moved_and_says_so() -> None:
    with pytest.raises(ModelError, match="has no module that could be moved to cuda"):
        Accelerated(from_module(lambda x: x[:, :8], name="a function"), ["cuda"])


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices, as a GPU does; a question about a value is answered by 1."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.ndim]
        if func is torch.ops.aten._local_scalar_dense.default:
            return True
        if len({t.device for t in tensors}) > 1 and not any(word in str(func) for word in ("copy", "to")):
            raise AssertionError(f"{func} on tensors of several devices")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm", "moirai-2"])
def test_no_tensor_of_a_family_is_left_behind_on_the_processor(checkpoints: dict[str, Path], family: str) -> None:
    # Tensors on `meta` have no values, which is enough to see where they are without a GPU.
    there = Accelerated(load(str(checkpoints[family])), ["cuda"], device="meta")
    places: list[torch.device] = []

    def watched(x: Tensor, horizon: int) -> Tensor:
        y = Accelerated._run(there, x, horizon)
        places.append(y.device)
        return y

    there._run = watched  # type: ignore[method-assign]
    # Values are asked for at the very end: by the library of Chronos-Bolt itself, or to bring the forecast back.
    with OneDevice(), torch.no_grad(), pytest.raises(NotImplementedError, match="no data"):
        there.forward(torch.ones(3, 96), 24)
    assert [place.type for place in places] == ([] if family == "chronos-bolt" else ["meta"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_says_so() -> None:
    assert obstacle("cuda") == "torch finds no GPU"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import os; os.kill(os.getpid(), 4)", "a bf16 layer ends the process with signal 4"),
        ("raise RuntimeError('no such kernel')", "a bf16 layer fails: RuntimeError: no such kernel"),
        ("raise SystemExit(3)", "a bf16 layer fails: exit code 3"),
        ("import time; time.sleep(60)", "a bf16 layer takes more than 2 seconds"),
        ("pass", ""),
    ],
)
def test_bf16_is_tried_in_a_process_of_its_own_which_may_die(
    monkeypatch: pytest.MonkeyPatch, program: str, told: str
) -> None:
    monkeypatch.setattr(acceleration, "A_LAYER", program)
    monkeypatch.setattr(acceleration, "SECONDS_FOR_A_LAYER", 2)
    acceleration._obstacle_to_bf16.cache_clear()
    assert obstacle("bf16") == told


def test_the_process_that_tries_bf16_reads_no_file_of_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(acceleration, "A_LAYER", "import torch; assert torch.ones(1).sum() == 1")
    acceleration._obstacle_to_bf16.cache_clear()
    assert obstacle("bf16") == ""


def test_a_compiler_that_does_not_work_is_told_in_a_clause(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> object:
        raise RuntimeError("no C++ compiler\nand much more")

    monkeypatch.setattr(torch, "compile", refuse)
    acceleration._obstacle_to_compile.cache_clear()
    assert obstacle("compile") == "torch.compile does not work: RuntimeError: no C++ compiler"
