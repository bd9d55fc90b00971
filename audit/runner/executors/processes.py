"""Local worker processes: each loads each model once, with its share of the cores.

A worker is a fresh process, since a fork after torch has started its threads may hang. It reads tasks from a pipe and
writes results to it; when the pipe closes it ends, so that none outlives the audit, however that ended.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import cast

import torch

from hrx.adapters import Located
from hrx.audit.runner.executors.in_process import Answer, Lost
from hrx.audit.runner.worker import Result, Task, WorkerContext, perform, portable, sendable

_CONTEXT = multiprocessing.get_context("spawn")
_FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM)


class Workers:
    """A crew of local processes. One that dies is replaced, and its task comes back as lost."""

    def __init__(self, models: Iterable[Located], memory: int, size: int):
        self.size = size
        self._models, self._memory = [portable(model) for model in models], memory
        self._threads = max(1, torch.get_num_threads() // size)
        self._seats = [self._hire() for _ in range(size)]
        self._busy: set[int] = set()

    def give(self, seat: int, task: Task) -> None:
        self._busy.add(seat)
        with suppress(OSError):  # it died while idle: the wait sees its closed pipe
            self._seats[seat].pipe.send(sendable(task))

    def wait(self) -> Sequence[Answer]:
        seat_of = {self._seats[seat].pipe: seat for seat in self._busy}
        return [self._answer(seat_of[cast(Connection, pipe)]) for pipe in wait(list(seat_of))]

    def _answer(self, seat: int) -> Answer:
        self._busy.discard(seat)
        try:
            result = cast(Result, self._seats[seat].pipe.recv())
        except (EOFError, OSError):
            died = self._seats[seat]
            self._seats[seat] = self._hire()
            return Answer(seat, Lost(died.end()))
        return Answer(seat, result)

    def processes(self) -> list[int]:
        """Process ids, by seat."""
        return [seat.process.pid or 0 for seat in self._seats]

    def close(self) -> None:
        for seat in self._seats:
            seat.end()

    def _hire(self) -> _Worker:
        return _Worker(self._models, self._memory, self._threads)


class _Worker:
    def __init__(self, models: Sequence[Located], memory: int, threads: int):
        self.pipe, theirs = _CONTEXT.Pipe()
        arguments = (theirs, models, memory, threads)
        self.process = _CONTEXT.Process(target=_work, args=arguments, daemon=True, name="hrx worker")
        with _deaf():
            self.process.start()
        theirs.close()

    def end(self) -> str:
        """Ends the process if it has not ended, and says how it did."""
        self.pipe.close()
        self.process.join(timeout=0.2)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


@contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started inside hears no signal of the group before it can say that it ignores them."""
    resource_tracker.ensure_running()  # it would be started first, and let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, models: Sequence[Located], memory: int, threads: int) -> None:
    """The life of a worker."""
    # A signal to the whole group is for the parent to answer: it lets this run finish.
    for number in _FOR_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(threads)
    bench = WorkerContext(models, memory)
    try:
        while True:
            pipe.send(perform(pipe.recv(), bench))
    except (EOFError, OSError):
        return
