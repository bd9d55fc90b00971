"""The plan in words and tables, for a person who is about to wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hrx.audit.memory import GIBIBYTE
from hrx.audit.runner.forecasted_plan import Outlook, Planned
from hrx.cli.progress import duration
from hrx.reports import render_table

MOST_DATASETS = 12
"""A longer list is for `--dry-run`."""
MOST_REASONS = 8


def opening(outlook: Outlook, path: Path) -> str:
    """The first line."""
    models = len({run.model for run in outlook.runs})
    datasets = len({run.dataset for run in outlook.runs})
    known = sum(run.state == "stored" for run in outlook.runs)
    stored = f", {known} of them in the ledger already" if known else ""
    counted = f"{models} model{'s' * (models > 1)}, {datasets} dataset{'s' * (datasets > 1)}"
    return f"{len(outlook.runs)} runs ({counted}){stored}: {path}"


def plan_text(outlook: Outlook, workers: int, *, full: bool) -> str:
    """What is stored, what is left and what cannot run; by dataset too where the list is short or `full`."""
    parts = [_by_model(outlook, workers)]
    if full or len({run.dataset for run in outlook.runs}) <= MOST_DATASETS:
        parts.append(_by_dataset(outlook.runs))
    parts += [_reasons(outlook.runs), "\n".join(outlook.notes)]
    return "\n\n".join(part for part in parts if part)


def _by_model(outlook: Outlook, workers: int) -> str:
    rows = []
    for model in dict.fromkeys(run.model for run in outlook.runs):
        mine = [run for run in outlook.runs if run.model == model]
        states = Counter(run.state for run in mine)
        memory = outlook.memory.get(model)
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


def _about(runs: Sequence[Planned], workers: int) -> str:
    """The time of what is left; a setting without a probe counts as the mean of the others."""
    known = [run.seconds for run in runs if run.seconds is not None]
    return f"about {duration(sum(known) / len(known) * len(runs) / workers)}" if known else "-"


def _by_dataset(runs: Sequence[Planned]) -> str:
    models = list(dict.fromkeys(run.model for run in runs))
    counts = Counter((run.dataset, run.model, run.state) for run in runs)

    def cell(dataset: str, model: str) -> str:
        stored, left, cannot = (counts[dataset, model, state] for state in ("stored", "to run", "cannot run"))
        told = [f"{left} to run"] * bool(left) + [f"{stored} stored"] * bool(stored) + [f"{cannot} not"] * bool(cannot)
        return ", ".join(told) or "-"

    rows = [
        (dataset, *(cell(dataset, model) for model in models)) for dataset in dict.fromkeys(run.dataset for run in runs)
    ]
    return render_table(("dataset", *models), rows).rstrip()


def _reasons(runs: Sequence[Planned]) -> str:
    """Why runs cannot run, the commonest first."""
    counted = Counter(run.reason for run in runs if run.state == "cannot run")
    lines = [f"{count} cannot run: {reason}" for reason, count in counted.most_common(MOST_REASONS)]
    if len(counted) > MOST_REASONS:
        lines.append(f"… and {len(counted) - MOST_REASONS} more reasons; --dry-run --json lists every run")
    return "\n".join(lines)
