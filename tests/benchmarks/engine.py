"""The runner and the ledger: workers against one process, overhead of the driver, and a plan of the published size.

    python tests/benchmarks/engine.py [--json FILE] [--small]

Ratios compare measurements of one run of this file, so that a busy machine slows both sides. The plan of 16,729 runs is
executed with simulated results: only scheduler, ledger and reader are measured there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from hrx.adapters import Identity, Limits, locate
from hrx.audit import Protocol
from hrx.audit.admission import Check
from hrx.audit.memory import GIBIBYTE
from hrx.audit.runner.plan import STAR, ModelKey, Run, Setting, plan
from hrx.audit.runner.processes import ProcessExecutor
from hrx.audit.runner.run import RunResult
from hrx.audit.runner.scheduler import execute
from hrx.audit.runner.worker import (
    Admit,
    Executor,
    InProcessExecutor,
    LoadedModel,
    LoadModel,
    Task,
    TaskResult,
    WorkerSettings,
)
from hrx.gift_eval import Dataset, open_source
from hrx.gift_eval.series import StoredSeries
from hrx.records.ledger import Ledger
from hrx.records.quantities import QUANTITIES
from hrx.records.record import DONE
from hrx.reports import read, render_table

PUBLISHED = 16_729
Figures = dict[str, float]


class SimulatedExecutor:
    """Finishes every task at once, with random numbers as results."""

    size: int = 4
    timeout: float | None = None

    def __init__(self) -> None:
        self._done: list[tuple[int, TaskResult]] = []

    def submit(self, worker: int, task: Task) -> None:
        self._done.append((worker, self._result(task)))

    def results(self, seconds: float | None) -> list[tuple[int, TaskResult]]:
        done, self._done = self._done, []
        return done

    def stop(self, worker: int) -> None:
        raise AssertionError("a task that is done at once needs no stop")

    def _result(self, task: Task) -> TaskResult:
        if isinstance(task, LoadModel):
            return LoadedModel(Limits(), frozenset(), multivariate=False)
        if isinstance(task, Admit):
            return [Check("equivalence", str(task.run.setting), True, 0.0, 1e-5, "simulated")]
        values = np.random.default_rng(task.run.stream % 2**32).normal(size=len(QUANTITIES)).tolist()
        numbers = dict(zip(QUANTITIES, values, strict=True))
        steps = {f"{name}_steps": json.dumps(values[:8]) for name in ("g_own", "g_shuffled", "g_margin")}
        return RunResult(task.run.record(DONE).updated(**numbers, **steps, rank=1.5, beats_naive=1))

    def close(self) -> None:
        pass


def simulated_plan(runs: int, datasets: int) -> list[Run]:
    """So many runs of the seven settings over so many datasets, as in the published table."""
    values = np.random.default_rng(0).normal(size=(3, 900)).cumsum(axis=1)
    sources = [
        Dataset(f"d{i:02}/H", "H", 24, "", 3, lambda index: StoredSeries(f"T{index}", values[index]))
        for i in range(datasets)
    ]
    models = -(-runs // (datasets * 42))
    identities = [Identity(f"model-{i}", "simulated", f"model-{i}", f"{i:064}", "none 1") for i in range(models)]
    planned = plan(identities, sources, STAR, series=3, seeds=2, windows=4, protocol=Protocol())
    return planned[:runs]


def published_size(folder: Path, runs: int = PUBLISHED, datasets: int = 66) -> Figures:
    """Seconds to plan, execute, resume and read a plan of the published size."""
    seconds: Figures = {}
    planned = timed(seconds, "plan", lambda: simulated_plan(runs, datasets))
    timed(seconds, "keys", lambda: [run.key for run in planned])
    path = folder / "simulated.db"

    def run_until(count: int) -> int:
        with Ledger.open(path) as ledger, closing(SimulatedExecutor()) as executor:
            return measure(planned, ledger, executor, count)

    first = timed(seconds, "first half", lambda: run_until(runs // 2))
    with Ledger.open(path) as ledger:
        timed(seconds, "open: keys of finished runs", lambda: ledger.finished(run.key for run in planned))
        timed(seconds, "open: check of the file", lambda: ledger.integrity(1))
    one_more = timed(seconds, "resume until the first run is stored", lambda: run_until(1))
    rest = timed(seconds, "second half", lambda: run_until(runs))
    if first + one_more + rest != runs:
        raise AssertionError(f"{first} + {one_more} + {rest} runs were stored, not {runs}")
    query = "SELECT model, dataset, count(*), avg(g_own) FROM runs WHERE status = 'done' GROUP BY model, dataset"
    with Ledger.open(path, create=False) as ledger:
        timed(
            seconds,
            "table query: mean g_own by model and dataset",
            lambda: ledger._connection.execute(query).fetchall(),
        )
        keys = [run.key for run in planned[:42]]
        timed(seconds, "table query: the 42 runs of a dataset by key", lambda: ledger.records(keys))
    frame = timed(seconds, "whole ledger as a frame (hrx.reports.read)", lambda: read(path))
    if len(frame) != runs or frame["key"].nunique() != runs:
        raise AssertionError("a run is missing or stored twice")
    return seconds


def timed(seconds: Figures, name: str, call: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = call()
    seconds[name] = time.perf_counter() - start
    return result


def measure(runs: Sequence[Run], ledger: Ledger, executor: Executor, count: int | None = None) -> int:
    """Executes missing runs, all or until `count` are stored; returns how many were."""
    stored: list[Run] = []
    execute(
        runs, ledger, executor,
        progress=lambda run, record: stored.append(run),
        stopping=lambda: count is not None and len(stored) >= count,
    )  # fmt: skip
    return len(stored)


def workers_against_one(folder: Path, small: bool) -> Figures:
    """Wall time per run of the embedded model with one and with two workers, after loading and admission."""
    model = locate("bolt-mini")
    source = open_source("sample:elnino/M,co2/W" if small else "sample")
    runs = plan([model.identity], source, (Setting(96, 24),), series=3, seeds=3, windows=4, protocol=Protocol())
    figures: Figures = {"runs": len(runs)}
    for size, name in ((1, "one worker, per run"), (2, "two workers, per run")):
        executor = ProcessExecutor(WorkerSettings({ModelKey.of(model.identity): model}, 2 * GIBIBYTE), size)
        with closing(executor), Ledger.open(folder / f"{size}.db") as ledger:
            measure(runs, ledger, executor, size)
            start = time.perf_counter()
            rest = measure(runs, ledger, executor)
            figures[name] = (time.perf_counter() - start) / rest
    return figures | {"speed-up": figures["one worker, per run"] / figures["two workers, per run"]}


def overhead(folder: Path, small: bool) -> Figures:
    """Time that scheduling, writing and progress add to the runs' own time, in one process."""
    model = locate("bolt-mini")
    source = open_source("sample:elnino/M" if small else "sample")
    runs = plan([model.identity], source, (Setting(96, 24),), series=3, seeds=2, windows=4, protocol=Protocol())
    executor = InProcessExecutor(WorkerSettings({ModelKey.of(model.identity): model}, 2 * GIBIBYTE))
    with Ledger.open(folder / "overhead.db") as ledger:
        measure(runs, ledger, executor, 1)
        first = {record.key for record in ledger.records()}
        start = time.perf_counter()
        rest = measure(runs, ledger, executor)
        wall = time.perf_counter() - start
        records = ledger.records()
    compute = sum(record.seconds or 0.0 for record in records if record.key not in first)
    driver = wall - compute
    return {
        "runs": len(records),
        "compute per run": compute / rest,
        "driver per run": driver / rest,
        "share": driver / compute,
    }


def main() -> None:
    from side_by_side import machine, quiet  # a file beside this one, which the tests do not need

    parser = argparse.ArgumentParser(description="Benchmark of the runner and the ledger.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = (500, 4) if options.small else (PUBLISHED, 66)
        figures = {
            f"simulated plan of {size[0]} runs over {size[1]} datasets, seconds": published_size(folder, *size),
            "bolt-mini 96x24 in worker processes, seconds": workers_against_one(folder, options.small),
            "bolt-mini 96x24 in one process, seconds": overhead(folder, options.small),
        }
    for title, values in figures.items():
        print(render_table((title, ""), [(name, f"{value:.4g}") for name, value in values.items()]))
    environment = machine()
    print(", ".join(f"{name} {value}" for name, value in environment.items()))
    if options.json:
        options.json.write_text(json.dumps({"machine": environment} | figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
