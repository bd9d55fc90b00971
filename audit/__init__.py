"""The measurement and the runner: forecaster × window → record.

The public names are imported on first use, so that reading a ledger does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrx.audit.attribution.explanation import explain
    from hrx.audit.protocol import Protocol
    from hrx.audit.scoring.score import score

__all__ = ["Protocol", "explain", "score"]


def __getattr__(name: str) -> Any:
    modules = {"Protocol": "protocol", "explain": "attribution.explanation", "score": "scoring.score"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{modules[name]}"), name)
