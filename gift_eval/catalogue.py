"""The datasets of GIFT-Eval and of the paper, the check of files on disk against them, and the official download.

The facts are in `catalogue_data/*.csv`; the README there names their sources. They are read on first use.

A folder of the official download has three files; the stray `cache-*.arrow` files on the hub are never requested. The
catalogue has size and sha256 of each Arrow file; a JSON file is right when it has what the reader needs. A file arrives
in `.hrx-parts` below the root, is checked there, and then moves to its place, so a file that was there before is
replaced only by a right one. The dataset is public: no token is sent. `arrow_folders` reads the values.
"""

import csv
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hrx.errors import HrxError, describe_error, install_command, unknown
from hrx.files import lock, read_json

from . import frequency as frequencies
from .series import Dataset

DATA_FILE = "data-00000-of-00001.arrow"
STATE_FILE = "state.json"
INFO_FILE = "dataset_info.json"
FILES = (DATA_FILE, INFO_FILE, STATE_FILE)
REPOSITORY = "Salesforce/GiftEval"
PARTS = ".hrx-parts"
TSLIB = "Time-Series-Library"
"""The source of the sets on which the paper trains its backbones."""


@dataclass(frozen=True)
class Folder:
    """A folder of the official download: `name` is its path, `us_births/D` or `m4_hourly`.

    `domain` is the benchmark's name for where the series come from, `paper_domain` the paper's, empty where the
    paper omits the folder. Lengths are those of the shortest and longest series, None where not known. `bytes` and
    `sha256` are those of the Arrow file. `copy_of` names the folder that this one repeats by mistake.
    """

    name: str
    frequency: str
    domain: str
    paper_domain: str
    variates: int
    covariates: int
    series: int
    shortest: int | None
    longest: int | None
    licence: str
    bytes: int
    sha256: str
    copy_of: str

    @property
    def season(self) -> int:
        """Values per season, as an audit takes it."""
        return frequencies.season(self.frequency)

    @property
    def field(self) -> str:
        """Name of the domain in the paper; the benchmark's where the paper has none."""
        return self.paper_domain or self.domain


@dataclass(frozen=True)
class Configuration:
    """A line of the leaderboard, `us_births/D/short`; `windows` is None where the shortest length is not known."""

    name: str
    folder: str
    term: str
    prediction_length: int
    windows: int | None


@dataclass(frozen=True)
class PaperDataset:
    """A dataset name of the paper, and the number of runs in its table.

    `folder` is its GIFT-Eval folder. Where there is none, `bring` says what a person needs to supply, and `file`
    its name at the source; `rows` is the number of time steps in a file of the Time-Series-Library.
    """

    name: str
    source: str
    folder: str
    frequency: str
    variates: int
    runs: int
    file: str
    rows: int | None
    bring: str


Entry = TypeVar("Entry", Folder, Configuration, PaperDataset)
Named = TypeVar("Named", Folder, Dataset)


@cache
def _read(file: str, kind: type[Entry]) -> tuple[Entry, ...]:
    """Return the lines of a CSV as instances of a dataclass; an empty number is None."""
    text = files(__package__).joinpath("catalogue_data", file).read_text(encoding="utf-8")
    types = {field.name: field.type for field in fields(kind)}
    lines: list[Any] = list(csv.DictReader(text.splitlines()))
    for line in lines:
        line |= {name: int(cell) if cell else None for name, cell in line.items() if types[name] is not str}
    return tuple(kind(**line) for line in lines)


def folders() -> tuple[Folder, ...]:
    """Return the benchmark's 55 folders, and the stray copy beside them that the download and the paper have."""
    return _read("folders.csv", Folder)


def configurations() -> tuple[Configuration, ...]:
    """Return the leaderboard's 97 configurations."""
    return _read("configurations.csv", Configuration)


def paper_datasets() -> tuple[PaperDataset, ...]:
    """Return the paper's 66 dataset names."""
    return _read("paper_datasets.csv", PaperDataset)


def tslib_sets() -> tuple[PaperDataset, ...]:
    """Return the thirteen sets of the Time-Series-Library."""
    return tuple(each for each in paper_datasets() if each.source == TSLIB)


def choose(names: Sequence[str]) -> tuple[Folder, ...]:
    """Return the folders that `names` mean; no names mean every folder."""
    return tuple(select(folders(), names)) if names else folders()


def select(datasets: Iterable[Named], names: Sequence[str]) -> list[Named]:
    """Return what `names` mean, each once: one dataset (`us_births/D`), or all its frequencies (`us_births`)."""
    known = by_name(datasets)
    for name in names:
        if name not in known:
            raise HrxError(unknown("dataset", name, known))
    return list({dataset.name: dataset for name in names for dataset in known[name]}.values())


def by_name(datasets: Iterable[Named]) -> dict[str, list[Named]]:
    """Return the datasets of each name: one by its full name, and all its frequencies by the part before the slash."""
    known: dict[str, list[Named]] = {}
    for dataset in datasets:
        for name in dict.fromkeys((dataset.name, dataset.name.partition("/")[0])):
            known.setdefault(name, []).append(dataset)
    return known


class State(StrEnum):
    """State of a file or folder."""

    RIGHT = "right"
    MISSING = "missing"
    DAMAGED = "damaged"


class Problem(NamedTuple):
    """A file that is not right: its path below the root, and why."""

    path: str
    state: State
    reason: str


class Checked(NamedTuple):
    """A folder: damaged if one of its files is, missing if it lacks one, else right."""

    folder: str
    state: State
    problems: tuple[Problem, ...]


class Fetched(NamedTuple):
    """A folder after the download: the number of bytes fetched, and the reason if it is not right."""

    folder: str
    state: State
    bytes: int
    reason: str


class NotFetched(HrxError):
    """Files that the hub does not have as they should be, or, if it is `away`, does not send at all."""

    away = False


def check(root: Path, chosen: Sequence[Folder], report: Callable[[Folder], None] | None = None) -> list[Checked]:
    """Check every chosen folder against the catalogue; `report` is called with each before its files are read."""
    if os.path.exists(root) and not os.path.isdir(root):
        raise HrxError(f"{root} is not a directory. Give the directory that holds GIFT-Eval's folders.")
    results = []
    for folder in chosen:
        if report is not None:
            report(folder)
        results.append(check_folder(root, folder))
    return results


def check_folder(root: Path, folder: Folder) -> Checked:
    """Check the three files of a folder."""
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
    """Return the state of a folder by the sizes of its files alone: quick, but blind to changed bytes."""
    sizes = [path.stat().st_size for file in FILES if (path := root / folder.name / file).is_file()]
    if len(sizes) < len(FILES):
        return State.MISSING
    return State.RIGHT if sizes[FILES.index(DATA_FILE)] == folder.bytes else State.DAMAGED


def _find_fault(path: Path, folder: Folder) -> str:
    """Return why a file, one of `FILES` by its name, is not right; empty if it is."""
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
    """Return paths below the root, or in the chosen folders if not all were chosen, that are not the benchmark's files.

    Hidden files belong to a download and are not listed.
    """
    official = {f"{folder.name}/{file}" for folder in folders() for file in FILES}
    complete = len(chosen) == len(folders())
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
    away = ""
    for folder in chosen:
        if report is not None:
            report(folder)
        state, problems = check_folder(root, folder)[1:]
        size, reason = 0, away if problems else ""
        if problems and not reason:
            try:
                size, state = _fetch_files(root, folder, endpoint), State.RIGHT
            except NotFetched as error:
                reason, state = str(error), check_folder(root, folder).state
                away = reason if error.away else ""
        results.append(Fetched(folder.name, state, size, reason))
    if all(each.state is State.RIGHT for each in results) and (root / PARTS).is_dir():
        with _only_fetch(root / PARTS, wait=False) as alone:
            if alone:  # otherwise the other process removes it
                shutil.rmtree(root / PARTS, ignore_errors=True)
    return results


def bytes_arrived(root: Path) -> int:
    """Return the size of the unfinished files of a download below this root."""
    size = 0
    with suppress(OSError):  # a file that is finished moves away
        for path in (root / PARTS).rglob("*"):
            size += path.stat().st_size if path.is_file() else 0
    return size


@contextmanager
def _only_fetch(parts: Path, *, wait: bool = True) -> Iterator[bool]:
    """Wait until no other process fetches into this directory, and keep others waiting; whether none did."""
    while True:
        parts.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(parts, os.O_RDONLY)
        try:
            alone = lock(descriptor, wait=wait)
            # Another process may have removed it while this one waited.
            if os.path.isdir(parts) and os.path.samestat(os.fstat(descriptor), os.stat(parts)):
                yield alone
                return
        finally:
            os.close(descriptor)


def _fetch_files(root: Path, folder: Folder, endpoint: str | None) -> int:
    """Bring the files of a folder that are not right to their places; returns their number of bytes."""
    parts = root / PARTS
    try:
        with _only_fetch(parts):
            # Another process may have brought them in the meantime.
            paths = [each.path for each in check_folder(root, folder).problems]
            if paths:
                _download(paths, parts, endpoint)
            for below in paths:
                if fault := _find_fault(parts / below, folder):
                    (parts / below).unlink()
                    raise NotFetched(
                        f"The hub's {below} is not the official file: {fault} Fetch it again; if it stays so, the hub "
                        "holds a version that a newer hrx may know."
                    )
            size = sum((parts / below).stat().st_size for below in paths)
            (root / folder.name).mkdir(parents=True, exist_ok=True)
            for below in paths:
                (parts / below).replace(root / below)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = f"{'Free some space, or choose' if full else 'Choose'} another directory with --data."
        raise HrxError(f"{root / folder.name} cannot be written: {error.strerror or error}. {advice}") from error
    return size


def _download(paths: Sequence[str], parts: Path, endpoint: str | None) -> None:
    """Download files of the dataset below `parts`. `snapshot_download` resumes what broke off."""
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants, utils
    except ImportError as error:
        reason = "The download needs huggingface_hub, which is not installed. Run: "
        raise HrxError(reason + install_command("gift-eval")) from error
    endpoint = endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    where: dict[str, Any] = {"repo_type": "dataset", "token": False}
    utils.disable_progress_bars()  # `report` of `fetch` is the progress
    try:
        # Without this request, an earlier command's files pass for the answer of a hub that is away.
        found = hub.HfApi(endpoint=endpoint).repo_info(REPOSITORY, timeout=30, **where)
        here = {file.rfilename for file in found.siblings or ()}
        for below in paths:
            if below not in here:
                raise NotFetched(f"The hub at {endpoint} has no file {below} in {REPOSITORY}.")
        where |= {"revision": found.sha, "endpoint": endpoint, "local_dir": parts}
        hub.snapshot_download(REPOSITORY, allow_patterns=list(paths), **where)
    except NotFetched:
        raise
    except Exception as error:
        connection = isinstance(error, ConnectionError | TimeoutError)
        # An error of the disk, which has a number, stays as it is.
        if type(error).__module__ == "builtins" and isinstance(error, OSError) and error.errno and not connection:
            raise
        broken = NotFetched(
            f"The hub at {endpoint} could not be reached, or broke off ({describe_error(error)}). Repeat the command: "
            "files that arrived are not fetched again. Or set HF_ENDPOINT to a mirror, or copy the folders by hand to "
            "the data directory and run `hrx data check`."
        )
        broken.away = True
        raise broken from error
