"""What a job reports while it works, and how it is stopped: progress on standard error, signals, a time budget.

On a terminal, rich draws the progress from the first moment, moves printed text above it, and removes it at the end.
Elsewhere it is a plain line now and then. Imports little beside rich: the line must be on screen while torch and pandas
are imported.
"""

import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from hrx.text import clean, clean_lines, message

LINE_SECONDS = 15.0
"""Seconds between two lines where standard error is not a terminal."""
STOPPING = "stopping: running tasks are finished and stored; Ctrl-C again stops at once"
INTERRUPTED = 130
"""Exit code of a process that Ctrl-C ended."""


class Progress:
    """What a job of `hrx.api` reports, drawn on standard error, or on `stream`.

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
        self._part: Callable[[], float] | None = None
        self._began = self._timed = self._written = time.monotonic()

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Show the progress of a command inside; nothing of it stays on a terminal afterwards."""
        self._reset(what)
        try:
            self._draw()
            yield
        finally:
            self.pause()

    def expect(self, total: int, expected: Mapping[str, float], unit: str = "runs") -> None:
        """Start a count. `expected`: the time of each remaining item by its key; only the proportions are used."""
        self._total, self._done, self._before = total, total - len(expected), total - len(expected)
        self._expected, self._unit = dict(expected), unit
        self._weight, self._passed = sum(expected.values()), 0.0
        self._timed = time.monotonic()

    def time_from_here(self) -> None:
        """Start the first item now: loading before it does not count for the remaining time."""
        if not self._passed:
            self._timed = time.monotonic()

    def say(self, what: str, part: Callable[[], float] | None = None) -> None:
        """Say what runs now. `part` returns how much of its expected time has passed, for an item that can say so."""
        self._what, self._part = clean(what), part
        self._draw()
        if self._live is not None:
            self._live.refresh()  # a stage may be over before the next regular drawing
        self._write_line()

    def announce(self, what: str) -> None:
        """Say what runs now, at once where standard error is not a terminal too."""
        self._what = clean(what)
        self._write_line(at_once=True)

    def step(self, key: str, what: str) -> None:
        """One more item is done."""
        self._part = None
        self._done += 1
        self._passed += self._expected.pop(key, 0.0)
        self._what = clean(what)
        self._draw()
        self._write_line(at_once=self._done == self._total)

    def so_far(self, text: str) -> None:
        """Tell an interim result."""
        self._so_far = clean(text)

    def note(self, text: str) -> None:
        """Tell something beside the result, such as a warning."""
        print(clean_lines(text), file=self._stream or sys.stderr)

    def pause(self) -> None:
        """Another process shows its own progress from here, until something is said again."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def stage(self, what: str) -> None:
        """Say what runs now, after a count that is complete."""
        self.expect(0, {})
        self.so_far("")
        self.say(what)

    def __rich__(self) -> Group:
        """Return the line as it stands now."""
        elapsed = duration(time.monotonic() - self._began)
        head: ProgressBar | Spinner = self._spinner
        text = f"{self._what} ({elapsed})"
        if self._total:
            missing = self._total - self._before
            # By count where no time is expected.
            by_count, by_time = self._done - self._before, self._time_passed()
            passed = min(1.0, by_time / self._weight) if self._weight else by_count / max(1, missing)
            head = ProgressBar(self._total, self._before + missing * passed, width=20)
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
        redirected = sys.stdout.isatty()
        self._live = Live(self, console=console, refresh_per_second=4, transient=True, redirect_stdout=redirected)
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

    def _time_passed(self) -> float:
        return self._passed + (self._part() if self._part else 0.0)

    def _remaining(self) -> str:
        """Return the estimated time to go; empty while nothing is known about it."""
        if self._done == self._total:
            return ", none to go"
        if not (passed := self._time_passed()):
            return ""
        left = max(0.0, self._weight - passed)
        return f", {duration(left / passed * (time.monotonic() - self._timed))} to go"


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `4 days`."""
    for unit, size, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds / size:.{int(unit == 'h')}f} {unit}"
    return f"{seconds / 86400:.0f} days"


class Stopped(BaseException):
    """A second signal. Not an Exception, so that no library catches it."""


class Stop:
    """Whether a job is to start nothing more: a signal arrived, or its time, from now on, is over."""

    def __init__(self, progress: Progress, budget: float | None = None) -> None:
        self._events = progress
        self._end = math.inf if budget is None else time.monotonic() + budget
        self.number: int | None = None
        """Number of the last signal."""
        self.listeners: list[Callable[[int], None]] = []
        """Each is called with the number of a signal."""

    def __call__(self) -> bool:
        return self.number is not None or self.over

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._end

    @property
    def left(self) -> float | None:
        """Seconds to go, a millisecond at least; None without a limit."""
        return None if self._end == math.inf else max(round(self._end - time.monotonic(), 3), 0.001)

    @property
    def exit(self) -> int:
        """Exit code of a process that a signal ended: 130 or 143."""
        return 128 + (self.number or 0)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM: running tasks are finished; the second one raises `Stopped`."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can handle signals
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        for listener in self.listeners:
            listener(number)
        first, self.number = self.number is None, number
        if not first:
            raise Stopped
        self._events.announce(STOPPING)


@contextmanager
def noting_damage(progress: Progress) -> Iterator[list[str]]:
    """Note what readers of ledgers leave out as damaged, once each. Yield what was noted."""
    from hrx.records.ledger import MOST_NAMED, LedgerWarning

    shown: list[str] = []
    usual = warnings.showwarning

    def show_warning(warning: Warning | str, *details: Any) -> None:
        if not isinstance(warning, LedgerWarning):
            usual(warning, *details)
            return
        lines = [f"{warning.path}: left out: {damage}" for damage in warning.damaged]
        new = [line for line in lines if line not in shown]
        shown.extend(new)
        more = [f"… and {len(new) - MOST_NAMED} more; hrx check names all"] if len(new) > MOST_NAMED else []
        for line in [*new[:MOST_NAMED], *more]:
            progress.note(message(line))

    with warnings.catch_warnings():
        warnings.simplefilter("always", LedgerWarning)
        warnings.showwarning = show_warning  # type: ignore[assignment]  # the details are passed on as they come
        yield shown
