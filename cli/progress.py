"""Progress on standard error: one line that is rewritten on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LINE_SECONDS = 15.0


class Progress:
    """Counts runs and says how long the rest will take."""

    def __init__(self, total: int, done: int, stream: TextIO | None = None):
        self._total, self._done, self._stream = total, done, stream or sys.stderr
        self._first = done + 1
        self._began = self._said = time.monotonic()
        self._live = self._stream.isatty()

    def step(self, what: str) -> None:
        """One more run is stored."""
        self._done += 1
        now = time.monotonic()
        if self._done == self._first:
            self._began = now  # what came before was loading and admission, not runs
        if self._live or self._done == self._total or now - self._said >= LINE_SECONDS:
            self._said = now
            line = f"{self._done}/{self._total} runs, {self._to_go(now)}: {what}"
            end = "\n" if not self._live or self._done == self._total else ""
            self._stream.write((f"\r\x1b[K{line[:100]}" if self._live else line) + end)
            self._stream.flush()

    def _to_go(self, now: float) -> str:
        made = self._done - self._first
        if not made:
            return "first one done"
        seconds = (now - self._began) / made * (self._total - self._done)
        return f"{seconds / 60:.0f} min to go" if seconds >= 90 else f"{seconds:.0f} s to go"
