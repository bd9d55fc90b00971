"""Runs tasks in local worker processes, each with its share of the cores.

Each worker is a `ProcessPoolExecutor` of one process: a process that dies breaks its own pool only, so the task that
killed it is known. Processes are spawned, since a fork after torch has started its threads may hang.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import wait

import torch

from hrx.audit.runner.worker import Task, TaskResult, WorkerContext, WorkerSettings, perform, portable_task

_SPAWN = multiprocessing.get_context("spawn")
_PARENT_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_context: WorkerContext | None = None
"""The context of this process, if it is a worker."""


class ProcessExecutor:
    """Local worker processes. One that dies is replaced."""

    worker_errors: tuple[type[BaseException], ...] = (BrokenProcessPool,)
    retries = 1

    def __init__(self, settings: WorkerSettings, size: int):
        self.size = size
        self._settings = settings.portable()
        self._threads = max(1, torch.get_num_threads() // size)
        self._workers = [self._start() for _ in range(size)]

    def submit(self, worker: int, task: Task) -> Future[TaskResult]:
        try:
            return self._workers[worker].submit(portable_task(task))
        except BrokenProcessPool:
            self._workers[worker].close()
            self._workers[worker] = self._start()
            return self._workers[worker].submit(portable_task(task))

    def process_ids(self) -> list[int]:
        """Process ids, by worker."""
        return [worker.process_id.result() for worker in self._workers]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _start(self) -> _Worker:
        return _Worker(self._settings, self._threads)


class _Worker:
    def __init__(self, settings: WorkerSettings, threads: int):
        self._pool = ProcessPoolExecutor(1, _SPAWN, initializer=_initialise, initargs=(settings, threads))
        with _signals_blocked():  # the first task starts the process
            self.process_id = self._pool.submit(os.getpid)
        self._last: Future[TaskResult] | None = None

    def submit(self, task: Task) -> Future[TaskResult]:
        self._last = self._pool.submit(_run, task)
        return self._last

    def close(self) -> None:
        """Ends the process. An idle one exits by itself and frees what its libraries share; a busy one is killed."""
        busy = self._last is not None and not self._last.done()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if busy:
            with suppress(BrokenProcessPool, ProcessLookupError):
                os.kill(self.process_id.result(), signal.SIGKILL)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A process started inside receives no signal of the group until it ignores them itself."""
    resource_tracker.ensure_running()  # started later, it would unblock signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENT_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _initialise(settings: WorkerSettings, threads: int) -> None:
    """Prepares a worker process."""
    global _context
    # A signal to the whole group is for the parent to handle: it lets this task finish.
    for number in _PARENT_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _context = WorkerContext(settings)


def _exit_with_parent() -> None:
    """Ends this process when its parent ends, however that happens."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run(task: Task) -> TaskResult:
    assert _context is not None, "a task runs after the initialiser"
    return perform(task, _context)
