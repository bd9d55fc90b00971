"""Measures stored runs again and compares: `hrx audit --recheck`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hrx.audit.runner.executors import Executor
from hrx.audit.runner.plan import Run
from hrx.audit.runner.run import RunResult
from hrx.audit.runner.scheduler import ListQueue, run_tasks
from hrx.audit.runner.worker import MeasureRun, Task, TaskFailed, TaskResult
from hrx.gift_eval import spaced
from hrx.records.diff import Difference, differences
from hrx.records.ledger import Ledger
from hrx.records.record import DONE, FAILED


class Recheck(NamedTuple):
    """One stored run, measured again."""

    run: Run
    differences: Sequence[Difference]
    error: str = ""
    """Why it could not be measured again."""

    @property
    def same(self) -> bool:
        return not (self.differences or self.error)


def recheck(
    runs: Sequence[Run],
    ledger: Ledger,
    executor: Executor,
    count: int,
    *,
    on_result: Callable[[Recheck], None],
    stopping: Callable[[], bool] = lambda: False,
    on_start: Callable[[Task], None] = lambda task: None,
) -> list[Recheck]:
    """Measures `count` scored runs of the plan again, evenly spaced over it, and compares. Writes nothing."""
    stored = {record.key: record for record in ledger.records(run.key for run in runs)}
    scored = [run for run in runs if run.key in stored and stored[run.key].status == DONE]
    results: list[Recheck] = []

    def compare(task: Task, result: TaskResult) -> None:
        assert isinstance(task, MeasureRun)
        if isinstance(result, RunResult) and result.record.status != FAILED:
            checked = Recheck(task.run, differences(stored[task.run.key], result.record))
        else:
            checked = Recheck(task.run, (), _error(result))
        results.append(checked)
        on_result(checked)

    tasks = [MeasureRun(scored[index]) for index in spaced(len(scored), count)]
    run_tasks(ListQueue(tasks, compare), executor, stopping, on_start)
    return results


def _error(result: TaskResult) -> str:
    """Why a task has no measurement."""
    if isinstance(result, RunResult):
        return str(result.record.reason)
    return (
        result.shown or result.reason
        if isinstance(result, TaskFailed)
        else f"unexpected result {type(result).__name__}"
    )
