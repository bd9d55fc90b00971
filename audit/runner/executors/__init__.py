"""Where tasks run: in this process, in worker processes, or on a Ray cluster."""

from concurrent.futures import Future
from typing import Protocol

from hrx.audit.runner.worker import Task, TaskResult


class Executor(Protocol):
    """A fixed number of workers, numbered from 0, each running one task at a time."""

    size: int
    worker_errors: tuple[type[BaseException], ...]
    """Exceptions of a future that mean that the worker died, not the task's own result."""
    retries: int
    """How often the scheduler submits a task again after its worker died."""

    def submit(self, worker: int, task: Task) -> Future[TaskResult]:
        """Starts a task on an idle worker. A task of the same model as the last one finds the model loaded."""

    def close(self) -> None:
        """Stops all workers at once, even in the middle of a task."""
