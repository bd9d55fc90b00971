"""The runs of a ledger as a pandas frame, and the statistics of groups of them.

Seeds are folded before anything is counted. Values that are not finite are left out everywhere, and `n` counts the
rest. The columns are described in `hrx.records.record`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from hrx.errors import HrxError
from hrx.records import record
from hrx.records.ledger import Ledger
from hrx.records.quantities import Bools, Floats, Ints
from hrx.reports.coverage import attach
from hrx.reports.text import bracketed, counted, listed, number_or_none, signed

FEW = 10
"""A group with fewer runs is marked."""
FEW_TEXT = f"n<{FEW}: few runs"
BY_HRX = "hrx train"
"""`by` among the facts of a training that `hrx train` did."""
FEWEST = 3
"""Values that an interval needs: one or two say nothing about their spread."""


VERSIONS = ("library", "adapter_version", "torch_version")
PROTOCOL = (
    "windows", "protocol_version", "estimator", "estimator_settings", "estimator_package", "axis", "draws",
    "draws_kind", "precision", "max_draws", "scored", "fractions", "area", "permutations", "variance_windows",
)  # fmt: skip
TASK = ("dataset", "series_fingerprint", "season", "channels", "lookback", "horizon", *PROTOCOL)
"""What is measured and how, for any model. Sweeps that are scored in addition change none of these numbers."""
CONFIGURATION = ("model", "fingerprint", *VERSIONS, "series", *TASK)
"""Everything that decides a run's numbers except its seeds."""
SEEDS = ("seed", "protocol_seed")
"""The seed of the windows and the seed of the draws."""
LARGEST = record.LARGEST
# The precision is a setting, and an infinite parity must stay visible as the worst one.
_MEASURED = [c.name for c in record.COLUMNS if c.kind == "REAL" and c.name not in ("precision", "parity")]
_MOST_NAMED = 8
_BLOCK = 1 << 21
"""Numbers that a bootstrap of a mean holds at once."""


def read(ledger_path: str | Path) -> pd.DataFrame:
    """One row per run, in the order of writing, with all columns of the record; JSON columns stay text.

    A column has the same type in every ledger, also in an empty one. A record that is not as it was written is left
    out, and a `LedgerWarning` names it; `attrs["damaged"]` is their number. `attrs["plans"]` says how
    many of the planned runs of each model are stored.

        runs = hrx.read("my-audit/ledger.db")
        runs.groupby("dataset")["g_margin"].median()
    """
    with Ledger.open(ledger_path, create=False) as ledger:
        rows = ledger.rows()
        damaged = len(ledger.damaged)
        plans = ledger.plans()
    columns = zip(*rows, strict=True) if rows else ((),) * len(record.COLUMNS)
    frame = pd.DataFrame({c.name: _typed(c.kind, values) for c, values in zip(record.COLUMNS, columns, strict=True)})
    frame.attrs["damaged"] = damaged
    attach(frame, plans)
    return frame


def require_runs(frame: object, name: str) -> None:
    """Refuses what is not a frame of `read`."""
    if not isinstance(frame, pd.DataFrame) or not {"model", "status", "fingerprint"} <= set(frame.columns):
        raise HrxError(f"{name} is not a frame of runs but a {type(frame).__name__}. Read a ledger: hrx.read(LEDGER).")


def _typed(kind: str, values: Sequence[record.Value]) -> pd.Series:
    """A missing value is None in a text column, <NA> in an integer column, NaN in a float column."""
    column = pd.Series(np.array(values, dtype=object), dtype="object")
    if kind == "REAL":
        return column.astype("float64")
    return column.astype("Int64") if kind == "INTEGER" else column


def mask_impossible(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs with NaN for each number that is infinite or beyond `LARGEST`; the same frame if there is none."""
    impossible = _impossible(frame)
    return frame.assign(**{name: frame[name].mask(at) for name, at in impossible.items()}) if impossible else frame


def impossible_remark(frame: pd.DataFrame) -> str:
    """How many scored runs hold numbers that `mask_impossible` removes, and how many an infinite parity; else empty.

    JSON has no infinite number, so there an infinite parity appears in this sentence only.
    """
    sentences = []
    if impossible := _impossible(frame):
        runs, names = int(np.any(list(impossible.values()), axis=0).sum()), list(impossible)
        if len(names) > _MOST_NAMED:
            names = [*names[: _MOST_NAMED - 2], f"{len(names) - _MOST_NAMED + 2} more columns"]
        what = f"impossible numbers (infinite, or beyond {LARGEST:g})"
        holding = f"{runs:,} of {counted(len(frame), 'scored run')} {'holds' if runs == 1 else 'hold'}"
        sentences.append(f"{holding} {what}, in {listed(names)}: these are left out.")
    if "parity" in frame and (infinite := int(np.isinf(frame["parity"]).sum())):
        have = "has" if infinite == 1 else "have"
        sentences.append(f"{infinite:,} of {counted(len(frame), 'scored run')} {have} an infinite parity.")
    return " ".join(sentences)


def padded_remark(frame: pd.DataFrame) -> str:
    """How many scored runs have zeros before their lookback that the model reads as values; empty where none has."""
    padded = (frame["padded"] > 0).fillna(False)
    if not (runs := int(padded.sum())):
        return ""
    lookbacks = listed(sorted(set(frame.loc[padded, "lookback"])))
    have = "has" if runs == 1 else "have"
    return (
        f"{runs:,} of {counted(len(frame), 'scored run')} {have} a lookback below the context ({lookbacks}): the "
        "library puts zeros before it, which the model reads as observed values, so forecasts and gains there are "
        "those of the padded window."
    )


def training_facts(text: object) -> dict[str, object]:
    """The facts of the column `training`; empty where a record has none, or another program wrote it."""
    try:
        facts = json.loads(text) if isinstance(text, str) and text else {}
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def trained_by_hrx(frame: pd.DataFrame) -> Bools:
    """Whether `hrx train` trained the model of each run; not where a record does not state it."""
    known = np.array([training_facts(text).get("by") == BY_HRX for text in frame["training"]], dtype=bool)
    return known & (frame["backbone"].fillna("") != "").to_numpy(dtype=bool)


def unknown_rows_remark(frame: pd.DataFrame) -> str:
    """How many scored runs are of a trained model that may have been trained on their windows; empty where none is."""
    trained = (frame["backbone"].fillna("") != "").to_numpy(dtype=bool)
    stated = [isinstance(training_facts(text).get("training_rows"), int) for text in frame["training"]]
    unknown = trained & ~np.array(stated, dtype=bool)
    if not (runs := int(unknown.sum())):
        return ""
    of = f"{runs:,} of {counted(len(frame), 'scored run')} {'is' if runs == 1 else 'are'} of a model"
    return f"{of} whose training rows are unknown: the audited windows may be among them."


def _impossible(frame: pd.DataFrame) -> dict[str, pd.Series[bool]]:
    masks = {name: frame[name].abs() > LARGEST for name in _MEASURED if name in frame}
    return {name: mask for name, mask in masks.items() if mask.any()}


def scored_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """The scored runs, without impossible numbers."""
    return mask_impossible(frame[frame["status"] == record.DONE])


def beats_naive(frame: pd.DataFrame) -> Bools:
    """Whether each run is known to beat both naive forecasts."""
    return (frame["beats_naive"] == 1).fillna(False).to_numpy(dtype=bool)


def beats_seasonal(frame: pd.DataFrame) -> Floats:
    """For each run 1 or 0: is its squared error below that of repeating the last season; NaN where either is unknown.

    It is reported beside `beats_naive` and is not part of it.
    """
    error, seasonal = (frame[name].to_numpy(dtype=np.float64) for name in ("mse", "mse_seasonal"))
    return np.where(np.isnan(error) | np.isnan(seasonal), np.nan, error < seasonal)


def pooled(frame: pd.DataFrame, but: Collection[str] = ()) -> list[str]:
    """Versions and protocol settings, except `but`, in which the runs differ."""
    return [name for name in (*VERSIONS, *PROTOCOL) if name not in but and frame[name].nunique(dropna=False) > 1]


def fold_seeds(frame: pd.DataFrame, quantities: Sequence[str]) -> pd.DataFrame:
    """One row per configuration: the mean of each quantity over its seeds, and `seeds`, the number of seeds.

    As in the paper, so that every configuration has the same weight. A missing value is left out of its mean. A run
    that is stored twice, with a sweep and without, is one run.
    """
    ids = frame.groupby(list(CONFIGURATION), sort=False, dropna=False).ngroup().rename("configuration")
    runs = frame[list(quantities)].groupby([ids, *(frame[seed] for seed in SEEDS)], sort=False, dropna=False).mean()
    by_configuration = runs.groupby(level="configuration", sort=False)
    folded = by_configuration.mean()
    folded["seeds"] = by_configuration.size()
    known = frame[list(CONFIGURATION)].set_axis(pd.Index(ids), axis=0)
    known = known[~known.index.duplicated()]
    return known.join(folded).reset_index(drop=True)


class Interval(NamedTuple):
    """A median, mean or other figure with its 95 % interval; NaN where there are no values, or too few of them."""

    point: float
    low: float
    high: float


@dataclass(frozen=True)
class GroupStatistics:
    """The statistics of one quantity over a group of runs; NaN where the group is empty.

    `low` and `high` are NaN for fewer than three values.
    """

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
    """Configurations: runs with their seeds folded."""

    @property
    def few(self) -> bool:
        return is_few(self.n)

    def as_json(self) -> dict[str, float | None]:
        figures = ("median", "low", "high", "positive", "p")
        return {name: number_or_none(getattr(self, name)) for name in figures} | {"n": self.n}

    def __str__(self) -> str:
        interval = bracketed(self.low, self.high)
        return f"{signed(self.median)} {interval if interval != '-' else '(no interval from so few)'}"

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero, over at least ten runs."""
        return not self.few and (self.low > 0 or self.high < 0)


def describe(values: npt.ArrayLike) -> GroupStatistics:
    """Median with its interval, share above zero, sign test and count of the finite values."""
    kept = finite(values)
    p = sign_test(int((kept > 0).sum()), int((kept < 0).sum())) if len(kept) else np.nan
    return GroupStatistics(*median_interval(kept), fraction_positive(kept), fraction_positive(-kept), p, len(kept))


def is_few(n: int) -> bool:
    """Whether a group is so small that this must be said."""
    return n < FEW


def finite(values: npt.ArrayLike) -> Floats:
    """The finite values, `(N,) -> (n,)`."""
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]


def median(values: npt.ArrayLike) -> float:
    """The median of the finite values; NaN where there are none."""
    return _median_of(np.sort(finite(values)))


def _median_of(ordered: Floats) -> float:
    """The median of sorted values; a page needs so many that `np.median` would take most of its time."""
    n = len(ordered)
    return float((ordered[(n - 1) // 2] + ordered[n // 2]) / 2) if n else np.nan


def median_interval(values: npt.ArrayLike, *, resamples: int = 10_000, seed: int = 0) -> Interval:
    """The median and its percentile-bootstrap 95 % interval, in memory that does not grow with `resamples × n`.

    Fewer than three values have no interval.

    `scipy.stats.bootstrap` draws all `n` values of every resample: 10,000 × 16,729 draws for a whole benchmark, and
    other digits than the stored ones. The resampled medians are drawn directly here.
    """
    ordered = np.sort(finite(values))
    if len(ordered) < FEWEST:
        return Interval(_median_of(ordered), np.nan, np.nan)
    drawn = _seeded_resamples(len(ordered), resamples, seed)
    medians = _middle(ordered, (drawn.lower, drawn.upper))
    order = np.argsort(medians, kind="stable")
    ends = (_weighted_percentile(medians[order], drawn.counts[order], q) for q in (2.5, 97.5))
    return Interval(_median_of(ordered), *ends)


def _weighted_percentile(ordered: Floats, counts: Ints, q: float) -> float:
    """`np.percentile` of the sorted values, each repeated `counts` times."""
    last = np.cumsum(counts)
    at = q / 100 * (last[-1] - 1)
    below = int(at)
    low, high = ordered[np.searchsorted(last, (below, below + 1), side="right")]
    share = at - below
    return float(low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share))


def resampled_medians(ordered: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Medians of `resamples` resamples with replacement of the sorted values `(n,)`."""
    return _middle(ordered, _middle_positions(len(ordered), resamples, rng))


Positions = tuple[Ints, Ints]


def _middle_positions(n: int, resamples: int, rng: np.random.Generator) -> Positions:
    """The positions in the sorted sample of the two middle values of each resample, alike for an odd `n`.

    A resample is `ordered[⌊n·U⌋]` for `n` uniform `U`. That map never decreases, so the middle values of the resample
    are those at the middle order statistics of `U`, which are beta variables: one or two draws per resample.
    """
    lower = (n + 1) // 2
    u = rng.beta(lower, n - lower + 1, size=resamples)
    if n % 2:
        return (_position(u, n),) * 2
    # Given the lower middle one, the uniforms above it are uniform on the rest; the next one is their smallest.
    above = u + (1 - u) * rng.beta(1, n - lower, size=resamples)
    return _position(u, n), _position(above, n)


class _Resamples(NamedTuple):
    """The distinct pairs of middle positions of many resamples, and how many resamples have each."""

    lower: Ints
    upper: Ints
    counts: Ints


@lru_cache(maxsize=256)
def _seeded_resamples(n: int, resamples: int, seed: int) -> _Resamples:
    """The same for every sample of this size, so that many groups cost little more than one."""
    lower, upper = _middle_positions(n, resamples, np.random.default_rng(seed))
    pairs, counts = np.unique(lower.astype(np.int64) * n + upper, return_counts=True)
    return _Resamples(pairs // n, pairs % n, counts)


def _position(u: Floats, n: int) -> Ints:
    return np.minimum((n * u).astype(np.int32), n - 1)


def _middle(ordered: Floats, positions: Positions) -> Floats:
    lower, upper = (ordered[position] for position in positions)
    return lower + (upper - lower) / 2


def mean_interval(values: npt.ArrayLike, *, resamples: int = 10_000, seed: int = 0) -> Interval:
    """The mean and its percentile-bootstrap 95 % interval. Meant for shares, which take few distinct values.

    Fewer than three values have no interval.
    """
    kept = finite(values)
    if len(kept) < FEWEST:
        return Interval(float(kept.mean()) if len(kept) else np.nan, np.nan, np.nan)
    means = resampled_means(kept, resamples, np.random.default_rng(seed))
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(float(kept.mean()), float(low), float(high))


def resampled_means(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Means of `resamples` resamples with replacement of the values `(n,)`.

    How often each distinct value is drawn is multinomial, so a resample takes one draw per distinct value.
    """
    levels, counts = np.unique(values, return_counts=True)
    n, block = len(values), max(1, _BLOCK // len(levels))
    sizes = (min(block, resamples - start) for start in range(0, resamples, block))
    return np.concatenate([rng.multinomial(n, counts / n, size=size) @ levels / n for size in sizes])


def fraction_positive(values: npt.ArrayLike) -> float:
    """Share of the finite values above zero; a zero is not positive. NaN where there are no values."""
    kept = finite(values)
    return float(np.mean(kept > 0)) if len(kept) else np.nan


def sign_test(positive: int, negative: int) -> float:
    """Exact two-sided p of these signs if both were equally likely; zeros count on neither side."""
    from scipy.stats import binomtest  # takes most of a second to import, and most commands need no test

    n = positive + negative
    return float(binomtest(positive, n).pvalue) if n else 1.0


def trimmed_mean(values: npt.ArrayLike, share: float = 0.1) -> float:
    """The mean without the `share` lowest and the `share` highest values (rounded down, on either side).

    In sorted order: `scipy.stats.trim_mean` sums in another order and so gives other last digits.
    """
    ordered = np.sort(finite(values))
    cut = int(share * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean()) if len(ordered) else np.nan
