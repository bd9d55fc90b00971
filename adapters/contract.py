"""The contract of a model: one class that every family and every researcher's own module fulfils.

A `Forecaster` turns windows `(B, L)` into point forecasts `(B, H)` twice: `forward`, which can be differentiated,
and `official`, the library's own public call, untouched. Everything that the audit may assume about a model
is stated here as data. Whether the two agree is not assumed: `hrx.audit.admission.checks` measures it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from hrx.adapters.gradients import GradientPath
from hrx.errors import HrxError

ADAPTER_VERSION = "4"
"""Raised when a change to any adapter changes a forecast or a gradient: stored runs then count as stale."""

Convert = Callable[[torch.nn.Module], torch.nn.Module]
"""Another number type or another device for a module; it may change what it is given."""


class ModelError(HrxError):
    """A model that cannot be found, read, loaded, or asked for this."""


@dataclass(frozen=True)
class Limits:
    """What a model can take. `None` means without limit."""

    shortest_lookback: int = 1
    longest_lookback: int | None = None
    """Beyond it the library would cut the window, so the positions before it could not be read at all."""
    lookback_multiple: int = 1
    lookbacks: tuple[int, ...] | None = None
    """The only lookbacks a model with a fixed context accepts."""
    longest_horizon: int | None = None
    multivariate: bool = False

    def refusal(self, lookback: int, horizon: int) -> str | None:
        """Why a setting cannot be run, in words, or None if it can."""
        if self.lookbacks is not None and lookback not in self.lookbacks:
            return f"takes a lookback of {' or '.join(map(str, self.lookbacks))} only, not {lookback}"
        if lookback < self.shortest_lookback:
            return f"needs a lookback of at least {self.shortest_lookback}, not {lookback}"
        if self.longest_lookback is not None and lookback > self.longest_lookback:
            return f"reads a lookback of at most {self.longest_lookback}, not {lookback}"
        if lookback % self.lookback_multiple:
            return f"needs a lookback that is a multiple of {self.lookback_multiple}, not {lookback}"
        if self.longest_horizon is not None and horizon > self.longest_horizon:
            return f"forecasts at most {self.longest_horizon} steps, not {horizon}"
        return None


@dataclass(frozen=True)
class Identity:
    """Which weights, read by which code: everything a record needs to tell one model from another."""

    model: str
    """What people call it: a short name, a hub id, the name of a directory."""
    family: str
    checkpoint: str
    """Where the weights come from: a hub id, or the name of a directory (never its path)."""
    fingerprint: str
    """sha256 of configuration and weights."""
    library: str
    """Distribution and version that ran it, as `chronos-forecasting 2.3.2`."""
    revision: str = ""


class Forecaster(ABC):
    """A checkpoint as a function, `(B, L) -> (B, H)`, with its limits and its identity."""

    identity: Identity
    limits: Limits = Limits()

    @abstractmethod
    def predict(self, x: Tensor, horizon: int) -> Tensor:
        """`(B, L) -> (B, H)`: the library's computation with nothing on the way that cuts the gradient for good.

        May still contain no-grad blocks, in-place writes and detached statistics: `forward` undoes these.
        """

    @abstractmethod
    def official(self, x: Tensor, horizon: int) -> Tensor:
        """`(B, L) -> (B, H)`: the library's own public call and its default point forecast, untouched."""

    def forward(self, x: Tensor, horizon: int) -> Tensor:
        """`(B, L) -> (B, H)`, differentiable in `x`; without gradients when they are switched off outside.

        Where the library writes in place on tensors that backward needs, the backward pass must run inside the
        same `with GradientPath():` as this call; `hrx.audit.explain` always does so.
        """
        self.check(x, horizon)
        with GradientPath() if torch.is_grad_enabled() else nullcontext():
            # A copy: a model may write into its input, and the caller's windows are used again.
            return self.predict(x.clone(), horizon)

    def check(self, x: Tensor, horizon: int) -> None:
        """Refuses a shape or a setting that the model cannot take."""
        name = self.identity.model
        if x.ndim != (3 if self.limits.multivariate else 2) or not x.is_floating_point():
            expected = "(batch, lookback, channels)" if self.limits.multivariate else "(batch, lookback)"
            raise ModelError(
                f"{name} expects a floating-point tensor of shape {expected}, not {tuple(x.shape)} {x.dtype}."
            )
        if horizon < 1:
            raise ModelError(f"{name} was asked for {horizon} steps. A forecast has at least one.")
        if refusal := self.limits.refusal(x.shape[1], horizon):
            raise ModelError(f"{name} {refusal}.")

    def for_season(self, season: int) -> Forecaster:
        """The model as it is for series of a known season: itself, unless its library is told the period."""
        return self

    def multivariate(self) -> Forecaster | None:
        """The model as it reads all channels of a window together, `(B, L, C) -> (B, H, C)`, or None if it cannot."""
        return self if self.limits.multivariate else None

    def converted(self, convert: Convert) -> Forecaster | None:
        """A copy of this forecaster whose module, a copy too, went through `convert`; None where there is no module."""
        return None

    def double(self) -> Forecaster | None:
        """The same model in float64, or None where there is no module to convert."""
        from hrx.adapters.precision import DoubleTwin  # which is a forecaster itself

        converted = self.converted(torch.nn.Module.double)
        return None if converted is None else DoubleTwin(converted)

    def reload(self) -> Forecaster | None:
        """The checkpoint loaded once more from where it came, or None for a model that was handed over in memory."""
        return None

    def unloaded(self) -> tuple[str, ...]:
        """Names of parameters whose values are not those of the checkpoint's file."""
        return ()


def freeze(module: torch.nn.Module) -> torch.nn.Module:
    """Evaluation mode, fp32, no parameter gradients: parameters that require grad select other attention kernels."""
    return module.float().eval().requires_grad_(False)
