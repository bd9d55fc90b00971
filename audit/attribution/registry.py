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
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hrx.audit.attribution import settings as s
from hrx.audit.protocol import ProtocolError
from hrx.errors import unknown

if TYPE_CHECKING:
    from hrx.audit.attribution.task import Filled, Task

GROUP = "hrx.estimators"
HOME = "hrx.audit.attribution"


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
_OWN = {estimator.name: estimator for estimator in BUILT_IN}


def estimator_names() -> tuple[str, ...]:
    """Every estimator that can be asked for."""
    return (*_OWN, *_registered())


def find_estimator(name: str) -> Estimator:
    """The estimator of that name."""
    if name in _OWN:
        return _OWN[name]
    registered = _registered().get(name)
    if registered is None:
        raise ProtocolError(unknown("estimator", name, estimator_names()))
    entry = registered.entry
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


def package_of(name: str) -> str:
    """Distribution and version that bring an estimator; empty for hrx's own, which `PROTOCOL_VERSION` stands for."""
    registered = None if name in _OWN else _registered().get(name)
    return registered.package if registered else ""


class _Registered(NamedTuple):
    """An entry point of another package, not loaded, and that package with its version."""

    entry: EntryPoint
    package: str


@lru_cache(maxsize=1)
def _registered() -> dict[str, _Registered]:
    """The entry points of other packages."""
    found: dict[str, _Registered] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in _OWN or entry.name in found:
            raise ProtocolError(f"The entry point {entry.value!r} registers {entry.name!r}, which is taken. Rename it.")
        found[entry.name] = _Registered(entry, f"{entry.dist.name} {entry.dist.version}" if entry.dist else "")
    return found
