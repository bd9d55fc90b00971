"""What each channel of the audited runs does to the forecasts, and whether it helps: rows of a table, and a line.

Runs of different outputs are never pooled, nor errors under different treatments of a channel.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from hrx.records.channels import Treatment, from_json
from hrx.records.quantities import Floats
from hrx.reports.runs import fold_seeds
from hrx.reports.statistics import FEWEST_SIGN, LEVEL, Evidence, evidence, holm
from hrx.reports.text import clean, listed, percent, shorten

POINT = "point"
TREATED: tuple[Treatment, ...] = ("withheld", "erased", "rearranged")
"""Treatments that a channel as it is may be compared with; the first that was measured is."""
FOLDED = ("share", "as_is", "treated")
"""Numbers of a run and channel that are means over its seeds."""
Help = Literal["", "helps", "hurts", "no evidence", "too few to tell"]
_CHANNEL = ("channel", "role", "kind", "left_out", "read", "read_from", "share", "as_is", *TREATED)
_MOST, _LONGEST_NAME, _LONGEST_REASON = 3, 20, 60


@dataclass(frozen=True, eq=False)
class ChannelSummary:
    """One channel over some runs of a model and output."""

    name: str
    role: str
    """Empty where the model does not take the channel."""
    kind: str
    output: str
    left_out: str
    """Why the model does not take it."""
    treatment: Treatment | Literal[""]
    """What the error with the channel as it is, is compared with; empty where neither was measured."""
    runs: pd.DataFrame
    """Configurations, with `FOLDED` and `change`: the error under the treatment over that as it is, less one."""
    read_in: int
    measured: int
    """Runs that measured the effect; `read_in` of them read the channel."""
    read_from: int | None
    """First step that it moves in any of them, from 1."""
    corrected: float | None = None
    """P of the sign test after Holm's correction over the channels that were tested with it."""

    def evidence(self, quantity: str) -> Evidence:
        """One value of a column of `runs` per cluster."""
        return evidence(self.runs[quantity], self.runs["dataset"], self.runs["series"])

    @property
    def read(self) -> str:
        """Whether the forecast reads it, from which step on, or why the model does not take it."""
        if self.left_out:
            return f"left out: {self.left_out}"
        if not self.read_in:
            return "not read" if self.measured else "not measured"
        where = "" if self.read_in == self.measured else f" in {self.read_in} of {self.measured} runs"
        return f"read{where}" + (f" from step {self.read_from}" if (self.read_from or 1) > 1 else "")

    @property
    def help(self) -> Help:
        """Whether the error is higher without the channel as it is, where six clusters or more decide it."""
        found = self.evidence("change")
        if not found.n:
            return ""
        if self.corrected is None:
            return "too few to tell"
        side = found.side if self.corrected <= LEVEL else "undecided"
        return "helps" if side == "above" else "hurts" if side == "below" else "no evidence"

    @property
    def says(self) -> str:
        """Part of the line of the first screen."""
        share, helps = self.evidence("share").interval.point, self.help
        parts = [f"{shorten(clean(self.name), _LONGEST_NAME)}: {self.read}"]
        parts += [f"{percent(share)} of the effect"] if self.read_in and not math.isnan(share) else []
        decided = helps in ("helps", "hurts")
        parts += [helps + ("" if self.treatment == "withheld" else f" ({self.treatment})")] if decided else []
        unclear = {"no evidence": "no evidence that it helps", "too few to tell": "too few to tell if it helps"}
        parts += [unclear[helps]] if helps in unclear and self.read_in else []
        return ", ".join(parts)


def channel_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """One row for each channel of each scored run, those that the model does not take included."""
    found = [
        (place, *row)
        for place, stored in enumerate(zip(runs["channel_effects"], runs["channels_left_out"], strict=True))
        for row in _rows_of(*stored)
    ]
    about = pd.DataFrame(found, columns=["place", *_CHANNEL])
    numbers = dict.fromkeys(_CHANNEL[4:], "float64")
    own = runs.iloc[about["place"].to_numpy(dtype=np.int64)].reset_index(drop=True)
    return own.assign(output=own["output"].fillna(POINT), **about[list(_CHANNEL)].astype(numbers))


def _rows_of(effects: object, left_out: object) -> Iterator[tuple[object, ...]]:
    """Values of `_CHANNEL` from the columns of a record; nothing from what hrx has not written."""
    with suppress(ValueError, KeyError, TypeError):
        for one in from_json(effects) if isinstance(effects, str) else []:
            errors = one.errors or {}
            of_errors = (errors.get(name) for name in ("as_is", *TREATED))
            read = float(one.read) if one.measured else None
            yield one.name, one.role, one.kind, "", read, one.read_from, _mean(one.share), *of_errors
        for name, reason in json.loads(left_out).items() if isinstance(left_out, str) else ():
            why = str(reason).partition(":")[0]
            why = f"the model {why}" if why.startswith(("takes", "needs")) else why
            yield name, "", "", why, *[None] * (len(_CHANNEL) - 4)


def _mean(values: Floats) -> float:
    """Mean over the scored steps; no channel moves a step without a share."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def summarise_channels(
    rows: pd.DataFrame, by: Sequence[str] = (), fold: Callable[[pd.DataFrame], pd.DataFrame] | None = None
) -> list[ChannelSummary]:
    """Channels of `channel_rows` of one model, by output and these columns.

    The sign tests of an output are corrected for their number. `fold` makes configurations of runs, with the means of
    `FOLDED`.
    """
    found: list[ChannelSummary] = []
    for _, of_output in rows.groupby("output", sort=True):
        keys = [*by, "channel", "role", "kind", "left_out"]
        own = [_summary(group, fold or _folded) for _, group in of_output.groupby(keys, sort=False)]
        tested = {place: one.evidence("change") for place, one in enumerate(own)}
        p = {place: one.p for place, one in tested.items() if one.n >= FEWEST_SIGN}
        # A test that cannot decide, with fewer than six changes other than zero, is not counted (Tarone 1990).
        decisive = [place for place in p if tested[place].positive + tested[place].negative >= FEWEST_SIGN]
        p |= dict(zip(decisive, holm([p[place] for place in decisive]), strict=True))
        own = [replace(one, corrected=p.get(place)) for place, one in enumerate(own)]
        found += own
    return found


def _folded(group: pd.DataFrame) -> pd.DataFrame:
    return fold_seeds(group, FOLDED)


def _summary(group: pd.DataFrame, fold: Callable[[pd.DataFrame], pd.DataFrame]) -> ChannelSummary:
    """One channel: of its treatments the first that was measured, in the runs that have it."""
    first = group.iloc[0]
    treatment: Treatment | Literal[""] = next((one for one in TREATED if group[one].notna().any()), "")
    treated = group[treatment] if treatment else pd.Series(math.nan, index=group.index)
    folded = fold(group.assign(treated=treated, as_is=group["as_is"].where(treated.notna())))
    same = folded["treated"] == folded["as_is"]  # of errors of zero too
    folded["change"] = (folded["treated"] / folded["as_is"] - 1).mask(same, 0.0)
    steps = group.loc[group["read"] == 1, "read_from"].dropna()
    measured = group["read"].dropna()
    return ChannelSummary(
        name=str(first["channel"]),
        role=str(first["role"]),
        kind=str(first["kind"]),
        output=str(first["output"]),
        left_out=str(first["left_out"]),
        treatment=treatment,
        runs=folded,
        read_in=int(measured.sum()),
        measured=len(measured),
        read_from=int(steps.min()) if len(steps) else None,
    )


def other_outputs(runs: pd.DataFrame) -> str:
    """Outputs of scored runs, where any is not the point forecast; else empty."""
    outputs = sorted(set(runs["output"].fillna(POINT).astype(str)))
    return f"output {listed(outputs)}" if outputs not in ([], [POINT]) else ""


def channels_line(runs: pd.DataFrame) -> str:
    """What the first screen says of the covariates of a model's scored runs; empty without any."""
    found = summarise_channels(channel_rows(runs))
    several = len({one.output for one in found}) > 1
    covariates = [one for one in found if one.role not in ("", "target")]
    covariates.sort(key=lambda one: -np.nan_to_num(one.evidence("share").interval.point))
    says = [one.says + (f" (output {one.output})" if several else "") for one in covariates[:_MOST]]
    says += [f"{more} more on the page"] if (more := len(covariates) - _MOST) > 0 else []
    return "; ".join([*says, *_left_out(found)])


def _left_out(found: Sequence[ChannelSummary]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for one in found:
        if one.left_out:
            by_reason.setdefault(one.left_out, []).append(shorten(clean(one.name), _LONGEST_NAME))
    for reason, names in by_reason.items():
        names = list(dict.fromkeys(names))
        shown = names if len(names) <= _MOST else [*names[: _MOST - 1], f"{len(names) - _MOST + 1} more"]
        yield f"left out: {listed(shown)} ({shorten(clean(reason), _LONGEST_REASON)})"
