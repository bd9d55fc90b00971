"""What the page's script works on: the runs column by column, and the statistics of every unfiltered group.

Texts stand once and are referred to by number, so that 16,729 runs stay small. Names are cleaned here, before
they reach any page: what a browser would obey instead of show is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from hrx.audit.ledger.record import DONE
from hrx.reports.layout import clean
from hrx.reports.statistics import CONFIGURATION, finite, fraction_positive, median_interval, possible
from hrx.reports.summary import GAINS
from hrx.reports.words import number_or_none

GROUPINGS = ("model", "dataset", "domain", "setting", "estimator", "leakage")
"""What the runs can be filtered and grouped by."""
NUMBERS = (
    *(column for gain in GAINS for column in (gain, f"{gain}_se")),
    "rank",
    "effective_lookback",
    "mse",
    "mse_zero",
    "mse_last",
    "mse_seasonal",
    "parity",
)
KEY_DIGITS = 16
"""Digits of a run's key that the page shows: enough to find it in the ledger."""
_UNKNOWN = "(unknown)"

Json = dict[str, object]


class Coded(NamedTuple):
    """A column of texts: each distinct one once, and its number for every run."""

    values: list[str]
    codes: list[int]

    def as_json(self) -> Json:
        return {"values": self.values, "codes": self.codes}


class Runs(NamedTuple):
    """The runs of a ledger, ready for the page."""

    frame: pd.DataFrame
    texts: dict[str, Coded]
    configuration: list[int]
    """Runs with the same number differ in their seeds only, and are folded before anything is counted."""

    def as_json(self) -> Json:
        """Every column that the page shows or filters by; null where there is no number, and a text if infinite."""
        frame = self.frame
        return {
            "count": len(frame),
            "key": [str(key)[:KEY_DIGITS] for key in frame["key"]],
            "texts": {name: coded.as_json() for name, coded in self.texts.items()},
            "numbers": {name: numbers(frame[name]) for name in NUMBERS},
            "beats_naive": numbers(frame["beats_naive"]),
            "seed": numbers(frame["seed"]),
            "configuration": self.configuration,
            "gains": list(GAINS),
            "groupings": list(GROUPINGS),
        }


def arrange(frame: pd.DataFrame) -> Runs:
    """The runs of `read` with the numbers that are possible, and with their texts coded."""
    frame = possible(frame)
    columns: dict[str, Iterable[object]] = {
        "model": model_labels(frame),
        "setting": [
            f"{lookback}x{horizon}" for lookback, horizon in zip(frame["lookback"], frame["horizon"], strict=True)
        ],
        **{name: frame[name] for name in ("dataset", "domain", "estimator", "leakage", "series", "status", "reason")},
    }
    configuration = frame.groupby(list(CONFIGURATION), sort=False, dropna=False).ngroup()
    return Runs(frame, {name: code(column) for name, column in columns.items()}, configuration.astype(int).tolist())


def model_labels(frame: pd.DataFrame) -> list[str]:
    """What each run's model is called here: its name, with as much of its weights' hash as tells several apart."""
    pairs = list(zip(frame["model"].astype(str), frame["fingerprint"].astype(str), strict=True))
    weights: dict[str, set[str]] = {}
    for model, fingerprint in pairs:
        weights.setdefault(model, set()).add(fingerprint)
    digits = {model: _telling(marks) for model, marks in weights.items()}
    return [f"{model} ({mark[: digits[model]]})" if digits[model] else model for model, mark in pairs]


def _telling(marks: set[str]) -> int:
    """How many first characters tell the hashes apart, at least eight; none where there is only one."""
    if len(marks) == 1:
        return 0
    return next(n for n in (8, 16, max(map(len, marks))) if len({mark[:n] for mark in marks}) == len(marks))


def code(column: Iterable[object]) -> Coded:
    """Numbers for the distinct texts of a column, in the order in which they come."""
    known: dict[object, int] = {}
    codes = [known.setdefault(None if _absent(value) else value, len(known)) for value in column]
    return Coded(_distinct(_UNKNOWN if value is None else clean(value) for value in known), codes)


def _distinct(names: Iterable[str]) -> list[str]:
    """The names with a number where cleaning made two of them alike: the page tells its groups by name."""
    taken: dict[str, int] = {}
    found = []
    for name in names:
        taken[name] = taken.get(name, 0) + 1
        found.append(name if taken[name] == 1 else f"{name} ({taken[name]})")
    return found


def _absent(value: object) -> bool:
    return value is None or value is pd.NA or value == "" or (isinstance(value, float) and np.isnan(value))


def numbers(column: pd.Series) -> list[float | str | None]:
    """A column as JSON has it, which knows no infinite number: that is a text."""
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return [None if math.isnan(value) else str(value) if math.isinf(value) else value for value in values.tolist()]


class Statistic(NamedTuple):
    """One gain over one group, as the tables have it."""

    median: float | None
    low: float | None
    high: float | None
    positive: float | None
    n: int


def statistics(runs: Runs) -> Json:
    """For each scope and grouping, the gains of each group: `[scope][grouping][code][gain]`.

    The scopes are all scored runs, and those that beat naive. Groups without a scored run have none.
    """
    frame = runs.frame
    scored = (frame["status"] == DONE).to_numpy(dtype=bool)
    beating = scored & (frame["beats_naive"] == 1).fillna(False).to_numpy(dtype=bool)
    codes = pd.DataFrame({name: runs.texts[name].codes for name in GROUPINGS})
    return {
        scope: {"all": _overall(runs, chosen), **{name: _grouped(runs, codes[name], chosen) for name in GROUPINGS}}
        for scope, chosen in (("scored", scored), ("beating", beating))
    }


def _overall(runs: Runs, chosen: np.ndarray) -> dict[str, dict[str, Statistic]]:
    return _grouped(runs, pd.Series(np.zeros(len(runs.frame), dtype=int)), chosen)


def _grouped(runs: Runs, codes: pd.Series, chosen: np.ndarray) -> dict[str, dict[str, Statistic]]:
    table = pd.DataFrame({"group": codes.to_numpy(), "configuration": runs.configuration})
    for gain in GAINS:
        table[gain] = runs.frame[gain].to_numpy(dtype=np.float64)
    folded = table[chosen].groupby(["group", "configuration"], sort=False)[list(GAINS)].mean()
    return {
        str(group): {gain: _statistic(values[gain]) for gain in GAINS}
        for group, values in folded.groupby("group", sort=True)
    }


def _statistic(values: Sequence[float] | pd.Series) -> Statistic:
    kept = finite(values)
    median, low, high = map(number_or_none, median_interval(kept))
    return Statistic(median, low, high, number_or_none(fraction_positive(kept)), len(kept))
