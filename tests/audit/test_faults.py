"""What can go wrong with an audit does: afterwards the ledger opens, nothing finished is lost or there twice, and what
is resumed ends with the digits of an audit that was never disturbed.
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
from helpers.forking import Nursery, until

from hrx.audit.ledger.diff import VOLATILE
from hrx.audit.ledger.store import Ledger, LedgerError
from hrx.cli import main
from hrx.reports import read

MODEL = """
import os, time, torch

class Line(torch.nn.Module):
    def __init__(self, trait):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.trait = torch.nn.Linear(24, 8), trait

    def forward(self, x):
        if self.trait == "slow":
            time.sleep(0.02)
        if self.trait == "deadly" and len(x) == 2 and x[0, 0] > 0:
            os.kill(os.getpid(), 9)
        if self.trait == "nan" and len(x) == 2 and x[0, 0] > 0:
            return self.layer(x[:, -24:]) * float("nan")
        return self.layer(x[:, -24:])

def line(): return Line("")
def slow(): return Line("slow")
def deadly(): return Line("deadly")
def nan(): return Line("nan")
"""
PLAN = ["--data", "sample", "--settings", "32x8,24x8", "--windows", "2", "--draws", "2", "--seeds", "3"]
RUNS = 42


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "faulty.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def undisturbed(model: Path, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    code, said = nursery.run(audit(model), folder)
    assert code == 0, said
    return folder / "out" / "ledger.db"


def audit(model: Path, factory: str = "line", *more: str) -> list[str]:
    return ["audit", f"module:{model}:{factory}", *PLAN, "--out", "out", "--json", *more]


def stored(ledger: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
    except sqlite3.OperationalError:  # it is being made
        return 0


def content(ledger: Path) -> pd.DataFrame:
    frame = read(ledger).drop(columns=list(VOLATILE))
    return frame.sort_values("key").reset_index(drop=True)


def assert_same(one: Path, other: Path) -> None:
    """Digit for digit, in runs, checks and pictures."""
    pd.testing.assert_frame_equal(content(one), content(other), check_exact=True)
    with Ledger.open(one, create=False) as a, Ledger.open(other, create=False) as b:
        assert sorted(map(str, a.checks())) == sorted(map(str, b.checks()))
        assert sorted(a.example_keys()) == sorted(b.example_keys())
        for left, right in zip(a.examples(a.example_keys()), b.examples(a.example_keys()), strict=True):
            assert left.matrix.tolist() == right.matrix.tolist()
        assert a.damage() == b.damage() == ""


def test_twenty_kills_at_random_moments_lose_nothing(
    model: Path, nursery: Nursery, undisturbed: Path, tmp_path: Path
) -> None:
    assert len(read(undisturbed)) == RUNS
    ledger, rng = tmp_path / "out" / "ledger.db", random.Random(7)
    counts, kills = [0], 0
    while kills < 20:
        child = nursery.start(audit(model), tmp_path)
        # Some die while they start, some between two runs, some in the middle of one or of its transaction.
        before, wanted = counts[-1], rng.choice([0, 0, 0, 1, 1])
        if wanted and before + wanted < RUNS:
            until(lambda: stored(ledger) >= before + wanted)  # noqa: B023
        time.sleep(rng.uniform(0, 0.02) if wanted else rng.uniform(0, 0.15))
        child.kill()
        assert child.wait() == -signal.SIGKILL
        kills += 1
        counts.append(stored(ledger))
        assert counts[-1] >= counts[-2]
    assert 0 < counts[-1] < RUNS
    code, said = nursery.run(audit(model), tmp_path)
    assert code == 0, said
    assert_same(ledger, undisturbed)


def test_a_full_disk_stops_the_audit_in_words_and_more_room_lets_it_go_on(
    model: Path, nursery: Nursery, undisturbed: Path, tmp_path: Path
) -> None:
    code, said = nursery.run(audit(model), tmp_path, largest_file=200_000)
    assert code == 2
    assert "ledger.db cannot be used" in said
    assert "free disk space" in said
    assert "Traceback" not in said
    ledger = tmp_path / "out" / "ledger.db"
    assert 0 < stored(ledger) < RUNS
    assert nursery.run(audit(model), tmp_path)[0] == 0
    assert_same(ledger, undisturbed)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few hundred kilobytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_tmpfs_does_the_same(
    model: Path, nursery: Nursery, undisturbed: Path, disk: Path, tmp_path: Path
) -> None:
    code, said = nursery.run(audit(model, "line", "--ledger", str(disk / "ledger.db")), tmp_path)
    assert code == 2, said
    assert "free disk space" in said
    kept = stored(disk / "ledger.db")
    shutil.copytree(disk, tmp_path / "larger")
    ledger = tmp_path / "larger" / "ledger.db"
    assert 0 < kept == stored(ledger) < RUNS
    assert nursery.run(audit(model, "line", "--ledger", str(ledger)), tmp_path)[0] == 0
    assert_same(ledger, undisturbed)


def test_a_ledger_that_may_not_be_written_is_named_and_left_alone(
    model: Path, nursery: Nursery, undisturbed: Path, disk: Path, tmp_path: Path
) -> None:
    ledger = Path(shutil.copy(undisturbed, disk / "ledger.db"))
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)  # root may write whatever the permissions say
    before = ledger.read_bytes()
    code, said = nursery.run(audit(model, "slow", "--ledger", str(ledger)), tmp_path)
    assert code == 2, said
    assert "ledger.db cannot be" in said
    assert "ermissions" in said
    assert ledger.read_bytes() == before
    assert len(read(ledger)) == RUNS


def test_runs_that_are_only_in_the_log_of_a_ledger_on_a_read_only_disk_are_not_passed_over(
    undisturbed: Path, disk: Path
) -> None:
    ledger = Path(shutil.copy(undisturbed, disk / "ledger.db"))
    log = disk / "ledger.db-wal"
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("INSERT INTO runs (key, status) VALUES ('late', 'done')")
        connection.commit()
        held = log.read_bytes()  # the last connection to close would empty it
        kept = ledger.read_bytes()
    ledger.write_bytes(kept)
    log.write_bytes(held)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(LedgerError, match=r"has runs in ledger\.db-wal"):
        read(ledger)


def test_a_damaged_page_is_told_and_what_can_be_read_is_saved(
    model: Path, nursery: Nursery, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, saved = tmp_path / "damaged.db", tmp_path / "saved.db"
    shutil.copy(undisturbed, damaged)
    overwrite_a_page_of_runs(damaged)
    before = damaged.read_bytes()
    code, said = nursery.run(audit(model, "line", "--ledger", str(damaged)), tmp_path)
    assert code == 2
    assert "is damaged" in said
    assert "hrx merge" in said
    assert damaged.read_bytes() == before
    assert main(["merge", str(damaged), "--into", str(saved)]) == 3
    assert "cannot be read any more" in capsys.readouterr().out
    assert 0 < stored(saved) < RUNS
    assert nursery.run(audit(model, "line", "--ledger", str(saved)), tmp_path)[0] == 0
    pd.testing.assert_frame_equal(content(saved), content(undisturbed), check_exact=True)


def overwrite_a_page_of_runs(ledger: Path) -> None:
    """Zeroes one leaf page of the table of runs."""
    with sqlite3.connect(ledger) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs'").fetchone()
    data = bytearray(ledger.read_bytes())
    interior = data[(root - 1) * size : root * size]
    assert interior[0] == 5, "the table has only one page"
    cell = int.from_bytes(interior[14:16], "big")  # the second child: neither the first nor the last page
    child = int.from_bytes(interior[cell : cell + 4], "big")
    data[(child - 1) * size : child * size] = bytes(size)
    ledger.write_bytes(data)


def test_two_processes_on_one_ledger_do_every_run_once(
    model: Path, nursery: Nursery, undisturbed: Path, tmp_path: Path
) -> None:
    children = [nursery.start(audit(model), tmp_path) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0], "\n".join(child.said for child in children)
    pd.testing.assert_frame_equal(content(tmp_path / "out" / "ledger.db"), content(undisturbed), check_exact=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_run_finish_and_says_how_to_go_on(
    number: int, code: int, model: Path, nursery: Nursery, tmp_path: Path
) -> None:
    ledger = tmp_path / "out" / "ledger.db"
    child = nursery.start(audit(model, "slow"), tmp_path)
    until(lambda: stored(ledger) >= 2)
    child.kill(number)
    assert child.wait() == code, child.said
    kept = stored(ledger)
    assert 2 <= kept < RUNS
    assert f"{kept} of {RUNS} runs are in out/ledger.db. Repeat the command" in child.said
    assert "Traceback" not in child.said


def test_a_second_signal_stops_at_once_and_loses_nothing_written(model: Path, nursery: Nursery, tmp_path: Path) -> None:
    ledger = tmp_path / "out" / "ledger.db"
    child = nursery.start(audit(model, "slow"), tmp_path)
    until(lambda: stored(ledger) >= 2)
    child.kill(signal.SIGINT)
    until(lambda: "Once more stops at once" in child.said)
    child.kill(signal.SIGINT)
    assert child.wait() == 130, child.said
    assert "Traceback" not in child.said
    with Ledger.open(ledger, create=False) as opened:
        assert opened.damage() == ""
        assert len(opened.records()) >= 2


def test_a_signal_lets_the_runs_of_all_workers_finish_and_leaves_none_of_them_behind(
    model: Path, nursery: Nursery, tmp_path: Path
) -> None:
    ledger = tmp_path / "out" / "ledger.db"
    child = nursery.start(audit(model, "slow", "--workers", "2"), tmp_path)
    until(lambda: stored(ledger) >= 1)
    workers = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    child.kill(signal.SIGTERM)
    assert child.wait() == 143, child.said
    assert f"{stored(ledger)} of {RUNS} runs are in out/ledger.db" in child.said
    assert len(workers) >= 2
    assert not [pid for pid in workers if "spawn_main" in command_of(pid)]


def command_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_model_that_returns_nan_on_some_windows_is_resumed_like_any_other(
    model: Path, nursery: Nursery, tmp_path: Path
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for folder in (whole, halves):
        folder.mkdir()
    assert nursery.run(audit(model, "nan"), whole)[0] == 0
    child = nursery.start(audit(model, "nan"), halves)
    until(lambda: stored(halves / "out" / "ledger.db") >= 3)
    child.kill()
    child.wait()
    assert nursery.run(audit(model, "nan"), halves)[0] == 0
    status = read(whole / "out" / "ledger.db")["status"].value_counts()
    assert status["done"] > 0
    assert status["excluded"] > 0
    assert_same(whole / "out" / "ledger.db", halves / "out" / "ledger.db")
