"""Runs tasks in local worker processes, each with its share of the cores.

Each worker is one process behind a pipe, so it is known which task a dead process had; a pool breaks as a whole. A
process serves one model, so that nothing a model changes in its process reaches another model.

On Linux, processes are forked from a server that has imported torch and computed nothing, which takes milliseconds.
A fork of this process may hang once torch has started its threads, and macOS forbids it; elsewhere they are spawned.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from hrx.adapters.contract import Identity
from hrx.adapters.formats.module import ModuleFile
from hrx.audit.runner.plan import ModelKey
from hrx.audit.runner.scheduler import in_order, out_of_time, run_tasks
from hrx.audit.runner.worker import (
    ExecutorLost,
    Task,
    TaskFailed,
    TaskResult,
    WorkerContext,
    WorkerDied,
    WorkerSettings,
    packed,
    perform,
    unpacked,
)
from hrx.errors import describe_error
from hrx.files import make_temporary

_SERVED = sys.platform == "linux"
_CONTEXT = multiprocessing.get_context("forkserver") if _SERVED else multiprocessing.get_context("spawn")
_PARENT_SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_SECONDS = 5.0
START_SECONDS = 60.0
"""How long the start of a worker is tried again where the server that forks it has died."""


class ProcessExecutor:
    """Local worker processes. One that dies is replaced."""

    def __init__(self, settings: WorkerSettings, size: int, timeout: float | None = None):
        self.size, self.timeout = size, timeout
        self._threads, self._settings = max(1, torch.get_num_threads() // size), settings.portable()
        self._workers: list[_Worker] = []
        try:
            for _ in range(size):
                self._workers.append(self._start())
        except ExecutorLost:
            self.close()
            raise

    @property
    def process_ids(self) -> list[int]:
        """Process ids, by worker."""
        return [worker.process_id for worker in self._workers]

    def submit(self, worker: int, task: Task) -> None:
        if not self._workers[worker].serves(task.model):
            self._workers[worker].close()
            self._workers[worker] = self._start()
        self._workers[worker].begin(task)

    def results(self, seconds: float | None) -> list[tuple[int, TaskResult]]:
        busy = {handle: at for at, worker in enumerate(self._workers) if worker.busy for handle in worker.handles}
        ready = {busy[handle] for handle in wait(busy, seconds)}  # type: ignore[index]
        return [(at, self._workers[at].finish()) for at in sorted(ready)]

    def stop(self, worker: int) -> None:
        self._workers[worker].close()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _start(self) -> _Worker:
        return _Worker(self._threads, self._settings)


class _Worker:
    """One worker process, and the pipe to it."""

    def __init__(self, threads: int, settings: WorkerSettings):
        self.busy = False
        self._model: ModelKey | None = None
        deadline = time.monotonic() + START_SECONDS
        while not self._started(threads, settings, deadline):
            time.sleep(0.05)
        assert self._process.pid
        self.process_id = self._process.pid

    def _started(self, threads: int, settings: WorkerSettings, deadline: float) -> bool:
        """Try to start the process; until the deadline, false where the server that forks it has died meanwhile."""
        self._pipe, other = _CONTEXT.Pipe()
        self._process: BaseProcess = _CONTEXT.Process(target=_work, args=(other, threads, settings))
        try:
            start_server()
            with closing(other), signals_blocked():
                self._process.start()
        except (EOFError, OSError) as error:
            self._pipe.close()
            if time.monotonic() < deadline:
                return False
            raise ExecutorLost(
                f"No worker process could be started within {START_SECONDS:g} s: {describe_error(error)}. Free memory, "
                "processes or file descriptors of this machine, or run the models here with --workers 0."
            ) from error
        return True

    @property
    def handles(self) -> tuple[Connection, int]:
        """What becomes readable when a task is done, or the process has ended."""
        return self._pipe, self._process.sentinel

    def serves(self, model: ModelKey) -> bool:
        """Whether the process can take a task of the model."""
        return not self._pipe.closed and self._model in (None, model)

    def begin(self, task: Task) -> None:
        self.busy, self._model = True, task.model
        with suppress(OSError):  # the process has ended: `finish` says how
            self._pipe.send_bytes(packed(task))

    def finish(self) -> TaskResult:
        """Return the result of the task, or how the process ended in the middle of it."""
        self.busy = False
        with suppress(EOFError, OSError):
            if self._pipe.poll():  # a process may end after it has sent its result
                return unpacked(self._pipe.recv_bytes())
        self._process.join(EXIT_SECONDS)
        died = WorkerDied(_death(self._process.exitcode))
        self.busy = True
        self.close()
        return died

    def close(self) -> None:
        """Ends the process. An idle one exits by itself and frees what its libraries share; a busy one is killed."""
        self._pipe.close()
        if self.busy:
            self._kill()
        else:  # a thread that its model has left behind may keep it from exiting
            timer = threading.Timer(EXIT_SECONDS, self._kill_if_running)
            timer.daemon = True
            timer.start()
        self.busy = False

    def _kill(self) -> None:
        """Kills the process and the processes that its model has started: they are in its process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process_id, signal.SIGKILL)
        with suppress(ProcessLookupError, ValueError):  # it may have no group of its own yet
            self._process.kill()

    def _kill_if_running(self) -> None:
        if self._process.exitcode is None:
            self._kill()


def _death(code: int | None) -> str:
    """How a process ended."""
    if code is None:
        return "it does not answer"
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}: out of memory?" if -code == signal.SIGKILL else name


@dataclass(frozen=True)
class _Identify:
    """Builds a user's model to compute its identity."""

    file: ModuleFile
    model = ModelKey("module", "")

    def run_in(self, context: WorkerContext) -> Identity:
        return self.file.identity


def identify(model: ModuleFile, timeout: float | None = None) -> Identity | TaskFailed:
    """The identity of a user's model, which is built in a process of its own to compute it, or why there is none."""
    with closing(ProcessExecutor(WorkerSettings({}, 0), 1, timeout)) as executor:
        ((_, result),) = run_tasks(in_order([_Identify(model)]), executor)
    if isinstance(result, TaskFailed) and not result.user_error:
        at = f"{model.file} cannot be loaded: "
        at += f"its function {model.factory} " if result.reason == out_of_time(timeout) else ""
        return result._replace(reason=f"{at}{result.reason}.", shown=f"{at}{result.shown or result.reason}.")
    assert isinstance(result, Identity | TaskFailed)
    return result


_LONGEST_PLACE = 50
"""Bytes of a folder for sockets: the path of a socket, with the names of folder and socket, has at most 107."""


def start_server() -> None:
    """Starts the process that workers are forked from, so that it imports torch while this process does other work."""
    if _SERVED:
        _CONTEXT.set_forkserver_preload([__name__, "torch._dynamo"])  # the second is imported by transformers
        with suppress(OSError), signals_blocked():  # the first worker says why it cannot be started
            _choose_socket_folder()
            forkserver.ensure_running()


def _choose_socket_folder() -> None:
    """Give multiprocessing a folder for its sockets that the next start removes where a `kill -9` has left it."""
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if "tempdir" not in config:
        place = Path(tempfile.gettempdir())
        place = place if len(os.fsencode(place)) <= _LONGEST_PLACE else Path("/tmp")
        _, folder = make_temporary(place, directory=True)  # locked until this process ends
        util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-100)
        config["tempdir"] = folder


@contextmanager
def signals_blocked() -> Iterator[None]:
    """A process started inside receives no signal of the group until it ignores them itself."""
    with warnings.catch_warnings():
        # The tracker of multiprocessing is replaced where it has died: nothing of hrx depends on it.
        warnings.filterwarnings("ignore", "resource_tracker: process died unexpectedly")
        resource_tracker.ensure_running()  # started later, it would unblock signals again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENT_SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def forget_start_method() -> None:
    """Lets the locks of libraries in this process be as in any other: multiprocessing names those of a forked or
    spawned worker in /dev/shm, where a `kill -9` of all processes would leave them.
    """
    if _SERVED:
        multiprocessing.set_start_method("fork", force=True)


def silence() -> None:
    """Discards what this process prints, by the descriptor too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _work(pipe: Connection, threads: int, settings: WorkerSettings) -> None:
    """Worker process: runs tasks until the pipe is closed."""
    os.setsid()  # a group for the processes that a model starts
    forget_start_method()
    # A signal to the whole group is for the parent to handle: it lets this task finish.
    for number in _PARENT_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    silence()  # the document on standard output and the progress on the terminal are not the model's
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    util.Finalize(None, _kill_group, exitpriority=-1000)
    torch.set_num_threads(threads)
    context = WorkerContext(settings)
    with suppress(EOFError):
        while True:
            task = unpacked(pipe.recv_bytes())
            pipe.send_bytes(packed(perform(task, context, everything=True)))


def _exit_with_parent() -> None:
    """Ends this process when its parent ends, however that happens."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _kill_group()


def _kill_group() -> None:
    """Ends this process and those that its model has started."""
    os.killpg(0, signal.SIGKILL)
