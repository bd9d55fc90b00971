"""Models of a user: `from_module` for anything differentiable, `module:file.py:factory` on the command line.

The official call is the module itself under no-grad, so parity shows that the gradient path, which handles in-place
writes and detached statistics, does not change the forecast.
"""

import copy
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor

from hrx.adapters.contract import Convert, Forecaster, Identity, Limits, ModelError, freeze
from hrx.adapters.formats.fingerprint import fingerprint
from hrx.errors import HrxError, describe_error
from hrx.files import MOST_TEXT, regular_file, user_path

Predictor = torch.nn.Module | Callable[..., Tensor]


class ModuleForecaster(Forecaster):
    """A module or callable `(B, L) -> (B, H)`, or `(B, L), horizon -> (B, H)` where it takes a horizon."""

    official_call = "the module without gradients"

    def __init__(self, predictor: Predictor, identity: Identity, limits: Limits):
        self.predictor = freeze(predictor) if isinstance(predictor, torch.nn.Module) else predictor
        self.identity = identity
        self.limits = limits
        called = predictor.forward if isinstance(predictor, torch.nn.Module) else predictor
        self._takes_horizon = "horizon" in inspect.signature(called).parameters

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        y = self.predictor(x, horizon=horizon) if self._takes_horizon else self.predictor(x)
        if not isinstance(y, Tensor):
            raise ModelError(f"{self.identity.model} returned {type(y).__name__}, not a tensor (batch, steps).")
        if y.ndim != x.ndim or y.shape[0] != x.shape[0] or y.shape[1] < horizon:
            raise ModelError(
                f"{self.identity.model} returned shape {tuple(y.shape)} for an input of shape {tuple(x.shape)} and "
                f"a horizon of {horizon}. Return (batch, steps) with at least {horizon} steps."
            )
        return y[:, :horizon]

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        with torch.no_grad():
            return self.predict(x.clone(), horizon)

    def converted(self, convert: Convert) -> Forecaster | None:
        if not isinstance(self.predictor, torch.nn.Module):
            return None
        other = copy.copy(self)
        other.predictor = convert(copy.deepcopy(self.predictor))
        return other


def from_module(
    predictor: Predictor, *, name: str | None = None, limits: Limits | None = None, family: str = "module"
) -> ModuleForecaster:
    """A forecaster from a `torch.nn.Module` or callable, `(B, L) -> (B, H)`; only its first `horizon` steps are used.

    The module is set to evaluation mode and fp32, and its parameters are frozen. With `limits.multivariate` it maps
    `(B, L, C)` to `(B, H, C)`.

        import torch
        model = hrx.from_module(torch.nn.Linear(96, 24), name="linear")
        hrx.explain(model, torch.randn(1, 200), horizon=24, lookback=96).matrix.shape    # (1, 24, 96)
    """
    if not callable(predictor):
        raise ModelError(
            f"A {type(predictor).__name__} is not a model. Give a torch.nn.Module or a function of windows."
        )
    label = str(name or getattr(predictor, "__name__", type(predictor).__name__))
    identity = Identity(label, family, label, fingerprint(predictor), library=f"torch {torch.__version__}")
    return ModuleForecaster(predictor, identity, limits or Limits())


@dataclass(frozen=True)
class ModuleFile:
    """`module:file.py:factory`: a user's Python file and the function in it that returns the model."""

    file: Path
    factory: str

    @classmethod
    def parse(cls, spec: str) -> Self:
        file, _, factory = spec.rpartition(":")
        if not file or not factory:
            raise ModelError(f"module:{spec} does not name a factory. Write module:FILE.py:FACTORY.")
        path = user_path(file)
        if not os.path.isfile(path):
            raise ModelError(f"{path} is not a file. Write module:FILE.py:FACTORY with the path of a Python file.")
        try:
            return cls(regular_file(path, MOST_TEXT), factory)
        except HrxError as error:
            raise ModelError(str(error)) from error

    @property
    def identity(self) -> Identity:
        return self.load().identity

    @property
    def identity_unbuilt(self) -> Identity:
        """An identity from the file alone, for the records of a model that cannot be built."""
        try:
            source = self.file.read_bytes()
        except OSError:  # its own code may have removed it
            source = self._label.encode()
        unbuilt = hashlib.sha256(b"not built " + source).hexdigest()
        return Identity(self._label, "module", self._label, unbuilt, library=f"torch {torch.__version__}")

    @property
    def _label(self) -> str:
        return f"{self.file.stem}:{self.factory}"

    def load(self) -> Forecaster:
        return self._model

    @cached_property
    def _model(self) -> Forecaster:
        return self._create()

    def _create(self) -> Forecaster:
        """Calls the factory, which returns a `Forecaster`, a module or a callable; it prints to standard error."""
        try:
            text = hashlib.sha256(self.file.read_bytes()).hexdigest()
            with redirect_stdout(sys.stderr):
                result = function_in_file(self.file, self.factory)()
            if not isinstance(result, Forecaster) and not callable(result):
                raise TypeError(f"it returned a {type(result).__name__}")
            model = result if isinstance(result, Forecaster) else from_module(result, name=self._label)
        except ModelError:
            raise
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"{self.file} failed to create a model: {describe_error(error)}. Its function {self.factory} "
                "takes no argument and returns a Forecaster, a torch.nn.Module or a callable."
            ) from error
        whole = hashlib.sha256((text + model.identity.fingerprint).encode()).hexdigest()
        model.identity = replace(model.identity, fingerprint=whole)
        if model.reload() is None:
            model.reload = self._create  # type: ignore[method-assign]  # a second call loads it again
        return model


def function_in_file(file: Path, name: str) -> Callable[..., Any]:
    """The function of that name in a user's Python file, which is executed."""
    spec = importlib.util.spec_from_file_location(f"hrx_user_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ModelError(f"{file} cannot be imported. Give a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ModelError(f"{file} cannot be imported: {describe_error(error)}.") from error
    function = getattr(module, name, None)
    if not callable(function):
        names = ", ".join(name for name in vars(module) if not name.startswith("_"))
        raise ModelError(f"{file} has no function {name!r}. It defines: {names or 'nothing'}.")
    return cast("Callable[..., Any]", function)


@dataclass(frozen=True)
class UnbuiltModel:
    """A user's model that cannot be built, for the failed records of an audit of several models."""

    identity: Identity
    reason: str
    """For the ledger."""
    shown: str
    """For the terminal, where it may quote a library."""

    def load(self) -> Forecaster:
        raise ModelError(self.reason)
