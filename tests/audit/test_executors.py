"""The same plan in one process, in worker processes and on Ray: the same numbers, even where a worker dies."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import forkserver
from pathlib import Path

import pytest
from helpers.fork_server import running, wait_until
from helpers.records import VOLATILE

from hrx.adapters import ModelError, locate
from hrx.audit import Protocol
from hrx.audit.memory import GIBIBYTE
from hrx.audit.runner.plan import ModelKey, Run, Setting, plan
from hrx.audit.runner.processes import ProcessExecutor
from hrx.audit.runner.scheduler import execute, in_order, run_tasks
from hrx.audit.runner.worker import (
    Executor,
    InProcessExecutor,
    LoadedModel,
    LoadModel,
    MeasureRun,
    WorkerSettings,
)
from hrx.cli.main import main
from hrx.gift_eval import open_source
from hrx.gift_eval.series import Series
from hrx.records.ledger import Ledger
from hrx.records.merge import differences
from hrx.records.record import COLUMNS, Record

LOADS = 12
"""Tasks that need the model."""

MODEL = """
import multiprocessing, os, signal, torch
from pathlib import Path

FOLDER = Path(__file__).parent

class Line(torch.nn.Module):
    def __init__(self, seed, fault=""):
        super().__init__()
        torch.manual_seed(seed)
        self.layer, self.fault = torch.nn.Linear(24, 8), fault

    def forward(self, x):
        # A run has two different windows, and memory is measured with copies of one.
        if self.fault and len(x) == 2 and not torch.equal(x[0], x[1]) and x[0, 0] > 23:
            self.fail()
        return self.layer(x[:, -24:])

    def fail(self):
        if self.fault == "dies once":
            try:
                (FOLDER / "died").touch(exist_ok=False)
            except FileExistsError:
                return
        if self.fault == "blocks":
            (FOLDER / "blocked").touch()
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)

def one(): return Line(1)
def two(): return Line(2)
def dies_once(): return Line(1, "dies once")
def deadly(): return Line(3, "dies")
def blocking(): return Line(4, "blocks")
def unseeded(): return Line(int.from_bytes(os.urandom(4), "big"))
def locking():
    model = Line(5)
    model.lock = multiprocessing.RLock()  # as progress bars have one
    return model
def counted():
    with (FOLDER / f"loaded by {os.getpid()}").open("a") as file:
        file.write("x")
    return Line(1)
"""
SETTINGS = (Setting(24, 8), Setting(32, 8))
NUMBERS = {column.name for column in COLUMNS if column.kind == "REAL" or column.name.endswith("_steps")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.py"
    path.write_text(MODEL)
    return path


class DistributedAudit:
    """A plan of one or more models, and a ledger for it."""

    def __init__(self, file: Path, *factories: str):
        self.models = [locate(f"module:{file}:{factory}") for factory in factories]
        self.ledger = file.parent / f"{'-'.join(factories)}.db"
        self.settings = WorkerSettings({ModelKey.of(model.identity): model for model in self.models}, GIBIBYTE)
        self.stored: list[str] = []
        self.runs = plan(
            [model.identity for model in self.models],
            open_source("sample:elnino/M,co2/W,seattle/D"),
            SETTINGS,
            series=2,
            seeds=2,
            windows=2,
            protocol=Protocol(draws=2),
        )

    def run_on(self, executor: Executor, kill_after: int = 0) -> dict[str, Record]:
        """The records by key; the process of worker 0 is killed once so many runs are stored."""

        def progress(run: Run, record: Record) -> None:
            self.stored.append(record.key)
            if len(self.stored) == kill_after:
                assert isinstance(executor, ProcessExecutor)
                os.kill(executor.process_ids[0], signal.SIGKILL)

        with closing(executor), Ledger.open(self.ledger) as ledger:
            execute(self.runs, ledger, executor, progress=progress)
            return {record.key: record for record in ledger.records()}


def reference(file: Path, *factories: str) -> dict[str, Record]:
    """The records of one process."""
    (file.parent / "died").touch()  # a model that dies once has done so
    audit = DistributedAudit(file, *factories)
    audit.ledger = file.parent / "reference.db"
    return audit.run_on(InProcessExecutor(audit.settings))


def assert_same(records: dict[str, Record], expected: dict[str, Record]) -> None:
    """Numbers agree within a relative 1e-4 (absolute 1e-6), everything else exactly."""
    assert set(records) == set(expected)
    for key, record in records.items():
        assert [str(difference) for difference in differences(record, expected[key])] == []
        for column in COLUMNS:
            if column.name not in NUMBERS and column.name not in VOLATILE:
                assert getattr(record, column.name) == getattr(expected[key], column.name), column.name


def starts_high(run: Run) -> bool:
    """Whether a faulty model fails on this run."""
    windows = run.cut_windows()
    assert isinstance(run.series, Series)
    first = run.series.values[windows.starts[0] - run.setting.lookback]
    return len(windows.x) == 2 and bool(first > 23)


def assert_deadly_runs_failed(audit: DistributedAudit, records: dict[str, Record]) -> None:
    deadly = {run.key for run in audit.runs if starts_high(run)}
    assert 0 < len(deadly) < len(records) == len(audit.runs)
    for key, record in records.items():
        assert record.status == ("failed" if key in deadly else "done")
        if key in deadly:
            assert "its worker process died twice" in str(record.reason)


@pytest.mark.slow
def test_two_workers_one_of_which_is_killed_give_the_numbers_of_one_process(file: Path) -> None:
    audit = DistributedAudit(file, "one", "two")
    executor = ProcessExecutor(audit.settings, 2)
    records = audit.run_on(executor, kill_after=5)
    assert {record.status for record in records.values()} == {"done"}
    assert_same(records, reference(file, "one", "two"))
    assert len(audit.stored) == len(set(audit.stored)) == len(audit.runs)


@pytest.mark.slow
def test_a_run_whose_worker_dies_once_is_measured_by_another(file: Path) -> None:
    audit = DistributedAudit(file, "dies_once")
    records = audit.run_on(ProcessExecutor(audit.settings, 1))
    assert (file.parent / "died").exists()
    assert {record.status for record in records.values()} == {"done"}
    assert len(audit.stored) == len(set(audit.stored)) == len(audit.runs)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked from a server on Linux only")
def test_the_death_of_the_server_that_workers_are_forked_from_costs_a_retry(file: Path) -> None:
    audit = DistributedAudit(file, "one", "two")  # a process serves one model, so the second one needs a new fork

    def kill_the_server(run: Run, record: Record) -> None:
        if len(audit.stored) == 0:
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
        audit.stored.append(record.key)

    with closing(ProcessExecutor(audit.settings, 1)) as executor, Ledger.open(audit.ledger) as ledger:
        execute(audit.runs, ledger, executor, progress=kill_the_server)
        assert {record.status for record in ledger.records()} == {"done"}
    assert len(audit.stored) == len(audit.runs)


@pytest.mark.slow
def test_a_run_that_kills_its_worker_twice_is_failed_and_the_others_are_done(file: Path) -> None:
    audit = DistributedAudit(file, "deadly")
    audit.runs = audit.runs[:3]
    assert_deadly_runs_failed(audit, audit.run_on(ProcessExecutor(audit.settings, 1)))


def test_a_signal_to_a_worker_that_is_still_starting_is_ignored(file: Path) -> None:
    audit = DistributedAudit(file, "one")
    with closing(ProcessExecutor(audit.settings, 1)) as executor:
        (process,) = executor.process_ids
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process, number)
        assert executor.process_ids == [process]
        executor.submit(0, LoadModel(ModelKey.of(audit.models[0].identity), frozenset()))
        ((_, result),) = executor.results(None)
        assert executor.process_ids == [process]
    assert type(result).__name__ == "LoadedModel"


def test_closing_stops_a_worker_in_the_middle_of_a_task(file: Path) -> None:
    audit = DistributedAudit(file, "blocking")
    executor = ProcessExecutor(audit.settings, 1)
    (process,) = executor.process_ids
    executor.submit(0, MeasureRun(next(run for run in audit.runs if starts_high(run))))
    wait_until((file.parent / "blocked").exists)
    assert running(process)
    executor.close()
    wait_until(lambda: not running(process))


@pytest.mark.slow
def test_an_idle_worker_exits_by_itself_and_leaves_no_semaphore_behind(file: Path) -> None:
    script = file.parent / "script.py"
    script.write_text(
        "from hrx.adapters import locate\n"
        "from hrx.audit.runner.processes import ProcessExecutor\n"
        "from hrx.audit.runner.plan import ModelKey\n"
        "from hrx.audit.runner.worker import LoadModel, WorkerSettings\n"
        "if __name__ == '__main__':\n"
        f"    model = locate('module:{file}:locking')\n"
        "    key = ModelKey.of(model.identity)\n"
        "    executor = ProcessExecutor(WorkerSettings({key: model}, 2**30), 1)\n"
        "    task = LoadModel(key, frozenset())\n"
        "    executor.submit(0, task)\n"
        "    ((_, result),) = executor.results(None)\n"
        "    print(type(result).__name__, *executor.process_ids)\n"
        "    executor.close()\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    result, process = ended.stdout.split()
    assert result == "LoadedModel"
    assert not running(int(process))
    assert ended.stderr == ""


def test_a_model_that_has_other_weights_in_each_process_is_refused(file: Path) -> None:
    audit = DistributedAudit(file, "unseeded")
    with pytest.raises(ModelError, match="has other weights each time it is built"):
        audit.run_on(ProcessExecutor(audit.settings, 1))


def load_often(audit: DistributedAudit, executor: Executor) -> None:
    """Run tasks that need the model and nothing else."""
    tasks = [LoadModel(ModelKey.of(audit.models[0].identity), frozenset())] * LOADS
    with closing(executor):
        assert [type(result) for _, result in run_tasks(in_order(tasks), executor)] == [LoadedModel] * LOADS


def loads(file: Path) -> dict[int, int]:
    """How often other processes than this one have loaded the model `counted`, by process id."""
    counts = {int(path.name.split()[-1]): len(path.read_text()) for path in file.parent.glob("loaded by *")}
    del counts[os.getpid()]
    return counts


@pytest.mark.slow
def test_a_worker_process_loads_the_model_once_for_all_its_tasks(file: Path) -> None:
    audit = DistributedAudit(file, "counted")
    executor = ProcessExecutor(audit.settings, 1)
    (process,) = executor.process_ids
    load_often(audit, executor)
    assert loads(file) == {process: 1}


@pytest.mark.slow
def test_a_ray_cluster_on_this_machine_is_started_and_ended_for_one_audit(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
    from hrx.audit.runner.ray import LOCAL, RayExecutor

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        audit = DistributedAudit(file, "one")
        records = audit.run_on(RayExecutor(audit.settings, 1, address=LOCAL))
    assert not ray.is_initialized()
    assert_same(records, reference(file, "one"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray cluster of two CPUs."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
    from ray.cluster_utils import Cluster

    # A short path: Ray puts sockets into it. A temporary one: Ray leaves its logs behind.
    with (
        pytest.MonkeyPatch.context() as environment,
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
    ):
        environment.setenv("RAY_TMPDIR", folder)
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        yield nodes.address
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.slow
def test_a_ray_cluster_whose_worker_dies_in_the_middle_gives_the_numbers_of_one_process(
    file: Path, cluster: str
) -> None:
    from hrx.audit.runner.ray import RayExecutor

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    audit = DistributedAudit(file, "dies_once", "two")
    executor = RayExecutor(audit.settings, 2, address=cluster)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert executor.size == 2
    records = audit.run_on(executor)
    assert (file.parent / "died").exists()
    assert {record.status for record in records.values()} == {"done"}
    assert len(audit.stored) == len(set(audit.stored)) == len(audit.runs)
    assert_same(records, reference(file, "dies_once", "two"))


@pytest.mark.slow
def test_a_run_that_kills_its_ray_worker_twice_is_failed_and_the_others_are_done(file: Path, cluster: str) -> None:
    from hrx.audit.runner.ray import RayExecutor

    audit = DistributedAudit(file, "deadly")
    audit.runs = audit.runs[:3]
    assert_deadly_runs_failed(audit, audit.run_on(RayExecutor(audit.settings, 1, address=cluster)))


@pytest.mark.slow
def test_a_ray_worker_process_loads_a_model_once_for_all_its_tasks(file: Path, cluster: str) -> None:
    from hrx.audit.runner.ray import RayExecutor

    audit = DistributedAudit(file, "counted")
    load_often(audit, RayExecutor(audit.settings, 1, address=cluster))
    assert set(loads(file).values()) == {1}
    assert len(loads(file)) < LOADS


@pytest.mark.slow
def test_a_training_on_a_ray_cluster_gives_the_weights_of_one_process(tmp_path: Path, cluster: str) -> None:
    quick = ["--data", "sample:sf_temps", "--settings", "24x8", "--epochs", "1", "--batches", "20", "--seeds", "1"]
    ray = ["--engine", "ray", "--address", cluster, "--workers", "1"]
    for out, options in (("here", ["--workers", "0"]), ("there", ray)):
        assert main(["train", "CNN", *quick, *options, "--out", str(tmp_path / out)]) == 0
    here, there = (next((tmp_path / out).iterdir()) for out in ("here", "there"))
    assert {file.name: file.read_bytes() for file in there.iterdir()} == {
        file.name: file.read_bytes() for file in here.iterdir()
    }
    assert len(list(here.iterdir())) == 3


@pytest.mark.slow
def test_a_cluster_without_a_free_gpu_is_reported(file: Path, cluster: str) -> None:
    from hrx.audit.runner.ray import RayError, RayExecutor

    with pytest.raises(RayError, match="has no free GPU"):
        RayExecutor(DistributedAudit(file, "one").settings, 2, gpus=1, address=cluster)


def test_without_a_cluster_the_error_names_the_command_that_starts_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
    from helpers.ray_nodes import find_no_cluster

    from hrx.audit.runner import ray as executor_module
    from hrx.audit.runner.ray import RayError, RayExecutor

    monkeypatch.setattr(executor_module, "_drive", find_no_cluster)
    with pytest.raises(RayError, match=r"at auto: Could not find any running Ray instance\. Start one with `ray start"):
        RayExecutor(DistributedAudit(file, "one").settings, 1)


def test_versions_that_differ_are_named() -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
    from hrx.audit.runner.ray import different_versions, distributions, versions

    model = locate("bolt-mini")
    identity = model.identity
    settings = WorkerSettings({ModelKey.of(identity): model}, GIBIBYTE)
    assert set(distributions(settings)) == {"chronos-forecasting", "transformers", "torch", "numpy"}
    here = versions(settings)
    assert f"transformers {here['transformers']}" in identity.library
    assert different_versions(here, here) == ""
    there = {name: version for name, version in here.items() if name != "transformers"} | {"adapters": "0"}
    expected = f"adapters 0 instead of {here['adapters']}, transformers not installed instead of {here['transformers']}"
    assert different_versions(here, there) == expected


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_listens_is_reported_without_waiting_for_ray(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'hrx[ray]'")
    from hrx.audit.runner import ray as executor_module
    from hrx.audit.runner.ray import CONNECT_SECONDS, RayError, RayExecutor

    monkeypatch.setattr(executor_module, "_drive", lambda *_: pytest.fail("Ray retries for minutes"))
    assert CONNECT_SECONDS <= 10
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        with pytest.raises(RayError, match="ray start --head"):
            RayExecutor(WorkerSettings({}, GIBIBYTE), 1, address=f"{scheme}127.0.0.1:{taken.getsockname()[1]}")
