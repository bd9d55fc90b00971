"""Which windows are kept with their matrix: for each model and dataset the scored run that shows most.

Whether a run is scored is known only afterwards, so a larger one takes the place of a smaller one as it comes.
"""

from __future__ import annotations

from collections.abc import Iterable

from hrx.audit.ledger.store import Ledger
from hrx.audit.runner.plan import Run
from hrx.audit.runner.worker import ModelKey

Subject = tuple[ModelKey, str]


class Album:
    """The pictured runs of a plan, as the ledger has them so far."""

    def __init__(self, runs: Iterable[Run], ledger: Ledger):
        held = set(ledger.example_keys())
        self._kept: dict[Subject, list[Run]] = {}
        for run in runs:
            if run.key in held:
                self._kept.setdefault(_subject(run), []).append(run)

    def wants(self, run: Run) -> bool:
        """Whether the run shows more than what is kept of its dataset."""
        return all(run.size > kept.size for kept in self._kept.get(_subject(run), ()))

    def keep(self, run: Run) -> list[str]:
        """Takes the run in; the keys of those whose place it takes."""
        gone = self._kept.get(_subject(run), [])
        self._kept[_subject(run)] = [run]
        return [kept.key for kept in gone]


def _subject(run: Run) -> Subject:
    return ModelKey.of(run.identity), run.dataset.name
