"""`kill -9` of audits whose models run in workers or on Ray: nothing stored is lost, no process stays behind.

Kills of an audit in one process are in tests/audit/test_faults.py.
"""

import os
import random
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
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
LONGEST = {"two workers": 8.0, "Ray": 30.0}
"""Seconds until a kill at most: about what the audit takes."""


def stored(ledger: Path) -> pd.DataFrame:
    """The records of a ledger, without times; empty while it is created."""
    with suppress(LedgerError):
        return read(ledger).drop(columns=list(VOLATILE)).sort_values("key").reset_index(drop=True)
    return pd.DataFrame({"key": []})


def kill_once(arguments: list[str], folder: Path, until: Callable[[subprocess.Popen[bytes]], object]) -> None:
    """Starts an audit, kills it, and waits until no process of it is left."""
    mark = uuid.uuid4().hex
    environment = os.environ | {"HRX_TEST_MARK": mark, "RAY_TMPDIR": str(folder / "r")}
    process = subprocess.Popen(
        [sys.executable, "-m", "hrx.cli", "audit", *arguments],
        env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(process)
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(running, processes_with(mark))), seconds=60)


def wait_at_most(seconds: float, process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


@pytest.mark.slow
def test_the_interpreters_and_workers_of_an_audit_end_with_it(tmp_path: Path, figure: Callable[..., None]) -> None:
    blocked = Case("", "blocks", "forward", "Path('blocked').touch(); time.sleep(10**6)", "failed")
    (tmp_path / "slow.py").write_text(blocked.source())
    arguments = [f"module:{tmp_path}/slow.py:build", *PLAN, "--python", f"module={sys.executable}"]

    def in_a_task(process: subprocess.Popen[bytes]) -> None:
        wait_until(lambda: (tmp_path / "blocked").exists() or process.poll() is not None)
        assert process.poll() is None

    kill_once([*arguments, "--out", str(tmp_path / "out")], tmp_path, in_a_task)
    figure("kills", "kill -9 of an audit with --python: no process left", made=1, handled=1)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_kills_lose_nothing_and_leave_no_process(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Callable[..., None]
) -> None:
    if engine == "Ray":
        pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
    if not ALL:
        pytest.skip("make faults kills audits with workers and on Ray: HRX_FAULTS=all")
    count = {"two workers": 20, "Ray": 6}[engine]
    (tmp_path / "slow.py").write_text(SLOW.source())
    plan = [f"module:{tmp_path}/slow.py:build", *PLAN]
    assert main(["audit", *plan, "--out", str(tmp_path / "alone")]) == 0
    expected = stored(tmp_path / "alone" / "ledger.db")
    rng = random.Random(11)
    out = tmp_path / "out"
    before = stored(out / "ledger.db")
    for _ in range(count):
        seconds = rng.uniform(0, LONGEST[engine])
        kill_once([*plan, "--out", str(out), *ENGINES[engine]], tmp_path, partial(wait_at_most, seconds))
        after = stored(out / "ledger.db")
        assert set(before["key"]) <= set(after["key"])
        before = after
    assert main(["audit", *plan, "--out", str(out), "--workers", "2"]) == 0
    pd.testing.assert_frame_equal(stored(out / "ledger.db"), expected, check_exact=False, rtol=1e-4, atol=1e-6)
    figure("kills", f"kill -9 of an audit with {engine}: nothing lost, no process left", made=count, handled=count)
