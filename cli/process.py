"""The process of a command: signals, and the allocator of glibc."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from hrx.cli.progress import progress

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = "stopping: running tasks are finished and stored; Ctrl-C again stops at once"


class Stopped(BaseException):
    """A second signal. Not an Exception, so that no library catches it."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Stop:
    """Whether a signal arrived, and the callbacks that forward it."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.listeners: list[Callable[[int], None]] = []

    def __call__(self) -> bool:
        return self.number is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        for listener in self.listeners:
            listener(number)
        if self.number is not None:
            raise Stopped(number)
        self.number = number
        progress.announce(STOPPING)


class Budget:
    """The time of one command, from now on."""

    def __init__(self, seconds: float | None):
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """Seconds; None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> bool:
        return self.left == 0


@contextmanager
def finishing() -> Iterator[Stop]:
    """Handles signals by the `Stop` that it yields."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread can handle signals
        return
    before = {number: signal.signal(number, stop.handle) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(number: int) -> int:
    """The exit code of a process ended by a signal: 130 or 143."""
    return 128 + number


_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": (-3, 32 * 2**20),  # the largest that glibc takes: smaller blocks come from the heap
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1),  # free bytes at the top of the heap that are returned
    "MALLOC_TOP_PAD_": (-2, 64 * 2**20),  # growth of the heap; a thread's heap of that size is never unmapped
}
"""Environment variable, parameter of `mallopt` in malloc.h, and value."""


def keep_freed_memory() -> bool:
    """Lets glibc keep the memory that a batch frees for the next one, in this process and its children.

    By default glibc returns the top of its heap to the kernel after a batch, and the kernel clears the same pages again
    for the next one, which takes up to a third of the time of forecasts. The Python API leaves the allocator alone.
    Returns False where another allocator or configuration is in use.
    """
    if any(name in os.environ for name in (*_SETTINGS, "GLIBC_TUNABLES")):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    os.environ.update({name: str(value) for name, (_, value) in _SETTINGS.items()})
    return all(mallopt(parameter, value) for parameter, value in _SETTINGS.values())
