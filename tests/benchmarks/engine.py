"""How fast the engine is: workers against one process, what the driver costs, and a plan of the published size.

    python tests/benchmarks/engine.py [--json FILE] [--small]

Measures ratios within one run of this file, so that a busy machine slows both sides. The plan of 16,729 runs is carried
out with records that cost nothing to make: what is measured there is the engine, the ledger and the reader.
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
import torch

from hrx.adapters import Identity, Limits, Located, locate
from hrx.audit import Protocol
from hrx.audit.admission.checks import Check
from hrx.audit.allocator import keep_freed_memory
from hrx.audit.ledger.record import DONE
from hrx.audit.ledger.store import Ledger
from hrx.audit.memory import GIBIBYTE
from hrx.audit.runner.executors.in_process import Answer, Crew, Here
from hrx.audit.runner.executors.processes import Workers
from hrx.audit.runner.plan import STAR, Run, Setting, plan
from hrx.audit.runner.run import Outcome, outline
from hrx.audit.runner.scheduler import execute
from hrx.audit.runner.worker import Admit, Admitted, Choose, Introduce, Introduced, Task, WorkerContext
from hrx.audit.scoring.quantities import QUANTITIES
from hrx.audit.way import DECLARED, Way
from hrx.gift_eval import Dataset, open_source
from hrx.gift_eval.series import StoredSeries as Row
from hrx.reports import read, render_table

PUBLISHED = 16_729
Figures = dict[str, float]


class Given:
    """A located model of which only the name is needed."""

    def __init__(self, identity: Identity):
        self.identity = identity

    def load(self) -> Any:
        raise NotImplementedError


class Simulated:
    """A crew that answers every task at once, with numbers that look like measured ones."""

    size = 4

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}

    def give(self, seat: int, task: Task) -> None:
        self._tasks[seat] = task

    def wait(self) -> Sequence[Answer]:
        tasks, self._tasks = self._tasks, {}
        return [Answer(seat, self._answer(task)) for seat, task in tasks.items()]

    def _answer(self, task: Task) -> Introduced | Admitted | Way | Outcome:
        if isinstance(task, Introduce):
            return Introduced(Limits(), frozenset(), multivariate=False)
        if isinstance(task, Admit):
            return Admitted((Check("equivalence", str(task.subject.setting), True, 0.0, 1e-5, "simulated"),))
        if isinstance(task, Choose):
            return DECLARED
        values = np.random.default_rng(task.run.stream % 2**32).normal(size=len(QUANTITIES)).tolist()
        numbers = dict(zip(QUANTITIES, values, strict=True))
        steps = {f"{name}_steps": json.dumps(values[:8]) for name in ("g_own", "g_shuffled", "g_margin")}
        return Outcome(outline(task.run, DONE, None) | numbers | steps | {"rank": 1.5, "beats_naive": 1})

    def close(self) -> None:
        self._tasks.clear()


def simulated_plan(runs: int, datasets: int) -> tuple[list[Run], list[Located]]:
    """So many runs of the seven settings over so many datasets, as the published table has them."""
    values = np.random.default_rng(0).normal(size=(3, 900)).cumsum(axis=1)
    made = [
        Dataset(f"d{i:02}/H", "H", 24, "", 3, lambda index: Row(f"T{index}", values[index])) for i in range(datasets)
    ]
    models = -(-runs // (datasets * 42))
    identities = [Identity(f"model-{i}", "simulated", f"model-{i}", f"{i:064}", "none 1") for i in range(models)]
    planned = plan(identities, made, STAR, series=3, seeds=2, windows=4, protocol=Protocol())
    return planned[:runs], [Given(identity) for identity in identities]


def published_size(folder: Path, runs: int = PUBLISHED, datasets: int = 66) -> Figures:
    """A plan of the published size: planned, half done, resumed, and read as a table."""
    seconds: Figures = {}
    planned, models = timed(seconds, "plan", lambda: simulated_plan(runs, datasets))
    timed(seconds, "keys", lambda: [run.key for run in planned])
    path = folder / "simulated.db"

    def carry_out(until: int) -> int:
        done: list[str] = []
        with Ledger.open(path) as ledger, closing(Simulated()) as crew:
            execute(
                planned, models, ledger, crew,
                progress=lambda run, record: done.append(run.key), stopping=lambda: len(done) >= until,
            )  # fmt: skip
        return len(done)

    first = timed(seconds, "first half", lambda: carry_out(runs // 2))
    with Ledger.open(path) as ledger:
        timed(seconds, "opening: finished runs", ledger.finished)
        timed(seconds, "opening: soundness of the file", ledger.damage)
    one_more = timed(seconds, "resumed, until the first run is stored", lambda: carry_out(1))
    rest = timed(seconds, "second half", lambda: carry_out(runs))
    if first + one_more + rest != runs:
        raise AssertionError(f"{first} + {one_more} + {rest} runs were carried out, not {runs}")
    with Ledger.open(path, create=False) as ledger:
        query = 'SELECT model, dataset, count(*), avg(g_own) FROM runs WHERE status = "done" GROUP BY model, dataset'
        timed(
            seconds,
            "table query: mean g_own by model and dataset",
            lambda: ledger._connection.execute(query).fetchall(),
        )
        keys = [run.key for run in planned[:42]]
        timed(seconds, "table query: one dataset's 42 runs by key", lambda: ledger.records(keys))
    frame = timed(seconds, "whole ledger as a frame (hrx.reports.read)", lambda: read(path))
    if len(frame) != runs or frame["key"].nunique() != runs:
        raise AssertionError("a run is missing or there twice")
    return seconds


def timed(seconds: Figures, name: str, call: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = call()
    seconds[name] = time.perf_counter() - began
    return result


def workers_against_one(folder: Path, small: bool) -> Figures:
    """Wall time of a run of the embedded model, by one worker process and by two, once all have made one."""
    model = locate("bolt-mini")
    source = open_source("sample:elnino/M,co2/W" if small else "sample")
    runs = plan([model.identity], source, (Setting(96, 24),), series=3, seeds=3, windows=4, protocol=Protocol())
    found: Figures = {"runs": len(runs)}
    for size, name in ((1, "one worker, a run"), (2, "two workers, a run")):
        with closing(Workers([model], 2 * GIBIBYTE, size)) as crew, Ledger.open(folder / f"{size}.db") as ledger:
            crew._threads = 1
            begin(runs, model, ledger, crew, size)
            left, began = len(runs) - len(ledger.finished()), time.perf_counter()
            execute(runs, [model], ledger, crew, progress=lambda run, record: None)
            found[name] = (time.perf_counter() - began) / left
    return found | {"speed-up": found["one worker, a run"] / found["two workers, a run"]}


def begin(runs: Sequence[Run], model: Located, ledger: Ledger, crew: Crew, count: int) -> None:
    """Makes the first few runs, and what comes before them: loading, admission, the choice of how to compute."""
    done: list[Run] = []
    execute(
        runs, [model], ledger, crew,
        progress=lambda run, record: done.append(run), stopping=lambda: len(done) >= count,
    )  # fmt: skip


def overhead(folder: Path, small: bool) -> Figures:
    """What the driver adds to the runs' own time: planning the work, writing, and telling the progress."""
    model = locate("bolt-mini")
    source = open_source("sample:elnino/M" if small else "sample")
    runs = plan([model.identity], source, (Setting(96, 24),), series=3, seeds=2, windows=4, protocol=Protocol())
    bench = WorkerContext([model], 2 * GIBIBYTE)
    path = folder / "overhead.db"
    with Ledger.open(path) as ledger:
        begin(runs, model, ledger, Here(bench), 1)
        before = sum(float(record["seconds"] or 0) for record in ledger.records())
        began = time.perf_counter()
        execute(runs, [model], ledger, Here(bench), progress=lambda run, record: None)
        wall = time.perf_counter() - began
        compute = sum(float(record["seconds"] or 0) for record in ledger.records()) - before
        made = len(ledger.records())
    each = (wall - compute) / max(1, made - 1)
    share = (wall - compute) / compute
    return {"runs": made, "compute per run": compute / max(1, made - 1), "driver per run": each, "share": share}


def batches(model_name: str, lookback: int, horizon: int, small: bool) -> Figures:
    """Forecasts per second by batch size: whether batches larger than one run's would gain anything."""
    keep_freed_memory()
    model = locate(model_name).load()
    x = torch.randn(4096, lookback, generator=torch.Generator().manual_seed(0))
    found: Figures = {}
    with torch.no_grad():
        for size in (64, 256, 512, 1024, 4096)[: 2 if small else 5]:
            model.forward(x[:size], horizon)
            count, began = 0, time.perf_counter()
            while count < (1 if small else 3) * max(size, 1024):
                model.forward(x[:size], horizon)
                count += size
            found[f"batch {size}"] = count / (time.perf_counter() - began)
    return found


def main() -> None:
    from side_by_side import machine, quiet  # beside this file: the tests, which import it, have no need of it

    parser = argparse.ArgumentParser(description="Benchmark of the engine.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = (500, 4) if options.small else (PUBLISHED, 66)
        found = {
            f"simulated plan of {size[0]} runs over {size[1]} datasets, seconds": published_size(folder, *size),
            "workers, one thread each, seconds": workers_against_one(folder, options.small),
            "driver in one process, seconds": overhead(folder, options.small),
            "bolt-mini 96x24, forecasts per second": batches("bolt-mini", 96, 24, options.small),
        }
    for title, figures in found.items():
        print(render_table((title, ""), [(name, f"{value:.4g}") for name, value in figures.items()]))
    where = machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    if options.json:
        options.json.write_text(json.dumps({"machine": where} | found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
