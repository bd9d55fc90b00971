"""Records and ledgers made by hand: no model and no series is behind them."""

import hashlib
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hrx.audit.ledger.record import Record
from hrx.audit.ledger.store import Ledger, StoredCheck, StoredExample
from hrx.reports import read

DEFAULTS: Record = {
    "status": "done",
    "model": "bolt-mini",
    "family": "chronos-bolt",
    "checkpoint": "amazon/bolt-mini",
    "fingerprint": "f" * 64,
    "library": "chronos-forecasting 2.3.2",
    "adapter_version": "1",
    "torch_version": "2.10.0",
    "dataset": "us_births/D",
    "frequency": "D",
    "season": 7,
    "series": "T1",
    "series_fingerprint": "s1",
    "missing": 0,
    "channels": None,
    "leakage": "none declared",
    "lookback": 96,
    "horizon": 24,
    "seed": 0,
    "windows": 4,
    "starts": "[100, 120, 140, 160]",
    "protocol_version": "1",
    "estimator": "input_gradient",
    "estimator_settings": "{}",
    "axis": "step",
    "truncation": 0,
    "distance": 0,
    "draws": 4,
    "draws_kind": "antithetic",
    "precision": None,
    "max_draws": 64,
    "scored": 8,
    "fractions": 9,
    "area": "gap",
    "permutations": 3,
    "protocol_seed": 0,
    "g_own": 0.12,
    "g_shuffled": -0.08,
    "g_margin": 0.2,
    "rank": 3.0,
    "mse": 0.5,
    "mse_zero": 1.0,
    "mse_last": 0.9,
    "beats_naive": 1,
    "parity": 2e-7,
    "scored_steps": "[0, 3, 7, 10, 13, 16, 20, 23]",
}


def _record(**changes: object) -> Record:
    values = DEFAULTS | changes
    if values["status"] != "done":
        for name in ("g_own", "g_shuffled", "g_margin", "rank", "mse", "beats_naive", "parity"):
            values[name] = changes.get(name)
    text = repr(sorted((name, str(value)) for name, value in values.items()))
    return {"key": hashlib.sha256(text.encode()).hexdigest(), **values}


@pytest.fixture
def record() -> Callable[..., Record]:
    """record(column=value, …): a scored run that beats naive, with these changes."""
    return _record


@pytest.fixture
def many() -> Callable[..., list[Record]]:
    """many(own, margin, **changes): one run per pair of gains, each of a series of its own."""

    def make(own: Iterable[float], margin: Iterable[float], **changes: object) -> list[Record]:
        return [
            _record(g_own=o, g_margin=m, g_shuffled=o - m, series=f"T{i}", series_fingerprint=f"s{i}", **changes)
            for i, (o, m) in enumerate(zip(own, margin, strict=True))
        ]

    return make


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[..., Path]:
    """ledger(records, checks, matrices): the path of a new ledger that holds them."""
    number = count()

    def make(
        records: Iterable[Record],
        checks: Iterable[StoredCheck] = (),
        matrices: Iterable[StoredExample] = (),
    ) -> Path:
        path = tmp_path / f"ledger{next(number)}.db"
        stored = {matrix.key: matrix for matrix in matrices}
        with Ledger.open(path) as opened:
            for one in records:
                opened.write(one, stored.get(str(one["key"])))
            if found := list(checks):
                opened.write_checks(found)
        return path

    return make


@pytest.fixture
def frame(ledger: Callable[..., Path]) -> Callable[[Iterable[Record]], pd.DataFrame]:
    """frame(records): what `read` makes of a ledger with these runs."""
    return lambda records: read(ledger(records))


@pytest.fixture
def check() -> Callable[..., StoredCheck]:
    """check(name, passed, figure, limit, setting): an admission check of the default model."""

    def make(name: str, passed: bool, figure: float, limit: float, setting: str = "96x24") -> StoredCheck:
        about = (DEFAULTS[c] for c in ("fingerprint", "library", "adapter_version", "torch_version"))
        return StoredCheck(*map(str, about), "bolt-mini", setting, name, passed, figure, limit, "note")

    return make


@pytest.fixture
def matrix() -> Callable[..., StoredExample]:
    """matrix(record, rows): a window with a season, and a matrix whose rows move with the step."""

    def make(one: Record, rows: int | None = None) -> StoredExample:
        lookback, horizon = int(one["lookback"] or 0), int(one["horizon"] or 0)
        rng = np.random.default_rng(0)
        t = np.arange(-lookback, horizon)
        y = np.sin(2 * np.pi * t / 24) + 0.3 * np.sin(2 * np.pi * t / 168) + 0.15 * rng.standard_normal(len(t))
        h, back = np.arange(rows or horizon)[:, None], np.arange(-lookback, 0)[None]
        near = np.exp(back / 30.0) * (1 + 0 * h)
        seasonal = 0.6 * np.exp(-(((h - back + 12) % 24 - 12) ** 2) / 4.0) * np.exp(back / 150.0)
        forecast = np.sin(2 * np.pi * np.arange(horizon) / 24) * 0.9
        return StoredExample(str(one["key"]), y[:lookback], y[lookback:], forecast, near + seasonal)

    return make
