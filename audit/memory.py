"""How many windows may be in flight at once: measured, not guessed.

A probe counts the bytes that a forward pass allocates at three small batch sizes. Counting all of them as if none were
freed bounds the peak from above, with and without gradients. Attention over the batch axis makes the count grow
quadratically, so a parabola is fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hrx.adapters import Forecaster

GIBIBYTE = 2**30
PROBE_BATCHES = (1, 2, 4)
MOST_ROWS = 512
"""Larger batches were not faster on the CPUs at hand, and delay the first sign of progress."""


class Budget:
    """A bound on the memory of a batch, with what was measured so far."""

    def __init__(self, memory: int = 2 * GIBIBYTE):
        self.memory = memory
        self._measured: dict[tuple[str, int, int], np.ndarray[Any, np.dtype[np.float64]]] = {}

    def rows(self, model: Forecaster, lookback: int, horizon: int, wanted: int) -> int:
        """How many windows to forecast at once: within the budget, at least one, at most `wanted`."""
        key = (model.identity.fingerprint, lookback, horizon)
        if key not in self._measured:
            self._measured[key] = _fit(model, lookback, horizon)
        sizes = np.arange(1, MOST_ROWS + 1)
        fitting = int(np.count_nonzero(np.polyval(self._measured[key], sizes) <= self.memory))
        return max(1, min(fitting, wanted))


def _fit(model: Forecaster, lookback: int, horizon: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Coefficients of the parabola through the bytes of the probes."""

    def forecast(batch: int) -> Tensor:
        return model.forward(torch.linspace(-1, 1, batch * lookback).reshape(batch, lookback), horizon)

    with torch.no_grad():
        taken = [float(allocated(lambda n=n: forecast(n))) for n in PROBE_BATCHES]
    return np.polyfit(PROBE_BATCHES, taken, deg=2)


def allocated(call: Callable[[], object]) -> int:
    """Bytes of all tensors that a call creates, each storage counted once."""
    with _Count() as count:
        call()
    return count.total


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self._held: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {_storage(t).data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = _storage(tensor)
                if storage.data_ptr() not in known and storage.data_ptr() not in self._held:
                    # Held until the end, so that no later tensor can reuse its address.
                    self._held[storage.data_ptr()] = storage
                    self.total += storage.nbytes()
        return out


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
