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
    from hrx.records.needed_context import NeededContext
    from hrx.records.quantities import Quantities

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
        "MemoryBudget": "memory", "Protocol": "protocol", "Quantities": "scoring.quantities", "explain": "attribution",
        "NeededContext": "scoring.context", "needed_context": "scoring.context_sweep",
    }  # fmt: skip
    return getattr(import_module(f"{__name__}.{modules.get(name, 'scoring.score')}"), name)
