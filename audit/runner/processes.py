"""Runs tasks in local worker processes, each with its share of the cores.

Each worker is a `ProcessPoolExecutor` of one process: a process that dies breaks its own pool only, so the task that
killed it is known. A process serves one model, so that nothing a model changes in its process reaches another model.

On Linux, processes are forked from a server that has imported torch and computed nothing, which takes milliseconds.
A fork of this process may hang once torch has started its threads, and macOS forbids it; elsewhere they are spawned.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import wait
from typing import TypeVar

import torch

from hrx.adapters import Identity
from hrx.adapters.formats.module import ModuleFile
from hrx.audit.runner.plan import ModelKey
from hrx.audit.runner.worker import (
    Task,
    TaskFailed,
    TaskResult,
    WorkerContext,
    WorkerDied,
    WorkerSettings,
    died_twice,
    guarded,
    out_of_time,
    perform,
)

_SERVED = sys.platform == "linux"
_CONTEXT = multiprocessing.get_context("forkserver" if _SERVED else "spawn")
_PARENT_SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_SECONDS = 5.0
_context: WorkerContext | None = None
"""The context of this process, if it is a worker."""
Result = TypeVar("Result")


class ProcessExecutor:
    """Local worker processes. One that dies is replaced."""

    def __init__(self, settings: WorkerSettings, size: int, timeout: float | None = None):
        self.size, self.timeout = size, timeout
        self._settings = settings.portable()
        self._threads = max(1, torch.get_num_threads() // size)
        self._workers = [self._start() for _ in range(size)]
        self._models: list[ModelKey | None] = [None] * size

    def submit(self, worker: int, task: Task) -> Future[TaskResult]:
        if self._workers[worker].broken or self._models[worker] not in (None, task.model):
            self._workers[worker].close()
            self._workers[worker] = self._start()
        self._models[worker] = task.model
        return self._workers[worker].call(_run, task)

    def process_ids(self) -> list[int]:
        """Process ids, by worker."""
        return [worker.process_id() for worker in self._workers]

    def stop(self, worker: int) -> None:
        self._workers[worker].close()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _start(self) -> _Worker:
        return _Worker(self._threads, self._settings)


def identify(model: ModuleFile, timeout: float | None = None) -> Identity | TaskFailed:
    """The identity of a user's model, which is built in a process of its own to compute it, or why there is none."""
    result = _identify_once(model, timeout)
    if isinstance(result, WorkerDied):  # tried once more, as every task
        result = _identify_once(model, timeout)
    if isinstance(result, WorkerDied):
        result = TaskFailed(died_twice(result))
    if isinstance(result, TaskFailed) and not result.user_error:
        at = f"{model.file} cannot be loaded: "
        return result._replace(reason=f"{at}{result.reason}.", shown=f"{at}{result.shown or result.reason}.")
    return result


def _identify_once(model: ModuleFile, timeout: float | None) -> Identity | TaskFailed | WorkerDied:
    worker = _Worker(max(1, torch.get_num_threads()))
    try:
        return worker.call(_identify, model).result(timeout)
    except WorkerDied as error:
        return error
    except TimeoutError:
        return TaskFailed(f"its function {model.factory} {out_of_time(timeout)}")
    finally:
        worker.close()


def start_server() -> None:
    """Starts the process that workers are forked from, so that it imports torch while this process does other work."""
    if _SERVED:
        _CONTEXT.set_forkserver_preload([__name__, "torch._dynamo"])  # the second is imported by transformers
        with signals_blocked():
            forkserver.ensure_running()


class _Worker:
    """One worker process."""

    def __init__(self, threads: int, settings: WorkerSettings | None = None):
        start_server()
        self._pool = ProcessPoolExecutor(1, _CONTEXT, initializer=_initialise, initargs=(threads, settings))
        self._last: Future[object] | None = None
        self.broken = False
        with signals_blocked():  # the first task starts the process
            self._started = self._pool.submit(os.getpid)
        (self._process,) = self._pool._processes.values()  # for its exit code, which the pool does not report

    def process_id(self) -> int:
        return self._started.result()

    def call(self, function: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Calls a function in the process; raises `WorkerDied` where the process ends before the call returns."""
        outer: Future[Result] = Future()

        def finish(inner: Future[Result]) -> None:
            if inner.cancelled():
                outer.set_exception(WorkerDied("stopped"))
            elif isinstance(error := inner.exception(), BrokenProcessPool):
                self.broken, death = True, self._death()
                self._kill()
                outer.set_exception(WorkerDied(death))
            elif error is not None:
                outer.set_exception(error)
            else:
                outer.set_result(inner.result())

        self._last = outer  # type: ignore[assignment]
        try:
            self._pool.submit(function, *arguments).add_done_callback(finish)
        except BrokenProcessPool:
            self.broken = True
            outer.set_exception(WorkerDied(self._death()))
        return outer

    def close(self) -> None:
        """Ends the process. An idle one exits by itself and frees what its libraries share; a busy one is killed."""
        busy = self._last is not None and not self._last.done()
        self.broken = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if busy:
            self._kill()
        else:  # a thread that its model has left behind may keep it from exiting
            timer = threading.Timer(EXIT_SECONDS, self._kill_if_running)
            timer.daemon = True
            timer.start()

    def _kill(self) -> None:
        """Kills the process and the processes that its model has started: they are in its process group."""
        assert self._process.pid, "the first call has started it"
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError, ValueError):  # it may have no group of its own yet
            self._process.kill()

    def _kill_if_running(self) -> None:
        if self._process.exitcode is None:
            self._kill()

    def _death(self) -> str:
        """How the process ended."""
        code = self._process.exitcode
        if code is None:
            return "it does not answer"
        if code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name
        return f"{name}: out of memory?" if -code == signal.SIGKILL else name


@contextmanager
def signals_blocked() -> Iterator[None]:
    """A process started inside receives no signal of the group until it ignores them itself."""
    resource_tracker.ensure_running()  # started later, it would unblock signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENT_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _initialise(threads: int, settings: WorkerSettings | None) -> None:
    """Prepares a worker process."""
    global _context
    os.setsid()  # a group for the processes that a model starts
    # A signal to the whole group is for the parent to handle: it lets this task finish.
    for number in _PARENT_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # the document on standard output and the progress on the terminal are not the model's
        os.dup2(nowhere, stream)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    util.Finalize(None, _kill_group, exitpriority=-1000)
    torch.set_num_threads(threads)
    if settings is not None:
        _context = WorkerContext(settings)


def _exit_with_parent() -> None:
    """Ends this process when its parent ends, however that happens."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _kill_group()


def _kill_group() -> None:
    """Ends this process and those that its model has started."""
    os.killpg(0, signal.SIGKILL)


def _run(task: Task) -> TaskResult:
    assert _context is not None, "a task runs after the initialiser"
    return perform(task, _context, everything=True)


def _identify(model: ModuleFile) -> Identity | TaskFailed:
    return guarded(lambda: model.identity, everything=True)
