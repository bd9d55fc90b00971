"""Failures of a real Ray cluster of two nodes on this machine: each ends in a sentence, or is not noticed at all."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.conftest import ALL
from helpers.fork_server import processes_with, running, wait_until
from helpers.ray_nodes import RayCluster

from hrx.cli import main
from hrx.reports import read

pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
pytestmark = pytest.mark.slow
every_failure = pytest.mark.skipif(not ALL, reason="make faults runs every failure of a cluster: HRX_FAULTS=all")

MODEL = """
import os, time, torch
from pathlib import Path

FOLDER = Path(__file__).parent

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(24, 8)

    def forward(self, x):
        if len(x) == 3 and not torch.equal(x[0], x[1]) and (FOLDER / "closed").exists():  # in the middle of a run
            (FOLDER / f"in-{os.getpid()}").write_text(os.environ.get("RAY_NODE_ID", ""))
            while (FOLDER / "closed").exists():
                time.sleep(0.02)
        return self.layer(x[:, -24:])

def build(): return Line()
"""
PLAN = ["--data", "sample:elnino/M,co2/W", "--settings", "24x8", "--windows", "3", "--draws", "2", "--seeds", "2"]
RUNS = 4


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        yield cluster
    finally:
        for audit in cluster.audits:
            audit.kill()
            audit.wait()
        cluster.close()


class ClusterAudit:
    """`hrx audit` on a cluster, as a user starts it."""

    def __init__(self, folder: Path, cluster: RayCluster, address: str = "", **variables: str):
        self.folder, self._mark = folder, f"hrx-test-{os.getpid()}-{time.monotonic_ns()}"
        (folder / "line.py").write_text(MODEL)
        command = [
            "audit",
            f"module:{folder}/line.py:build",
            *PLAN,
            "--out",
            "out",
            "--json",
            "--engine",
            "ray",
            "--workers",
            "2",
        ]
        self._error = (folder / "error.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hrx.cli", *command, "--address", address or cluster.address],
            cwd=folder,
            env=cluster.environment | {"HRX_TEST_MARK": self._mark} | variables,
            stdout=(folder / "output.txt").open("w"),
            stderr=self._error,
        )

        cluster.audits.append(self.process)

    def wait(self) -> int:
        return self.process.wait(1800)  # Ray itself notices a node that is stopped in some minutes

    @property
    def error(self) -> str:
        return (self.folder / "error.txt").read_text()

    @property
    def in_a_run(self) -> int:
        return len(list(self.folder.glob("in-*")))

    def wait_for_runs(self, count: int) -> None:
        wait_until(lambda: self.in_a_run >= count or self.process.poll() is not None)
        assert self.process.poll() is None, self.error

    def processes(self) -> list[int]:
        """Running processes of the audit, and those that it has started."""
        return [pid for pid in processes_with(self._mark) if running(pid)]


def close(folder: Path) -> Path:
    """Holds every run in its middle until the file is removed."""
    (folder / "closed").touch()
    return folder / "closed"


@every_failure
def test_a_node_with_another_library_version_is_refused_before_work_begins(
    cluster: RayCluster, tmp_path: Path, figure: Callable[..., None]
) -> None:
    other = tmp_path / "packages" / "numpy-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n")
    cluster.start_head()
    cluster.start_node(PYTHONPATH=str(other.parent))
    audit = ClusterAudit(tmp_path, cluster)
    assert audit.wait() == 2, audit.error
    assert "has other versions than this machine: numpy 0.0.1 instead of " in audit.error
    assert re.search(r"hrx audit: Node \S+ \(\w{8}\) of the Ray cluster", audit.error)
    assert "Traceback" not in audit.error
    assert not (tmp_path / "out" / "ledger.db").exists()
    figure("cluster", "a node with other versions: refused before work begins", made=1, handled=1)


@every_failure
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP])
def test_the_work_of_a_lost_node_is_taken_over(
    signal_: signal.Signals, cluster: RayCluster, tmp_path: Path, figure: Callable[..., None]
) -> None:
    cluster.start_head()
    cluster.start_node()
    held = close(tmp_path)
    audit = ClusterAudit(tmp_path, cluster)
    audit.wait_for_runs(2)  # one on each node
    cluster.kill(1, signal_)
    held.unlink()
    assert audit.wait() == 0, audit.error
    frame = read(tmp_path / "out" / "ledger.db")
    assert len(frame) == RUNS
    assert set(frame["status"]) == {"done"}
    figure("cluster", "a node lost in the middle of a run: taken over", made=1, handled=1)


@every_failure
@pytest.mark.parametrize("program", ["gcs_server", ""])
def test_the_death_of_the_head_ends_in_a_sentence_with_everything_stored(
    program: str, cluster: RayCluster, tmp_path: Path, figure: Callable[..., None]
) -> None:
    ledger = tmp_path / "out" / "ledger.db"
    (tmp_path / "line.py").write_text(MODEL)
    main(["audit", f"module:{tmp_path}/line.py:build", *PLAN, "--seeds", "1", "--out", str(ledger.parent)])
    before = len(read(ledger))
    cluster.start_head()
    cluster.start_node()
    close(tmp_path)
    audit = ClusterAudit(tmp_path, cluster)
    audit.wait_for_runs(1)
    cluster.kill_program(0, program) if program else cluster.kill(0)
    assert audit.wait() == 3, audit.error
    assert "hrx audit: The " in audit.error
    assert "of the Ray cluster at" in audit.error or "to the Ray cluster at" in audit.error
    assert f"{before} of {RUNS} runs are in" in audit.error
    assert "Traceback" not in audit.error
    assert len(read(ledger)) == before > 0
    wait_until(lambda: not audit.processes())
    figure("cluster", "the head dies: a sentence and exit code 3", made=1, handled=1)


@every_failure
def test_a_loopback_only_cluster_is_used(cluster: RayCluster, tmp_path: Path, figure: Callable[..., None]) -> None:
    cluster.start_head()
    audit = ClusterAudit(tmp_path, cluster)
    assert audit.wait() == 0, audit.error
    assert json.loads((tmp_path / "output.txt").read_text())["models"][0]["runs"] == RUNS
    figure("cluster", "a cluster on the loopback interface only: connected", made=1, handled=1)


@every_failure
def test_a_cluster_that_listens_and_never_answers_is_refused(
    cluster: RayCluster, tmp_path: Path, figure: Callable[..., None]
) -> None:
    cluster.start_head()
    cluster.kill(0, signal.SIGSTOP)
    audit = ClusterAudit(tmp_path, cluster)
    assert audit.wait() == 2, audit.error
    assert "did not answer within" in audit.error or "No Ray cluster could be reached" in audit.error
    figure("cluster", "a cluster that accepts connections and never answers: refused", made=1, handled=1)


@every_failure
def test_no_ray_process_outlives_a_killed_audit(
    cluster: RayCluster, tmp_path: Path, figure: Callable[..., None]
) -> None:
    close(tmp_path)
    audit = ClusterAudit(tmp_path, cluster, address="local")
    audit.wait_for_runs(1)
    assert len(audit.processes()) > 3
    audit.process.kill()
    audit.wait()
    wait_until(lambda: not audit.processes())
    figure("cluster", "kill -9 of an audit with a cluster of its own: no process is left", made=1, handled=1)
