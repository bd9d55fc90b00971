"""A series, the variates of one item together, a dataset of them, and the rule for missing values.

Where series are stored is left to `store`, `tables` and `sample`: they hand a dataset its rows as they are found,
and the dataset makes a `Series` of one row, or a `MultivariateSeries` of an item's rows, when it is asked for.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hrx.errors import HrxError

Floats = NDArray[np.float64]


class UnusableSeries(HrxError):
    """The series itself does not admit what was asked of it; other series may."""


class DamagedDataset(HrxError):
    """What is stored cannot be read as a dataset; other datasets beside it may be fine."""


class Filled(NamedTuple):
    """`values` (T,) without gaps, how many of them were filled in, and how many before them were dropped."""

    values: Floats
    missing: int
    dropped: int


def fill(values: ArrayLike) -> Filled:
    """(T',) -> (T,): a value that is not finite is missing. Leading ones are dropped; every other repeats the
    last observed value, so that no window can see its own future through a filled gap.
    """
    raw = np.asarray(values, dtype=np.float64)
    observed = np.isfinite(raw)
    if not observed.any():
        raise UnusableSeries(
            f"all {raw.size} values are missing." if raw.size else "the series is empty: it has no values."
        )
    first = int(observed.argmax())
    raw, observed = raw[first:], observed[first:]
    last_observed = np.maximum.accumulate(np.where(observed, np.arange(raw.size), 0))
    return Filled(raw[last_observed], int(raw.size - observed.sum()), first)


@dataclass(frozen=True, eq=False)
class Series:
    """One series without gaps: `values` (T,) float64, read-only, of which `missing` were filled in; `dropped`
    missing ones before the first observation are gone.
    """

    dataset: str
    item: str
    frequency: str
    season: int
    domain: str
    values: Floats
    missing: int
    dropped: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _kept(self.values))

    @property
    def label(self) -> str:
        """How sentences name this series."""
        return _label(self.dataset, self.item)

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hex, of what the series is called and of every value."""
        return _fingerprint([self.dataset, self.item, self.frequency], self.values)


@dataclass(frozen=True, eq=False)
class MultivariateSeries:
    """The variates of one item on one clock: `values` (C, T) float64, read-only, without gaps.

    `names` and `missing` have one entry per variate. The steps before every variate has been observed once,
    `dropped` of them, are gone, so an item can be shorter than its longest variate read alone.
    """

    dataset: str
    item: str
    names: tuple[str, ...]
    frequency: str
    season: int
    domain: str
    values: Floats
    missing: tuple[int, ...]
    dropped: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _kept(self.values))

    @property
    def label(self) -> str:
        """How sentences name this item."""
        return _label(self.dataset, self.item)

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hex, of what the item and its variates are called and of every value."""
        return _fingerprint([self.dataset, self.item, self.frequency, list(self.names)], self.values)


class Row(NamedTuple):
    """A series as it is stored: `values` (T',) with its gaps, of one `variate` where its item has several.

    The variates of a table of which each row of the file is one step have no item: then it is empty.
    """

    item: str
    values: Floats
    variate: str = ""

    @property
    def name(self) -> str:
        """What the series is called in its dataset: the item, the variate, or both: `T1[0]`."""
        return f"{self.item}[{self.variate}]" if self.item and self.variate else self.item or self.variate


def _no_row(index: int) -> Row:
    raise IndexError(index)


def _no_past(item: int) -> Floats:
    return np.empty((0, 0))


@dataclass(frozen=True)
class Dataset:
    """Named series of one frequency, read one at a time.

    Every item has `variates` series: those of item i are the series i·variates … (i+1)·variates − 1. `row` gives
    a series as it is stored, `past` the past covariates (F, T') of an item. `note` says what had to be inferred.

    A dataset that cannot be read still stands in the list, with the reason in `damage` and a count of 0, so
    that whoever plans work can report it; its `read` raises the same reason.
    """

    name: str
    frequency: str
    season: int
    domain: str
    count: int
    row: Callable[[int], Row] = field(repr=False, compare=False)
    damage: str = ""
    variates: int = 1
    note: str = ""
    past: Callable[[int], Floats] = field(default=_no_past, repr=False, compare=False)
    stream: Callable[[], Iterator[Row]] | None = field(default=None, repr=False, compare=False)
    catalogued: bool = False
    """Whether it is a folder of GIFT-Eval that the catalogue knows."""

    @classmethod
    def damaged(cls, name: str, reason: str) -> "Dataset":
        """The entry of a dataset that cannot be read; nothing but its name is known."""
        return cls(name, frequency="", season=1, domain="", count=0, row=_no_row, damage=reason)

    @property
    def items(self) -> int:
        """How many items there are; as many as series where none has several variates."""
        return self.count // self.variates

    def rows(self) -> Iterator[Row]:
        """Every series as it is stored, in order: for who needs all, quicker than one by one where it can be."""
        return self.stream() if self.stream else map(self.row, range(self.count))

    def read(self, index: int) -> Series:
        """The series at `index`, 0 … count − 1, its gaps filled."""
        self._check(index, self.count, "series")
        row = self.row(index)
        with naming(_label(self.name, row.name)):
            filled = fill(row.values)
        return Series(self.name, row.name, self.frequency, self.season, self.domain, *filled)

    def read_item(self, index: int) -> MultivariateSeries:
        """The variates of the item at `index`, 0 … items − 1, together, their gaps filled."""
        self._check(index, self.items, "items")
        rows = [self.row(index * self.variates + variate) for variate in range(self.variates)]
        names = tuple(row.variate or row.item for row in rows)
        with naming(_label(self.name, rows[0].item)):
            values, missing, dropped = _together(rows)
        about = (self.frequency, self.season, self.domain)
        return MultivariateSeries(self.name, rows[0].item, names, *about, values, missing, dropped)

    def read_past(self, index: int) -> Floats:
        """(F, T): the past covariates (`past_feat_dynamic_real`) of an item, beside the values of `read_item`.

        They are as stored, NaN where missing. F is 0 where the dataset has none.
        """
        item = self.read_item(index)
        past, length = self.past(index), item.values.shape[1]
        if past.shape[0] == 0:
            return np.empty((0, length))
        if past.shape[1] != item.dropped + length:
            raise UnusableSeries(
                f"{item.label}: its past covariates have {past.shape[1]} values, its target {item.dropped + length}."
            )
        return past[:, item.dropped :]

    def _check(self, index: int, count: int, kind: str) -> None:
        if self.damage:
            raise DamagedDataset(self.damage)
        if not 0 <= index < count:
            raise IndexError(f"{self.name} has {count} {kind}; there is no number {index}")


def spaced(count: int, n: int) -> tuple[int, ...]:
    """At most `n` evenly spaced indices of 0 … count − 1, first and last included; n = 1 gives the first."""
    if n >= count:
        return tuple(range(count))
    return tuple(int(index) for index in np.rint(np.linspace(0, count - 1, n)))


@contextmanager
def naming(label: str) -> Iterator[None]:
    """Put the series' name before the reason why it is unusable."""
    try:
        yield
    except UnusableSeries as error:
        raise UnusableSeries(f"{label}: {error}") from error


def _together(rows: Sequence[Row]) -> tuple[Floats, tuple[int, ...], int]:
    """Rows of T' values each -> (C, T) without gaps, how many were filled in per row, how many steps were dropped."""
    lengths = sorted({row.values.size for row in rows})
    if len(lengths) > 1:
        raise UnusableSeries(f"its variates have different lengths, {lengths[0]} to {lengths[-1]} values.")
    every = []
    for row in rows:
        with naming(f"variate {row.variate}") if row.variate else nullcontext():
            every.append(fill(row.values))
    dropped = max(filled.dropped for filled in every)
    extra = [dropped - filled.dropped for filled in every]
    missing = tuple(int((~np.isfinite(row.values[dropped:])).sum()) for row in rows)
    return np.stack([filled.values[more:] for filled, more in zip(every, extra, strict=True)]), missing, dropped


def _kept(values: Floats) -> Floats:
    """A copy that nobody can change."""
    copy = np.array(values, dtype=np.float64)
    copy.setflags(write=False)
    return copy


def _fingerprint(identity: list[object], values: Floats) -> str:
    return hashlib.sha256(json.dumps(identity).encode() + b"\0" + values.astype("<f8").tobytes()).hexdigest()


def _label(dataset: str, item: str) -> str:
    return f"{dataset} series {item}" if item else dataset
