"""The global random generators of Python, numpy and torch, set for a block of code and restored after it.

Attribution libraries, a user's function and a model in training draw from them.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restores every global generator after the block, whatever the block draws."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # the legacy generator is the global one
    # Asking an unused GPU for its state would start it.
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count() if used else 0)
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seeds every global generator by `key` inside the block, and restores them after it."""
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    with kept_random_state():
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        yield
