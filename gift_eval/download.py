"""The official download: folders of the hub's dataset, fetched with `huggingface_hub` and checked against the manifest.

A folder has three files; the stray `cache-*.arrow` files on the hub are never requested. The manifest in the catalogue
has size and sha256 of each Arrow file; a JSON file is right when it has what the reader needs. A file arrives in
`.hrx-parts` below the root, is checked there, and then moves to its place, so a file that was there before is replaced
only by a right one. The dataset is public: no token is sent.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from hrx.errors import HrxError, describe_error
from hrx.files import read_json
from hrx.install import install_command

from . import catalogue
from .catalogue import DATA_FILE, INFO_FILE, STATE_FILE, Folder

REPOSITORY = "Salesforce/GiftEval"
FILES = (DATA_FILE, INFO_FILE, STATE_FILE)
PARTS = ".hrx-parts"


class State(StrEnum):
    """The state of a file or folder."""

    RIGHT = "right"
    MISSING = "missing"
    DAMAGED = "damaged"


class Problem(NamedTuple):
    """A file that is not right: its path below the root, and why."""

    path: str
    state: State
    reason: str


class Checked(NamedTuple):
    """One folder: damaged if one of its files is, missing if it lacks one, else right."""

    folder: str
    state: State
    problems: tuple[Problem, ...]


class Fetched(NamedTuple):
    """One folder after the download: the number of bytes fetched, and the reason if it is not right."""

    folder: str
    state: State
    bytes: int
    reason: str


class Unreachable(HrxError):
    """The hub does not answer; requests for further files would fail as well."""


class NotOfficial(HrxError):
    """The hub answers, but does not have the official file under this name."""


def check(root: Path, chosen: Sequence[Folder], report: Callable[[Folder], None] | None = None) -> list[Checked]:
    """Every chosen folder against the manifest; `report` is called with each folder before its files are read."""
    if os.path.exists(root) and not os.path.isdir(root):
        raise HrxError(f"{root} is not a directory. Give the directory that holds GIFT-Eval's folders.")
    results = []
    for folder in chosen:
        if report is not None:
            report(folder)
        results.append(check_folder(root, folder))
    return results


def check_folder(root: Path, folder: Folder) -> Checked:
    """The three files of one folder."""
    problems = []
    for file in FILES:
        path = root / folder.name / file
        if not path.is_file():
            problems.append(Problem(f"{folder.name}/{file}", State.MISSING, "it does not exist."))
        elif reason := _find_fault(path, folder):
            problems.append(Problem(f"{folder.name}/{file}", State.DAMAGED, reason))
    states = {problem.state for problem in problems}
    state = next((state for state in (State.DAMAGED, State.MISSING) if state in states), State.RIGHT)
    return Checked(folder.name, state, tuple(problems))


def check_sizes(root: Path, folder: Folder) -> State:
    """The state of a folder by the sizes of its files alone: quick, but blind to changed bytes."""
    sizes = [path.stat().st_size for file in FILES if (path := root / folder.name / file).is_file()]
    if len(sizes) < len(FILES):
        return State.MISSING
    return State.RIGHT if sizes[FILES.index(DATA_FILE)] == folder.bytes else State.DAMAGED


def _find_fault(path: Path, folder: Folder) -> str:
    """Why a file, one of `FILES` by its name, is not right; empty if it is."""
    try:
        if path.name == DATA_FILE:
            if (size := path.stat().st_size) != folder.bytes:
                return f"it has {size} bytes, the official file {folder.bytes}."
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            wrong = f"it has the official size but sha256 {digest[:12]}…, the official file {folder.sha256[:12]}…."
            return "" if digest == folder.sha256 else wrong
        content = read_json(path)
    except OSError as error:
        return f"it cannot be read: {error.strerror}."
    except HrxError as error:
        return str(error).replace(str(path), "it")
    except ValueError:
        return "it is not valid JSON."
    if not isinstance(content, dict):
        return "it does not hold a JSON object."
    if path.name == STATE_FILE and content.get("_data_files") != [{"filename": DATA_FILE}]:
        return f"it does not name {DATA_FILE} as its one data file."
    return ""


def extra_files(root: Path, chosen: Sequence[Folder]) -> list[str]:
    """Paths below the root, or in the chosen folders if not all were chosen, that are not the benchmark's files.

    Hidden files belong to a download and are not listed.
    """
    official = {f"{folder.name}/{file}" for folder in catalogue.folders() for file in FILES}
    complete = len(chosen) == len(catalogue.folders())
    places = [root] if complete else [root / folder.name for folder in chosen]
    below = {path.relative_to(root) for place in places for path in place.rglob("*") if path.is_file()}
    visible = {path.as_posix() for path in below if not any(part.startswith(".") for part in path.parts)}
    return sorted(visible - official)


def fetch(
    root: Path,
    chosen: Sequence[Folder],
    endpoint: str | None = None,
    report: Callable[[Folder], None] | None = None,
) -> list[Fetched]:
    """Download what is missing or damaged in the chosen folders. A folder that fails does not stop the others, unless
    the hub cannot be reached. `report` is called with each folder before it is checked and fetched.
    """
    results: list[Fetched] = []
    unreachable = ""
    for folder in chosen:
        if report is not None:
            report(folder)
        state, problems = check_folder(root, folder)[1:]
        size, reason = 0, unreachable if problems else ""
        if problems and not reason:
            try:
                for problem in problems:
                    size += _fetch_file(root, folder, problem.path, endpoint)
                state = State.RIGHT
            except (Unreachable, NotOfficial) as error:
                reason, state = str(error), check_folder(root, folder).state
                unreachable = reason if isinstance(error, Unreachable) else ""
        results.append(Fetched(folder.name, state, size, reason))
    if all(each.state is State.RIGHT for each in results):
        shutil.rmtree(root / PARTS, ignore_errors=True)
    return results


def bytes_arrived(root: Path) -> int:
    """The size of the unfinished files of a download below this root."""
    size = 0
    with suppress(OSError):  # a file that is finished moves away
        for path in (root / PARTS).rglob("*"):
            size += path.stat().st_size if path.is_file() else 0
    return size


def _fetch_file(root: Path, folder: Folder, below: str, endpoint: str | None) -> int:
    """Bring one file to its place; returns its number of bytes."""
    place = root / below
    try:
        part = _download(below, root / PARTS, endpoint)
        if fault := _find_fault(part, folder):
            part.unlink()
            raise NotOfficial(
                f"The hub's {below} is not the official file: {fault} Fetch it again; if it stays so, the hub holds a "
                "version that a newer hrx may know."
            )
        size = part.stat().st_size
        place.parent.mkdir(parents=True, exist_ok=True)
        part.replace(place)
    except OSError as error:
        reason = f"{error.strerror or error}. Free some space, or choose another directory with --data."
        raise HrxError(f"{place} cannot be written: {reason}") from error
    return size


def _download(below: str, parts: Path, endpoint: str | None) -> Path:
    """One file of the dataset, in the directory of unfinished files. A broken connection is resumed."""
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants, utils
    except ImportError as error:
        reason = "The download needs huggingface_hub, which is not installed. Run: "
        raise HrxError(reason + install_command("gift-eval")) from error
    endpoint = endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    # `report` of fetch is the progress.
    quiet = not utils.are_progress_bars_disabled()
    if quiet:
        utils.disable_progress_bars()
    try:
        # hf_hub_download retries for half a minute when there is no connection; this request does not.
        where: dict[str, Any] = {"repo_type": "dataset", "endpoint": endpoint}
        hub.get_hf_file_metadata(hub.hf_hub_url(REPOSITORY, below, **where), token=False)
        return Path(hub.hf_hub_download(REPOSITORY, below, local_dir=parts, token=False, **where))
    except utils.LocalEntryNotFoundError as error:
        cause = error.__cause__
        raise _unreachable(endpoint, cause if isinstance(cause, Exception) else error) from error
    except utils.EntryNotFoundError as error:
        raise NotOfficial(f"The hub at {endpoint} has no file {below} in {REPOSITORY}.") from error
    except Exception as error:
        connection = isinstance(error, ConnectionError | TimeoutError)
        # An error of the disk, which has a number, stays as it is.
        if type(error).__module__ == "builtins" and isinstance(error, OSError) and error.errno and not connection:
            raise
        raise _unreachable(endpoint, error) from error
    finally:
        if quiet:
            utils.enable_progress_bars()


def _unreachable(endpoint: str, cause: Exception) -> Unreachable:
    return Unreachable(
        f"The hub at {endpoint} could not be reached, or broke off ({describe_error(cause)}). Repeat the "
        "command: files that arrived are not fetched again. Or set HF_ENDPOINT to a mirror, or copy the folders "
        "by hand to the data directory and run `hrx data check`."
    )
