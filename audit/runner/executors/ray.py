"""The same work on a Ray cluster: one actor per loaded model, and the ledger where it was, with the driver.

An actor takes one task at a time, so no more work is out than can be done. One that dies, with its process or its
whole node, is replaced, and its task comes back as lost; where the cluster has no room for another, the crew goes on
with the rest. Ray is imported when a crew is made.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from hrx.adapters import Located
from hrx.audit.runner.executors.in_process import Answer, Lost
from hrx.audit.runner.worker import ModelKey, Result, Task, WorkerContext, perform, portable, sendable
from hrx.errors import HrxError

POLL_SECONDS = 0.5
"""How long a signal may have to wait."""
START_SECONDS = 120.0
"""How long an actor may take to find a place."""
REACH_SECONDS = 5.0
"""How long a cluster may take to answer at its address; Ray itself would try for minutes."""
LOCAL = "local"


class RayError(HrxError):
    """A cluster that cannot be used."""


class Desk:
    """What an actor is: a bench that is told what to do."""

    def __init__(self, models: Sequence[Located], memory: int):
        torch.set_num_threads(1)
        self._bench = WorkerContext(models, memory)

    def do(self, task: Task) -> Result:
        return perform(task, self._bench)

    def process(self) -> int:
        return os.getpid()


@dataclass
class _Seat:
    actor: Any = None
    who: ModelKey | None = None
    """The model that the actor is for."""
    ready: Any = None
    """The answer that it gives once it has a place, until then."""
    since: float = 0.0
    result: Any = field(default=None)


class RayCrew:
    """A crew of actors: as many as asked for, or one for each CPU that is free, and no more than have a place."""

    def __init__(
        self, models: Iterable[Located], memory: int, size: int | None, gpus: float = 0.0, address: str = "auto"
    ):
        self._ray = _connected(address)
        self._models, self._memory = [portable(model) for model in models], memory
        free = self._ray.available_resources()
        places = [int(free.get("CPU", 0))] + ([int(free.get("GPU", 0) / gpus)] if gpus else [])
        self.size = min([*places, *([size] if size else [])])
        if self.size < 1:
            self.close()
            raise RayError(f"The Ray cluster at {address} has no free {'GPU' if gpus else 'CPU'}: {dict(free)}.")
        self._hire = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(Desk)
        self._seats = [_Seat() for _ in range(self.size)]

    def give(self, seat: int, task: Task) -> None:
        place = self._seats[seat]
        if place.actor is None or place.who != task.who:
            self._dismiss(place)
            place.actor, place.who = self._hire.remote(self._models, self._memory), task.who
            place.ready, place.since = place.actor.process.remote(), time.monotonic()
        place.result = place.actor.do.remote(sendable(task))

    def wait(self) -> Sequence[Answer]:
        while True:
            out = {place.result: seat for seat, place in enumerate(self._seats) if place.result is not None}
            done, _ = self._ray.wait(list(out), num_returns=1, timeout=POLL_SECONDS)
            if answers := [self._answer(out[reference]) for reference in done] or self._homeless(out.values()):
                return answers

    def _answer(self, seat: int) -> Answer:
        place = self._seats[seat]
        reference, place.result = place.result, None
        try:
            return Answer(seat, self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            self._dismiss(place)
            return Answer(seat, Lost(f"{type(error).__name__} of Ray"))

    def _homeless(self, seats: Iterable[int]) -> list[Answer]:
        """Seats whose actor finds no place, as after the death of a node, while others have one."""
        waiting = []
        for seat in seats:
            place = self._seats[seat]
            if place.ready is not None and self._ray.wait([place.ready], timeout=0)[0]:
                place.ready = None
            if place.ready is not None and time.monotonic() - place.since > START_SECONDS:
                waiting.append(seat)
        if len(waiting) == sum(place.actor is not None for place in self._seats):
            return []  # nobody has one: the cluster may be growing
        for seat in waiting:
            self._dismiss(self._seats[seat])
        return [Answer(seat, Lost("no place in the cluster", seat_gone=True)) for seat in waiting]

    def processes(self) -> list[int]:
        """Process ids of the actors that have a place, by seat."""
        actors = [place.actor for place in self._seats if place.actor is not None]
        return [int(pid) for pid in self._ray.get([actor.process.remote() for actor in actors])]

    def _dismiss(self, place: _Seat) -> None:
        if place.actor is not None:
            self._ray.kill(place.actor)
        place.actor = place.who = place.ready = place.result = None

    def close(self) -> None:
        """Leaves the cluster; its actors end with it."""
        self._ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps who answers signals: Ray would end the driver with the run half done."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise RayError("--engine ray needs ray, which is not installed. pip install 'hrx[ray]'") from None
    local = {"include_dashboard": False} if address == LOCAL else {}
    try:
        _knock(address)
        with _own_signals():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **local)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise RayError(
            f"No Ray cluster could be reached at {address}: {first} Start one with `ray start --head`, give its "
            "--address, or let --address local start one for this audit."
        ) from error
    return ray


def _knock(address: str) -> None:
    """Raises OSError where nothing listens at `HOST:PORT` or `ray://HOST:PORT`; `auto` and `local` name no place."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
