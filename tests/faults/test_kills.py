"""`kill -9` of trainings, and of audits whose models run in workers or on Ray: nothing stored is lost or left behind.

Kills of an audit in one process are in tests/audit/test_faults.py.
"""

import os
import random
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from faults.conftest import ALL
from helpers.fork_server import processes_with, running, wait_until
from helpers.misbehaving import Case
from helpers.records import VOLATILE

from hrx.cli import main
from hrx.records.ledger import LedgerError
from hrx.reports import read

PLAN = [
    "--data",
    "sample:elnino/M,co2/W,sf_temps/H",
    "--settings",
    "32x8,24x8",
    "--windows",
    "2",
    "--draws",
    "2",
    "--json",
]
SLOW = Case("", "takes a moment", "forward", "time.sleep(0.01)", "done")
ENGINES = {"two workers": ["--workers", "2"], "Ray": ["--engine", "ray", "--address", "local", "--workers", "1"]}
LONGEST = {"two workers": 8.0, "Ray": 30.0, "training": 8.0}
"""Seconds until a kill at most: about what the command takes."""
KILLS = 5
"""Of one audit, or of one training of several models, each kill after the command was repeated."""
AUDITS = [*product(["two workers"], range(14)), *product(["Ray"], range(2))]
TRAINING = ["train", "Linear", "CNN", "--data", "sample:sf_temps", "--settings", "24x8", "--epochs", "2"]
TRAINING += ["--batches", "40", "--seeds", "2"]
every_kill = pytest.mark.skipif(not ALL, reason="make faults kills audits and trainings: HRX_FAULTS=all")


def stored(ledger: Path) -> pd.DataFrame:
    """The records of a ledger, without times; empty while it is created."""
    with suppress(LedgerError):
        return read(ledger).drop(columns=list(VOLATILE)).sort_values("key").reset_index(drop=True)
    return pd.DataFrame({"key": []})


def kill_once(arguments: list[str], folder: Path, until: Callable[[subprocess.Popen[bytes]], object]) -> None:
    """Starts a command, kills it, and waits until no process of it is left."""
    mark = uuid.uuid4().hex
    environment = os.environ | {"HRX_TEST_MARK": mark, "RAY_TMPDIR": str(folder / "r")}
    process = subprocess.Popen(
        [sys.executable, "-m", "hrx.cli", *arguments],
        env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(process)
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(running, processes_with(mark))))


def some_seconds(longest: float, rng: random.Random) -> Callable[[subprocess.Popen[bytes]], None]:
    seconds = rng.uniform(0, longest)

    def wait(process: subprocess.Popen[bytes]) -> None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)

    return wait


@pytest.mark.slow
def test_the_interpreters_and_workers_of_an_audit_end_with_it(tmp_path: Path, figure: Callable[..., None]) -> None:
    blocked = Case("", "blocks", "forward", "Path('blocked').touch(); time.sleep(10**6)", "failed")
    (tmp_path / "slow.py").write_text(blocked.source())
    arguments = [f"module:{tmp_path}/slow.py:build", *PLAN, "--python", f"module={sys.executable}"]

    def in_a_task(process: subprocess.Popen[bytes]) -> None:
        wait_until(lambda: (tmp_path / "blocked").exists() or process.poll() is not None)
        assert process.poll() is None

    kill_once(["audit", *arguments, "--out", str(tmp_path / "out")], tmp_path, in_a_task)
    figure("kills", "kill -9 of an audit with --python: no process left", made=1, handled=1)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """A folder with the model that takes a moment, and the records of an undisturbed audit of it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "slow.py").write_text(SLOW.source())
    assert main(["audit", f"module:{folder}/slow.py:build", *PLAN, "--out", str(folder / "out")]) == 0
    return folder, stored(folder / "out" / "ledger.db")


@every_kill
@pytest.mark.slow
@pytest.mark.parametrize(("engine", "seed"), AUDITS)
def test_kills_of_an_audit_lose_nothing_and_leave_no_process(
    engine: str, seed: int, tmp_path: Path, audited: tuple[Path, pd.DataFrame], figure: Callable[..., None]
) -> None:
    if engine == "Ray":
        pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
    folder, expected = audited
    out, rng = tmp_path / "out", random.Random(seed)
    command = ["audit", f"module:{folder}/slow.py:build", *PLAN, "--out", str(out)]
    before = stored(out / "ledger.db")
    for _ in range(KILLS):
        kill_once([*command, *ENGINES[engine]], tmp_path, some_seconds(LONGEST[engine], rng))
        after = stored(out / "ledger.db")
        assert set(before["key"]) <= set(after["key"])
        before = after
    assert main([*command, "--workers", "2"]) == 0
    pd.testing.assert_frame_equal(stored(out / "ledger.db"), expected, check_exact=False, rtol=1e-4, atol=1e-6)
    figure("kills", f"kill -9 of an audit with {engine}: nothing lost, no process left", made=KILLS, handled=KILLS)


def models(out: Path) -> dict[str, bytes]:
    """Every file of the models that are complete, by its path."""
    files = {str(file.relative_to(out)): file for file in out.rglob("*") if file.is_file()}
    return {name: file.read_bytes() for name, file in files.items() if not name.startswith(".hrx-")}


@every_kill
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kills_of_a_training_lose_no_model_and_change_none(
    seed: int, tmp_path: Path, figure: Callable[..., None]
) -> None:
    out, rng = tmp_path / "out", random.Random(seed)
    assert main([*TRAINING, "--out", str(tmp_path / "undisturbed")]) == 0
    before = models(out)
    for _ in range(KILLS):
        kill_once([*TRAINING, "--workers", "2", "--out", str(out)], tmp_path, some_seconds(LONGEST["training"], rng))
        assert models(out).items() >= before.items()
        before = models(out)
    assert main([*TRAINING, "--out", str(out)]) == 0
    assert models(out) == models(tmp_path / "undisturbed")
    figure("kills", "kill -9 of a training: no model lost or changed, no process left", made=KILLS, handled=KILLS)
