"""Audits that are killed, stopped, short of disk space or given a damaged ledger.

Afterwards the ledger opens, nothing finished is lost or stored twice, and a resumed audit ends with the digits of one
that was never disturbed.
"""

import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from helpers.damage import interrupted_writer
from helpers.fork_server import ForkedAudit, ForkServer, running, wait_until
from helpers.records import VOLATILE, overwrite_a_page_of_runs

from hrx.cli import main
from hrx.records.ledger import Ledger, LedgerError
from hrx.reports import read

MODEL = """
import os, time, torch
from pathlib import Path

FOLDER = Path(__file__).parent

class Line(torch.nn.Module):
    def __init__(self, fault):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.fault = torch.nn.Linear(24, 8), fault

    def forward(self, x):
        y = self.layer(x[:, -24:])
        if len(x) != 2 or torch.equal(x[0], x[1]):  # a run has two different windows
            return y
        if self.fault == "held" and (FOLDER / "closed").exists():
            (FOLDER / f"waiting-{os.getpid()}").touch()
            while (FOLDER / "closed").exists():
                time.sleep(0.005)
        return y * float("nan") if self.fault == "nan" and x[0, 0] > 0 else y

def held(): return Line("held")
def nan(): return Line("nan")
"""
PLAN = ["--data", "sample", "--settings", "32x8,24x8", "--windows", "2", "--draws", "2", "--seeds", "3"]
RUNS = 66


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "faulty.py"
    path.write_text(MODEL)
    return path


class Barrier:
    """Holds every run of the model `held` until it is opened."""

    def __init__(self, model: Path):
        self._folder = model.parent

    def close(self) -> None:
        for marker in self._folder.glob("waiting-*"):
            marker.unlink()
        (self._folder / "closed").touch()

    def open(self) -> None:
        (self._folder / "closed").unlink(missing_ok=True)

    @property
    def waiting(self) -> int:
        """How many processes wait in the middle of a run."""
        return len(list(self._folder.glob("waiting-*")))


@pytest.fixture
def barrier(model: Path, undisturbed: Path) -> Iterator[Barrier]:
    barrier = Barrier(model)
    barrier.close()
    yield barrier
    barrier.open()


@pytest.fixture(scope="module")
def undisturbed(model: Path, server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    code, output = server.run(audit(model), folder)
    assert code == 0, output
    return folder / "out" / "ledger.db"


def audit(model: Path, factory: str = "held", *more: str) -> list[str]:
    return ["audit", f"module:{model}:{factory}", *PLAN, "--out", "out", "--json", *more]


def stored(ledger: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
    except sqlite3.OperationalError:  # it is being created
        return 0


def content(ledger: Path) -> pd.DataFrame:
    frame = read(ledger).drop(columns=list(VOLATILE))
    return frame.sort_values("key").reset_index(drop=True)


def assert_same(one: Path, other: Path) -> None:
    """The same digits in runs, checks and examples."""
    pd.testing.assert_frame_equal(content(one), content(other), check_exact=True)
    with Ledger.open(one, create=False) as a, Ledger.open(other, create=False) as b:
        assert sorted(map(str, a.checks())) == sorted(map(str, b.checks()))
        assert sorted(a.example_keys()) == sorted(b.example_keys())
        for left, right in zip(a.examples(a.example_keys()), b.examples(a.example_keys()), strict=True):
            assert left.matrix.tolist() == right.matrix.tolist()
        assert a.integrity() == b.integrity() == []


@pytest.mark.slow
def test_twenty_kills_lose_nothing(
    model: Path, server: ForkServer, undisturbed: Path, barrier: Barrier, tmp_path: Path
) -> None:
    assert len(read(undisturbed)) == RUNS
    ledger, rng = tmp_path / "out" / "ledger.db", random.Random(7)
    before = 0
    for moment in rng.sample(["while it starts", "in a task", "after a run"], counts=[6, 7, 7], k=20):
        barrier.open() if moment == "after a run" else barrier.close()
        child = server.start(audit(model), tmp_path)
        if moment == "while it starts":
            time.sleep(rng.uniform(0, 0.15))
        elif moment == "in a task":
            wait_until(lambda: barrier.waiting or not running(child.pid))  # noqa: B023
        else:  # perhaps in the next run, or in its transaction
            wait_until(lambda: stored(ledger) > before or not running(child.pid))  # noqa: B023
        child.kill()
        assert child.wait() in (-signal.SIGKILL, 0), child.output
        assert stored(ledger) >= before
        before = stored(ledger)
    assert before > 0
    barrier.open()
    code, output = server.run(audit(model), tmp_path)
    assert code == 0, output
    assert_same(ledger, undisturbed)


@pytest.mark.slow
def test_a_full_disk_stops_the_audit_with_a_sentence_and_a_larger_one_lets_it_resume(
    model: Path, server: ForkServer, undisturbed: Path, tmp_path: Path
) -> None:
    code, output = server.run(audit(model), tmp_path, largest_file=110_000)
    assert code == 3
    assert "verdict" in output.lower()
    assert "ledger.db cannot be used" in output
    assert "free disk space" in output
    assert "Traceback" not in output
    ledger = tmp_path / "out" / "ledger.db"
    assert 0 < stored(ledger) < RUNS
    assert server.run(audit(model), tmp_path)[0] == 0
    assert_same(ledger, undisturbed)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few hundred kilobytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_file_system_stops_the_audit_with_a_sentence_too(
    model: Path, server: ForkServer, undisturbed: Path, disk: Path, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,size=120k", disk], check=True)
    code, output = server.run(audit(model, "held", "--ledger", str(disk / "ledger.db")), tmp_path)
    assert code == 3, output
    assert "verdict" in output.lower()
    assert "Free some space" in output
    kept = stored(disk / "ledger.db")
    shutil.copytree(disk, tmp_path / "larger")
    ledger = tmp_path / "larger" / "ledger.db"
    assert 0 < kept == stored(ledger) < RUNS
    assert server.run(audit(model, "held", "--ledger", str(ledger)), tmp_path)[0] == 0
    assert_same(ledger, undisturbed)


def test_a_ledger_on_a_read_only_disk_is_named_and_left_unchanged(
    model: Path, server: ForkServer, undisturbed: Path, disk: Path, tmp_path: Path
) -> None:
    ledger = Path(shutil.copy(undisturbed, disk / "ledger.db"))
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)  # root may write whatever the permissions say
    before = ledger.read_bytes()
    assert server.run(audit(model, "held", "--ledger", str(ledger)), tmp_path)[0] == 0  # there is nothing to write
    code, output = server.run(audit(model, "held", "--ledger", str(ledger), "--seeds", "4"), tmp_path)
    assert code == 2, output
    assert "ledger.db cannot be" in output
    assert "ermissions" in output
    assert ledger.read_bytes() == before
    assert len(read(ledger)) == RUNS


def test_a_half_written_ledger_on_a_read_only_disk_is_read_and_not_written(tmp_path: Path, disk: Path) -> None:
    interrupted = interrupted_writer(tmp_path)
    ledger = interrupted.copy(disk).path
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert len(read(ledger)) == len(interrupted.before["runs"])
    refused = pytest.raises(LedgerError, match=r"ledger\.db-journal can only be applied in a writable directory")
    with refused, Ledger.open(ledger):
        pass


def test_a_damaged_ledger_is_refused_and_its_readable_runs_can_be_saved(
    model: Path, server: ForkServer, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, saved = tmp_path / "damaged.db", tmp_path / "saved.db"
    shutil.copy(undisturbed, damaged)
    overwrite_a_page_of_runs(damaged)
    before = damaged.read_bytes()
    code, output = server.run(audit(model, "held", "--ledger", str(damaged)), tmp_path)
    assert code == 2
    assert "is damaged" in output
    assert "hrx merge" in output
    assert damaged.read_bytes() == before
    assert main(["merge", str(damaged), "--into", str(saved)]) == 3
    assert "its page cannot be read" in capsys.readouterr().err
    assert 0 < stored(saved) < RUNS
    assert server.run(audit(model, "held", "--ledger", str(saved)), tmp_path)[0] == 0
    pd.testing.assert_frame_equal(content(saved), content(undisturbed), check_exact=True)


def test_two_processes_on_one_ledger_do_every_run_once(
    model: Path, server: ForkServer, undisturbed: Path, tmp_path: Path
) -> None:
    children = [server.start(audit(model), tmp_path) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0], "\n".join(child.output for child in children)
    pd.testing.assert_frame_equal(content(tmp_path / "out" / "ledger.db"), content(undisturbed), check_exact=True)


def test_a_ledger_that_another_process_has_only_begun_to_create_is_used(
    model: Path, server: ForkServer, undisturbed: Path, tmp_path: Path
) -> None:
    begun = tmp_path / "ledger.db"
    begun.touch()
    code, output = server.run(audit(model, "held", "--ledger", str(begun)), tmp_path)
    assert code == 0, output
    pd.testing.assert_frame_equal(content(begun), content(undisturbed), check_exact=True)


def start_held(model: Path, server: ForkServer, barrier: Barrier, folder: Path, workers: int) -> ForkedAudit:
    """An audit of which the first seed is stored and every worker is in the middle of a run of the next."""
    barrier.open()
    code, output = server.run([*audit(model), "--seeds", "1"], folder)
    assert code == 0, output
    assert stored(folder / "out" / "ledger.db") == RUNS // 3
    barrier.close()
    child = server.start(audit(model, "held", "--workers", str(workers)), folder)
    wait_until(lambda: barrier.waiting == max(1, workers) or not running(child.pid))
    assert running(child.pid), child.output
    return child


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "number", "code"),
    [(0, signal.SIGINT, 130), (0, signal.SIGTERM, 143), (2, signal.SIGINT, 130), (2, signal.SIGTERM, 143)],
)
def test_a_signal_to_the_group_lets_running_tasks_finish_and_starts_no_others(
    workers: int, number: int, code: int, model: Path, server: ForkServer, barrier: Barrier, tmp_path: Path
) -> None:
    child = start_held(model, server, barrier, tmp_path, workers)
    processes = child.workers
    assert len(processes) == workers
    child.kill_group(number)
    wait_until(lambda: "topping" in child.output)
    barrier.open()
    assert child.wait() == code, child.output
    ledger = tmp_path / "out" / "ledger.db"
    done = RUNS // 3 + max(1, workers)
    assert stored(ledger) == done
    assert set(read(ledger)["status"]) == {"done"}
    assert f"{done} of {RUNS} runs are in out/ledger.db" in child.output
    assert "Traceback" not in child.output
    wait_until(lambda: not any(map(running, processes)))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_second_signal_stops_at_once_and_loses_nothing_written(
    workers: int, model: Path, server: ForkServer, barrier: Barrier, tmp_path: Path
) -> None:
    ledger = tmp_path / "out" / "ledger.db"
    child = start_held(model, server, barrier, tmp_path, workers)
    before, processes = content(ledger), child.workers
    child.kill_group(signal.SIGINT)
    wait_until(lambda: "topping" in child.output)
    child.kill_group(signal.SIGINT)
    assert child.wait() == 130, child.output  # although the barrier is closed
    assert "Traceback" not in child.output
    pd.testing.assert_frame_equal(content(ledger), before, check_exact=True)
    wait_until(lambda: not any(map(running, processes)))


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed(
    model: Path, server: ForkServer, barrier: Barrier, tmp_path: Path
) -> None:
    child = start_held(model, server, barrier, tmp_path, 2)
    processes = child.workers
    assert len(processes) == 2
    child.kill()
    assert child.wait() == -signal.SIGKILL
    wait_until(lambda: not any(map(running, processes)))  # although the barrier is closed
    barrier.open()
    assert server.run(audit(model), tmp_path)[0] == 0
    assert stored(tmp_path / "out" / "ledger.db") == RUNS


def test_an_audit_with_excluded_runs_resumes_with_the_same_digits(
    model: Path, server: ForkServer, tmp_path: Path
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for folder in (whole, halves):
        folder.mkdir()
    assert server.run(audit(model, "nan"), whole)[0] == 0
    child = server.start(audit(model, "nan"), halves)
    wait_until(lambda: stored(halves / "out" / "ledger.db") >= 3)
    child.kill()
    child.wait()
    assert server.run(audit(model, "nan"), halves)[0] == 0
    status = read(whole / "out" / "ledger.db")["status"].value_counts()
    assert status["done"] > 0
    assert status["excluded"] > 0
    assert_same(whole / "out" / "ledger.db", halves / "out" / "ledger.db")
