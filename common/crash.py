"""An error that hrx did not expect: one sentence, and a file that can be sent to whoever maintains hrx.

The file has the versions, the verb and the places in the code, by module, line and function. It has no path, no
environment variable, no argument of the command, no line of code and no message of an exception: those may quote data.
"""

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from hrx import __version__
from hrx.errors import describe_error, without_paths

LIBRARIES = ("torch", "numpy", "pandas", "pyarrow", "datasets", "transformers", "safetensors", "huggingface_hub")


def crash_sentence(verb: str, error: BaseException, *, write: bool = True) -> str:
    """Return the sentence for the user; with `write`, the report is written and named in it."""
    if isinstance(error, SystemExit):
        name = f"SystemExit: a model or library called exit({error.code!r})"
    else:
        name = describe_error(error) if isinstance(error, Exception) else type(error).__name__
    written = _write(crash_report(verb, error)) if write else ""
    send = f"Please send {written}, which holds versions and places in the code, no data. " if written else ""
    return f"hrx {verb}: unexpected error ({name}). {send}--debug shows the traceback."


def crash_report(verb: str, error: BaseException) -> str:
    """Return the content of the file to send."""
    lines = [f"hrx {__version__}, verb {verb}", f"Python {platform.python_version()} on {platform.system()}"]
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            lines.append(f"{library} {version(library)}")
    for one in _chain(error):
        lines += ["", f"{type(one).__module__}.{type(one).__name__}"]
        lines += [f"  {place}" for place in _places(one)]
    return "\n".join(lines) + "\n"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Return the error and what caused it."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _places(error: BaseException) -> Iterator[str]:
    """Module, line and function of each frame, the outermost first."""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        known = module if module.startswith("hrx.") else without_paths(code.co_filename)
        yield f"{known}, line {trace.tb_lineno}, in {code.co_name}"
        trace = trace.tb_next


def _write(text: str) -> str:
    """Write the report under a new, unpredictable name in the temporary directory; empty where that fails."""
    with suppress(OSError):
        descriptor, path = tempfile.mkstemp(prefix="hrx-crash-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return path
    return ""
