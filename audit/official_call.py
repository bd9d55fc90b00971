"""Official call of a forecaster under test: counted, seeded, on copies, with the process as it was afterwards."""

import inspect
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster, Limits, ModelError
from hrx.adapters.formats.module import ModuleForecaster, from_module
from hrx.adapters.inputs import Window
from hrx.audit.torch_state import kept_random_state
from hrx.errors import describe_error

MOST_CALLS = 600
"""Official calls of one contract; a property that needs more is not run."""


class Stopped(Exception):
    """Calls or time of a contract ended."""


GLOBALS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch's default number type": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's precision of matrix products": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "torch's deterministic mode": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "numpy's error settings": (np.geterr, lambda settings: np.seterr(**settings)),
}
"""State of the process that a forecast must leave as it was: how it is read and set."""
GENERATORS: Mapping[str, Callable[[], Any]] = {
    "torch's random seed": lambda: torch.get_rng_state().tolist(),
    "numpy's random seed": lambda: np.random.get_state()[1].tolist(),  # type: ignore[index,union-attr,unused-ignore]  # noqa: NPY002
    "python's random seed": random.getstate,
}


def seed_generators(seed: int) -> None:
    """Seeds every global generator."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # the global generator
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` takes 2 ms, since it looks for devices
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


@contextmanager
def kept_globals() -> Iterator[None]:
    """Restores the state of `GLOBALS` and every random generator after the block."""
    before = {name: read() for name, (read, _) in GLOBALS.items()}
    try:
        with kept_random_state():
            yield
    finally:
        for name, (read, write) in GLOBALS.items():
            if read() != before[name]:
                write(before[name])


def _levels(model: Forecaster, x: Tensor, horizon: int) -> Tensor:
    """`(B, H, Q)`: the quantiles that the official call gives."""
    return model.official_window(Window(x[..., None]), horizon, model.outputs.levels)[:, :, 0]


class OfficialCall:
    """The call under test: counted, seeded, on copies, and with the state of the process restored after it."""

    def __init__(
        self,
        forecaster: Forecaster | Callable[..., Any],
        *,
        quantiles: Callable[[Tensor, int], Any] | None = None,
        elsewhere: Callable[[Tensor, int], Tensor] | None = None,
        as_numpy: bool = False,
        most_calls: int = MOST_CALLS,
        seconds: float = math.inf,
        clock: Callable[[], float] = time.perf_counter,
    ):
        if not callable(forecaster) and not isinstance(forecaster, Forecaster):
            raise ModelError(
                f"A {type(forecaster).__name__} is no forecaster. Give hrx.load(NAME), a module or a function."
            )
        if isinstance(forecaster, torch.nn.Module):
            forecaster = from_module(forecaster)
        self.model = forecaster if isinstance(forecaster, Forecaster) else None
        self.function = forecaster
        if quantiles is None and self.model and self.model.outputs.levels:
            quantiles = partial(_levels, self.model)
        self.quantiles = quantiles
        self.elsewhere = elsewhere
        """The same forecast by another process, where the model can be loaded there."""
        self.as_numpy, self.most_calls, self.clock = as_numpy, most_calls, clock
        self.deadline = clock() + seconds
        self.calls = 0
        self.alone = False
        """Whether it is called with one window at a time."""

    @property
    def limits(self) -> Limits:
        return self.model.limits if self.model else Limits()

    def __call__(self, x: Tensor, horizon: int, *, seed: int = 0, copy: bool = True) -> Tensor:
        rows = torch.split(x, 1) if self.alone else (x,)
        with kept_globals(), torch.no_grad():
            seed_generators(seed)
            return torch.cat([self.bare(row.clone() if copy else row, horizon) for row in rows])

    def bare(self, x: Tensor, horizon: int) -> Tensor:
        """One counted call on the caller's own tensor."""
        self.count(1)
        if isinstance(self.function, ModuleForecaster):
            y: Any = self.function.predict(x, horizon)  # `official` would copy, and a write into the input be hidden
        elif isinstance(self.function, Forecaster):
            y = self.function.official(x, horizon)
        else:
            y = self.call_function(x.numpy() if self.as_numpy else x, horizon)
        y = torch.as_tensor(y)
        if y.ndim != 2 or len(y) != len(x) or y.shape[1] < horizon or not y.is_floating_point():
            wanted = f"floating-point numbers ({len(x)}, {horizon}) for windows {tuple(x.shape)}"
            raise ModelError(f"The forecaster returned {y.dtype} {tuple(y.shape)}. Return {wanted}.")
        forecast: Tensor = y[:, :horizon].detach().clone()
        return forecast

    def count(self, calls: int) -> None:
        """Take calls from what is left, or stop."""
        if self.calls + calls > self.most_calls or self.clock() > self.deadline:
            raise Stopped
        self.calls += calls

    def call_function(self, x: Any, horizon: int) -> Any:
        """Call a function `f(x)`, `f(x, horizon)` or `f(x, horizon=…)`."""
        function: Any = self.function
        try:
            taken = inspect.signature(function).parameters
        except ValueError:  # a function of C
            return function(x, horizon)
        if "horizon" in taken:
            return function(x, horizon=horizon)
        required = [one for one in taken.values() if one.default is one.empty]
        return function(x, horizon) if len(required) > 1 else function(x)

    def attempt(self, x: Tensor, horizon: int) -> Tensor | str:
        """Forecast, or why there is none."""
        if self.model and (refusal := self.model.limits.refusal(x.shape[1], horizon)):
            return refusal
        try:
            return self(x, horizon)
        except Stopped:
            raise
        except Exception as error:  # a model may raise anything on a window that it does not expect
            return describe_error(error)
