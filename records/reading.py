"""What a run reads and forecasts, compact: enough to name its lags, and to compare it with another run without a model.

The lag of an input is its distance from the forecast step: from the last input to step 1 it is 1, to step 3 it is 3.
"""

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hrx.records.quantities import Floats, Ints

MOST_BYTES = 20_000
"""A reading as text is shorter."""
SINGLE_LAGS = 32
MOST_BINS = 64
MOST_ROWS = 16
_MOST_LAGS, _MOST_STEPS = 1_200, 1_024
"""Lags of the profile and steps of the forecast that are kept, the first ones."""
_ROOM = 14_000
"""Bytes of everything packed: base64 makes 4 of 3, and stays below `MOST_BYTES`."""


def lag_bins(longest: int) -> Ints:
    """First lag of each bin, and the one after the last: single lags up to 32, then bins of nearly equal ratio."""
    if longest <= MOST_BINS:
        return np.arange(1, longest + 2)
    wide = np.geomspace(SINGLE_LAGS + 1, longest + 1, MOST_BINS - SINGLE_LAGS + 1).round().astype(np.int64)
    return np.unique(np.concatenate([np.arange(1, SINGLE_LAGS + 1), wide]))


def row_shares(matrix: Floats) -> Floats:
    """`(…, R, L)`: each row over its sum; NaN where the row is zero."""
    total = np.asarray(matrix, dtype=np.float64).sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(matrix, total, out=np.full(np.shape(matrix), np.nan), where=total > 0))


def by_lag(shares: Floats, steps: Sequence[int]) -> Floats:
    """`(…, R, L) -> (…, R, L)`: the same rows at the lags 1 to L instead of by position; NaN where a row has no input.

    Step h reaches the lags from h on.
    """
    lookback = shares.shape[-1]
    found = np.full(shares.shape, np.nan)
    for row, step in enumerate(steps):
        reached = max(lookback - step + 1, 0)
        found[..., row, lookback - reached :] = shares[..., row, ::-1][..., :reached]
    return found


def lag_profile(matrix: Floats, steps: Sequence[int]) -> Floats:
    """`(…, R, L) -> (L,)`: mean share of a row at the lags 1 to L, over the rows that reach that lag.

    NaN where no row does, or each that does is zero.
    """
    return _mean(by_lag(row_shares(matrix), steps))


def _mean(rows: Floats) -> Floats:
    """`(…, L) -> (L,)` over all known values."""
    known = np.isfinite(rows).reshape(-1, rows.shape[-1])
    sums = np.where(known, rows.reshape(known.shape), 0.0).sum(axis=0)
    return np.asarray(np.divide(sums, known.sum(axis=0), out=np.full(len(sums), np.nan), where=known.any(axis=0)))


@dataclass(frozen=True, eq=False)
class Reading:
    """Column `reading` of a record."""

    lookback: int
    horizon: int
    steps: tuple[int, ...]
    """Forecast steps of the rows, from 1: scored ones, at most 16."""
    windows: tuple[int, ...]
    """Windows of the run that are kept, from 0: all, or evenly spaced ones."""
    rows: Floats
    """`(W, R, B)`: share of each lag bin in the row of a step; `lag_bins(lookback + horizon - 1)` are the bins."""
    forecast: Floats
    """`(W, H)`, on the standardised scale; at most the first 1,024 steps."""
    profile: Floats
    """`(L,)`: `lag_profile` over all rows and windows of the run; at most the first 1,200 lags."""
    moving: Floats
    """`(L,)`: the same of what moves with the step: of each share less the median of its position over the rows."""
    readers: Floats
    """`(L,)`: share of the rows that give a lag twice an even share and twice the median of its position."""

    @property
    def bins(self) -> Ints:
        return lag_bins(self.lookback + self.horizon - 1)

    @classmethod
    def of(cls, matrix: Floats, steps: Sequence[int], scored: Sequence[int], forecast: Floats) -> "Reading":
        """Reading of a run: matrices `(W, R, L)` of the `steps`, from 1, which are scored, and forecasts `(W, H)`."""
        lookback, horizon = matrix.shape[-1], forecast.shape[-1]
        shares = row_shares(matrix)
        lagged = by_lag(shares, steps)
        # A model that reads the same positions for every step has a profile that falls like 1/lag, and reads no lag.
        middle = np.sort(shares, axis=1)[:, [(len(steps) - 1) // 2]] if len(steps) > 1 else np.zeros_like(shares)
        moving = by_lag(shares - middle, steps)
        readers = np.where(np.isfinite(lagged), (lagged >= 2 / lookback) & (2 * moving >= lagged), np.nan)
        chosen = sorted(set(scored) & set(steps)) or list(steps)
        chosen = [chosen[at] for at in _evenly(len(chosen), MOST_ROWS)]
        bins, lags = lag_bins(lookback + horizon - 1), np.arange(lookback, 0, -1)
        binned = np.stack(
            [_binned(shares[:, list(steps).index(step)], lags + step - 1, bins) for step in chosen], axis=1
        )
        kept = forecast[:, :_MOST_STEPS]
        each = 2 * binned[0].size + 4 * kept.shape[1]
        windows = _evenly(len(matrix), max(1, _ROOM // each))
        by_lags = [_mean(values)[:_MOST_LAGS] for values in (lagged, moving, readers)]
        return cls(lookback, horizon, tuple(chosen), tuple(windows), binned[windows], kept[windows], *by_lags)

    def to_text(self) -> str:
        """JSON with base64 of compressed half-precision numbers, the forecasts in single precision."""
        about = {name: getattr(self, name) for name in ("lookback", "horizon", "steps", "windows")}
        halves = {name: _pack(getattr(self, name), "<f2") for name in ("rows", "profile", "moving", "readers")}
        return json.dumps(about | halves | {"forecast": _pack(self.forecast, "<f4")}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, *, lags: bool = True) -> "Reading":
        """Reading of a record; raises a ValueError where it is none. Without `lags`, profile and readers stay empty."""
        try:
            stored = json.loads(text)
            shape = (len(stored["windows"]), len(stored["steps"]), -1)
            sizes = {name: int(stored[name]) for name in ("lookback", "horizon")}
            places = {name: tuple(map(int, stored[name])) for name in ("steps", "windows")}
            of_lags = ("profile", "moving", "readers")
            halves = {name: _unpack(stored[name], "<f2") if lags else np.empty(0) for name in of_lags}
            rows = _unpack(stored["rows"], "<f2").reshape(shape)
            forecast = _unpack(stored["forecast"], "<f4").reshape(shape[0], -1)
        except (KeyError, TypeError, zlib.error) as error:
            raise ValueError(f"not a stored reading: {error}") from error
        return cls(**sizes, **places, **halves, rows=rows, forecast=forecast)  # type: ignore[arg-type]


def _evenly(count: int, most: int) -> list[int]:
    """At most `most` of the places 0 to `count - 1`, evenly spaced."""
    return [int(at) for at in np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))]


def _binned(rows: Floats, lags: Ints, bins: Ints) -> Floats:
    """`(W, L) -> (W, B)`: sums of the positions with these lags, by bin."""
    of = np.searchsorted(bins, lags, side="right") - 1
    found = np.zeros((len(rows), len(bins) - 1))
    np.add.at(found.T, of, rows.T)
    found[np.isnan(rows).any(axis=1)] = np.nan  # a row of zeros has no shares
    return found


def _pack(values: Floats, kind: str) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values, dtype=kind).tobytes(), 6)).decode()


def _unpack(text: Any, kind: str) -> Floats:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=kind).astype(np.float64)
