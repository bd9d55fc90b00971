"""Intervals of a median, independent of the code that makes them: in closed form, and by literal resampling."""

from collections import defaultdict

import numpy as np
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


def clustered_medians(values, datasets, series, resamples: int) -> np.ndarray:
    """Datasets with replacement, series of each with replacement, all runs of a series, one resample at a time."""
    runs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for value, dataset, one in zip(values, datasets, series, strict=True):
        runs[dataset][one].append(value)
    rng = np.random.default_rng(1)
    names, medians = list(runs), []
    for _ in range(resamples):
        sample: list[float] = []
        for dataset in rng.choice(names, size=len(names)):
            of_dataset = list(runs[dataset].values())
            for index in rng.integers(len(of_dataset), size=len(of_dataset)):
                sample += of_dataset[index]
        medians.append(np.median(sample))
    return np.array(medians)
