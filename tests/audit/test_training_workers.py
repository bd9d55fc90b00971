"""`hrx train` in this process and in worker processes: the same weights, even where a process dies.

A training on Ray is in test_executors.py, which starts a cluster.
"""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from helpers.fork_server import processes_with, running, wait_until

from hrx.audit.runner.processes import ProcessExecutor
from hrx.audit.runner.worker import Task
from hrx.audit.training.train import TrainModel
from hrx.cli.main import main

DATA = ["--data", "sample:sf_temps", "--settings", "24x8"]
QUICK = [*DATA, "--epochs", "2", "--batches", "40", "--seeds", "2"]


def name(backbone: str, seed: int) -> str:
    return f"{backbone}-sf_temps_H-24x8-seed{seed}"


def contents(out: Path) -> dict[str, bytes]:
    """Every file of a directory of models, by its path."""
    return {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of QUICK, trained in this process."""
    out = tmp_path_factory.mktemp("in-process") / "out"
    assert main(["train", "Linear", "CNN", *QUICK, "--workers", "0", "--out", str(out)]) == 0
    return out


class KillingExecutor(ProcessExecutor):
    """Kills the worker of some trainings when they start, as many times as given."""

    deadly: Mapping[str, int]

    def submit(self, worker: int, task: Task) -> None:
        super().submit(worker, task)
        assert isinstance(task, TrainModel)
        if left := self.deadly.get(task.name, 0):
            type(self).deadly = {**self.deadly, task.name: left - 1}
            os.kill(self.process_ids[worker], signal.SIGKILL)


@pytest.mark.slow
def test_a_training_whose_worker_dies_twice_is_named_and_the_same_command_trains_it(
    tmp_path: Path, in_process: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["train", "Linear", "CNN", *QUICK, "--workers", "2", "--out", str(out)]
    with monkeypatch.context() as patch:
        KillingExecutor.deadly = {name("CNN", 0): 2, name("CNN", 1): 1}
        patch.setattr("hrx.api.audit_plan.ProcessExecutor", KillingExecutor)
        assert main(command) == 3
    captured = capsys.readouterr()
    assert f"{name('CNN', 0)} is not trained: its worker process died twice (SIGKILL: out of memory?)" in captured.err
    assert "hrx train: 1 of 4 models are not trained. Repeat the command to try them again." in captured.err
    assert "3 trained models in" in captured.out
    assert sorted(path.name for path in out.iterdir()) == [name("CNN", 1), name("Linear", 0), name("Linear", 1)]
    kept = {file: (out / file).stat().st_mtime_ns for file in contents(out)}
    assert main(command) == 0
    assert "4 models in" in (error := capsys.readouterr().err)
    assert "1 to train, 3 done" in error
    assert {file: (out / file).stat().st_mtime_ns for file in kept} == kept
    assert contents(out) == contents(in_process)


@pytest.mark.slow
def test_after_a_kill_of_the_command_complete_models_stay_no_process_does_and_it_continues(
    tmp_path: Path, in_process: Path
) -> None:
    out, mark = tmp_path / "out", uuid.uuid4().hex
    command = ["train", "Linear", "CNN", *QUICK, "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "hrx.cli", *command],
        env=os.environ | {"HRX_TEST_MARK": mark}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: (out / name("Linear", 0)).exists() or process.poll() is not None)
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(running, processes_with(mark))))
    before = {file: data for file, data in contents(out).items() if not file.startswith(".hrx-")}
    assert before
    assert main(command) == 0
    after = {file: data for file, data in contents(out).items() if not file.startswith(".hrx-")}
    assert after.items() >= before.items()
    assert after == contents(in_process)


def test_a_training_that_diverges_is_named_with_its_reason_and_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    fast = ["--learning-rate", "1e30", "--workers", "0", "--out", str(out)]
    assert main(["train", "Linear", *QUICK, *fast]) == 3
    captured = capsys.readouterr()
    for seed in range(2):
        assert (
            f"{name('Linear', seed)} is not trained: The error on the validation split is not finite. "
            "Give a lower --learning-rate." in captured.err
        )
    assert captured.out == ""
    assert not out.exists()


def test_a_training_over_its_time_is_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = ["--data", "sample:sf_temps", "--settings", "2048x512", "--epochs", "999999", "--seeds", "1"]
    limit = ["--workers", "1", "--timeout", "0.5s", "--out", str(tmp_path / "out")]
    assert main(["train", "CNN", *long, *limit]) == 3
    assert "seed0 is not trained: took longer than 0.5 s, the limit of --timeout" in capsys.readouterr().err


def test_no_worker_and_a_cluster_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--workers", "0", "--engine", "ray", "--out", str(tmp_path / "out")]
    assert main(["train", "Linear", *QUICK, *both]) == 2
    assert "--workers 0 runs the models in this process, --engine ray elsewhere." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
