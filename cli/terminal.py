"""Terminal output through rich, and files that a verb writes.

Plain text when piped. Files are written atomically, and never over a ledger.
"""

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from hrx.api.progress import Progress, noting_damage
from hrx.errors import Exit, HrxError, NotWritten
from hrx.files import check_target
from hrx.text import clean_lines
from hrx.text import message as one_line

Verb = Callable[[Any], int]

progress = Progress()
"""That of this process: there is one terminal."""
note = progress.note


class PlainConsole(Console):
    """Rich's console, which would end the program where the reader of a pipe closes it."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def show(text: str) -> None:
    """Print text without control characters, in place of the progress line; on a terminal verdicts are bold."""
    progress.pause()
    console = PlainConsole(file=sys.stdout, force_jupyter=False)
    for line in clean_lines(text.rstrip("\n")).split("\n"):
        style = "bold" if line.lstrip().startswith("Verdict") else ""
        console.print(Text(line, style=style), soft_wrap=True)


def terminal_width(piped: int) -> int:
    """Columns of the terminal, or `piped` where standard output is not one."""
    console = PlainConsole(file=sys.stdout, force_jupyter=False)
    return console.width if console.is_terminal else piped


def incomplete_if_damaged(verb: Verb) -> Verb:
    """A verb that names what is damaged in its ledgers, and then ends with exit code 3 instead of 0."""

    @wraps(verb)
    def named(request: Any) -> int:
        with noting_damage(progress) as damaged:
            code = verb(request)
        return Exit.INCOMPLETE if damaged and code == Exit.DONE else code

    return named


def not_written(verb: str, error: HrxError, code: int) -> int:
    """Say which file is missing after the result was shown. Returns the exit code: that of a failed gate stays."""
    note(one_line(f"hrx {verb}: {error}"))
    return code or Exit.INCOMPLETE


def write(path: Path, text: str, option: str) -> None:
    """Write the text of an option, and creates its directory. `check_target` refuses a wrong path before the work."""
    from hrx.reports.text import write_bytes  # imports pandas, which the first line of progress need not wait for

    check_target(path, option)
    try:
        write_bytes(path, text.encode("utf-8", "replace"))
    except NotWritten as error:
        raise NotWritten(f"{option}: {error}") from error


def check_targets(files: Mapping[str, Path | None]) -> None:
    """Refuse files of options that cannot be written, before the work."""
    for option, path in files.items():
        if path is not None:
            check_target(path, option)


def write_all(verb: str, files: Mapping[str, Path | None], texts: Mapping[str, str], code: int) -> int:
    """Write the text of each option that names a file. Return the exit code, that of `not_written` where one fails."""
    try:
        for option, path in files.items():
            if path is not None:
                write(path, texts[option], option)
    except NotWritten as error:
        return not_written(verb, error, code)
    return code
