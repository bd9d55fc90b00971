"""Records, frames and ledgers built by hand, with medians, shares, counts and intervals that are known beforehand."""

import hashlib
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hrx.records.ledger import Ledger, StoredCheck, StoredExample
from hrx.records.record import COLUMNS, Record

_DTYPES = {"TEXT": "object", "INTEGER": "Int64", "REAL": "float64"}
NAMES = [column.name for column in COLUMNS]
DEFAULTS: dict[str, Any] = {
    "status": "done", "model": "made-up", "family": "chronos-bolt", "checkpoint": "nobody/made-up",
    "fingerprint": "f" * 64, "library": "chronos-forecasting 2.3.2", "adapter_version": "1", "torch_version": "2.10.0",
    "dataset": "nowhere/H", "domain": "", "frequency": "H", "season": 24, "series": "T1", "series_fingerprint": "s1",
    "missing": 0, "channels": None, "leakage": "none declared", "lookback": 96, "horizon": 24, "seed": 0, "windows": 4,
    "starts": "[100, 120, 140, 160]", "protocol_version": "1", "estimator": "input_gradient",
    "estimator_settings": "{}", "axis": "step", "truncation": 0, "distance": 0, "draws": 4, "draws_kind": "antithetic",
    "precision": None, "max_draws": 64, "scored": 8, "fractions": 9, "area": "gap", "permutations": 3,
    "variance_windows": "64", "output": "point", "protocol_seed": 0, "beats_naive": 1, "parity": 2e-7,
    "scored_steps": "[0, 3, 7, 10, 13, 16, 20, 23]",
}  # fmt: skip
MEASURED: dict[str, Any] = {
    "g_own": 0.12, "g_shuffled": -0.08, "g_margin": 0.2, "rank": 3.0, "mse": 0.5, "mse_zero": 1.0, "mse_last": 0.9,
}  # fmt: skip
_number = count()


def record(**changes: object) -> Record:
    """A scored run that beats naive, with these changes; an excluded or failed one has no numbers."""
    values = DEFAULTS | MEASURED | changes
    if values["status"] != "done":
        for name in ("g_own", "g_shuffled", "g_margin", "rank", "mse", "beats_naive", "parity"):
            values[name] = changes.get(name)
    text = repr(sorted((name, str(value)) for name, value in values.items()))
    return Record(key=hashlib.sha256(text.encode()).hexdigest(), **values)


def runs(n: int, **columns: object) -> pd.DataFrame:
    """`n` scored runs as `read` returns them, each of a series of its own, with these columns and no other numbers."""
    marks = [f"s{next(_number)}" for _ in range(n)]
    given = DEFAULTS | {"key": marks, "series_fingerprint": marks} | columns
    frame = pd.DataFrame({name: given.get(name) for name in NAMES}, index=range(n))
    return frame.astype({column.name: _DTYPES[column.kind] for column in COLUMNS})


def store(frame: pd.DataFrame, path: Path) -> Path:
    """The runs in a real ledger."""
    columns = (frame[name].astype(object).where(frame[name].notna(), None) for name in NAMES)
    with Ledger.open(path) as ledger, ledger.transaction():
        for row in zip(*columns, strict=True):
            ledger.put(Record(**dict(zip(NAMES, row, strict=True))))
    return path


def write_ledger(
    path: Path,
    records: Iterable[Record],
    checks: Iterable[StoredCheck] = (),
    examples: Iterable[StoredExample] = (),
) -> Path:
    """A new ledger with these records, checks and examples."""
    stored = {example.key: example for example in examples}
    with Ledger.open(path) as opened:
        for one in records:
            opened.write(one, stored.get(one.key))
        if found := list(checks):
            opened.write_all(found)
    return path


def example(one: Record, rows: int | None = None) -> StoredExample:
    """A seasonal window and a matrix with rows that move with the step."""
    lookback, horizon = one.lookback or 0, one.horizon or 0
    rng = np.random.default_rng(0)
    t = np.arange(-lookback, horizon)
    y = np.sin(2 * np.pi * t / 24) + 0.3 * np.sin(2 * np.pi * t / 168) + 0.15 * rng.standard_normal(len(t))
    h, back = np.arange(rows or horizon)[:, None], np.arange(-lookback, 0)[None]
    near = np.exp(back / 30.0) * (1 + 0 * h)
    seasonal = 0.6 * np.exp(-(((h - back + 12) % 24 - 12) ** 2) / 4.0) * np.exp(back / 150.0)
    forecast = np.sin(2 * np.pi * np.arange(horizon) / 24) * 0.9
    return StoredExample(one.key, y[:lookback], y[lookback:], forecast, near + seasonal)
