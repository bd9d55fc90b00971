"""Files that a user names: how they are opened for reading, and how they are written.

Only a regular file is read, and only up to a stated size. Whether it is one is asked of the open file, so that nobody
can put a FIFO in its place in between; opening does not wait for the writer of a FIFO. A file is written beside its
target under an unpredictable name and then renamed, so that nobody sees half a file and no link is followed. Its writer
locks it, so that the next one in that directory can remove what a killed one left.
"""

import errno
import fcntl
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from hrx.errors import HrxError, NotWritten

MEBIBYTE = 2**20
MOST_SETTINGS = MEBIBYTE
"""Bytes of a settings file."""
MOST_TEXT = 16 * MEBIBYTE
"""Bytes of a JSON file or a Python file."""
MOST_TABLE = 2**30
"""Bytes of a CSV or Parquet file."""
MOST_MAPPED = 2**36
"""Bytes of a file that is memory-mapped, not read as a whole: an Arrow file, a weight file."""
MOST_DEPTH = 64
"""Levels of nested lists and objects in JSON and TOML."""
_SQLITE = b"SQLite format 3\x00"
_PREFIX, _SUFFIX = ".hrx-", ".tmp"
"""Beginning and end of the name of a temporary file."""
_OTHER = "Choose a writable directory."
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def user_path(text: str | Path) -> Path:
    """Return the path with `~` replaced where that user exists."""
    return Path(os.path.expanduser(text))


def shown_path(path: str | Path) -> str:
    """Return a path as printable text: bytes that are not UTF-8 become `\\xff`, a NUL becomes `\\x00`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace("\0", "\\x00")


def size(number: int) -> str:
    """Return a number of bytes in words: `17 bytes`, `1.5 MiB`, `64 GiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number} bytes"


def regular_file(path: Path, limit: int | None = None) -> Path:
    """Return the path, if it is a regular file, or a link to one, of at most `limit` bytes; raise otherwise."""
    try:
        _check_regular(path, os.stat(path), limit)
    except FileNotFoundError as error:
        raise HrxError(f"The file {shown_path(path)} does not exist. Check its name and folder.") from error
    except (OSError, ValueError) as error:
        raise HrxError(f"{shown_path(path)} cannot be read: {reason(error)}. Check its name and folder.") from error
    return path


def _check_regular(path: Path, found: os.stat_result, limit: int | None) -> None:
    if kind := _KINDS.get(stat.S_IFMT(found.st_mode)):
        raise HrxError(f"{shown_path(path)} is {kind}, not a file. Give a file.")
    if limit is not None and found.st_size > limit:
        raise HrxError(
            f"{shown_path(path)} has {size(found.st_size)}; a file of this kind has at most {size(limit)}. Check that "
            "it is the right file."
        )


@contextmanager
def open_regular(path: Path, limit: int | None = None) -> Iterator[IO[bytes]]:
    """Open a file for reading, if it is a regular file of at most `limit` bytes; raise otherwise."""
    regular_file(path, limit)  # before it is opened: opening a device may change it
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            _check_regular(path, os.fstat(file.fileno()), limit)
            yield file
    except OSError as error:
        raise HrxError(f"{shown_path(path)} cannot be read: {reason(error)}.") from error


@contextmanager
def fifos_released(files: Iterable[Path]) -> Iterator[None]:
    """Around code that opens files by their names: a FIFO that takes such a name after its check does not hold it up.

    Who waits for the other end of a FIFO goes on as soon as that is opened, and fails at what can be read.
    """
    done = threading.Event()

    def release() -> None:
        while not done.wait(0.5):
            for file in files:
                with suppress(OSError, ValueError):
                    if stat.S_ISFIFO(os.stat(file).st_mode):
                        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))

    thread = threading.Thread(target=release, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def read_file(path: Path, limit: int = MOST_TEXT) -> bytes:
    """Return the content of a regular file of at most `limit` bytes."""
    with open_regular(path, limit) as file:
        content = file.read(limit + 1)
    if len(content) > limit:  # files of the kernel have no size until they are read
        raise HrxError(f"{shown_path(path)} has more than {size(limit)}. Check that it is the right file.")
    return content


def read_json(path: Path, limit: int = MOST_TEXT) -> Any:
    """Return the content of a JSON file; raise ValueError where it is not JSON or is nested too deeply."""
    try:
        content = json.loads(read_file(path, limit).decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep") from error
    return check_depth(content)


def check_depth(content: Any) -> Any:
    """Return the content of a JSON or TOML file; raise ValueError beyond `MOST_DEPTH` levels."""
    level = [content]
    for _ in range(MOST_DEPTH + 1):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not inner:
            return content
        level = [value for values in inner for value in values]
    raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")


def reason(error: Exception) -> str:
    """Return why the operating system refused, without the path."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def check_target(path: Path, option: str, inputs: Iterable[Path] = ()) -> None:
    """Refuse a file that cannot be written or must not be: a directory, a device, a ledger, one of the `inputs`.

    Called before the work, so that a wrong target costs nothing; leaves nothing behind.
    """
    shown = f"{option} {shown_path(path)}"
    kind = _kind(path, shown)
    if kind == "a directory":
        raise HrxError(f"{shown} is a directory. Give a file, for example {shown_path(path / 'result')}.")
    if kind:
        raise HrxError(f"{shown} is {kind}, not a file. Give a file.")
    with suppress(OSError), open(path, "rb") as file:
        if file.read(len(_SQLITE)) == _SQLITE:
            advice = f"Give another file; ledgers come before {option}."
            raise HrxError(f"{shown} is a ledger and would be overwritten. {advice}")
    for source in inputs:
        with suppress(OSError, ValueError):  # one of them does not exist
            if os.path.samefile(path, source):
                raise HrxError(f"{shown} is the file that is read and would be overwritten. Give another file.")
    _check_place(path.parent, option)


def check_directory(path: Path, option: str) -> None:
    """Refuse a directory that cannot be written or created. Leaves nothing behind."""
    shown = f"{option} {shown_path(path)}"
    kind = _kind(path, shown)
    if kind != "a directory" and (kind or os.path.lexists(path)):
        raise HrxError(f"{option}: cannot create {shown_path(path)}: it is {kind or 'a file'}. {_OTHER}")
    _check_place(path, option)


def _kind(path: Path, shown: str) -> str:
    """Return what the path is where it exists and is not a regular file, else an empty text."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        raise HrxError(f"{shown} cannot be written: {reason(error)}. Choose another name.") from error


def _check_place(directory: Path, option: str) -> None:
    """Raise where files cannot be created in the directory, or in the nearest one above it that exists."""
    missing = [place for place in (directory, *directory.parents) if not os.path.lexists(place)]
    place = missing[-1].parent if missing else directory
    if not os.access(place, os.W_OK | os.X_OK) or not place.is_dir():
        trouble = "is read-only" if place.is_dir() else "is not a directory"
        raise HrxError(f"{option}: {shown_path(place)} may not be written: it {trouble}. {_OTHER}")
    if not missing:
        return
    try:
        # Under a name of its own: another process may be creating the directory itself at this moment.
        descriptor, temporary = make_temporary(place, directory=True)
        os.close(descriptor)
        shutil.rmtree(temporary, ignore_errors=True)  # another process may take it for a leftover
    except OSError as error:
        raise HrxError(f"{option}: cannot create {shown_path(missing[-1])}: {reason(error)}. {_OTHER}") from error


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of `path` when the block ends without an error, and else leaves no trace.

    The temporary file is new and has an unpredictable name in the same directory, which is created where it is missing;
    a link at `path` is replaced, not followed.
    """
    make_directory(path.parent)
    try:
        descriptor, temporary = make_temporary(path.parent)
    except (OSError, ValueError) as error:
        raise _not_written(path, error) from error
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(descriptor, 0o666 & ~mask)  # the permissions that `open` gives; mkstemp's file is private
            os.fsync(descriptor)
            os.replace(temporary, path)  # while it is locked
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        with suppress(OSError):  # after the renaming there is nothing to remove
            os.unlink(temporary)


def make_temporary(place: Path, *, directory: bool = False) -> tuple[int, str]:
    """Create a file, or a directory, with an unpredictable name in `place`; return its locked descriptor and its path.

    Before, those that killed processes left there are removed: nobody holds a lock on them any more.
    """
    for left in place.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if lock(descriptor, wait=False):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            finally:
                os.close(descriptor)
    while True:
        if directory:
            temporary = tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=place)
            descriptor = os.open(temporary, os.O_RDONLY)
        else:  # opened with O_EXCL and O_NOFOLLOW
            descriptor, temporary = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=place)
        lock(descriptor)
        if os.path.exists(temporary):
            return descriptor, temporary
        os.close(descriptor)  # another process took it for a leftover before it was locked


def lock(descriptor: int, *, wait: bool = True) -> bool:
    """Lock an open file or directory until it is closed; whether that was possible."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # another process holds it, or the file system has no locks
        return False
    return True


def _not_written(path: Path, error: Exception) -> NotWritten:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "Free some space and repeat the command." if full else "Choose a writable file."
    return NotWritten(f"{shown_path(path)} cannot be written: {reason(error)}. {advice}")


def make_directory(out: Path) -> Path:
    """Create the directory if it does not exist; return it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise NotWritten(f"cannot create {shown_path(out)}: {reason(error)}. Choose a writable directory.") from error
    return out
