"""Forecasters around another one: `OnDevice`, `OneByOne` with a call for each window, `DoubleTwin` in float64,
`Rescaled` between two units of values, `Bound` to one layout of channels, one target and one output.

The library's official call stays on the CPU, so the parity check compares the device that is used with the library.
Errors and gains of an audit are on standardised values, so that they have the same scale for all series.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hrx.adapters.contract import Convert, Forecaster, ModelError
from hrx.adapters.inputs import POINT, Column, Layout, Output, Role, Window
from hrx.errors import HrxError, unknown

DEVICES = ("cpu", "cuda", "mps", "auto")
Numbers = float | Sequence[float]
Change = Callable[[Forecaster], Forecaster | None]


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


class Wrapped(Forecaster):
    """A forecaster around `base`, whose identity, limits and file it has."""

    def __init__(self, base: Forecaster):
        self._base = base
        self.identity, self.limits, self.official_call = base.identity, base.limits, base.official_call
        self.inputs, self.outputs, self.sections = base.inputs, base.outputs, base.sections
        self.differentiable = base.differentiable

    def _around(self, change: Change) -> Forecaster | None:
        """Return the same around a changed model, or None where there is none."""
        base = change(self._base)
        return base and (self if base is self._base else self._with(base))

    def _with(self, base: Forecaster) -> Forecaster:
        return type(self)(base)

    def for_season(self, season: int) -> Forecaster:
        return self._around(lambda model: model.for_season(season)) or self

    def multivariate(self) -> Forecaster | None:
        return self._around(lambda model: model.multivariate())

    def converted(self, convert: Convert) -> Forecaster | None:
        return self._around(lambda model: model.converted(convert))

    def double(self) -> Forecaster | None:
        return self._around(lambda model: model.double())

    def reload(self) -> Forecaster | None:
        return self._around(lambda model: model.reload())

    def unloaded(self) -> tuple[str, ...]:
        return self._base.unloaded()


def one_by_one(model: Forecaster) -> Forecaster:
    """Return the model with a call for each window, where its limits say `alone`; else the model itself."""
    return OneByOne(model) if model.limits.alone and not isinstance(model, OneByOne) else model


class OneByOne(Wrapped):
    """A forecaster that gets one window per call, forward and officially."""

    def __init__(self, base: Forecaster):
        super().__init__(base)
        self.reads_units, self.scale = base.reads_units, base.scale
        self.official_call = f"{base.official_call}, one window per call"
        self.checkpoint = getattr(base, "checkpoint", None)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return torch.cat([self._base.predict(row, horizon) for row in torch.split(x, 1)])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        return torch.cat([self._base.official(row, horizon) for row in torch.split(x, 1)])

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        return torch.cat([self._base.predict_window(one, horizon, columns) for one in window.each()])

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        return torch.cat([self._base.official_window(one, horizon, columns) for one in window.each()])


def on_device(model: Forecaster, device: torch.device) -> Forecaster:
    """Return the model with its forecasts and gradients computed on `device`; on the CPU the model itself."""
    if device.type == "cpu":
        return model
    moved = model.converted(lambda module: module.to(device))
    if moved is None:
        raise ModelError(f"{model.identity.model} has no torch module that can be moved to {device}. Use the CPU.")
    return OnDevice(model, moved, device)


class OnDevice(Wrapped):
    """A forecaster that computes on a device and takes and returns tensors of any other.

    `base` is the model on the CPU, with the official call; `moved` is its copy on the device.
    """

    def __init__(self, base: Forecaster, moved: Forecaster, device: torch.device):
        super().__init__(base)
        self.reads_units, self.scale = base.reads_units, base.scale
        self.device = device
        self._moved = moved

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        with self.device:  # tensors that an adapter or a library creates without naming a device
            y = self._moved.predict(x.to(self.device), horizon)
        return y.to(x.device)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        return self._base.official(x, horizon)

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        with self.device:
            moved = self._moved.predict_window(window.map(lambda one: one.to(self.device)), horizon, columns)
        return moved.to(window.target.device)

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        return self._base.official_window(window, horizon, columns)

    def _around(self, change: Change) -> Forecaster | None:
        base, moved = change(self._base), change(self._moved)
        if base is None or moved is None:
            return None
        return self if base is self._base else OnDevice(base, moved, self.device)

    def double(self) -> Forecaster | None:
        """Twin on the CPU: not every device computes in float64."""
        return self._base.double()

    def reload(self) -> Forecaster | None:
        again = self._base.reload()
        return None if again is None else on_device(again, self.device)


class Rescaled(Wrapped):
    """`base` on values of another scale; its forecast is on that scale too.

    It takes values that were standardised by `mean` and `std`, and `base` reads them in their unit; with `standardise`
    it takes values in their unit, and `base` reads them standardised. `mean` and `std` are one number, or one per
    variate.
    """

    def __init__(self, base: Forecaster, mean: Numbers, std: Numbers, *, standardise: bool = False):
        super().__init__(base)
        how = "on values standardised as in its training" if standardise else "in the units of the series"
        self.official_call = f"{base.official_call}, {how}"
        self._mean, self._std, self._standardise = mean, std, standardise

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self._map(self._base.predict(self._map(x, self._standardise), horizon), not self._standardise)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        return self._map(self._base.official(self._map(x, self._standardise), horizon), not self._standardise)

    def _map(self, values: Tensor, standardise: bool) -> Tensor:
        mean, std = values.new_tensor(self._mean), values.new_tensor(self._std)
        return (values - mean) / std if standardise else values * std + mean

    def _with(self, base: Forecaster) -> Forecaster:
        return Rescaled(base, self._mean, self._std, standardise=self._standardise)


def in_own_unit(model: Forecaster, scale: tuple[float, float] | None) -> Forecaster:
    """Return the model on values in the unit of their series, by the scale that it reads; None: it reads that unit."""
    return model if scale is None else Rescaled(model, *scale, standardise=True)


class Bound(Wrapped):
    """A model on packed windows of one layout, `(B, P) -> (B, H)`: one target's forecast of one output."""

    def __init__(self, base: Forecaster, layout: Layout, explained: int = 0, output: Output = POINT):
        super().__init__(base)
        self.identity = copy.copy(base.identity)  # its batches need other memory than those of `base`
        # A window holds all channels: packed, it is one row of positions.
        self.limits = replace(base.limits, needs="", multivariate=False, channels=None, predicted=None)
        self.layout, self.explained, self.output = layout, explained, output
        self.sections = layout.sections
        if refusal := self.refusal():
            raise ModelError(f"{self.identity.model} {refusal}.")

    def refusal(self) -> str | None:
        """Why the model does not take this layout or output, as a clause, or None if it does."""
        layout = self.layout
        return (
            self.limits.refusal(layout.lookback, layout.horizon)
            or self._base.inputs.refusal(layout.names, [c.name for c in layout.channels if c.kind == "categorical"])
            or self._base.outputs.refusal(self.output)
        )

    def check(self, x: Tensor, horizon: int) -> None:
        if x.ndim != 2 or x.shape[1] != self.layout.size or horizon != self.layout.horizon:
            raise ModelError(
                f"{self.identity.model} is bound to windows of {self.layout.size} positions and a horizon of "
                f"{self.layout.horizon}, not to {tuple(x.shape)} and {horizon}."
            )
        if refusal := self.refusal_of_missing(x):
            raise ModelError(f"{self.identity.model} {refusal}.")

    def refusal_of_missing(self, x: Tensor) -> str | None:
        """Why the missing values of covariates in `x` `(B, P)` cannot be given, as a clause, or None if they can."""
        covariates = [channel for channel in self.layout.channels if channel.role != "target"]
        if not covariates or not (missing := x.isnan()).any():
            return None
        for channel in covariates:
            taken: Role = getattr(self.inputs, channel.role)
            past, ahead = torch.tensor_split(missing[:, channel.positions], [self.layout.lookback], dim=1)
            for gaps, how, place in (
                (past, taken.missing, "position {}"),
                (ahead, taken.ahead_missing, "step {} ahead"),
            ):
                if how == "refused" and gaps.any():
                    (row, first), count = gaps.nonzero()[0].tolist(), gaps.shape[1]
                    return (
                        f"takes no missing values of {channel.role} covariates, but in window {row + 1} {channel.name} "
                        f"lacks {int(gaps[row].sum())} of {count} values, the first at {place.format(first + 1)}: fill "
                        f"them in, or drop {channel.name}"
                    )
        return None

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self._chosen(self._base.predict_window(self.layout.unpack(x), horizon, self.output.columns))

    def official(self, x: Tensor, horizon: int) -> Tensor:
        return self._chosen(self._base.official_window(self.layout.unpack(x), horizon, self.output.columns))

    def giving(self, output: Output) -> "Bound":
        """Return the model bound to the same channels, with another output."""
        return self if output == self.output else Bound(self._base, self.layout, self.explained, output)

    def without(self, name: str) -> "Bound":
        """Return the model bound to the other channels; raises where it needs this one, or explains it."""
        targets = [channel.name for channel in self.layout.of_role("target")]
        if name == targets[self.explained]:
            raise ModelError(f"{name} is the target whose forecast is explained.")
        explained = [one for one in targets if one != name].index(targets[self.explained])
        return Bound(self._base, self.layout.without(name), explained, self.output)

    def _chosen(self, y: Tensor) -> Tensor:
        """`(B, H, K, Q) -> (B, H)`."""
        y = y[:, :, self.explained]
        return y[..., -1] - y[..., 0] if self.output.is_spread else y[..., 0]

    def _with(self, base: Forecaster) -> Forecaster:
        return Bound(base, self.layout, self.explained, self.output)


def to_double(module: torch.nn.Module) -> torch.nn.Module:
    """Float64 weights, complex ones too, which `torch.nn.Module.double` leaves as they are."""
    for weight in (*module.parameters(), *module.buffers()):
        if weight.is_complex():
            weight.data = weight.data.to(torch.complex128)
    return module.double()


class DoubleTwin(Wrapped):
    """A forecaster with modules converted to float64, run with every fp32 cast replaced by a float64 one.

    Libraries name `torch.float32` or its complex type inside their computation; here the same code runs in double
    precision. Whether it did, and still computes the same forecast, is for the caller to check.
    """

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        with double_precision():
            return self._base.predict(x, horizon)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        with double_precision():
            return self._base.official(x, horizon)

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        with double_precision():
            return self._base.predict_window(window, horizon, columns)

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        with double_precision():
            return self._base.official_window(window, horizon, columns)


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
