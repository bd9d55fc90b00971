"""A command in a pseudo-terminal, and the screen that a person sees."""

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_PIECE = re.compile(r"\x1b\[(?P<number>[0-9;?]*)(?P<letter>[A-Za-z])|(?P<text>[^\x1b])", re.S)


class Screen:
    """What a terminal shows after the sequences that rich writes: cursor up, erase line, carriage return, colours."""

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.row = self.column = 0
        self.cursor = True

    def feed(self, written: str) -> None:
        for piece in _PIECE.finditer(written):
            letter, number = piece["letter"], piece["number"]
            if piece["text"]:
                self._put(piece["text"])
            elif letter == "A":
                self.row = max(0, self.row - int(number or 1))
            elif letter == "K":
                assert number == "2", f"erase {number!r} is not one that this screen knows"
                self.lines[self.row] = ""
            elif letter in "hl" and number == "?25":
                self.cursor = letter == "h"
            else:
                assert letter == "m", f"sequence {piece[0]!r} is not one that this screen knows"

    def _put(self, character: str) -> None:
        if character == "\n":
            self.row += 1
            self.lines += [""] * (self.row + 1 - len(self.lines))
        elif character == "\r":
            self.column = 0
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)


class Session:
    """`hrx ARGUMENTS` with standard error, and standard output unless it is given, on a terminal of 100 columns."""

    def __init__(self, arguments: Sequence[str], cwd: Path, stdout: int | None = None, columns: int = 100):
        self._terminal, inner = pty.openpty()
        termios.tcsetwinsize(inner, (40, columns))
        environment = os.environ | {"TERM": "xterm", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hrx.cli", *arguments],
            cwd=cwd,
            env=environment,
            stdin=inner,
            stdout=inner if stdout is None else stdout,
            stderr=inner,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that a typed Ctrl-C becomes a signal
        )
        os.close(inner)
        self.screen = Screen()
        self.frames: list[str] = []
        """Every different text that was on the screen."""

    def until(self, condition: Callable[[str], bool], seconds: float = 120) -> str:
        """Reads until the screen fulfils a condition or the process ends; returns the screen."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not select.select([self._terminal], [], [], 0.5)[0]:
                continue
            try:
                data = os.read(self._terminal, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            self.screen.feed(data.decode("utf-8", "replace"))
            if not self.frames or self.frames[-1] != self.screen.text:
                self.frames.append(self.screen.text)
            if condition(self.screen.text):
                return self.screen.text
        return self.screen.text

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def end(self) -> int:
        """Reads to the end; returns the exit code."""
        self.until(lambda text: False)
        os.close(self._terminal)
        return self.process.wait(timeout=60)
