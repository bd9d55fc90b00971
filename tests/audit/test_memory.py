"""Batch sizes from counted bytes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import from_module, load
from hrx.audit.memory import FASTEST, MOST_ROWS, MemoryBudget, allocated_bytes

MANY = 48


@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm", "moirai-2"])
def test_the_bytes_of_a_large_batch_follow_from_those_of_small_ones(checkpoints: dict[str, Path], family: str) -> None:
    model, x = load(f"{family}:{checkpoints[family]}"), series(1, 96)
    with torch.no_grad():
        taken = allocated_bytes(lambda: model.forward(x.repeat(MANY, 1), 24))
    expected = np.polyval(MemoryBudget()._fitted(model, x[0], 24), MANY)
    assert 0.98 * taken <= expected <= 1.05 * taken
    # A budget of these bytes holds that batch, and no larger one.
    assert abs(MemoryBudget(taken).rows(model, x[0], 24, 4 * MANY) - MANY) <= 0.05 * MANY


def test_bytes_that_grow_ever_more_slowly_are_not_extrapolated_to_fall() -> None:
    def forecast(x: Tensor) -> Tensor:
        torch.ones(1000 * (len(x) if len(x) < 4 else 3))  # a scratch space that does not grow beyond three windows
        return x[:, :4] * 1.0

    model, x = from_module(forecast), series(1, 16)
    with torch.no_grad():
        taken = allocated_bytes(lambda: model.forward(x.repeat(100, 1), 4))
    assert np.polyval(MemoryBudget()._fitted(model, x[0], 4), 100) >= taken - 4 * 3000


def test_a_batch_has_at_most_the_bytes_of_the_fastest_one_and_of_the_budget() -> None:
    bytes_of_a_window = 4 * (2**20 + 2**18)
    model = from_module(lambda x: x.repeat(1, 2**20 // x.shape[1])[:, : 2**18] * 1.0)
    x = torch.randn(4096)
    plenty, little = MemoryBudget(), MemoryBudget(3 * bytes_of_a_window)
    most = plenty.rows(model, x, 2**18, 1000)
    assert (
        little.rows(model, x, 2**18, 1000)
        == little.fastest(model, x, 2**18, 1000)
        < plenty.fastest(model, x, 2**18, 1000)
    )
    assert plenty.fastest(model, x, 2**18, 1000) == FASTEST // bytes_of_a_window < most
    assert plenty.block(model, x, 2**18, 1000) == FASTEST // bytes_of_a_window
    assert little.block(model, x, 2**18, 1000) == little.rows(model, x, 2**18, 1000) < 16
    assert plenty.fastest(model, x, 2**18, 5) == plenty.rows(model, x, 2**18, 5) == 5


def test_the_peak_is_the_bytes_of_the_largest_batch() -> None:
    model, x = from_module(lambda x: x[:, :4] * 1.0), series(1, 16)
    batch = x.repeat(MOST_ROWS, 1)
    with torch.no_grad():
        taken = allocated_bytes(lambda: model.forward(batch, 4))
    assert MemoryBudget().peak(model, x[0], 4) == pytest.approx(taken, rel=1e-6)


def test_a_forecast_that_runs_out_of_memory_is_halved_and_no_later_batch_is_larger() -> None:
    batches = []

    def limited(x: Tensor) -> Tensor:
        batches.append(len(x))
        if len(x) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x[:, :4] * 1.0

    model, x, budget = from_module(limited), series(8, 16), MemoryBudget()
    for expected in ([8, 4, 2, 2, 2, 2], [2, 2, 2, 2]):
        batches.clear()
        assert torch.equal(budget.forward(model, x, 4), x[:, :4])
        assert batches == expected
