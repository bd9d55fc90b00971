"""The summary that `hrx.run_audit` returns: what an audit found about each model, as text and in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hrx.errors import Exit
from hrx.reports.backbones import BackboneSummary, audit_html, render_audit
from hrx.reports.runs import read
from hrx.reports.summary import ModelSummary

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class AuditSummary:
    """The result of one audit."""

    models: tuple[ModelSummary, ...]
    """What the runs of this audit show about each model."""
    ledger: Path
    """Holds every run; `hrx.read(summary.ledger)` is a frame of them."""
    exit: Exit
    """The exit code of the command: 0 done, 1 a check or a gate failed, 3 some runs failed, 4 a gate is undecided."""
    backbones: tuple[BackboneSummary, ...] = ()
    """The models of `hrx train` by backbone, where some backbone has several of them."""

    def runs(self) -> pd.DataFrame:
        """Every run of the ledger, one row each."""
        return read(self.ledger)

    def __str__(self) -> str:
        return f"{render_audit(self.models, self.backbones)}\nLedger: {self.ledger}"

    def _repr_html_(self) -> str:
        return audit_html(self.models, self.backbones)
