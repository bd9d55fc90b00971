"""The engine: takes a plan through a crew, and writes each result before it hands out more.

Model by model, a task opens it; setting by setting, one admits it on real windows and one chooses how it is computed;
then every run is a task of its own.
All of it is written here, by one process, whoever did the work. Whatever goes wrong with one run becomes that run's
record, and the rest go on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from hrx.adapters import Located, ModelError
from hrx.audit.admission.results import Gate, admission_windows, digest_of, refusal_of
from hrx.audit.ledger.privacy import scrubbed
from hrx.audit.ledger.record import EXCLUDED, FAILED, Record
from hrx.audit.ledger.store import Ledger, StoredCheck
from hrx.audit.runner.examples import Album
from hrx.audit.runner.executors.in_process import Crew, Lost
from hrx.audit.runner.plan import Run, Setting
from hrx.audit.runner.run import Outcome, no_channels, outline
from hrx.audit.runner.worker import (
    Admit,
    Admitted,
    Choose,
    Introduce,
    Introduced,
    Measure,
    ModelKey,
    Result,
    Subject,
    Task,
    Trouble,
)
from hrx.audit.way import DECLARED, Wanted, Way

ATTEMPTS = 2
"""A task whose process died is given once more; a second death is laid at its own door."""

Progress = Callable[[Run, Record], None]


def execute(
    runs: Sequence[Run],
    models: Iterable[Located],
    ledger: Ledger,
    crew: Crew,
    *,
    progress: Progress,
    wanted: Wanted | None = None,
    notice: Callable[[str], None] = lambda sentence: None,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Carries out every run that the ledger does not hold yet, and stores it.

    `notice` is given what the user asked for and does not get, a sentence each. Once `stopping` answers yes, what is
    under way is finished and stored, and nothing else is begun.
    """
    work = _Work(runs, models, ledger, progress, wanted or Wanted(), notice)
    idle: dict[int, ModelKey | None] = dict.fromkeys(range(crew.size))
    busy: dict[int, _Queued] = {}
    while True:
        for seat in list(idle):
            if not stopping() and (queued := work.next(idle[seat])):
                del idle[seat]
                busy[seat] = queued
                crew.give(seat, queued.task)
        if not busy:
            return
        for seat, result in crew.wait():
            queued = busy.pop(seat)
            if isinstance(result, Lost) and result.seat_gone:
                work.give_back(queued)
                continue
            idle[seat] = queued.task.who
            work.take(queued, result)


class _Order(NamedTuple):
    """Where a task stands among those of its model; the lowest is given first."""

    group: int
    run: int


@dataclass(order=True)
class _Queued:
    order: _Order
    task: Task = field(compare=False)
    attempts: int = field(default=1, compare=False)


@dataclass(frozen=True)
class _Group:
    """The runs of a model that one admission is for."""

    setting: Setting
    season: int
    """That makes the model; 0 where the season makes no difference."""
    channels: int
    """Variates of the windows; 0 where there is one."""
    planned: list[Run] = field(default_factory=list)
    missing: list[Run] = field(default_factory=list)


class _Work:
    """What is left to do, and what became of the rest."""

    def __init__(
        self,
        runs: Sequence[Run],
        models: Iterable[Located],
        ledger: Ledger,
        progress: Progress,
        wanted: Wanted,
        notice: Callable[[str], None],
    ):
        self._ledger, self._progress, self._wanted, self._notice = ledger, progress, wanted, notice
        self._gate, self._album = Gate(ledger), Album(runs, ledger)
        self._finished = ledger.finished()
        self._runs: dict[ModelKey, list[Run]] = {}
        for run in runs:
            self._runs.setdefault(ModelKey.of(run.identity), []).append(run)
        self._alone = len({ModelKey.of(model.identity) for model in models}) == 1
        self._groups: dict[ModelKey, list[_Group]] = {}
        self._queues: dict[ModelKey, list[_Queued]] = {who: [] for who in self._runs}
        for who, mine in self._runs.items():
            if any(run.key not in self._finished for run in mine):
                self._queue(Introduce(who, frozenset(run.dataset.season for run in mine)), group=-1)

    def next(self, who: ModelKey | None) -> _Queued | None:
        """The next task for a seat that has `who` open: one of that model, as long as there is any."""
        candidates = ([self._queues[who]] if who else []) + list(self._queues.values())
        return next((heapq.heappop(queue) for queue in candidates if queue), None)

    def give_back(self, queued: _Queued) -> None:
        """A task that nobody could do goes to whoever is free next."""
        heapq.heappush(self._queues[queued.task.who], queued)

    def take(self, queued: _Queued, result: Result | Lost) -> None:
        """Writes what came of a task, and queues what follows from it."""
        if isinstance(result, Lost):
            if queued.attempts < ATTEMPTS:
                self.give_back(replace(queued, attempts=queued.attempts + 1))
                return
            result = Trouble(f"the process that worked on it died {ATTEMPTS} times ({result.how}): out of memory?")
        task = queued.task
        if isinstance(task, Introduce):
            self._introduced(task, result)
        elif isinstance(task, Admit):
            self._admitted(task, queued.order.group, result)
        elif isinstance(task, Choose):
            self._chosen(task, queued.order.group, result)
        else:
            self._measured(task.run, result)

    def _introduced(self, task: Introduce, result: Result) -> None:
        mine = self._runs[task.who]
        if not isinstance(result, Introduced):
            reason = _reason(result)
            if self._alone and isinstance(result, Trouble) and result.wrong_request:
                raise ModelError(reason)
            for run in mine:
                self._refuse(run, {"status": FAILED, "reason": reason})
            return
        if self._alone:
            _refuse_every_setting(result, mine)
        self._groups[task.who] = groups = self._grouped(mine, result.apart)
        for number, group in enumerate(groups):
            self._open(task.who, number, group, result)

    def _grouped(self, runs: Sequence[Run], apart: frozenset[int]) -> list[_Group]:
        """The groups of a model that have something missing, in the order of the plan."""
        found: dict[tuple[Setting, int, int], _Group] = {}
        for run in runs:
            season = run.dataset.season if run.dataset.season in apart else 0
            place = run.setting, season, run.channels
            group = found.setdefault(place, _Group(*place))
            group.planned.append(run)
            if run.key not in self._finished:
                group.missing.append(run)
        return [group for group in found.values() if group.missing]

    def _open(self, who: ModelKey, number: int, group: _Group, model: Introduced) -> None:
        """Queues the admission of a group, or its runs where it needs none."""
        identity = group.planned[0].identity
        if refusal := model.limits.refusal(group.setting.lookback, group.setting.horizon):
            return self._begin(group, number, {"reason": f"{identity.model} {refusal}"})
        if group.channels and not model.multivariate:
            return self._begin(group, number, {"reason": no_channels(identity)})
        windows = admission_windows(group.planned)
        if windows is None:
            return self._begin(group, number)
        checks = self._gate.stored(identity, str(group.setting), digest_of(windows, group.season))
        if checks:
            return self._judged(group, number, checks, windows)
        return self._queue(Admit(Subject.of(group.planned[0]), windows), number)

    def _admitted(self, task: Admit, number: int, result: Result) -> None:
        group = self._groups[task.who][number]
        if not isinstance(result, Admitted):
            return self._begin(group, number, {"status": FAILED, "reason": f"admission: {_reason(result)}"})
        digest = digest_of(task.windows, group.season)
        stored = self._gate.store(group.planned[0].identity, digest, result.checks)
        return self._judged(group, number, stored, task.windows)

    def _judged(self, group: _Group, number: int, checks: Sequence[StoredCheck], windows: Tensor) -> None:
        """Refuses the runs of a group, or queues the choice of how its model is computed, if that is still to make."""
        if refused := refusal_of(checks):
            return self._begin(group, number, refused)
        first, digest = group.planned[0], digest_of(windows, group.season)
        if way := self._gate.way(first.identity, str(group.setting), digest, self._wanted):
            return self._begin(group, number, way=way)
        return self._queue(Choose(Subject.of(first), windows, self._wanted), number)

    def _chosen(self, task: Choose, number: int, result: Result) -> None:
        group = self._groups[task.who][number]
        identity, setting = group.planned[0].identity, str(group.setting)
        if not isinstance(result, Way):
            self._notice(
                f"{identity.model} {setting} is computed as its family is: the probe failed, {_reason(result)}."
            )
            return self._begin(group, number)
        self._gate.store_way(identity, setting, digest_of(task.windows, group.season), self._wanted, result)
        return self._begin(group, number, way=result)

    def _begin(self, group: _Group, number: int, refused: Record | None = None, way: Way = DECLARED) -> None:
        """Queues the runs of a group, or refuses them. A series that was not read has a better reason of its own."""
        for note in way.notes:
            self._notice(f"{group.planned[0].identity.model} {group.setting}: {note}")
        for place, run in enumerate(group.missing):
            if refused and run.trouble is None:
                self._refuse(run, refused)
            else:
                self._queue(Measure(run, way), number, place)

    def _measured(self, run: Run, result: Result) -> None:
        if isinstance(result, Outcome):
            self._write(run, result)
        else:
            self._refuse(run, {"status": FAILED, "reason": _reason(result)})

    def _refuse(self, run: Run, why: Record) -> None:
        if run.key not in self._finished:
            self._write(run, Outcome(outline(run, EXCLUDED, None) | why))

    def _write(self, run: Run, outcome: Outcome) -> None:
        record = outcome.record
        if isinstance(reason := record.get("reason"), str):
            record = record | {"reason": scrubbed(reason)}
        if outcome.matrix is not None and self._album.wants(run):
            self._ledger.write(record, outcome.matrix, instead_of=self._album.keep(run))
        else:
            self._ledger.write(record)
        self._progress(run, record)

    def _queue(self, task: Task, group: int, run: int = 0) -> None:
        heapq.heappush(self._queues[task.who], _Queued(_Order(group, run), task))


def _reason(result: Result) -> str:
    return result.reason if isinstance(result, Trouble) else f"answered with {type(result).__name__}"


def _refuse_every_setting(model: Introduced, runs: Sequence[Run]) -> None:
    """The only model of an audit, if it can take none of the settings, was asked the wrong thing."""
    refusals = {run.setting: model.limits.refusal(run.setting.lookback, run.setting.horizon) for run in runs}
    if all(refusals.values()):
        name = runs[0].identity.model
        raise ModelError(f"{name} {'; '.join(dict.fromkeys(map(str, refusals.values())))}.")
