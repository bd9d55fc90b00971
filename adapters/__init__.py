"""What a model is here: a checkpoint as a differentiable function, beside its library's official call.

Knows nothing of audits. A family's library is imported only when one of its checkpoints is loaded.
"""

from hrx.adapters.choice import AUTO, locate_each
from hrx.adapters.contract import Forecaster, Identity, Limits, ModelError
from hrx.adapters.facts import Facts, facts
from hrx.adapters.gradients import GradientPath
from hrx.adapters.module import from_module
from hrx.adapters.registry import EMBEDDED, Family, Located, families, load, locate, short_names

__all__ = [
    "AUTO",
    "EMBEDDED",
    "Facts",
    "Family",
    "Forecaster",
    "GradientPath",
    "Identity",
    "Limits",
    "Located",
    "ModelError",
    "facts",
    "families",
    "from_module",
    "load",
    "locate",
    "locate_each",
    "short_names",
]
