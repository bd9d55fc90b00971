"""`hrx audit --rank-only`: the rank of the explanation matrices, and whether the horizon axis is worth resolving.

Computes the matrices of the planned runs and nothing else: no deletion, no admission, no ledger.
"""

import json
from collections.abc import Sequence
from textwrap import fill
from typing import Any

import pandas as pd

from hrx.adapters import ModelError
from hrx.audit.runner.plan import Run
from hrx.audit.runner.scheduler import ListQueue, run_tasks
from hrx.audit.runner.worker import Executor, RankRun, RunRank, Task, TaskFailed, TaskResult
from hrx.cli.audit_progress import Announcer, label
from hrx.cli.progress import progress
from hrx.cli.terminal import show
from hrx.errors import Exit
from hrx.records.quantities import rank_bin
from hrx.reports import render_table
from hrx.reports.text import percent, signed

RULE = (
    "Worth it: no below rank 1.1, perhaps below 1.5, yes from 1.5. At rank 1 all rows order the lookback alike and the "
    "shared vector says everything. Gain and share of positive gains are the paper's at runs of that rank (its table "
    '"Rank predicts the gain"); an audit measures them.'
)
Row = dict[str, Any]


def rank_only(runs: Sequence[Run], executor: Executor, *, as_json: bool) -> int:
    """Shows the ranks of every planned run, by model, dataset and setting; exit code 3 where a library failed."""
    frame = _measure(runs, executor)
    models = list(dict.fromkeys(run.identity.model for run in runs))
    listed = [_summarise(model, frame[frame["model"] == model]) for model in models]
    if as_json:
        print(json.dumps({"models": listed, "rule": RULE}, indent=1))
    else:
        for model in listed:
            _show(model)
        show(f"{fill(RULE, 80)}\nNothing was deleted, no model was admitted, and no ledger was written.")
    return Exit.INCOMPLETE if frame["failed"].any() else Exit.DONE


def _measure(runs: Sequence[Run], executor: Executor) -> pd.DataFrame:
    """One row per run: its mean ranks, or the reason why it has none."""
    rows: list[Row] = []
    progress.expect(len(runs), {run.key: float(run.setting.lookback + run.setting.horizon) for run in runs})

    def collect(task: Task, result: TaskResult) -> None:
        assert isinstance(task, RankRun)
        if isinstance(result, TaskFailed):
            if result.user_error:
                raise ModelError(result.shown or result.reason)
            result = RunRank(None, result.shown or result.reason, failed=True)
        assert isinstance(result, RunRank)
        run, rank = task.run, result.rank
        row = {"model": run.identity.model, "dataset": run.dataset.name, "setting": str(run.setting)}
        ranks = {"rank": rank and rank.participation, "rank_entropy": rank and rank.entropy}
        rows.append(row | ranks | {"reason": result.reason, "failed": result.failed})
        progress.step(run.key, label(run))

    run_tasks(ListQueue([RankRun(run) for run in runs], collect), executor, on_start=Announcer(runs))
    return pd.DataFrame(rows).astype({"rank": float, "rank_entropy": float})


def _summarise(model: str, frame: pd.DataFrame) -> Row:
    """The medians by dataset and setting beside the published gains at such a rank, and why runs have no rank."""
    ranks: list[Row] = []
    measured = frame.dropna(subset="rank").groupby(["dataset", "setting"], sort=False)
    for (dataset, setting), group in measured:
        rank = float(group["rank"].median())
        published = rank_bin(rank)
        ranks.append(
            {
                "dataset": dataset,
                "setting": setting,
                "runs": len(group),
                "rank": rank,
                "rank_entropy": float(group["rank_entropy"].median()),
                "worth": published.worth,
                "published_g_own": published.g_own,
                "published_positive": published.positive,
            }
        )
    reasons = frame.loc[frame["rank"].isna(), "reason"].value_counts(sort=False)
    not_measured = [{"reason": reason, "runs": int(runs)} for reason, runs in reasons.items()]
    return {"model": model, "ranks": ranks, "not_measured": not_measured}


def _show(model: Row) -> None:
    ranks = model["ranks"]
    show(f"{model['model']}: rank of the explanation matrix, median of the runs")
    if ranks:
        cells = [
            (
                *(row["dataset"], row["setting"], row["runs"], f"{row['rank']:.2f}", f"{row['rank_entropy']:.2f}"),
                *(signed(row["published_g_own"]), percent(row["published_positive"]), row["worth"]),
            )
            for row in ranks
        ]
        headings = ("dataset", "setting", "runs", "rank", "entropy", "paper's g_own", "> 0", "worth it")
        show(render_table(headings, cells))
        worth = sum(row["worth"] == "yes" for row in ranks)
        show(f"Verdict: the axis is worth resolving in {worth} of {len(ranks)} combinations of dataset and setting.")
    total = sum(row["runs"] for row in (*ranks, *model["not_measured"]))
    for row in model["not_measured"]:
        show(f"{row['runs']} of {total} runs were not measured: {row['reason']}")
    show("")
