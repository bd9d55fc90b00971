"""Where tasks run: in this process, in worker processes, or on a Ray cluster."""

from concurrent.futures import Future
from typing import Protocol

from hrx.audit.runner.worker import Task, TaskResult


class WorkerDied(Exception):
    """The worker ended in the middle of a task; the text says how."""


class ExecutorLost(Exception):
    """No worker is left and none can be started. A sentence for the user: everything that was stored stays."""


class Executor(Protocol):
    """A fixed number of workers, numbered from 0, each running one task at a time.

    The future of a task raises `WorkerDied` if its worker ended, and `ExecutorLost` if all of them did.
    """

    size: int
    timeout: float | None
    """Seconds that a task may take; None where tasks cannot be stopped or are not limited."""

    def submit(self, worker: int, task: Task) -> Future[TaskResult]:
        """Starts a task on an idle worker. A task of the same model as the last one finds the model loaded."""

    def stop(self, worker: int) -> None:
        """Stops the task of a worker, however busy it is. The next task finds a new worker."""

    def close(self) -> None:
        """Stops all workers at once, even in the middle of a task."""


def died_twice(error: WorkerDied) -> str:
    """Why a task has no result after its second worker died."""
    return f"its worker process died twice ({error})"


def out_of_time(timeout: float | None) -> str:
    """Why a task was stopped."""
    return f"took longer than {timeout:g} s, the limit of --timeout, and was stopped"
