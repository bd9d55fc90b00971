"""Ways to make the same forecasts sooner: on a GPU, in bf16, compiled.

`obstacle` says what this machine cannot do. Whether the rest leaves a model's forecasts alone and saves any time is not
assumed: `hrx.audit.trial` measures it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import cache, cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster, ModelError
from hrx.errors import describe_error

Acceleration = Literal["cuda", "bf16", "compile"]
ACCELERATIONS: tuple[Acceleration, ...] = get_args(Acceleration)
"""In the order in which they are applied, each on top of those before it."""
RECOMPILATIONS = 32
"""How often torch may compile one function for other shapes; beyond that it falls back to the uncompiled one and goes
on. Its own limit of 8 is for all models and settings of a family together, and an audit has more of them."""
SECONDS_FOR_A_LAYER = 300
A_LAYER = """
import torch
from torch.nn.functional import scaled_dot_product_attention
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    for rows in (1, 64):
        y = torch.nn.Linear(64, 64)(torch.ones(rows, 8, 64))
        scaled_dot_product_attention(y, y, y)
"""


class Accelerated(Forecaster):
    """A forecaster with some accelerations. Its official call, the yardstick, stays that of the base.

    Season and channels are settled before: the base is the model as it is to be run.
    """

    def __init__(self, base: Forecaster, accelerations: Collection[Acceleration], device: str = "cuda"):
        """`device` is where `cuda` computes."""
        self.identity = base.identity
        self.limits = base.limits
        self.rows = base.rows
        self.accelerations = tuple(one for one in ACCELERATIONS if one in accelerations)
        self._base = base
        self._device = torch.device(device if "cuda" in accelerations else "cpu")
        self._model = _moved(base, self._device) if "cuda" in accelerations else base

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        if "cuda" not in self.accelerations:
            return self._in_precision(x, horizon)
        with self._device:  # what an adapter makes without naming a device is made there
            y = self._in_precision(x.to(self._device), horizon)
        return y.to(x.device)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        return self._base.official(x, horizon)

    def double(self) -> Forecaster | None:
        return self._base.double()

    def reload(self) -> Forecaster | None:
        return self._base.reload()

    def unloaded(self) -> tuple[str, ...]:
        return self._base.unloaded()

    def _in_precision(self, x: Tensor, horizon: int) -> Tensor:
        if "bf16" not in self.accelerations:
            return self._run(x, horizon)
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            y = self._run(x, horizon)
        return y.to(x.dtype)

    def _run(self, x: Tensor, horizon: int) -> Tensor:
        # Rows of the Jacobian are differentiated uncompiled. So is what a dispatch mode watches, as the probe of memory
        # does: torch compiles nothing there, and a function that it met there first it would never compile.
        if "compile" not in self.accelerations or torch.is_grad_enabled() or torch._C._len_torch_dispatch_stack():
            return self._model.predict(x, horizon)
        with _recompilations():
            return self._compiled(x, horizon)

    @cached_property
    def _compiled(self) -> Callable[[Tensor, int], Tensor]:
        return torch.compile(self._model.predict, dynamic=True)


def obstacle(acceleration: Acceleration, device: str = "cpu") -> str:
    """Why this machine cannot do it for a model on `device`, in a clause; empty where it can."""
    if acceleration == "cuda":
        return "" if torch.cuda.is_available() else "torch finds no GPU"
    if acceleration == "compile":
        return _obstacle_to_compile()
    if device == "cpu":
        return _obstacle_to_bf16()
    return "" if torch.cuda.is_bf16_supported() else "the GPU has no bf16"


@cache
def _obstacle_to_bf16() -> str:
    """Tried in another process: where the processor announces instructions that it does not have, torch believes it."""
    try:
        # -P: a file of the working directory must not stand in for a library.
        tried = subprocess.run(
            [sys.executable, "-P", "-c", A_LAYER], capture_output=True, text=True, timeout=SECONDS_FOR_A_LAYER
        )
    except subprocess.TimeoutExpired:
        return f"a bf16 layer takes more than {SECONDS_FOR_A_LAYER} seconds"
    if tried.returncode < 0:
        return f"a bf16 layer ends the process with signal {-tried.returncode}"
    if tried.returncode > 0:
        lines = tried.stderr.strip().splitlines()
        return f"a bf16 layer fails: {lines[-1] if lines else f'exit code {tried.returncode}'}"
    return ""


@cache
def _obstacle_to_compile() -> str:
    try:
        with torch.no_grad(), _recompilations():
            torch.compile(_small, dynamic=True)(torch.ones(2, 3))
    except Exception as error:  # of the compiler, of torch, of the system
        return f"torch.compile does not work: {describe_error(error)}"
    return ""


def _small(x: Tensor) -> Tensor:
    return x.sin() + 1


def _recompilations() -> AbstractContextManager[Any]:
    patch: AbstractContextManager[Any] = torch._dynamo.config.patch(recompile_limit=RECOMPILATIONS)
    return patch


def _moved(base: Forecaster, device: torch.device) -> Forecaster:
    moved = base.converted(lambda module: module.to(device))
    if moved is None:
        raise ModelError(f"{base.identity.model} has no module that could be moved to {device}.")
    return moved
