"""Fingerprint of a module or callable: equal where nothing that hrx can see of it differs.

It covers source code, parameters, buffers, plain attributes, and what a function closes over or names: a model in a
closure is a model too. It does not cover what code reads from a file or a service while it forecasts.
"""

import functools
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch

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
    if isinstance(value, torch.Tensor):
        yield from _tensor(value)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    elif isinstance(value, torch.nn.Module):
        yield from _module(value, seen)
    elif isinstance(value, FunctionType):
        yield from _function(value, seen)
    elif isinstance(value, MethodType):
        yield from _all((value.__func__, value.__self__), seen)
    elif isinstance(value, functools.partial):
        yield from _all((value.func, value.args, value.keywords), seen)
    elif isinstance(value, Mapping):
        yield from _all((item for pair in value.items() for item in pair), seen)
    elif isinstance(value, list | tuple):
        yield from _all(value, seen)
    elif isinstance(value, set | frozenset):
        yield from _all(sorted(value, key=repr), seen)
    elif isinstance(value, type | BuiltinFunctionType):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    elif is_dataclass(value) or isinstance(value, SimpleNamespace) or callable(value):
        yield _source(type(value))
        yield from _all(vars(value) if hasattr(value, "__dict__") else {}, seen)
        yield from _all(getattr(value, "__dict__", {}).values(), seen)


def _all(values: Any, seen: set[int]) -> Iterator[bytes]:
    for one in values:
        yield from _parts(one, seen)


def _tensor(value: torch.Tensor) -> Iterator[bytes]:
    yield f"{value.dtype} {tuple(value.shape)}".encode()
    yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _module(value: torch.nn.Module, seen: set[int]) -> Iterator[bytes]:
    """Every submodule: its class, its source and its plain attributes; then parameters and buffers."""
    for name, part in value.named_modules():
        yield f"{name} {type(part).__module__}.{type(part).__qualname__}".encode()
        if not type(part).__module__.startswith("torch."):
            yield _source(type(part))
        attributes = {key: held for key, held in vars(part).items() if not key.startswith("_") and key != "training"}
        yield from _all((item for key in sorted(attributes) for item in (key, attributes[key])), seen)
    for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
        yield name.encode()
        yield from _tensor(tensor)


def _function(value: FunctionType, seen: set[int]) -> Iterator[bytes]:
    """Its source, its defaults, what it closes over, and the values of this kind that it finds by name."""
    yield value.__qualname__.encode()
    yield _source(value)
    yield from _constants(value.__code__)
    yield from _all((value.__defaults__, value.__kwdefaults__), seen)
    for cell in value.__closure__ or ():
        try:
            yield from _parts(cell.cell_contents, seen)
        except ValueError:  # an empty cell
            yield b"empty"
    for name in value.__code__.co_names:
        held = value.__globals__.get(name)
        if isinstance(held, (*_PLAIN, torch.Tensor, torch.nn.Module, np.ndarray, FunctionType)):
            yield name.encode()
            yield from _parts(held, seen)


def _constants(code: CodeType) -> Iterator[bytes]:
    """Names and constants of a code object: several functions of one line share its source."""
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _constants(constant)
        else:
            shown = sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
            yield repr(shown).encode()


def _source(value: object) -> bytes:
    try:
        return inspect.getsource(value).encode()  # type: ignore[arg-type]  # what has no source raises
    except (OSError, TypeError):
        return b"source not available"
