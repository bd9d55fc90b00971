"""Intervals of a median in closed form, independent of the code that makes them."""

import numpy as np
import pandas as pd
from scipy.stats import binom

Ends = tuple[float | None, float | None]
LEVELS = ((0.013, 0.04), (0.96, 0.987))
"""Where the 2.5 % and the 97.5 % point of thousands of resamples may lie."""


def holds(interval: Ends, values: np.ndarray, slack: float = 0.0) -> bool:
    """Whether this can be the percentile-bootstrap 95 % interval of the median of the values, as if independent.

    The m-th smallest value of a resample is at most the k-th smallest of the n values where at least m of its n draws
    are among those k. The median lies between the two middle ones. Below three values there is no interval.
    """
    ordered, n = np.sort(np.asarray(values, dtype=float)), len(values)
    if n < 3:
        return interval == (None, None)

    def point(m: int, level: float) -> float:
        return float(ordered[np.searchsorted(binom.sf(m - 1, n, np.arange(1, n + 1) / n), level)])

    bounds = [(point((n + 1) // 2, least), point(n // 2 + 1, most)) for least, most in LEVELS]
    return all(
        end is not None and low - slack <= end <= high + slack
        for end, (low, high) in zip(interval, bounds, strict=True)
    )


def source_values(runs: pd.DataFrame, column: str) -> np.ndarray:
    """One value per source, or per series of an only source, of scored runs: by pandas, without the code under test."""
    source = runs["dataset"].str.split("/").str[0]
    seeds = runs.groupby([source, "dataset", "series", "model", "lookback", "horizon"])[column].mean().dropna()
    series = seeds.groupby(level=[0, 1, 2]).median()
    if source[runs[column].notna()].nunique() == 1:
        return series.to_numpy()
    return series.groupby(level=0).median().to_numpy()


def order_statistics(values: np.ndarray) -> Ends:
    """Ends of the inverted sign test with Hettmansperger and Sheather's weight written out; none below five values."""
    ordered, n = np.sort(values), len(values)
    if n < 5:
        return None, None
    covering = [1 - 2 * binom.cdf(k - 1, n, 0.5) for k in range(1, n // 2 + 1)]
    k = max([place for place, level in enumerate(covering, 1) if level >= 0.95], default=0)
    if k == 0:
        return float(ordered[0]), float(ordered[-1])
    inner = covering[k] if k < len(covering) else 0.0
    share = (covering[k - 1] - 0.95) / (covering[k - 1] - inner)
    weight = (n - k) * share / (k + (n - 2 * k) * share)
    ends = ((1 - weight) * one[k - 1] + weight * one[k] for one in (ordered, ordered[::-1]))
    low, high = map(float, ends)
    return low, high
