"""Two models on the same thirty series of ten sources, for tests of comparisons."""

import numpy as np
import pandas as pd

from helpers.constructed import runs

MARKS = [f"series{i}" for i in range(30)]


def side(fingerprint: str, shift: float = 0.0, *, scale: float = 1.0, seed: int = 0, **columns: object) -> pd.DataFrame:
    """Thirty series of one model, three of each source; `shift` moves its gains, `scale` its errors."""
    rng = np.random.default_rng(seed)
    gains = rng.standard_normal(30)
    given = {
        "g_own": gains + shift,
        "g_margin": gains + 0.5 + shift,
        "g_shuffled": -0.5,
        "rank": 2.0,
        "mse": scale * np.exp(rng.standard_normal(30)),
        "mae": 0.3,
        "parity": 1e-7,
        "beats_naive": 1,
        "dataset": [f"d{i % 10}/H" for i in range(30)],
    }
    return runs(30, model="m", fingerprint=fingerprint * 64, series_fingerprint=MARKS, **(given | columns))
