"""`hrx audit --rank-only`: the rank of the explanation matrices, and whether the horizon axis is worth resolving.

Computes the matrices of the planned runs and nothing else: no deletion, no admission, no ledger.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from textwrap import fill
from typing import Any, NamedTuple

from hrx.adapters import ModelError
from hrx.audit.runner.executors import Executor
from hrx.audit.runner.plan import Run, Setting
from hrx.audit.runner.scheduler import ListQueue, run_tasks
from hrx.audit.runner.worker import RankRun, RunRank, Task, TaskFailed, TaskResult
from hrx.audit.scoring.quantities import RankBin, rank_bin
from hrx.cli.terminal import show
from hrx.errors import Exit
from hrx.reports import render_table
from hrx.reports.text import percent, signed

RULE = (
    "Worth it: no below rank 1.1, perhaps below 1.5, yes from 1.5. At rank 1 all rows order the lookback alike and the "
    "shared vector says everything. Gain and share of positive gains are the paper's at runs of that rank (its table "
    '"Rank predicts the gain"); an audit measures them here.'
)


class _Ranked(NamedTuple):
    """A run and its rank, or the reason why it has none."""

    run: Run
    result: RunRank


class _RankRow(NamedTuple):
    """The runs of one model, dataset and setting: medians over those that have a rank."""

    dataset: str
    setting: Setting
    runs: int
    rank: float
    entropy: float
    published: RankBin


def rank_only(runs: Sequence[Run], executor: Executor, *, as_json: bool) -> int:
    """Shows the ranks of every planned run, by model, dataset and setting; exit code 3 where a library failed."""
    models: dict[str, list[_Ranked]] = {run.identity.model: [] for run in runs}

    def collect(task: Task, result: TaskResult) -> None:
        assert isinstance(task, RankRun)
        if isinstance(result, TaskFailed):
            if result.user_error:
                raise ModelError(result.reason)
            result = RunRank(None, result.reason, failed=True)
        assert isinstance(result, RunRank)
        models[task.run.identity.model].append(_Ranked(task.run, result))

    run_tasks(ListQueue([RankRun(run) for run in runs], collect), executor)
    if as_json:
        document = {"models": [_as_json(name, ranked) for name, ranked in models.items()], "rule": RULE}
        print(json.dumps(document, indent=1))
    else:
        for name, ranked in models.items():
            _show(name, ranked)
        show(f"{fill(RULE, 80)}\nNothing was deleted, no model was admitted, and no ledger was written.")
    failed = any(one.result.failed for ranked in models.values() for one in ranked)
    return Exit.INCOMPLETE if failed else Exit.DONE


def _rows(ranked: Iterable[_Ranked]) -> list[_RankRow]:
    groups: dict[tuple[str, Setting], list[RunRank]] = {}
    for run, result in ranked:
        if result.rank is not None:
            groups.setdefault((run.dataset.name, run.setting), []).append(result)
    rows = []
    for (dataset, setting), results in groups.items():
        ranks = [result.rank for result in results if result.rank is not None]
        rank = median(one.participation for one in ranks)
        entropy = median(one.entropy for one in ranks)
        rows.append(_RankRow(dataset, setting, len(ranks), rank, entropy, rank_bin(rank)))
    return rows


def _reasons(ranked: Iterable[_Ranked]) -> Counter[str]:
    """Why runs have no rank, and how many of them."""
    return Counter(one.result.reason for one in ranked if one.result.rank is None)


def _as_json(name: str, ranked: Sequence[_Ranked]) -> dict[str, Any]:
    return {
        "model": name,
        "ranks": [
            {
                "dataset": row.dataset,
                "setting": str(row.setting),
                "runs": row.runs,
                "rank": row.rank,
                "rank_entropy": row.entropy,
                "worth": row.published.worth,
                "published_g_own": row.published.g_own,
                "published_positive": row.published.positive,
            }
            for row in _rows(ranked)
        ],
        "not_measured": [{"reason": reason, "runs": runs} for reason, runs in _reasons(ranked).items()],
    }


def _show(name: str, ranked: Sequence[_Ranked]) -> None:
    rows = _rows(ranked)
    show(f"{name}: rank of the explanation matrix, median of the runs")
    if rows:
        cells = [
            (
                row.dataset,
                str(row.setting),
                row.runs,
                f"{row.rank:.2f}",
                f"{row.entropy:.2f}",
                signed(row.published.g_own),
                percent(row.published.positive),
                row.published.worth,
            )
            for row in rows
        ]
        headings = ("dataset", "setting", "runs", "rank", "entropy", "paper's g_own", "> 0", "worth it")
        show(render_table(headings, cells))
        worth = sum(row.published.worth == "yes" for row in rows)
        show(f"Verdict: the axis is worth resolving in {worth} of {len(rows)} combinations of dataset and setting.")
    for reason, runs in _reasons(ranked).items():
        show(f"{runs} of {len(ranked)} runs were not measured: {reason}")
    show("")
