"""Ctrl-C and SIGTERM: the first lets what is under way finish, a second stops at once.

Either way nothing that was written is lost, since every run is a transaction of the ledger.
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
    """A second signal. No library may catch it, so it is no Exception."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Stop:
    """Whether a signal came, and who else is to hear of it."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.listeners: list[Callable[[int], None]] = []

    def __call__(self) -> bool:
        return self.number is not None

    def heard(self, number: int, frame: FrameType | None) -> None:
        """What the process does on a signal."""
        for listener in self.listeners:
            listener(number)
        if self.number is not None:
            raise Stopped(number)
        self.number = number
        print("\nStopping: the runs under way are finished and stored. Once more stops at once.", file=sys.stderr)


@contextmanager
def finishing() -> Iterator[Stop]:
    """Within it, signals are heard by the `Stop` that it gives."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may listen
        return
    before = {number: signal.signal(number, stop.heard) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(number: int) -> int:
    """What a shell reports for a process that a signal ended: 130 or 143."""
    return 128 + number
