"""What an audit shows, as text and in a notebook: models of `hrx train` by backbone, every other model by itself.

A training is one model, audited on one series at one setting, so a verdict on each says nothing. The verdict on a
backbone follows the rules of every other verdict over the runs of all its models, each a configuration of its own, as
in `hrx tables`. Models that a user named are variants to compare, so each keeps a verdict of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from hrx.records.quantities import GAINS
from hrx.records.record import DONE, EXCLUDED, FAILED, StoredCheck, StoredPlan
from hrx.reports.context import context_lines
from hrx.reports.page import render_macro
from hrx.reports.runs import (
    LONGEST_REASON,
    NO_REASON,
    backbone_progress,
    beats_naive,
    fold_seeds,
    planned_models,
    read,
    reason_kinds,
    scored_runs,
    trained_by_hrx,
    training_facts,
)
from hrx.reports.screen import MOST_WEAKNESSES, FirstScreen, model_screen, next_commands, several_screen
from hrx.reports.statistics import median
from hrx.reports.summary import GAIN_HEADS, ModelSummary, equivalence_bound, summarise_runs
from hrx.reports.text import (
    INDENT,
    clean,
    counted,
    hanging,
    listed,
    number_or_none,
    render_table,
    shorten,
    signed,
)

_NARROWEST = 40
MOST_CELLS = 48
"""Rows of the table by dataset and setting; a longer one is left to the page and to `hrx tables`."""
_MOST_UNSCORED = 8
_OF_ONE_TRAINING = (
    "best_epoch", "validation_mse", "dataset", "series", "training_rows", "validation_rows", "device",
)  # fmt: skip
"""Facts of a training that differ between the models of one backbone without making them another recipe."""
_MOST_REASONS = 8


class BackboneCell(NamedTuple):
    """Medians over the scored runs of some models of one backbone, window seeds folded; NaN without any."""

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
    """Results of all models of one backbone."""

    backbone: str
    summary: ModelSummary
    """Of all their runs; its `model` is the backbone."""
    total: BackboneCell
    """Over all of them, with neither dataset nor setting."""
    cells: tuple[BackboneCell, ...]
    """By dataset and setting."""
    unscored: tuple[str, ...]
    """Each excluded or failed run: its status, model and reason."""
    members: frozenset[tuple[str, str]]
    """Name and fingerprint of each model."""

    def holds(self, model: ModelSummary) -> bool:
        return (model.model, model.fingerprint) in self.members

    def as_json(self) -> dict[str, object]:
        """Object of `hrx audit --json`: that of a model, with the cells."""
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


def summarise_backbones(
    frame: pd.DataFrame, checks: Sequence[StoredCheck], plans: Sequence[StoredPlan] = ()
) -> list[BackboneSummary]:
    """One summary per backbone of `hrx train` in the order of the frame's rows; empty where none has several models."""
    trained = frame[trained_by_hrx(frame)]
    if not trained.drop_duplicates(["model", "fingerprint"])["backbone"].duplicated().any():
        return []
    planned = planned_models(frame, plans)
    found = []
    for name, runs in trained.groupby("backbone", sort=False):
        summary = summarise_runs(runs, checks, backbone_progress(planned, runs, str(name)), equivalence_bound(frame))
        because = " ".join([summary.because, *_recipes(runs)])
        cells = [
            _cell(part, str(dataset), f"{lookback}x{horizon}")
            for (dataset, lookback, horizon), part in runs.groupby(["dataset", "lookback", "horizon"])
        ]
        reasons = tuple(
            f"{row.status}: {clean(row.model)}: {shorten(clean(row.reason or NO_REASON), LONGEST_REASON)}"
            for row in runs[runs["status"] != DONE].itertuples()
        )
        named = replace(summary, model=str(name), checkpoint=str(name), fingerprint="", because=because)
        members = frozenset(zip(runs["model"].astype(str), runs["fingerprint"].astype(str), strict=True))
        found.append(BackboneSummary(str(name), named, _cell(runs, "", ""), tuple(cells), reasons, members))
    return found


def _cell(runs: pd.DataFrame, dataset: str, setting: str) -> BackboneCell:
    done = scored_runs(runs)
    folded = fold_seeds(done, (*GAINS, "mse"))
    own, shuffled, margin, mse = (median(folded[name]) for name in (*GAINS, "mse"))
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


def render(summaries: Sequence[ModelSummary], width: int = 80) -> str:
    """All summaries as terminal text, in lines of at most `width` columns (never fewer than 40)."""
    if not summaries:
        return "The ledger holds no runs.\n"
    width = max(width, _NARROWEST)
    return "\n".join("\n".join(_model_lines(summary, width)) + "\n" for summary in summaries)


def _model_lines(summary: ModelSummary, width: int) -> Iterator[str]:
    yield shorten(summary.title, width)
    for label, fact in summary.facts.items():
        yield from hanging(f"{INDENT}{label:<10}", fact, width)
    if summary.done:
        rows = [(name, *group.evidence[name].cells) for _, group in summary.groups for name in GAINS]
        head, rule, *lines = render_table(GAIN_HEADS, rows, width - len(INDENT)).splitlines()
        yield from ("", INDENT + head, INDENT + rule)
        for index, (title, group) in enumerate(summary.groups):
            yield from hanging(INDENT, f"{title} ({group.size})", width)
            yield from (INDENT + line for line in lines[index * len(GAINS) : (index + 1) * len(GAINS)])
    yield ""
    yield from hanging(f"{INDENT}Verdict: ", clean(summary.verdict), width)
    yield from context_lines(summary.contexts, width)
    for status, reasons in (("Excluded", summary.exclusions), ("Failed", summary.failures)):
        if reasons:
            yield from ("", f"{INDENT}{status} ({counted(sum(reasons.values()), 'run')})")
            kinds = reason_kinds(reasons)
            shown = [(one.runs, one.example) for one in kinds[:_MOST_REASONS]]
            if rest := kinds[_MOST_REASONS:]:
                shown.append((sum(one.runs for one in rest), f"for {counted(len(rest), 'other reason')}"))
            for runs, text in shown:
                yield from hanging(f"{INDENT}{runs:>6}  ", text, width)


def render_audit(summaries: Sequence[ModelSummary], backbones: Sequence[BackboneSummary], width: int = 80) -> str:
    """All that an audit shows: the models of `hrx train` by backbone, and every other model with its own verdict."""
    if not backbones:
        return render(summaries, width)
    shown = "\n".join(_backbone_lines(backbones, width)) + "\n"
    others = _others(summaries, backbones)
    return f"{shown}\n{render(others, width)}" if others else shown


def _others(summaries: Sequence[ModelSummary], backbones: Sequence[BackboneSummary]) -> list[ModelSummary]:
    return [summary for summary in summaries if not any(one.holds(summary) for one in backbones)]


def _backbone_lines(backbones: Sequence[BackboneSummary], width: int) -> Iterator[str]:
    yield from hanging("", _counts(backbones), width)
    yield ""
    for heads, rows in _tables(backbones):
        yield render_table(heads, rows, width)
    if (cells := sum(len(one.cells) for one in backbones)) > MOST_CELLS:
        yield f"By dataset and setting there are {cells} rows: see the page, or hrx tables.\n"
    for one in backbones:
        yield from hanging(f"{clean(one.backbone)}: ", clean(one.summary.verdict), width)
    for status in (EXCLUDED, FAILED):
        if unscored := _unscored(backbones, status):
            yield ""
            for text in unscored:
                yield from hanging(INDENT, text, width)


def _of_backbones(models: Sequence[ModelSummary], backbones: Sequence[BackboneSummary]) -> str:
    """`12 trained models of 2 backbones`, and how many `models` are of none."""
    trained = counted(sum(one.total.models for one in backbones), "trained model")
    others = len(_others(models, backbones))
    return f"{trained} of {counted(len(backbones), 'backbone')}" + (f", {counted(others, 'other')}" if others else "")


def _counts(backbones: Sequence[BackboneSummary]) -> str:
    """What the tables hold."""
    runs, scored, excluded, failed = (
        sum(getattr(one.summary, name) for one in backbones) for name in ("runs", "done", "excluded", "failed")
    )
    of = _of_backbones((), backbones)
    counts = f"{counted(runs, 'run')}: {scored} scored, {excluded} excluded, {failed} failed"
    return f"{of}, {counts}. Medians over all scored runs, window seeds folded; a verdict counts those that beat naive."


def _tables(backbones: Sequence[BackboneSummary]) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Heads and rows of each table: by backbone, and by dataset and setting where these are not too many."""
    figures = (*GAINS, "MSE", "beats naive")
    totals = [(clean(one.backbone), str(one.total.models), *one.total.row) for one in backbones]
    cells = [
        (clean(one.backbone), clean(cell.dataset), cell.setting, *cell.row) for one in backbones for cell in one.cells
    ]
    by_cell = (("backbone", "dataset", "setting", *figures), cells)
    return [(("backbone", "models", *figures), totals), *([by_cell] if len(cells) <= MOST_CELLS else [])]


def _unscored(backbones: Sequence[BackboneSummary], status: str) -> list[str]:
    """Runs of this status, the first of them by name."""
    runs = [text for one in backbones for text in one.unscored if text.startswith(status)]
    more = f"… and {counted(len(runs) - _MOST_UNSCORED, 'run')} more {status}: the page and --json name all."
    return [*runs[:_MOST_UNSCORED], *([more] if len(runs) > _MOST_UNSCORED else [])]


@dataclass(frozen=True)
class AuditSummary:
    """Result of one audit."""

    models: tuple[ModelSummary, ...]
    """What the runs of this audit show about each model."""
    ledger: Path
    """Holds every run; `hrx.read(summary.ledger)` is a frame of them."""
    exit: int
    """Exit code of the command: 0 done, 1 a check or a gate failed, 3 some runs failed, 4 a gate is undecided."""
    backbones: tuple[BackboneSummary, ...] = ()
    """Models of `hrx train` by backbone, where some backbone has several of them."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the audit by the names of their options."""

    def runs(self) -> pd.DataFrame:
        """Every run of the ledger, one row each."""
        return read(self.ledger)

    @property
    def screen(self) -> FirstScreen:
        """What is shown first: the model, or a row for each of several models and backbones."""
        return audit_screen(self.models, self.backbones, self.ledger, self.asked, self.ledger.parent / "page")

    def to_text(self, width: int = 80, *, verbose: bool = False) -> str:
        """The first screen; with `verbose` intervals, p values, every exclusion and the needed context after it."""
        if not self.models:
            return "The ledger holds no runs.\n"
        shown = "\n".join(self.screen.lines(width)) + "\n"
        return f"{shown}\n{render_audit(self.models, self.backbones, width)}" if verbose else shown

    def to_markdown(self) -> str:
        """The first screen for a comment or a step summary."""
        return self.screen.to_markdown()

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<audit of {listed(clean(one.model) for one in self.models)}: {self.ledger}>"

    def _repr_html_(self) -> str:
        return str(render_macro("screen.html", "in_notebook", self.screen))


def audit_screen(
    models: Sequence[ModelSummary],
    backbones: Sequence[BackboneSummary],
    ledger: Path | str,
    asked: Mapping[str, Any],
    page: Path | None = None,
) -> FirstScreen:
    """First screen of an audit, with the commands that lead on."""
    shown = [*(one.summary for one in backbones), *_others(models, backbones)]
    following = next_commands(shown, ledger, asked, page)
    if len(shown) == 1:
        return model_screen(shown[0], following, MOST_WEAKNESSES)
    return several_screen(shown, following, _of_backbones(models, backbones) if backbones else "")
