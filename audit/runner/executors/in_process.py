"""Runs tasks in this process, one after the other."""

from concurrent.futures import Future

from hrx.audit.runner.worker import Task, TaskResult, WorkerContext, WorkerSettings, perform


class InProcessExecutor:
    """One worker: this process. `submit` returns when the task is done, so a task cannot be stopped."""

    size = 1
    timeout: float | None = None

    def __init__(self, settings: WorkerSettings):
        self._context = WorkerContext(settings)

    def submit(self, worker: int, task: Task) -> Future[TaskResult]:
        future: Future[TaskResult] = Future()
        future.set_result(perform(task, self._context))
        return future

    def stop(self, worker: int) -> None:
        raise RuntimeError("a task in this process cannot be stopped")

    def close(self) -> None:
        self._context.close()
