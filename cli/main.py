"""Entry point: runs one verb and turns errors into a sentence and an exit code."""

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Any

from hrx.api.progress import INTERRUPTED
from hrx.cli.terminal import progress
from hrx.cli.verbs import VERBS, parser, request_of
from hrx.errors import DEBUG_VARIABLE, Exit, HrxError, crash_sentence
from hrx.files import reason
from hrx.text import clean_lines, message

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and returns its exit code."""
    _replace_unprintable()
    options = parser().parse_args(arguments)
    # hrx shows its own progress; the libraries' progress bars would overwrite it.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TSFM_PYTHON_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        with _library_texts(options.debug):
            code = _run(options.verb, request_of(options))
        sys.stdout.flush()  # a full disk is noticed here, not after the exit code is decided
        return code
    except HrxError as error:
        return _refuse(options, error)
    except BrokenPipeError:  # the reader of a pipe closed it: not an error
        _discard_output()
        return Exit.DONE
    except KeyboardInterrupt:
        print(f"hrx {options.verb}: stopped. Repeat the command to continue.", file=sys.stderr)
        return INTERRUPTED
    except (Exception, SystemExit) as error:
        return _unexpected(options, error)


def _run(verb: str, request: Any) -> int:
    module, function = VERBS[verb].command.split(":")
    with progress.running(f"hrx {verb}: importing libraries"):
        return int(getattr(import_module(f"hrx.cli.{module}"), function)(request))


@contextmanager
def _library_texts(wanted: bool) -> Iterator[None]:
    """Keep the text of libraries in stored reasons, here and in worker processes, where `--debug` asks for it."""
    before = os.environ.get(DEBUG_VARIABLE)
    if wanted:
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        yield
    finally:
        if wanted and before is None:
            del os.environ[DEBUG_VARIABLE]


def _refuse(options: argparse.Namespace, error: HrxError) -> int:
    """One sentence for a request that is wrong, or a result that could not be written."""
    return _end(options, error, f"hrx {options.verb}: {error}", error.exit)


def _unexpected(options: argparse.Namespace, error: Exception | SystemExit) -> int:
    """Everything that no verb expects. A model or library that calls `sys.exit` cannot choose the exit code."""
    if isinstance(error, MemoryError):
        text = "the memory of this machine is used up. Ask for fewer windows or workers, or lower --memory."
        return _end(options, error, f"hrx {options.verb}: {text}", Exit.INCOMPLETE)
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        text = f"{error.filename or 'standard output'} cannot be written: {reason(error)}. Choose a writable place."
        if error.filename is None:
            _discard_output()
        return _end(options, error, f"hrx {options.verb}: {text}", Exit.INCOMPLETE)
    return _end(options, error, crash_sentence(options.verb, error, write=not options.debug), Exit.CRASHED)


def _end(options: argparse.Namespace, error: BaseException, sentence: str, code: Exit) -> int:
    """Print the sentence, or with `--debug` the traceback, and returns the exit code."""
    if options.debug:
        sys.stderr.write(clean_lines("".join(traceback.format_exception(error))))
    else:
        print(message(sentence), file=sys.stderr)
    return code


def _discard_output() -> None:
    """What is still buffered goes nowhere; otherwise Python fails again when it flushes at its end."""
    with suppress(OSError, ValueError):  # standard output may be closed, or not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace_unprintable() -> None:
    """Print a question mark for a character that the terminal cannot show, instead of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
