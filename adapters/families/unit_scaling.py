"""Gradients through unit-scaled layers (`dd_unit_scaling`, the layers of Toto-2).

Such a layer multiplies by one factor forward and by another backward, on purpose: it keeps the gradients of a training
run near one. The forecast is right, and backward returns something other than its derivative, finite and plausible. No
comparison of forecasts shows it; finite differences do. Under `exact_gradients` both factors are the same.

The function that stores the factor belongs to a class of the library, and so to the whole process, in which a user may
train a model: elsewhere the library's factors stay.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dd_unit_scaling.scale import _ScaledGrad
from torch import Tensor


class _Exact(threading.local):
    """Whether this thread runs a forward pass whose gradient is to be the derivative."""

    active = False


_exact = _Exact()


def _store_factor(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
    """Called by torch after each scaled operation, to store what its backward needs."""
    _, forward, backward = inputs
    ctx.bwd_scale = forward if _exact.active else backward


_ScaledGrad.setup_context = staticmethod(_store_factor)


@contextmanager
def exact_gradients() -> Iterator[None]:
    """Around a forward pass in this thread: backward, inside or later, takes the derivative of what was computed."""
    before, _exact.active = _exact.active, True
    try:
        yield
    finally:
        _exact.active = before
