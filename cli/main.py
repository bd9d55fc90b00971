"""The entry point: runs one verb and turns errors into a sentence and an exit code."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from hrx.cli.config import with_settings_file
from hrx.cli.process import keep_freed_memory
from hrx.cli.progress import progress
from hrx.cli.verbs import parser
from hrx.errors import Exit, HrxError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code."""
    _replace_unprintable()
    command_line = parser()
    options = command_line.parse_args(arguments)
    # hrx shows its own progress; the libraries' progress bars would overwrite it.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TSFM_PYTHON_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    keep_freed_memory()
    try:
        options = with_settings_file(options, arguments, command_line)
        module, function = options.command.split(":")
        with progress.running(f"hrx {options.verb}: importing libraries"):
            return int(getattr(import_module(module), function)(options))
    except HrxError as error:
        print(f"hrx {options.verb}: {error}", file=sys.stderr)
        return Exit.WRONG_REQUEST
    except BrokenPipeError:  # the reader of a pipe closed it: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except KeyboardInterrupt:
        print(f"hrx {options.verb}: stopped. Repeat the command to continue.", file=sys.stderr)
        return INTERRUPTED


def _replace_unprintable() -> None:
    """Prints a question mark for a character that the terminal cannot show, instead of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
