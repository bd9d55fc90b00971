"""Settings that decide a number, and the grids and draws that follow from them.

Every field is stored with each record. Changing what any of them means raises `PROTOCOL_VERSION`, so that stored runs
count as stale.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from hrx.audit.attribution import find_estimator, stored_name
from hrx.errors import ProtocolError, unknown
from hrx.records.quantities import Ints

PROTOCOL_VERSION = "5"

DrawsKind = Literal["antithetic", "paired", "independent"]
Area = Literal["gap", "morf"]
Axis = Literal["step", "whole"]


@dataclass(frozen=True)
class Protocol:
    """How one run is measured."""

    estimator: str = "input_gradient"
    estimator_settings: str = "{}"
    """JSON of the estimator's settings; completed with the defaults, so that a key and a record hold every value."""
    axis: Axis = "step"
    """`step`: a row per forecast step. `whole`: one row for the whole forecast, as the estimators were published."""
    truncation: bool = False
    """Whether truncations of the matrix are scored too."""
    distance: bool = False
    """Whether rows at fixed distances are scored too."""
    fine: bool = False
    """Whether the gains are measured over few deleted positions too (`fine_counts`), for models that read few."""
    context: bool = False
    """Whether the needed context is measured too."""
    context_bound: float = 0.01
    """Largest change of the forecasts, as a share of their variance, that counts as none for the needed context."""
    context_windows: int = 16
    """Windows, evenly spaced over the test region, behind the needed context."""
    draws: int = 4
    """Random replacements of the window that each quantity is averaged over."""
    draws_kind: DrawsKind = "antithetic"
    """Antithetic pairs, draws shared by all orderings (paired), or a new draw for every forecast (independent)."""
    precision: float | None = None
    """Continue drawing until the Monte Carlo error of the three gains is below this: the 95 % limit of their estimated
    errors, from four pairs on."""
    max_draws: int = 64
    """Bound on the draws for a given `precision`; without one it has no effect."""
    scored: int = 8
    """Forecast steps that are scored, evenly spaced, first and last included."""
    fractions: int = 9
    """Deleted fractions, evenly spaced on [0, 1]."""
    area: Area = "gap"
    """What a gain compares: `gap`, the MoRF area minus the LeRF area, or `morf`, the MoRF area alone."""
    permutations: int = 3
    """Random permutations behind `g_shuffled_permuted`, as in the paper."""
    variance_windows: int | Literal["run"] = 64
    """Forecasts of a series, evenly spaced over its test region, whose variance normalises the quantities and whose
    errors are compared with the naive ones; `run` takes the run's own windows instead."""
    seed: int = 0
    max_missing: float = 0.5
    """Largest share of filled-in values in the test region, and in the lookback of any window; a run with more is
    excluded.
    """

    def __post_init__(self) -> None:
        for name, kind in (("draws_kind", DrawsKind), ("area", Area), ("axis", Axis)):
            if getattr(self, name) not in get_args(kind):
                raise ProtocolError(unknown(name, str(getattr(self, name)), get_args(kind)))
        # In canonical form, so that equal settings have equal keys.
        estimator = find_estimator(self.estimator)
        settings = estimator.settings.read(self.estimator_settings, estimator.name).as_json()
        object.__setattr__(self, "estimator_settings", settings)
        at_least = {"draws": 1, "fractions": 3, "scored": 1, "permutations": 1, "seed": 0, "context_windows": 1}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise ProtocolError(f"{name}={getattr(self, name)} must be at least {least}.")
        if not 0 < self.context_bound < math.inf:
            raise ProtocolError(f"context_bound={self.context_bound} must be above 0, for example 0.01 for 1 %.")
        if not 0 <= self.max_missing <= 1:
            raise ProtocolError(f"max_missing={self.max_missing} must be between 0 and 1.")
        if self.draws_kind == "antithetic" and self.draws % 2:
            raise ProtocolError(f"draws={self.draws} is odd, but antithetic draws come in pairs. Give an even number.")
        if self.variance_windows != "run" and not (
            isinstance(self.variance_windows, int) and self.variance_windows > 0
        ):
            raise ProtocolError(f"variance_windows={self.variance_windows!r} is neither a number from 1 nor 'run'.")
        if self.precision is not None and not self.precision > 0:
            raise ProtocolError(f"precision={self.precision} must be above 0, for example 0.02.")
        if self.precision is not None and self.max_draws < self.draws:
            raise ProtocolError(f"max_draws={self.max_draws} is below draws={self.draws}. Raise it.")

    def decisive(self) -> dict[str, Any]:
        """Every setting as a key and a record hold it; one without effect has its default, or None."""
        idle: dict[str, Any] = {} if self.precision is not None else {"max_draws": Protocol.max_draws}
        if not self.context:
            idle |= {"context_bound": None, "context_windows": None}
        texts = {"variance_windows": str(self.variance_windows), "estimator": stored_name(self.estimator)}
        return asdict(self) | idle | texts

    @cached_property
    def draws_per_unit(self) -> int:
        """Draws that form one independent observation: an antithetic pair, or a single draw."""
        return 2 if self.draws_kind == "antithetic" else 1

    @property
    def most_draws(self) -> int:
        """Upper bound on the draws of a run, in whole units."""
        return max(self.draws, self.max_draws // self.draws_per_unit * self.draws_per_unit)


def scored_steps(horizon: int, count: int) -> Ints:
    """`count` evenly spaced steps of the horizon, first and last included; all of them when it is not longer."""
    if horizon <= count:
        return np.arange(horizon)
    return np.floor(np.linspace(0, horizon - 1, count) + 0.5).astype(np.int64)


def deletion_counts(lookback: int, fractions: int) -> Ints:
    """`k = round(ρL)` on the grid, rounded so that `k(1−ρ) = L − k(ρ)`.

    At `ρ = 1/2` of an odd lookback no integer can be symmetric; there the larger half is deleted.
    """
    last, j = fractions - 1, np.arange(fractions)
    lower = np.floor(j * lookback / last + 0.5).astype(np.int64)
    return np.where(2 * j > last, lookback - lower[::-1], lower)


def fine_counts(lookback: int, fractions: int) -> Ints:
    """1, 2, 4, 8, … positions, up to the first fraction of the grid."""
    first = max(int(deletion_counts(lookback, fractions)[1]), 1)
    return 2 ** np.arange(first.bit_length())


def rearranged(
    x: Tensor,
    key: Sequence[int],
    first: int,
    count: int,
    pairs: bool = True,
    shared: int = 1,
    sections: Sequence[int] = (),
) -> Tensor:
    """`(W, L) -> (W, J, D, L)`: random rearrangements of each window's values, draws `first … first + count − 1`.

    In `pairs`, the second draw gives each position the value of the opposite rank. The channels of a multivariate
    window `(W, L, C)`, and the `sections` of a packed one, are rearranged by themselves; a missing value stays where it
    is. `J = shared` of them are drawn together. A draw depends only on the key (seed, stream of the run, and what the
    draw is for), the window's place in its run, the section and the draw's number.
    """
    if len(sections) > 1:
        keys = (key if number == 0 else (*key, number + 1) for number in range(len(sections)))
        parts = zip(torch.split(x, list(sections), dim=1), keys, strict=True)
        return torch.cat([rearranged(part, own, first, count, pairs, shared) for part, own in parts], dim=-1)
    windows, length, channels = len(x), x.shape[1], x[0, 0].numel()
    index = np.empty((windows, shared, count, length, channels), dtype=np.int64)
    seed, stream, *purpose = key
    for w in range(windows):
        for d in range(count):
            unit, second = divmod(first + d, 2 if pairs else 1)
            rng = np.random.default_rng([seed, stream, w, *purpose, unit])
            u = rng.permuted(np.tile(np.arange(length), (shared, channels, 1)), axis=-1).swapaxes(1, 2)
            index[w, :, d] = length - 1 - u if second else u
    missing = torch.isnan(x).reshape(windows, length, channels).cpu().numpy()
    for w, channel in np.argwhere(missing.any(axis=1)):
        own, there = index[w, ..., channel], missing[w, :, channel]
        own[..., ~there] = own[..., ~there].argsort(axis=-1).argsort(axis=-1)  # the ranks of values come first
        own[..., there] = length - 1
    ordered = torch.sort(x, dim=1).values.reshape(windows, 1, 1, length, channels).expand(-1, shared, count, -1, -1)
    drawn = torch.gather(ordered, 3, torch.as_tensor(index, device=x.device))
    return drawn if x.ndim == 3 else drawn[..., 0]
