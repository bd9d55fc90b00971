"""A batch that does not fit in memory is halved; another error is not mistaken for that."""

import pytest
import torch

from hrx.adapters import from_module
from hrx.audit import Protocol, score
from hrx.audit.memory import MemoryBudget, out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
    ],
)
def test_a_batch_that_does_not_fit_in_memory_is_halved_and_the_numbers_stay(error: Exception) -> None:
    torch.manual_seed(0)
    layer, sizes = torch.nn.Linear(32, 8), list[int]()
    largest = [10**9]

    def predict(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        if len(x) > largest[0]:
            raise error
        return layer(x)

    model, x = from_module(predict, name="m"), torch.randn(4, 32)
    expected = score(model, x, 8, protocol=Protocol(draws=2))
    assert max(sizes) > 100
    largest[0] = 60
    sizes.clear()
    halved = score(model, x, 8, protocol=Protocol(draws=2))
    assert halved.g_own == pytest.approx(expected.g_own, rel=1e-4)
    assert halved.g_margin == pytest.approx(expected.g_margin, rel=1e-4)
    too_large = [size for size in sizes if size > 60]
    assert too_large == sorted(too_large, reverse=True)
    assert len(set(too_large)) == len(too_large), "a size that did not fit was tried again"


def test_another_error_of_a_model_is_raised_and_a_single_window_that_does_not_fit_too() -> None:
    def mismatched(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    def too_large(x: torch.Tensor) -> torch.Tensor:
        raise MemoryError

    assert not out_of_memory(RuntimeError("shapes"))
    with pytest.raises(RuntimeError, match="multiplied"):
        MemoryBudget().forward(from_module(mismatched, name="m"), torch.ones(4, 8), 2)
    with pytest.raises(MemoryError):
        MemoryBudget().forward(from_module(too_large, name="m"), torch.ones(4, 8), 2)
