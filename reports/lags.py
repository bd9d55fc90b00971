"""Which lags a dataset's forecasts read, in words: the peaks of the lag profile, set against the season.

The profile of a dataset is the mean of those of its runs with the longest lookback. A main lag is a peak that stands
out of the lags around it, that holds twice an even share, and that the rows read alike: a model that reads the same
positions for every step has none.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from hrx.records.quantities import Floats, Ints
from hrx.records.reading import Reading
from hrx.records.record import DONE
from hrx.reports.statistics import median
from hrx.reports.text import listed, percent

MOST_LAGS = 4
_MOST_SHOWN = 3
_OUTSTANDING = 6.0
"""Standard deviations of the profile that a peak stands out by."""
_EVEN = 5.0
"""Even shares that a main lag holds at least."""
_LARGEST = 0.25
"""Part of the highest peak that a further one has at least."""
_READERS = 0.25
_FEWEST_READERS = 4
"""Rows that read a main lag: a quarter of those that reach it, and four where so many do."""
_RECENT = 8
"""Parts of the lookback of which the last holds half of a row, where a model reads mostly the last values."""
_TOLERANCE = 16
"""Parts of a season by which a lag may miss its multiple."""

Rhythm = Literal["season", "other", "recent", "spread", "unknown"]


class MainLag(NamedTuple):
    """A peak of the lag profile."""

    lag: int
    share: float
    """Mean share of a row at this lag, over the rows that reach it."""


@dataclass(frozen=True)
class LagReading:
    """What the forecasts of a dataset read."""

    lags: tuple[MainLag, ...]
    """Largest share first."""
    season: int
    """1 where it has none, or none is known."""
    lookback: int
    half: int
    """Positions from the end that hold half of a row's mass, median over rows; 0 where unknown."""

    @property
    def rhythm(self) -> Rhythm:
        """The season where most of the main lags' mass lies at its multiples; without main lags, recent or spread."""
        if self.lags:
            total = sum(lag.share for lag in self.lags)
            seasonal = sum(lag.share for lag in self.lags if self._is_multiple(lag.lag))
            return "season" if 2 * seasonal > total else "other"
        if not self.half:
            return "unknown"
        return "recent" if _RECENT * self.half <= self.lookback else "spread"

    def _is_multiple(self, lag: int) -> bool:
        away = min(lag % self.season, -lag % self.season)
        return self.season > 1 and lag > self.season / 2 and away <= self.season // _TOLERANCE

    @property
    def shown(self) -> str:
        """The three main lags of the largest share, in ascending order; a dash where there is none."""
        return ", ".join(str(lag.lag) for lag in sorted(self.lags[:_MOST_SHOWN])) or "-"

    @property
    def note(self) -> str:
        """What they are, in a few words."""
        return {
            "season": f"reads season {self.season}",
            "other": f"season {self.season} is not among them" if self.season > 1 else "no season is known",
            "recent": f"mostly the last {self._values}",
            "spread": "spread over lookback",
            "unknown": "lags unknown",
        }[self.rhythm]

    @property
    def sentence(self) -> str:
        """The same with the share of each lag."""
        named = listed(f"{lag.lag} ({percent(lag.share)})" for lag in sorted(self.lags))
        lags = f"lag {named}" if len(self.lags) == 1 else f"lags {named}"
        rhythm = f"another rhythm than the season of {self.season} steps" if self.season > 1 else "no known season"
        return {
            "season": f"Reads the season of {self.season} steps: {lags}.",
            "other": f"Reads {lags}: {rhythm}.",
            "recent": f"Half of what it reads lies in the last {self._values} of {self.lookback}; no lag stands out.",
            "spread": f"Spread over the whole lookback of {self.lookback} values: no lag stands out.",
            "unknown": "What it reads by lag is not stored.",
        }[self.rhythm]

    @property
    def _values(self) -> str:
        return "value" if self.half == 1 else f"{self.half} values"


def main_lags(profile: Floats, moving: Floats, readers: Floats, rows: Ints) -> tuple[MainLag, ...]:
    """Peaks of what moves with the step, the largest first; `profile`, `moving` and `readers` are those of a `Reading`.

    `rows (L,)`: how many rows reach a lag.
    """
    from scipy.ndimage import median_filter
    from scipy.signal import find_peaks

    known = np.isfinite(moving)
    shown = np.where(known, moving, 0.0)
    around = median_filter(shown, size=2 * max(4, len(shown) // 32) + 1, mode="nearest")
    # A lag that few rows reach is a mean of few: it varies more.
    above = (shown - around) * np.sqrt(np.maximum(rows, 1))
    spread = 1.4826 * float(np.median(np.abs(above[known] - np.median(above[known])))) if known.any() else 0.0
    stands_out = (above > _OUTSTANDING * spread) & (shown - around >= _EVEN / len(shown))
    alike = np.nan_to_num(readers) * rows >= np.maximum(_READERS * rows, np.minimum(rows, _FEWEST_READERS)) - 0.5
    at, found = find_peaks(np.concatenate([shown, [0.0]]), prominence=0)
    tall = at[found["prominences"] >= (shown - around)[at] / 2]
    chosen = [int(place) for place in tall if stands_out[place] and alike[place]]
    largest = max((shown[place] for place in chosen), default=0.0)
    lags = [MainLag(place + 1, float(profile[place])) for place in chosen if shown[place] >= _LARGEST * largest]
    return tuple(sorted(lags, key=lambda lag: -lag.share)[:MOST_LAGS])


def read_lags(runs: pd.DataFrame) -> LagReading:
    """What the scored runs of one dataset read."""
    done = runs[runs["status"] == DONE]
    longest = done[done["lookback"] == done["lookback"].max()]
    readings = []
    for text in longest["reading"].dropna() if "reading" in longest else ():
        with suppress(ValueError):  # not written by hrx
            readings.append(Reading.from_text(str(text)))
    readings = [one for one in readings if one.horizon == max(one.horizon for one in readings)]
    season = 1 if longest.empty or pd.isna(longest["season"].iloc[0]) else int(longest["season"].iloc[0])
    lookback = 0 if longest.empty else int(longest["lookback"].iloc[0])
    return (
        LagReading(_mean_lags(readings), season, lookback, _half(readings))
        if readings
        else LagReading((), season, lookback, 0)
    )


def _half(readings: Sequence[Reading]) -> int:
    """Positions from the end that hold half of a row's mass, to the resolution of the lag bins; median over rows."""
    found = [
        np.where(
            known, one.bins[1:][np.argmax(np.cumsum(one.rows, axis=-1) >= 0.499, axis=-1)] - np.array(one.steps), np.nan
        )
        for one in readings
        for known in [np.isfinite(one.rows).all(axis=-1)]
    ]
    middle = median(np.concatenate([places.ravel() for places in found]))
    return 0 if math.isnan(middle) else max(1, round(middle))


def _mean_lags(readings: Sequence[Reading]) -> tuple[MainLag, ...]:
    with np.errstate(invalid="ignore"):
        profile, moving, readers = (
            np.nanmean([getattr(one, name) for one in readings], axis=0) for name in ("profile", "moving", "readers")
        )
    steps = np.arange(1, readings[0].horizon + 1)
    rows = np.minimum(np.arange(1, len(profile) + 1), len(steps))
    return main_lags(profile, moving, readers, rows)
