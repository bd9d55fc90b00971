"""Runs tasks on a Ray cluster: plain Ray tasks, which Ray schedules and retries.

Ray ends the process that is connected to a cluster when its head or this machine's node dies, and installs signal
handlers. So a child process is connected, and does nothing but pass tasks and results on; here its messages become
results. Ray reuses worker processes, each of which keeps the last model loaded.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

import torch

from hrx import __version__
from hrx.adapters.contract import ADAPTER_VERSION
from hrx.audit.protocol import PROTOCOL_VERSION
from hrx.audit.runner.processes import forget_start_method, signals_blocked, silence
from hrx.audit.runner.scheduler import RETRIES, died_twice
from hrx.audit.runner.worker import (
    ExecutorLost,
    Task,
    TaskFailed,
    TaskResult,
    WorkerContext,
    WorkerSettings,
    packed,
    perform,
    unpacked,
)
from hrx.errors import HrxError, describe_error, install_command, stored_reason

LOCAL = "local"
CONNECT_SECONDS = 5.0
"""How long a cluster may take to answer at its address; Ray itself retries for minutes."""
START_SECONDS = 60.0
"""How long Ray may take to connect to a cluster, or to start one."""
CHECK_SECONDS = 180.0
"""How long the nodes may take to report their versions: each imports torch."""
CLOSE_SECONDS = 15.0
WATCH_SECONDS = 5.0
_ADVICE = "Start one with `ray start --head`, give its --address, or let --address local start one for this command."
_SPAWN = multiprocessing.get_context("spawn")
_context: WorkerContext | None = None
"""Context of this process, if it is a Ray worker."""


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
        self._workers: dict[int, int] = {}
        """Worker of each task that runs, by the number of the task."""
        _check_reachable(address)
        self._pipe, other = _SPAWN.Pipe()
        arguments = other, settings.portable(), address, size, gpus
        self._process = _SPAWN.Process(target=_drive, args=arguments, daemon=True)
        with signals_blocked():
            self._process.start()
        other.close()
        self._started(START_SECONDS, "did not answer")
        self.size = self._started(CHECK_SECONDS, "is connected, but its nodes did not report their versions")

    def submit(self, worker: int, task: Task) -> None:
        number = next(self._numbers)
        self._workers[number] = worker
        with suppress(OSError):  # `results` notices that the pipe is broken
            self._pipe.send((number, packed(task)))

    def results(self, seconds: float | None) -> list[tuple[int, TaskResult]]:
        try:
            if not self._pipe.poll(seconds):
                return []
            number, result = self._pipe.recv()
        except (EOFError, OSError):
            number, result = None, "its head or this machine's node died"
        if number is None:
            raise ExecutorLost(f"The connection to the Ray cluster at {self._address} was lost: {result}.")
        worker = self._workers.pop(number, None)
        return [] if worker is None else [(worker, unpacked(result))]  # None: it was stopped meanwhile

    def stop(self, worker: int) -> None:
        for number in [number for number, at in self._workers.items() if at == worker]:
            del self._workers[number]
            with suppress(OSError):
                self._pipe.send((number, None))

    def close(self) -> None:
        """Disconnects from the cluster, which ends the tasks of this command."""
        self._pipe.close()
        self._process.join(CLOSE_SECONDS)
        assert self._process.pid, "it has been started"
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def _started(self, seconds: float, problem: str) -> int:
        """Return the next message of the child process while it starts."""
        try:
            if self._pipe.poll(seconds):
                message = self._pipe.recv()
            else:
                message = RayError(f"The Ray cluster at {self._address} {problem} within {seconds:g} s. {_ADVICE}")
        except (EOFError, OSError):
            message = _unreachable(self._address, "Ray ended its own process.")
        if isinstance(message, RayError):
            self.close()
            raise message
        return int(message)


def _unreachable(address: str, reason: str) -> RayError:
    return RayError(f"No Ray cluster could be reached at {address}: {reason} {_ADVICE}")


def _check_reachable(address: str) -> None:
    """Raises where nothing listens at `HOST:PORT` or `ray://HOST:PORT`; `auto` and `local` are not checked."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise _unreachable(address, f"{error}.") from error


def _drive(pipe: Connection, settings: WorkerSettings, address: str, size: int | None, gpus: float) -> None:
    """Child process: connects, then passes tasks and results on until the pipe is closed."""
    os.setsid()  # signals of the terminal are for the audit
    forget_start_method()
    silence()  # Ray prints what fails, and traces of its own: the audit says it in a sentence
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))  # Ray itself repeats a task for ever that uses it up
    try:
        ray = _connect(address)
        pipe.send(0)
        size = _check_cluster(ray, settings, address, size, gpus)
    except RayError as error:
        pipe.send(error)
    except Exception as error:  # Ray raises anything where its head dies meanwhile
        pipe.send(_unreachable(address, f"{describe_error(error).partition(': ')[2].rstrip('.')}."))
    else:
        pipe.send(size)
        _pass_on(ray, pipe, settings, gpus)
        ray.shutdown()


def _connect(address: str) -> Any:
    import ray

    options: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    host = address.removeprefix("ray://").rpartition(":")[0]
    if host in ("127.0.0.1", "localhost") and not address.startswith("ray://"):
        options["_node_ip_address"] = "127.0.0.1"  # otherwise Ray looks for a node at this machine's outer address
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    return ray


def _check_cluster(ray: Any, settings: WorkerSettings, address: str, size: int | None, gpus: float) -> int:
    """Return the number of workers; raises where there is none, or a node would compute with other versions."""
    free = dict(ray.available_resources())
    room = int(min(free.get("CPU", 0.0), free.get("GPU", 0.0) / gpus if gpus else float("inf")))
    if room < 1:
        raise RayError(f"The Ray cluster at {address} has no free {'GPU' if gpus else 'CPU'}: {free}.")
    here, remote = versions(settings), ray.remote(num_cpus=0, max_retries=0)(versions)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    asked = [
        remote.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(settings) for node in nodes
    ]
    for node, reference in zip(nodes, asked, strict=True):
        name = f"Node {node['NodeManagerAddress']} ({node['NodeID'][:8]}) of the Ray cluster"
        try:
            different = different_versions(here, ray.get(reference))
        except Exception as error:
            raise RayError(f"{name} did not report its versions: {describe_error(error)}.") from error
        if different:
            advice = "Install the same versions on every node."
            raise RayError(f"{name} has other versions than this machine: {different}. {advice}")
    return min(room, size or room)


def _pass_on(ray: Any, pipe: Connection, settings: WorkerSettings, gpus: float) -> None:
    """Runs each task that arrives, and sends back its result. A task without content is to be stopped."""
    # max_calls=0: Ray ends a worker that has used a GPU after each task, and the next would load the model again.
    run = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES, max_calls=0)(run_task)
    shared, running, sending = ray.put((settings, versions(settings))), dict[int, Any](), threading.Lock()

    def finish(number: int, future: Any) -> None:
        running.pop(number)
        error = future.exception()
        if error is None:
            result = future.result()
        elif isinstance(error, ray.exceptions.RayTaskError):
            result = packed(TaskFailed(stored_reason(error.cause), shown=describe_error(error.cause)))
        else:
            result = packed(TaskFailed(died_twice(type(error).__name__)))
        send((number, result))

    def send(message: tuple[int | None, object]) -> None:
        with sending, suppress(OSError):  # the audit has ended; the loop below notices it
            pipe.send(message)

    with suppress(EOFError, OSError):
        while True:
            if not pipe.poll(WATCH_SECONDS):
                if not any(node["Alive"] and node["Resources"].get("CPU") for node in ray.nodes()):
                    return send((None, "no node of it is alive"))
                continue
            number, task = pipe.recv()
            if task is not None:
                running[number] = run.remote(shared, task)
                running[number].future().add_done_callback(partial(finish, number))
            elif number in running:
                ray.cancel(running[number], force=True)


def distributions(settings: WorkerSettings) -> tuple[str, ...]:
    """Return the distributions that compute: those of the models, from `Identity.library`, and `settings.libraries`."""
    libraries = [*(model.identity.library for model in settings.models.values()), settings.libraries]
    named = {part.rpartition(" ")[0] for library in libraries for part in library.split(", ")}
    return tuple(sorted((named - {""}) | {"torch", "numpy"}))


def versions(settings: WorkerSettings) -> dict[str, str]:
    """Return the versions in this process of everything that decides the numbers."""
    found = {"hrx": __version__, "adapters": ADAPTER_VERSION, "protocol": PROTOCOL_VERSION}
    for name in distributions(settings):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def different_versions(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """`torch 2.9.0 instead of 2.10.0, …`; empty where all agree."""
    return ", ".join(
        f"{name} {there.get(name, 'not installed')} instead of {version}"
        for name, version in here.items()
        if there.get(name) != version
    )


def run_task(shared: tuple[WorkerSettings, Mapping[str, str]], task: bytes) -> bytes:
    """Runs a task in a Ray worker, which keeps its context between tasks."""
    global _context
    settings, expected = shared
    if _context is None:
        # Again, since a node may have joined after the check of all of them.
        if different := different_versions(expected, versions(settings)):
            return packed(TaskFailed(f"its Ray node has other versions: {different}"))
        torch.set_num_threads(1)
        _context = WorkerContext(settings)
    return packed(perform(unpacked(task), _context, everything=True))
