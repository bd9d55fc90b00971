"""Terminal output through rich, progress, and files that a verb writes.

Plain text when piped. Files are written atomically, and never over a ledger.
"""

import atexit
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.status import Status
from rich.text import Text

from hrx.errors import Exit, HrxError, NotWritten
from hrx.files import check_target, make_directory
from hrx.reports.text import write_bytes
from hrx.text import clean, clean_lines, message

LINE_SECONDS = 15.0


def show(text: str) -> None:
    """Prints text without control characters; on a terminal verdicts are bold."""
    console = Console(file=sys.stdout)
    for line in clean_lines(text.rstrip("\n")).split("\n"):
        style = "bold" if line.lstrip().startswith("Verdict") else ""
        console.print(Text(line, style=style), soft_wrap=True)


def terminal_width(piped: int) -> int:
    """Columns of the terminal, or `piped` where standard output is not one."""
    console = Console(file=sys.stdout)
    return console.width if console.is_terminal else piped


class StatusLine:
    """One line on standard error that says what runs now; nothing where standard error is not a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._status = Status("", console=console) if console.is_terminal else None

    def say(self, text: str) -> None:
        if self._status:
            self._status.update(Text(clean(text)))
            self._status.start()

    def clear(self) -> None:
        if self._status:
            self._status.stop()


class Progress:
    """Counts runs and estimates the remaining time.

    A run at a large setting takes many times as long as one at a small setting, so runs are weighted by their expected
    time, and the remaining time is scaled by how far off the expectation was so far.
    """

    def __init__(self, total: int, expected: Mapping[str, float], stream: TextIO | None = None):
        """`expected`: the time of each remaining run by its key, in any unit: only the proportions are used."""
        self._total, self._done = total, total - len(expected)
        self._expected = dict(expected)
        self._left = sum(self._expected.values())
        self._weight = 0.0
        self._began = self._written = time.monotonic()
        self._first = True
        self._stream = stream or sys.stderr
        self._bar: RichProgress | None = None
        console = Console(file=self._stream)
        if console.is_terminal and expected:
            columns = (BarColumn(20), TextColumn("{task.description}", markup=False))
            self._bar = RichProgress(*columns, console=console, auto_refresh=False)
            self._task = self._bar.add_task(f"{self._done}/{total} runs", total=total, completed=self._done)
            self._bar.start()
            atexit.register(self._bar.stop)  # shows the cursor again after an error

    def step(self, key: str, what: str) -> None:
        """One more run is stored."""
        self._done += 1
        weight = self._expected.pop(key, 0.0)
        self._left -= weight
        now = time.monotonic()
        if self._first:  # the time before it was loading and admission, not runs
            self._first, self._began, weight = False, now, 0.0
        self._weight += weight
        last = self._done == self._total
        line = f"{self._done}/{self._total} runs, {self._remaining(now)}: {clean(what)}"
        if self._bar:
            self._bar.update(self._task, completed=self._done, description=line, refresh=True)
            if last:
                self._bar.stop()
        elif last or now - self._written >= LINE_SECONDS:
            self._written = now
            self._stream.write(line + "\n")
            self._stream.flush()

    def _remaining(self, now: float) -> str:
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


def note(text: str) -> None:
    """Prints lines beside the result, on standard error."""
    print(clean_lines(text), file=sys.stderr)


def not_written(verb: str, error: HrxError, code: int) -> int:
    """Says which file is missing after the result was shown. Returns the exit code: that of a failed gate stays."""
    note(message(f"hrx {verb}: {error}"))
    return code or Exit.INCOMPLETE


def write(path: Path, text: str, option: str) -> None:
    """Writes the text of an option, and creates its directory. `check_target` refuses a wrong path before the work."""
    check_target(path, option)
    try:
        make_directory(path.parent)
        write_bytes(path, text.encode("utf-8", "replace"))
    except NotWritten as error:
        raise NotWritten(f"{option}: {error}") from error
