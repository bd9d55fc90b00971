"""What a person at a terminal sees: text, plain when it is piped, and one line that says what is going on."""

from __future__ import annotations

import os
import sys


def show(text: str) -> None:
    """Prints text; on a terminal its verdicts stand out."""
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        text = "\n".join(_bold(line) if line.lstrip().startswith("Verdict") else line for line in text.split("\n"))
    print(text.rstrip("\n"))


def _bold(line: str) -> str:
    return f"\x1b[1m{line}\x1b[0m"


class StatusLine:
    """One line on standard error that is rewritten on a terminal, and left out elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()

    def say(self, text: str) -> None:
        if self._live:
            sys.stderr.write(f"\r\x1b[K{text[:100]}")
            sys.stderr.flush()

    def clear(self) -> None:
        self.say("")
