"""Which runs the tables read, and the pieces that every table shares: its last columns, its note, a row of medians."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import pandas as pd

from hrx.audit.ledger.record import DECLARED, DISTANCES, DONE, TRUNCATIONS
from hrx.reports.cells import COUNT, GAIN, INTERVAL, SHARE, Cell, Column, Span
from hrx.reports.published import dataset_name, domain_name, model_name
from hrx.reports.statistics import (
    CONFIGURATION,
    SEEDS,
    Described,
    describe,
    fold_seeds,
    impossible_remark,
    pooled,
    possible,
)
from hrx.reports.words import listed

DEFAULT_ESTIMATOR = "input_gradient"
_MEASURED = (
    "g_own",
    "g_shuffled",
    "g_margin",
    "comprehensiveness",
    "aopc",
    "sufficiency",
    "insertion",
    "rank",
    "gap_shared",
    "g_own_channel",
    "rank_channel",
    *(f"g_own_rank_{r}" for r in TRUNCATIONS),
    *(f"g_distance_{d}" for d in DISTANCES),
)
FOLDED = (*_MEASURED, "beats_naive", "leaked", "cost")
_READ = (
    *CONFIGURATION,
    *SEEDS,
    *_MEASURED,
    "checkpoint",
    "domain",
    "leakage",
    "beats_naive",
    "matrix_seconds",
    "forward_seconds",
)
_SHOWN_APART = ("estimator", "estimator_settings", "axis")
"""Settings that a table about them has a row for each of."""

N = Column("n", "n", COUNT)
POSITIVE = Column("positive", "Positive", SHARE, hue="red")
G_OWN = Column("g_own", "g_own", GAIN, hue="red")
G_SHUFFLED = Column("g_shuffled", "g_shuffled", GAIN, hue="blue")
G_MARGIN = Column("g_margin", "g_margin", GAIN, hue="red")
G_OWN_CI = Column("g_own_ci", "95% CI", INTERVAL)
BEATS_NAIVE = Column("beats_naive", "Beats naive", SHARE)
LEAKED = Column("leaked", "Leakage", COUNT)
"""Runs on a dataset that the model is declared to have seen."""


class Runs:
    """The scored runs of a ledger: those with a row per step of one estimator, those of all, those without the axis."""

    def __init__(self, frame: pd.DataFrame, estimator: str = DEFAULT_ESTIMATOR, fold: bool = True):
        self.frame, self.estimator, self.fold = frame, estimator, fold
        found = frame.loc[frame["status"] == DONE, list(_READ)]
        self._impossible = impossible_remark(found)
        done = possible(found).copy()
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
        """The same with their seeds folded, and with the names that the paper uses."""
        return self._prepared(self.scored)

    @cached_property
    def every_estimator(self) -> pd.DataFrame:
        """Configurations of all estimators, with a row per forecast step."""
        return self._prepared(self._done[~self._whole])

    @cached_property
    def whole(self) -> pd.DataFrame:
        """Configurations of all estimators with the axis removed."""
        return self._prepared(self._done[self._whole])

    def _prepared(self, runs: pd.DataFrame) -> pd.DataFrame:
        named = (fold_seeds(runs, FOLDED) if self.fold else runs).copy()
        checkpoints = dict(zip(runs["fingerprint"], runs["checkpoint"], strict=True))
        domains = dict(zip(runs["dataset"], runs["domain"].fillna(""), strict=True))
        datasets = named["dataset"].astype(str)
        named["dataset_name"] = [dataset_name(name) for name in datasets]
        named["domain_name"] = [domain_name(name, str(domains.get(name, ""))) for name in datasets]
        named["checkpoint"] = [str(checkpoints.get(mark, "")) for mark in named["fingerprint"]]
        named["model_name"] = [
            model_name(str(model), checkpoint)
            for model, checkpoint in zip(named["model"], named["checkpoint"], strict=True)
        ]
        return named

    def note(self, group: pd.DataFrame, *sentences: str) -> str:
        """How the numbers of a table came about, in sentences."""
        return " ".join([*sentences, *self._remarks(group)])

    def _remarks(self, group: pd.DataFrame) -> Iterator[str]:
        if "seeds" in group:
            yield f"n counts configurations, seeds folded to their mean ({int(group['seeds'].sum()):,} runs)."
        else:
            yield "n counts runs, every seed by itself."
        yield "Beats naive: share with an error below both naive forecasts; where it is not, no gain may be read."
        leaked = int((group["leaked"] > 0).sum())
        yield f"Leakage: on a dataset that the model is declared to have seen ({leaked:,} of {len(group):,})."
        if differing := pooled(group, but=_SHOWN_APART):
            yield f"Pools runs that differ in {listed(differing)}."
        if self._impossible:
            yield self._impossible

    def holdings(self) -> str:
        """What the ledger has instead, for an error."""
        counts = self.frame["status"].value_counts()
        found = listed(f"{count} {status}" for status, count in counts.items()) or "no runs"
        estimators = sorted({str(name) for name in self._done["estimator"]})
        of = f", scored ones of {listed(estimators)}" if estimators else ""
        return f"The ledger holds {found}{of}."


def values(group: pd.DataFrame, name: str) -> Described:
    """The statistics of one quantity over a group."""
    return describe(group[name].to_numpy(dtype=np.float64))


def span(described: Described) -> Span:
    return Span(described.low, described.high)


def tail(group: pd.DataFrame) -> tuple[Cell, Cell]:
    """The last two cells of a row: share that beats naive, and count that is declared to be leaked."""
    beats = group["beats_naive"].mean()
    return BEATS_NAIVE.cell(float(beats)), LEAKED.cell(int((group["leaked"] > 0).sum()))


def positive(described: Described) -> Cell:
    """The share above zero; as in the paper it is bold where the median is positive."""
    cell = POSITIVE.cell(described.positive, n=described.n)
    return cell if described.median > 0 else Cell(cell.value, cell.format, faint=cell.faint, few=cell.few)
