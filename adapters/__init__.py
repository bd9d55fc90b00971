"""Models: a checkpoint as a differentiable function, beside its library's official call.

Does not import `hrx.audit`. A family's library is imported only when one of its checkpoints is loaded, and torch only
when a model is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hrx.adapters.contract import Forecaster, Identity, Limits, ModelError
from hrx.adapters.families import EMBEDDED, Family, ModelCard, model_card, short_names
from hrx.adapters.registry import Located, load, locate, locate_each, trained_setting

if TYPE_CHECKING:
    from hrx.adapters.formats.black_box import from_callable
    from hrx.adapters.formats.module import from_module
    from hrx.adapters.gradients import GradientPath
    from hrx.adapters.wrapped import on_device, resolve_device

__all__ = [
    "EMBEDDED", "Family", "Forecaster", "GradientPath", "Identity", "Limits", "Located", "ModelCard", "ModelError",
    "from_callable", "from_module", "load", "locate", "locate_each", "model_card", "on_device", "resolve_device",
    "short_names",
    "trained_setting",
]  # fmt: skip
_WITH_TORCH = {
    "GradientPath": "hrx.adapters.gradients",
    "from_callable": "hrx.adapters.formats.black_box",
    "from_module": "hrx.adapters.formats.module",
    "on_device": "hrx.adapters.wrapped",
    "resolve_device": "hrx.adapters.wrapped",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WITH_TORCH[name]), name)
