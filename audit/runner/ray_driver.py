"""The process that is connected to a Ray cluster, submits the tasks of an audit and watches its nodes.

Tasks are Ray tasks, not actors: Ray reuses worker processes, each of which keeps the last model loaded. Each task is
sent to the node of its worker's number, so that it is known which tasks a lost node had: Ray itself may take minutes
to report them.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from hrx.audit.runner.worker import Task, TaskFailed, TaskResult, WorkerContext, WorkerSettings, perform
from hrx.errors import HrxError, describe_error, stored_reason

LOCAL = "local"
WATCH_SECONDS = 1.0
PROBE_SECONDS = 2.0
NODE_SECONDS = 8.0
"""A node that has not answered for so long is lost; its tasks run elsewhere."""
HEAD_SECONDS = 15.0
"""A head that has not answered for so long ends the audit, before Ray ends the process after a minute."""
NODE_CHECK_SECONDS = 120.0
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What a client of gRPC sends first, with empty settings; a server that runs answers it."""
_context: tuple[WorkerSettings, WorkerContext] | None = None
"""The settings and context of this process, if it is a Ray worker."""


class Request(NamedTuple):
    """What the driver is started with."""

    address: str
    size: int | None
    gpus: float
    settings: WorkerSettings


class Submit(NamedTuple):
    """To the driver: run a task."""

    number: int
    worker: int
    task: Task


class Stop(NamedTuple):
    """To the driver: stop a task."""

    number: int


class Ready(NamedTuple):
    """From the driver: connected; then, with the number of workers, ready for tasks."""

    size: int = 0


class Refused(NamedTuple):
    """From the driver: the cluster cannot be used."""

    reason: str
    final: bool = False
    """Whether the reason is a whole sentence for the user."""


class Done(NamedTuple):
    """From the driver: the result of a task."""

    number: int
    result: TaskResult


class Died(NamedTuple):
    """From the driver: the worker of a task ended."""

    number: int
    how: str


class Lost(NamedTuple):
    """From the driver: the cluster is gone."""

    reason: str


@dataclass
class Node:
    """A node of the cluster, as the driver reaches it."""

    id: str
    host: str
    port: int
    answered: float
    """When it last answered, on the clock `time.monotonic`."""
    lost: bool = False

    @property
    def name(self) -> str:
        return f"{self.host} ({self.id[:8]})"


def drive(pipe: Connection, request: Request) -> None:
    """The child process: connects, then runs tasks until the pipe is closed."""
    os.setsid()  # signals of the terminal are for the audit
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        ray = _connect(request.address)
    except (ConnectionError, ValueError, RuntimeError, OSError, ImportError) as error:
        pipe.send(Refused(f"{describe_error(error).partition(': ')[2].rstrip('.')}."))
        return
    pipe.send(Ready())
    try:
        driver = _Driver(ray, pipe, request)
    except HrxError as error:
        pipe.send(Refused(str(error), final=True))
    else:
        pipe.send(Ready(driver.size))
        # What Ray prints when a head dies is not for the user: the audit says it in a sentence.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        driver.run()
    ray.shutdown()


def _connect(address: str) -> Any:
    import ray

    options: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    host = address.removeprefix("ray://").rpartition(":")[0]
    if host in ("127.0.0.1", "localhost") and not address.startswith("ray://"):
        options["_node_ip_address"] = "127.0.0.1"  # otherwise Ray looks for a node at this machine's outer address
    os.dup2(2, 1)
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    return ray


class _Driver:
    """The running tasks, the nodes they are on, and whether those answer."""

    def __init__(self, ray: Any, pipe: Connection, request: Request):
        self._ray, self._pipe = ray, pipe
        self._sending = threading.Lock()
        now, alive = time.monotonic(), [node for node in ray.nodes() if node["Alive"]]
        self._nodes = {
            node["NodeID"]: Node(node["NodeID"], node["NodeManagerAddress"], node["NodeManagerPort"], now)
            for node in alive
        }
        self._slots = _slots(ray, alive, request.gpus)[: request.size]
        self.size = len(self._slots)
        if not self._slots:
            free = dict(ray.available_resources())
            kind = "GPU" if request.gpus else "CPU"
            raise HrxError(f"The Ray cluster at {request.address} has no free {kind}: {free}.")
        report = version_report(distributions(request.settings))
        _check_versions(ray, [self._nodes[one] for one in dict.fromkeys(self._slots)], report)
        client = request.address.removeprefix("ray://")
        head = client if client != request.address else ray.get_runtime_context().gcs_address
        self._head = Node("head", head.rpartition(":")[0], int(head.rpartition(":")[2]), time.monotonic())
        self._address = request.address
        self._settings = ray.put(CheckedSettings(request.settings, report()))
        # max_calls=0: Ray ends a worker that has used a GPU after each task, and the next would load the model again.
        self._run = ray.remote(num_cpus=1, num_gpus=request.gpus, max_retries=0, max_calls=0)(run_task)
        self._running: dict[int, tuple[Any, str]] = {}
        """Reference and node of each task."""

    def run(self) -> None:
        """Handles messages until the pipe is closed."""
        threading.Thread(target=self._watch, daemon=True).start()
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                return
            if isinstance(message, Submit):
                self._submit(message)
            else:
                self._cancel(message.number)

    def _submit(self, message: Submit) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = self._slots[message.worker]
        if self._nodes[node].lost:
            alive = [one for one in self._slots if not self._nodes[one].lost]
            if not alive:
                return self._lose(f"No node of the Ray cluster at {self._address} answers any more.")
            node = self._slots[message.worker] = alive[message.worker % len(alive)]
        strategy = NodeAffinitySchedulingStrategy(node, soft=True)
        reference = self._run.options(scheduling_strategy=strategy).remote(self._settings, message.task)
        self._running[message.number] = reference, node
        reference.future().add_done_callback(lambda future: self._finish(message.number, future))
        return None

    def _finish(self, number: int, future: Any) -> None:
        _, place = self._running.pop(number, (None, None))
        if place is None:
            return  # stopped, or given up with its node
        error = future.exception()
        if error is None:
            self._send(Done(number, future.result()))
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            self._send(Done(number, TaskFailed(stored_reason(error.cause), shown=describe_error(error.cause))))
        else:
            threading.Thread(target=self._report_death, args=(number, self._nodes[place], error), daemon=True).start()

    def _report_death(self, number: int, node: Node, error: BaseException) -> None:
        """Tells a dead worker from a dead node, so that the task does not return there."""
        before = node.answered
        _probe(node)
        if node.answered == before:
            self._give_up(node)
        self._send(Died(number, type(error).__name__))

    def _cancel(self, number: int) -> None:
        reference, _ = self._running.pop(number, (None, ""))
        if reference is not None:
            self._ray.cancel(reference, force=True)

    def _watch(self) -> None:
        """Gives up the tasks of a node that does not answer, and everything with the head."""
        while True:
            time.sleep(WATCH_SECONDS)
            everything = [self._head, *(node for node in self._nodes.values() if not node.lost)]
            probes = [threading.Thread(target=_probe, args=(node,), daemon=True) for node in everything]
            for probe in probes:
                probe.start()
            for probe in probes:
                probe.join()
            now = time.monotonic()
            if now - self._head.answered > HEAD_SECONDS:
                self._lose(f"The head of the Ray cluster at {self._address} does not answer any more.")
            for node in everything[1:]:
                if now - node.answered > NODE_SECONDS:
                    self._give_up(node)

    def _give_up(self, node: Node) -> None:
        node.lost = True
        for number in [number for number, (_, place) in list(self._running.items()) if place == node.id]:
            if self._running.pop(number, None) is not None:
                self._send(Died(number, f"node {node.name} does not answer"))

    def _lose(self, reason: str) -> None:
        self._send(Lost(reason))
        os.killpg(0, signal.SIGKILL)  # also what Ray has started here: its own shutdown waits for the head

    def _send(self, message: Done | Died | Lost) -> None:
        with self._sending:
            try:
                self._pipe.send(message)
            except OSError:  # the audit has ended; `run` notices it
                return


def _slots(ray: Any, nodes: Sequence[Mapping[str, Any]], gpus: float) -> list[str]:
    """The node of each worker: one per free CPU (and GPUs), dealt out to the nodes in turn."""

    def room(resources: Mapping[str, float]) -> int:
        workers = int(resources.get("CPU", 0))
        return min(workers, int(resources.get("GPU", 0) / gpus)) if gpus else workers

    left = {node["NodeID"]: room(node["Resources"]) for node in nodes}
    dealt = [node for turn in range(max(left.values(), default=0)) for node in left if left[node] > turn]
    return dealt[: room(ray.available_resources())]


def _probe(node: Node) -> None:
    """Notes that a node has answered: with anything, even by closing the connection."""
    try:
        with socket.create_connection((node.host, node.port), timeout=PROBE_SECONDS) as connection:
            connection.sendall(_HTTP2)
            connection.settimeout(PROBE_SECONDS)
            connection.recv(1)
        node.answered = time.monotonic()
    except OSError:
        return


def _check_versions(ray: Any, nodes: Sequence[Node], report: Callable[[], dict[str, str]]) -> None:
    """Raises where a node would compute with other versions than this process plans with."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = report()
    remote = ray.remote(num_cpus=0, max_retries=0)(report)
    asked = [
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote()
        for node in nodes
    ]
    for node, reference in zip(nodes, asked, strict=True):
        try:
            there = ray.get(reference, timeout=NODE_CHECK_SECONDS)
        except Exception as error:
            raise HrxError(
                f"Node {node.name} of the Ray cluster did not report its versions: {describe_error(error)}."
            ) from error
        if different := different_versions(here, there):
            raise HrxError(
                f"Node {node.name} of the Ray cluster has other versions than this machine: {different}. "
                "Install the same versions on every node."
            )


def distributions(settings: WorkerSettings) -> tuple[str, ...]:
    """The distributions that compute: those of the models, from `Identity.library`, and `settings.libraries`."""
    libraries = [*(model.identity.library for model in settings.models), settings.libraries]
    named = {part.rpartition(" ")[0] for library in libraries for part in library.split(", ")}
    return tuple(sorted((named - {""}) | {"torch", "numpy"}))


def version_report(names: tuple[str, ...]) -> Callable[[], dict[str, str]]:
    """A function that reports versions. It is sent by value, so it runs on a node with any hrx, or without one."""

    def report() -> dict[str, str]:
        from importlib.metadata import PackageNotFoundError, version

        found = {}
        for name in names:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = "not installed"
        try:
            from hrx import __version__
            from hrx.adapters.contract import ADAPTER_VERSION
            from hrx.audit.protocol import PROTOCOL_VERSION

            own = {"hrx": __version__, "adapters": ADAPTER_VERSION, "protocol": PROTOCOL_VERSION}
        except Exception as error:
            own = {"hrx": f"not usable ({type(error).__name__})"}
        return {**own, **found}

    return report


def different_versions(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """`torch 2.9.0 instead of 2.10.0, …`; empty where all agree."""
    return ", ".join(
        f"{name} {there.get(name, 'not installed')} instead of {version}"
        for name, version in here.items()
        if there.get(name) != version
    )


class CheckedSettings(NamedTuple):
    """The settings of a worker, and the versions that it must have."""

    settings: WorkerSettings
    versions: Mapping[str, str]


def run_task(checked: CheckedSettings, task: Task) -> TaskResult:
    """Runs a task in a Ray worker, which keeps its context between tasks."""
    global _context
    settings = checked.settings
    if _context is None or _context[0] != settings:
        # Again, since a node may have joined after the check of all of them.
        if different := different_versions(checked.versions, version_report(distributions(settings))()):
            return TaskFailed(f"its Ray node has other versions: {different}")
        torch.set_num_threads(1)
        _context = settings, WorkerContext(settings)
    return perform(task, _context[1], everything=True)
