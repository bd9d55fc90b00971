"""How much of its plan an audit rests on: the planned runs that a ledger holds, and what `--until decided` decided.

A ledger stores what was planned before the first run is measured. One of schema 4 or older does not know its plan.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from hrx.audit.ledger.record import StoredPlan
from hrx.audit.runner.decision import Decision, PlanTest, sign_of
from hrx.reports.text import counted

_ATTRIBUTE = "plans"
NOT_CORRECTED = "The intervals are not corrected for this stop."


class Coverage(NamedTuple):
    """The stored part of a model's plan."""

    stored: int
    """Planned runs that the ledger holds: scored, excluded or failed."""
    planned: int
    decisions: tuple[Decision, ...] = ()
    """One for each plan that ends when the sign of `g_margin` is decided."""

    def as_json(self) -> dict[str, object]:
        decided = [decision.as_json() for decision in self.decisions]
        return {"stored": self.stored, "planned": self.planned, "until_decided": decided or None}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Coverage":
        """What `as_json` wrote."""
        return cls(stored["stored"], stored["planned"], tuple(Decision(**one) for one in stored["until_decided"] or ()))

    @property
    def complete(self) -> bool:
        return self.stored == self.planned

    def sentences(self) -> Iterator[str]:
        """What a reader of the verdict must know; nothing where every planned run is stored and none was to stop."""
        if not self.complete:
            yield f"{rests_on(self.stored, self.planned)}."
        for decision in self.decisions:
            yield str(decision)
            if decision.sign and not self.complete:
                yield NOT_CORRECTED


def rests_on(stored: int, planned: int) -> str:
    return f"Rests on {stored} of {counted(planned, 'planned run')}"


def coverage(runs: pd.DataFrame, plans: Sequence[StoredPlan]) -> Coverage | None:
    """The coverage of all plans of the models of `runs`, a run that several hold counted once; None without one.

    A row of `runs` is a record.
    """
    models = set(zip(runs["model"], runs["fingerprint"], strict=True))
    mine = [plan for plan in plans if (plan.model, plan.fingerprint) in models]
    if not mine:
        return None
    keys = {key for plan in mine for key in plan.run_keys}
    return Coverage(_stored(runs, keys), len(keys), tuple(_decision(runs, plan) for plan in mine if plan.until))


def attach(frame: pd.DataFrame, plans: Sequence[StoredPlan]) -> None:
    """Keeps the coverage of each model with the frame of a ledger, as JSON, which pandas writes with a Parquet file."""
    models = frame.groupby(["model", "fingerprint"], sort=False, dropna=False)
    found = [(model, fingerprint, coverage(runs, plans)) for (model, fingerprint), runs in models]
    frame.attrs[_ATTRIBUTE] = [
        {"model": model, "fingerprint": fingerprint, **one.as_json()} for model, fingerprint, one in found if one
    ]


def attached(runs: pd.DataFrame) -> Coverage | None:
    """The coverage of the model of `runs` in the ledger that they were read from; None where it is not known."""
    first = runs.iloc[0]
    for one in runs.attrs.get(_ATTRIBUTE, ()):
        if (one["model"], one["fingerprint"]) == (first["model"], first["fingerprint"]):
            return Coverage.from_json(one)
    return None


def overall(runs: pd.DataFrame, plans: Sequence[StoredPlan]) -> Coverage | None:
    """The coverage of all plans of all models, also of those without a stored run; None without a plan."""
    keys = {key for plan in plans for key in plan.run_keys}
    return Coverage(_stored(runs, keys), len(keys)) if plans else None


def without_runs(runs: pd.DataFrame, plans: Sequence[StoredPlan]) -> dict[str, int]:
    """The models that were planned and have no stored run, with the number of planned runs."""
    known = set(zip(runs["model"], runs["fingerprint"], strict=True))
    absent: dict[str, set[str]] = {}
    for plan in plans:
        if (plan.model, plan.fingerprint) not in known:
            absent.setdefault(plan.model, set()).update(plan.run_keys)
    return {model: len(keys) for model, keys in absent.items()}


def _stored(runs: pd.DataFrame, keys: Collection[str]) -> int:
    return int(runs["key"].isin(list(keys)).sum())


def _decision(runs: pd.DataFrame, plan: StoredPlan) -> Decision:
    """What the test says of the stored runs, in the order of the plan."""
    keys = plan.run_keys
    test = PlanTest(keys)
    planned = runs[runs["key"].isin(keys)]
    columns = (planned[name] for name in ("key", "status", "beats_naive", "g_margin"))
    for key, status, beats, margin in zip(*columns, strict=True):
        test.add(key, sign_of(status, None if pd.isna(beats) else int(beats), margin))
    return test.decision
