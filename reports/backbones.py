"""Trained models grouped by backbone: what an audit of many trainings shows, as numbers and as terminal text.

A training is one model, audited on one series at one setting, so a verdict on each says nothing. The verdict on a
backbone follows the rules of every other verdict over the runs of all its models. As in `hrx tables`, each model is a
configuration of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pandas as pd

from hrx.audit.ledger.record import DONE, EXCLUDED, FAILED
from hrx.audit.ledger.store import StoredCheck, StoredPlan
from hrx.reports.reasons import INDENT, LONGEST_REASON, NO_REASON
from hrx.reports.runs import beats_naive, median, scored_runs, training_facts
from hrx.reports.summary import GAINS, ModelSummary, summarise_group
from hrx.reports.summary_text import render
from hrx.reports.text import clean, counted, hanging, listed, number_or_none, render_table, shorten, signed

MOST_CELLS = 48
"""Rows of the table by dataset and setting; a longer one is left to the page and to `hrx tables`."""
_MOST_UNSCORED = 8
_OF_ONE_TRAINING = (
    "best_epoch", "validation_mse", "dataset", "series", "training_rows", "validation_rows", "device",
)  # fmt: skip
"""Facts of a training that differ between the models of one backbone without making them another recipe."""


class BackboneCell(NamedTuple):
    """Medians over the scored runs of some models of one backbone; NaN without any."""

    dataset: str
    setting: str
    models: int
    scored: int
    g_own: float
    g_shuffled: float
    g_margin: float
    mse: float
    beating_naive: int

    @property
    def row(self) -> tuple[str, ...]:
        """Gains, error and naive verdicts as cells of a text table."""
        gains = (signed(getattr(self, name)) for name in GAINS)
        error = number_or_none(self.mse)
        beats = f"{self.beating_naive} of {self.scored}" if self.scored else "-"
        return (*gains, "-" if error is None else f"{error:.3f}", beats)

    def as_json(self) -> dict[str, object]:
        numbers = {name: number_or_none(getattr(self, name)) for name in (*GAINS, "mse")}
        return {**self._asdict(), **numbers}


@dataclass(frozen=True)
class BackboneSummary:
    """The results of all models of one backbone."""

    backbone: str
    summary: ModelSummary
    """Of all their runs; its `model` is the backbone."""
    total: BackboneCell
    """Over all of them, with neither dataset nor setting."""
    cells: tuple[BackboneCell, ...]
    """By dataset and setting."""
    unscored: tuple[str, ...]
    """Each excluded or failed run: its status, model and reason."""

    def as_json(self) -> dict[str, object]:
        """The object of `hrx audit --json`: that of a model, with the cells."""
        own = ("model", "checkpoint")
        of_group = {name: value for name, value in self.summary.as_json().items() if name not in own}
        return {
            "backbone": self.backbone,
            "models": self.total.models,
            **of_group,
            "mse": number_or_none(self.total.mse),
            "cells": [cell.as_json() for cell in self.cells],
            "unscored": list(self.unscored),
        }


def is_grouped(frame: pd.DataFrame) -> bool:
    """Whether some backbone has several models: then the trained models are shown by backbone."""
    trained = trained_runs(frame)
    models = trained.drop_duplicates(["model", "fingerprint"])
    return bool(models["backbone"].duplicated().any())


def trained_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs of models that name their class."""
    return frame[(frame["backbone"].fillna("") != "").to_numpy(dtype=bool)]


def summarise_backbones(
    frame: pd.DataFrame, checks: Sequence[StoredCheck], plans: Sequence[StoredPlan] = ()
) -> list[BackboneSummary]:
    """One summary per backbone in the order of the frame's rows; empty where no backbone has several models."""
    if not is_grouped(frame):
        return []
    groups = trained_runs(frame).groupby("backbone", sort=False)
    return [_summarise(str(name), runs, checks, plans) for name, runs in groups]


def _summarise(
    name: str, runs: pd.DataFrame, checks: Sequence[StoredCheck], plans: Sequence[StoredPlan]
) -> BackboneSummary:
    summary = summarise_group(runs, checks, plans)
    because = " ".join([summary.because, *_recipes(runs)])
    cells = [
        _cell(part, str(dataset), f"{lookback}x{horizon}")
        for (dataset, lookback, horizon), part in runs.groupby(["dataset", "lookback", "horizon"])
    ]
    unscored = runs[runs["status"] != DONE]
    reasons = tuple(
        f"{row.status}: {clean(row.model)}: {shorten(clean(row.reason or NO_REASON), LONGEST_REASON)}"
        for row in unscored.itertuples()
    )
    named = replace(summary, model=name, checkpoint=name, fingerprint="", because=because)
    return BackboneSummary(name, named, _cell(runs, "", ""), tuple(cells), reasons)


def _cell(runs: pd.DataFrame, dataset: str, setting: str) -> BackboneCell:
    done = scored_runs(runs)
    own, shuffled, margin, mse = (median(done[name]) for name in (*GAINS, "mse"))
    models = len(runs.drop_duplicates(["model", "fingerprint"]))
    beating = int(beats_naive(done).sum())
    return BackboneCell(dataset, setting, models, len(done), own, shuffled, margin, mse, beating)


def _recipes(runs: pd.DataFrame) -> Iterator[str]:
    """A sentence where the models of a backbone were trained in different manners."""
    facts = [training_facts(text) for text in runs["training"].unique()]
    differing = ["depth"] if runs["depth"].nunique(dropna=False) > 1 else []
    for name in dict.fromkeys(name for one in facts for name in one):
        if name not in _OF_ONE_TRAINING and len({str(one.get(name)) for one in facts}) > 1:
            differing.append(name)
    if differing:
        yield f"Pools trainings that differ in {listed(differing)}."


def render_audit(summaries: Sequence[ModelSummary], backbones: Sequence[BackboneSummary], width: int = 80) -> str:
    """Everything that an audit shows: the trained models by backbone, and every other model with its own verdict."""
    if not backbones:
        return render(summaries, width)
    others = [summary for summary in summaries if not summary.backbone]
    parts = [_render_groups(backbones, width), *([render(others, width)] if others else [])]
    return "\n".join(parts)


def _render_groups(backbones: Sequence[BackboneSummary], width: int) -> str:
    return "\n".join(_lines(backbones, width)) + "\n"


def _lines(backbones: Sequence[BackboneSummary], width: int) -> Iterator[str]:
    models = sum(one.total.models for one in backbones)
    runs, scored, excluded, failed = (
        sum(getattr(one.summary, name) for one in backbones) for name in ("runs", "done", "excluded", "failed")
    )
    of = f"{counted(models, 'trained model')} of {counted(len(backbones), 'backbone')}"
    counts = f"{counted(runs, 'run')}: {scored} scored, {excluded} excluded, {failed} failed"
    yield from hanging(
        "", f"{of}, {counts}. Medians over all scored runs; a verdict counts those that beat naive.", width
    )
    yield ""
    figures = (*GAINS, "MSE", "beats naive")
    rows = [(clean(one.backbone), str(one.total.models), *one.total.row) for one in backbones]
    yield render_table(("backbone", "models", *figures), rows, width)
    cells = [
        (clean(one.backbone), clean(cell.dataset), cell.setting, *cell.row) for one in backbones for cell in one.cells
    ]
    if len(cells) <= MOST_CELLS:
        yield render_table(("backbone", "dataset", "setting", *figures), cells, width)
    else:
        yield f"By dataset and setting there are {len(cells)} rows: see the page, or hrx tables.\n"
    for one in backbones:
        yield from hanging(f"{clean(one.backbone)}: ", clean(one.summary.verdict), width)
    for status in (EXCLUDED, FAILED):
        yield from _unscored([text for one in backbones for text in one.unscored if text.startswith(status)], width)


def _unscored(runs: Sequence[str], width: int) -> Iterator[str]:
    """The excluded or the failed runs, the first of them by name."""
    if runs:
        yield ""
    for text in runs[:_MOST_UNSCORED]:
        yield from hanging(INDENT, text, width)
    if len(runs) > _MOST_UNSCORED:
        status = runs[0].partition(":")[0]
        yield f"{INDENT}… and {counted(len(runs) - _MOST_UNSCORED, 'run')} more {status}: the page and --json name all."
