"""What each channel does to a forecast: effect, sensitivity, help. Plain data, without torch; one JSON of a record.

`H` forecast steps; steps count from 1.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

import numpy as np

from hrx.records.quantities import Floats, Ints

READ = 1e-4
"""An effect above this, in the mean of the steps, counts as read: a hundredth of the forecasts' standard deviation.
Squared changes cannot be negative and are exactly zero for a channel that is not read, so draws cannot make one look
read; rounding, and what training left of weights that should be zero, stay below."""
ARRAYS = ("effect", "error", "share", "rearranged", "past", "future", "sensitivity")
"""Fields with a value for each step."""
DIGITS = 6
"""Significant digits of stored effects."""
Treatment = Literal["as_is", "rearranged", "erased", "withheld"]
TREATMENTS: tuple[Treatment, ...] = ("as_is", "rearranged", "erased", "withheld")
"""A channel as it is, rearranged within the window, all missing, and not given at all."""


@dataclass(frozen=True, eq=False)
class ChannelEffect:
    """What replacing one channel by other blocks of it does to a forecast, as a share of the forecasts' variance."""

    name: str
    role: str
    kind: str
    effect: Floats
    """`(H,)`: mean squared change; NaN where there is no other block."""
    error: Floats
    """`(H,)`: Monte Carlo standard error over the blocks; NaN of a single one."""
    total: float
    """Mean effect of all steps."""
    total_error: float
    share: Floats
    """`(H,)`: effect over the sum of the effects of all channels."""
    rearranged: Floats
    """`(H,)`: the same by rearranging the channel within its window; it misses a flag that is constant there."""
    blocks: int
    """Blocks behind each window's effect."""
    read_from: int | None = None
    """First step that the channel moves, from 1; None for a channel that is not read."""
    past: Floats | None = None
    """`(H,)`: effect of the lookback alone, of a channel that is known ahead."""
    future: Floats | None = None
    """`(H,)`: effect of the steps ahead alone."""
    sensitivity: Floats | None = None
    """`(R,)`: sum of the channel's row at each explained step, per standard deviation of the channel; None without a
    slope, as of a flag."""
    errors: Mapping[Treatment, float] | None = None
    """Mean squared error against the truth under each treatment that the model takes, standardised."""

    @property
    def measured(self) -> bool:
        """Whether there was another block to replace the channel with."""
        return not math.isnan(self.total)

    @property
    def read(self) -> bool:
        """Whether the forecast reads the channel: its effect, in the mean of the steps, is above `READ`."""
        return self.total > READ

    def at(self, steps: Ints) -> Self:
        """Return the same at some steps, from 0."""
        every = {name: getattr(self, name) for name in ARRAYS}
        longer = {name: own for name, own in every.items() if own is not None and len(own) > len(steps)}
        return replace(self, **{name: own[steps] for name, own in longer.items()})

    def as_dict(self) -> dict[str, Any]:
        """For JSON: numbers of a few digits, null for NaN."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The effect whose `as_dict` was stored."""
        known = dict(stored)
        for name in ARRAYS:
            if known[name] is not None:
                known[name] = np.array(known[name], dtype=np.float64)
        totals = {name: math.nan if known[name] is None else known[name] for name in ("total", "total_error")}
        return cls(**known | totals)


def first_moved(effect: Floats, total: float) -> int | None:
    """First step with an effect, from 1; None where the mean of all is none."""
    return int(np.flatnonzero(effect > READ)[0]) + 1 if total > READ else None


def with_shares(found: Sequence[ChannelEffect]) -> list[ChannelEffect]:
    """Return the effects of all channels with the share of each; NaN at a step that no channel moves."""
    total = np.nansum([one.effect for one in found], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return [replace(one, share=np.where(total > 0, one.effect / total, np.nan)) for one in found]


def to_json(found: Sequence[ChannelEffect]) -> str:
    """Column `channels` of a record."""
    return json.dumps([one.as_dict() for one in found], separators=(",", ":"))


def from_json(text: str) -> list[ChannelEffect]:
    """Effects that `to_json` has written."""
    return [ChannelEffect.from_dict(one) for one in json.loads(text)]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(one) for one in value.tolist()]
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
