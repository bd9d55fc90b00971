"""`hrx audit --rank-only`: the rank of the explanation matrices, and whether the axis is worth resolving on these data.

Estimates the matrices of the planned runs and stops there: nothing is deleted, no model is admitted, and no ledger is
written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from statistics import median
from textwrap import fill
from typing import Any, NamedTuple

from hrx.adapters import Forecaster, Located
from hrx.audit.memory import Budget
from hrx.audit.runner.plan import Run, Setting
from hrx.audit.runner.run import rank_run
from hrx.audit.runner.worker import ModelKey
from hrx.audit.scoring.rank_bins import RankBin, rank_bin
from hrx.audit.scoring.score import Unscorable
from hrx.cli.screen import show
from hrx.errors import Exit, describe_error
from hrx.gift_eval import UnusableSeries
from hrx.reports import render_table
from hrx.reports.text import percent, signed

RULE = (
    "Worth it: no below rank 1.1, perhaps below 1.5, yes from 1.5. At rank 1 all rows order the lookback alike and the "
    "shared vector says everything. Gain and share of positive gains are the paper's at runs of that rank (its table "
    '"Rank predicts the gain"); what they are here, only an audit tells.'
)


class _Found(NamedTuple):
    """The ranks of one run, means over its windows, or why there are none."""

    run: Run
    rank: float
    entropy: float
    reason: str = ""
    failed: bool = False


class _Row(NamedTuple):
    """The runs of one model, dataset and setting: medians over those that have a rank."""

    dataset: str
    setting: Setting
    runs: int
    rank: float
    entropy: float
    published: RankBin


def rank_only(models: Sequence[Located], runs: Sequence[Run], memory: int, *, as_json: bool) -> int:
    """Shows the ranks of every planned run, by model, dataset and setting; exit code 3 where a library failed."""
    found: dict[str, list[_Found]] = {}
    for located in models:
        model = located.load()
        mine = [run for run in runs if ModelKey.of(run.identity) == ModelKey.of(located.identity)]
        found[located.identity.model] = [_measure(model, run, Budget(memory)) for run in mine]
    if as_json:
        print(json.dumps({"models": [_as_json(name, each) for name, each in found.items()], "rule": RULE}, indent=1))
    else:
        for name, each in found.items():
            _show(name, each)
        show(f"{fill(RULE, 80)}\nNothing was deleted, no model was admitted, and no ledger was written.")
    return Exit.INCOMPLETE if any(one.failed for each in found.values() for one in each) else Exit.DONE


def _measure(model: Forecaster, run: Run, budget: Budget) -> _Found:
    nothing = float("nan")
    if refusal := model.limits.refusal(run.setting.lookback, run.setting.horizon):
        return _Found(run, nothing, nothing, f"{model.identity.model} {refusal}")
    try:
        ranks = rank_run(model.for_season(run.dataset.season), run, budget)
    except (Unscorable, UnusableSeries) as error:
        return _Found(run, nothing, nothing, str(error))
    except Exception as error:  # a library may raise anything: one run must not end the rest
        return _Found(run, nothing, nothing, describe_error(error), failed=True)
    mean = ranks.mean()
    if mean.dropped == len(ranks.participation):
        return _Found(run, nothing, nothing, "the matrix of every window is zero: nothing is read")
    return _Found(run, mean.participation, mean.entropy)


def _rows(found: Iterable[_Found]) -> list[_Row]:
    groups: dict[tuple[str, Setting], list[_Found]] = {}
    for one in found:
        if not one.reason:
            groups.setdefault((one.run.dataset.name, one.run.setting), []).append(one)
    return [
        _Row(dataset, setting, len(group), rank, median(one.entropy for one in group), rank_bin(rank))
        for (dataset, setting), group in groups.items()
        for rank in [median(one.rank for one in group)]
    ]


def _reasons(found: Iterable[_Found]) -> dict[str, int]:
    """Why runs have no rank, and how many of them."""
    reasons: dict[str, int] = {}
    for one in found:
        if one.reason:
            reasons[one.reason] = reasons.get(one.reason, 0) + 1
    return reasons


def _as_json(name: str, found: Sequence[_Found]) -> dict[str, Any]:
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
            for row in _rows(found)
        ],
        "not_measured": [{"reason": reason, "runs": runs} for reason, runs in _reasons(found).items()],
    }


def _show(name: str, found: Sequence[_Found]) -> None:
    rows = _rows(found)
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
    for reason, runs in _reasons(found).items():
        show(f"{runs} of {len(found)} runs were not measured: {reason}")
    show("")
