"""What changed between two checkpoints on the same windows, from their records alone: forecasts, readings, lags.

The *forecast shift* of a pair of runs is the mean squared difference of the forecasts over the variance of base's. The
*reading overlap* is the share of importance that lies in the same lag bins of the same rows: 1 where both read alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from hrx.records.quantities import Floats
from hrx.records.reading import Reading, lag_bins
from hrx.reports.cells import COUNT, Format, Span, TableColumn, TableRow, Value
from hrx.reports.gates import OF_PAIRS
from hrx.reports.statistics import FEWEST_INTERVAL, Evidence, evidence
from hrx.reports.table import ReportTable
from hrx.reports.text import clean, counted, number_or_none, percent

SAME = 1e-6
"""A smaller shift, or an overlap closer to 1, is that of the same weights."""
CLEAR = 0.01
"""Change of a lag's mass that the first line names."""
_INTERVALS = (
    "Intervals are order statistics, 95 %; of five clusters their range, 94 %; of fewer a range that is no interval."
)
_MOST_LAGS, _MOST_WINDOWS = 6, 6
_SHARE = Format("number", decimals=3, plus=False)
_MASS = Format("number", decimals=3)


class ChangedWindow(NamedTuple):
    """One window with what both models read and forecast."""

    dataset: str
    series: str
    setting: str
    window: int
    """Place among the windows of its run, from 1."""
    shift: float
    overlap: float
    base: Reading
    new: Reading
    at: int
    """Place of the window in both readings."""


class PairChange(NamedTuple):
    """Shift and overlap of one pair, their values by window `(W,)`, and the mass in each lag bin `(B,)` of both."""

    shift: float
    overlap: float
    shifts: Floats
    overlaps: Floats
    base: Floats
    new: Floats


@dataclass(frozen=True)
class Changed:
    """What changed over the pairs whose records hold readings."""

    pairs: int
    shift: Evidence = field(default_factory=lambda: Evidence(()))
    overlap: Evidence = field(default_factory=lambda: Evidence(()))
    groups: tuple[tuple[str, Evidence, Evidence], ...] = ()
    """Each dataset, the largest shift first, then each setting, with its shift and overlap."""
    lags: tuple[tuple[str, float, float, Evidence], ...] = ()
    """Lag bins whose mass changed most: name, mass in base and new, and the change."""
    windows: tuple[ChangedWindow, ...] = ()
    """Windows that changed most, each of another pair of runs."""

    @property
    def headline(self) -> str:
        """What changed, where, and whether it is decided, in words."""
        if not self.pairs:
            return "What the models forecast and read is not compared: the records hold no readings."
        (shift, *ends), overlap, of = self.shift.interval, self.overlap.interval, self.shift
        if shift <= SAME and overlap.point >= 1 - SAME and max(of.values) <= SAME:
            return f"Forecasts and readings are the same in {of.counted}."
        moved = f"Forecasts moved by {percent(shift)} of their variance{_range(ends, of.n)}"
        read = f"readings overlap by {percent(overlap.point)}{_range(overlap[1:], of.n)}"
        where = f", most on {clean(self.groups[0][0])} ({percent(_point(self.groups[0][1]))})" if of.n > 1 else ""
        lag = ""
        if self.lags and self._is_clear(self.lags[0][3]):
            name, was, now, _ = self.lags[0]
            holds = "hold" if name.startswith("lags") else "holds"
            lag = f"; {name} {holds} {percent(now)} of the importance instead of {percent(was)}"
        few = "" if of.n >= FEWEST_INTERVAL else f"; not decided for other data: {of.counted}"
        return f"{moved}{where}; {read}{lag}; over {of.counted}{few}."

    @staticmethod
    def _is_clear(moved: Evidence) -> bool:
        """Whether the mass of a lag changed by a hundredth at least, and its interval has one sign."""
        point, low, high = moved.interval
        return moved.n >= FEWEST_INTERVAL and abs(point) >= CLEAR and (low > 0 or high < 0)

    def tables(self, most: int | None = None) -> list[ReportTable]:
        """Shift and overlap of `most` datasets and settings, and the lags whose mass changed most."""
        return [_groups_table(self, most), *([_lags_table(self)] if self.lags else [])] if self.pairs else []

    def as_json(self) -> dict[str, object]:
        """Object of `hrx compare --json`."""

        def figure(found: Evidence) -> dict[str, object]:
            names = ("median", "low", "high")
            ends = dict(zip(names, map(number_or_none, found.interval), strict=True))
            return {**ends, "clusters": found.n, "unit": found.unit}

        return {
            "headline": self.headline,
            "pairs": self.pairs,
            "forecast_shift": figure(self.shift),
            "reading_overlap": figure(self.overlap),
            "groups": [
                {"name": name, "forecast_shift": figure(shift), "reading_overlap": figure(overlap)}
                for name, shift, overlap in self.groups
            ],
            "lags": [
                {"lag": name, "base": number_or_none(was), "new": number_or_none(now), "change": figure(moved)}
                for name, was, now, moved in self.lags
            ],
            "windows": [
                {**one._asdict(), "shift": number_or_none(one.shift), "overlap": number_or_none(one.overlap)}
                | dict.fromkeys(("base", "new", "at"))
                for one in self.windows
            ],
        }


def pair_change(base: Reading, new: Reading, variance: float) -> PairChange:
    """Compare two readings of the same windows; `variance` is that of base's forecasts."""
    squares = np.square(new.forecast - base.forecast).mean(axis=1)
    shifts = np.divide(squares, variance, out=np.full(len(squares), math.nan), where=variance > 0)
    own, other = base.rows, new.rows
    with np.errstate(invalid="ignore"):
        apart = np.abs(other / other.sum(axis=2, keepdims=True) - own / own.sum(axis=2, keepdims=True)).sum(axis=2)
    known = np.isfinite(apart)
    rows = known.sum(axis=1)
    overlaps = np.divide(
        np.where(known, 1 - apart / 2, 0.0).sum(axis=1), rows, out=np.full(len(rows), math.nan), where=rows > 0
    )
    masses = [_mass(side[known]) for side in (own, other)]
    return PairChange(_mean(shifts), _mean(overlaps), shifts, overlaps, *masses)


def add_changes(paired: pd.DataFrame) -> tuple[pd.DataFrame, Changed]:
    """Pairs with their `forecast_shift` and `reading_overlap`, NaN where a record has no reading, and what changed.

    `paired` has `reading_base`, `reading_new`, `variance_base`, `configuration`, `dataset`, `item` and the setting.
    """
    found: dict[object, PairChange] = {}
    read: dict[object, tuple[Reading, Reading]] = {}
    known = paired[["reading_base", "reading_new", "variance_base"]].notna().all(axis=1)
    for at, ours, theirs, variance in paired.loc[known, ["reading_base", "reading_new", "variance_base"]].itertuples():
        base, new = (Reading.from_text(text, lags=False) for text in (ours, theirs))
        if base.rows.shape == new.rows.shape and base.forecast.shape == new.forecast.shape:
            found[at], read[at] = pair_change(base, new, float(variance)), (base, new)
    values = {
        name: pd.Series({at: one[place] for at, one in found.items()}, dtype="float64")
        for place, name in enumerate(OF_PAIRS)
    }
    paired = paired.assign(**{name: of.reindex(paired.index) for name, of in values.items()})
    kept = paired.loc[list(found)]
    if kept.empty:
        return paired, Changed(0)
    shift, overlap = (_evidence(kept, name) for name in OF_PAIRS)
    settings = kept["lookback"].astype(str) + "x" + kept["horizon"].astype(str)
    groups: list[tuple[str, Evidence, Evidence]] = []
    for names in (kept["dataset"].astype(str), settings):
        of_group = [
            (str(name), _evidence(rows, "forecast_shift"), _evidence(rows, "reading_overlap"))
            for name, rows in kept.groupby(names, sort=False)
        ]
        groups += sorted(of_group, key=lambda one: -_point(one[1])) if names.nunique() > 1 or not groups else []
    lags = _lags(kept, [found[at] for at in kept.index], [read[at][0] for at in kept.index])
    largest = kept["forecast_shift"].sort_values(ascending=False, kind="stable").index[:_MOST_WINDOWS]
    windows = [_window(kept.loc[at], settings[at], found[at], *read[at]) for at in largest if found[at].shift > SAME]
    return paired, Changed(len(kept), shift, overlap, tuple(groups), tuple(lags), tuple(windows))


def _window(pair: pd.Series, setting: str, change: PairChange, base: Reading, new: Reading) -> ChangedWindow:
    """Return the window of a pair whose forecast moved most."""
    at = int(np.nanargmax(change.shifts))
    where = str(pair["dataset"]), str(pair["series_base"]), setting
    return ChangedWindow(
        *where, base.windows[at] + 1, float(change.shifts[at]), float(change.overlaps[at]), base, new, at
    )


def _lags(
    kept: pd.DataFrame, changes: Sequence[PairChange], readings: Sequence[Reading]
) -> list[tuple[str, float, float, Evidence]]:
    """Lag bins by the size of the median change of their mass; of settings with other bins, each name by itself."""
    names = [_bin_names(one.lookback + one.horizon - 1) for one in readings]
    table = pd.DataFrame(
        {
            "pair": np.repeat(kept.index.to_numpy(), [len(of) for of in names]),
            "lag": np.concatenate(names),
            "base": np.concatenate([one.base for one in changes]),
            "new": np.concatenate([one.new for one in changes]),
        }
    ).set_index("pair")
    table["moved"] = table["new"] - table["base"]
    table = table.join(kept[["configuration", "dataset", "item"]])
    size = table.groupby("lag")["moved"].agg(lambda moved: abs(moved.median()) * moved.count())
    found = []
    for name in size.sort_values(ascending=False, kind="stable").index[:_MOST_LAGS]:
        of_lag = table[table["lag"] == name]
        was, now, moved = (_evidence(of_lag, column) for column in ("base", "new", "moved"))
        found.append((str(name), _point(was), _point(now), moved))
    return sorted(found, key=lambda one: -abs(_point(one[3])))


@cache
def _bin_names(longest: int) -> list[str]:
    return [lag_name(int(first), int(after) - 1) for first, after in pairwise(lag_bins(longest))]


def lag_name(first: int, last: int) -> str:
    """`lag 24`, or `lags 33 to 36`."""
    return f"lag {first}" if first == last else f"lags {first} to {last}"


def _evidence(pairs: pd.DataFrame, name: str) -> Evidence:
    """One value per cluster, the seeds of a configuration folded."""
    folded = pairs.groupby("configuration", sort=False).agg(
        dataset=("dataset", "first"), item=("item", "first"), value=(name, "mean")
    )
    return evidence(folded["value"], folded["dataset"], folded["item"])


def _mass(rows: Floats) -> Floats:
    return np.asarray(rows.mean(axis=0) if len(rows) else np.full(rows.shape[-1], math.nan))


def _mean(values: Floats) -> float:
    kept = values[np.isfinite(values)]
    return float(kept.mean()) if len(kept) else math.nan


def _point(found: Evidence) -> float:
    return found.interval.point


def _range(ends: Iterable[float], clusters: int) -> str:
    """` [2 %, 5 %]`, an interval from five clusters on, else called a range; empty for one."""
    low, high = ends
    if math.isnan(low):
        return ""
    within = f"[{percent(low)}, {percent(high)}]"
    return f" {within}" if clusters >= FEWEST_INTERVAL else f" (range {within})"


def _groups_table(changed: Changed, most: int | None) -> ReportTable:
    heads = (
        ("name", "dataset or setting"), ("n", "clusters", COUNT), ("shift", "forecast shift", _SHARE),
        ("of_shift", "interval", Format("span", decimals=3)), ("overlap", "reading overlap", _SHARE),
        ("of_overlap", "interval", Format("span", decimals=3)),
    )  # fmt: skip
    columns = tuple(TableColumn(*head) for head in heads)
    rows = []
    for name, shift, overlap in (("all", changed.shift, changed.overlap), *changed.groups[:most]):
        (moved, *of_moved), (same, *of_same) = shift.interval, overlap.interval
        values: tuple[Value, ...] = (name, shift.n, moved, Span(*of_moved), same, Span(*of_same))
        rows.append(TableRow.of(columns, values, key=name))
    note = (
        "Forecast shift: mean squared difference of the forecasts over the variance of base's. Reading overlap: share "
        f"of importance in the same lag bins of the same steps. Over {counted(changed.pairs, 'pair')} with readings; "
        f"clusters are sources, or the series of one source. {_INTERVALS} {changed.shift.about}"
    )
    return ReportTable("changed", "What changed: forecasts and readings", columns, tuple(rows), note)


def _lags_table(changed: Changed) -> ReportTable:
    heads = (
        ("lag", "lag"), ("n", "clusters", COUNT), ("base", "base", _SHARE), ("new", "new", _SHARE),
        ("moved", "change", _MASS), ("ci", "interval", Format("span", decimals=3)),
    )  # fmt: skip
    columns = tuple(TableColumn(*head) for head in heads)
    rows = []
    for name, was, now, moved in changed.lags:
        point, *ends = moved.interval
        rows.append(TableRow.of(columns, (name, moved.n, was, now, point, Span(*ends)), key=name))
    note = f"Mean share of a row's importance in each lag bin; the largest changes of the median cluster. {_INTERVALS}"
    return ReportTable("changed_lags", "Lags that gained or lost importance", columns, tuple(rows), note)
