"""Commands that are killed while they write: readers change nothing, and the next command removes what was left."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from faults.conftest import sample
from helpers.damage import contents, small_ledger
from helpers.records import record

from hrx.cli import main
from hrx.files import atomic_write
from hrx.records.ledger import Ledger, LedgerError
from hrx.records.merge import check

SUITE = "leftovers"
Figure = Callable[..., None]
PRELUDE = """
import os, signal, sys
from helpers.crowd import records
from hrx.cli import main
from hrx.records.ledger import Ledger

def forked(work):
    process = os.fork()
    if process == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        work()
        os._exit(0)
    return process

print("ready", flush=True)
"""
WRITER = """
def write(path):
    for one in runs:
        with Ledger.open(path) as ledger:
            ledger.write(one)

runs = records(200)
for path in iter(sys.stdin.readline, ""):
    process = forked(lambda: write(path.strip()))
    print(process, flush=True)
    os.waitpid(process, 0)
    print("ended", flush=True)
"""
COMMAND = """
def killed_at(place, arguments):
    calls = 0
    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls == place:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(count)
    main(arguments)

for line in iter(sys.stdin.readline, ""):
    place, *arguments = line.split()
    process = forked(lambda: killed_at(int(place), arguments))
    print(os.waitpid(process, 0)[1], flush=True)
"""


class Process:
    """A process that forks one child for each line, so that a kill costs no start of an interpreter."""

    def __init__(self, script: str):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
        command = [sys.executable, "-c", PRELUDE + script]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=environment)
        assert self.read() == "ready"

    def say(self, words: Sequence[object]) -> str:
        assert self._process.stdin
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        return self.read()

    def read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def writer() -> Iterator[Process]:
    process = Process(WRITER)
    yield process
    process.close()


@pytest.fixture(scope="module")
def command() -> Iterator[Process]:
    process = Process(COMMAND)
    yield process
    process.close()


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("case", sample(range(400), 8))
def test_check_changes_nothing_and_says_the_same_twice_after_a_kill(
    case: int, writer: Process, tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Figure
) -> None:
    path = tmp_path / "ledger.db"
    process = int(writer.say([path]))
    time.sleep(random.Random(case).uniform(0, 0.2))
    with suppress(ProcessLookupError):
        os.kill(process, 9)
    assert writer.read() == "ended"
    left = listing(tmp_path)
    found = set()
    for _ in range(3):
        code = main(["check", str(path)])
        found.add((code, capsys.readouterr()))
        assert listing(tmp_path) == left
    assert len(found) == 1
    assert code == (0 if is_ledger(path) else 2)
    with Ledger.open(path) as ledger:  # the next writer removes what was left
        ledger.write(record("next"))
    assert list(listing(tmp_path)) == [path.name]
    assert check(path).verdict == "sound"
    figure(SUITE, "kill -9 of a writer: check changes nothing, three times the same verdict", made=1, handled=1)


def is_ledger(path: Path) -> bool:
    """Whether the writer had created its tables."""
    with suppress(LedgerError), Ledger.open(path, create=False):
        return True
    return False


@pytest.mark.parametrize("verb", ["merge", "export"])
@pytest.mark.parametrize("case", sample(range(20), 3))
def test_what_a_killed_merge_or_export_leaves_is_removed_by_the_repeated_command(
    case: int, verb: str, command: Process, tmp_path: Path, figure: Figure
) -> None:
    source, folder = tmp_path / "source.db", tmp_path / "out"
    folder.mkdir()
    small_ledger(source, 8, examples=2)
    target = folder / ("all.db" if verb == "merge" else "all.csv")
    merged, exported = ["merge", source, "--into", target], ["export", source, "--format", "csv", "--out", target]
    arguments = merged if verb == "merge" else exported
    calls = count_calls(list(map(str, arguments)))
    target.unlink()
    # From the first call of the command to its last.
    status = int(command.say([1 + calls * case // 20, *arguments]))
    assert status == 9
    assert main(list(map(str, arguments))) == 0
    assert [path.name for path in folder.iterdir()] == [target.name]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    if verb == "merge":
        assert contents(target) == contents(source)
    figure(SUITE, f"kill -9 of {verb}: the repeated command removes what was left", made=1, handled=1)


def count_calls(arguments: list[str]) -> int:
    """How many functions a command calls."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        assert main(arguments) == 0
    finally:
        sys.setprofile(before)
    return calls


def test_what_a_process_still_writes_is_left_to_it(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a") as first:
        with atomic_write(tmp_path / "b") as second:
            second.write(b"b")
        first.write(b"a")
    (tmp_path / ".hrx-old.tmp").write_bytes(b"left by a process that was killed")
    (tmp_path / ".hrx-folder.tmp").mkdir()
    (tmp_path / ".hrx-folder.tmp" / "ledger.db").write_bytes(b"")
    (tmp_path / ".hidden.tmp").write_bytes(b"of another program")
    with atomic_write(tmp_path / "c") as file:
        file.write(b"c")
    assert listing(tmp_path) == {"a": b"a", "b": b"b", "c": b"c", ".hidden.tmp": b"of another program"}
