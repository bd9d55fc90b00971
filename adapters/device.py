"""Where a model runs and in which number type: `resolve_device`, `on_device`, and `DoubleTwin` for float64.

The library's official call stays on the CPU, so the parity check compares the device that is used with the library.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hrx.adapters.contract import Forecaster, ModelError
from hrx.errors import HrxError, unknown

DEVICES = ("cpu", "cuda", "mps", "auto")


def resolve_device(name: str) -> torch.device:
    """Return the device `cpu`, `cuda`, `cuda:N` or `mps`, for `auto` the first available of CUDA, MPS and the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, colon, index = name.partition(":")
    if kind not in DEVICES or (colon and not (kind == "cuda" and index.isdecimal())):
        raise HrxError(unknown("device", name, DEVICES, "A GPU by number is cuda:N."))
    if kind == "cuda" and not torch.cuda.is_available():
        raise HrxError(f"The device {name} is not available: torch {torch.__version__} finds no CUDA GPU. Use cpu.")
    if index and int(index) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise HrxError(f"The device {name} is not available: torch finds {count} CUDA GPUs, numbered from 0.")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise HrxError(f"The device mps is not available: torch {torch.__version__} finds no Apple GPU. Use cpu.")
    return torch.device(name)


def on_device(model: Forecaster, device: torch.device) -> Forecaster:
    """Return the model with its forecasts and gradients computed on `device`; on the CPU the model itself."""
    if device.type == "cpu":
        return model
    moved = model.converted(lambda module: module.to(device))
    if moved is None:
        raise ModelError(f"{model.identity.model} has no torch module that can be moved to {device}. Use the CPU.")
    return OnDevice(model, moved, device)


class OnDevice(Forecaster):
    """A forecaster that computes on a device and takes and returns tensors of any other.

    `base` is the model on the CPU, with the official call; `moved` is its copy on the device.
    """

    def __init__(self, base: Forecaster, moved: Forecaster, device: torch.device):
        self.identity = base.identity
        self.limits = base.limits
        self.official_call = base.official_call
        self.reads_units, self.scale = base.reads_units, base.scale
        self.device = device
        self._base = base
        self._moved = moved

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        with self.device:  # tensors that an adapter or a library creates without naming a device
            y = self._moved.predict(x.to(self.device), horizon)
        return y.to(x.device)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        return self._base.official(x, horizon)

    def for_season(self, season: int) -> Forecaster:
        base = self._base.for_season(season)
        return self if base is self._base else OnDevice(base, self._moved.for_season(season), self.device)

    def multivariate(self) -> Forecaster | None:
        base, moved = self._base.multivariate(), self._moved.multivariate()
        if base is None or moved is None:
            return None
        return self if base is self._base else OnDevice(base, moved, self.device)

    def double(self) -> Forecaster | None:
        """Twin on the CPU: not every device computes in float64."""
        return self._base.double()

    def reload(self) -> Forecaster | None:
        again = self._base.reload()
        return None if again is None else on_device(again, self.device)

    def unloaded(self) -> tuple[str, ...]:
        return self._base.unloaded()


class DoubleTwin(Forecaster):
    """A forecaster with modules converted to float64, run with every fp32 cast replaced by a float64 one.

    Libraries name `torch.float32` or its complex type inside their computation; here the same code runs in double
    precision. Whether it did, and still computes the same forecast, is for the caller to check.
    """

    def __init__(self, converted: Forecaster):
        self._converted = converted
        self.identity = converted.identity
        self.limits = converted.limits
        self.official_call = converted.official_call

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        with double_precision():
            return self._converted.predict(x, horizon)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        with double_precision():
            return self._converted.official(x, horizon)


@contextmanager
def double_precision() -> Iterator[None]:
    """Code inside that names float32 gets float64."""
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
    if value is torch.complex64:
        return torch.complex128
    return torch.float64 if value is torch.float32 else value
