"""Runs tasks on a Ray cluster.

Tasks are Ray tasks, not actors: Ray places each on a free CPU, runs it again elsewhere when its worker or node dies,
and reuses worker processes, each of which keeps the last model loaded.
"""

import logging
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch

from hrx.audit.runner.worker import Task, TaskResult, WorkerContext, WorkerSettings, perform, portable_task
from hrx.errors import HrxError
from hrx.install import install_command

CONNECT_SECONDS = 5.0
"""How long a cluster may take to answer at its address; Ray itself retries for minutes."""
LOCAL = "local"
_context: tuple[WorkerSettings, WorkerContext] | None = None
"""The settings and context of this process, if it is a Ray worker."""


class RayError(HrxError):
    """A cluster that cannot be used."""


class RayExecutor:
    """As many tasks at a time as requested, or as the cluster has free CPUs (and GPUs)."""

    retries = 0  # Ray retries by itself, on another node if necessary

    def __init__(self, settings: WorkerSettings, size: int | None, gpus: float = 0.0, address: str = "auto"):
        self._ray = _connect(address)
        errors = self._ray.exceptions
        self.worker_errors: tuple[type[BaseException], ...] = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
        )
        free = self._ray.available_resources()
        limits = [int(free.get("CPU", 0))] + ([int(free.get("GPU", 0) / gpus)] if gpus else [])
        self.size = min([*limits, *([size] if size else [])])
        if self.size < 1:
            self.close()
            raise RayError(f"The Ray cluster at {address} has no free {'GPU' if gpus else 'CPU'}: {dict(free)}.")
        self._settings = self._ray.put(settings.portable())
        # max_calls=0: Ray ends a worker that has used a GPU after each task, and the next would load the model again.
        self._run = self._ray.remote(num_cpus=1, num_gpus=gpus, max_retries=1, max_calls=0)(_run)

    def submit(self, worker: int, task: Task) -> Future[TaskResult]:
        future: Future[TaskResult] = self._run.remote(self._settings, portable_task(task)).future()
        return future

    def close(self) -> None:
        """Disconnects from the cluster, which ends this audit's tasks."""
        self._ray.shutdown()


def _run(settings: WorkerSettings, task: Task) -> TaskResult:
    """Runs a task in a Ray worker, which keeps its context between tasks."""
    global _context
    if _context is None or _context[0] != settings:
        torch.set_num_threads(1)
        _context = settings, WorkerContext(settings)
    return perform(task, _context[1])


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise RayError(f"--engine ray needs ray, which is not installed. Run: {install_command('ray')}") from None
    local = {"include_dashboard": False} if address == LOCAL else {}
    try:
        _check_reachable(address)
        with _own_signals():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **local)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise RayError(
            f"No Ray cluster could be reached at {address}: {first} Start one with `ray start --head`, give its "
            "--address, or let --address local start one for this audit."
        ) from error
    return ray


def _check_reachable(address: str) -> None:
    """Raises OSError where nothing listens at `HOST:PORT` or `ray://HOST:PORT`; `auto` and `local` are not checked."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restores the signal handlers: Ray's would end the driver in the middle of a run."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)
