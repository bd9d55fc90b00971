"""The same plan by one process, by workers and by Ray: the same digits, and a death on the way changes none of them."""

import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from hrx.adapters import Limits, ModelError, from_module, locate
from hrx.audit import Budget, Protocol, score
from hrx.audit.ledger.diff import VOLATILE
from hrx.audit.ledger.store import Ledger
from hrx.audit.memory import GIBIBYTE, out_of_memory
from hrx.audit.runner.executors.in_process import Crew, Here
from hrx.audit.runner.executors.processes import Workers
from hrx.audit.runner.plan import Setting, plan
from hrx.audit.runner.recheck import recheck
from hrx.audit.runner.scheduler import execute
from hrx.audit.runner.worker import WorkerContext
from hrx.gift_eval import open_source

MODEL = """
import os, torch

class Line(torch.nn.Module):
    def __init__(self, seed, deadly=False):
        super().__init__()
        torch.manual_seed(seed)
        self.layer, self.deadly = torch.nn.Linear(24, 8), deadly

    def forward(self, x):
        if self.deadly and len(x) == 2 and x[0, 0] > 0:
            os.kill(os.getpid(), 9)
        return self.layer(x[:, -24:])

def one(): return Line(1)
def two(): return Line(2)
def deadly(): return Line(3, deadly=True)
def restless(): return Line(int.from_bytes(os.urandom(4), "big"))
"""
SETTINGS = (Setting(24, 8), Setting(32, 8))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "lines.py"
    path.write_text(MODEL)
    return path


class Audit:
    """A plan with one or two models, and a ledger for it."""

    def __init__(self, file: Path, ledger: Path, *factories: str):
        self.models = [locate(f"module:{file}:{factory}") for factory in factories]
        self.ledger = ledger
        self.stored: list[str] = []
        self.runs = plan(
            [model.identity for model in self.models],
            open_source("sample:elnino/M,co2/W,seattle_weather/D"),
            SETTINGS,
            series=2,
            seeds=2,
            windows=2,
            protocol=Protocol(draws=2),
        )

    def by(self, crew: Crew, kill_after: int = 0) -> dict[str, dict]:
        """Everything but what differs each time, by key; one process is killed after so many runs."""

        def progress(run: object, record: dict) -> None:
            self.stored.append(record["key"])
            if len(self.stored) == kill_after:
                os.kill(crew.processes()[0], signal.SIGKILL)  # type: ignore[attr-defined]

        with closing(crew), Ledger.open(self.ledger) as ledger:
            execute(self.runs, self.models, ledger, crew, progress=progress)
            records = ledger.records()
        return {r["key"]: {k: v for k, v in r.items() if k not in VOLATILE} for r in records}  # type: ignore[misc]


@pytest.fixture(scope="module")
def here(file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    audit = Audit(file, tmp_path_factory.mktemp("here") / "l.db", "one", "two")
    return audit.by(Here(WorkerContext(audit.models, GIBIBYTE)))


def test_two_workers_one_of_which_is_killed_give_the_digits_of_one_process(
    file: Path, here: dict[str, dict], tmp_path: Path
) -> None:
    audit = Audit(file, tmp_path / "l.db", "one", "two")
    crew = Workers(audit.models, GIBIBYTE, 2)
    one, other = crew.processes()
    os.kill(other, signal.SIGINT)  # as from the keyboard, while it is still starting: it is for the parent
    found = audit.by(crew, kill_after=5)
    assert crew.processes()[0] != one
    assert crew.processes()[1] == other
    assert {record["status"] for record in found.values()} == {"done"}
    assert found == here
    assert len(audit.stored) == len(set(audit.stored)) == len(audit.runs)


def test_a_run_that_kills_its_process_twice_is_failed_and_the_others_are_done(file: Path, tmp_path: Path) -> None:
    audit = Audit(file, tmp_path / "l.db", "deadly")
    audit.runs = audit.runs[:3]
    found = audit.by(Workers(audit.models, GIBIBYTE, 1))
    deadly = {run.key for run in audit.runs if starts_high(run)}
    assert 0 < len(deadly) < len(found) == 3
    for key, record in found.items():
        assert record["status"] == ("failed" if key in deadly else "done")
        if key in deadly:
            assert "died 2 times (killed by signal 9)" in record["reason"]


def starts_high(run: object) -> bool:
    from hrx.audit.runner.run import windows_of

    x = windows_of(run).x  # type: ignore[arg-type]
    return len(x) == 2 and bool(x[0, 0] > 0)


def test_a_model_that_is_another_in_each_process_is_refused(file: Path, tmp_path: Path) -> None:
    audit = Audit(file, tmp_path / "l.db", "restless")
    with pytest.raises(ModelError, match="other weights each time"):
        audit.by(Workers(audit.models, GIBIBYTE, 1))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
    from ray.cluster_utils import Cluster

    # A short path of its own: sockets lie in it, and Ray would leave its logs behind.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        yield nodes.address
        ray.shutdown()
        nodes.shutdown()


def test_a_ray_cluster_one_of_whose_actors_is_killed_gives_the_digits_of_one_process(
    file: Path, here: dict[str, dict], tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hrx.audit.runner.executors.ray import RayCrew, RayError

    # On a busy machine Ray may take minutes to start another process: the crew then goes on with the rest.
    monkeypatch.setattr("hrx.audit.runner.executors.ray.START_SECONDS", 30.0)
    audit = Audit(file, tmp_path / "l.db", "one", "two")
    crew = RayCrew(audit.models, GIBIBYTE, 2, address=cluster)
    assert crew.size == 2
    found = audit.by(crew, kill_after=5)
    assert found == here
    assert len(audit.stored) == len(set(audit.stored)) == len(audit.runs)
    with pytest.raises(RayError, match="no free GPU"):
        RayCrew(audit.models, GIBIBYTE, 2, gpus=1, address=cluster)


def test_no_cluster_is_told_in_words() -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
    from hrx.audit.runner.executors.ray import RayCrew, RayError

    with pytest.raises(RayError, match="ray start --head"):
        RayCrew([], GIBIBYTE, 1, address="auto")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_listens_is_told_at_once(scheme: str) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
    from hrx.audit.runner.executors.ray import RayCrew, RayError

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        began = time.monotonic()
        with pytest.raises(RayError, match="ray start --head"):
            RayCrew([], GIBIBYTE, 1, address=f"{scheme}127.0.0.1:{taken.getsockname()[1]}")
    assert time.monotonic() - began < 10


def test_a_recheck_measures_evenly_spaced_runs_again_and_names_the_column_that_differs(
    file: Path, tmp_path: Path
) -> None:
    audit = Audit(file, tmp_path / "l.db", "one")
    bench = WorkerContext(audit.models, GIBIBYTE)
    audit.by(Here(bench))
    with Ledger.open(audit.ledger) as ledger:
        found = recheck(audit.runs, ledger, Here(bench), 3, told=lambda one: None)
        first, middle, last = (audit.runs.index(one.run) for one in found)
        assert (first, last) == (0, len(audit.runs) - 1)
        assert abs(middle - last / 2) <= 0.5
        assert all(one.same for one in found)
        with ledger.transaction():
            ledger._connection.execute("UPDATE runs SET rank = rank * 1.001 WHERE key = ?", (audit.runs[-1].key,))
        found = recheck(audit.runs, ledger, Here(bench), 3, told=lambda one: None)
    assert [one.same for one in found] == [True, True, False]
    assert [difference.column for difference in found[-1].differences] == ["rank"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
    ],
)
def test_a_batch_for_which_there_is_no_memory_is_halved_and_the_numbers_stay(error: Exception) -> None:
    torch.manual_seed(0)
    layer, sizes = torch.nn.Linear(32, 8), list[int]()
    most = [10**9]

    def predict(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        if len(x) > most[0]:
            raise error
        return layer(x)

    model, x = from_module(predict, name="m", limits=Limits()), torch.randn(4, 32)
    wanted = score(model, x, 8, protocol=Protocol(draws=2))
    assert max(sizes) > 100
    most[0] = 60
    sizes.clear()
    found = score(model, x, 8, protocol=Protocol(draws=2))
    assert found.g_own == pytest.approx(wanted.g_own, rel=1e-4)
    assert found.g_margin == pytest.approx(wanted.g_margin, rel=1e-4)
    too_large = [size for size in sizes if size > 60]
    assert too_large == sorted(too_large, reverse=True)
    assert len(set(too_large)) == len(too_large), "a size that did not fit was tried again"


def test_another_error_of_a_model_is_not_taken_for_want_of_memory() -> None:
    def predict(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    assert not out_of_memory(RuntimeError("shapes"))
    with pytest.raises(RuntimeError, match="multiplied"):
        Budget().forward(from_module(predict, name="m"), torch.ones(4, 8), 2)
    with pytest.raises(MemoryError):
        Budget().forward(from_module(_no_memory, name="m"), torch.ones(4, 8), 2)


def _no_memory(x: torch.Tensor) -> torch.Tensor:
    raise MemoryError
