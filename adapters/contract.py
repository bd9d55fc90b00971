"""Interface of a model: one class for every family and every module of a user.

A `Forecaster` computes point forecasts `(B, H)` of windows `(B, L)` by two calls: `forward`, which is differentiable,
and `official`, the library's own public call, unchanged. Whether the two agree is measured by
`hrx.audit.admission`.
"""

from __future__ import annotations

import json
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hrx.adapters.inputs import Column, Inputs, Outputs, Window
from hrx.errors import HrxError, describe_error, without_paths
from hrx.text import ComputedText

if TYPE_CHECKING:  # torch is imported when a model is loaded, not to list models
    import torch
    from torch import Tensor

ADAPTER_VERSION = "5"
"""Increase it when a change to any adapter changes a forecast or a gradient: stored runs then count as stale."""

Convert = Callable[["torch.nn.Module"], "torch.nn.Module"]
"""Moves a module to another number type or device; it may modify its argument."""


class ModelError(HrxError):
    """A model that cannot be found, read or loaded, or cannot handle a request."""


@dataclass(frozen=True)
class Limits:
    """Lookbacks and horizons that a model accepts, in steps. `None` means without limit."""

    shortest_lookback: int = 1
    longest_lookback: int | None = None
    """Longer windows are cut by the library, so the model never reads the positions before."""
    lookback_multiple: int = 1
    lookbacks: tuple[int, ...] | None = None
    """All lookbacks that a model with a fixed context accepts."""
    longest_horizon: int | None = None
    context: int | None = None
    """Steps that lookback and horizon share, for a model that forecasts inside its context.

    Each takes whole patches of it, `lookback_patch` and `horizon_patch`, and the horizon at least `least_horizon`.
    """
    lookback_patch: int = 1
    horizon_patch: int = 1
    least_horizon: int = 0
    never: str = ""
    """Why a model accepts no setting, as a clause: its runs are excluded with this reason."""
    needs: str = ""
    """What a model reads besides the series, as a clause: windows of a series alone are excluded with this reason."""
    padded_to: int | None = None
    """Length up to which the library puts zeros before a shorter window that the model reads as observed values.

    None for a model that takes a shorter window as it is, or knows by a mask which positions are padding.
    """
    alone: bool = False
    """Whether a forecast depends on the other windows of a batch: each window gets a call of its own."""
    multivariate: bool = False
    channels: int | None = None
    """How many variates a model that mixes its channels reads together; None for a model that takes any number."""
    predicted: tuple[int, ...] | None = None
    """Channels of a window that a multivariate model forecasts; None for all of them."""

    def refusal(self, lookback: int, horizon: int) -> str | None:
        """Why a setting cannot be run, as a clause, or None if it can."""
        if self.never or self.needs:
            return self.never or self.needs
        if self.lookbacks is not None and lookback not in self.lookbacks:
            return f"takes a lookback of {' or '.join(map(str, self.lookbacks))} only, not {lookback}"
        if lookback < self.shortest_lookback:
            return f"needs a lookback of at least {self.shortest_lookback}, not {lookback}"
        if self.longest_lookback is not None and lookback > self.longest_lookback:
            return f"reads a lookback of at most {self.longest_lookback}, not {lookback}"
        if lookback % self.lookback_multiple:
            return f"needs a lookback that is a multiple of {self.lookback_multiple}, not {lookback}"
        if refusal := self.refusal_of_horizon(horizon):
            return refusal
        if self.context is not None:
            taken = -(-max(horizon, self.least_horizon) // self.horizon_patch) * self.horizon_patch
            room = max(0, (self.context - taken) // self.lookback_patch * self.lookback_patch)
            if lookback > room:
                return f"reads a lookback of at most {room}, not {lookback}, before a horizon of {horizon}"
        return None

    def refusal_of_horizon(self, horizon: int) -> str | None:
        """Why a horizon cannot be run at any lookback, as a clause, or None if it can."""
        fits = self.longest_horizon is None or horizon <= self.longest_horizon
        return None if fits else f"forecasts at most {self.longest_horizon} steps, not {horizon}"

    def padding(self, lookback: int) -> int:
        """How many zeros the library puts before a window of this length that the model reads as observed values."""
        return max((self.padded_to or 0) - lookback, 0)

    def refusal_of_channels(self, variates: int) -> str | None:
        """Why windows of so many variates (0: univariate ones) cannot be run, as a clause, or None if they can."""
        if self.channels is None or variates == self.channels:
            return None
        given = variates or "one"
        return f"reads {self.channels} variates together, not {given}: give data of {self.channels} variates"


@dataclass(frozen=True)
class Identity:
    """Which weights, run by which code: what distinguishes one model from another in a record."""

    model: str
    """A short name, a hub id, or the name of a directory."""
    family: str
    checkpoint: str
    """Source of the weights: a hub id, or the name of a directory (never its path)."""
    fingerprint: ComputedText = ComputedText()  # noqa: RUF009 (a descriptor)
    """sha256 of configuration and weights; of a model in memory, computed when something is stored."""
    library: str = ""
    """Distributions and versions that run it, as `chronos-forecasting 2.3.2`."""
    revision: str = ""
    weights_dtype: str = ""
    """Number types of the stored weights, which are loaded as float32; empty if the files do not say."""
    backbone: str = ""
    """Class of a model that was trained on a benchmark; empty for a released, zero-shot model."""
    depth: int | None = None
    """Its number of layers, where the class has one such setting."""
    training_seed: int | None = None
    training: str = ""
    """A JSON object: how it was trained, as `training_facts` writes it; empty for a released, zero-shot model."""


class Scale(NamedTuple):
    """Standardised values: `(value - mean) / std`."""

    mean: float
    std: float


ReadScale = Literal["raw", "standardised"] | Scale
"""What a model reads: values in the unit of their series, or standardised ones, by a scale where it is stored."""


class Architecture(NamedTuple):
    """What the files of a trained model say about it; empty for a released checkpoint."""

    backbone: str = ""
    depth: int | None = None
    training_seed: int | None = None
    training: str = ""


UNKNOWN = "unknown"
"""In place of a fact of the training that the files of a model do not state."""


def training_facts(by: str, **facts: object) -> str:
    """What is known of a training, as one compact JSON object.

    `by` is the program that trained. `training_rows` is always among the facts: `UNKNOWN` where no file states which
    values the weights were fitted to, so that nobody takes the audited windows for unseen ones.
    """
    stated = {"by": by, "training_rows": UNKNOWN} | facts
    return json.dumps(_without_paths(stated), separators=(",", ":"), default=str)


def _without_paths(value: Any) -> Any:
    """Records are published, so a path in a stored argument is reduced to its file name."""
    if isinstance(value, dict):
        return {str(name): _without_paths(one) for name, one in value.items()}
    return without_paths(value) if isinstance(value, str) else value


@contextmanager
def model_errors(what: str, advice: str, *kinds: type[BaseException]) -> Iterator[None]:
    """Turns an exception of other code into a `ModelError`: what failed, the reason and the next step.

    One raised in hrx keeps its sentence. Without `kinds`, every exception is meant, and an attempt to exit.
    """
    kinds = kinds or (Exception, SystemExit)
    try:
        yield
    except ModelError:
        raise
    except HrxError as error:
        raise ModelError(str(error)) from error
    except kinds as error:
        reason = describe_error(error)
        if reason.endswith(":"):  # torch lists what does not match from the second line on
            reason = shorten(f"{type(error).__name__}: {error}", 300)
        raise ModelError(f"{what}: {reason}. {advice}") from error


@contextmanager
def library_errors(model: str, library: str) -> Iterator[None]:
    """Turns an exception of a model's library into a `ModelError` that quotes it; one raised in hrx stays as it is."""
    try:
        yield
    except HrxError:
        raise
    except Exception as error:
        modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
        if all(module.startswith("hrx.") for module in modules):
            raise
        raise ModelError(
            f"{library} raised an error while it ran {model}: {describe_error(error)}. "
            "Check that the checkpoint is complete and was saved for this version of the library."
        ) from error


class Forecaster(ABC):
    """A checkpoint as a function, `(B, L) -> (B, H)`, with its limits and its identity."""

    identity: Identity
    limits: Limits = Limits()
    official_call: str = "official"
    """Public call that `official` runs, as `Moirai2Forecast.predict`; stored in each record beside the parity."""
    reads_units: bool = False
    """Whether an audit gives it values in the unit of their series, or by its stored scale.

    A released model scales its windows itself: it gets standardised ones, as published.
    """
    differentiable: bool = True
    """Whether its forecast has derivatives; a black box has none."""
    inputs: Inputs = Inputs()
    outputs: Outputs = Outputs()
    sections: tuple[int, ...] | None = None
    """Lengths of the channels that lie one after another in its windows; None: one series."""
    scale: ReadScale = "raw"
    """What it reads; a model that was trained on standardised values names their scale where it is stored."""

    def __repr__(self) -> str:
        named = dict.fromkeys((self.identity.model, self.identity.checkpoint))
        return f"<{' '.join(filter(None, named))}: {self.inputs}; {self.outputs}>"

    @abstractmethod
    def predict(self, x: Tensor, horizon: int) -> Tensor:
        """`(B, L) -> (B, H)`: the library's computation without anything that removes the gradient for good.

        It may contain no-grad blocks, in-place writes and detached statistics: `forward` handles these.
        """

    @abstractmethod
    def official(self, x: Tensor, horizon: int) -> Tensor:
        """`(B, L) -> (B, H)`: the library's public call, unchanged, with its default point forecast.

        It uses the loaded weights and nothing else that `predict` uses: no helper, no constant, no index. Otherwise a
        mistake would be in both, and parity would not see it.
        """

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        """`(B, H, K, Q)`, differentiable: the columns of a forecast that may read covariates and several targets.

        A family with `inputs` or `outputs` implements it and `official_window`; `Bound` turns them into a forecaster.
        """
        return _point(self.predict, window, horizon, columns)

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        """`(B, H, K, Q)`: the same by the library's public call, which shares nothing but the weights."""
        return _point(self.official, window, horizon, columns)

    def forward(self, x: Tensor, horizon: int) -> Tensor:
        """`(B, L) -> (B, H)`, differentiable in `x`; without gradients if they are disabled by the caller.

        If the library writes in place into tensors that backward needs, backward must run inside the same
        `with GradientPath():` as this call; `hrx.audit.explain` does so.
        """
        import torch

        from hrx.adapters.gradients import GradientPath

        self.check(x, horizon)
        with GradientPath() if self.differentiable and torch.is_grad_enabled() else nullcontext():
            # A copy: a model may write into its input, and the caller reuses the windows.
            y = self.predict(x.clone(), horizon)
        if not y.is_floating_point():
            raise ModelError(f"{self.identity.model} returned {y.dtype}, not real floating-point numbers.")
        return y

    def check(self, x: Tensor, horizon: int) -> None:
        """Raises on a shape or a setting that the model does not accept."""
        name, axes = self.identity.model, ("batch", "lookback", "channels")[: 3 if self.limits.multivariate else 2]
        if x.ndim in (2, 3) and (refusal := self.limits.refusal_of_channels(x.shape[2] if x.ndim == 3 else 0)):
            raise ModelError(f"{name} {refusal}.")
        if x.ndim != len(axes) or not x.is_floating_point():
            expected = f"a floating-point tensor of shape ({', '.join(axes)})"
            raise ModelError(f"{name} expects {expected}, not {tuple(x.shape)} {x.dtype}.")
        if horizon < 1:
            raise ModelError(f"{name} cannot forecast {horizon} steps. The horizon is at least 1.")
        if refusal := self.limits.refusal(x.shape[1], horizon):
            raise ModelError(f"{name} {refusal}.")

    def for_season(self, season: int) -> Forecaster:
        """Model for series with this season: itself, unless its library takes the period as an argument."""
        return self

    def load(self) -> Forecaster:
        """Return itself: it may stand where a located model is expected."""
        return self

    def multivariate(self) -> Forecaster | None:
        """Model that reads all channels of a window together, `(B, L, C) -> (B, H, K)`, or None if it cannot.

        `K` is the number of channels that it forecasts: all `C`, or those in `limits.predicted`.
        """
        return self if self.limits.multivariate else None

    def converted(self, convert: Convert) -> Forecaster | None:
        """A copy of this forecaster with `convert` applied to a copy of its module; None if it has no module."""
        return None

    def double(self) -> Forecaster | None:
        """Return the same model in float64, or None if it has no module to convert."""
        from hrx.adapters.wrapped import DoubleTwin, to_double  # subclasses of this class

        converted = self.converted(to_double)
        return converted and DoubleTwin(converted)

    def reload(self) -> Forecaster | None:
        """Load the checkpoint again from its source, or None for a model that was given in memory."""
        return None

    def unloaded(self) -> tuple[str, ...]:
        """Names of parameters that differ from the checkpoint's file."""
        return ()


def _point(call: Callable[[Tensor, int], Tensor], window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
    """Point forecast of one target without covariates, for a model that knows nothing else."""
    if [*columns] not in (["point"], [0.5]) or window.target.shape[2] != 1:
        raise NotImplementedError("a family with inputs or outputs implements predict_window and official_window")
    return call(window.target[..., 0], horizon)[..., None, None]


def freeze(module: torch.nn.Module) -> torch.nn.Module:
    """Evaluation mode, fp32, no parameter gradients: torch uses other attention kernels for trainable parameters."""
    return module.float().eval().requires_grad_(False)
