"""Estimators of the explanation matrix: what one declares, is given and returns, and how one is found by its name.

An estimator is built in, of another package, of a library, or a function of a user. A package adds one by an entry
point of the group `hrx.estimators`: its name is the estimator's name, its value an `Estimator`. A user's function is an
object, known in its own process only, or `FILE.py:FUNCTION`, which the workers of an audit can load.

`settings` has what can be set, `explanation` the calls that fill a matrix; `docs/estimators.md` defines each estimator.
Torch is imported when an estimator runs, so a request is checked without it and without executing the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import symtable
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from hrx.audit.attribution import settings as known
from hrx.audit.attribution.settings import Settings, Value, setting
from hrx.errors import HrxError, ProtocolError, describe_error, unknown
from hrx.files import read_file, user_path

if TYPE_CHECKING:
    from torch import Tensor

    from hrx.adapters.contract import Forecaster
    from hrx.adapters.gradients import Rewrite
    from hrx.adapters.inputs import Layout
    from hrx.audit.memory import MemoryBudget

__all__ = ["AttributionTask", "Estimate", "Estimator", "Inapplicable", "Settings", "setting"]

GROUP = "hrx.estimators"
LIBRARIES = ("captum:", "tint:")
"""Beginnings of the names of the attribution classes in `libraries`."""
OBJECT = "callable:"
FUNCTION_STREAM = 6
"""Separates the draws of a function from the other random draws under one seed."""


class Inapplicable(HrxError):
    """An estimator that cannot explain this model: a result, recorded as excluded with this reason."""


@dataclass(frozen=True)
class AttributionTask:
    """Rows that an estimator has to fill, for some windows of one model."""

    model: Forecaster
    x: Tensor
    """`(W, L)`, or `(W, L, C)` for an estimator that takes several variates."""
    horizon: int
    steps: tuple[int, ...]
    """Forecast steps that get a row each, from 1. Empty: one row for the whole forecast."""
    budget: MemoryBudget
    seed: int = 0
    stream: int = 0
    """Separates the random draws of different runs under one seed."""
    signed: bool = False
    """Whether the rows are wanted with their signs too, by an estimator that has them."""

    @cached_property
    def sections(self) -> tuple[int, ...]:
        """Lengths of the channels that lie one after another in a window: one, but for a model bound to several."""
        return self.model.sections or (self.x.shape[1],)

    @cached_property
    def mean(self) -> Tensor:
        """Mean of each channel of a window at each of its positions, `(W, L)`, without missing values.

        A channel without a slope, such as a flag, keeps its values: their mean is none of them.
        """
        return self._by_channel(_mean, keep=True)

    @cached_property
    def spread(self) -> Tensor:
        """Largest less smallest value of each channel at each of its positions, `(W, L)`; 0 without a slope."""
        return self._by_channel(_spread, keep=False)

    def _by_channel(self, of: Callable[[Tensor], Tensor], *, keep: bool) -> Tensor:
        import torch

        layout: Layout | None = getattr(self.model, "layout", None)
        slopes = [channel.has_slope for channel in layout.channels] if layout else [True]
        parts = torch.split(self.x, list(self.sections), dim=1)
        others = parts if keep else [torch.zeros_like(part) for part in parts]
        each = zip(slopes, parts, others, strict=True)
        return torch.cat([of(part).expand_as(part) if slope else other for slope, part, other in each], dim=1)

    @cached_property
    def picks(self) -> Tensor:
        """`(R, H)`: which steps of the forecast each row explains."""
        import torch

        if not self.steps:
            return torch.ones(1, self.horizon, dtype=torch.int64)
        return torch.nn.functional.one_hot(torch.tensor(self.steps) - 1, self.horizon)


def _mean(x: Tensor) -> Tensor:
    return x.nanmean(dim=1, keepdim=True) if x.isnan().any() else x.mean(dim=1, keepdim=True)


def _spread(x: Tensor) -> Tensor:
    there = ~x.isnan()
    largest = x.where(there, float("-inf")).amax(dim=1, keepdim=True)
    return (largest - x.where(there, float("inf")).amin(dim=1, keepdim=True)).clamp(min=0)


class Estimate(NamedTuple):
    """An explanation matrix and how it was computed. An estimator fills the first three."""

    matrix: Tensor
    """`(W, R, L)`, non-negative: importance of each input position for each estimated step."""
    rewrites: tuple[Rewrite, ...] = ()
    """Operations that `GradientPath` replaced."""
    signed: Tensor | None = None
    """`(W, R, L)`: the rows before their magnitudes were taken; None where they were not asked for or have no sign."""
    steps: tuple[int, ...] = ()
    """Forecast steps of the `R` rows, from 1; empty where one row explains the whole forecast."""
    settings: str = "{}"
    """JSON: every setting of the estimator with its value."""


Fill = Callable[[AttributionTask, Any], Estimate]
"""A function of the task and the estimator's settings."""


@dataclass(frozen=True)
class Estimator:
    """A method that fills rows of the matrix."""

    name: str
    fill: str | Fill
    """Function, or `module:function` of one that is imported on first use."""
    settings: type[Settings] = Settings
    """A frozen dataclass of which every field is a `setting` with a default."""
    every_step: bool = False
    """Whether all steps of the horizon are estimated by default, instead of the scored ones only."""
    multivariate: bool = False
    """Whether it takes windows of several variates `(W, L, C)`."""
    several: bool = False
    """Whether it takes channels with roles, one after another in a window."""
    sign: Literal["", "slope", "contribution"] = ""
    """What a row with its sign is: `slope`, the change of the forecast per unit of an input; `contribution`, the part
    of the forecast that an input is given; empty where the method has no sign."""
    package: str = ""
    """What decides the numbers besides the name: distribution and version, or the sha256 of a user's file. Empty for
    the built-in ones, which `PROTOCOL_VERSION` covers, and for objects."""

    @property
    def needs_gradient(self) -> bool:
        """Whether it cannot explain a forecaster without derivatives; a function of a user may do as it likes."""
        own = self.name.startswith(OBJECT) or self.name.rpartition(":")[0].endswith(".py")
        return not own and self.settings.forecasts is Settings.forecasts

    def load(self) -> Fill:
        """Function that fills the rows."""
        if not isinstance(self.fill, str):
            return self.fill
        module, function = self.fill.split(":")
        return cast("Fill", getattr(import_module(module), function))


def _built_in(module: str, name: str, settings: type[Settings] = Settings, **more: Any) -> Estimator:
    return Estimator(name, f"{__name__}.{module}:{name}", settings, **more)


_SLOPE: dict[str, Any] = {"multivariate": True, "several": True, "sign": "slope"}
_PART: dict[str, Any] = {"multivariate": True, "several": True, "sign": "contribution"}
BUILT_IN = {
    estimator.name: estimator
    for estimator in (
        Estimator("input_gradient", f"{__name__}.gradients:saliency", every_step=True, **_SLOPE),
        _built_in("gradients", "saliency", **_SLOPE),
        _built_in("gradients", "gradient_x_input", **_PART),
        _built_in("gradients", "integrated_gradients", known.IntegratedGradientsSettings, **_PART),
        _built_in("gradients", "smoothgrad", known.SmoothGradSettings, **_SLOPE),
        _built_in("gradients", "tsr", known.TSRSettings),
        _built_in("perturbation", "occlusion", known.OcclusionSettings, several=True),
        _built_in("perturbation", "shapley_segments", known.ShapleySegmentsSettings, several=True),
        _built_in("perturbation", "winit", known.WinITSettings),
        _built_in("masks", "dynamask", known.DynamaskSettings),
        _built_in("masks", "extremalmask", known.ExtremalMaskSettings),
        _built_in("masks", "contralsp", known.ContraLSPSettings),
    )
}

AttributionFunction = Callable[..., Any]
"""`f(forward, x, step) -> attribution`.

`forward` maps windows `(B, L)` to forecasts `(B, H)`, differentiable in the windows; `x` is `(W, L)`; `step` is the
forecast step to explain, from 1, or None for the whole forecast. The attribution has the shape of `x`, as a tensor or
an array; its signs are dropped. Torch, numpy and random are seeded before each call.
"""
_objects: dict[str, AttributionFunction] = {}


def estimators() -> tuple[str, ...]:
    """Names of the estimators for `estimator=`, built in or registered by other packages."""
    return (*BUILT_IN, *_registered())


@cache
def _registered() -> dict[str, EntryPoint]:
    """Entry points of other packages, not loaded."""
    registered: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in BUILT_IN or entry.name in registered:
            raise ProtocolError(f"The entry point {entry.value!r} registers {entry.name!r}, which is taken. Rename it.")
        registered[entry.name] = entry
    return registered


def find_estimator(name: str) -> Estimator:
    """Return the estimator of that name: built in, registered, a library's class, or a function of a user."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name in _objects:
        return Estimator(name, partial(_by_function, name))
    if name.startswith(OBJECT):
        raise ProtocolError(
            f"The estimator {name!r} is a function of another Python process. The workers of an audit load it "
            "from a file: give FILE.py:FUNCTION."
        )
    if name.startswith(LIBRARIES):
        from hrx.audit.attribution.libraries import library_estimator

        return library_estimator(name)
    if name.rpartition(":")[0].endswith(".py"):
        return _of_file(name)
    entry = _registered().get(name)
    if entry is None:
        from hrx.audit.attribution.libraries import library_names

        names = (*estimators(), *library_names())
        raise ProtocolError(unknown("estimator", name, names, "A function of yours is FILE.py:FUNCTION."))
    try:
        loaded = entry.load()
    except Exception as error:
        raise ProtocolError(
            f"The estimator {name!r} comes from the entry point {entry.value!r}, which cannot be loaded: "
            f"{type(error).__name__}: {error}. Fix or uninstall that package."
        ) from error
    if not isinstance(loaded, Estimator) or loaded.name != name:
        raise ProtocolError(f"The entry point {entry.value!r} of {GROUP} is not an Estimator named {name!r}. Fix it.")
    return replace(loaded, package=f"{entry.dist.name} {entry.dist.version}" if entry.dist else "")


def _of_file(name: str) -> Estimator:
    """Estimator of `FILE.py:FUNCTION`; raises where there is no such function."""
    file, _, function = name.rpartition(":")
    path = user_path(file)
    if not os.path.isfile(path):
        raise ProtocolError(f"The estimator {name!r} names a file that does not exist: {path}. Give FILE.py:FUNCTION.")
    try:
        text = read_file(path)
        names = symtable.symtable(text, path.name, "exec").get_symbols()  # type: ignore[arg-type]  # takes bytes too
    except (SyntaxError, ValueError, HrxError) as error:
        raise ProtocolError(f"The estimator file {path} cannot be read: {describe_error(error)}.") from error
    defined = [one.get_name() for one in names if one.is_assigned() or one.is_imported()]
    if function not in defined:
        raise ProtocolError(unknown(f"function of {path.name}", function, defined))
    package = f"{path.name} sha256 {hashlib.sha256(text).hexdigest()[:16]}"
    return Estimator(name, partial(_by_function, name), package=package)


def stored_name(name: str) -> str:
    """Name as records hold it: a file without its directories."""
    file, _, function = name.rpartition(":")
    return f"{Path(file).name}:{function}" if file.endswith(".py") else name


def as_estimator(function: AttributionFunction) -> str:
    """Name under which a function is an estimator in this process, for `Protocol(estimator=…)`."""
    if not callable(function):
        raise ProtocolError(f"{function!r} is not a function f(forward, x, step) -> attribution.")
    for name, one in _objects.items():
        if one is function:
            return name
    base = OBJECT + str(getattr(function, "__qualname__", type(function).__name__))
    count = sum(name == base or name.startswith(f"{base}-") for name in _objects)
    name = f"{base}-{count + 1}" if count else base
    _objects[name] = function
    return name


def _by_function(name: str, task: AttributionTask, _: Settings) -> Estimate:
    """Every row by one call for all windows, under the same seed."""
    import torch

    from hrx.adapters.gradients import GradientPath
    from hrx.audit.torch_state import seeded

    file, chosen = name.rsplit(":", 1)
    function = _objects.get(name) or _from_file(user_path(file), chosen)
    called, path = stored_name(name), GradientPath()

    def forward(x: Tensor) -> Tensor:
        with path:
            return task.model.forward(x, task.horizon)

    rows = []
    for step in task.steps or (None,):
        with seeded(task.seed, task.stream, 0, FUNCTION_STREAM, 0):
            try:
                row = torch.as_tensor(function(forward, task.x.clone(), step)).detach().to(task.x)
            except HrxError:
                raise
            except Exception as error:  # a user's function may raise anything
                raised = describe_error(error).rstrip(".")
                raise ProtocolError(
                    f"The estimator {called} raised {raised}. It is called as f(forward, x, step) with x of shape "
                    f"{tuple(task.x.shape)} and returns an attribution of that shape."
                ) from error
        if row.shape != task.x.shape:
            raise ProtocolError(
                f"The estimator {called} returned shape {tuple(row.shape)} for windows of shape "
                f"{tuple(task.x.shape)}. Return one number for each position of each window."
            )
        rows.append(row.abs())
    return Estimate(torch.stack(rows, dim=1), path.rewrites)


@cache
def _from_file(file: Path, function: str) -> AttributionFunction:
    """Function of a file, which is executed once in a process."""
    from hrx.adapters.formats.module import function_in_file

    return function_in_file(file, function)


def parse_estimator_settings(pairs: Iterable[str]) -> str:
    """JSON of the pairs `NAME=VALUE`; the protocol checks names and values."""
    values: dict[str, Value] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ProtocolError(f"--estimator-setting {pair!r} is not a pair. Give NAME=VALUE, for example points=64.")
        if name in values:
            raise ProtocolError(f"--estimator-setting gives {name} twice. Give it once.")
        values[name] = value
        for kind in (float, int):  # the last that takes it
            with suppress(ValueError):
                values[name] = kind(value)
    return json.dumps(values, sort_keys=True)
