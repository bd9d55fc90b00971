"""The progress of an audit: what its tasks do, how many runs are stored, and the verdict so far."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple

from hrx.audit.runner.cost import EstimateCosts
from hrx.audit.runner.plan import Run
from hrx.audit.runner.worker import Admit, LoadModel, MeasureRun, RankRun, Task
from hrx.cli.process import STOPPING, Stop
from hrx.cli.progress import progress
from hrx.records.record import DONE, FAILED, Record
from hrx.reports.runs import CONFIGURATION, LARGEST, SEEDS
from hrx.reports.statistics import clustered_median
from hrx.reports.text import bracketed, signed

_Gains = dict[tuple[object, ...], dict[tuple[object, ...], float]]
"""The gain of each seed, by configuration."""
_SHARE = 0.02
"""The part of the audit's time that this may take."""
_SECONDS = 1.0
"""At least this long between two computations."""
_CLUSTERS = ("dataset", "series_fingerprint")
"""What the interval of a verdict resamples."""


class AuditProgress:
    """Reports the start of tasks and the storing of runs."""

    def __init__(self, runs: Sequence[Run], stored: Iterable[Record], stop: Stop):
        finished = {record.key: record for record in stored if record.status != FAILED}
        missing = [run for run in runs if run.key not in finished]
        # The time of a run grows about with L + H, and the finished runs give the scale; a run that is refused takes
        # none.
        weights = {run.key: 0.0 if run.refusal else float(sum(astuple(run.setting))) for run in missing}
        self._stop = stop
        self._so_far = VerdictSoFar(finished.values())
        self.started = Announcer(runs)
        progress.expect(len(runs), weights)

    def stored(self, run: Run, record: Record) -> None:
        """One more run is stored."""
        if text := self._so_far.add(record):
            progress.so_far(text)
        progress.step(run.key, STOPPING if self._stop() else f"{label(run)} {record.status}")


class Announcer:
    """Says what a task does when it starts."""

    def __init__(self, runs: Sequence[Run]):
        self._names = {run.model_key: run.identity.model for run in runs}

    def __call__(self, task: Task) -> None:
        match task:
            case LoadModel():
                progress.say(f"loading {self._names[task.model]}")
            case Admit():
                progress.say(f"checking {self._names[task.model]} at {task.variant.setting}")
            case EstimateCosts():
                progress.say(f"timing {self._names[task.model]}")
            case MeasureRun() | RankRun():
                progress.time_from_here()
                progress.say(label(task.run))


def label(run: Run) -> str:
    return f"{run.identity.model} {run.dataset.name} {run.setting}"


class VerdictSoFar:
    """`g_margin` over the runs that beat naive, seeds folded, as the verdict at the end is computed."""

    def __init__(self, stored: Iterable[Record] = ()):
        self._gains: dict[str, _Gains] = {}
        self._failed: Counter[str] = Counter()
        self._due = 0.0
        for record in stored:
            self._add(record)

    def add(self, record: Record) -> str | None:
        """One more stored run. Returns the line about its model, or None where the last one is recent."""
        self._add(record)
        began = time.monotonic()
        if began < self._due:
            return None
        text = self.text(str(record.model))
        now = time.monotonic()
        self._due = now + max(_SECONDS, (now - began) / _SHARE)
        return text

    def text(self, model: str) -> str:
        """What is known about a model; empty while none of its runs is stored."""
        failed = f"; {self._failed[model]} failed" if self._failed[model] else ""
        if model not in self._gains and not failed:
            return ""
        return f"So far, {model}: {self._figure(self._gains.get(model))}{failed}; not final"

    def _figure(self, configurations: _Gains | None) -> str:
        if configurations is None:
            return "no run is scored"
        gains = [math.fsum(seeds.values()) / len(seeds) for seeds in configurations.values()]
        if not gains:
            return "no run beats both naive forecasts"
        clusters = ([str(one[CONFIGURATION.index(name)]) for one in configurations] for name in _CLUSTERS)
        found = clustered_median(gains, *clusters)
        interval = "" if math.isnan(found.low) else f" {bracketed(found.low, found.high)}"
        return f"g_margin {signed(found.median)}{interval}, n={len(gains)} that beat naive"

    def _add(self, record: Record) -> None:
        model = str(record.model)
        if record.status == FAILED:
            self._failed[model] += 1
        if record.status != DONE:
            return
        gains = self._gains.setdefault(model, {})
        if record.beats_naive == 1 and record.g_margin is not None and abs(record.g_margin) <= LARGEST:
            configuration, seeds = (tuple(getattr(record, name) for name in names) for names in (CONFIGURATION, SEEDS))
            gains.setdefault(configuration, {})[seeds] = record.g_margin
