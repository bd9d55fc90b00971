"""A plan as it is told before anything runs: what is stored, what is left, what cannot run and why, about how long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from hrx.audit.ledger.privacy import scrubbed
from hrx.audit.runner.cost import Surveyed
from hrx.audit.runner.plan import Run
from hrx.audit.runner.worker import ModelKey

State = Literal["stored", "to run", "cannot run"]


class Planned(NamedTuple):
    """One run of the plan."""

    key: str
    model: str
    dataset: str
    series: str
    setting: str
    seed: int
    state: State
    reason: str
    """Why it cannot run."""
    seconds: float | None
    """About how long it takes, where a probe could tell."""


@dataclass(frozen=True)
class Outlook:
    """The whole plan."""

    runs: Sequence[Planned]
    memory: Mapping[str, int]
    """About the most bytes of a process, by model."""
    notes: Sequence[str]

    def __add__(self, other: Outlook) -> Outlook:
        return Outlook([*self.runs, *other.runs], {**self.memory, **other.memory}, [*self.notes, *other.notes])

    @property
    def keys(self) -> set[str]:
        return {run.key for run in self.runs}

    def left(self) -> list[Planned]:
        """What the ledger does not hold, runnable or not."""
        return [run for run in self.runs if run.state != "stored"]

    def as_json(self) -> dict[str, Any]:
        return {"runs": [run._asdict() for run in self.runs], "memory": dict(self.memory), "notes": list(self.notes)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Outlook:
        return cls([Planned(**run) for run in told["runs"]], told["memory"], told["notes"])


def outlook(runs: Iterable[Run], finished: Collection[str], surveyed: Mapping[ModelKey, Surveyed]) -> Outlook:
    """What will become of each run."""
    planned, memory, notes = [], dict[str, int](), dict[str, None]()
    for run in runs:
        model = surveyed.get(ModelKey.of(run.identity), Surveyed())
        refusal = f"too few values for {run.setting}" if run.series and run.refusal else run.refusal
        reason = refusal or model.trouble or model.refusals.get(run.setting, "")
        state: State = "stored" if run.key in finished else "cannot run" if reason else "to run"
        estimate = model.estimates.get(run.setting) if state == "to run" else None
        if estimate:
            memory[run.identity.model] = max(estimate.memory, memory.get(run.identity.model, 0))
        if model.note:
            notes[f"No estimate for {run.identity.model}: {scrubbed(model.note)}"] = None
        planned.append(
            Planned(
                run.key,
                run.identity.model,
                run.dataset.name,
                run.series.item if run.series else f"#{run.index}",
                str(run.setting),
                run.seed,
                state,
                scrubbed(reason) if state == "cannot run" else "",
                estimate.seconds if estimate else None,
            )
        )
    return Outlook(planned, memory, list(notes))
