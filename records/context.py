"""Needed context of a series: the shortest lookback from which a model gives the same forecasts.

Plain data and its columns in a record; `hrx.audit.scoring.needed_context` measures it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from hrx.records.quantities import Floats, Ints

Outcome = Literal["whole", "holds", "fails", "impossible"]
"""What cutting the lookback to the needed context does: nothing can be left out; the forecasts stay within the bound;
they do not, although the older values are hardly read; the model does not take the shorter lookback."""
_CURVES = ("kept", "change", "lookbacks", "cut_change", "mse", "mase")
_SECONDS = ("cut_seconds", "full_seconds")
_WHOLE = ("kept", "lookbacks")
_CHECKED = tuple(f"context_{name}" for name in ("lookback", "cut_change", "cut_mse", "cut_mase", "time_ratio"))


def kept_contexts(lookback: int) -> Ints:
    """Contexts of the sweep, longest first: `L`, 3/4, 1/2, 3/8, 1/4, … of it down to 1, halves rounded up.

    Halves and three quarters stay multiples of a model's patch for longer than a finer grid would.
    """
    halvings = 2.0 ** -np.arange(math.ceil(math.log2(lookback)) + 1)
    sizes = np.floor(lookback * np.concatenate([halvings, 0.75 * halvings]) + 0.5).astype(np.int64)
    return np.unique(np.maximum(sizes, 1))[::-1]


def shortest_within(contexts: Ints, change: Floats, bound: float) -> int:
    """Index of the shortest context whose change, and that of every longer one, is at most `bound`; 0: the longest.

    A context is not enough where a longer one is not: its small change is chance. Unknown (NaN) is not within.
    """
    within = np.concatenate([[True], change[1:] <= bound])
    return int(np.argmin(within)) - 1 if not within.all() else len(contexts) - 1


class CutForecasts(NamedTuple):
    """Forecasts from one cut lookback, against those from the whole one."""

    lookback: int
    change: float
    """Mean squared difference, as a share of the variance."""
    mse: float
    mase: float
    time_ratio: float
    """Wall time over that of the whole lookback, measured side by side; NaN for the whole lookback itself."""


@dataclass(frozen=True, eq=False)
class NeededContext:
    """How the forecasts of some windows depend on the context: curves over `K` contexts, longest first.

    Changes are mean squared differences from the forecast with the whole lookback, divided by the variance of the
    forecasts. Index 0 of each curve is the whole lookback.
    """

    bound: float
    """Largest change that counts as none."""
    windows: int
    kept: Ints
    """`(K,)`: values that stay as they are."""
    change: Floats
    """`(K,)`: all older values replaced, mean over windows, draws and steps."""
    lookbacks: Ints
    """`(K,)`: the lookback really cut, the shortest from `kept` on that the model takes."""
    cut_change: Floats
    """`(K,)`: the change by that cut; NaN where the model raised."""
    mse: Floats
    """`(K,)`: squared error of the forecasts from each lookback; NaN where it or the truth is unknown."""
    mase: Floats
    cut_seconds: Floats
    """`(K,)`: wall time of one pass over the windows at each lookback."""
    full_seconds: Floats
    """`(K,)`: that of the whole lookback, measured directly before it."""
    padded_to: int | None = None
    """Length to which the library fills a shorter window with zeros that the model reads."""
    refusal: str = ""
    """Why the model did not forecast from a shorter lookback."""

    @property
    def lookback(self) -> int:
        return int(self.kept[0])

    @property
    def at(self) -> int:
        """Index of the needed context."""
        return shortest_within(self.kept, self.change, self.bound)

    @property
    def needed(self) -> int:
        """Shortest context of the grid that keeps the forecasts within the bound when older values are replaced."""
        return int(self.kept[self.at])

    @property
    def next_shorter(self) -> int | None:
        """Next context of the grid, which is not enough; None where the needed one is the shortest of the grid."""
        return int(self.kept[self.at + 1]) if self.at + 1 < len(self.kept) else None

    @property
    def check(self) -> CutForecasts | None:
        """What really cutting to the needed context gives; None where it is the whole lookback, or cannot be done."""
        return self._cut(self.at) if self.outcome in ("holds", "fails") else None

    @property
    def shortest_cut(self) -> CutForecasts | None:
        """Shortest lookback that can really be cut to within the bound; None where no cut is possible."""
        if not np.isfinite(self.cut_change[self.lookbacks < self.lookback]).any():
            return None
        return self._cut(shortest_within(self.lookbacks, self.cut_change, self.bound))

    @property
    def outcome(self) -> Outcome:
        """What really cutting to the needed context does."""
        if self.needed == self.lookback:
            return "whole"
        if self.lookbacks[self.at] == self.lookback or math.isnan(self.cut_change[self.at]):
            return "impossible"
        return "holds" if self.cut_change[self.at] <= self.bound else "fails"

    def _cut(self, at: int) -> CutForecasts:
        change, mse, mase = (float(curve[at]) for curve in (self.cut_change, self.mse, self.mase))
        time_ratio = float(self.cut_seconds[at] / self.full_seconds[at])
        return CutForecasts(int(self.lookbacks[at]), change, mse, mase, time_ratio)

    def columns(self) -> dict[str, str | int | float | None]:
        """Columns of a record."""
        check, shortest = self.check, self.shortest_cut
        cut = (None,) * len(CutForecasts._fields) if check is None else (check[0], *map(_number, check[1:]))
        return dict(zip(_CHECKED, cut, strict=True)) | {
            "context_needed": self.needed,
            "context_change": _number(self.change[self.at]),
            "context_shortest_cut": None if shortest is None else shortest.lookback,
            "context_mse": _number(self.mse[0]),
            "context_mase": _number(self.mase[0]),
            "context_windows_used": self.windows,
            "context_padded_to": self.padded_to,
            "context_refusal": self.refusal or None,
            "context_curves": _json(self, _CURVES),
            "context_seconds": _json(self, _SECONDS),
        }


def context_from_columns(row: Mapping[str, Any]) -> NeededContext:
    """Result whose `columns` a record holds."""
    stored = json.loads(row["context_curves"]) | json.loads(row["context_seconds"])
    curves: dict[str, Any] = {
        name: np.array(stored[name], dtype=np.int64 if name in _WHOLE else np.float64) for name in (*_CURVES, *_SECONDS)
    }
    padded, refusal = row["context_padded_to"], row["context_refusal"]
    return NeededContext(
        bound=float(row["context_bound"]),
        windows=int(row["context_windows_used"]),
        padded_to=padded if isinstance(padded, int) else None,
        refusal=refusal if isinstance(refusal, str) else "",
        **curves,
    )


def mean_context(found: Sequence[NeededContext]) -> NeededContext:
    """Mean curves of several series, which have the same contexts; times are summed."""
    first = found[0]
    means = {
        name: np.mean([getattr(one, name) for one in found], axis=0) for name in ("change", "cut_change", "mse", "mase")
    }
    times = {name: np.sum([getattr(one, name) for one in found], axis=0) for name in _SECONDS}
    refusal = next((one.refusal for one in found if one.refusal), "")
    return replace(first, windows=sum(one.windows for one in found), refusal=refusal, **means, **times)


def _json(found: NeededContext, names: Sequence[str]) -> str:
    return json.dumps({name: [_number(value) for value in getattr(found, name).tolist()] for name in names})


def _number(value: float) -> float | None:
    """A number that is not finite is stored as null."""
    return value if math.isfinite(value) else None
