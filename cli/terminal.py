"""Terminal output through rich, and files that a verb writes.

Plain text when piped. Files are written atomically, and never over a ledger.
"""

import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from hrx.cli.progress import progress
from hrx.errors import HrxError
from hrx.reports.text import make_directory, write_bytes

_SQLITE = b"SQLite format 3\x00"


def show(text: str) -> None:
    """Prints text as it is, in place of the progress line; on a terminal verdicts are bold."""
    progress.pause()
    console = Console(file=sys.stdout)
    for line in text.rstrip("\n").split("\n"):
        style = "bold" if line.lstrip().startswith("Verdict") else ""
        console.print(Text(line, style=style), soft_wrap=True)


def terminal_width(piped: int) -> int:
    """Columns of the terminal, or `piped` where standard output is not one."""
    console = Console(file=sys.stdout)
    return console.width if console.is_terminal else piped


def refuse_ledger(path: Path, option: str) -> None:
    """Refuses a path that holds a ledger: `--json LEDGER` must not overwrite it."""
    try:
        with path.open("rb") as file:
            is_ledger = file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return
    if is_ledger:
        raise HrxError(
            f"{option} {path} is a ledger and would be overwritten. Give another file; ledgers come before {option}."
        )


def write(path: Path, text: str, option: str) -> None:
    """Writes the text of an option, and creates its directory."""
    refuse_ledger(path, option)
    try:
        make_directory(path.parent)
        write_bytes(path, text.encode("utf-8", "replace"))
    except HrxError as error:
        raise HrxError(f"{option}: {error}") from error
