"""What one process holds while it works, and the tasks that it is given.

A bench keeps one model open at a time: tasks come model by model, and two may not fit in memory. It knows neither the
ledger nor other processes, so the same tasks run here, in a worker process and in an actor of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from hrx.adapters import Forecaster, Identity, Limits, Located, ModelError
from hrx.adapters.module import ModuleFile
from hrx.audit.admission.checks import Check, admit
from hrx.audit.ledger.record import EXCLUDED, FAILED
from hrx.audit.memory import Budget
from hrx.audit.runner.plan import Run, Setting
from hrx.audit.runner.run import UNEQUAL, Outcome, attempt, outline, together
from hrx.audit.scoring.channels import admit_channels
from hrx.audit.scoring.score import Unscorable
from hrx.audit.way import DECLARED, Choice, Wanted, Way, choose
from hrx.errors import describe_error


class ModelKey(NamedTuple):
    """What tells one model from another: the same weights under another family are another model."""

    family: str
    fingerprint: str

    @classmethod
    def of(cls, identity: Identity) -> ModelKey:
        return cls(identity.family, identity.fingerprint)


class Subject(NamedTuple):
    """A model as it reads the windows of a setting, which is what is admitted and what has a way of its own."""

    who: ModelKey
    setting: Setting
    season: int
    channels: bool
    """Whether all variates of a window are read together."""

    @classmethod
    def of(cls, run: Run) -> Subject:
        return cls(ModelKey.of(run.identity), run.setting, run.dataset.season, bool(run.channels))


class WorkerContext:
    """Located models of which one is open, and a bound on the memory of a batch."""

    def __init__(self, models: Iterable[Located], memory: int):
        self._located = {ModelKey.of(model.identity): model for model in models}
        self._open: dict[ModelKey, Forecaster] = {}
        self._accelerated: dict[tuple[Subject, Way], Forecaster] = {}
        self.budget = Budget(memory)

    def model(self, who: ModelKey) -> Forecaster:
        """The model, loaded where it is not the one that is open."""
        if who not in self._open:
            self.close()
            self._open[who] = self._load(who)
        return self._open[who]

    def subject(self, subject: Subject) -> Forecaster:
        """The model as it reads the windows of a setting."""
        model = self.model(subject.who).for_season(subject.season)
        return together(model) if subject.channels else model

    def on_its_way(self, subject: Subject, way: Way) -> Forecaster:
        """The same as it is computed. What took long to make is kept until the next such model is asked for."""
        if not way.accelerations:
            return way.of(self.subject(subject))
        kept = self._kept_as(subject)
        if (kept, way) not in self._accelerated:
            self.keep(subject, Choice(way, way.of(self.subject(subject))))
        return self._accelerated[kept, way]

    def keep(self, subject: Subject, choice: Choice) -> None:
        """Keeps a model that was just made, in place of any other."""
        self._accelerated = {(self._kept_as(subject), choice.way): choice.model}

    def _kept_as(self, subject: Subject) -> Subject:
        """Without a season that makes no difference to the model."""
        model = self.model(subject.who)
        return subject._replace(season=0) if model.for_season(subject.season) is model else subject

    def _load(self, who: ModelKey) -> Forecaster:
        model = self._located[who].load()
        if ModelKey.of(model.identity) != who:
            raise ModelError(
                f"{model.identity.model} has other weights each time it is made, so its runs cannot be shared out or "
                "resumed. Seed the random numbers in its factory, or load its weights from a file."
            )
        return model

    def close(self) -> None:
        """Lets the open model go."""
        self._open.clear()
        self._accelerated.clear()


@dataclass(frozen=True)
class Sent:
    """A located model on its way to another process, with the identity that it must have there too."""

    identity: Identity
    source: Located

    def load(self) -> Forecaster:
        return self.source.load()


def portable(model: Located) -> Located:
    """A located model that another process, with another working directory, can load."""
    source = ModuleFile(model.file.resolve(), model.factory) if isinstance(model, ModuleFile) else model
    return Sent(model.identity, source)


class Introduced(NamedTuple):
    """What the plan of the work needs to know of a model, and only the loaded model can say."""

    limits: Limits
    apart: frozenset[int]
    """Seasons at which it is another model than elsewhere, and so must be admitted by itself."""
    multivariate: bool
    """Whether it can read all channels of a window together."""


class Admitted(NamedTuple):
    """The admission checks that were made, passed or not."""

    checks: tuple[Check, ...]


class Trouble(NamedTuple):
    """Why a task has no result, in a sentence."""

    reason: str
    wrong_request: bool = False
    """Whether the user can mend it: the model could not be loaded."""


@dataclass(frozen=True)
class Introduce:
    """Opens a model."""

    who: ModelKey
    seasons: frozenset[int]

    def do(self, bench: WorkerContext) -> Introduced:
        model = bench.model(self.who)
        apart = frozenset(season for season in self.seasons if model.for_season(season) is not model)
        return Introduced(model.limits, apart, model.multivariate() is not None)


@dataclass(frozen=True)
class Admit:
    """The admission checks of a setting on real windows."""

    subject: Subject
    windows: Tensor

    @property
    def who(self) -> ModelKey:
        return self.subject.who

    def do(self, bench: WorkerContext) -> Admitted:
        check = admit_channels if self.subject.channels else admit
        return Admitted(check(bench.subject(self.subject), self.windows, self.subject.setting.horizon))


@dataclass(frozen=True)
class Choose:
    """The choice of how a model is computed, on the windows that it was admitted on."""

    subject: Subject
    windows: Tensor
    wanted: Wanted

    @property
    def who(self) -> ModelKey:
        return self.subject.who

    def do(self, bench: WorkerContext) -> Way:
        model, horizon = bench.subject(self.subject), self.subject.setting.horizon
        choice = choose(model, self.windows, horizon, self.wanted, bench.budget)
        bench.keep(self.subject, choice)
        return choice.way


@dataclass(frozen=True)
class Measure:
    """One run."""

    run: Run
    way: Way = DECLARED

    @property
    def who(self) -> ModelKey:
        return ModelKey.of(self.run.identity)

    def do(self, bench: WorkerContext) -> Outcome:
        way = self.way.here()
        outcome = self._by(way, bench)
        if way.accelerations and outcome.record.get("check_failed") == UNEQUAL:
            # Windows that an acceleration cannot do are no windows that the model cannot do.
            return self._by(replace(way, accelerations=()), bench)
        return outcome

    def _by(self, way: Way, bench: WorkerContext) -> Outcome:
        try:
            model = bench.on_its_way(Subject.of(self.run), way)
        except ModelError as error:
            return Outcome(outline(self.run, FAILED, str(error)))
        except Unscorable as error:
            return Outcome(outline(self.run, EXCLUDED, str(error)))
        return attempt(model, self.run, bench.budget, way)


Task = Introduce | Admit | Choose | Measure
Result = Introduced | Admitted | Way | Outcome | Trouble


def perform(task: Task, bench: WorkerContext) -> Result:
    """A task's result; whatever a library raises on the way is told, so that one task cannot end the work."""
    try:
        return task.do(bench)
    except ModelError as error:
        return Trouble(str(error), wrong_request=True)
    except Exception as error:
        return Trouble(describe_error(error))


def sendable(task: Task) -> Task:
    """The task without what cannot leave this process."""
    return replace(task, run=task.run.portable()) if isinstance(task, Measure) else task
