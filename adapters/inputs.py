"""What a forecaster reads and gives beyond one series and its point forecast: channels with roles, and outputs.

A `Window` holds everything that one official call reads. A `Layout` puts the channels of a window one after another,
`(B, P)`, in which form `wrapped.Bound` takes them. `Inputs` and `Outputs` say what a model accepts and gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from hrx.errors import HrxError

if TYPE_CHECKING:  # families are listed without torch
    from torch import Tensor

RoleName = Literal["target", "past", "future", "static"]
"""Role of a channel: a series that is forecast, a covariate known up to now, one known ahead too, or a static one."""
ROLES: tuple[RoleName, ...] = ("target", "past", "future", "static")
Kind = Literal["number", "two-valued", "categorical"]
"""What the values of a channel are. Only numbers have a slope: the others are judged by what changing them does."""


@dataclass(frozen=True)
class Role:
    """What a model takes of covariates of one role."""

    accepts: Literal["no", "optional", "required"] = "no"
    names: tuple[str, ...] = ()
    """Names that it was trained with, in their order; empty for a model that takes any."""
    categorical: Literal["no", "encoded", "native"] = "no"
    """Whether it takes codes: encoded with the target's past, or by layers of its own."""
    missing: Literal["masked", "zero", "refused"] = "refused"
    """What it makes of NaN: known to it as missing, read as the number 0, or nothing: `Bound` refuses the window."""
    ahead_missing: Literal["masked", "zero", "refused"] = "refused"
    """The same for a missing value of the steps ahead."""

    def __str__(self) -> str:
        if self.accepts == "no":
            return "no"
        named = f"{', '.join(self.names)} ({self.accepts})" if self.names else self.accepts
        return named if self.categorical == "no" else f"{named}, categorical"


@dataclass(frozen=True)
class Inputs:
    """What a model reads besides one series."""

    targets: tuple[int, int | None] = (1, 1)
    """Least and most series that it forecasts together; None: any number."""
    past: Role = Role()
    future: Role = Role()
    static: Role = Role()

    def refusal(self, names: Mapping[RoleName, Sequence[str]], categorical: Collection[str] = ()) -> str | None:
        """Why channels of these names, by role, cannot be given, as a clause, or None if they can."""
        (least, most), count = self.targets, len(names.get("target", ()))
        if not least <= count <= (count if most is None else most):
            takes = "one target" if most == 1 else f"at least {least} targets" if most is None else f"{least} to {most}"
            return f"forecasts {takes}, not {count}: give one of them, or target='each' for separate forecasts"
        for role in ROLES[1:]:
            given, taken = tuple(names.get(role, ())), getattr(self, role)
            if given and taken.accepts == "no":
                return f"takes no {role} covariates: drop {', '.join(given)}"
            if not given and taken.accepts == "required":
                return f"needs its {role} covariates" + (f": {', '.join(taken.names)}" if taken.names else "")
            if given and taken.names and set(given) != set(taken.names):
                return f"was trained with the {role} covariates {', '.join(taken.names)}, not {', '.join(given)}"
            if taken.categorical == "no" and (codes := [name for name in given if name in categorical]):
                return f"takes numbers only as {role} covariates: encode {', '.join(codes)}, or drop it"
        return None

    def __str__(self) -> str:
        least, most = self.targets
        several = (
            "one target"
            if most == 1
            else f"{least} targets"
            if least == most
            else f"{least} to {most or 'any'} targets"
        )
        roles = {role: getattr(self, role) for role in ("past", "future", "static")}
        return "; ".join([several, *(f"{name}: {role}" for name, role in roles.items() if role.accepts != "no")])


Column = float | Literal["point", "mean"]
"""A number of the forecast at one step: a quantile level, the official point forecast, or the mean."""


class Output(NamedTuple):
    """Which number of each step is explained: one column, or the last less the first (a spread)."""

    columns: tuple[Column, ...]

    @classmethod
    def parse(cls, given: object) -> Output:
        """Return the output of `point`, `median`, `mean`, a level such as `0.9`, or two, as `(0.1, 0.9)`, `0.1:0.9`."""
        if isinstance(given, Output):
            return given
        if given in ("point", "mean"):
            return cls((cast("Column", given),))
        if given == "median":
            return cls((0.5,))
        parts = given.split(":") if isinstance(given, str) else given if isinstance(given, tuple | list) else (given,)
        with suppress(TypeError, ValueError):
            levels = tuple(float(part) for part in parts)
            if all(0 < level < 1 for level in levels) and (
                len(levels) == 1 or (len(levels) == 2 and levels[0] < levels[1])
            ):
                return cls(levels)
        raise HrxError(
            f"output={given!r} is not an output. Give point, median, mean, a level between 0 and 1 such as 0.9, or two "
            "levels such as 0.1:0.9 for the spread between them."
        )

    @property
    def is_spread(self) -> bool:
        """Whether it is the difference of two levels."""
        return len(self.columns) == 2

    def __str__(self) -> str:
        return ":".join(map(str, self.columns))


POINT = Output(("point",))


@dataclass(frozen=True)
class Outputs:
    """What the official call of a model gives besides its point forecast."""

    levels: tuple[float, ...] = ()
    """Quantile levels."""
    interpolates: bool = False
    """Whether the call gives levels between these too."""
    mean: bool = False
    point: Literal["median", "mean", ""] = ""
    """What the point forecast is, where the library says so."""

    def refusal(self, output: Output) -> str | None:
        """Why an output cannot be given, as a clause, or None if it can."""
        for column in output.columns:
            if column == "point" or (column == "mean" and (self.mean or self.point == "mean")):
                continue
            if column == "mean":
                return "gives no mean"
            if column in self.levels or (column == 0.5 and self.point == "median"):
                continue
            if not self.levels:
                return f"gives no quantiles, so not {column}: its output is the point forecast"
            if not self.interpolates:
                return f"gives the quantiles {', '.join(map(str, self.levels))}, not {column}"
            if not self.levels[0] <= float(column) <= self.levels[-1]:
                return f"gives quantiles between {self.levels[0]} and {self.levels[-1]}, not {column}"
        return None

    def __str__(self) -> str:
        known = [f"point ({self.point})" if self.point else "point", *(["mean"] if self.mean else [])]
        if self.levels:
            known.append(
                f"quantiles {self.levels[0]} to {self.levels[-1]}" + (" and between" if self.interpolates else "")
            )
        return ", ".join(known)


@dataclass(frozen=True)
class Window:
    """Channels of `B` windows in their own units; NaN is a missing value, in every role.

    Windows of one batch have the same channels. The codes of a categorical channel are whole numbers.
    """

    target: Tensor
    """`(B, L, K)`: the series that are forecast together."""
    past: Tensor | None = None
    """`(B, L, P)`: covariates known up to now."""
    future: Tensor | None = None
    """`(B, L + H, F)`: covariates known also for the steps ahead."""
    static: Tensor | None = None
    """`(B, S)`: one value per window."""
    names: Mapping[RoleName, tuple[str, ...]] = field(default_factory=dict)
    """Names of the channels of each role, in their order."""
    categorical: frozenset[str] = frozenset()
    """Names of the channels that hold codes."""

    def __len__(self) -> int:
        return len(self.target)

    def each(self) -> list[Window]:
        """Return the windows one by one."""
        return [self.map(partial(_row, index)) for index in range(len(self))]

    def roles(self) -> Iterator[tuple[RoleName, Tensor]]:
        """Return the roles that have channels, with their values."""
        for role in ROLES:
            values = getattr(self, role)
            if values is not None and values.shape[-1]:
                yield role, values

    def map(self, change: Callable[[Tensor], Tensor]) -> Window:
        """Return the window with every tensor changed, for another device, type or choice of rows."""
        changed: dict[str, Any] = {role: change(values) for role, values in self.roles()}
        return Window(**changed, names=self.names, categorical=self.categorical)

    def named(self, role: RoleName) -> tuple[str, ...]:
        """Return the names of a role's channels: those given, or `role 1`, `role 2`, …"""
        values = getattr(self, role)
        count = 0 if values is None else values.shape[-1]
        return self.names.get(role) or tuple(f"{role} {number + 1}" for number in range(count))


def _row(index: int, values: Tensor) -> Tensor:
    return values[index : index + 1]


class Channel(NamedTuple):
    """One channel of a layout: positions `start … start + length − 1`."""

    name: str
    role: RoleName
    kind: Kind
    start: int
    length: int
    """`L`; `L + H` for a covariate that is known ahead, 1 for a static one."""

    @property
    def has_slope(self) -> bool:
        """Whether it has a derivative that means something; the others are judged by what replacing values does."""
        return self.kind == "number" and self.role != "static"

    @property
    def positions(self) -> slice:
        return slice(self.start, self.start + self.length)


@dataclass(frozen=True)
class Layout:
    """The channels of a window one after another: targets, past, future and static covariates."""

    lookback: int
    horizon: int
    channels: tuple[Channel, ...]

    @classmethod
    def of(cls, window: Window, horizon: int, kinds: Mapping[str, Kind] | None = None) -> Layout:
        """Return the layout of a window; `kinds` names the channels that are two-valued over their history."""
        channels: list[Channel] = []
        start = 0
        for role, values in window.roles():
            length = 1 if role == "static" else values.shape[1]
            for name in window.named(role):
                kind: Kind = "categorical" if name in window.categorical else (kinds or {}).get(name, "number")
                channels.append(Channel(name, role, kind, start, length))
                start += length
        return cls(window.target.shape[1], horizon, tuple(channels))

    @property
    def size(self) -> int:
        """`P`: positions of all channels."""
        return self.channels[-1].start + self.channels[-1].length

    @property
    def sections(self) -> tuple[int, ...]:
        """Lengths of the channels; values are rearranged and averaged within a channel only."""
        return tuple(channel.length for channel in self.channels)

    def without(self, name: str) -> Layout:
        """Return the layout of the other channels."""
        channels: list[Channel] = []
        for channel in self.channels:
            if channel.name != name:
                channels.append(channel._replace(start=sum(one.length for one in channels)))
        return Layout(self.lookback, self.horizon, tuple(channels))

    @cached_property
    def by_name(self) -> dict[str, Channel]:
        """Channels by name."""
        return {channel.name: channel for channel in self.channels}

    @property
    def names(self) -> dict[RoleName, tuple[str, ...]]:
        """Names of the channels of each role that has any."""
        return {role: tuple(channel.name for channel in own) for role in ROLES if (own := self.of_role(role))}

    def of_role(self, role: RoleName) -> tuple[Channel, ...]:
        """Return the channels of a role, in their order."""
        return tuple(channel for channel in self.channels if channel.role == role)

    def pack(self, window: Window) -> Tensor:
        """Return the channels of a window one after another, `(B, P)`."""
        import torch

        parts = [values[:, None] if role == "static" else values for role, values in window.roles()]
        return torch.cat([part.mT.flatten(1) for part in parts], dim=1)

    def unpack(self, x: Tensor) -> Window:
        """Return the window that was packed as `x` `(B, P)`."""
        import torch

        values: dict[str, Any] = {}
        for role in ROLES:
            if own := self.of_role(role):
                together = torch.stack([x[:, channel.positions] for channel in own], dim=-1)
                values[role] = together[:, 0] if role == "static" else together
        codes = frozenset(channel.name for channel in self.channels if channel.kind == "categorical")
        return Window(**values, names=self.names, categorical=codes)
