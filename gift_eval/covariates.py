"""Series with covariates: channels by role in their own units, windows of them, and blocks to put in their place.

A window has the arrays that one forecast reads, by role: target (n, L, K), past (n, L, P), future (n, L + H, F), which
is known ahead, and static (n, S). A missing value of a covariate is NaN; one of a target repeats the last observed one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from hrx.errors import HrxError, unknown
from hrx.records.quantities import Bools, Floats, Ints

from .series import ROLES, Covariate, Kind, MultivariateSeries, Series, TimedSeries, UnusableSeries
from .windows import region_starts, run_starts, scaling_end

ChannelRole = Literal["target", "past", "future", "static"]
Arrays = Mapping[ChannelRole, Floats]
MOST_BLOCKS = 64


class ChannelWindows(NamedTuple):
    """Windows of one series in its own units."""

    arrays: Arrays
    """By role, those of roles without channels left out."""
    truth: Floats
    """(n, H, K)."""
    starts: Ints
    """(n,): position of the first true value in the series."""


@dataclass(frozen=True, eq=False)
class CovariateSeries:
    """One or several targets that are forecast together, (K, T), and what is known beside them."""

    series: Series | MultivariateSeries
    timed: TimedSeries | None = None
    """Where it has times."""

    @classmethod
    def of(cls, timed: TimedSeries) -> "CovariateSeries":
        """Return a series that was read."""
        return cls(timed.joint or timed.series, timed)

    @property
    def item(self) -> str:
        return self.series.item or ", ".join(self.series.names)

    @property
    def times(self) -> pd.Index | None:
        """(T,)."""
        return self.timed.times if self.timed else None

    @property
    def note(self) -> str:
        """What the reader of a forecast must know of how it was read."""
        return self.timed.note if self.timed else ""

    @property
    def target(self) -> Floats:
        """(K, T)."""
        return np.atleast_2d(self.series.values)

    @property
    def observed(self) -> Bools:
        """(K, T): false where a value of a target repeats the one before it."""
        seen = self.series.observed
        return np.ones_like(self.target, dtype=bool) if seen is None else np.atleast_2d(seen)

    @cached_property
    def names(self) -> dict[ChannelRole, tuple[str, ...]]:
        """Names of the channels of each role that has some."""
        every: dict[ChannelRole, tuple[str, ...]] = {"target": self.series.names}
        every |= {role: tuple(one.name for one in self.series.covariates if one.role == role) for role in ROLES}
        return {role: names for role, names in every.items() if names}

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """What the values of each channel are, over all that is known of them."""
        found: dict[str, Kind] = dict.fromkeys(self.series.names, "number")
        return found | {one.name: one.kind for one in self.series.covariates}

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """Labels of the codes 0, 1, … of each categorical channel."""
        return {one.name: one.labels for one in self.series.covariates if one.labels}

    def window(self, lookback: int, horizon: int) -> Arrays:
        """Return the window before the end, (1, …), whose future must be known for `horizon` steps. A gap before the
        last known step is left to the model.
        """
        length = self.target.shape[1]
        if lookback > length:
            raise UnusableSeries(f"Series {self.item} has {length} values, fewer than lookback={lookback}.")
        self.check_ahead(horizon)
        return self._arrays(np.array([length]), lookback, horizon)

    def windows(self, lookback: int, horizon: int, count: int, seed: int) -> ChannelWindows:
        """Return the windows of a run of the setting (L, H): those that `windows.cut` takes of the targets alone."""
        return self._cut(run_starts(self.series, lookback, horizon, count, seed), lookback, horizon)

    def region(self, lookback: int, horizon: int, count: int) -> ChannelWindows:
        """Return at most `count` windows, evenly spaced over the test region, as `windows.cut_region`."""
        return self._cut(region_starts(self.series, lookback, horizon, count), lookback, horizon)

    def blocks(self, name: str, length: int, end: int, count: int = MOST_BLOCKS) -> Floats:
        """(n, length): at most `count` blocks of a channel before the position `end`, evenly spaced, the first and the
        last included. Of a static covariate, (n, 1): the values that other series have.
        """
        if name in self.series.names:
            values = self.target[self.series.names.index(name)]
        else:
            one = self._covariate(name)
            if one.role == "static":
                return np.array([[value] for value in one.others if value != one.values[0]]).reshape(-1, 1)
            values = one.values
        last = min(end, values.size) - length
        if last < 0:
            return np.empty((0, length))
        starts = np.unique(np.rint(np.linspace(0, last, min(count, last + 1))).astype(np.int64))
        found: Floats = values[starts[:, None] + np.arange(length)]
        return found

    def scales(self, horizon: int) -> dict[str, float]:
        """Standard deviation of each channel before the test region, NaN where nothing was observed."""
        end = scaling_end(self.series, horizon) or self.target.shape[1]
        channels = dict(zip(self.series.names, self.target, strict=True))
        channels |= {one.name: one.values for one in self.series.covariates if one.role != "static"}
        seen = {name: values[:end][~np.isnan(values[:end])] for name, values in channels.items()}
        return {name: float(values.std()) if values.size else float("nan") for name, values in seen.items()}

    def after(self, count: int) -> pd.Index | None:
        """Return the times of the next `count` steps after the end."""
        return self.timed.after(count) if self.timed else None

    def check_ahead(self, horizon: int) -> None:
        """Raise unless every covariate known ahead is known up to the last of the next `horizon` steps."""
        length, times = self.target.shape[1], self.after(horizon)
        for one in (each for each in self.series.covariates if each.role == "future"):
            seen = np.flatnonzero(~np.isnan(one.values[length : length + horizon]))
            known = int(seen[-1]) + 1 if seen.size else 0
            if known < horizon:
                first = f"step {known + 1}" if times is None else str(times[known]).removesuffix(" 00:00:00")
                raise UnusableSeries(
                    f"Series {self.item}: {one.name!r} is known for {known} of {horizon} steps after the last target; "
                    f"the first missing one is {first}. Give it in rows without a target or as future_data=, or name "
                    "it in past=, which reads its past alone."
                )

    def _covariate(self, name: str) -> Covariate:
        found = {one.name: one for one in self.series.covariates}
        if name not in found:
            raise HrxError(unknown("channel", name, [*self.series.names, *found]))
        return found[name]

    def _cut(self, starts: Ints, lookback: int, horizon: int) -> ChannelWindows:
        ahead = starts[:, None] + np.arange(horizon)
        return ChannelWindows(self._arrays(starts, lookback, horizon), self.target.T[ahead], starts)

    def _arrays(self, starts: Ints, lookback: int, horizon: int) -> Arrays:
        """Return the channels of the windows whose forecasts begin at `starts` (n,)."""
        before = starts[:, None] + np.arange(-lookback, 0)
        known = starts[:, None] + np.arange(-lookback, horizon)
        arrays: dict[ChannelRole, Floats] = {"target": self.target.T[before]}
        places: dict[ChannelRole, Ints] = {"past": before, "future": known}
        for role, at in places.items():
            if channels := [one.values[at] for one in self.series.covariates if one.role == role]:
                arrays[role] = np.stack(channels, axis=2)
        if static := [one.values for one in self.series.covariates if one.role == "static"]:
            arrays["static"] = np.repeat(np.concatenate(static)[None], len(starts), axis=0)
        return arrays
