"""The explanation matrix: twelve estimators, those of other libraries, and what a package needs to add another.

`docs/estimators.md` defines each estimator and gives the source of its settings. What needs torch is imported on first
use, so that checking a setting does not import it.
"""

from typing import TYPE_CHECKING, Any

from hrx.audit.attribution.functions import AttributionFunction, as_estimator
from hrx.audit.attribution.registry import (
    Estimator,
    Settings,
    estimator_names,
    find_estimator,
    parse_estimator_settings,
    setting,
)

if TYPE_CHECKING:
    from hrx.audit.attribution.explanation import AttributionTask, Estimate, EstimatedRows, estimate, explain

__all__ = [
    "AttributionFunction",
    "AttributionTask",
    "Estimate",
    "EstimatedRows",
    "Estimator",
    "Settings",
    "as_estimator",
    "estimate",
    "estimator_names",
    "explain",
    "find_estimator",
    "parse_estimator_settings",
    "setting",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hrx.audit.attribution import explanation

    return getattr(explanation, name)
