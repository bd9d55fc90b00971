"""Whether the files on disk are the official ones, by the catalogue's sizes and sha256.

The manifest has the Arrow files. The two small JSON files beside each are right when they say what the reader needs.
Whether an Arrow file can be read at all is `store`'s question.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from hrx.errors import HrxError

from . import catalogue
from .catalogue import DATA_FILE, INFO_FILE, STATE_FILE, Folder

FILES = (DATA_FILE, INFO_FILE, STATE_FILE)
_CHUNK = 1 << 20


class State(StrEnum):
    """What a file, or a folder of files, was found to be."""

    RIGHT = "right"
    MISSING = "missing"
    DAMAGED = "damaged"


class Problem(NamedTuple):
    """A file that is not right: its path below the root, and why."""

    path: str
    state: State
    reason: str


class Checked(NamedTuple):
    """One folder: damaged where a file of it is, missing where it lacks one, else right."""

    folder: str
    state: State
    problems: tuple[Problem, ...]


def check(root: Path, chosen: Sequence[Folder], tell: Callable[[Folder], None] | None = None) -> list[Checked]:
    """Every chosen folder against the manifest; `tell` hears of each before its files are read."""
    if root.exists() and not root.is_dir():
        raise HrxError(f"{root} is not a directory. GIFT-Eval's folders lie in one.")
    results = []
    for folder in chosen:
        if tell is not None:
            tell(folder)
        results.append(check_folder(root, folder))
    return results


def check_folder(root: Path, folder: Folder) -> Checked:
    """The three files of one folder."""
    problems = tuple(problem for file in FILES if (problem := check_file(root, folder, file)))
    states = {problem.state for problem in problems}
    state = next((state for state in (State.DAMAGED, State.MISSING) if state in states), State.RIGHT)
    return Checked(folder.name, state, problems)


def glance(root: Path, folder: Folder) -> State:
    """The same by a look at sizes alone: quick, and blind to changed bytes."""
    sizes = [path.stat().st_size for file in FILES if (path := root / folder.name / file).is_file()]
    if len(sizes) < len(FILES):
        return State.MISSING
    return State.RIGHT if sizes[FILES.index(DATA_FILE)] == folder.bytes else State.DAMAGED


def check_file(root: Path, folder: Folder, file: str) -> Problem | None:
    """One of `FILES`; None where it is right."""
    path = root / folder.name / file
    below = f"{folder.name}/{file}"
    if not path.is_file():
        return Problem(below, State.MISSING, "it is not there.")
    try:
        reason = file_fault(path, folder)
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}."
    return Problem(below, State.DAMAGED, reason) if reason else None


def file_fault(path: Path, folder: Folder) -> str:
    """Why a file, one of `FILES` by its name, is not right; empty where it is."""
    return _data_fault(path, folder) if path.name == DATA_FILE else _json_fault(path)


def _data_fault(path: Path, folder: Folder) -> str:
    size = path.stat().st_size
    if size != folder.bytes:
        return f"it has {size} bytes, the official file {folder.bytes}."
    found = sha256(path)
    if found != folder.sha256:
        return f"it has the official size but sha256 {found[:12]}…, the official file {folder.sha256[:12]}…."
    return ""


def sha256(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def extra_files(root: Path, chosen: Sequence[Folder]) -> list[str]:
    """Files below the root, or in the chosen folders where not all were chosen, that are not the benchmark's.

    Paths are relative to the root. Hidden ones are a download's own notes and are passed over.
    """
    official = {f"{folder.name}/{file}" for folder in catalogue.folders() for file in FILES}
    everything = len(chosen) == len(catalogue.folders())
    found = _files(root) if everything else [path for folder in chosen for path in _files(root / folder.name)]
    below = {path.relative_to(root).as_posix() for path in found}
    return sorted(below - official)


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def _json_fault(path: Path) -> str:
    """Why a JSON file does not say what the reader needs; empty where it does."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return "it is no JSON."
    if not isinstance(content, dict):
        return "it holds no JSON object."
    if path.name == STATE_FILE and content.get("_data_files") != [{"filename": DATA_FILE}]:
        return f"it does not name {DATA_FILE} as its one data file."
    return ""
