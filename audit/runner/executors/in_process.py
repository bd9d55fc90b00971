"""Who does the work: seats that take one task at a time. This process is a crew of one; others are in `workers` and
`ray_engine`. Which task comes next is the engine's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hrx.audit.runner.worker import Result, Task, WorkerContext, perform


class Lost(NamedTuple):
    """A task whose process died."""

    how: str
    """For a sentence: `killed by signal 9`."""
    seat_gone: bool = False
    """Whether the seat is lost as well, through no fault of the task."""


class Answer(NamedTuple):
    """What came of the task of a seat."""

    seat: int
    result: Result | Lost


class Crew(Protocol):
    """Seats numbered from 0."""

    size: int

    def give(self, seat: int, task: Task) -> None:
        """Hands a task to a seat that has none."""

    def wait(self) -> Sequence[Answer]:
        """Blocks until at least one seat that has a task is done with it, or has lost it."""

    def close(self) -> None:
        """Ends all seats at once, whatever they are doing."""


class Here:
    """A crew of one: this process. A task is carried out when its result is waited for."""

    size = 1

    def __init__(self, bench: WorkerContext):
        self._bench = bench
        self._task: Task | None = None

    def give(self, seat: int, task: Task) -> None:
        self._task = task

    def wait(self) -> Sequence[Answer]:
        task, self._task = self._task, None
        return [] if task is None else [Answer(0, perform(task, self._bench))]

    def close(self) -> None:
        self._bench.close()
