"""Ctrl-C and SIGTERM: the first lets running tasks finish, a second stops at once.

Nothing stored is lost either way, since every run is a transaction of the ledger.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
        print("\nStopping: running tasks are finished and stored. Press Ctrl-C again to stop at once.", file=sys.stderr)


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
