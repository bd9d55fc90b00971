"""What a model is here: a checkpoint as a differentiable function, beside its library's official call.

Knows nothing of audits. A family's library is imported only when one of its checkpoints is loaded.
"""

from hrx.adapters.contract import Forecaster, Identity, Limits, ModelError
from hrx.adapters.gradients import GradientPath
from hrx.adapters.module import from_module
from hrx.adapters.registry import EMBEDDED, Family, Located, families, load, locate, short_names

__all__ = [
    "EMBEDDED",
    "Family",
    "Forecaster",
    "GradientPath",
    "Identity",
    "Limits",
    "Located",
    "ModelError",
    "families",
    "from_module",
    "load",
    "locate",
    "short_names",
]
