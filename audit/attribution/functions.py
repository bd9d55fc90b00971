"""A user's function as an estimator: `f(forward, x, step) -> attribution`, as an object or as `FILE.py:FUNCTION`.

A function given as an object is known in its process only; the workers of an audit load a file. A file is not executed
to check a request: its syntax tree shows whether it defines the function. Imports torch when it explains.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrx.audit.attribution.registry import Estimator, Settings
from hrx.audit.protocol import ProtocolError
from hrx.errors import HrxError, describe_error, unknown
from hrx.files import read_file, user_path

if TYPE_CHECKING:
    from torch import Tensor

    from hrx.audit.attribution.explanation import AttributionTask, EstimatedRows

AttributionFunction = Callable[..., Any]
"""`f(forward, x, step) -> attribution`.

`forward` maps windows `(B, L)` to forecasts `(B, H)`, differentiable in the windows; `x` is `(W, L)`; `step` is the
forecast step to explain, from 0, or None for the whole forecast. The attribution has the shape of `x`, as a tensor or
an array; its signs are dropped. Torch, numpy and random are seeded before each call.
"""
OBJECT = "callable:"
FUNCTION_STREAM = 6
"""Separates the draws of a function from the other random draws under one seed."""
_objects: dict[str, AttributionFunction] = {}


def as_estimator(function: AttributionFunction) -> str:
    """The name under which a function is an estimator in this process, for `Protocol(estimator=…)`."""
    if not callable(function):
        raise ProtocolError(f"{function!r} is not a function f(forward, x, step) -> attribution.")
    for name, known in _objects.items():
        if known is function:
            return name
    base = OBJECT + str(getattr(function, "__qualname__", type(function).__name__))
    count = sum(name == base or name.startswith(f"{base}-") for name in _objects)
    name = f"{base}-{count + 1}" if count else base
    _objects[name] = function
    return name


def is_function(name: str) -> bool:
    """Whether a name is that of a function: an object, or a file."""
    return name.startswith(OBJECT) or name.rpartition(":")[0].endswith(".py")


def stored_name(name: str) -> str:
    """The name as records hold it: a file without its directories."""
    file, _, function = name.rpartition(":")
    return f"{Path(file).name}:{function}" if file.endswith(".py") else name


def function_version(name: str) -> str:
    """What decides the numbers of a function, besides its name: the sha256 of its file; empty for an object."""
    if name.startswith(OBJECT):
        return ""
    file = Path(name.rpartition(":")[0])
    return f"{file.name} sha256 {hashlib.sha256(read_file(user_path(file))).hexdigest()[:16]}"


@dataclass(frozen=True)
class FunctionEstimator(Estimator):
    """A user's function as an estimator."""

    def load(self) -> Callable[[AttributionTask, Any], EstimatedRows]:
        if self.name in _objects:
            return partial(_explain, self.name, _objects[self.name])
        from hrx.adapters.formats.module import function_in_file

        file, _, function = self.name.rpartition(":")
        return partial(_explain, stored_name(self.name), _loaded(function_in_file, str(user_path(file)), function))


@cache
def _loaded(load: Callable[[Path, str], AttributionFunction], file: str, function: str) -> AttributionFunction:
    """The function of a file, which is executed once in a process."""
    return load(Path(file), function)


def function_estimator(name: str) -> FunctionEstimator:
    """The estimator of `callable:NAME` or `FILE.py:FUNCTION`; raises where there is no such function."""
    if name.startswith(OBJECT):
        if name not in _objects:
            raise ProtocolError(
                f"The estimator {name!r} is a function of another Python process. The workers of an audit load it "
                "from a file: give FILE.py:FUNCTION."
            )
        return FunctionEstimator(name, "", Settings)
    file, _, function = name.rpartition(":")
    path = user_path(file)
    if not os.path.isfile(path):
        raise ProtocolError(f"The estimator {name!r} names a file that does not exist: {path}. Give FILE.py:FUNCTION.")
    try:
        tree = ast.parse(read_file(path), filename=path.name)
    except (SyntaxError, ValueError, HrxError) as error:
        raise ProtocolError(f"The estimator file {path} cannot be read: {describe_error(error)}.") from error
    if function not in (defined := _defined_names(tree)):
        raise ProtocolError(unknown(f"function of {path.name}", function, defined))
    return FunctionEstimator(name, "", Settings)


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


def _explain(name: str, function: AttributionFunction, task: AttributionTask, _: Settings) -> EstimatedRows:
    """Every row by one call for all windows, under the same seed."""
    import torch

    from hrx.adapters import GradientPath
    from hrx.audit.attribution.explanation import EstimatedRows
    from hrx.audit.attribution.random_state import seeded

    path = GradientPath()

    def forward(x: Tensor) -> Tensor:
        with path:
            return task.model.forward(x, task.horizon)

    rows = []
    for step in task.steps or (None,):
        with seeded(task.seed, task.stream, 0, FUNCTION_STREAM, 0), torch.enable_grad():
            try:
                given = function(forward, task.x.clone(), step)
                row = torch.as_tensor(given).detach().to(task.x)
            except HrxError:
                raise
            except Exception as error:  # a user's function may raise anything
                raised = describe_error(error).rstrip(".")
                raise ProtocolError(
                    f"The estimator {name} raised {raised}. It is called as f(forward, x, step) with x of shape "
                    f"{tuple(task.x.shape)} and returns an attribution of that shape."
                ) from error
        if row.shape != task.x.shape:
            raise ProtocolError(
                f"The estimator {name} returned shape {tuple(row.shape)} for windows of shape {tuple(task.x.shape)}. "
                "Return one number for each position of each window."
            )
        rows.append(row.abs())
    return EstimatedRows(torch.stack(rows, dim=1), path.rewrites)
