"""A series, a dataset of series, and the rule for missing values.

Where series are stored is left to `store` and `sample`: they hand a dataset its rows as they are found, and
the dataset makes a `Series` of one row when it is asked for.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """`values` (T,) without gaps, and how many of them were filled in."""

    values: Floats
    missing: int


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
    return Filled(raw[last_observed], int(raw.size - observed.sum()))


@dataclass(frozen=True, eq=False)
class Series:
    """One series without gaps: `values` (T,) float64, read-only, of which `missing` were filled in."""

    dataset: str
    item: str
    frequency: str
    season: int
    domain: str
    values: Floats
    missing: int

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    @property
    def label(self) -> str:
        """How sentences name this series."""
        return _label(self.dataset, self.item)

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hex, of what the series is called and of every value."""
        identity = json.dumps([self.dataset, self.item, self.frequency])
        return hashlib.sha256(identity.encode() + b"\0" + self.values.astype("<f8").tobytes()).hexdigest()


class Row(NamedTuple):
    """A series as it is stored: `values` (T',) with its gaps."""

    item: str
    values: Floats


@dataclass(frozen=True)
class Dataset:
    """Named series of one frequency, read one at a time.

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

    @classmethod
    def damaged(cls, name: str, reason: str) -> "Dataset":
        """The entry of a dataset that cannot be read; nothing but its name is known."""
        return cls(name, frequency="", season=1, domain="", count=0, row=_no_row, damage=reason)

    def read(self, index: int) -> Series:
        """The series at `index`, 0 … count − 1, its gaps filled."""
        if self.damage:
            raise DamagedDataset(self.damage)
        if not 0 <= index < self.count:
            raise IndexError(f"{self.name} has {self.count} series; there is no series {index}")
        row = self.row(index)
        with naming(_label(self.name, row.item)):
            values, missing = fill(row.values)
        return Series(self.name, row.item, self.frequency, self.season, self.domain, values, missing)


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


def _label(dataset: str, item: str) -> str:
    return f"{dataset} series {item}"


def _no_row(index: int) -> Row:
    raise IndexError(index)
