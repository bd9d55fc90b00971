"""The estimators by name: the built-in ones, and those that installed packages register.

A package adds one by an entry point of the group `hrx.estimators`: its name is the estimator's, its value an
`Estimator`. Nothing is imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, cast

from hrx.audit.estimators import settings as s
from hrx.audit.protocol import ProtocolError
from hrx.errors import unknown

if TYPE_CHECKING:
    from hrx.audit.estimators.task import Filled, Task

GROUP = "hrx.estimators"
HOME = "hrx.audit.estimators"


@dataclass(frozen=True)
class Estimator:
    """A way to fill rows of the matrix."""

    name: str
    fill: str
    """`module:function` of a `(Task, settings) -> Filled`, imported when it is used."""
    settings: type[s.Settings] = s.Settings
    """A frozen dataclass, every field of it made by `setting` and with a default."""
    every_step: bool = False
    """Whether all steps of the horizon are estimated where none are named, and not the scored ones alone."""
    multivariate: bool = False
    """Whether it takes windows of several variates `(W, L, C)`."""

    def load(self) -> Callable[[Task, Any], Filled]:
        """The function that fills."""
        module, function = self.fill.split(":")
        return cast("Callable[[Task, Any], Filled]", getattr(import_module(module), function))


BUILT_IN = (
    Estimator("input_gradient", f"{HOME}.gradients:saliency", every_step=True, multivariate=True),
    Estimator("saliency", f"{HOME}.gradients:saliency", multivariate=True),
    Estimator("gradient_x_input", f"{HOME}.gradients:gradient_x_input", multivariate=True),
    Estimator(
        "integrated_gradients", f"{HOME}.gradients:integrated_gradients", s.IntegratedGradients, multivariate=True
    ),
    Estimator("smoothgrad", f"{HOME}.gradients:smoothgrad", s.SmoothGrad, multivariate=True),
    Estimator("tsr", f"{HOME}.perturbation:tsr", s.TSR),
    Estimator("occlusion", f"{HOME}.perturbation:occlusion", s.Occlusion),
    Estimator("dynamask", f"{HOME}.dynamask:dynamask", s.Dynamask),
    Estimator("extremalmask", f"{HOME}.extremalmask:extremalmask", s.ExtremalMask),
    Estimator("contralsp", f"{HOME}.contralsp:contralsp", s.ContraLSP),
)


def estimator_names() -> tuple[str, ...]:
    """Every estimator that can be asked for."""
    return (*(estimator.name for estimator in BUILT_IN), *_registered())


def find_estimator(name: str) -> Estimator:
    """The estimator of that name."""
    for estimator in BUILT_IN:
        if estimator.name == name:
            return estimator
    entry = _registered().get(name)
    if entry is None:
        raise ProtocolError(unknown("estimator", name, estimator_names()))
    try:
        found = entry.load()
    except Exception as error:
        raise ProtocolError(
            f"The estimator {name!r} comes from the entry point {entry.value!r}, which cannot be loaded: "
            f"{type(error).__name__}: {error}. Mend or remove that package."
        ) from error
    if not isinstance(found, Estimator) or found.name != name:
        raise ProtocolError(f"The entry point {entry.value!r} of {GROUP} is no Estimator named {name!r}. Mend it.")
    return found


@lru_cache(maxsize=1)
def _registered() -> dict[str, EntryPoint]:
    """The entry points of other packages, not loaded."""
    found: dict[str, EntryPoint] = {}
    taken = {estimator.name for estimator in BUILT_IN}
    for entry in entry_points(group=GROUP):
        if entry.name in taken:
            raise ProtocolError(f"The entry point {entry.value!r} registers {entry.name!r}, which is taken. Rename it.")
        taken.add(entry.name)
        found[entry.name] = entry
    return found
