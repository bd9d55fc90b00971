"""Progress on standard error: what runs now, how much is done, time elapsed and left, the verdict so far.

On a terminal, rich draws it from the first moment, moves printed text above it, and removes it at the end. Elsewhere it
is a plain line now and then. Imports little beside rich: the line must be on screen while torch and pandas are
imported.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from hrx.text import clean

LINE_SECONDS = 15.0
"""Seconds between two lines where standard error is not a terminal."""
_DRAWN_PER_SECOND = 4
_BAR_WIDTH = 20


def _nothing() -> float:
    return 0.0


class Progress:
    """The progress of one command.

    A run at a large setting takes many times as long as one at a small setting, so items are weighted by their expected
    time, and the remaining time is scaled by how far off the expectation was so far.
    """

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream
        self._live: Live | None = None
        self._spinner = Spinner("line")
        self._reset("")

    def _reset(self, what: str) -> None:
        self._what, self._so_far = what, ""
        self._total = self._done = self._before = 0
        self._unit = ""
        self._expected: dict[str, float] = {}
        self._weight = self._passed = 0.0
        self._part: Callable[[], float] = _nothing
        self._began = self._timed = self._written = time.monotonic()

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Shows the progress of a command inside; nothing of it stays on a terminal afterwards."""
        self._reset(what)
        try:
            self._draw()
            yield
        finally:
            self.pause()

    def expect(self, total: int, expected: Mapping[str, float], unit: str = "runs") -> None:
        """Starts a count. `expected`: the time of each remaining item by its key; only the proportions are used."""
        self._total, self._done, self._before = total, total - len(expected), total - len(expected)
        self._expected, self._unit = dict(expected), unit
        self._weight, self._passed = sum(expected.values()), 0.0
        self._timed = time.monotonic()

    def stage(self, what: str) -> None:
        """Says what runs now, after a count that is complete."""
        self.expect(0, {})
        self._so_far = ""
        self.say(what)

    def time_from_here(self) -> None:
        """The first item starts now: what came before, such as loading, does not count for the remaining time."""
        if not self._passed:
            self._timed = time.monotonic()

    def say(self, what: str, part: Callable[[], float] = _nothing) -> None:
        """Says what runs now. `part` returns how much of its expected time has passed, for an item that can say so."""
        self._what, self._part = clean(what), part
        self._draw()
        if self._live is not None:
            self._live.refresh()  # a stage may be over before the next regular drawing
        self._write_line()

    def announce(self, what: str) -> None:
        """Says what runs now, at once where standard error is not a terminal too."""
        self._what = clean(what)
        self._write_line(at_once=True)

    def step(self, key: str, what: str) -> None:
        """One more item is done."""
        self._part = _nothing
        self._done += 1
        self._passed += self._expected.pop(key, 0.0)
        self._what = clean(what)
        self._draw()
        self._write_line(at_once=self._done == self._total)

    def so_far(self, text: str) -> None:
        """An interim result, shown below the bar."""
        self._so_far = clean(text)

    def pause(self) -> None:
        """Removes the line from the terminal until progress is reported again."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __rich__(self) -> Group:
        """The line as it stands now."""
        elapsed = duration(time.monotonic() - self._began)
        head: ProgressBar | Spinner = self._spinner
        text = f"{self._what} ({elapsed})"
        if self._total:
            share = self._before + (self._total - self._before) * self._share_passed()
            head = ProgressBar(self._total, share, width=_BAR_WIDTH)
            text = f"{self._done}/{self._total} {self._unit} in {elapsed}{self._remaining()}: {self._what}"
        line = Table.grid(padding=(0, 1))
        line.add_row(head, Text(text, no_wrap=True, overflow="ellipsis"))
        below = [Text(self._so_far, no_wrap=True, overflow="ellipsis", style="dim")] if self._so_far else []
        return Group(line, *below)

    def _draw(self) -> None:
        stream = self._stream or sys.stderr
        if self._live is not None or not stream.isatty():
            return
        # Text that is printed meanwhile is not wrapped: JSON stays JSON.
        console = Console(file=stream, force_jupyter=False, soft_wrap=True, markup=False, highlight=False)
        if console.is_dumb_terminal:
            return
        self._live = Live(
            self,
            console=console,
            refresh_per_second=_DRAWN_PER_SECOND,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start(refresh=True)
        console.show_cursor()  # so that a killed process leaves the terminal as it was

    def _write_line(self, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._live is not None or not (at_once or now - self._written >= LINE_SECONDS):
            return
        self._written = now
        count = f"{self._done}/{self._total} {self._unit}{self._remaining()}: " if self._total else ""
        so_far = f" ({self._so_far})" if self._so_far else ""
        stream = self._stream or sys.stderr
        stream.write(f"{count}{self._what}{so_far}\n")
        stream.flush()

    def _share_passed(self) -> float:
        """The share of the expected time of all items that has passed, 0 to 1; by count where nothing is expected."""
        if not self._weight:
            return (self._done - self._before) / max(1, self._total - self._before)
        return min(1.0, (self._passed + self._part()) / self._weight)

    def _remaining(self) -> str:
        """The estimated time to go; empty while nothing is known about it."""
        if self._done == self._total:
            return ", none to go"
        if not (passed := self._passed + self._part()):
            return ""
        left = max(0.0, self._weight - passed)
        return f", {duration(left / passed * (time.monotonic() - self._timed))} to go"


progress = Progress()
"""That of this process: there is one terminal."""


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `4 days`."""
    for unit, size, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds / size:.{int(unit == 'h')}f} {unit}"
    return f"{seconds / 86400:.0f} days"
