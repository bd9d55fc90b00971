"""Batch sizes from a memory budget.

The bytes that a forward pass allocates are counted at three small batch sizes. Counting all of them as if none were
freed bounds the peak from above, with and without gradients. Attention over the batch axis makes the count grow
quadratically, so a parabola through the three gives the bytes of any batch. Where the machine has less memory than the
budget, a batch that does not fit is halved, and no later one is larger.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hrx.adapters.contract import Forecaster, Identity
from hrx.records.quantities import Floats

GIBIBYTE = 2**30
COUNTED_BATCHES = (2, 3, 4)
"""Not one: a batch of one may be computed by other operations."""
MOST_ROWS = 512
"""Larger batches were hardly faster on the measured CPUs, and delay the first sign of progress."""
FASTEST = 256 * 2**20
"""Bytes that a forward pass allocates at about the batch size of the highest throughput: with less, the overhead of
calls dominates; more gained little. Bytes, unlike seconds, are the same every time, so batches and digits are too."""
LEAST_BLOCK = 16
"""Jacobian rows that are computed at once wherever memory holds them: in smaller blocks the overhead of calls
dominates."""
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "std::bad_alloc")

BatchKey = tuple[int, torch.dtype, torch.Size, int]
"""What the memory of a window depends on: fingerprint of the model, type and shape of the window, horizon."""


class MemoryBudget:
    """A bound on the memory of a batch, and the byte counts measured so far."""

    def __init__(self, memory: int = 2 * GIBIBYTE):
        self.memory = memory
        self._measured: dict[BatchKey, Floats] = {}
        self._largest: dict[BatchKey, int] = {}
        self._identities: dict[int, Identity] = {}
        """Held, so that no two models get one id."""

    def rows(self, model: Forecaster, window: Tensor, horizon: int, most: int) -> int:
        """How many windows like `window` `(L,)` or `(L, C)` to forecast at once: at least one, at most `most`."""
        return self._within(self.memory, model, window, horizon, most)

    def fastest(self, model: Forecaster, window: Tensor, horizon: int, most: int) -> int:
        """Like `rows`, but at most the batch of the highest throughput."""
        return self._within(min(self.memory, FASTEST), model, window, horizon, min(most, MOST_ROWS))

    def block(self, model: Forecaster, window: Tensor, horizon: int, most: int) -> int:
        """How many Jacobian rows of such a window to compute at once; fewer than 16 only where memory is short."""
        # The backward pass of a row holds about half of what the forward pass of a window allocates.
        fastest = self._within(min(self.memory, FASTEST), model, window, horizon, most)
        return max(fastest, self.rows(model, window, horizon, min(most, LEAST_BLOCK)))

    def peak(self, model: Forecaster, window: Tensor, horizon: int) -> int:
        """Upper bound on the bytes of the largest batch of such windows, for a cost estimate."""
        if not model.differentiable:
            return 0
        rows = self.rows(model, window, horizon, MOST_ROWS)
        return max(0, int(np.polyval(self._fitted(model, window, horizon), rows)))

    def forward(self, model: Forecaster, x: Tensor, horizon: int) -> Tensor:
        """`model.forward` of a batch, halved for as long as memory does not suffice."""
        key = self._key(model, x[0], horizon)
        while True:
            rows = min(len(x), self._largest.get(key, len(x)))
            try:
                return torch.cat([model.forward(some, horizon) for some in torch.split(x, rows)])
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or rows == 1:
                    raise
            # Outside the except block: inside it the traceback keeps the failed batch in memory.
            self._largest[key] = rows // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def forecasts(self, model: Forecaster, x: Tensor, horizon: int) -> Tensor:
        """Forecasts of all windows without gradients, in batches, on the CPU."""
        parts = torch.split(x, self.fastest(model, x[0], horizon, len(x)))
        with torch.no_grad():
            return torch.cat([self.forward(model, some, horizon) for some in parts]).cpu()

    def _key(self, model: Forecaster, window: Tensor, horizon: int) -> BatchKey:
        # By object: the fingerprint of a model in memory takes as long as rows do.
        self._identities[id(model.identity)] = model.identity
        return id(model.identity), window.dtype, window.shape, horizon

    def _within(self, memory: int, model: Forecaster, window: Tensor, horizon: int, most: int) -> int:
        most = min(most, self._largest.get(self._key(model, window, horizon), most))
        if not model.differentiable:  # what it allocates is unknown, and a call may be expensive
            return most
        taken = np.polyval(self._fitted(model, window, horizon), np.arange(1, most + 1))
        return max(1, int(np.count_nonzero(taken <= memory)))

    def _fitted(self, model: Forecaster, window: Tensor, horizon: int) -> Floats:
        """Coefficients of a parabola through the counted bytes; a line through the last two where it would fall."""
        key = self._key(model, window, horizon)
        if key not in self._measured:
            with torch.no_grad():
                batches = [torch.stack([window] * size) for size in COUNTED_BATCHES]
                taken = [float(allocated_bytes(partial(model.forward, batch, horizon))) for batch in batches]
            fit = np.polyfit(COUNTED_BATCHES, taken, deg=2)
            line = np.polyfit(COUNTED_BATCHES[-2:], taken[-2:], deg=1)
            self._measured[key] = fit if fit[0] >= 0 else np.array([0.0, *line])
        return self._measured[key]


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the machine, or its GPU, has run out of memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def allocated_bytes(call: Callable[[], object]) -> int:
    """Bytes of all tensors that a call creates, each storage counted once."""
    with _ByteCount() as count:
        call()
    return int(count.total)


class _ByteCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self._held: dict[int, torch.UntypedStorage] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports torch's compiler, which takes a second, and wraps every operation for it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = _storages((args, kwargs))
        out = func(*args, **(kwargs or {}))
        for address, storage in _storages(out).items():
            if address not in known and address not in self._held:
                # Kept until the end, so that no later tensor reuses its address.
                self._held[address] = storage
                self.total += storage.nbytes()
        return out


def _storages(tree: object) -> dict[int, torch.UntypedStorage]:
    storages = [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return {storage.data_ptr(): storage for storage in storages}
