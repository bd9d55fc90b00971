"""The official download: chosen folders of the hub's dataset, resumed where it stopped, verified before they count.

Only the three files a folder is made of are asked for, so the stray `cache-*.arrow` files beside them never are. A
file arrives under `.hrx-parts` in the root, is compared with the manifest there, and only then takes its place: what
lay there before is lost to nothing but the right file. `huggingface_hub` knows the hub's addresses, mirrors
(HF_ENDPOINT) and retries; the dataset is public, so no token is sent.
"""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hrx.errors import HrxError

from .catalogue import DATA_FILE, Folder
from .verification import State, check_folder, file_fault

REPOSITORY = "Salesforce/GiftEval"
PARTS = ".hrx-parts"

Tell = Callable[[str, int, int], None]
"""Hears of a file below the root: how many bytes of it are here, and of how many."""


class Fetched(NamedTuple):
    """One folder after the download: right, with the bytes that had to be fetched, or what it still is and why."""

    folder: str
    state: State
    bytes: int
    reason: str


class Unreachable(HrxError):
    """The hub does not answer as a hub; asking it for the next file would be in vain."""


class NotOfficial(HrxError):
    """The hub answers, but what it has under this name is not the official file."""


def fetch(root: Path, chosen: Sequence[Folder], endpoint: str | None = None, tell: Tell | None = None) -> list[Fetched]:
    """Every chosen folder, made right where it is not. A folder that fails does not stop the others, unless the hub
    is out of reach.
    """
    hub = _Hub(endpoint)
    results: list[Fetched] = []
    unreachable = ""
    with hub.quiet():
        for folder in chosen:
            before = check_folder(root, folder)
            fetched, reason = 0, unreachable
            if before.problems and not reason:
                try:
                    for problem in before.problems:
                        fetched += _fetch_file(hub, root, folder, Path(problem.path).name, tell)
                except (Unreachable, NotOfficial) as error:
                    reason = str(error)
                    unreachable = reason if isinstance(error, Unreachable) else ""
            if not before.problems or not reason:
                results.append(Fetched(folder.name, State.RIGHT, fetched, ""))
            else:
                results.append(Fetched(folder.name, check_folder(root, folder).state, fetched, reason))
    return results


def _fetch_file(hub: "_Hub", root: Path, folder: Folder, file: str, tell: Tell | None) -> int:
    """Bring one file to its place and say how many bytes came."""
    below = f"{folder.name}/{file}"
    place, part = root / below, root / PARTS / below
    url, size = hub.locate(below)
    if file == DATA_FILE and size not in (None, folder.bytes):
        raise NotOfficial(
            f"The hub's {below} has {size} bytes, the official file {folder.bytes}: the hub holds another version "
            "than this catalogue knows. A newer hrx may know it."
        )
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        # Only the Arrow files are large, and only of them is it known that the rest will fit what is here.
        if part.exists() and (file != DATA_FILE or part.stat().st_size > folder.bytes):
            part.unlink()
        with _Part(part, lambda here: tell(below, here, size or here) if tell else None) as unfinished:
            begun = unfinished.tell()
            hub.download(url, unfinished, begun, size)
            unfinished.flush()
            os.fsync(unfinished.fileno())
            came = unfinished.tell() - begun
        fault = file_fault(part, folder)
        if fault:
            part.unlink()
            raise NotOfficial(f"What the hub sent as {below} is not the official file: {fault} Fetch it again.")
        place.parent.mkdir(parents=True, exist_ok=True)
        part.replace(place)
        _tidy(part.parent, root)
    except OSError as error:
        raise _unwritable(place, error) from error
    return came


def _unwritable(path: Path, error: OSError) -> HrxError:
    return HrxError(
        f"{path} cannot be written: {error.strerror or error}. Make room, or choose another place by --data."
    )


def _tidy(folder: Path, root: Path) -> None:
    """Remove the folders of unfinished files that are empty now."""
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


class _Part(io.BufferedWriter):
    """An unfinished file, written at its end, that tells how long it is."""

    def __init__(self, path: Path, tell_size: Callable[[int], None]):
        super().__init__(io.FileIO(path, "ab"))
        self._path, self._tell_size = path, tell_size

    def write(self, chunk: Any) -> int:
        # Here it is still certain that the disk failed, not the line.
        try:
            written = super().write(chunk)
        except OSError as error:
            raise _unwritable(self._path, error) from error
        self._tell_size(self.tell())
        return written


class _Hub:
    """What this module needs of `huggingface_hub`; any failure of the line is `Unreachable`."""

    def __init__(self, endpoint: str | None):
        try:
            from huggingface_hub import constants, file_download, utils
        except ImportError as error:
            raise HrxError(
                "The download needs huggingface_hub, which is not installed. pip install 'hrx[gift-eval]'"
            ) from error
        self._files, self._utils = file_download, utils
        self._endpoint = endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
        # The library's own errors and those of the HTTP library below it, whichever that is.
        self._broken = (OSError, *utils.HfHubHTTPError.__bases__)

    def locate(self, below: str) -> tuple[str, int | None]:
        """Where the bytes of a file are, and how many."""
        url = self._files.hf_hub_url(REPOSITORY, below, repo_type="dataset", endpoint=self._endpoint)
        with self._reached():
            try:
                found = self._files.get_hf_file_metadata(url, token=False)
            except self._utils.EntryNotFoundError as error:
                raise NotOfficial(f"The hub at {self._endpoint} has no file {below} in {REPOSITORY}.") from error
            if not found.etag or not found.commit_hash:
                raise ConnectionError("it answers, but not as a hub does")
        return str(found.location), found.size

    def download(self, url: str, unfinished: _Part, begun: int, size: int | None) -> None:
        """The bytes from `begun` on; a broken line is taken up again a few times."""
        headers = self._utils.build_hf_headers(token=False)
        with self._reached():
            self._files.http_get(url, unfinished, resume_size=begun, headers=headers, expected_size=size)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Without the library's own progress bars, which would be drawn across ours."""
        if self._utils.are_progress_bars_disabled():
            yield
            return
        self._utils.disable_progress_bars()
        try:
            yield
        finally:
            self._utils.enable_progress_bars()

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except self._broken as error:
            raise Unreachable(
                f"The hub at {self._endpoint} could not be reached, or broke off ({_short(error)}). Repeat the command "
                "to go on where it stopped, set HF_ENDPOINT to a mirror, or copy the folders by hand to the data "
                "directory; then `hrx data check` says whether they are right."
            ) from error


def _short(error: BaseException) -> str:
    """The first line of an error, without its address: the sentence around it has that."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__
