"""How far a finding can be trusted: what weakens it, the worst first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from hrx.records.quantities import Bools
from hrx.records.record import DECLARED, DONE, EXCLUDED, FAILED, POSSIBLE
from hrx.reports.runs import (
    PlanProgress,
    beats_naive,
    beats_seasonal,
    impossible_remark,
    pooled,
    too_short,
    unknown_training_rows,
)
from hrx.reports.text import counted, listed

Level = Literal["high", "medium", "low", "none"]
_LOW, _MEDIUM = 0.5, 0.1
"""Share of the runs that a weakness touches, above which trust is low or medium."""
_SOME = 0.3
"""Weight of a weakness that touches no share of the runs."""


class Weakness(NamedTuple):
    """What weakens a finding."""

    weight: float
    """Share of the runs that it touches, 0 to 1; half of it where it is only possible."""
    says: str


@dataclass(frozen=True)
class Trust:
    """What weakens a finding, the worst first."""

    level: Level
    """Low where a weakness touches more than half of the runs, medium where one touches more than a tenth."""
    weaknesses: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.level}: {'; '.join(self.weaknesses) or 'nothing in the records weakens it'}"


UNSCORED = Trust("none", ("nothing was scored",))


def trust(runs: pd.DataFrame, plan: PlanProgress | None, one_source: str = "") -> Trust:
    """Trust in the finding on these runs; `one_source` names the only one that its clusters are from."""
    done = runs[runs["status"] == DONE]
    if done.empty:
        return UNSCORED
    found = sorted(
        (one for one in _weaknesses(runs, done, plan, one_source) if one.weight > 0), key=lambda one: -one.weight
    )
    worst = found[0].weight if found else 0.0
    return Trust("low" if worst > _LOW else "medium" if worst > _MEDIUM else "high", tuple(one.says for one in found))


def _weaknesses(
    runs: pd.DataFrame, done: pd.DataFrame, plan: PlanProgress | None, one_source: str
) -> Iterator[Weakness]:
    if plan is not None and plan.planned:
        stored = f"{plan.stored} of {counted(plan.planned, 'planned run')} stored"
        yield Weakness(min(1.0, 2 * (1 - plan.stored / plan.planned)), stored)  # the missing runs may say otherwise
    usable = done[beats_naive(done)]
    lost = len(done) - len(usable)
    yield Weakness(lost / len(done), f"{lost} of {counted(len(done), 'run')} {_lose(lost)} to a naive forecast")
    seasonal = beats_seasonal(usable)
    known, behind = int((~np.isnan(seasonal)).sum()), int((seasonal == 0).sum())
    if known:
        yield Weakness(behind / known, f"{behind} of {counted(known, 'usable run')} {_lose(behind)} to seasonal naive")
    for leakage, weight, words in (
        (DECLARED, 1.0, "on data seen in training"),
        (POSSIBLE, 0.5, "on data that training may have seen"),
    ):
        yield _of(done, (done["leakage"] == leakage).to_numpy(dtype=bool), words, weight)
    yield _of(done, (done["padded"] > 0).fillna(False).to_numpy(dtype=bool), "padded with zeros that the model reads")
    yield _of(done, too_short(done), "left out: the test region is short")
    yield _of(
        done, (done["sparse"] == 1).fillna(False).to_numpy(dtype=bool), "read fewer values than are deleted first"
    )
    yield _of(done, unknown_training_rows(done), "of a model whose training rows are unknown", 0.5)
    for status in (FAILED, EXCLUDED):
        yield _of(runs, (runs["status"] == status).to_numpy(dtype=bool), status)
    if one_source:
        yield Weakness(_SOME, f"all from {one_source}, so nothing is said about other data")
    if differing := pooled(done):
        yield Weakness(_SOME, f"pools runs that differ in {listed(differing)}")
    if impossible := impossible_remark(done):
        yield Weakness(_SOME, impossible.rstrip("."))


def _of(runs: pd.DataFrame, mask: Bools, words: str, weight: float = 1.0) -> Weakness:
    touched = int(mask.sum())
    return Weakness(weight * touched / len(runs), f"{touched} of {counted(len(runs), 'run')} {words}")


def _lose(count: int) -> str:
    return "loses" if count == 1 else "lose"
