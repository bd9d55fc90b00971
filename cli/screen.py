"""Terminal output through rich: text, plain when piped, and one status line."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.status import Status
from rich.text import Text


def show(text: str) -> None:
    """Prints text as it is; on a terminal verdicts are bold."""
    console = Console(file=sys.stdout)
    for line in text.rstrip("\n").split("\n"):
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
            self._status.update(Text(text))
            self._status.start()

    def clear(self) -> None:
        if self._status:
            self._status.stop()
