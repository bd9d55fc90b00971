"""The explanation matrix: ten estimators, and everything a package needs to add another.

`docs/estimators.md` defines each estimator and gives the source of its settings. Names are imported on first use, so
that checking a setting does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrx.audit.attribution.explanation import AttributionTask, EstimatedRows, Explanation, estimate, explain
    from hrx.audit.attribution.registry import (
        Estimator,
        Settings,
        estimator_names,
        find_estimator,
        parse_estimator_settings,
        setting,
    )

_MODULES = {
    "AttributionTask": "explanation",
    "EstimatedRows": "explanation",
    "Estimator": "registry",
    "Explanation": "explanation",
    "Settings": "registry",
    "estimate": "explanation",
    "estimator_names": "registry",
    "explain": "explanation",
    "find_estimator": "registry",
    "parse_estimator_settings": "registry",
    "setting": "registry",
}

__all__ = [
    "AttributionTask",
    "EstimatedRows",
    "Estimator",
    "Explanation",
    "Settings",
    "estimate",
    "estimator_names",
    "explain",
    "find_estimator",
    "parse_estimator_settings",
    "setting",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
