"""The C library's allocator: what a batch frees stays with the process for the next one.

By itself glibc gives the upper end of its heap back after a batch and has the kernel clear the same pages anew for the
next. On the processors at hand that took up to a third of the time of forecasts, and made large batches slower than
small ones. What is kept was once in use.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

_SETTINGS = {
    -3: 32 * 2**20,  # M_MMAP_THRESHOLD, at the most that glibc takes: smaller blocks come from the heap
    -1: 2**31 - 1,  # M_TRIM_THRESHOLD: free bytes at the end of the heap that go back to the system
    -2: 64 * 2**20,  # M_TOP_PAD: what the heap grows by, so that a thread's heap of that size is never unmapped
}
"""Parameters of `mallopt` by the numbers of malloc.h."""
_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


@cache
def keep_freed_memory() -> bool:
    """Whether the allocator of this process was told so: not where it is another one, or set by the environment."""
    if any(name in os.environ for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(parameter, value) for parameter, value in _SETTINGS.items())
