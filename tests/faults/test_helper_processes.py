"""`kill -9` of the processes behind an audit: the server that forks workers, multiprocessing's tracker, Ray's head.

Each ends in the numbers of an undisturbed audit or in a sentence, and nothing is left behind.
"""

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from faults.conftest import ALL, sample
from helpers.fork_server import processes_with, running, wait_until
from helpers.records import VOLATILE

from hrx.audit.runner import processes
from hrx.cli import main
from hrx.errors import Exit
from hrx.records.ledger import LedgerError
from hrx.reports import read

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked from a server on Linux only")
PLAN = ["bolt-mini", "--data", "sample:elnino/M,co2/W", "--settings", "32x8", "--seeds", "1", "--draws", "2"]
HELPERS = {"the server": "multiprocessing.forkserver", "the tracker": "multiprocessing.resource_tracker"}
LATER = tuple(step**2 / 50 for step in range(28))
"""Seconds after a helper process has appeared."""


class StartedAudit:
    """`hrx audit` as a user starts it, and every process that has come from it."""

    def __init__(self, folder: Path, *more: str, temporary: Path | None = None):
        self._mark = uuid.uuid4().hex
        self.error = folder / "error.txt"
        environment = os.environ | {"HRX_TEST_MARK": self._mark}
        environment |= {"TMPDIR": str(temporary)} if temporary else {}
        with self.error.open("w") as error:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hrx.cli", "audit", *PLAN, "--out", "out", *more],
                env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=error,
            )  # fmt: skip

    def running(self) -> list[int]:
        return [process for process in processes_with(self._mark) if running(process)]

    def wait_for(self, command: str) -> list[int]:
        """Return the processes that run a command, as soon as there is one; none where the audit ends before."""
        found: list[int] = []

        def appeared() -> bool:
            found[:] = [process for process in self.running() if command in _text(process, "cmdline")]
            return bool(found) or self.process.poll() is not None

        wait_until(appeared)
        return found

    def semaphores(self) -> set[str]:
        """Named semaphores that its processes hold: a kill of all of them would leave these in /dev/shm."""
        lines = [line for process in self.running() for line in _text(process, "maps").splitlines()]
        mapped = {int(line.split()[4]) for line in lines if "/dev/shm/sem." in line}
        found = set[str]()
        for file in Path("/dev/shm").glob("sem.*"):
            with suppress(FileNotFoundError):
                if file.stat().st_ino in mapped:
                    found.add(file.name)
        return found

    def stored(self) -> bool:
        """Whether a run is stored."""
        with suppress(LedgerError):
            return len(read(self.error.with_name("out") / "ledger.db")) > 0
        return False

    def end(self) -> int:
        """Its exit code, once none of its processes is left."""
        code = self.process.wait()
        wait_until(lambda: not self.running())
        return code


def _text(process: int, name: str) -> str:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def kill(found: list[int]) -> None:
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def numbers(folder: Path) -> pd.DataFrame:
    """The records by key, without times and settings."""
    records = read(folder / "out" / "ledger.db").set_index("key").sort_index()
    return records.drop(columns=[*VOLATILE, "request"], errors="ignore")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The records of an undisturbed audit."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert main(["audit", *PLAN, "--out", str(folder / "out")]) == Exit.DONE
    return numbers(folder)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for sockets, whose paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="h") as folder:
        yield Path(folder)


def assert_same(records: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(records, expected, check_dtype=False, check_exact=False, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("helper", "later"),
    sample([("the server", later) for later in LATER] + [("the tracker", later) for later in LATER[::2]], 3),
)
def test_an_audit_survives_the_death_of_a_helper_process(
    helper: str, later: float, tmp_path: Path, expected: pd.DataFrame, figure: Callable[..., None]
) -> None:
    audit = StartedAudit(tmp_path)
    found = audit.wait_for(HELPERS[helper])
    time.sleep(later)
    kill(found)
    assert audit.end() == Exit.DONE, audit.error.read_text()
    shown = audit.error.read_text()
    assert "Traceback" not in shown
    assert "resource_tracker" not in shown
    assert_same(numbers(tmp_path), expected)
    figure("helper processes", f"kill -9 of {helper} that multiprocessing starts: the same numbers", made=1, handled=1)


@pytest.mark.slow
@pytest.mark.parametrize("later", [*LATER[::2], math.inf] if ALL else [math.inf])
def test_a_kill_of_all_processes_leaves_no_semaphore_and_the_repeated_command_completes_and_cleans(
    later: float, tmp_path: Path, short_folder: Path, expected: pd.DataFrame, figure: Callable[..., None]
) -> None:
    audit = StartedAudit(tmp_path, "--workers", "2", temporary=short_folder)
    audit.wait_for(HELPERS["the server"])
    deadline, held = time.monotonic() + later, set[str]()
    while time.monotonic() < deadline and audit.process.poll() is None and not audit.stored():
        held |= audit.semaphores()
    kill(audit.running())
    audit.end()
    assert held == set()
    assert StartedAudit(tmp_path, "--workers", "2", temporary=short_folder).end() == Exit.DONE
    # torch keeps a folder there for the programs that it compiles.
    assert [left.name for left in short_folder.iterdir() if not left.name.startswith("torchinductor")] == []
    assert_same(numbers(tmp_path), expected)
    figure(
        "helper processes",
        "kill -9 of all processes: nothing lost, no semaphore, the next start removes the rest",
        made=1,
        handled=1,
    )


def test_workers_that_cannot_be_started_end_an_audit_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def dies(process: object) -> None:
        raise EOFError("unexpected EOF")

    monkeypatch.setattr(processes, "START_SECONDS", 0.1)
    monkeypatch.setattr(processes._CONTEXT.Process, "start", dies)
    assert main(["audit", *PLAN, "--out", str(tmp_path / "out")]) == Exit.INCOMPLETE
    shown = capsys.readouterr().err
    assert "No worker process could be started within 0.1 s: EOFError: unexpected EOF." in shown
    assert "Traceback" not in shown


@pytest.mark.slow
@pytest.mark.skipif(not ALL, reason="make faults kills Ray's head while it starts: HRX_FAULTS=all")
@pytest.mark.parametrize("later", [0.0, 0.3, 1.0, 2.5])
def test_a_head_of_ray_that_dies_while_it_is_connected_to_gives_a_sentence(
    later: float, tmp_path: Path, figure: Callable[..., None]
) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
    audit = StartedAudit(tmp_path, "--engine", "ray", "--address", "local", "--workers", "1")
    found = audit.wait_for("gcs_server")
    time.sleep(later)
    kill(found)
    assert audit.end() in (Exit.WRONG_REQUEST, Exit.INCOMPLETE)
    lines = audit.error.read_text().splitlines()
    assert lines[-1].startswith("hrx audit: ")
    assert "ray start --head" in lines[-1] or "was lost" in lines[-1]
    assert len(lines) <= 3, lines
    figure("helper processes", "kill -9 of Ray's head while it starts: a sentence", made=1, handled=1)
