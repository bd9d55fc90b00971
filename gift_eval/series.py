"""A series, the variates of one item together, a dataset of them, and the rule for missing values.

The sources give a dataset its stored series, gaps included. The dataset makes a `Series` of one of them, or a
`MultivariateSeries` of all series of an item, on request. A `TimedSeries` has the time of each value as well: an
explanation names its inputs and its forecast steps by them.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from hrx.errors import HrxError
from hrx.records.quantities import Bools, Floats, Ints

from .frequency import NumberGrid, Stamps, TimeGrid

MOST_LENGTH = 2**27
"""Values of one series: a gibibyte."""
EXACT = 2**53
"""Beyond it, float64 does not hold every whole number."""
FINITE = "a value lies between -1.8e308 and 1.8e308. Correct it, or leave it empty where it is missing."
ROUNDED = (
    "beyond 2^53 (9007199254740992) a 64-bit float rounds whole numbers, so their differences would be lost. Subtract "
    "a constant from the series, or divide it."
)


Role = Literal["past", "future", "static"]
"""Known up to now, known ahead too, or one value per series."""
ROLES: tuple[Role, ...] = ("past", "future", "static")
Kind = Literal["number", "two-valued", "categorical"]


class UnusableSeries(HrxError):
    """A series that cannot be used as requested; other series of the dataset may be usable."""


class DamagedDataset(HrxError):
    """Stored files that cannot be read as a dataset; other datasets beside it may be intact."""


class FilledValues(NamedTuple):
    """`values` (T,) without gaps, the number of filled values, the number of steps dropped before the first
    observation, and `observed`, which is false where a value was filled in.
    """

    values: Floats
    missing: int
    dropped: int
    observed: Bools


class Covariate(NamedTuple):
    """What is known beside a series, in its own unit, NaN where it is missing: nothing is filled in.

    `values` are (T,) of one known up to now, (T + F,) of one known F steps ahead, (1,) of a static one. Categories are
    the codes 0, 1, … of `labels`.
    """

    name: str
    role: Role
    values: Floats
    labels: tuple[str, ...] = ()
    others: tuple[float, ...] = ()
    """Values of a static one over all series."""

    @property
    def kind(self) -> Kind:
        """What its values are, over all that is known of them."""
        if self.labels:
            return "categorical"
        return "two-valued" if np.unique(self.values[~np.isnan(self.values)]).size <= 2 else "number"

    def between(self, start: int, stop: int) -> "Covariate":
        """Return it for the steps `start` to before `stop` of its series; what is known ahead stays."""
        chosen = slice(None) if self.role == "static" else slice(start, stop if self.role == "past" else None)
        return self._replace(values=self.values[chosen])


class OfficialSplit(NamedTuple):
    """Split of a benchmark, in rows: those before `train` scale a series, `test` to `end` is its test region.

    With `lookback_inside`, windows do not read rows before the test region. Where the benchmark has windows of its own,
    forecasts begin at its `starts` only.
    """

    train: int
    test: int
    end: int
    lookback_inside: bool = False
    starts: tuple[int, ...] = ()

    def after(self, dropped: int) -> "OfficialSplit":
        """Return the same split of a series without its first `dropped` rows."""
        train, test, end = (max(row - dropped, 0) for row in (self.train, self.test, self.end))
        starts = tuple(start - dropped for start in self.starts)
        return OfficialSplit(train, test, end, self.lookback_inside, starts)


def fill(values: ArrayLike) -> FilledValues:
    """(T',) -> (T,): NaN is missing, as is a masked value. Leading ones are dropped; every other one repeats the last
    observed value, so no window sees its own future through a filled gap. An infinite value is refused.
    """
    given = np.asarray(values)
    whole = given.dtype.kind in "iu" or (given.dtype.kind == "O" and all(isinstance(one, int) for one in given.flat))
    if whole and (reason := inexact_integer(given)):
        raise UnusableSeries(reason)
    raw = np.asarray(given, dtype=np.float64)
    if isinstance(values, np.ma.MaskedArray):
        raw = np.where(np.ma.getmaskarray(values), np.nan, raw)
    wrong = np.flatnonzero(np.isinf(raw))  # 1e400 is infinite
    if wrong.size:
        others = f", and {wrong.size - 1} more are infinite" if wrong.size > 1 else ""
        raise UnusableSeries(f"value {wrong[0] + 1} is {raw[wrong[0]]}{others}: {FINITE}")
    observed = ~np.isnan(raw)
    if not observed.any():
        raise UnusableSeries(
            f"all {raw.size} values are missing." if raw.size else "the series is empty: it has no values."
        )
    first = int(observed.argmax())
    raw, observed = raw[first:], observed[first:]
    last_observed = np.maximum.accumulate(np.where(observed, np.arange(raw.size), 0))
    return FilledValues(raw[last_observed], int(raw.size - observed.sum()), first, observed)


def inexact_integer(values: Ints) -> str:
    """Return why whole numbers (T',) that float64 does not hold are refused; empty where it holds them all."""
    if not values.size or (values.min() >= -EXACT and values.max() <= EXACT):
        return ""
    wrong = np.flatnonzero(values.astype(np.float64).astype(object) != values.astype(object))
    return f"value {wrong[0] + 1} is {values[wrong[0]]}: {ROUNDED}" if wrong.size else ""


@dataclass(frozen=True, eq=False)
class _FrozenSeries:
    """Read-only float64 `values` without gaps, that can be named and fingerprinted.

    `missing` values were filled in, and `observed` is false there; None where every value was observed. The first
    `dropped` steps, before the first observation, were removed. `official` is the split of a benchmark that has one.
    `names` are those of the columns of values, `covariates` what is known beside them at the same steps.
    """

    dataset: str
    item: str
    frequency: str
    season: int
    domain: str
    values: Floats
    missing: Any
    dropped: int = 0
    observed: Bools | None = None
    official: OfficialSplit | None = None
    names: tuple[str, ...] = ()
    covariates: tuple[Covariate, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _read_only(self.values))
        frozen = tuple(one._replace(values=_read_only(one.values)) for one in self.covariates)
        object.__setattr__(self, "covariates", frozen)

    @property
    def identity(self) -> list[object]:
        """What the fingerprint covers beside the values and the covariates."""
        split = self.official and [*self.official[:4], *([list(self.official.starts)] if self.official.starts else [])]
        return [self.dataset, self.item, self.frequency, *([split] if split else [])]

    @property
    def label(self) -> str:
        """Name in messages."""
        return _label(self.dataset, self.item)

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hex, of `identity` and every value, those of the covariates included."""
        content = hashlib.sha256(json.dumps(self.identity).encode() + b"\0" + self.values.astype("<f8").tobytes())
        for one in self.covariates:
            content.update(json.dumps([one.name, one.role, one.labels]).encode() + b"\0")
            content.update(one.values.astype("<f8").tobytes())
        return content.hexdigest()


@dataclass(frozen=True, eq=False)
class Series(_FrozenSeries):
    """Values (T,) of one series."""

    missing: int


@dataclass(frozen=True, eq=False)
class MultivariateSeries(_FrozenSeries):
    """Values (C, T) of the variates of one item on a common time axis; each has an entry in `names` and `missing`.

    The steps before each variate has been observed once are dropped, so an item can be shorter than its longest variate
    read alone.
    """

    missing: tuple[int, ...]

    @property
    def identity(self) -> list[object]:
        return [*super().identity, list(self.names)]


class StoredSeries(NamedTuple):
    """A series as it is stored: `values` (T',) with its gaps, of one `variate` where its item has several.

    The variates of a wide table have an empty item. `reason` says why a series cannot be used. `start` is the time of
    the first value, where the source has one: no run depends on it, explanations name their inputs by it. `column` is
    the name of the values where it is not that of the series, `official` the split of a series with its own.
    """

    item: str
    values: Floats
    variate: str = ""
    reason: str = ""
    start: datetime | None = None
    column: str = ""
    covariates: tuple[Covariate, ...] = ()
    official: OfficialSplit | None = None

    @property
    def name(self) -> str:
        """Name of the series in its dataset: the item, the variate, or both: `T1[0]`."""
        return f"{self.item}[{self.variate}]" if self.item and self.variate else self.item or self.variate

    def until(self, stop: int) -> "StoredSeries":
        """Return it without the steps from `stop` on, which covariates known ahead keep."""
        covariates = tuple(one.between(0, stop) for one in self.covariates)
        return self._replace(values=self.values[:stop], covariates=covariates)


@dataclass(frozen=True)
class Dataset:
    """Named series of one frequency, read one at a time.

    Every item has `variates` series: item i has the series i·variates … (i+1)·variates − 1. `row` returns one stored
    series, `stream` all of them, `sizes` their lengths without reading values. `note` states what was inferred.
    `catalogued` marks a folder of GIFT-Eval that the catalogue lists. `official` is the split of its benchmark.
    The variates of a `joint` one are forecast together.

    A dataset that cannot be read stays in the list with the reason in `damage` and a count of 0; its `read` raises it.
    """

    name: str
    frequency: str
    season: int
    domain: str
    count: int
    row: Callable[[int], StoredSeries] = field(repr=False, compare=False)
    damage: str = ""
    variates: int = 1
    note: str = ""
    stream: Callable[[], Iterator[StoredSeries]] | None = field(default=None, repr=False, compare=False)
    sizes: Callable[[], Sequence[int]] | None = field(default=None, repr=False, compare=False)
    catalogued: bool = False
    official: OfficialSplit | None = None
    joint: bool = False

    @classmethod
    def damaged(cls, name: str, reason: str) -> "Dataset":
        """Return the entry of a dataset that cannot be read: its name and the reason."""
        return cls(name, frequency="", season=1, domain="", count=0, row=[].__getitem__, damage=reason)

    @property
    def items(self) -> int:
        """Number of items; equal to the number of series where items have one variate."""
        return self.count // self.variates

    def rows(self) -> Iterator[StoredSeries]:
        """Return every stored series in order, in one pass where the source has one."""
        return self.stream() if self.stream else map(self._row, range(self.count))

    def lengths(self) -> Sequence[int]:
        """Return the stored length of every series, gaps included."""
        return self.sizes() if self.sizes else [self.row(index).values.size for index in range(self.count)]

    def read(self, index: int) -> Series:
        """Return the series at `index`, 0 … count − 1, its gaps filled."""
        self._check(index, self.count, "series")
        row = self._row(index)
        with naming(_label(self.name, row.name)):
            return _series(row, (self.name, self.frequency, self.season, self.domain), self.official)

    def read_item(self, index: int) -> MultivariateSeries:
        """Return the variates of the item at `index`, 0 … items − 1, together, their gaps filled."""
        self._check(index, self.items, "items")
        rows = [self._row(index * self.variates + variate) for variate in range(self.variates)]
        with naming(_label(self.name, rows[0].item)):
            return _item(rows, (self.name, self.frequency, self.season, self.domain))

    def _row(self, index: int) -> StoredSeries:
        row = self.row(index)
        if row.reason:
            raise UnusableSeries(f"{_label(self.name, row.name)}: {row.reason}")
        return row

    def _check(self, index: int, count: int, kind: str) -> None:
        if self.damage:
            raise DamagedDataset(self.damage)
        if not 0 <= index < count:
            raise IndexError(f"{self.name} has {count} {kind}; there is no number {index}")


_About = tuple[str, str, int, str]
"""Name, frequency, season and domain of a dataset."""


def _series(row: StoredSeries, about: _About, official: OfficialSplit | None = None) -> Series:
    """Return a stored series, its gaps filled."""
    split, filled, (dataset, frequency, season, domain) = row.official or official, fill(row.values), about
    split = split.after(filled.dropped) if split else None
    covariates = tuple(one.between(filled.dropped, row.values.size) for one in row.covariates)
    names = (row.column or row.variate or row.item,)
    return Series(dataset, row.name, frequency, season, domain, *filled, split, names, covariates)


def _item(rows: Sequence[StoredSeries], about: _About) -> MultivariateSeries:
    """Return the stored variates of one item together, their gaps filled."""
    lengths = sorted({row.values.size for row in rows})
    if len(lengths) > 1:
        raise UnusableSeries(f"its variates have different lengths, {lengths[0]} to {lengths[-1]} values.")
    every = []
    for row in rows:
        with naming(f"variate {row.variate}") if row.variate else nullcontext():
            every.append(_series(row, about))
    # All end together; the steps before each has been observed once are dropped.
    last = max(every, key=lambda one: one.dropped)
    values = np.stack([one.values[-last.values.size :] for one in every])
    observed = np.stack([np.asarray(one.observed)[-last.values.size :] for one in every])
    return MultivariateSeries(
        *(last.dataset, rows[0].item, last.frequency, last.season, last.domain, values),
        missing=tuple((~observed).sum(axis=1).tolist()),
        dropped=last.dropped,
        observed=observed,
        official=last.official,
        names=tuple(row.variate or row.item for row in rows),
        covariates=last.covariates,
    )


class TimedSeries(NamedTuple):
    """A series with the time of each value.

    `times` (T,) are None where it has none. Position 0 of the `grid` is the first value of the series as it came,
    before leading missing values were dropped. `note` is what the reader of an explanation must know of how the series
    was read. Where several targets are forecast together, `joint` holds them, and `series` the first.
    """

    series: Series
    times: pd.Index | None
    grid: TimeGrid | NumberGrid | None
    note: str = ""
    joint: MultivariateSeries | None = None

    def after(self, count: int) -> pd.Index | None:
        """Return the times of the next `count` steps after the end."""
        if self.grid is None:
            return None
        length = self.series.dropped + self.series.values.size
        try:
            return self.grid.times(length, length + count)
        except (ValueError, OverflowError):  # beyond the years of pandas
            return None


def place(
    rows: Sequence[StoredSeries],
    dataset: str,
    frequency: str,
    season: int,
    grid: TimeGrid | NumberGrid | None = None,
    stamps: Stamps | None = None,
    note: str = "",
) -> TimedSeries:
    """Return a stored series, or several variates together, up to the last observed value, on the grid of the first;
    `stamps` are the dates of the rows, where only some steps have one.
    """
    size = rows[0].values.size
    stop = max((end for end in map(last_observed, rows) if end), default=size)
    ended = [row.until(stop) for row in rows]
    name = rows[0].name if len(rows) == 1 else rows[0].item
    if stop < size and not any(one.role == "future" for one in rows[0].covariates):
        late = f"{name}: the forecast starts after the last observed value, {size - stop} steps before the end"
        note = "; ".join(filter(None, [note, late]))
    about = (dataset, frequency, season, "")
    with naming(f"series {name}"):
        series, joint = _series(ended[0], about), _item(ended, about) if len(rows) > 1 else None
    if grid is None:
        return TimedSeries(series, None, None, note, joint)
    times: pd.Index = grid.times(0, stop)
    if isinstance(grid, TimeGrid) and stamps is not None:
        times = grid.times_of(stamps, stop)
    return TimedSeries(series, times[(joint or series).dropped :], grid, note, joint)


def last_observed(row: StoredSeries) -> int:
    """Return the number of steps up to the last observed value, 0 where there is none."""
    values = np.ma.filled(np.ma.asarray(row.values).astype(np.float64), np.nan)
    return int(np.flatnonzero(~np.isnan(values))[-1]) + 1 if (~np.isnan(values)).any() else 0


def _read_only(values: ArrayLike) -> Floats:
    copy = np.array(values, dtype=np.float64)
    copy.setflags(write=False)
    return copy


def spaced(count: int, n: int) -> tuple[int, ...]:
    """At most `n` evenly spaced indices of 0 … count − 1, first and last included; n = 1 gives the first."""
    if n >= count:
        return tuple(range(count))
    return tuple(int(index) for index in np.rint(np.linspace(0, count - 1, n)))


@contextmanager
def naming(label: str) -> Iterator[None]:
    """Put the name of a series or dataset before the reason why it cannot be used."""
    try:
        yield
    except (UnusableSeries, DamagedDataset) as error:
        raise type(error)(f"{label}: {error}") from error


def _label(dataset: str, item: str) -> str:
    return f"{dataset} series {item}" if item else dataset
