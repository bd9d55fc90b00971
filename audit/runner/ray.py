"""Runs tasks on a Ray cluster, through a process of its own that is connected to it.

Ray ends a process whose node or head dies, installs signal handlers, and may wait for minutes. So that none of this
reaches the audit, `ray_driver.py` runs in a child process; here its messages become futures.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from hrx.audit.runner.processes import signals_blocked
from hrx.audit.runner.ray_driver import Died, Done, Lost, Ready, Refused, Request, Stop, Submit, drive
from hrx.audit.runner.worker import ExecutorLost, Task, TaskResult, WorkerDied, WorkerSettings
from hrx.errors import HrxError
from hrx.install import install_command

CONNECT_SECONDS = 5.0
"""How long a cluster may take to answer at its address; Ray itself retries for minutes."""
START_SECONDS = 60.0
"""How long Ray may take to connect to a cluster, or to start one."""
CHECK_SECONDS = 180.0
"""How long the nodes may take to report their versions: each imports torch."""
CLOSE_SECONDS = 15.0
_SPAWN = multiprocessing.get_context("spawn")


class RayError(HrxError):
    """A cluster that cannot be used."""


class RayExecutor:
    """As many tasks at a time as requested, or as the cluster has free CPUs (and GPUs)."""

    def __init__(
        self,
        settings: WorkerSettings,
        size: int | None,
        gpus: float = 0.0,
        address: str = "auto",
        timeout: float | None = None,
    ):
        if find_spec("ray") is None:
            raise RayError(f"--engine ray needs ray, which is not installed. Run: {install_command('ray')}")
        self.timeout = timeout
        self._address = address
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._futures: dict[int, Future[TaskResult]] = {}
        self._task_of: dict[int, int] = {}
        """The number of the last task of each worker."""
        self._lost = ""
        _check_reachable(address)
        self._pipe, other = _SPAWN.Pipe()
        request = Request(address, size, gpus, settings.portable())
        self._process = _SPAWN.Process(target=drive, args=(other, request), daemon=True)
        with signals_blocked():
            self._process.start()
        other.close()
        self._expect(START_SECONDS, "did not answer")
        self.size = self._expect(CHECK_SECONDS, "is connected, but its nodes did not report their versions").size
        threading.Thread(target=self._receive, daemon=True).start()

    def submit(self, worker: int, task: Task) -> Future[TaskResult]:
        future: Future[TaskResult] = Future()
        with self._lock:
            number = self._task_of[worker] = next(self._numbers)
            if not self._lost:
                self._futures[number] = future
                with suppress(OSError):  # a broken pipe is noticed by the receiver, which fails the future
                    self._pipe.send(Submit(number, worker, task))
                return future
        future.set_exception(ExecutorLost(self._lost))
        return future

    def stop(self, worker: int) -> None:
        with self._lock, suppress(OSError):
            self._futures.pop(self._task_of[worker], None)
            self._pipe.send(Stop(self._task_of[worker]))

    def close(self) -> None:
        """Disconnects from the cluster, which ends the tasks of this command."""
        self._lost = self._lost or "The connection to the Ray cluster was closed."
        self._pipe.close()
        self._process.join(CLOSE_SECONDS)
        assert self._process.pid, "it has been started"
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def _expect(self, seconds: float, problem: str) -> Ready:
        """The next message of the driver while it starts."""
        try:
            message: Any = self._pipe.recv() if self._pipe.poll(seconds) else None
        except (EOFError, OSError):
            message = Refused("Ray ended its own process.")
        if isinstance(message, Ready):
            return message
        self.close()
        if message is None:
            raise RayError(f"The Ray cluster at {self._address} {problem} within {seconds:g} s. {_ADVICE}")
        raise RayError(message.reason if message.final else _unreachable(self._address, message.reason))

    def _receive(self) -> None:
        """Turns the messages of the driver into results, until it or the cluster ends."""
        reason = f"The connection to the Ray cluster at {self._address} was lost: its head or this machine's node died."
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                break
            if isinstance(message, Lost):
                reason = message.reason
                break
            with self._lock:
                future = self._futures.pop(message.number, None)
            if future is not None:
                self._finish(future, message)
        with self._lock:
            self._lost = self._lost or reason
            waiting, self._futures = list(self._futures.values()), {}
        for future in waiting:
            future.set_exception(ExecutorLost(self._lost))

    @staticmethod
    def _finish(future: Future[TaskResult], message: Done | Died) -> None:
        if isinstance(message, Died):
            future.set_exception(WorkerDied(message.how))
        else:
            future.set_result(message.result)


_ADVICE = "Start one with `ray start --head`, give its --address, or let --address local start one for this command."


def _unreachable(address: str, reason: str) -> str:
    return f"No Ray cluster could be reached at {address}: {reason} {_ADVICE}"


def _check_reachable(address: str) -> None:
    """Raises where nothing listens at `HOST:PORT` or `ray://HOST:PORT`; `auto` and `local` are not checked."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise RayError(_unreachable(address, f"{error}.")) from error
