"""How much of its plan an audit rests on: the planned runs that a ledger holds, and what `--until decided` decided.

A ledger stores what was planned before the first run is measured. One of schema 4 or older does not know its plan.
A plan names its model but not the backbone, so that of a model without a stored run is known from the name only.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from hrx.records.decision import Decision, PlanTest, sign_of
from hrx.records.record import StoredPlan
from hrx.reports.text import counted

_ATTRIBUTE = "plans"
_TRAINED_NAME = re.compile(r"([^-]+)-.+-\d+x\d+-seed\d+")
"""`BACKBONE-DATASET-LxH-seedN`, the name that `hrx train` gives a model."""
NOT_CORRECTED = "The intervals are not corrected for this stop."


class Coverage(NamedTuple):
    """The stored part of the plan of a model, or of all models of a backbone."""

    stored: int
    """Planned runs that the ledger holds: scored, excluded or failed."""
    planned: int
    decisions: tuple[Decision, ...] = ()
    """One for each plan that ends when the sign of `g_margin` is decided."""
    unassigned: int = 0
    """Of a backbone: further planned runs of models without a stored run, whose names do not state their backbone."""

    def as_json(self) -> dict[str, object]:
        decided = [decision.as_json() for decision in self.decisions]
        found: dict[str, object] = {"stored": self.stored, "planned": self.planned, "until_decided": decided or None}
        return found | ({"unassigned": self.unassigned} if self.unassigned else {})

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Coverage":
        """What `as_json` wrote."""
        return cls(stored["stored"], stored["planned"], tuple(Decision(**one) for one in stored["until_decided"] or ()))

    @property
    def complete(self) -> bool:
        return self.stored == self.planned and not self.unassigned

    def sentences(self) -> Iterator[str]:
        """What a reader of the verdict must know; nothing where every planned run is stored and none was to stop."""
        if self.stored != self.planned:
            yield f"{rests_on(self.stored, self.planned)}."
        if self.unassigned:
            more = counted(self.unassigned, "further planned run")
            yield f"The backbone of {more}, of models without a stored run, is not known."
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


class PlannedModel(NamedTuple):
    """A model that was planned, with what is stored of its plan."""

    model: str
    fingerprint: str
    has_runs: bool
    plan: Coverage


def planned_models(frame: pd.DataFrame, plans: Sequence[StoredPlan]) -> list[PlannedModel]:
    """Every model that has a plan: those with a run in the order of the frame's rows, then those without any."""
    groups = frame.groupby(["model", "fingerprint"], sort=False, dropna=False)
    found = [(str(model), str(fingerprint), coverage(runs, plans)) for (model, fingerprint), runs in groups]
    planned = [PlannedModel(model, fingerprint, True, plan) for model, fingerprint, plan in found if plan]
    absent: dict[tuple[str, str], set[str]] = {}
    for plan in _without_a_run(frame, plans):
        absent.setdefault((plan.model, plan.fingerprint), set()).update(plan.run_keys)
    return planned + [PlannedModel(*model, False, Coverage(0, len(keys))) for model, keys in absent.items()]


def backbone_coverage(planned: Sequence[PlannedModel], runs: pd.DataFrame, backbone: str) -> Coverage | None:
    """The coverage of the models of `runs`, all of one backbone, and of its models without a run; None without a plan.

    `planned` holds the models of the whole ledger. It has no decisions: an audit stops model by model.
    """
    models = set(zip(runs["model"], runs["fingerprint"], strict=True))
    mine = [one.plan for one in planned if (one.model, one.fingerprint) in models]
    if not mine:
        return None
    unassigned = 0
    for one in planned:
        stated = None if one.has_runs else _TRAINED_NAME.fullmatch(one.model)
        if stated and stated[1] == backbone:
            mine.append(one.plan)
        elif not (one.has_runs or stated):
            unassigned += one.plan.planned
    return Coverage(sum(plan.stored for plan in mine), sum(plan.planned for plan in mine), (), unassigned)


def attach(frame: pd.DataFrame, plans: Sequence[StoredPlan]) -> None:
    """Keeps the coverage of each model with the frame of a ledger, which pandas writes with a Parquet file.

    It is text, because pandas copies attributes deeply with each column that is taken.
    """
    frame.attrs[_ATTRIBUTE] = json.dumps(
        [
            {"model": one.model, "fingerprint": one.fingerprint, "has_runs": one.has_runs, **one.plan.as_json()}
            for one in planned_models(frame, plans)
        ]
    )


def attached(runs: pd.DataFrame, backbone: str = "") -> Coverage | None:
    """The coverage of the model or backbone of `runs` in the ledger that they were read from; None where not known."""
    planned = [
        PlannedModel(one["model"], one["fingerprint"], one["has_runs"], Coverage.from_json(one))
        for one in json.loads(runs.attrs.get(_ATTRIBUTE, "[]"))
    ]
    if backbone:
        return backbone_coverage(planned, runs, backbone)
    first = runs.iloc[0]
    own = first["model"], first["fingerprint"]
    return next((one.plan for one in planned if (one.model, one.fingerprint) == own), None)


def overall(runs: pd.DataFrame, plans: Sequence[StoredPlan]) -> Coverage | None:
    """The coverage of all plans of all models, also of those without a stored run; None without a plan."""
    keys = {key for plan in plans for key in plan.run_keys}
    return Coverage(_stored(runs, keys), len(keys)) if plans else None


def without_runs(runs: pd.DataFrame, plans: Sequence[StoredPlan]) -> dict[str, int]:
    """The models that were planned and have no stored run, with the number of planned runs."""
    absent: dict[str, set[str]] = {}
    for plan in _without_a_run(runs, plans):
        absent.setdefault(plan.model, set()).update(plan.run_keys)
    return {model: len(keys) for model, keys in absent.items()}


def _without_a_run(runs: pd.DataFrame, plans: Sequence[StoredPlan]) -> list[StoredPlan]:
    known = set(zip(runs["model"], runs["fingerprint"], strict=True))
    return [plan for plan in plans if (plan.model, plan.fingerprint) not in known]


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
