"""A ledger as large as the published one, with random numbers: for time, size and arithmetic, not for meaning."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from hrx.records.ledger import Ledger, StoredExample
from hrx.records.record import Record

MODELS, DATASETS, RUNS = 8, 66, 16_729
SETTINGS = ((96, 96), (192, 96), (320, 96), (512, 96), (512, 24), (512, 48), (512, 192))
DOMAINS = ("Nature", "Energy", "Sales", "Transport", "Web", "Healthcare", "Econ/Fin")


def records(count: int = RUNS, models: int = MODELS, datasets: int = DATASETS) -> list[Record]:
    """Random runs over models × datasets × settings × series × seeds; a few are excluded, fewer failed."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(count):
        cell, rest = number % (models * datasets), number // (models * datasets)
        (lookback, horizon), (series, seed) = SETTINGS[rest % 7], divmod(rest // 7, 2)
        found.append(_record(rng, cell % models, cell // models, lookback, horizon, series, seed))
    return found


def _record(rng, model: int, dataset: int, lookback: int, horizon: int, series: int, seed: int) -> Record:
    own, margin = rng.normal(0.02 * (model - 3), 0.2), rng.normal(0.03 * (dataset % 7 - 2), 0.3)
    one: dict[str, Any] = {
        "model": f"model-{model}", "family": "family", "checkpoint": f"vendor/model-{model}",
        "fingerprint": f"{model:064x}", "library": "library 1.0", "adapter_version": "1",
        "torch_version": "2.10.0", "hrx_version": "0.1.0",
        "dataset": f"dataset_{dataset:02d}/H", "domain": DOMAINS[dataset % 7], "frequency": "H", "season": 24,
        "series": f"T{series}", "series_fingerprint": f"{dataset}-{series}", "missing": 0, "lookback": lookback,
        "horizon": horizon, "seed": seed, "windows": 4, "protocol_version": "1", "estimator": "input_gradient",
        "draws": 4, "draws_kind": "antithetic", "max_draws": 64, "scored": 8, "fractions": 9, "area": "gap",
        "permutations": 3, "protocol_seed": 0, "leakage": ("declared", "none declared", "unknown")[dataset % 3],
        "created": "2026-01-01T00:00:00+00:00", "status": "done", "scored_steps": "[0, 14, 27, 41, 54, 68, 81, 95]",
    }  # fmt: skip
    fate = rng.random()
    if fate < 0.03:
        one |= {"status": "excluded", "reason": f"too short: {rng.integers(100, 600)} values"}
    elif fate < 0.035:
        one |= {"status": "failed", "reason": "RuntimeError: out of memory"}
    else:
        mse = float(rng.lognormal(-0.5, 0.6))
        one |= {
            "g_own": own, "g_margin": margin, "g_shuffled": own - margin, "g_own_se": 0.01, "g_margin_se": 0.012,
            "g_shuffled_se": 0.01, "rank": float(1 + rng.gamma(2.0, 1.2)),
            "effective_lookback": float(rng.uniform(8, lookback)),
            "mse": mse, "mse_zero": 1.0, "mse_last": 0.9, "mse_seasonal": 0.8, "beats_naive": int(mse < 0.9),
            "parity": 2e-7,
        }  # fmt: skip
    return Record(key=hashlib.sha256(repr(sorted(one.items())).encode()).hexdigest(), **one)


def example(record: Record, seed: int = 0) -> StoredExample:
    """A seasonal window and a matrix with rows that move with the step, with the noise of a real gradient."""
    lookback, horizon = record.lookback or 0, record.horizon or 0
    rng = np.random.default_rng(seed)
    t = np.arange(-lookback, horizon)
    y = np.sin(2 * np.pi * t / 24) + 0.15 * rng.standard_normal(len(t))
    h, back = np.arange(horizon)[:, None], np.arange(-lookback, 0)[None]
    rows = np.exp(back / 30.0) + 0.6 * np.exp(-(((h - back + 12) % 24 - 12) ** 2) / 4.0) * np.exp(back / 150.0)
    rho = np.linspace(0, 1, 9)
    curves = np.stack([np.stack([size * rho**0.5, size * rho**2]) for size in (1.0, 0.9, 0.7)])
    noisy = rows * rng.lognormal(0, 0.3, rows.shape)
    forecast = np.sin(2 * np.pi * t[lookback:] / 24)
    return StoredExample(record.key, y[:lookback], y[lookback:], forecast, noisy, curves)


def write(path: Path, many: list[Record], examples: int) -> Path:
    """A ledger of these records, the first `examples` scored ones with an example, in one transaction."""
    scored = [one for one in many if one.status == "done" and one.horizon == 96 and one.lookback == 512]
    with Ledger.open(path) as ledger:
        for number, one in enumerate(scored[:examples]):
            ledger.write(one, example(one, number))
        with ledger.transaction():
            for one in many:
                ledger.put(one)
    return path
