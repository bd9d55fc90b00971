"""The measurement and the runner: forecaster × window → record.

The public names are imported on first use, so that reading a ledger does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrx.audit.attribution import explain
    from hrx.audit.memory import MemoryBudget
    from hrx.audit.protocol import Protocol
    from hrx.audit.scoring.needed_context import needed_context
    from hrx.audit.scoring.score import ChannelScores, Unscorable, score, score_channels
    from hrx.records.quantities import NeededContext, Quantities

__all__ = [
    "ChannelScores",
    "MemoryBudget",
    "NeededContext",
    "Protocol",
    "Quantities",
    "Unscorable",
    "explain",
    "needed_context",
    "score",
    "score_channels",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = {
        "ChannelScores": "audit.scoring.score", "MemoryBudget": "audit.memory", "NeededContext": "records.quantities",
        "Protocol": "audit.protocol", "Quantities": "records.quantities", "Unscorable": "audit.scoring.score",
        "explain": "audit.attribution", "needed_context": "audit.scoring.needed_context",
        "score": "audit.scoring.score", "score_channels": "audit.scoring.score",
    }  # fmt: skip
    return getattr(import_module(f"hrx.{modules[name]}"), name)
