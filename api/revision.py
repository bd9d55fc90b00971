"""`hrx.revision`: why the forecasts of some dates changed between two origins; `hrx revision` calls it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from hrx.adapters.contract import ModelError, library_errors
from hrx.api.explain import Model, Names, default_lookback, find_readers, reading_notes, reading_options
from hrx.api.explanation import as_forecaster, reads_own_unit
from hrx.audit.revision import PRECISION, revise
from hrx.errors import HrxError
from hrx.gift_eval import read_series
from hrx.gift_eval.sources import SeriesInput
from hrx.records.explanation import ExplainedModel, show_time
from hrx.records.revision import Revision as RevisionData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hrx.adapters.contract import Forecaster
    from hrx.gift_eval.series import TimedSeries


@dataclass(frozen=True, eq=False, repr=False)
class Revision(RevisionData):
    """Why the forecasts of some dates changed.

    r = hrx.revision("bolt-mini", "sample:elnino/M", horizon=24, since="2010-06", lookback=96)
    r                           # sizes of all parts
    r.to_frame()                # one row per date and part
    r.plot_waterfall()          # the largest revision, from the old forecast to the new
    r.plot_calendar()           # all dates; in a notebook r shows itself
    """

    def plot_waterfall(self, date: Any = None, *, top: int = 10) -> Figure:
        """Draw how the parts lead from the old forecast of a date to the new; by default of the largest revision."""
        from hrx.reports.revision import waterfall

        return waterfall(self, date, top)

    def plot_calendar(self) -> Figure:
        """Draw both forecasts of every date, and what each part adds to its revision."""
        from hrx.reports.revision import calendar

        return calendar(self)

    def _repr_html_(self) -> str:
        from html import escape

        from hrx.reports.heatmap import picture

        return f'<p>{escape(repr(self))}</p><img alt="what moved the forecasts" src="{picture(self.plot_calendar())}">'


@torch.inference_mode(False)  # which has no gradients; the caller may be inside it
def revision(
    model: Model,
    data: Any,
    horizon: int,
    *,
    since: Any,
    until: Any = None,
    lookback: int | None = None,
    precision: float = PRECISION,
    seed: int = 0,
    date: str = "",
    id: Names = (),
    value: Names = (),
    frequency: str = "",
    season: int | None = None,
    report: Callable[[str], None] | None = None,
) -> Revision:
    """Explains why the forecasts from `until` differ from those of the same dates from `since`.

    Each origin is the last time whose value the forecast knows: a time of the series (`"2024-05"` is the last in that
    month), its number where it has no times, or a negative number of values before its end. By default `until` is the
    end. The revision of a date is the sum of

    - the drift: the model reads its own forecasts in place of the new values;
    - the dropped history: the oldest values leave the window, where the model takes one that holds them too;
    - the news: each new value differs from its forecast. Integrated gradients from the forecasts to the values, or
      Shapley values for a model without derivatives;
    - a remainder, which a finer path keeps below `precision` times the revision where it can; the default costs at
      most 60 forward and backward passes.

    `model`, `data` and the other arguments are those of `hrx.explain`; the data hold one series.

        r = hrx.revision("bolt-mini", "sample:elnino/M", horizon=24, since=-3, lookback=96)
        r.to_frame().query("part == 'news'").groupby("input_time").contribution.mean()
    """
    if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 2:
        raise HrxError(
            f"horizon={horizon!r} is not a number of steps of which two forecasts share some. Give 2 or more."
        )
    if not 0 < precision < 1:
        raise HrxError(f"precision={precision!r} is not a share of the revision. Give a number such as 0.01.")
    given = read_series(data, reading_options(date, id, value, frequency, season))
    if len(given.series) != 1:
        names = ", ".join(one.series.item for one in given.series[:8])
        raise HrxError(f"The data hold {len(given.series)} series: {names}. A revision is of one: give that one.")
    (timed,) = given.series
    times, count = _times(timed, horizon), timed.series.values.size
    start, end = _origin(times[:count], since, "since"), _origin(times[:count], until, "until")
    before, after = show_time(times[start]), show_time(times[end])
    if start >= end:
        raise HrxError(
            f"The old origin {before} is not before the new one, {after}: nothing arrived in between. Give an earlier "
            "since, or a later until."
        )
    if (arrived := end - start) >= horizon:
        raise HrxError(
            f"The forecasts from {before} and {after} have no date in common: {arrived} values lie between the origins "
            f"and the horizon is {horizon}. Give closer origins, or a horizon above {arrived}."
        )
    forecaster, known = as_forecaster(model), _until(timed, end)
    (reader,) = find_readers(forecaster, known, horizon)
    read = reads_own_unit(forecaster, *reader)
    length = _length(read, lookback, start + 1, horizon, before)
    if report is not None:
        report(f"revising the forecasts from {before} at {length}x{horizon}")
    (series,) = (one.series for one in known.series)
    values, observed = series.values, series.observed
    window = torch.tensor(values[start + 1 - length :], dtype=torch.float32)
    with library_errors(forecaster.identity.model, forecaster.identity.library):
        parts = revise(read, window[:length], window[length:], horizon, precision=precision, seed=seed)
    fields = ("expected", "old", "new", "drift", "news", "points", "dropped")
    if not np.isfinite(np.concatenate([parts.old, parts.new, parts.news.reshape(-1)])).all():
        raise HrxError(f"{forecaster.identity.model} gives a forecast or a derivative that is NaN or infinite here.")
    new, identity = slice(start + 1, end + 1), forecaster.identity
    return Revision(
        model=ExplainedModel(
            identity.model, identity.checkpoint, partial(getattr, identity, "fingerprint"), identity.library
        ),
        item=series.item,
        lookback=length,
        horizon=int(horizon),
        origins=(times[start], times[end]),
        dates=times[end + 1 : start + horizon + 1],
        arrived=times[new],
        values=values[new],
        observed=np.ones(arrived, dtype=bool) if observed is None else observed[new],
        notes=reading_notes(forecaster, known, [reader], length + arrived),
        **{name: getattr(parts, name) for name in fields},
    )


def _times(timed: TimedSeries, horizon: int) -> pd.Index:
    """Times of the values of a series and of `horizon` steps after them; numbers from 1 where it has none."""
    after = timed.after(horizon)
    if timed.times is not None and after is not None:
        return timed.times.append(after)
    first = timed.series.dropped + 1
    return pd.RangeIndex(first, first + timed.series.values.size + horizon)


def _origin(times: pd.Index, given: Any, name: str) -> int:
    """Position of the last value at or before a time, or so many values before the end."""
    if given is None:
        return len(times) - 1
    given = int(given) if isinstance(given, str) and re.fullmatch(r"-\d{1,9}", given) else given  # of a command line
    dated, whole = isinstance(times, pd.DatetimeIndex), isinstance(given, int | np.integer) and given is not True
    first, last = show_time(times[0]), show_time(times[-1])
    if whole and (dated or given < 0 <= times[0]):
        if not 0 < -given < len(times):
            raise HrxError(
                f"{name}={given} is not a number of values before the end of a series of {len(times)}. Give a time, "
                f"{first} to {last}, or a number from -{len(times) - 1} to -1."
            )
        return len(times) - 1 + int(given)
    try:
        time: Any = given
        if isinstance(times, pd.DatetimeIndex):
            if isinstance(given, bool | float):
                raise TypeError
            # A day, a month or a year means its end: what was known then.
            time = pd.Period(given) if isinstance(given, str) and _is_date(given) else given
            time = time.end_time if isinstance(time, pd.Period) else pd.Timestamp(time)
            time = time.tz_localize(times.tz) if times.tz is not None and time.tz is None else time
        elif not whole:
            time = int(given)
        place = int(times.searchsorted(time, side="right")) - 1
    except (ValueError, TypeError, OverflowError) as error:
        example = f"a time of the series, {first} to {last}, or a number of values before its end, such as -7"
        raise HrxError(f"{name}={given!r} is not a time of the series. Give {example}.") from error
    if place < 0 or _beyond(times, time):
        raise HrxError(
            f"{name}={given!r} is outside the series, which has values from {first} to {last}. Give one of these times."
        )
    return place


def _is_date(text: str) -> bool:
    """Whether a text names a period rather than a point: a day, a month or a year without an offset."""
    return len(text.strip()) <= len("2024-01-31")


def _beyond(times: pd.Index, time: Any) -> bool:
    """Whether a time is after the last one, and not in the period that a day, month or year names with it."""
    return bool(
        time > times[-1] and (not isinstance(times, pd.DatetimeIndex) or time - times[-1] >= times[-1] - times[-2])
    )


def _until(timed: TimedSeries, end: int) -> SeriesInput:
    """Return a series without the values after position `end`."""
    series, times = timed.series, timed.times
    observed = None if series.observed is None else series.observed[: end + 1]
    cut = replace(series, values=series.values[: end + 1], observed=observed)
    return SeriesInput((timed._replace(series=cut, times=None if times is None else times[: end + 1]),), windows=False)


def _length(model: Forecaster, asked: int | None, known: int, horizon: int, origin: str) -> int:
    """Return the lookback that was asked for, or the longest that the model and the values up to the origin allow."""
    name = model.identity.model
    if asked is None:
        return default_lookback(model.limits, known, horizon, f"{name}, with {known} values up to {origin},")
    if isinstance(asked, bool) or not isinstance(asked, int | np.integer) or asked < 1:
        raise HrxError(f"lookback={asked!r} is not a number of values. Give a whole number of at least 1.")
    if refusal := model.limits.refusal(asked, horizon):
        raise ModelError(f"{name} {refusal}.")
    if asked > known:
        raise HrxError(
            f"The series has {known} values up to {origin}, fewer than lookback={asked}. Give a shorter lookback, or "
            "a later since."
        )
    return int(asked)
