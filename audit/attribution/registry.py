"""Estimators by name: built in, of another package, of a library, or a function of a user.

A package adds one by an entry point of the group `hrx.estimators`: its name is the estimator's name, its value an
`Estimator`. A user's function is an object, known in its own process only, or `FILE.py:FUNCTION`, which the workers of
an audit can load. Checking a request neither imports torch nor executes the file.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrx.audit.attribution import AttributionTask, Estimate, Estimator
from hrx.audit.attribution import settings as known
from hrx.audit.attribution.settings import Settings, Value
from hrx.errors import HrxError, ProtocolError, describe_error, unknown
from hrx.files import read_file, user_path

if TYPE_CHECKING:
    from torch import Tensor

GROUP = "hrx.estimators"
_GRADIENTS = "hrx.audit.attribution.gradients"
_PERTURBATION = "hrx.audit.attribution.perturbation"
_MASKS = "hrx.audit.attribution.masks"
LIBRARIES = ("captum", "tint")
"""Prefixes of the attribution classes in `libraries`."""
OBJECT = "callable:"

BUILT_IN = (
    Estimator("input_gradient", f"{_GRADIENTS}:saliency", every_step=True, multivariate=True, sign="slope"),
    Estimator("saliency", f"{_GRADIENTS}:saliency", multivariate=True, sign="slope"),
    Estimator("gradient_x_input", f"{_GRADIENTS}:gradient_x_input", multivariate=True, sign="contribution"),
    Estimator(
        "integrated_gradients",
        f"{_GRADIENTS}:integrated_gradients",
        known.IntegratedGradientsSettings,
        multivariate=True,
        sign="contribution",
    ),
    Estimator("smoothgrad", f"{_GRADIENTS}:smoothgrad", known.SmoothGradSettings, multivariate=True, sign="slope"),
    Estimator("tsr", f"{_GRADIENTS}:tsr", known.TSRSettings),
    Estimator("occlusion", f"{_PERTURBATION}:occlusion", known.OcclusionSettings),
    Estimator("shapley_segments", f"{_PERTURBATION}:shapley_segments", known.ShapleySegmentsSettings),
    Estimator("winit", f"{_PERTURBATION}:winit", known.WinITSettings),
    Estimator("dynamask", f"{_MASKS}:dynamask", known.DynamaskSettings),
    Estimator("extremalmask", f"{_MASKS}:extremalmask", known.ExtremalMaskSettings),
    Estimator("contralsp", f"{_MASKS}:contralsp", known.ContraLSPSettings),
)
_OWN = {estimator.name: estimator for estimator in BUILT_IN}

AttributionFunction = Callable[..., Any]
"""`f(forward, x, step) -> attribution`.

`forward` maps windows `(B, L)` to forecasts `(B, H)`, differentiable in the windows; `x` is `(W, L)`; `step` is the
forecast step to explain, from 1, or None for the whole forecast. The attribution has the shape of `x`, as a tensor or
an array; its signs are dropped. Torch, numpy and random are seeded before each call.
"""
FUNCTION_STREAM = 6
"""Separates the draws of a function from the other random draws under one seed."""
_objects: dict[str, AttributionFunction] = {}


def estimator_names() -> tuple[str, ...]:
    """Names of all estimators, built in or registered."""
    return (*_OWN, *_registered())


def find_estimator(name: str) -> Estimator:
    """Return the estimator of that name: built in, registered, a library's class, or a function of a user."""
    if name in _OWN:
        return _OWN[name]
    if _is_of_library(name):
        from hrx.audit.attribution.libraries import library_estimator

        return library_estimator(name)
    if _is_function(name):
        return _function_estimator(name)
    entry = _registered().get(name)
    if entry is None:
        from hrx.audit.attribution.libraries import library_names

        names = (*estimator_names(), *library_names())
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
    return loaded


def package_of(name: str) -> str:
    """What decides an estimator's numbers besides its name; empty for the built-in ones and for objects.

    Distribution and version, or the sha256 of a user's file. `PROTOCOL_VERSION` covers the built-in ones.
    """
    if name in _OWN or name.startswith(OBJECT):
        return ""
    if _is_of_library(name):
        from hrx.audit.attribution.libraries import library_versions

        return library_versions(name)
    if _is_function(name):
        file = Path(name.rpartition(":")[0])
        return f"{file.name} sha256 {hashlib.sha256(read_file(user_path(file))).hexdigest()[:16]}"
    entry = _registered().get(name)
    return f"{entry.dist.name} {entry.dist.version}" if entry and entry.dist else ""


def stored_name(name: str) -> str:
    """Name as records hold it: a file without its directories."""
    file, _, function = name.rpartition(":")
    return f"{Path(file).name}:{function}" if file.endswith(".py") else name


@lru_cache(maxsize=1)
def _registered() -> dict[str, EntryPoint]:
    """Entry points of other packages, not loaded."""
    registered: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in _OWN or entry.name in registered:
            raise ProtocolError(f"The entry point {entry.value!r} registers {entry.name!r}, which is taken. Rename it.")
        registered[entry.name] = entry
    return registered


def _is_of_library(name: str) -> bool:
    return ":" in name and name.partition(":")[0] in LIBRARIES


def _is_function(name: str) -> bool:
    return name.startswith(OBJECT) or name.rpartition(":")[0].endswith(".py")


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


def _function_estimator(name: str) -> Estimator:
    """Estimator of `callable:NAME` or `FILE.py:FUNCTION`; raises where there is no such function."""
    if name.startswith(OBJECT) and name not in _objects:
        raise ProtocolError(
            f"The estimator {name!r} is a function of another Python process. The workers of an audit load it "
            "from a file: give FILE.py:FUNCTION."
        )
    if name not in _objects:
        file, _, function = name.rpartition(":")
        path = user_path(file)
        if not os.path.isfile(path):
            raise ProtocolError(
                f"The estimator {name!r} names a file that does not exist: {path}. Give FILE.py:FUNCTION."
            )
        try:
            tree = ast.parse(read_file(path), filename=path.name)
        except (SyntaxError, ValueError, HrxError) as error:
            raise ProtocolError(f"The estimator file {path} cannot be read: {describe_error(error)}.") from error
        if function not in (defined := _defined_names(tree)):
            raise ProtocolError(unknown(f"function of {path.name}", function, defined))
    return Estimator(name, partial(_by_function, name))


def _defined_names(tree: ast.Module) -> set[str]:
    """Names that the top level of a file binds."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _by_function(name: str, task: AttributionTask, _: Settings) -> Estimate:
    """Every row by one call for all windows, under the same seed."""
    import torch

    from hrx.adapters.gradients import GradientPath
    from hrx.audit.torch_state import seeded

    function = _objects.get(name) or _from_file(str(user_path(name.rpartition(":")[0])), name.rpartition(":")[2])
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
def _from_file(file: str, function: str) -> AttributionFunction:
    """Function of a file, which is executed once in a process."""
    from hrx.adapters.formats.module import function_in_file

    return function_in_file(Path(file), function)


def parse_estimator_settings(pairs: Iterable[str]) -> str:
    """`NAME=VALUE` as on the command line, to JSON. Whether an estimator knows them is checked by `Protocol`."""
    values: dict[str, Value] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ProtocolError(f"--estimator-setting {pair!r} is not a pair. Give NAME=VALUE, for example points=64.")
        if name in values:
            raise ProtocolError(f"--estimator-setting gives {name} twice. Give it once.")
        values[name] = _literal(value)
    return json.dumps(values, sort_keys=True)


def _literal(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
