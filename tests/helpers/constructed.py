"""Runs made to measure: frames of records whose medians, shares, counts and intervals are known beforehand."""

import sqlite3
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd

from hrx.audit.ledger.record import COLUMNS, NAMES
from hrx.audit.ledger.store import Ledger

_DTYPES = {"TEXT": "object", "INTEGER": "Int64", "REAL": "float64"}
_DEFAULTS = {
    "status": "done",
    "model": "made-up",
    "family": "chronos-bolt",
    "checkpoint": "nobody/made-up",
    "fingerprint": "f" * 64,
    "library": "chronos-forecasting 2.3.2",
    "adapter_version": "1",
    "torch_version": "2.10.0",
    "dataset": "nowhere/H",
    "domain": "",
    "frequency": "H",
    "season": 24,
    "series": "T1",
    "lookback": 512,
    "horizon": 96,
    "seed": 0,
    "windows": 4,
    "leakage": "none declared",
    "starts": "[600, 620, 640, 660]",
    "protocol_version": "1",
    "estimator": "input_gradient",
    "estimator_settings": "{}",
    "axis": "step",
    "truncation": 0,
    "distance": 0,
    "draws": 4,
    "draws_kind": "antithetic",
    "max_draws": 64,
    "scored": 8,
    "fractions": 9,
    "area": "gap",
    "permutations": 3,
    "protocol_seed": 0,
    "beats_naive": 1,
    "parity": 1e-7,
}
_number = count()


def runs(n: int, **columns: object) -> pd.DataFrame:
    """`n` scored runs as `read` returns them, each of a series of its own unless a column says otherwise."""
    marks = [f"s{next(_number)}" for _ in range(n)]
    given = _DEFAULTS | {"key": marks, "series_fingerprint": marks} | columns
    frame = pd.DataFrame({name: given.get(name) for name in NAMES}, index=range(n))
    return frame.astype({column.name: _DTYPES[column.kind] for column in COLUMNS})


def store(frame: pd.DataFrame, path: Path) -> Path:
    """The runs in a real ledger."""
    with Ledger.open(path):
        pass
    filled = [name for name in NAMES if frame[name].notna().any()]
    rows = zip(*(frame[name].astype(object).where(frame[name].notna(), None) for name in filled), strict=True)
    with sqlite3.connect(path) as connection:
        names = ", ".join(f'"{name}"' for name in filled)
        places = ", ".join("?" * len(filled))
        connection.executemany(f"INSERT INTO runs ({names}) VALUES ({places})", rows)
    connection.close()
    return path


def positives(n: int, percent: float, median: float) -> int:
    """How many of n values are positive, so that the share prints as `percent` and the median can have its sign."""
    least, most = ((n + 1) // 2, n) if median > 0 else (0, n // 2)
    wanted = round(percent * n / 100)
    fitting = [k for k in range(least, most + 1) if f"{100 * k / n:.0f}" == f"{percent:.0f}"]
    return min(fitting, key=lambda k: abs(k - wanted))


def values(
    n: int, median: float, positive: int, *, under: float | None = None, over: float | None = None
) -> np.ndarray:
    """`n` values with this median, of which so many are positive.

    `under` is what positive values below the median are, `over` what values above it are that have its sign.
    """
    ordered = np.empty(n)
    negative = n - positive
    low, high = (n - 1) // 2, n // 2
    if median > 0:
        ordered[:negative] = -1.0
        ordered[negative:low] = median / 2 if under is None else under
        ordered[low : high + 1] = median
        ordered[high + 1 :] = median + 1 if over is None else over
        if negative > low:  # an even count whose two middle values have different signs
            ordered[low], ordered[high] = -0.001, 2 * median + 0.001
    else:
        ordered[:low] = median - 1
        ordered[low : high + 1] = median
        ordered[high + 1 : negative] = median / 2
        ordered[max(negative, high + 1) :] = 1.0 if over is None else over
        if negative == high:
            ordered[low], ordered[high] = 2 * median - 0.001, 0.001
    np.random.default_rng(n).shuffle(ordered)
    return ordered


def spread(n: int, median: float, low: float, high: float, positive: int | None = None) -> np.ndarray:
    """`n` values whose median has this bootstrap interval.

    The rank of a resampled median has a standard deviation of √n/2. Half of one from the middle the values jump to the
    ends of the interval, so that each end holds far more than 2.5 % of the resampled medians.
    """
    middle = max(1, round(np.sqrt(n) / 4))
    ordered = np.full(n, median)
    ordered[: n // 2 - middle] = low
    ordered[(n + 1) // 2 + middle :] = high
    if positive is not None:
        ordered[: n - positive] = -1.0
    np.random.default_rng(n).shuffle(ordered)
    return ordered
