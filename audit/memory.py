"""How many windows may be in flight at once: measured, not guessed.

A probe counts the bytes that a forward pass allocates at three small batch sizes. Counting all of them as if none were
freed bounds the peak from above, with and without gradients. Attention over the batch axis makes the count grow
quadratically, so a parabola is fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hrx.adapters import Forecaster

Floats = npt.NDArray[np.float64]
GIBIBYTE = 2**30
PROBE_BATCHES = (1, 2, 4)
MOST_ROWS = 512
"""Larger batches were not faster on the CPUs at hand, and delay the first sign of progress."""


class Budget:
    """A bound on the memory of a batch, with what was measured so far."""

    def __init__(self, memory: int = 2 * GIBIBYTE):
        self.memory = memory
        self._measured: dict[tuple[str, torch.dtype, torch.Size, int], Floats] = {}

    def rows(self, model: Forecaster, window: Tensor, horizon: int, wanted: int) -> int:
        """How many windows like `window` `(L,)` or `(L, C)` to forecast at once: at least one, at most `wanted`."""
        key = (model.identity.fingerprint, window.dtype, window.shape, horizon)
        if key not in self._measured:
            self._measured[key] = _fit(model, window, horizon)
        sizes = np.arange(1, MOST_ROWS + 1)
        fitting = int(np.count_nonzero(np.polyval(self._measured[key], sizes) <= self.memory))
        return max(1, min(fitting, wanted))


def _fit(model: Forecaster, window: Tensor, horizon: int) -> Floats:
    """Coefficients of the parabola through the bytes of the probes."""
    with torch.no_grad():
        batches = [window[None].repeat(size, *[1] * window.ndim) for size in PROBE_BATCHES]
        taken = [float(allocated(partial(model.forward, batch, horizon))) for batch in batches]
    return np.polyfit(PROBE_BATCHES, taken, deg=2)


def allocated(call: Callable[[], object]) -> int:
    """Bytes of all tensors that a call creates, each storage counted once."""
    count = _Count()
    with count:
        call()
    return count.total


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
