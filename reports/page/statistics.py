"""The statistics of every selection that a report page can show, computed once; the page's script looks them up.

A selection is any combination of the page's filters. Combinations that select the same runs are stored once: a filter
on the domain adds nothing to one on the dataset, which has one domain.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from hrx.records.quantities import Floats, Ints
from hrx.records.record import DONE
from hrx.reports.figures import bin_medians, central_limits
from hrx.reports.page.data import Json, PageRuns, rounded
from hrx.reports.runs import CONFIGURATION, SEEDS, beats_naive, beats_seasonal
from hrx.reports.statistics import clustered_median, fraction_positive, median, median_interval, sorted_codes
from hrx.reports.summary import finding
from hrx.reports.text import number_or_none

MOST_GROUPS = 20_000
"""Groups of one page. A combination of filters that would exceed it is not computed, and the page says so."""
DIGITS = 9
"""Significant digits of a statistic on the page, which prints three."""
QUANTITIES = ("g_own", "g_shuffled", "g_margin", "rank")
OWN, MARGIN = 0, 2
CLUSTERS = {"cluster_dataset": "dataset", "cluster_series": "series_fingerprint"}
"""What the intervals of a verdict resample, and the columns of the record that it comes from."""
JUDGED = frozenset({"model", "backbone"})
"""Groupings whose groups have a verdict."""
SCOPES = ("yes", "all", "no")
"""The values of the filter "beats naive"."""

Names = tuple[str, ...]


class _Group(NamedTuple):
    """The folded values `(n, 4)` of one group, its codes joined by spaces, and the clusters of its configurations."""

    codes: str
    values: Floats
    clusters: Ints
    """`(n, 2)`: dataset and series."""


class PageStatistics:
    """The statistics of the groups of all runs, and of every combination of groupings.

    A group is given for three scopes: runs that beat naive (`yes`), all scored runs (`all`) and runs that do not beat
    naive (`no`). Seeds are folded within a group and scope, as in every table.
    """

    def __init__(self, runs: PageRuns, most_groups: int | None = None):
        frame = runs.frame
        self._codes = pd.DataFrame({name: runs.texts[name].codes for name in runs.groupings}, dtype="int64")
        table = frame[list(QUANTITIES)].astype("float64")
        table = table.assign(
            beats=beats_naive(frame),
            seasonal=beats_seasonal(frame),
            once=~frame.duplicated([*CONFIGURATION, *SEEDS]),  # a run can be stored with a sweep and without
            configuration=frame.groupby(list(CONFIGURATION), sort=False, dropna=False).ngroup(),
            **{to: sorted_codes(frame[of].to_numpy(dtype=object)) for to, of in CLUSTERS.items()},
            **self._codes,
        )
        scored = table[(frame["status"] == DONE).to_numpy(dtype=bool)]
        self._scopes = {"yes": scored[scored["beats"]], "all": scored, "no": scored[~scored["beats"]]}
        self._computed = _reduce(self._codes, MOST_GROUPS if most_groups is None else most_groups)
        # A verdict is one of a model or of a backbone: other groups have none, which saves their resampling.
        self._judged = {found for names, found in self._computed.items() if not JUDGED.isdisjoint(names)}
        self._findings: dict[tuple[str, str], int] = {}
        self._levels: dict[str, int] = {}

    def as_json(self) -> Json:
        """`computed`, `groups`, `findings`, `levels` and `rank`.

        - `computed`: for each combination of groupings the smaller one that has the same groups, or null where the
          page would become too large. Groupings are joined by spaces.
        - `groups`: `{groupings: {codes: [share that beats naive, share that beats the season, yes, all, no]}}`. Each
          scope is `[n, g_own, low, high, g_shuffled, g_margin, low, high, share of g_margin above zero, rank, bins,
          verdict]`, or null without runs: medians with their plain intervals, the medians `[rank, g_margin]` of bins by
          rank, and for runs of a model that beat naive the verdict with the intervals that it uses, which resample
          datasets, then series: `[finding, low and high of g_own, low and high of g_margin, levels]`.
        - `findings`: `[tone, headline]` of each verdict; `levels`: sentences on what its intervals resample.
        - `rank`: the points of the plot of gain against rank.
        """
        names = [one for one in dict.fromkeys(self._computed.values()) if one is not None]
        return {
            "computed": {" ".join(a): None if b is None else " ".join(b) for a, b in self._computed.items()},
            "groups": {" ".join(one): self._by(one) for one in names},
            "findings": [list(one) for one in self._findings],
            "levels": list(self._levels),
            "rank": {name: _rank_points(runs) for name, runs in self._scopes.items()},
        }

    def _by(self, names: Names) -> Json:
        """The groups by some groupings, each with its shares and scopes."""
        scored = self._scopes["all"]
        judged = ("yes",) if names in self._judged else ()
        scopes = [
            {group.codes: self._statistics(group, judged=name in judged) for group in _folded(part, names)}
            for name, part in self._scopes.items()
        ]
        by = scored.groupby(list(names) or np.zeros(len(scored), dtype=np.int64))
        shares = by[["beats", "seasonal"]].mean()
        rows = zip(_joined(shares.reset_index()[list(names)]), shares.to_numpy(dtype=np.float64), strict=True)
        return {codes: [*map(_short, both), *(scope.get(codes) for scope in scopes)] for codes, both in rows}

    def _statistics(self, group: _Group, *, judged: bool) -> list[object]:
        own, shuffled, margin, rank = group.values.T
        n = int(np.isfinite(margin).sum())
        of_own, of_margin = median_interval(own), median_interval(margin)
        figures = (*of_own, median(shuffled), *of_margin, fraction_positive(margin), median(rank))
        both = np.isfinite(rank) & np.isfinite(margin)
        bins = [[_short(a), _short(b)] for a, b in bin_medians(rank[both], margin[both])]
        return [n, *map(_short, figures), bins, self._verdict(group, n) if judged else None]

    def _verdict(self, group: _Group, n: int) -> list[object]:
        own, margin = (clustered_median(group.values[:, at], *group.clusters.T) for at in (OWN, MARGIN))
        number = self._findings.setdefault(finding(n, own, margin), len(self._findings))
        ends = map(_short, (own.low, own.high, margin.low, margin.high))
        return [number, *ends, self._levels.setdefault(margin.levels, len(self._levels))]


def _reduce(codes: pd.DataFrame, most_groups: int) -> dict[Names, Names | None]:
    """For each combination of columns the smallest one with the same groups; None beyond `most_groups` in total."""
    sizes: dict[Names, int] = {(): 1}
    found: dict[Names, Names | None] = {(): ()}
    total = 1
    for count in range(1, len(codes.columns) + 1):
        for names in combinations(codes.columns, count):
            sizes[names] = len(codes.drop_duplicates(list(names)))
            # A column that splits none of the groups of the others can be left out.
            fewer = (part for part in combinations(names, count - 1) if sizes[part] == max(1, sizes[names]))
            same = next(fewer, None)
            if same is not None:
                found[names] = found[same]
                continue
            total += sizes[names]
            found[names] = names if total <= most_groups else None
    return found


def _joined(codes: pd.DataFrame) -> list[str]:
    """The codes of each row, joined by spaces; without columns, the empty text of the group of all runs."""
    return [" ".join(map(str, one)) for one in codes.to_numpy()]


def _folded(runs: pd.DataFrame, names: Names) -> Iterator[_Group]:
    """The groups of some runs with their seeds folded: one row of values per configuration."""
    if runs.empty:
        return
    by_configuration = runs[runs["once"]].groupby([*names, "configuration"])
    folded = by_configuration[list(QUANTITIES)].mean()
    clusters = by_configuration[list(CLUSTERS)].first().to_numpy(dtype=np.int64)  # a configuration has one series
    groups = folded.reset_index()[list(names)]
    starts = np.flatnonzero(~groups.duplicated()) if names else np.array([0])
    parts = (np.split(rows, starts[1:]) for rows in (folded.to_numpy(dtype=np.float64), clusters))
    for codes, values, of in zip(_joined(groups.iloc[starts]), *parts, strict=True):
        yield _Group(codes, values, of)


def _rank_points(runs: pd.DataFrame) -> Json:
    """Rank and `g_margin` of every configuration, a run of each, and the limits of the gain's axis."""
    folded = runs[runs["once"]].groupby("configuration")[["rank", "g_margin"]].mean().dropna()
    rank, gain = folded.to_numpy(dtype=np.float64).T
    first = runs[~runs["configuration"].duplicated()].reset_index(names="run").set_index("configuration")
    limits = list(central_limits(gain)) if len(gain) else None
    shown = first.loc[folded.index, "run"].tolist()
    return {"run": shown, "rank": rounded(rank), "gain": rounded(gain), "limits": limits}


def _short(value: float) -> float | None:
    known = number_or_none(value)
    return None if known is None else float(f"{known:.{DIGITS}g}")
