"""The statistics of every table: medians with intervals, signs, and seeds folded before anything is counted.

Pure functions on arrays and frames. Values that are not finite are left out everywhere, and `n` counts what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from hrx.audit.ledger.record import COLUMNS
from hrx.reports.words import listed

FEW = 10
"""A group with fewer runs is marked as such."""
FEW_TEXT = f"n<{FEW}: few runs"

Floats = npt.NDArray[np.float64]

VERSIONS = ("library", "adapter_version", "torch_version")
PROTOCOL = (
    "windows",
    "protocol_version",
    "estimator",
    "estimator_settings",
    "axis",
    "draws",
    "draws_kind",
    "precision",
    "max_draws",
    "scored",
    "fractions",
    "area",
    "permutations",
)
TASK = ("dataset", "series_fingerprint", "season", "channels", "lookback", "horizon", *PROTOCOL)
"""What was measured and how, whatever the model. Whether a sweep was scored besides decides no number."""
CONFIGURATION = ("model", "fingerprint", *VERSIONS, "series", *TASK)
"""Everything that decides a run's numbers except its seeds."""
SEEDS = ("seed", "protocol_seed")
"""That of the windows and that of the draws."""
LARGEST = 1e100
"""Forecasts are in single precision, whose squares stay far below it; sums of larger numbers could overflow."""
# The precision is a setting. Of parities the worst is looked for, so an infinite one must stay in sight.
_MEASURED = [column.name for column in COLUMNS if column.kind == "REAL" and column.name not in ("precision", "parity")]
_MOST_NAMED = 8
_BLOCK = 1 << 21
"""Numbers that a bootstrap holds at once."""


class Interval(NamedTuple):
    """A median and its 95 % interval; NaN where there are no values."""

    median: float
    low: float
    high: float


class MeanInterval(NamedTuple):
    """A mean and its 95 % interval; NaN where there are no values."""

    mean: float
    low: float
    high: float


class Described(NamedTuple):
    """What a table says of a group of values; NaN where there are none."""

    median: float
    low: float
    high: float
    positive: float
    """Share above zero, 0 to 1."""
    negative: float
    """Share below zero: an exact zero is on neither side."""
    p: float
    """Of the two-sided sign test."""
    n: int


def describe(values: npt.ArrayLike) -> Described:
    """Median with its interval, share above zero, sign test and count of the finite values."""
    kept = finite(values)
    p = sign_test(int((kept > 0).sum()), int((kept < 0).sum())) if len(kept) else np.nan
    return Described(*median_interval(kept), fraction_positive(kept), fraction_positive(-kept), p, len(kept))


def finite(values: npt.ArrayLike) -> Floats:
    """The values that are numbers, `(N,) -> (n,)`."""
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]


def possible(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs with nothing in place of each number that no measurement gives: infinite, or beyond `LARGEST`.

    The frame itself where there is no such number.
    """
    wrong = _impossible(frame)
    return frame.assign(**{name: frame[name].mask(where) for name, where in wrong.items()}) if wrong else frame


def impossible_remark(frame: pd.DataFrame) -> str:
    """How many scored runs hold numbers that `possible` takes out, in which columns, and how many an infinite parity.

    Empty where none does. JSON has no infinite number, so that there a parity is told by this sentence alone.
    """
    sentences = []
    if wrong := _impossible(frame):
        runs, names = int(np.any(list(wrong.values()), axis=0).sum()), list(wrong)
        if len(names) > _MOST_NAMED:
            names = [*names[: _MOST_NAMED - 2], f"{len(names) - _MOST_NAMED + 2} more columns"]
        what = f"numbers that no measurement gives (infinite, or beyond {LARGEST:g})"
        sentences.append(f"{runs:,} of {len(frame):,} scored runs hold {what}, in {listed(names)}: these are left out.")
    if "parity" in frame and (infinite := int(np.isinf(frame["parity"]).sum())):
        sentences.append(f"{infinite:,} of {len(frame):,} scored runs have an infinite parity.")
    return " ".join(sentences)


def _impossible(frame: pd.DataFrame) -> dict[str, pd.Series[bool]]:
    """Where the numbers of a record are impossible, for each column that has any."""
    found = {name: frame[name].abs() > LARGEST for name in _MEASURED if name in frame}
    return {name: wrong for name, wrong in found.items() if wrong.any()}


def is_few(n: int) -> bool:
    """Whether a group is too small to be read without saying so."""
    return n < FEW


def median_interval(values: npt.ArrayLike, *, resamples: int = 10_000, seed: int = 0) -> Interval:
    """The median and its percentile-bootstrap 95 % interval, in memory that does not grow with `resamples × n`."""
    ordered = np.sort(finite(values))
    if not len(ordered):
        return Interval(np.nan, np.nan, np.nan)
    medians = resampled_medians(ordered, resamples, np.random.default_rng(seed))
    low, high = np.percentile(medians, (2.5, 97.5))
    return Interval(float(np.median(ordered)), float(low), float(high))


def resampled_medians(ordered: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Medians of `resamples` resamples with replacement of the sorted values `(n,)`.

    A resample is `ordered[⌊n·U⌋]` for `n` uniform `U`. That map never decreases, so the middle values of the
    resample are those at the middle order statistics of `U`. These are drawn directly, as the beta variables that
    they are: the distribution is that of drawing all `n`, for one or two draws a resample.
    """
    n = len(ordered)
    lower = (n + 1) // 2
    u = rng.beta(lower, n - lower + 1, size=resamples)
    middle = ordered[_position(u, n)]
    if n % 2:
        return middle
    # Given the lower middle one, the uniforms above it are uniform on what is left; the next is their smallest.
    above = u + (1 - u) * rng.beta(1, n - lower, size=resamples)
    return middle + (ordered[_position(above, n)] - middle) / 2


def _position(u: Floats, n: int) -> npt.NDArray[np.int64]:
    return np.minimum((n * u).astype(np.int64), n - 1)


def mean_interval(values: npt.ArrayLike, *, resamples: int = 10_000, seed: int = 0) -> MeanInterval:
    """The mean and its percentile-bootstrap 95 % interval. Meant for shares, which take few distinct values."""
    kept = finite(values)
    if not len(kept):
        return MeanInterval(np.nan, np.nan, np.nan)
    means = resampled_means(kept, resamples, np.random.default_rng(seed))
    low, high = np.percentile(means, (2.5, 97.5))
    return MeanInterval(float(kept.mean()), float(low), float(high))


def resampled_means(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Means of `resamples` resamples with replacement of the values `(n,)`.

    How often each distinct value is drawn is multinomial, so a resample costs as many draws as there are distinct
    values, and blocks of resamples bound the memory.
    """
    levels, counts = np.unique(values, return_counts=True)
    n, block = len(values), max(1, _BLOCK // len(levels))
    sizes = (min(block, resamples - start) for start in range(0, resamples, block))
    return np.concatenate([rng.multinomial(n, counts / n, size=size) @ levels / n for size in sizes])


def fraction_positive(values: npt.ArrayLike) -> float:
    """Share of the values above zero; a zero is not positive. NaN where there are no values."""
    kept = finite(values)
    return float(np.mean(kept > 0)) if len(kept) else np.nan


def sign_test(positive: int, negative: int) -> float:
    """Exact two-sided p of so many signs if both were equally likely; zeros are not counted on either side."""
    n, fewer = positive + negative, min(positive, negative)
    term, tail = 1, 1
    for k in range(fewer):
        term = term * (n - k) // (k + 1)
        tail += term
    # Whole numbers all the way: the one rounding is that of the last division.
    return min(1.0, 2 * tail / (1 << n))


def trimmed_mean(values: npt.ArrayLike, share: float = 0.1) -> float:
    """The mean without the `share` lowest and the `share` highest values (rounded down, on either side)."""
    ordered = np.sort(finite(values))
    cut = int(share * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean()) if len(ordered) else np.nan


def pooled(frame: pd.DataFrame, but: Collection[str] = ()) -> list[str]:
    """Versions and protocol settings, `but` those, in which the runs differ: who reads them together should know."""
    return [name for name in (*VERSIONS, *PROTOCOL) if name not in but and frame[name].nunique(dropna=False) > 1]


def fold_seeds(frame: pd.DataFrame, quantities: Sequence[str]) -> pd.DataFrame:
    """One row per configuration: the mean of each quantity over its seeds, and `seeds`, how many these were.

    The mean, as in the paper, which folds before it aggregates so that every configuration weighs the same. A missing
    value is left out of its mean, and is missing only where every seed misses it. A run that is stored twice, with a
    sweep and without, is one run.
    """
    wanted = list(quantities)
    ids = frame.groupby(list(CONFIGURATION), sort=False, dropna=False).ngroup().rename("configuration")
    runs = frame[wanted].groupby([ids, *(frame[seed] for seed in SEEDS)], sort=False, dropna=False).mean()
    by_configuration = runs.groupby(level="configuration", sort=False)
    folded = by_configuration.mean()
    folded["seeds"] = by_configuration.size()
    known = frame[list(CONFIGURATION)].set_axis(pd.Index(ids), axis=0)
    known = known[~known.index.duplicated()]
    return known.join(folded).reset_index(drop=True)
