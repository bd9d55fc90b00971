"""Models that people hold as objects, `from_module` among them, and `module:file.py:factory` on the command line.

The official call is the module itself under no-grad, so parity shows that the gradient path, which handles in-place
writes and detached statistics, does not change the forecast. The fingerprint of a module or callable is equal where
nothing that hrx can see of it differs: source code, parameters, buffers, plain attributes, and what a function closes
over or names, since a model in a closure is a model too. It does not cover what code reads while it forecasts.
"""

import copy
import functools
import hashlib
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import (
    Convert,
    Forecaster,
    Identity,
    Limits,
    ModelError,
    ReadScale,
    Scale,
    freeze,
    model_errors,
)
from hrx.adapters.wrapped import one_by_one
from hrx.errors import HrxError, describe_error
from hrx.files import MOST_TEXT, regular_file, user_path

Predictor = torch.nn.Module | Callable[..., Tensor]
NEURALFORECAST = "neuralforecast"


class ModuleForecaster(Forecaster):
    """A module or callable `(B, L) -> (B, H)`, or `(B, L), horizon -> (B, H)` where it takes a horizon."""

    official_call = "the module without gradients"

    def __init__(self, predictor: Predictor, identity: Identity, limits: Limits, scale: ReadScale = "raw"):
        self.predictor = predictor
        self.identity = identity
        self.limits = limits
        self.scale = scale
        self.reads_units = scale != "standardised"
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
    predictor: Predictor,
    *,
    name: str | None = None,
    limits: Limits | None = None,
    family: str = "module",
    scale: Literal["raw", "standardised"] | tuple[float, float] = "raw",
    copy: bool = True,
) -> ModuleForecaster:
    """A forecaster from a `torch.nn.Module` or callable, `(B, L) -> (B, H)`; only its first `horizon` steps are used.

    `scale` says which values it reads: `"raw"` ones, in the unit of the series; `"standardised"` ones, by mean and
    standard deviation of the series before its test region (the last fifth); or `(mean, std)`, the scale of its
    training. Data and forecasts are in the unit of the series in each case.

    The forecaster holds a copy of a module, in evaluation mode and fp32, without parameter gradients: memory for the
    weights once more, and what happens to the module later does not reach it. With `copy=False` the module itself is
    changed in this way. With `limits.multivariate` it maps `(B, L, C)` to `(B, H, C)`.

        import torch
        model = hrx.from_module(torch.nn.Linear(96, 24), name="linear")
        hrx.explain(model, torch.randn(1, 200), horizon=24, lookback=96).matrix.shape    # (1, 24, 96)
    """
    if not callable(predictor):
        raise ModelError(
            f"A {type(predictor).__name__} is not a model. Give a torch.nn.Module or a function of windows."
        )
    label = str(name or getattr(predictor, "__name__", type(predictor).__name__))
    owned = copy and isinstance(predictor, torch.nn.Module)
    if isinstance(predictor, torch.nn.Module):
        try:
            predictor = frozen_copy(predictor) if copy else freeze(predictor)
        except HrxError:
            predictor = LentModule(predictor)
    read = _read_scale(scale)

    def content() -> str:
        """Fingerprint of the module and what it reads: on another scale it is another model."""
        return hashlib.sha256(f"{fingerprint(predictor)} {read}".encode()).hexdigest()

    # Only a copy is sure to be the same model when it is stored.
    identity = Identity(label, family, label, content if owned else content(), library=f"torch {torch.__version__}")
    return ModuleForecaster(predictor, identity, limits or Limits(), read)


def _read_scale(scale: Any) -> ReadScale:
    if scale in ("raw", "standardised"):
        return cast(ReadScale, scale)
    try:
        mean, std = map(float, scale)
    except (TypeError, ValueError):
        mean, std = math.nan, math.nan
    if not (math.isfinite(mean) and 0 < std < math.inf):
        raise ModelError(f"scale={scale!r} is not a scale. Give 'raw', 'standardised', or (mean, std), std above 0.")
    return Scale(mean, std)


def frozen_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module on the same device, in evaluation mode, fp32, without parameter gradients."""
    module = getattr(module, "_orig_mod", module)  # of `torch.compile`, which would compile the copy again
    try:
        with torch.inference_mode(False):  # under it the copy's parameters could not have gradients
            copied = copy.deepcopy(module)
    except Exception as error:  # a module may hold anything
        raise HrxError(
            f"{type(module).__name__} cannot be copied for an audit: {describe_error(error)}. Remove what it keeps of "
            "its last batch, or audit its checkpoints with `hrx audit`."
        ) from error
    for one in copied.modules():
        # accelerate sets a `forward` on the instance that would run the original module.
        if vars(one).pop("_original_forward", None) is not None:
            vars(one).pop("forward", None)
    return freeze(copied)


class LentModule:
    """A module that cannot be copied, called in evaluation mode on its own weights, detached and in fp32.

    Each call leaves the module as it was. Weights that are fp32 already take no more memory.
    """

    def __init__(self, module: torch.nn.Module):
        self._module = module
        self.__signature__ = inspect.signature(module.forward)

    def __call__(self, *args: Any, **named: Any) -> Any:
        modes = [(part, part.training) for part in self._module.modules()]
        weights = {name: _detached(weight) for name, weight in self._module.named_parameters()}
        weights |= {name: _detached(buffer).clone() for name, buffer in self._module.named_buffers()}
        try:
            for part, _ in modes:
                part.training = False
            return torch.func.functional_call(self._module, weights, args, named)
        finally:
            for part, mode in modes:
                part.training = mode


def _detached(weight: Tensor) -> Tensor:
    return weight.detach().float() if weight.is_floating_point() else weight.detach()


def held_models(model: Any) -> list[Forecaster]:
    """Return the forecasters of an object: one, or all models of a fitted `NeuralForecast`."""
    if isinstance(model, Forecaster):
        return [one_by_one(model)]
    package, kind = type(model).__module__.partition(".")[0], type(model).__name__
    if package == NEURALFORECAST and kind == "NeuralForecast":
        from hrx.adapters.formats.neuralforecast import fitted_models  # imports the library

        return fitted_models(model)
    if package == NEURALFORECAST:
        raise ModelError(f"A {kind} alone has no scaler of its series. Give the NeuralForecast that holds it.")
    if callable(model):
        return [from_module(model)]
    raise ModelError(
        f"A {kind} is not a model. Give hrx.load(NAME), a name, a torch.nn.Module (B, L) -> (B, H), or a fitted "
        "NeuralForecast."
    )


def held_model(model: Any) -> Forecaster:
    """Return the forecaster of an object that holds one."""
    found = held_models(model)
    if len(found) > 1:
        names = [one.identity.model for one in found]
        raise ModelError(
            f"This NeuralForecast holds {len(found)} models: {', '.join(names)}. Save it with .save('DIR') and give "
            f"one by its name, as in '{NEURALFORECAST}:DIR:{names[0]}'."
        )
    return found[0]


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
        with model_errors(f"{path} cannot be read", "Check its permissions.", OSError):
            return cls(regular_file(path, MOST_TEXT), factory)

    @property
    def identity(self) -> Identity:
        return self.load().identity

    @property
    def identity_unbuilt(self) -> Identity:
        """An identity from the file alone, for the records of a model that cannot be built."""
        label = f"{self.file.stem}:{self.factory}"
        try:
            source = self.file.read_bytes()
        except OSError:  # its own code may have removed it
            source = label.encode()
        unbuilt = hashlib.sha256(b"not built " + source).hexdigest()
        return Identity(label, "module", label, unbuilt, library=f"torch {torch.__version__}")

    def load(self) -> Forecaster:
        return self._model

    @cached_property
    def _model(self) -> Forecaster:
        return self._create()

    def _create(self) -> Forecaster:
        """Calls the factory, which returns a `Forecaster`, a module or a callable; it prints to standard error."""
        advice = "takes no argument and returns a Forecaster, a torch.nn.Module or a callable."
        what = f"{self.file} failed to create a model"
        with model_errors(what, f"Its function {self.factory} {advice}"), redirect_stdout(sys.stderr):
            text = hashlib.sha256(self.file.read_bytes()).hexdigest()
            result = function_in_file(self.file, self.factory)()
            if not isinstance(result, Forecaster) and not callable(result):
                raise TypeError(f"it returned a {type(result).__name__}")
            label = f"{self.file.stem}:{self.factory}"
            built = result if isinstance(result, Forecaster) else from_module(result, name=label, copy=False)
        model = one_by_one(built)
        whole = hashlib.sha256((text + model.identity.fingerprint).encode()).hexdigest()
        model.identity = replace(model.identity, fingerprint=whole)
        if model.reload() is None:
            model.reload = self._create  # type: ignore[method-assign]  # a second call loads it again
        return model


def function_in_file(file: Path, name: str) -> Callable[..., Any]:
    """Return the function of that name in a user's Python file, which is executed."""
    spec = importlib.util.spec_from_file_location(f"hrx_user_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ModelError(f"{file} cannot be imported. Give a Python file.")
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the folder is the user's
    try:
        with model_errors(f"{file} cannot be imported", "Correct it, or install what it needs."):
            spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
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


_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(predictor: object) -> str:
    """sha256 of a module or callable."""
    digest = hashlib.sha256()
    for part in _parts(predictor, set()):
        digest.update(part + b"\0")
    return digest.hexdigest()


def _parts(value: Any, seen: set[int]) -> Iterator[bytes]:
    """What distinguishes a value, in an order that does not depend on the process."""
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}".encode()
        return
    if id(value) in seen:  # it stands elsewhere already, or it holds itself
        yield b"again"
        return
    seen.add(id(value))
    yield type(value).__qualname__.encode()
    if isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    else:
        for part in _contents(value):
            yield from _parts(part, seen)


def _contents(value: Any) -> Iterator[Any]:
    """What a value is made of: objects that live as long as it does, or plain values."""
    if isinstance(value, torch.nn.Module):
        for name, part in value.named_modules():
            yield f"{name} {type(part).__module__}.{type(part).__qualname__}"
            if not type(part).__module__.startswith("torch."):
                yield _source(type(part))
            for key in sorted(key for key in vars(part) if not key.startswith("_") and key != "training"):
                yield from (key, vars(part)[key])
        for named in (*value.named_parameters(), *value.named_buffers()):
            yield from named
    elif isinstance(value, FunctionType):
        yield from (value.__qualname__, _source(value), *_constants(value.__code__))
        yield from (value.__defaults__, value.__kwdefaults__)
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # an empty cell
                yield "empty"
        for name in value.__code__.co_names:  # the values of this kind that it finds by name
            held = value.__globals__.get(name)
            if isinstance(held, (*_PLAIN, Tensor, torch.nn.Module, np.ndarray, FunctionType)):
                yield from (name, held)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from pair
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, set | frozenset):
        yield from sorted(value, key=repr)
    elif isinstance(value, type | BuiltinFunctionType):
        yield f"{value.__module__}.{value.__qualname__}"
    elif is_dataclass(value) or isinstance(value, SimpleNamespace) or callable(value):
        yield from (_source(type(value)), getattr(value, "__dict__", None))


def _constants(code: CodeType) -> Iterator[str]:
    """Names and constants of a code object: several functions of one line share its source."""
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _constants(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _source(value: object) -> str:
    try:
        return inspect.getsource(value)  # type: ignore[arg-type]  # what has no source raises
    except (OSError, TypeError):
        return "source not available"
