"""Gates on relative changes, judged on each dataset: a median over all runs hides a dataset that broke.

A dataset lies beyond the bound where the median of its configurations' changes does, or the change of its mean. It
fails the gate where its sign test says so after Holm's correction over the datasets, and leaves it undecided otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hrx.records.quantities import Floats
from hrx.reports.gates import DatasetJudged, Gate, Judged, Outcome, is_beyond
from hrx.reports.paired import LEVEL, holm, sign_test_beyond, sign_test_power


class DatasetChange(NamedTuple):
    """The relative changes of a quantity on one dataset, seeds folded."""

    changes: Floats
    """Of each configuration; infinite where an error of zero became positive."""
    mean: float
    """Of the mean over the configurations."""

    @classmethod
    def of(cls, base: Floats, new: Floats) -> DatasetChange:
        """From the values of the configurations, `(n,)` each, all zero or positive."""
        return cls(_relative(base, new), float(_relative(base.mean(), new.mean())) if len(base) else math.nan)

    @property
    def median(self) -> float:
        return float(np.median(self.changes)) if len(self.changes) else math.nan


def _relative(base: Floats, new: Floats) -> Floats:
    """Infinite where base is zero and new is not: the change is unknown, and certainly beyond any bound."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(base == new, 0.0, np.divide(new, base) - 1)


def judge_datasets(
    judged: Judged, changes: Mapping[str, DatasetChange], lost: Mapping[str, str], *, strict: bool = False
) -> Judged:
    """The gate with the datasets that lie beyond its bound. `lost`: datasets without a pair, and why."""
    gate = judged.gate
    beyond = {name: sum(is_beyond(gate, value) for value in one.changes.tolist()) for name, one in changes.items()}
    tests = [sign_test_beyond(beyond[name], len(one.changes)) for name, one in changes.items()]
    p = dict(zip(changes, holm(tests), strict=True))
    found = [
        _judge_dataset(gate, name, one, beyond[name], p[name], len(changes), strict)
        for name, one in changes.items()
        if is_beyond(gate, one.median) or is_beyond(gate, one.mean)
    ]
    found.sort(key=lambda one: (one.outcome != "failed", one.p, -abs(one.median)))
    found += [DatasetJudged(name, "undecided", math.nan, math.nan, 0, 0, 1.0, None, why) for name, why in lost.items()]
    return judged._replace(outcome=_combined(judged, found), datasets=tuple(found), tested=len(changes) + len(lost))


def _judge_dataset(
    gate: Gate, name: str, change: DatasetChange, beyond: int, p: float, tests: int, strict: bool
) -> DatasetJudged:
    n = len(change.changes)
    failed = strict or p <= LEVEL
    power = None if failed else sign_test_power(beyond, n, tests)
    return DatasetJudged(name, "failed" if failed else "undecided", change.median, change.mean, beyond, n, p, power)


def _combined(judged: Judged, datasets: Sequence[DatasetJudged]) -> Outcome:
    outcomes = {judged.outcome, *(one.outcome for one in datasets)}
    return "failed" if "failed" in outcomes else "undecided" if "undecided" in outcomes else "passed"
