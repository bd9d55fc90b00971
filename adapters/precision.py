"""A model in float64, for checks that rounding in fp32 would blur.

Libraries name `torch.float32` inside their computation. In a twin every such name reads float64, so that the same code
runs in double precision. Whether it really did, and still computes the same forecast, is for the caller to check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hrx.adapters.contract import Forecaster


class DoubleTwin(Forecaster):
    """A forecaster whose modules were converted to float64, run with every fp32 cast turned into a float64 one."""

    def __init__(self, converted: Forecaster):
        self._converted = converted
        self.identity = converted.identity
        self.limits = converted.limits

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        with _double_precision():
            return self._converted.predict(x, horizon)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        with _double_precision():
            return self._converted.official(x, horizon)


@contextmanager
def _double_precision() -> Iterator[None]:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Promote():
            yield
    finally:
        torch.set_default_dtype(default)


class _Promote(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        named = {name: _promoted(value) for name, value in (kwargs or {}).items()}
        return func(*map(_promoted, args), **named)


def _promoted(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
