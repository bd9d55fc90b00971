"""Torch's global state, and that of the other random generators, set for a block of code and restored after it.

Attribution libraries, a user's function, a model in training and the caller's own code all share it.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread per kernel: a sum that is split over threads has other last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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


@contextmanager
def differentiable() -> Iterator[None]:
    """Gradients whatever the caller's mode, `no_grad` and `inference_mode` included; restores all global state."""
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    try:
        with kept_random_state(), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)


def plain(x: torch.Tensor) -> torch.Tensor:
    """Values as a tensor that gradients can start from, inside `differentiable`."""
    return x.clone() if x.is_inference() else x.detach()
