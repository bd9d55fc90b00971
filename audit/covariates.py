"""What each channel of a window does to a forecast: effect, entries without a slope, sensitivity, reach, help.

Functions of a model bound to a layout, packed windows `x` `(W, P)` in raw units, and blocks of each channel's history,
`(n, length)`. An effect is measured by replacing the whole channel, never by a gradient: a model may read a channel
through its mean and scale alone, and a holiday flag has no slope.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import ModelError
from hrx.adapters.inputs import Channel
from hrx.adapters.wrapped import Bound
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import rearranged
from hrx.errors import ProtocolError
from hrx.records.channels import ChannelEffect, Treatment, first_moved, with_shares
from hrx.records.quantities import Bools, Floats

BLOCKS = 8
"""Blocks that replace a channel of a window."""
EFFECT_STREAM = 7
"""Separates these draws from the other random draws under one seed."""
MOST_VALUES = 4
"""Other values that each value of a categorical channel is replaced by."""
POSITIONS_AT_ONCE = 64
"""Positions of a channel that are forecast with other values in one batch."""
SAME_FORECAST = 1e-6
"""Relative difference of two forecasts that are equal but for rounding."""

Blocks = Mapping[str, Floats]
"""For each channel, blocks of its history `(n, length)`: `L` values, `L + H` where it is known ahead, 1 if static."""


def channel_effects(
    model: Bound,
    x: Tensor,
    blocks: Blocks,
    variance: float,
    *,
    draws: int = BLOCKS,
    seed: int = 0,
    stream: int = 0,
    budget: MemoryBudget | None = None,
) -> list[ChannelEffect]:
    """Effect of every channel of the layout on each step, `mean (f(x with other blocks)[h] − f(x)[h])² / variance`.

    Blocks are drawn without replacement for each window, the same for all steps, models and outputs. Rearranging the
    channel within its window, and of a channel that is known ahead replacing its past or its future part alone, stand
    beside it.
    """
    work = _Replacing(model, x, seed, stream, budget)
    found = []
    for channel in model.layout.channels:
        drawn = work.blocks(channel, blocks, draws)
        effect, error, total, total_error = _moments(work.change(channel.positions, drawn), variance)
        past, future = (
            _moments(work.change(part, drawn[..., _within(part, channel)]), variance).effect if part else None
            for part in _parts(channel, model.layout.lookback)
        )
        shuffled = _moments(work.change(channel.positions, work.rearranged(channel, draws)), variance).effect
        found.append(
            ChannelEffect(
                name=channel.name,
                role=channel.role,
                kind=channel.kind,
                effect=effect,
                error=error,
                total=total,
                total_error=total_error,
                share=np.full_like(effect, np.nan),
                rearranged=shuffled,
                blocks=drawn.shape[1],
                read_from=first_moved(effect, total),
                past=past,
                future=future,
            )
        )
    return with_shares(found)


def effect_forecasts(model: Bound, draws: int = BLOCKS) -> int:
    """Forecasts per window that `channel_effects` costs at most, the unperturbed one included."""
    return 1 + sum(4 * draws if channel.role == "future" else 2 * draws for channel in model.layout.channels)


class _Moments(NamedTuple):
    effect: Floats
    error: Floats
    total: float
    total_error: float


def _moments(change: Floats, variance: float) -> _Moments:
    """Mean over windows and draws of squared changes `(W, D, H)`, and its standard error for fixed windows."""
    windows, draws, horizon = change.shape
    if not draws:
        return _Moments(np.full(horizon, np.nan), np.full(horizon, np.nan), np.nan, np.nan)
    each = np.concatenate([change, change.mean(axis=2, keepdims=True)], axis=2) / variance
    mean = each.mean(axis=(0, 1))
    error = np.full(horizon + 1, np.nan)
    if draws > 1:
        error = np.sqrt((each.var(axis=1, ddof=1) / draws).sum(axis=0)) / windows
    return _Moments(mean[:-1], error[:-1], float(mean[-1]), float(error[-1]))


def _parts(channel: Channel, lookback: int) -> tuple[slice | None, slice | None]:
    """Positions of the lookback and of the steps ahead of a channel that is known ahead."""
    if channel.role != "future":
        return None, None
    border, positions = channel.start + lookback, channel.positions
    return slice(positions.start, border), slice(border, positions.stop)


def _within(part: slice, channel: Channel) -> slice:
    return slice(part.start - channel.start, part.stop - channel.start)


class _Replacing:
    """Forecasts of windows of which some positions are replaced, against those of the windows as they are."""

    def __init__(self, model: Bound, x: Tensor, seed: int, stream: int, budget: MemoryBudget | None):
        self.model, self.x, self.seed, self.stream = model, x, seed, stream
        self.budget, self.horizon = budget or MemoryBudget(), model.layout.horizon
        self.forecast = self.forecasts(x)

    def forecasts(self, x: Tensor) -> Tensor:
        """`(…, P) -> (…, H)`, float64."""
        y = self.budget.forecasts(self.model, x.reshape(-1, x.shape[-1]), self.horizon)
        return y.reshape(*x.shape[:-1], self.horizon).double()

    def replaced(self, positions: slice, drawn: Tensor) -> Tensor:
        """`(W, D, H)`: forecasts with the values `(W, D, length)` at the positions."""
        if not drawn.shape[1]:
            return self.forecast.new_empty(len(self.x), 0, self.horizon)
        inputs = self.x[:, None].repeat(1, drawn.shape[1], 1)
        inputs[..., positions] = drawn.to(inputs)
        return self.forecasts(inputs)

    def swapped(self, channel: Channel, swaps: Mapping[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
        """Yield `(W, D, H)` for each position of a channel: forecasts with other values `(W, D)` there."""
        every = list(swaps.items())
        for start in range(0, len(every), POSITIONS_AT_ONCE):
            some = every[start : start + POSITIONS_AT_ONCE]
            inputs = []
            for position, drawn in some:
                own = self.x[:, None].repeat(1, drawn.shape[1], 1)
                own[..., channel.start + position] = drawn.to(own)
                inputs.append(own)
            forecasts = self.forecasts(torch.cat(inputs, dim=1))
            sizes = [drawn.shape[1] for _, drawn in some]
            yield from zip((position for position, _ in some), torch.split(forecasts, sizes, dim=1), strict=True)

    def change(self, positions: slice, drawn: Tensor) -> Floats:
        """`(W, D, H)`: squared changes of the forecasts."""
        return (self.replaced(positions, drawn) - self.forecast[:, None]).square().numpy()

    def blocks(self, channel: Channel, blocks: Blocks, draws: int) -> Tensor:
        """`(W, D, length)`: blocks for each window; those with missing values only where all have some."""
        known = np.asarray(blocks.get(channel.name, np.empty((0, channel.length))), dtype=np.float64)
        if known.ndim != 2 or known.shape[1] != channel.length:
            raise ProtocolError(
                f"Blocks of {channel.name} have the shape {known.shape}. Give (n, {channel.length}): values of "
                f"{channel.length} steps each."
            )
        complete = known[~np.isnan(known).any(axis=1)]
        known = complete if len(complete) else known
        name = zlib.crc32(channel.name.encode())  # so that a further channel does not change the draws of this one
        keys = ([self.seed, self.stream, w, EFFECT_STREAM, name] for w in range(len(self.x)))
        count = min(draws, len(known))
        places = [np.random.default_rng(key).choice(len(known), count, replace=False) for key in keys]
        return torch.as_tensor(known[np.stack(places)])

    def rearranged(self, channel: Channel, draws: int) -> Tensor:
        """`(W, D, length)`: the channel's own values of each window in another order."""
        key = self.seed, self.stream, EFFECT_STREAM, zlib.crc32(channel.name.encode())
        return rearranged(self.x[:, channel.positions], key, 0, draws)[:, 0]


def replaced_rows(
    model: Bound, x: Tensor, blocks: Blocks, *, seed: int = 0, budget: MemoryBudget | None = None
) -> dict[str, Floats]:
    """Rows of the channels without a slope, two-valued, categorical and static ones: `(W, H, length)` by name.

    An entry is the mean magnitude of the change of a step when the value is replaced by another of the channel: by all
    others, up to four. A missing value has no entry, zero.
    """
    work, rows = _Replacing(model, x, seed, 0, budget), dict[str, Floats]()
    for channel in model.layout.channels:
        if channel.has_slope:
            continue
        history = np.asarray(blocks.get(channel.name, ()), dtype=np.float64).ravel()
        values = x[:, channel.positions].double().numpy()
        known = np.unique(np.concatenate([history, values.ravel()]))
        known = known[~np.isnan(known)]
        found = np.zeros((len(x), model.layout.horizon, channel.length))
        rng = np.random.default_rng([seed, EFFECT_STREAM, zlib.crc32(channel.name.encode())])
        swaps: dict[int, Tensor] = {}
        for position in range(channel.length):
            # As many others for each window: a window whose value is missing gets its own back.
            others = [np.full(1, v) if np.isnan(v) else known[known != v] for v in values[:, position]]
            count = min(MOST_VALUES, max(map(len, others)))
            if not count:
                continue
            drawn = np.stack([rng.permutation(np.resize(one, max(count, len(one))))[:count] for one in others])
            swaps[position] = torch.as_tensor(drawn)
        for position, forecast in work.swapped(channel, swaps):
            found[:, :, position] = (forecast - work.forecast[:, None]).abs().mean(dim=1).numpy()
        found[np.isnan(values)[:, None].repeat(model.layout.horizon, axis=1)] = 0
        rows[channel.name] = found
    return rows


def standardised(
    model: Bound, matrix: Tensor, scales: Mapping[str, float], rows: Mapping[str, Floats], steps: Sequence[int]
) -> Tensor:
    """`(W, R, P)`: a matrix of slopes as changes of the forecast per standard deviation of each channel.

    `scales` are standard deviations by channel, `rows` the entries of channels without a slope (`replaced_rows`), and
    `steps` the forecast steps of the `R` rows, from 1.
    """
    matrix = matrix.double().clone()
    for channel in model.layout.channels:
        if channel.has_slope:
            matrix[..., channel.positions] *= scales[channel.name]
        else:
            matrix[..., channel.positions] = torch.as_tensor(rows[channel.name][:, np.array(steps) - 1])
    return matrix


def with_sensitivity(found: Sequence[ChannelEffect], model: Bound, matrix: Tensor) -> list[ChannelEffect]:
    """Return the effects with the sensitivity of each channel, from the standardised `matrix` `(W, R, P)`."""
    sums = {
        channel.name: matrix[..., channel.positions].double().sum(dim=-1).mean(dim=0).numpy()
        for channel in model.layout.channels
        if channel.has_slope
    }
    return [replace(one, sensitivity=sums.get(one.name)) for one in found]


class Reach(NamedTuple):
    """Which steps of a forecast the value of a channel at each step ahead moves."""

    moves: Bools
    """`(H, H)`: whether the value at step `t` ahead (first axis) moves step `h` of the forecast."""

    @property
    def first(self) -> int | None:
        """First step that any value ahead moves, from 1; None where none does."""
        moved = np.flatnonzero(self.moves.any(axis=0))
        return int(moved[0]) + 1 if len(moved) else None

    @property
    def band(self) -> int | None:
        """Largest distance between a value and a step that it moves; None where no value moves any."""
        at, moved = np.nonzero(self.moves)
        return int(np.abs(at - moved).max()) if len(at) else None

    @property
    def first_from(self) -> tuple[int | None, ...]:
        """For each step ahead, the first step that its value moves."""
        return tuple(int(np.flatnonzero(row)[0]) + 1 if row.any() else None for row in self.moves)

    def __str__(self) -> str:
        horizon = len(self.moves)
        if self.first is None or self.band is None:
            return "no step"
        if self.moves.all():
            return "every step"
        if self.band == 0:
            return "its own step"
        causal = not np.tril(self.moves, -1).any()
        if not causal and self.band < horizon // 2:
            return f"steps within ±{self.band} of its own"
        if self.first > 1 and self.moves[:, self.first - 1 :].any(axis=1).all() and not causal:
            return f"from step {self.first} on"
        later = "its own and later steps" if np.diagonal(self.moves).all() else "later steps"
        return later if self.first == 1 else f"{later}, from step {self.first} on"


def reach(model: Bound, x: Tensor, name: str, values: tuple[float, float], budget: MemoryBudget | None = None) -> Reach:
    """Which steps each value ahead of a known-future channel moves, on the first of the windows `x` `(W, P)`.

    The steps ahead alternate between two `values` of the channel, and two of them swap places: mean and scale of the
    channel stay, so a model that sees the future through them alone moves nothing. Each step takes part in two swaps,
    and moves what both move.
    """
    layout, horizon = model.layout, model.layout.horizon
    channel = layout.by_name[name]
    if channel.role != "future":
        raise ProtocolError(f"{name} is a {channel.role} channel. Reach is that of a channel known ahead.")
    if values[0] == values[1] or horizon < 2:
        raise ProtocolError(f"The reach of {name} needs two values that differ, and a horizon of at least 2.")
    base = x[:1].clone()
    ahead = slice(channel.start + layout.lookback, channel.positions.stop)
    base[:, ahead] = torch.tensor(values, dtype=x.dtype).repeat(horizon)[:horizon]
    swaps = list(pairwise(range(horizon)))
    # The ends have one neighbour only; the other partner is far away, and of the other value.
    swaps += [(0, horizon - 1)] if horizon % 2 == 0 else [(0, horizon - 2), (1, horizon - 1)]
    inputs = base.repeat(len(swaps) + 1, 1)
    for row, (one, other) in enumerate(swaps, start=1):
        a, b = ahead.start + one, ahead.start + other
        inputs[row, [a, b]] = inputs[row, [b, a]]
    y = (budget or MemoryBudget()).forecasts(model, inputs, horizon).double()
    moved = ((y[1:] - y[:1]).abs() > SAME_FORECAST * y.abs().amax()).numpy()
    moves = np.ones((horizon, horizon), dtype=bool)
    for (one, other), steps in zip(swaps, moved, strict=True):
        moves[[one, other]] &= steps
    return Reach(moves)


def channel_errors(
    model: Bound,
    x: Tensor,
    truth: Tensor,
    scale: float,
    *,
    draws: int = BLOCKS,
    seed: int = 0,
    stream: int = 0,
    budget: MemoryBudget | None = None,
) -> dict[str, dict[Treatment, Floats]]:
    """Mean squared errors `(W,)` of each channel but the explained target under each treatment that the model takes.

    `truth` is `(W, H)`, and errors are divided by `scale²`, `scale` the target's standard deviation. A treatment is
    left out where the call does not take it: missing values, or a window without the channel.
    """
    work = _Replacing(model, x, seed, stream, budget)
    own = model.layout.of_role("target")[model.explained].name

    def error(forecast: Tensor) -> Floats:
        return ((forecast - truth[:, None].double()) / scale).square().mean(dim=(1, 2)).numpy()

    found: dict[str, dict[Treatment, Floats]] = {}
    for channel in model.layout.channels:
        if channel.name == own:
            continue
        at: dict[Treatment, Floats] = {"as_is": error(work.forecast[:, None])}
        at["rearranged"] = error(work.replaced(channel.positions, work.rearranged(channel, draws)))
        if _may_be_missing(model, channel):
            missing = x.new_full((len(x), 1, channel.length), torch.nan)
            at["erased"] = error(work.replaced(channel.positions, missing))
        with suppress(ModelError):  # the model needs the channel
            others = model.without(channel.name)
            kept = torch.cat([x[:, : channel.start], x[:, channel.positions.stop :]], dim=1)
            at["withheld"] = error(work.budget.forecasts(others, kept, work.horizon).double()[:, None])
        found[channel.name] = at
    return found


def _may_be_missing(model: Bound, channel: Channel) -> bool:
    """Whether the call takes the channel with every value missing."""
    if channel.role == "target":
        return False
    role = getattr(model.inputs, channel.role)
    return role.missing != "refused" and (channel.role != "future" or role.ahead_missing != "refused")
