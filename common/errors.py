"""Errors for people, exit codes, the command that installs what is missing, and the report on an unexpected error.

Every error that a user can cause or fix is an `HrxError`: the command line prints its sentence without a traceback. Any
other one gives a sentence and a file that can be sent to whoever maintains hrx. The file has the versions, the verb and
the places in the code, by module, line and function. It has no path, no environment variable, no argument of the
command, no line of code and no message of an exception: those may quote data.
"""

import json
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, distributions, version
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

from hrx import __version__


class Exit(IntEnum):
    """Exit codes of every verb."""

    DONE = 0
    GATE_FAILED = 1
    WRONG_REQUEST = 2
    INCOMPLETE = 3
    NOT_DECIDED = 4
    CRASHED = 70
    """An error that hrx did not expect; `EX_SOFTWARE` of sysexits.h."""


class HrxError(Exception):
    """Sentence for the user: what, where, what was expected, the next step."""

    exit: Exit = Exit.WRONG_REQUEST


class ProtocolError(HrxError):
    """A setting of the measurement that is not valid."""


class NotWritten(HrxError):
    """A file that could not be written after the work was done: the result is incomplete, the request was right."""

    exit = Exit.INCOMPLETE


def describe_error(error: BaseException) -> str:
    """Return a library's exception in one line."""
    return f"{type(error).__name__}: {_first_line(error) or 'no reason given'}"


def _first_line(error: BaseException) -> str:
    """The first line of its text, without torch's advice to load a pickle that may run code."""
    lines = [line.strip() for line in _text(error).splitlines() if line.strip()]
    return next((line for line in lines if "weights_only" not in line), lines[0] if lines else "")


def _text(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # an exception class of a library may fail to describe itself
        return ""


def unknown(kind: str, value: str, known: Iterable[str], advice: str = "") -> str:
    """Return the sentence for an unknown name, with near matches first; nearest are those that differ in case only."""
    names = sorted(known)
    near = [name for name in names if name.casefold() == value.casefold()]
    if not near:
        folded = {name.casefold(): name for name in names}
        near = [folded[match] for match in get_close_matches(value.casefold(), folded, n=3, cutoff=0.5)]
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"Unknown {kind} {value!r}.{hint} Known: {', '.join(names)}.{' ' + advice if advice else ''}"


DEBUG_VARIABLE = "HRX_DEBUG"
"""Environment variable that worker processes inherit; `1` keeps the text of libraries in what is stored."""
_RECOGNISED, _SHORTEST = 12, 4
"""Characters of a library's text by which it is found in a sentence, and below which it is not looked for."""
_NAME = re.compile(r"\w[\w.]{0,79}")


def stored_reason(error: BaseException) -> str:
    """Return why something failed, for a ledger: what hrx knows, without the text of a library.

    An error of hrx has its own sentence, with an ellipsis for what it quotes of a library. Of any other one the type
    and the place in the code are stored: its text may hold paths, host names and tokens. `--debug` keeps the text,
    without paths and tokens as far as they are recognised.
    """
    ours = type(error).__module__.partition(".")[0] == "hrx"
    if os.environ.get(DEBUG_VARIABLE) == "1":
        return without_paths(str(error) if ours else describe_error(error))
    if ours:
        text, cause = " ".join(str(error).split()), error.__cause__
        while cause is not None:
            if type(cause).__module__.partition(".")[0] != "hrx":
                text = _without_quotation(text, " ".join(_text(cause).split()))
                text = _without_quotation(text, " ".join(_first_line(cause).split()))
            cause = cause.__cause__
        return without_paths(text)
    return f"{_name(type(error).__name__)}{_place(error)} (--debug keeps its text)"


def _without_quotation(text: str, quoted: str) -> str:
    """Return the text without what it quotes, which may have been shortened at its end."""
    found = text.find(quoted[:_RECOGNISED]) if len(quoted) >= _SHORTEST else -1
    while found >= 0:
        pairs = zip(text[found:], quoted, strict=False)
        end = found + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        text = f"{text[:found]}…{text[end:]}"
        found = text.find(quoted[:_RECOGNISED], found + 1)
    return text


def _place(error: BaseException) -> str:
    """Return module and line that raised, and the module of hrx that called it."""
    modules = [
        (_name(str(frame.f_globals.get("__name__"))), line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    if not modules:
        return ""
    (module, line), ours = modules[-1], [name for name, _ in modules if name.partition(".")[0] == "hrx"]
    return f" at {module}:{line}" + (f", called by {ours[-1]}" if ours and ours[-1] != module else "")


def _name(text: str) -> str:
    return text if _NAME.fullmatch(text) else "a module without a name"


# The start of an absolute path on either kind of system, or of one relative to the home or working directory.
_PATH_START = r"(?:[A-Za-z]:[\\/]|\\\\|file://|~[\w.-]*/|\.{1,2}[\\/]|/(?!/))(?=\S)"
# Between quotation marks a path may contain spaces anywhere; elsewhere in its directories.
_QUOTED_PATH = rf"""(?<=')(?:{_PATH_START}[^'\n]+)(?=')|(?<=")(?:{_PATH_START}[^"\n]+)(?=")"""
_STOPS = r"""'"<>|:,;()/\\"""
_DIRECTORY = rf"(?:(?!\s{_PATH_START})[^\n{_STOPS}])*[\\/]+"
_PATH = re.compile(rf"{_QUOTED_PATH}|(?<![\w/.\\]){_PATH_START}(?:{_DIRECTORY})*[^\s{_STOPS}]*")
_SECRETS = (
    (re.compile(r"\b(hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{6,}"), r"\1…"),
    (re.compile(r"(?i)\b(bearer|basic)\s+(?=\S*[\d=])[\w.~+/=-]{6,}"), r"\1 …"),
    (re.compile(r"://[^/\s@]+@"), "://…@"),
    (re.compile(r"(\w://[^\s?#'\"]+)[?#][^\s'\"<>)]+"), r"\1?…"),
    (
        re.compile(
            r"(?i)\b((?:x-)?api[_-]?key|(?:access|auth)[_-]?token|authorization|token|secret|password)"
            r"(['\"]?\s*[=:]\s*['\"]?)(?!bearer|basic)[^\s'\",;&)]+"
        ),
        r"\1\2…",
    ),
)


def without_paths(text: str) -> str:
    """Reduce every path of a text to its file name, and drop tokens; hub ids and dataset names stay.

    Records are published, and a path reveals who made them and where.
    """
    for pattern, kept in _SECRETS:
        text = pattern.sub(kept, text)
    paths = {Path.cwd(), Path.home(), Path(tempfile.gettempdir()), Path(sys.prefix), Path(__file__).parent.parent}
    for directory in sorted((str(path) for path in paths if len(path.parts) > 1), key=len, reverse=True):
        # Known directories first: they may contain spaces, where the pattern stops.
        text = text.replace(f"{directory}/", "./").replace(directory, ".")
    return _PATH.sub(lambda match: _file_name(match.group()), text)


def _file_name(path: str) -> str:
    stripped = path.rstrip("/\\.")
    return re.split(r"[/\\]", stripped)[-1] + re.sub(r"[/\\]", "", path[len(stripped) :])


# hrx is not on PyPI, so `pip install 'hrx[ttm]'` alone fails in a fresh environment. An installer records the origin of
# a package in `direct_url.json` (PEP 610): a clone, a git URL, or a wheel.

_RESERVED = ":/?#[]@!$&'()*+,;=%~"
"""Characters with a meaning in a URL."""


def install_command(extra: str, unpinned: str = "") -> str:
    """Return `pip install …` for an extra of hrx; `unpinned` is a requirement to install after it, alone.

    Names the interpreter where its `pip` is not the one that a shell would find.
    """
    found = shutil.which("pip")
    active = found and Path(found).parent == Path(sys.executable).parent
    pip = "pip" if active else f"{shlex.quote(sys.executable)} -m pip"
    command = f"{pip} install {_arguments(extra, _origin())}"
    return f"{command} && {pip} install --no-deps {shlex.quote(unpinned)}" if unpinned else command


def _origin() -> dict[str, Any]:
    """Return what the installer recorded about where hrx came from; empty where it recorded nothing."""
    # A source tree on the path has metadata too, without a record.
    for found in distributions(name="hrx"):
        with suppress(OSError, ValueError):
            if isinstance(origin := json.loads(found.read_text("direct_url.json") or ""), dict):
                return origin
    return {}


def _arguments(extra: str, origin: dict[str, Any]) -> str:
    """Return the arguments of `pip install` for an origin as PEP 610 describes it."""
    url = str(origin.get("url", ""))
    if url.startswith("file:"):
        path = Path(url2pathname(urlsplit(url).path))
        if (path.suffix == ".whl" and path.exists()) or (path / "pyproject.toml").exists():
            editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
            return editable + shlex.quote(f"{path}[{extra}]")
    elif version_control := origin.get("vcs_info"):
        # pip records the URL with its spaces and takes it without them only. The commit keeps the version of hrx.
        source = f"{version_control['vcs']}+{quote(url, safe=_RESERVED)}@{version_control['commit_id']}"
        return shlex.quote(f"hrx[{extra}] @ {source}")
    # pip takes the distribution that is installed here and adds what the extra needs.
    return shlex.quote(f"hrx[{extra}]")


LIBRARIES = ("torch", "numpy", "pandas", "pyarrow", "datasets", "transformers", "safetensors", "huggingface_hub")


def crash_sentence(verb: str, error: BaseException, *, write: bool = True) -> str:
    """Return the sentence for the user; with `write`, the report is written and named in it."""
    if isinstance(error, SystemExit):
        name = f"SystemExit: a model or library called exit({error.code!r})"
    else:
        name = describe_error(error) if isinstance(error, Exception) else type(error).__name__
    send = ""
    if write:
        with suppress(OSError):  # under a new, unpredictable name in the temporary directory, where that can be written
            descriptor, path = tempfile.mkstemp(prefix="hrx-crash-", suffix=".txt")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(crash_report(verb, error))
            send = f"Please send {path}, which holds versions and places in the code, no data. "
    return f"hrx {verb}: unexpected error ({name}). {send}--debug shows the traceback."


def crash_report(verb: str, error: BaseException) -> str:
    """Return the content of the file to send: of the error and of what caused it, the places, the outermost first."""
    lines = [f"hrx {__version__}, verb {verb}", f"Python {platform.python_version()} on {platform.system()}"]
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            lines.append(f"{library} {version(library)}")
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        lines += ["", f"{type(current).__module__}.{type(current).__name__}"]
        for frame, line in traceback.walk_tb(current.__traceback__):
            module, code = str(frame.f_globals.get("__name__", "")), frame.f_code
            known = module if module.startswith("hrx.") else without_paths(code.co_filename)
            lines.append(f"  {known}, line {line}, in {code.co_name}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\n".join(lines) + "\n"
