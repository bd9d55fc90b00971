"""An audit: `perform` does what an `AuditRequest` asks for, and `hrx.run_audit` is that as a function of Python.

Nothing is printed: `Events` tells what happens, and the result is returned. `api/audit_modes.py` has the other uses of
the same plan.
"""

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hrx import __version__
from hrx.adapters.formats.module import held_models
from hrx.api.audit_plan import (
    Announcer,
    AuditPlan,
    HeldModel,
    InMemory,
    label,
    make_plan,
    open_executor,
    refuse_damaged,
    stored_part,
)
from hrx.api.progress import (
    STOPPING,
    Events,
    Progress,
    Stop,
    Stopped,
    TimeBudget,
    finishing,
    noting_damage,
    signal_exit_code,
)
from hrx.audit.request import AuditRequest
from hrx.audit.runner.cost import summarise_plan
from hrx.audit.runner.plan import PlannedRun, Run
from hrx.audit.runner.scheduler import execute
from hrx.audit.runner.worker import ExecutorLost
from hrx.errors import Exit, HrxError, NotWritten
from hrx.files import check_directory, check_target
from hrx.gift_eval import Dataset, read_series
from hrx.gift_eval.series import StoredSeries, TimedSeries
from hrx.options import from_keywords
from hrx.records.ledger import Ledger, LedgerError, StoredAudit, StoredPlan, utc_now
from hrx.records.record import DONE, FAILED, Record
from hrx.reports import heatmaps, summarise
from hrx.reports.audit_summary import AuditSummary, BackboneSummary, summarise_backbones
from hrx.reports.gates import ModelJudged, exit_code, judge_audit
from hrx.reports.runs import CONFIGURATION, LARGEST, SEEDS, frame_of, without_runs
from hrx.reports.statistics import evidence
from hrx.reports.summary import SHORTEST_SPAN, ModelSummary
from hrx.reports.text import counted

MOST_REASONS = 8
_Gains = dict[tuple[object, ...], dict[tuple[object, ...], float]]
"""Gain of each seed, by configuration."""
_SHARE = 0.02
"""Part of the audit's time that this may take."""
_SECONDS = 1.0
"""At least this long between two computations."""
_CLUSTERS = ("dataset", "series")
"""What tells the clusters of a verdict apart."""


def run_audit(
    model: Any = "bolt-mini",
    *,
    data: Any = "sample",
    out: str | Path = "hrx-audit",
    settings: str | Sequence[str] = "quick",
    workers: int = 0,
    **options: Any,
) -> AuditSummary:
    """Audit a model, as `hrx audit` does, and return the summary, which shows itself in a notebook.

    `model` is a name or path, a forecaster, a `torch.nn.Module`, a fitted `NeuralForecast`, or a list of these. `data`
    is a source as on the command line (`"sample"`, `"gift-eval:us_births/D"`, `"csv:sales.csv"`), or series as
    `hrx.explain` takes them.
    `settings` are `star`, `quick` or pairs such as `["96x24"]`. Every other option of an audit is a keyword, by its
    name in `hrx audit --help`: `series=2, seeds=1, effort="paper", gate=["g_margin >= 0"], estimator="occlusion"`.

    `out` gets the ledger and heat maps; the same call resumes. Models run in this process unless `workers` asks for
    processes, which need names instead of objects. A request that is wrong raises an `HrxError`; `exit` of the summary
    is the exit code of the command otherwise.

        summary = hrx.run_audit("bolt-mini", data="sample:elnino/M", settings="96x24", seeds=1, out="my-audit")
        summary.models[0].verdict
    """
    models = [model] if not isinstance(model, list | tuple) else list(model)
    events = Progress()
    held = InMemory(
        tuple(HeldModel(held) for one in models if not isinstance(one, str) for held in held_models(one)),
        () if isinstance(data, str) else tuple(_datasets(data, events)),
    )
    if held.models and workers:
        raise HrxError(f"workers={workers}: a model in memory runs in this process only. Drop workers, or give a name.")
    named = tuple(one for one in models if isinstance(one, str))
    # Messages name the source by this text.
    source = data if isinstance(data, str) else f"the given {type(data).__name__}"
    given = {"models": named, "data": source, "out": out, "settings": settings, "workers": workers, **options}
    request = from_keywords(AuditRequest, given, "run_audit")
    with events.running("hrx.run_audit"):
        result = perform(request, held, events=events, on_plan=lambda runs: events.note(headline(runs, request)))
        if result.exit > _STOPPED:
            raise KeyboardInterrupt
        code = result.exit
        try:
            if not result.interrupted:
                draw_examples(result, events)
        except NotWritten as error:
            events.note(f"run_audit: {error}")
            code = code or Exit.INCOMPLETE
        for sentence in (result.ended, result.unwritten):
            if sentence:
                events.note(f"run_audit: {sentence}")
    return AuditSummary(tuple(result.summaries), result.ledger, Exit(code), tuple(result.backbones))


@dataclass(frozen=True)
class AuditResult:
    """What an audit found."""

    request: AuditRequest
    exit: int
    """Exit code of the command, 130 or 143 where a signal ended it."""
    summaries: Sequence[ModelSummary] = ()
    backbones: Sequence[BackboneSummary] = ()
    gates: Sequence[ModelJudged] = ()
    without_runs: Mapping[str, int] = field(default_factory=dict)
    """Number of planned runs of each model of which none is stored."""
    keys: frozenset[str] = frozenset()
    """Keys of the planned runs; empty where a second signal ended it before anything was summarised."""
    ended: str = ""
    """Why it ended before its plan was complete, as a sentence."""
    interrupted: bool = False
    """Whether a signal or the loss of all workers ended it."""
    unwritten: LedgerError | None = None
    """Why results could not be stored, such as a full disk; the summaries are those of the stored runs."""

    @property
    def ledger(self) -> Path:
        return self.request.ledger_path


_STOPPED = 128
"""Exit codes above it are those of signals."""


class _Ended(NamedTuple):
    """How the measuring ended."""

    code: int | None = None
    """Exit code that this alone decides."""
    because: str = ""
    unwritten: LedgerError | None = None
    killed: bool = False
    """By a second signal: nothing is summarised."""


def perform(
    request: AuditRequest,
    held: InMemory | None = None,
    *,
    events: Events,
    on_plan: Callable[[Sequence[PlannedRun]], None] = lambda runs: None,
) -> AuditResult:
    """Plan, measure what the ledger does not hold, and summarise; signals end it after the running tasks."""
    budget = TimeBudget(request.budget)
    plan = make_plan(request, held, events)
    existed = os.path.exists(plan.ledger)
    check_directory(request.out, "--out")
    if not existed:
        check_target(plan.ledger, "--ledger")
    try:
        with noting_damage(events):
            # First, because another interpreter may refuse the request, which leaves no ledger behind then.
            elsewhere = [run for other in plan.others for run in other.plan(estimate=False)]
            plans, ended = _measure_missing(plan, elsewhere, budget, events, on_plan)
    except HrxError:
        if not existed:
            _remove_without_runs(plan.ledger)
        raise
    if ended.killed:
        return AuditResult(plan.request, ended.code or 0, ended=ended.because, interrupted=True)
    # A damaged run of this plan has been measured again; what is damaged beside the plan is named here.
    with noting_damage(events) as damaged:
        events.stage("reading the ledger")
        found = _summarise(plan.request, plans)
    code = Exit.INCOMPLETE if damaged and found.exit == Exit.DONE else found.exit
    if ended.unwritten:
        code = code or Exit.INCOMPLETE
    return replace(
        found,
        exit=code if ended.code is None else ended.code,
        ended=ended.because,
        interrupted=ended.code is not None,
        unwritten=ended.unwritten,
    )


def draw_examples(result: AuditResult, events: Events) -> list[Path]:
    """Draw a heat map of each model and dataset into `--out`."""
    events.stage("drawing heat maps")
    with noting_damage(events):
        return heatmaps(result.ledger, result.request.out, result.keys)


def headline(runs: Sequence[PlannedRun], request: AuditRequest) -> str:
    """How many runs there are, and how many the ledger holds."""
    models, datasets = ({getattr(run, name) for run in runs} for name in ("model", "dataset"))
    stored = sum(run.state == "stored" for run in runs)
    known = f", {stored} of them stored" if stored else ""
    of = f"{counted(len(models), 'model')}, {counted(len(datasets), 'dataset')}"
    text = f"{counted(len(runs), 'run')} ({of}){known}: {request.ledger_path}"
    return "\n".join(filter(None, (text, "" if stored == len(runs) else reasons(runs))))


def reasons(runs: Sequence[PlannedRun]) -> str:
    """Why runs cannot run, the most common reason first."""
    counts = Counter(run.reason for run in runs if run.state == "cannot run")
    lines = [f"{number} cannot run: {reason}" for reason, number in counts.most_common(MOST_REASONS)]
    if len(counts) > MOST_REASONS:
        lines.append(f"… and {len(counts) - MOST_REASONS} more reasons; --dry-run --json lists every run")
    return "\n".join(lines)


def _remove_without_runs(ledger: Path) -> None:
    """Remove the ledger of a request that was refused before its first run was stored.

    One that another audit has begun to use stays. SQLite refuses to write to a file that was removed.
    """
    with suppress(LedgerError, OSError), Ledger.open(ledger, create=False, warn=False) as opened:
        if opened.rows() or len(opened.audits()) > 1:
            return
    ledger.unlink(missing_ok=True)


def _measure_missing(
    plan: AuditPlan,
    elsewhere: Sequence[PlannedRun],
    budget: TimeBudget,
    events: Events,
    on_plan: Callable[[Sequence[PlannedRun]], None],
) -> tuple[list[StoredPlan], _Ended]:
    """Store the plan and measure its missing runs; return the plans of the models and how it ended."""
    measuring, plans = False, list[StoredPlan]()
    try:
        with Ledger.open(plan.ledger, warn=False) as ledger:
            refuse_damaged(ledger)
            stored = ledger.records(run.key for run in plan.runs)
            planned = summarise_plan(plan.runs, ledger.finished(run.key for run in plan.runs), {}) + list(elsewhere)
            plans = _plans(planned, plan.request.until)
            on_plan(planned)
            settings = StoredAudit(utc_now(), __version__, json.dumps(plan.request.stored(), sort_keys=True))
            if any(run.state != "stored" for run in planned):
                ledger.write_audit(settings)
                ledger.write_plans(plans)
            measuring = True
            try:
                with finishing(events) as stop:
                    _measure(plan, settings.digest, stored, ledger, stop, budget, events)
            except Stopped as stopped:
                because = f"stopped. {stored_part(plan, ledger)}"
                return plans, _Ended(signal_exit_code(stopped.number), because, killed=True)
            except ExecutorLost as error:
                return plans, _Ended(Exit.INCOMPLETE, f"{error} {stored_part(plan, ledger)}")
            if stop.number is not None:
                return plans, _Ended(signal_exit_code(stop.number), f"stopped. {stored_part(plan, ledger)}")
            keys = {run.key for run in planned}
            if budget.over and ledger.finished(keys) != keys:
                return plans, _Ended(None, f"--budget is over. {stored_part(plan, ledger)}")
    except LedgerError as error:
        if not measuring:
            raise
        return plans, _Ended(unwritten=error)  # a full disk, say: the verdict is that of the stored runs
    return plans, _Ended()


def _plans(planned: Sequence[PlannedRun], until: str | None) -> list[StoredPlan]:
    """What is planned for each model, as the ledger stores it."""
    keys: dict[tuple[str, str], list[str]] = {}
    for run in planned:
        keys.setdefault((run.model, run.fingerprint), []).append(run.key)
    return [StoredPlan.of(*model, until or "", of_model, utc_now()) for model, of_model in keys.items()]


def _measure(
    plan: AuditPlan,
    digest: str,
    stored: Sequence[Record],
    ledger: Ledger,
    stop: Stop,
    budget: TimeBudget,
    events: Events,
) -> None:
    """Measure the missing runs, here and in other interpreters; `digest` names the settings in each record."""
    finished = ledger.finished(run.key for run in plan.runs)
    if missing := [run for run in plan.runs if run.key not in finished]:
        shown = AuditProgress(plan.runs, stored, stop, events)
        with closing(open_executor(plan.workers, plan.request, len(missing))) as executor:
            execute(
                plan.runs,
                plan.workers.models,
                ledger,
                executor,
                progress=shown.stored,
                stopping=lambda: stop() or budget.over,
                on_start=shown.started,
                until_decided=plan.request.until == "decided",
                request=digest,
            )
    events.pause()  # another interpreter shows its own progress
    for other in plan.others:
        if not (stop() or budget.over):
            other.audit(stop, budget=budget.left)


def _summarise(request: AuditRequest, plans: Sequence[StoredPlan]) -> AuditResult:
    """Return the result of the planned runs, whatever else the ledger holds."""
    keys = frozenset(key for plan in plans for key in plan.run_keys)
    with Ledger.open(request.ledger_path, create=False) as ledger:
        frame, checks = frame_of(ledger), ledger.checks()
    frame = frame[frame["key"].isin(keys)]
    backbones = summarise_backbones(frame, checks, plans)
    gates = judge_audit(request.gate, frame, by_backbone=bool(backbones))
    absent = without_runs(frame, plans)
    code = _exit_code(frame, gates, request)
    return AuditResult(
        request,
        Exit.INCOMPLETE if absent and code == Exit.DONE else code,
        summarise(frame, checks, plans),
        backbones,
        gates,
        absent,
        keys,
    )


def _exit_code(frame: pd.DataFrame, gates: Sequence[ModelJudged], request: AuditRequest) -> int:
    """A failed admission check or gate comes first, then gates that are not decided, then failed runs."""
    if frame["check_failed"].notna().any():
        return Exit.GATE_FAILED
    code = exit_code((one.judged for one in gates), request.undecided)
    return Exit.INCOMPLETE if code == Exit.DONE and (frame["status"] == FAILED).any() else code


class AuditProgress:
    """Reports the start of tasks and the storing of runs."""

    def __init__(self, runs: Sequence[Run], stored: Iterable[Record], stop: Stop, events: Events):
        finished = {record.key: record for record in stored if record.status != FAILED}
        missing = [run for run in runs if run.key not in finished]
        # The time of a run grows about with L + H, and the finished runs give the scale; a run that is refused takes
        # none.
        weights = {run.key: 0.0 if run.refusal else float(sum(astuple(run.setting))) for run in missing}
        self._stop, self._events = stop, events
        self._so_far = VerdictSoFar(finished.values())
        self.started = Announcer(runs, events)
        events.expect(len(runs), weights)

    def stored(self, run: Run, record: Record) -> None:
        """One more run is stored."""
        if text := self._so_far.add(record):
            self._events.so_far(text)
        self._events.step(run.key, STOPPING if self._stop() else f"{label(run)} {record.status}")


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
        found = evidence(gains, *clusters)
        return f"g_margin {found}, positive in {found.positive} of {found.counted} that beat naive"

    def _add(self, record: Record) -> None:
        model = str(record.model)
        if record.status == FAILED:
            self._failed[model] += 1
        if record.status != DONE:
            return
        gains = self._gains.setdefault(model, {})
        short = record.variance_span is not None and record.variance_span < SHORTEST_SPAN
        if short or record.beats_naive != 1:
            return
        if record.g_margin is not None and abs(record.g_margin) <= LARGEST:
            configuration, seeds = (tuple(getattr(record, name) for name in names) for names in (CONFIGURATION, SEEDS))
            gains.setdefault(configuration, {})[seeds] = record.g_margin


def _datasets(data: Any, events: Events) -> list[Dataset]:
    """One dataset per frequency of the series."""
    groups: dict[tuple[str, int], list[StoredSeries]] = {}
    series = read_series(data).series
    for sentence in dict.fromkeys(one.note for one in series if one.note):
        events.note(f"{sentence}.")
    for one in series:
        groups.setdefault((one.series.frequency, one.series.season), []).append(_stored(one))
    return [
        Dataset(f"data/{frequency}" if frequency else "data", frequency, season, "", len(rows), rows.__getitem__)
        for (frequency, season), rows in groups.items()
    ]


def _stored(one: TimedSeries) -> StoredSeries:
    """Return the series with its gaps, which the audit counts and fills itself."""
    values, observed = one.series.values, one.series.observed
    return StoredSeries(one.series.item, values if observed is None else np.where(observed, values, np.nan))
