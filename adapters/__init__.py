"""Models: a checkpoint as a differentiable function, beside its library's official call.

Does not import `hrx.audit`. A family's library is imported only when one of its checkpoints is loaded.
"""

from hrx.adapters.contract import Forecaster, Identity, Limits, ModelError
from hrx.adapters.device import on_device, resolve_device
from hrx.adapters.families import Family
from hrx.adapters.formats.module import from_module
from hrx.adapters.gradients import GradientPath
from hrx.adapters.model_card import EMBEDDED, ModelCard, model_card, short_names
from hrx.adapters.registry import AUTO, Located, families, load, locate, locate_each, trained_setting

__all__ = [
    "AUTO",
    "EMBEDDED",
    "Family",
    "Forecaster",
    "GradientPath",
    "Identity",
    "Limits",
    "Located",
    "ModelCard",
    "ModelError",
    "families",
    "from_module",
    "load",
    "locate",
    "locate_each",
    "model_card",
    "on_device",
    "resolve_device",
    "short_names",
    "trained_setting",
]
