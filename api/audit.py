"""An audit: `perform` does what an `AuditRequest` asks for, and `hrx.run_audit` is that as a function of Python.

Also the other uses of its plan: `estimate_audit`, its cost; `recheck_audit`, stored runs measured again; `run_child`,
the share of another interpreter. Nothing is printed: `Progress` tells what happens, and the result is returned.
"""

import io
import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from hrx import __version__
from hrx.adapters.contract import Forecaster
from hrx.adapters.formats.module import held_models
from hrx.api.audit_plan import (
    AuditPlan,
    announcer,
    held_datasets,
    label,
    open_executor,
    plan_audit,
    refuse_damaged,
    stored_part,
)
from hrx.api.progress import STOPPING, Progress, Stop, Stopped, noting_damage
from hrx.audit.request import AuditRequest
from hrx.audit.runner.plan import Costs, PlannedRun, Run, summarise_plan
from hrx.audit.runner.scheduler import Recheck, estimate_costs, execute, recheck
from hrx.audit.runner.worker import ExecutorLost
from hrx.errors import Exit, HrxError, NotWritten, crash_sentence
from hrx.files import check_directory, check_target
from hrx.gift_eval import Dataset, read_series
from hrx.options import as_settings, from_keywords, from_settings
from hrx.records.ledger import EmptyLedger, Ledger, LedgerError, StoredAudit, StoredPlan, utc_now
from hrx.records.quantities import SHORTEST_SPAN
from hrx.records.record import DONE, FAILED, Record
from hrx.reports import heatmaps, summarise
from hrx.reports.audit_summary import AuditSummary, summarise_backbones
from hrx.reports.gates import Judged, exit_code, judge_audit
from hrx.reports.runs import CONFIGURATION, LARGEST, SEEDS, frame_of, without_runs
from hrx.reports.statistics import evidence
from hrx.reports.text import counted
from hrx.text import message

MOST_REASONS = 8
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
    progress = Progress()
    series = () if isinstance(data, str) else read_series(data).series
    for text in dict.fromkeys(one.note for one in series if one.note):
        progress.note(f"{text}.")
    held = [held for one in models if not isinstance(one, str) for held in held_models(one)]
    if held and workers:
        raise HrxError(f"workers={workers}: a model in memory runs in this process only. Drop workers, or give a name.")
    named = tuple(one for one in models if isinstance(one, str))
    # Messages name the source by this text.
    source = data if isinstance(data, str) else f"the given {type(data).__name__}"
    given = {"models": named, "data": source, "out": out, "settings": settings, "workers": workers, **options}
    request = from_keywords(AuditRequest, given, "run_audit")
    with progress.running("hrx.run_audit"):
        result = perform(request, held, held_datasets(series, "data"), progress=progress, tell=True)
        if result.exit > 128:  # that of a signal
            raise KeyboardInterrupt
        for sentence in result.notes:
            progress.note(f"run_audit: {sentence}")
    return result


@dataclass(frozen=True)
class AuditResult(AuditSummary):
    """What an audit found, with what the command tells beside it; `exit` is 130 or 143 where a signal ended it."""

    gates: Sequence[Judged] = ()
    without_runs: Mapping[str, int] = field(default_factory=dict)
    """Number of planned runs of each model of which none is stored."""
    keys: frozenset[str] = frozenset()
    """Keys of the planned runs; empty where a second signal ended it before anything was summarised."""
    interrupted: bool = False
    """Whether a signal or the loss of all workers ended it."""
    notes: tuple[str, ...] = ()
    """Why it ended before its plan was complete, and what could not be written, such as on a full disk."""
    figures: Sequence[Path] = ()
    """The heat map; the page has one for each model and dataset."""


def perform(
    request: AuditRequest,
    models: Sequence[Forecaster] = (),
    datasets: Sequence[Dataset] = (),
    *,
    progress: Progress,
    tell: bool = False,
) -> AuditResult:
    """Plan, measure what the ledger does not hold, summarise, and draw one heat map.

    `models` and `datasets` are those in memory, beside the names of the request. Signals end it after the running
    tasks. With `tell`, the progress says how many runs there are.
    """
    result = _measure_and_summarise(request, models, datasets, progress, tell)
    if not result.keys or result.interrupted:
        return result
    progress.stage("drawing heat maps")
    try:
        with noting_damage(progress):
            return replace(result, figures=heatmaps(result.ledger, request.out, result.keys, 1))
    except NotWritten as error:
        return replace(result, exit=result.exit or Exit.INCOMPLETE, notes=(*result.notes, str(error)))


def _measure_and_summarise(
    request: AuditRequest,
    models: Sequence[Forecaster],
    datasets: Sequence[Dataset],
    progress: Progress,
    tell: bool,
) -> AuditResult:
    stop = Stop(progress, request.budget)
    plan = plan_audit(request, progress, models, datasets)
    existed = os.path.lexists(plan.ledger)
    check_directory(request.out, "--out")
    if not existed:
        check_target(plan.ledger, "--ledger")
    absent = [folder for folder in plan.ledger.absolute().parents if not folder.exists()]
    try:
        with noting_damage(progress):
            # First, because another interpreter may refuse the request, which leaves no ledger behind then.
            elsewhere = [run for other in plan.others for run in other.plan(estimate=False)]
            plans, ended = _measure_missing(plan, elsewhere, stop, progress, tell)
    except HrxError:
        if not existed:  # refused before its first run: nothing stays, unless another audit has begun to use the ledger
            used = False
            with suppress(LedgerError, OSError), Ledger.open(plan.ledger, create=False, warn=False) as opened:
                used = bool(opened.rows()) or len(opened.audits()) > 1
            if not used:
                plan.ledger.unlink(missing_ok=True)  # SQLite refuses to write to a file that was removed
                with suppress(OSError):  # a folder that is not empty stays
                    for folder in absent:
                        folder.rmdir()
        raise
    if not plans:
        return ended
    # A damaged run of this plan has been measured again; what is damaged beside the plan is named here.
    with noting_damage(progress) as damaged:
        progress.stage("reading the ledger")
        return _summarise(request, ended, plans, damaged)


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


def _measure_missing(
    plan: AuditPlan,
    elsewhere: Sequence[PlannedRun],
    stop: Stop,
    progress: Progress,
    tell: bool,
) -> tuple[list[StoredPlan], AuditResult]:
    """Store the plan and measure its missing runs; return the plans, none after a second signal, and how it ended."""
    measuring, plans, ended = False, list[StoredPlan](), AuditResult((), plan.ledger, Exit.DONE)
    try:
        with Ledger.open(plan.ledger, warn=False) as ledger:
            refuse_damaged(ledger)
            stored = ledger.records(run.key for run in plan.runs)
            planned = summarise_plan(plan.runs, ledger.finished(run.key for run in plan.runs), {}) + list(elsewhere)
            keys: dict[tuple[str, str], list[str]] = {}
            for run in planned:
                keys.setdefault((run.model, run.fingerprint), []).append(run.key)
            until = plan.request.until or ""
            plans = [StoredPlan.of(*model, until, of_model, utc_now()) for model, of_model in keys.items()]
            if tell:
                progress.note(headline(planned, plan.request))
            settings = StoredAudit(utc_now(), __version__, json.dumps(plan.request.stored(), sort_keys=True))
            if any(run.state != "stored" for run in planned):
                ledger.write_audit(settings)
                ledger.write_all(plans)
            measuring, code, because = True, int(Exit.DONE), ""
            try:
                with stop.on_signals():
                    _measure(plan, stored, ledger, stop, progress)
            except Stopped:
                plans = []
            except ExecutorLost as error:
                code, because = Exit.INCOMPLETE, str(error)
            every = {run.key for run in planned}
            if stop.number is not None and not because:
                code, because = stop.exit, "stopped."
            elif stop.over and not because and ledger.finished(every) != every:
                because = "--budget is over."
            if because:
                notes = (f"{because} {stored_part(plan, ledger)}",)
                ended = replace(ended, exit=code, notes=notes, interrupted=code != Exit.DONE)
    except LedgerError as error:
        if not measuring:
            raise
        ended = replace(ended, exit=Exit.INCOMPLETE, notes=(str(error),))  # the verdict is that of the stored runs
    return plans, ended


def _measure(plan: AuditPlan, stored: Sequence[Record], ledger: Ledger, stop: Stop, progress: Progress) -> None:
    """Measure the missing runs, here and in other interpreters."""
    finished = ledger.finished(run.key for run in plan.runs)
    if missing := [run for run in plan.runs if run.key not in finished]:
        with closing(open_executor(plan.workers, plan.request, len(missing))) as executor:
            execute(
                plan.runs,
                ledger,
                executor,
                progress=AuditProgress(plan.runs, stored, stop, progress).stored,
                stopping=stop,
                on_start=announcer(plan.runs, progress),
                until_decided=plan.request.until == "decided",
            )
    progress.pause()  # another interpreter shows its own progress
    for other in plan.others:
        if not stop():
            other.audit(stop)


def _summarise(
    request: AuditRequest, ended: AuditResult, plans: Sequence[StoredPlan], damaged: Sequence[str]
) -> AuditResult:
    """Return the result of the planned runs, whatever else the ledger holds; `damaged` grows while it is read.

    A failed admission check or gate decides the exit code first, then gates that are not decided, then what is missing.
    """
    keys = frozenset(key for plan in plans for key in plan.run_keys)
    with Ledger.open(ended.ledger, create=False) as ledger:
        frame, checks = frame_of(ledger), ledger.checks()
    frame = frame[frame["key"].isin(keys)]
    if request.equivalence is not None:
        frame.attrs["equivalence"] = request.equivalence
    backbones = summarise_backbones(frame, checks, plans)
    gates = judge_audit(request.gate, frame, by_backbone=bool(backbones))
    absent = without_runs(frame, plans)
    code: int = Exit.GATE_FAILED
    if not frame["check_failed"].notna().any():
        code = exit_code(gates, request.undecided)
    if code == Exit.DONE and (absent or damaged or (frame["status"] == FAILED).any()):
        code = Exit.INCOMPLETE
    return replace(
        ended,
        models=tuple(summarise(frame, checks, plans)),
        exit=ended.exit if ended.interrupted else code or ended.exit,
        backbones=tuple(backbones),
        gates=gates,
        without_runs=absent,
        keys=keys,
        asked=as_settings(request),
    )


class AuditProgress:
    """Reports the storing of runs, and the verdict so far now and then."""

    def __init__(self, runs: Sequence[Run], stored: Iterable[Record], stop: Stop, progress: Progress):
        finished = {record.key: record for record in stored if record.status != FAILED}
        missing = [run for run in runs if run.key not in finished]
        # The time of a run grows about with L + H, and the finished runs give the scale; a run that is refused takes
        # none.
        weights = {run.key: 0.0 if run.refusal else float(sum(astuple(run.setting))) for run in missing}
        self._stop, self._progress, self._due = stop, progress, 0.0
        self._records = list(finished.values())
        progress.expect(len(runs), weights)

    def stored(self, run: Run, record: Record) -> None:
        """One more run is stored."""
        self._records.append(record)
        if (began := time.monotonic()) >= self._due:
            self._progress.so_far(verdict_so_far(self._records, str(record.model)))
            now = time.monotonic()
            self._due = now + max(1.0, 50 * (now - began))  # at most every second, and 2 % of the audit's time
        stopping = self._stop.number is not None
        self._progress.step(run.key, STOPPING if stopping else f"{label(run)} {record.status}")


def verdict_so_far(records: Iterable[Record], model: str) -> str:
    """`g_margin` of a model over its runs that beat naive, seeds folded, as at the end; empty where none is stored."""
    runs = [record for record in records if record.model == model]
    scored = [run for run in runs if run.status == DONE]
    failed = sum(run.status == FAILED for run in runs)
    if not scored and not failed:
        return ""
    gains: dict[tuple[object, ...], dict[tuple[object, ...], float]] = {}
    for run in scored:
        short = run.variance_span is not None and run.variance_span < SHORTEST_SPAN
        if run.beats_naive == 1 and not short and run.g_margin is not None and abs(run.g_margin) <= LARGEST:
            configuration, seeds = (tuple(getattr(run, name) for name in names) for names in (CONFIGURATION, SEEDS))
            gains.setdefault(configuration, {})[seeds] = run.g_margin
    figure = "no run beats both naive forecasts" if scored else "no run is scored"
    if gains:
        means = [math.fsum(seeds.values()) / len(seeds) for seeds in gains.values()]
        found = evidence(means, *([str(one[CONFIGURATION.index(name)]) for one in gains] for name in _CLUSTERS))
        figure = f"g_margin {found}, positive in {found.positive} of {found.counted} that beat naive"
    return f"So far, {model}: {figure}{f'; {failed} failed' if failed else ''}; not final"


def estimate_audit(request: AuditRequest, progress: Progress) -> tuple[AuditRequest, list[PlannedRun]]:
    """Plan an audit and estimate the cost of each run: every model is loaded. Nothing is written.

    Return the request, with every default that decides a number filled in, and the runs.
    """
    plan = plan_audit(request, progress)
    progress.say("loading each model and timing one window of each setting")
    with noting_damage(progress):
        return plan.request, _planned_runs(plan, estimate=True)


def _planned_runs(plan: AuditPlan, *, estimate: bool) -> list[PlannedRun]:
    """Return the runs of this and of other interpreters; with `estimate`, with the cost of each."""
    finished: set[str] = set()
    if os.path.exists(plan.ledger):
        with suppress(EmptyLedger), Ledger.open(plan.ledger, create=False) as ledger:
            finished = ledger.finished(run.key for run in plan.runs)
    costs: Costs = {}
    if estimate:
        with closing(open_executor(plan.workers, replace(plan.request, engine="local"), 1)) as executor:
            costs = estimate_costs(plan.runs, finished, executor)
    planned = summarise_plan(plan.runs, finished, costs)
    return planned + [run for other in plan.others for run in other.plan(estimate=estimate)]


@dataclass(frozen=True)
class Rechecked:
    """Stored runs that were measured again."""

    results: Sequence[Recheck]
    exit: int
    damaged: Sequence[str] = ()
    """What of the ledger was left out as damaged."""
    ended: str = ""

    @property
    def same(self) -> int:
        return sum(result.same for result in self.results)


def recheck_audit(
    request: AuditRequest, count: int, progress: Progress, on_result: Callable[[Recheck], None] = lambda result: None
) -> Rechecked:
    """Measure `count` stored runs of the plan again, here and in each other interpreter, and compare."""
    if request.budget:
        raise HrxError(f"--recheck {count} measures that many runs, whatever --budget is. Drop --budget.")
    plan, stop = plan_audit(request, progress), Stop(progress)
    check_directory(request.out, "--out")
    if not os.path.exists(plan.ledger):
        raise HrxError(f"{plan.ledger} does not exist, so it holds no scored run of this plan. Audit first.")
    results: list[Recheck] = []
    with noting_damage(progress), Ledger.open(plan.ledger, create=False, warn=False) as ledger:
        refuse_damaged(ledger)
        try:
            with stop.on_signals():
                with closing(open_executor(plan.workers, plan.request, count)) as executor:
                    for checked in recheck(plan.runs, ledger, executor, count, stop, announcer(plan.runs, progress)):
                        results.append(checked)
                        on_result(checked)
                progress.pause()
                codes = [other.audit(stop, recheck=count) for other in plan.others if not stop()]
        except Stopped:
            return Rechecked([], stop.exit, ended=f"stopped. {stored_part(plan, ledger)}")
        except ExecutorLost as error:
            return Rechecked([], Exit.INCOMPLETE, ended=f"{error} {stored_part(plan, ledger)}")
        damaged = [f"{plan.ledger}: left out: {damage}" for damage in ledger.damaged]
    if stop.number is not None:
        return Rechecked(results, stop.exit, damaged)
    if not results and not codes:
        raise HrxError(f"{plan.ledger} holds no scored run of this plan. Audit first, then --recheck.")
    same = all(result.same for result in results) and not any(codes) and not damaged
    return Rechecked(results, Exit.DONE if same else Exit.INCOMPLETE, damaged)


def run_child(action: str, settings: str, count: str = "0") -> int:
    """Do the share of this interpreter, or print its `plan` or cost `estimate`; end with the parent process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        request = from_settings(AuditRequest, json.loads(settings))
        if action != "audit":
            plan = plan_audit(request, Progress(io.StringIO()))
            sys.stdout.write(json.dumps([run._asdict() for run in _planned_runs(plan, estimate=action == "estimate")]))
            return Exit.DONE
        progress = Progress()
        with progress.running("hrx audit"):
            if int(count):
                return recheck_audit(request, int(count), progress).exit
            return _measure_and_summarise(request, (), (), progress, tell=False).exit
    except HrxError as error:
        sys.stderr.write(f"{message(f'hrx audit: {error}')}\n")
        return error.exit
    except (Exception, SystemExit) as error:
        sys.stderr.write(f"{message(crash_sentence('audit', error))}\n")
        return Exit.CRASHED


def _end_with_parent() -> None:
    """Wait until standard input, a pipe from the parent, is closed."""
    while os.read(0, 1024):
        pass
    os._exit(1)  # its workers end with it
