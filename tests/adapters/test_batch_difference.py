"""Windows among others against the same windows in few and alone: a forecast that depends on its batch is found."""

from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import load
from hrx.adapters.gradients import batch_difference

X = series(3, 96)


def independent(x: Tensor) -> Tensor:
    """A forecast of each window by itself; it writes into its input, as libraries do."""
    x -= x.mean(dim=1, keepdim=True)
    return x[:, -24:].cumsum(dim=1)


def wrong_above(rows: int, x: Tensor) -> Tensor:
    """A kernel that is right for a batch of up to so many windows."""
    return independent(x) * (1.0 if len(x) <= rows else 1.5)


def wrong_from(row: int, x: Tensor) -> Tensor:
    """A kernel that is right in the first places of a batch only, and in its last one."""
    y = independent(x)
    y[row : len(y) - 1] *= 1.001
    return y


def coupled(x: Tensor) -> Tensor:
    """A normalisation by the whole batch."""
    return x[:, -24:] / x.std()


@pytest.mark.parametrize("size", [1, 2, 7, 12, 64, 65, 200])
@pytest.mark.parametrize("windows", [X, X[:1], X[..., None].repeat(1, 1, 2)], ids=["three", "one", "two channels"])
def test_a_forecast_of_each_window_by_itself_has_no_difference(windows: Tensor, size: int) -> None:
    before = windows.clone()
    assert batch_difference(independent, windows, size) == 0.0
    assert torch.equal(windows, before)


def test_a_model_that_is_wrong_in_large_batches_is_found_at_that_size_only() -> None:
    assert batch_difference(partial(wrong_above, 64), X, 64) == 0.0
    assert batch_difference(partial(wrong_above, 64), X, 65) == pytest.approx(0.5)


def test_a_single_wrong_place_is_found() -> None:
    assert batch_difference(partial(wrong_from, 70), X, 71) == 0.0
    assert 1e-4 < batch_difference(partial(wrong_from, 70), X, 72) <= 1.1e-3


@pytest.mark.parametrize("size", [4, 12, 100])
def test_windows_that_share_a_statistic_are_found(size: int) -> None:
    assert batch_difference(coupled, X, size) > 1e-3


def test_the_call_alone_is_compared_too() -> None:
    def wrong_alone(x: Tensor) -> Tensor:
        return independent(x) * (2.0 if len(x) == 1 else 1.0)

    assert batch_difference(wrong_alone, X, 12) == pytest.approx(0.5)


@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm", "moirai-2"])
def test_a_released_family_forecasts_each_window_by_itself(checkpoints: dict[str, Path], family: str) -> None:
    model = load(str(checkpoints[family]))
    for call in (model.official, model.forward):
        with torch.no_grad():
            assert batch_difference(partial(call, horizon=24), X, 40) <= 1e-6
