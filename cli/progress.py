"""Progress on standard error: one line that is rewritten on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TextIO

LINE_SECONDS = 15.0


class Progress:
    """Counts runs and says how long the rest will take.

    A run at a large setting takes many times one at a small setting, so runs are weighed by what they were expected to
    take; how far off the expectation was so far is what the rest is corrected by.
    """

    def __init__(self, total: int, expected: Mapping[str, float], stream: TextIO | None = None):
        """`expected`: about how many seconds each run takes that is left, by its key."""
        self._total, self._done = total, total - len(expected)
        self._expected = dict(expected)
        self._left = sum(self._expected.values())
        self._weight = 0.0
        self._stream = stream or sys.stderr
        self._began = self._said = time.monotonic()
        self._live = self._stream.isatty()
        self._fresh = True

    def step(self, key: str, what: str) -> None:
        """One more run is stored."""
        self._done += 1
        weight = self._expected.pop(key, 0.0)
        self._left -= weight
        now = time.monotonic()
        if self._fresh:  # what came before was loading and admission, not runs
            self._fresh, self._began, weight = False, now, 0.0
        self._weight += weight
        last = self._done == self._total
        if self._live or last or now - self._said >= LINE_SECONDS:
            self._said = now
            line = f"{self._done}/{self._total} runs, {self._to_go(now)}: {what}"
            end = "\n" if not self._live or last else ""
            self._stream.write((f"\r\x1b[K{line[:100]}" if self._live else line) + end)
            self._stream.flush()

    def _to_go(self, now: float) -> str:
        if self._done == self._total:
            return "none to go"
        if not self._weight:
            return "first one done"
        return f"{duration(max(0.0, self._left) / self._weight * (now - self._began))} to go"


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `4 days`."""
    for unit, size, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds / size:.{int(unit == 'h')}f} {unit}"
    return f"{seconds / 86400:.0f} days"
