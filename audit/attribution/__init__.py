"""What fills the explanation matrix: ten estimators on the same forward, perturbation and budget.

`docs/estimators.md` gives each one's definition and the source of its settings. The public names are imported when
they are first used, so that checking a setting does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrx.audit.attribution.explanation import Explanation, estimate, explain
    from hrx.audit.attribution.registry import Estimator, estimator_names, find_estimator
    from hrx.audit.attribution.settings import Settings, parse_estimator_settings, setting
    from hrx.audit.attribution.task import Filled, Task

_HOME = {
    "Estimator": "registry",
    "Explanation": "explanation",
    "Filled": "task",
    "Settings": "settings",
    "Task": "task",
    "estimate": "explanation",
    "estimator_names": "registry",
    "explain": "explanation",
    "find_estimator": "registry",
    "parse_estimator_settings": "settings",
    "setting": "settings",
}

__all__ = [
    "Estimator",
    "Explanation",
    "Filled",
    "Settings",
    "Task",
    "estimate",
    "estimator_names",
    "explain",
    "find_estimator",
    "parse_estimator_settings",
    "setting",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
