"""Why the forecasts of some dates changed between two origins, as plain data; `hrx.revision` makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hrx.errors import HrxError
from hrx.records.explanation import show_time

if TYPE_CHECKING:
    from hrx.records.explanation import ExplainedModel
    from hrx.records.quantities import Bools, Floats

PARTS = ("drift", "dropped history", "news", "remainder")


@dataclass(frozen=True, eq=False, repr=False)
class Revision:
    """Parts of the revisions of `D` dates by `k` new values, in the unit of the series."""

    model: ExplainedModel
    item: str
    lookback: int
    horizon: int
    origins: tuple[Any, Any]
    """Times of the last value that the old and the new forecast read."""
    dates: pd.Index
    """`(D,)`: dates that both forecasts have."""
    arrived: pd.Index
    """`(k,)`: times of the new values, the last of which is the new origin."""
    values: Floats
    """`(k,)`: the new values."""
    observed: Bools
    """`(k,)`: false where a missing value repeats the one before it."""
    expected: Floats
    """`(k,)`: old forecasts of the new values."""
    old: Floats
    """`(D,)`: forecasts at the old origin."""
    new: Floats
    """`(D,)`: forecasts at the new origin."""
    drift: Floats
    """`(D,)`: change where the model reads its own forecasts in place of the new values."""
    dropped: Floats | None
    """`(D,)`: change as the `k` oldest values leave the window; None where the model takes no longer window, and the
    drift holds it too."""
    news: Floats
    """`(D, k)`: contribution of each new value: what it adds by differing from its forecast."""
    points: int
    """Points of the path at which the derivative was taken; 0 for Shapley values of a model without derivatives."""
    notes: tuple[str, ...] = ()
    """What a reader has to know: how dates were read, missing values, the scale of the model."""

    @property
    def change(self) -> Floats:
        """`(D,)`: the revision, `new - old`; the sum of all parts."""
        return np.asarray(self.new - self.old)

    @property
    def remainder(self) -> Floats:
        """`(D,)`: what the other parts leave over."""
        dropped = 0.0 if self.dropped is None else self.dropped
        return np.asarray(self.change - self.drift - dropped - self.news.sum(axis=1))

    @property
    def method(self) -> str:
        """How the contributions of the new values were computed."""
        return f"integrated gradients at {self.points} points" if self.points else "Shapley values"

    def __len__(self) -> int:
        return len(self.dates)

    def __repr__(self) -> str:
        parts = {"drift": self.drift, "dropped history": self.dropped, "news": self.news.sum(axis=1)}
        shown = ", ".join(f"{name} {_size(values)}" for name, values in parts.items() if values is not None)
        old, new = map(show_time, self.origins)
        return (
            f"<Revision of {self.model.name} on series {self.item!r} from {old} to {new}: {len(self)} dates moved by "
            f"{_size(self.change)} on average: {shown}, remainder {_size(self.remainder)}>"
        )

    def place(self, date: Any = None) -> int:
        """Return the position of a date; without one, that of the largest revision."""
        if date is None:
            return int(np.abs(self.change).argmax())
        shown = [show_time(one) for one in self.dates]
        wanted = date if isinstance(date, str) else show_time(date)
        if wanted not in shown:
            raise HrxError(f"{wanted} is not among the dates of this revision, {shown[0]} to {shown[-1]}.")
        return shown.index(wanted)

    def to_frame(self) -> pd.DataFrame:
        """One row per date and part; the contributions of a date add up to its revision.

        | column | is |
        | --- | --- |
        | `item` | the name of the series |
        | `forecast_time` | the date |
        | `step` | its step after the new origin, from 1 |
        | `old`, `new` | both forecasts of it |
        | `part` | `drift`, `dropped history` where it is known, `news` or `remainder` |
        | `input_time`, `value`, `expected`, `observed` | of a new value: its time, itself, the old forecast of it |
        | `contribution` | the part of `new - old` |
        """
        count, k = self.news.shape
        rows = pd.DataFrame({
            "item": self.item, "forecast_time": self.dates, "step": np.arange(1, count + 1), "old": self.old,
            "new": self.new,
        })  # fmt: skip
        arrived = {"value": self.values, "expected": self.expected, "observed": self.observed}
        frames = [
            rows.assign(part=part, contribution=values)
            for part, values in zip(PARTS, (self.drift, self.dropped, None, self.remainder), strict=True)
            if values is not None
        ]
        inputs = {name: np.tile(values, count) for name, values in arrived.items()}
        times = self.arrived[np.tile(np.arange(k), count)]
        news = rows.loc[rows.index.repeat(k)].reset_index(drop=True)
        news = news.assign(part="news", input_time=times, **inputs, contribution=self.news.reshape(-1))
        frame = pd.concat([news, *frames])
        frame["part"] = pd.Categorical(frame["part"], PARTS)
        frame = frame.sort_values(["step", "part"], kind="stable", ignore_index=True)
        frame["part"] = frame["part"].astype(str)
        return frame[[
            "item", "forecast_time", "step", "old", "new", "part", "input_time", *arrived, "contribution",
        ]]  # fmt: skip


def _size(values: Floats) -> str:
    return f"{np.abs(values).mean():.3g}"
