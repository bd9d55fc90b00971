"""The runs that the tables summarise, and what all tables share: columns, a row of medians, the note."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pandas as pd

from hrx.audit.ledger.record import DECLARED, DISTANCES, DONE, TRUNCATIONS
from hrx.reports.published import dataset_name, domain_name, model_name
from hrx.reports.runs import (
    CONFIGURATION,
    SEEDS,
    GroupStatistics,
    describe,
    fold_seeds,
    impossible_remark,
    mask_impossible,
    pooled,
)
from hrx.reports.table import (
    COUNT,
    FINE_GAIN,
    GAIN,
    INTERVAL,
    SHARE,
    Cell,
    Format,
    P,
    Span,
    TableColumn,
    TableRow,
    Value,
)
from hrx.reports.text import listed

DEFAULT_ESTIMATOR = "input_gradient"
SWEPT_RANKS = tuple(f"g_own_rank_{r}" for r in TRUNCATIONS)
SWEPT_DISTANCES = tuple(f"g_distance_{d}" for d in DISTANCES)
_MEASURED = (
    "g_own", "g_shuffled", "g_margin", "comprehensiveness", "aopc", "sufficiency", "insertion", "rank", "gap_shared",
    "g_own_channel", "rank_channel", *SWEPT_RANKS, *SWEPT_DISTANCES,
)  # fmt: skip
FOLDED = (*_MEASURED, "beats_naive", "leaked", "cost")
_FACTS = ("checkpoint", "domain", "leakage", "beats_naive", "matrix_seconds", "forward_seconds")
_SHOWN_APART = ("estimator", "estimator_settings", "axis")
"""Settings that a table about them has one row each for."""

N = TableColumn("n", "n", COUNT)
POSITIVE = TableColumn("positive", "Positive", SHARE, hue="red")
G_OWN = TableColumn("g_own", "g_own", GAIN, hue="red")
G_SHUFFLED = TableColumn("g_shuffled", "g_shuffled", GAIN, hue="blue")
G_MARGIN = TableColumn("g_margin", "g_margin", GAIN, hue="red")
G_OWN_CI = TableColumn("g_own_ci", "95% CI", INTERVAL)
SIGN_TEST = TableColumn("p", "Sign test", P)
TRIMMED_MEAN = TableColumn("trimmed_mean", "Trimmed mean (10 %)", FINE_GAIN)
BEATS_NAIVE = TableColumn("beats_naive", "Beats naive", SHARE)
LEAKED = TableColumn("leaked", "Leakage", COUNT)
"""Runs on a dataset that the model is declared to have seen."""
TAIL = (BEATS_NAIVE, LEAKED)
"""The last columns of every table."""
RANK = Format("number", decimals=2, plus=False)
FINE = Format("number", decimals=4, plus=False)


class ScoredRuns:
    """The scored runs of a ledger: those of one estimator, those of all, and those without the horizon axis."""

    def __init__(self, frame: pd.DataFrame, estimator: str = DEFAULT_ESTIMATOR, fold: bool = True):
        self.frame, self.estimator, self.fold = frame, estimator, fold
        stored = frame.loc[frame["status"] == DONE, [*CONFIGURATION, *SEEDS, *_MEASURED, *_FACTS]]
        self._impossible = impossible_remark(stored)
        done = mask_impossible(stored).copy()
        done["leaked"] = (done["leakage"] == DECLARED).astype("float64")
        done["cost"] = done["matrix_seconds"] / done["forward_seconds"].where(done["forward_seconds"] > 0)
        done["beats_naive"] = done["beats_naive"].astype("float64")
        self._done = done
        self._whole = (done["axis"] == "whole").to_numpy(dtype=bool)

    @cached_property
    def scored(self) -> pd.DataFrame:
        """Before folding: the runs of the chosen estimator, with a row per forecast step."""
        return self._done[~self._whole & (self._done["estimator"] == self.estimator).to_numpy(dtype=bool)]

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """The same with their seeds folded, and with the names of the paper."""
        return self._prepared(self.scored)

    @cached_property
    def every_estimator(self) -> pd.DataFrame:
        """Configurations of all estimators, with a row per forecast step."""
        return self._prepared(self._done[~self._whole])

    @cached_property
    def whole(self) -> pd.DataFrame:
        """Configurations of all estimators without the horizon axis."""
        return self._prepared(self._done[self._whole])

    def _prepared(self, runs: pd.DataFrame) -> pd.DataFrame:
        named = (fold_seeds(runs, FOLDED) if self.fold else runs).copy()
        checkpoints = dict(zip(runs["fingerprint"], runs["checkpoint"], strict=True))
        domains = dict(zip(runs["dataset"], runs["domain"].fillna(""), strict=True))
        datasets = named["dataset"].astype(str)
        named["dataset_name"] = [dataset_name(name) for name in datasets]
        named["domain_name"] = [domain_name(name, str(domains.get(name, ""))) for name in datasets]
        named["checkpoint"] = [str(checkpoints.get(weights, "")) for weights in named["fingerprint"]]
        named["model_name"] = [
            model_name(str(model), checkpoint)
            for model, checkpoint in zip(named["model"], named["checkpoint"], strict=True)
        ]
        return named

    def note(self, group: pd.DataFrame, *sentences: str) -> str:
        """The sentences below a table: its own, then what counts, what beats naive, leakage and pooling mean."""
        return " ".join([*filter(None, sentences), *self._remarks(group)])

    def _remarks(self, group: pd.DataFrame) -> Iterator[str]:
        if "seeds" in group:
            yield f"n counts configurations, seeds folded to their mean ({int(group['seeds'].sum()):,} runs)."
        else:
            yield "n counts runs, every seed by itself."
        yield "Beats naive: share with an error below both naive forecasts; a gain is meaningful only there."
        leaked = int((group["leaked"] > 0).sum())
        yield f"Leakage: on a dataset that the model is declared to have seen ({leaked:,} of {len(group):,})."
        if differing := pooled(group, but=_SHOWN_APART):
            yield f"Pools runs that differ in {listed(differing)}."
        if self._impossible:
            yield self._impossible

    def holdings(self) -> str:
        """What the ledger holds, for an error message."""
        counts = self.frame["status"].value_counts()
        statuses = listed(f"{count} {status}" for status, count in counts.items()) or "no runs"
        estimators = sorted({str(name) for name in self._done["estimator"]})
        of = f", scored ones of {listed(estimators)}" if estimators else ""
        return f"The ledger holds {statuses}{of}."


def statistics(group: pd.DataFrame, name: str) -> GroupStatistics:
    """The statistics of one quantity over a group."""
    return describe(group[name].to_numpy(dtype=np.float64))


def span(described: GroupStatistics) -> Span:
    return Span(described.low, described.high)


def tail(group: pd.DataFrame) -> tuple[Cell, Cell]:
    """The last two cells of a row: share that beats naive, and number of runs that are declared to be leaked."""
    beats = group["beats_naive"].mean()
    return BEATS_NAIVE.cell(float(beats)), LEAKED.cell(int((group["leaked"] > 0).sum()))


def positive(described: GroupStatistics) -> Cell:
    """The share above zero; as in the paper it is bold where the median is positive."""
    cell = POSITIVE.cell(described.positive, n=described.n)
    return cell if described.median > 0 else Cell(cell.value, cell.format, faint=cell.faint, few=cell.few)


def build_row(
    columns: Sequence[TableColumn],
    values: Sequence[Value | Cell],
    n: int,
    *,
    key: str | None = None,
    section: str = "",
    total: bool = False,
    where: tuple[tuple[str, str | int], ...] = (),
) -> TableRow:
    """A row of `n` configurations: its label first, then a value or a ready cell for each further column."""
    cells = []
    for index, (column, value) in enumerate(zip(columns, values, strict=True)):
        if isinstance(value, Cell):
            cells.append(value)
            continue
        sized = index == 0 or column.format.kind in ("number", "share", "span", "times")
        cells.append(column.cell(value, n=n) if sized else column.cell(value))
    label = str(cells[0].value)
    return TableRow(tuple(cells), key=label if key is None else key, section=section, total=total, where=where)
