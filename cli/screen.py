"""Standard output: text for people, plain when it is piped."""

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
