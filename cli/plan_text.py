"""The plan of an audit as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hrx.audit.memory import GIBIBYTE
from hrx.audit.runner.cost import PlannedRun, PlanSummary
from hrx.cli.progress import duration
from hrx.reports import render_table

MOST_REASONS = 8


def headline(plan: PlanSummary, path: Path) -> str:
    """How many runs there are, and how many the ledger holds."""
    models = len({run.model for run in plan.runs})
    datasets = len({run.dataset for run in plan.runs})
    known = sum(run.state == "stored" for run in plan.runs)
    stored = f", {known} of them stored" if known else ""
    counted = f"{models} model{'s' * (models > 1)}, {datasets} dataset{'s' * (datasets > 1)}"
    return f"{len(plan.runs)} runs ({counted}){stored}: {path}"


def plan_text(plan: PlanSummary, workers: int) -> str:
    """What is stored, what is to run and what cannot run, by model and by dataset, with the estimated cost."""
    parts = [_by_model(plan, workers), _by_dataset(plan.runs), reasons_text(plan.runs), "\n".join(plan.notes)]
    return "\n\n".join(part for part in parts if part)


def _by_model(plan: PlanSummary, workers: int) -> str:
    rows = []
    for model in dict.fromkeys(run.model for run in plan.runs):
        mine = [run for run in plan.runs if run.model == model]
        states = Counter(run.state for run in mine)
        memory = plan.memory.get(model)
        rows.append(
            (
                model,
                str(len(mine)),
                str(states["stored"]),
                str(states["to run"]),
                str(states["cannot run"]),
                _about([run for run in mine if run.state == "to run"], workers),
                f"about {memory * workers / GIBIBYTE:.1f} GiB" if memory else "-",
            )
        )
    return render_table(("model", "runs", "stored", "to run", "cannot run", "time", "memory"), rows).rstrip()


def _about(runs: Sequence[PlannedRun], workers: int) -> str:
    """The time of the missing runs; a setting without an estimate counts as the mean of the others."""
    known = [run.seconds for run in runs if run.seconds is not None]
    return f"about {duration(sum(known) / len(known) * len(runs) / workers)}" if known else "-"


def _by_dataset(runs: Sequence[PlannedRun]) -> str:
    models = list(dict.fromkeys(run.model for run in runs))
    counts = Counter((run.dataset, run.model, run.state) for run in runs)

    def cell(dataset: str, model: str) -> str:
        stored, left, cannot = (counts[dataset, model, state] for state in ("stored", "to run", "cannot run"))
        parts = [f"{left} to run"] * bool(left) + [f"{stored} stored"] * bool(stored) + [f"{cannot} not"] * bool(cannot)
        return ", ".join(parts) or "-"

    rows = [
        (dataset, *(cell(dataset, model) for model in models)) for dataset in dict.fromkeys(run.dataset for run in runs)
    ]
    return render_table(("dataset", *models), rows).rstrip()


def reasons_text(runs: Sequence[PlannedRun]) -> str:
    """Why runs cannot run, the most common reason first."""
    counted = Counter(run.reason for run in runs if run.state == "cannot run")
    lines = [f"{count} cannot run: {reason}" for reason, count in counted.most_common(MOST_REASONS)]
    if len(counted) > MOST_REASONS:
        lines.append(f"… and {len(counted) - MOST_REASONS} more reasons; --dry-run --json lists every run")
    return "\n".join(lines)
