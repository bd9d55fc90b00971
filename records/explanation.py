"""Explanations as plain data: forecasts, what each step of them reads, and what held-out windows say about that.

`hrx.explain` makes an `Explanation`; the one that people get, with figures and scores, is `hrx.api.explanation`.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd

from hrx.errors import HrxError, describe_error, unknown
from hrx.files import MOST_TABLE, atomic_write, check_target, read_file
from hrx.records.channels import ChannelEffect
from hrx.text import ComputedText

if TYPE_CHECKING:
    from hrx.records.context import NeededContext
    from hrx.records.ledger import StoredCheck
    from hrx.records.quantities import Bools, Floats, Quantities, Skill

_FORMAT = 3
_ARRAYS = ("matrix", "forecast", "x", "observed")
_PART_ARRAYS = ("matrix", "values", "observed")


@dataclass(frozen=True)
class ExplainedModel:
    """Model of an explanation."""

    name: str
    checkpoint: str
    fingerprint: ComputedText = ComputedText()  # noqa: RUF009 (a descriptor)
    """sha256 of configuration and weights."""
    library: str = ""


class Method(NamedTuple):
    """How a matrix was estimated."""

    estimator: str
    settings: str
    """JSON: every setting of the estimator with its value."""
    sign: Literal["", "slope", "contribution"]
    """What `signed` holds; empty where the estimator has no sign."""
    seed: int


class ExplainedTimes(NamedTuple):
    """Times of one series: of its lookback `(L,)` and of its forecast `(H,)`."""

    inputs: pd.Index
    forecasts: pd.Index


@dataclass(frozen=True, eq=False)
class Part:
    """What each step of a forecast reads of one channel, for `B` series."""

    role: Literal["target", "past", "future", "static"]
    kind: Literal["number", "two-valued", "categorical"]
    matrix: Floats
    """`(B, R, length)`: `L` inputs; `L + H` where the channel is known ahead, 1 where it is static. Magnitudes, per
    standard deviation of the channel where they are slopes.

    Of a channel without a slope: the mean change of the forecast when a value is replaced by another of the channel."""
    signed: Floats | None
    """The same with signs; NaN for a channel without a slope, None where the estimator has no sign."""
    values: Floats
    """`(B, length)`, in the channel's own unit, codes of a categorical one; NaN is missing."""
    observed: Bools
    """`(B, length)`."""
    labels: tuple[str, ...] = ()
    """Labels of the codes 0, 1, … of a categorical channel."""

    def of(self, at: slice) -> Part:
        """Return the part of some of the series."""
        signed = None if self.signed is None else self.signed[at]
        return replace(self, signed=signed, **{name: getattr(self, name)[at] for name in _PART_ARRAYS})


class Trust(Enum):
    """Whether an explanation can be trusted, worst first. The first that applies is the verdict."""

    NOT_ADMITTED = "not admitted"
    NOT_SCORED = "not scored"
    NOT_BETTER_THAN_NAIVE = "not better than naive"
    NO_EVIDENCE = "no evidence"
    SHARED = "shared"
    OWN_ROWS = "own rows"


@dataclass(frozen=True)
class HeldOut:
    """What windows of the same series whose future is known say about a model and its explanations."""

    windows: int
    checks: tuple[StoredCheck, ...]
    skill: Skill | None
    quantities: Quantities | None
    unscored: str = ""
    """Why there are no quantities."""
    padded: int = 0
    """Zeros that the library puts before the window and the model reads as observed values."""
    context: NeededContext | None = None
    """Where it was requested and the series could be scored."""

    @property
    def failed(self) -> tuple[StoredCheck, ...]:
        return tuple(check for check in self.checks if not check.passed)

    @property
    def trust(self) -> Trust:
        """Return the verdict."""
        if self.failed:
            return Trust.NOT_ADMITTED
        if self.quantities is None or self.skill is None:
            return Trust.NOT_SCORED
        if not self.skill.beats_naive:
            return Trust.NOT_BETTER_THAN_NAIVE
        if not self.surely_positive("g_margin"):
            return Trust.NO_EVIDENCE
        return Trust.OWN_ROWS if self.surely_positive("g_own") else Trust.SHARED

    def surely_positive(self, gain: str) -> bool:
        """Whether the 95 % interval of a gain over draws lies above zero."""
        if self.quantities is None:
            return False
        return bool(getattr(self.quantities, gain) > self.quantities.plus_minus(gain))


@dataclass(frozen=True, eq=False)
class Explanation:
    """What each step of a forecast reads, for one or several series: arrays, names and times."""

    matrix: Floats
    """`(B, R, L)`, non-negative: importance of each input for each explained step."""
    signed: Floats | None
    """`(B, R, L)`: the rows before their magnitudes were taken; None where the estimator has no sign.

    Slopes (input gradient, saliency, SmoothGrad) are the change of the forecast per unit of the input; contributions
    (gradient × input, integrated gradients) are in the unit of the forecast."""
    forecast: Floats
    """`(B, H)`, in the unit of the series."""
    x: Floats
    """`(B, L)`: the last values of each series, in its unit."""
    observed: Bools
    """`(B, L)`: false where a missing value repeats the one before it."""
    steps: tuple[int, ...]
    """Forecast steps of the `R` rows, from 1."""
    items: tuple[str, ...]
    """Names of the `B` series."""
    times: tuple[ExplainedTimes | None, ...]
    """Of each series; None where it has none."""
    seasons: tuple[int, ...]
    """Values per season of each series; 1 where it is not known."""
    scales: tuple[tuple[float, float] | None, ...]
    """Of each series: the model read `(x - mean) / std` with this mean and std; None: `x` itself."""
    model: ExplainedModel
    method: Method
    windows: bool = False
    """Whether the rows of `x` came as one array: windows of one run, which are scored together."""
    notes: tuple[str, ...] = ()
    """What a reader has to know: how dates were read, missing values that were filled in, the scale of the model."""
    held_out: tuple[HeldOut, ...] = ()
    """Of each series, where `held_out=True` asked for it; a file does not keep it."""
    output: str = "point"
    """Which number of the forecast is explained: `point`, `mean`, a level such as `0.9`, or a spread, `0.1:0.9`."""
    quantiles: Mapping[float, Floats] = field(default_factory=dict)
    """Forecasts `(B, H)` by quantile level, where covariates or an output were given and the model has quantiles."""
    parts: Mapping[str, Part] = field(default_factory=dict)
    """Each channel by name, where covariates or several targets were given; `matrix` and `x` are those of the target.
    """
    targets: tuple[str, ...] = ()
    """Channel that each of the `B` forecasts is of, where there are parts."""
    effects: tuple[tuple[ChannelEffect, ...], ...] = ()
    """Of each series: what replacing each channel does to its forecast."""
    variances: tuple[float, ...] = ()
    """Variance of the forecasts of each series, by which its effects and gains are divided."""

    @property
    def lookback(self) -> int:
        """Values of each series that the model read."""
        return int(self.x.shape[1])

    @property
    def horizon(self) -> int:
        """Steps of the forecast."""
        return int(self.forecast.shape[1])

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Self]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, item: str | int) -> Self:
        at = slice(place := self.place(item), place + 1)
        per_series = ["matrix", "forecast", "x", "observed", "items", "times", "seasons", "scales", "held_out"]
        per_series += ["targets", "effects", "variances"]
        signed = None if self.signed is None else self.signed[at]
        parts = {name: part.of(at) for name, part in self.parts.items()}
        quantiles = {level: values[at] for level, values in self.quantiles.items()}
        own = {name: getattr(self, name)[at] for name in per_series}
        return replace(self, signed=signed, parts=parts, quantiles=quantiles, **own)

    def __repr__(self) -> str:
        series = f"series {self.items[0]!r}" if len(self) == 1 else f"{len(self)} series"
        some = f"{len(self.steps)} of " if len(self.steps) < self.horizon else ""
        channels = f" of {len(self.parts)} channels" if self.parts else ""
        size = f"{some}{self.horizon} steps × {self.lookback} inputs{channels}"
        return f"<Explanation of {self.model.name} on {series} by {self.method.estimator}: {size}>"

    def place(self, item: str | int | None) -> int:
        """Return the position of a series; without a name, the first."""
        if item is None:
            return 0
        if isinstance(item, str):
            if item not in self.items:
                raise HrxError(unknown("series", item, self.items))
            return self.items.index(item)
        if not -len(self) <= item < len(self):
            raise IndexError(f"This explanation holds {len(self)} series; there is no number {item}.")
        return item % len(self)

    def row(self, step: int) -> int:
        """Return the row of a forecast step, which counts from 1."""
        if step not in self.steps:
            first, last = self.steps[0], self.steps[-1]
            whole = len(self.steps) > 1 and self.steps == tuple(range(first, last + 1))
            known = f"{first} to {last}" if whole else ", ".join(map(str, self.steps))
            raise HrxError(f"Step {step} has no row in this explanation. Steps count from 1; it has {known}.")
        return self.steps.index(step)

    @property
    def channels(self) -> pd.DataFrame:
        """One row per series, forecast step and channel: what the channel does to the forecast.

        | column | is |
        | --- | --- |
        | `item`, `step` | the series; the forecast step, from 1 |
        | `channel`, `role` | the name of the channel, and what it is to the forecast |
        | `effect`, `effect_error` | mean squared change of the step when the channel is replaced by other blocks of its
          history, over the variance of the forecasts; its Monte Carlo standard error |
        | `share` | effect over the sum of all channels |
        | `sensitivity` | sum of the channel's row; missing without a slope and at steps without a row |
        | `read`, `read_from` | whether the forecast reads the channel, and from which step on |
        """
        steps = np.arange(1, self.horizon + 1)
        frames = []
        for item, effects in zip(self.items, self.effects, strict=False):
            for one in effects:
                sensitivity = np.full(self.horizon, np.nan)
                if one.sensitivity is not None:
                    sensitivity[np.asarray(self.steps) - 1] = one.sensitivity
                columns = {"item": item, "step": steps, "channel": one.name, "role": one.role, "effect": one.effect}
                columns |= {"effect_error": one.error, "share": one.share, "sensitivity": sensitivity}
                known_from = pd.array([one.read_from] * self.horizon, dtype="Int64")
                frames.append(pd.DataFrame(columns | {"read": one.read, "read_from": known_from}))
        if not frames:
            names = ("item", "step", "channel", "role", "effect", "effect_error", "share", "sensitivity")
            return pd.DataFrame(columns=[*names, "read", "read_from"])
        return pd.concat(frames, ignore_index=True).sort_values(["item", "step"], kind="stable", ignore_index=True)

    @property
    def crossing(self) -> float:
        """Share of steps at which the quantiles of a spread cross, so that it is negative; 0 for any other output."""
        return float((self.forecast < 0).mean()) if ":" in self.output else 0.0

    def to_frame(self) -> pd.DataFrame:
        """One row per series, explained step and input; with covariates, per channel too.

        | column | is |
        | --- | --- |
        | `item` | the name of the series |
        | `step` | the forecast step, from 1 |
        | `forecast_time`, `input_time` | the times of step and input; missing where the series has no times |
        | `position` | of the input before the forecast: -1 is the last |
        | `lag` | steps from the input to the forecast step |
        | `value`, `observed` | the input, and whether it was observed or filled in |
        | `importance` | the entry of `matrix` |
        | `signed` | the entry of `signed`, where there is one |
        | `channel`, `role` | with covariates: the channel of the input. A position from 0 on is ahead: 0 is step 1; a
          static channel has neither position nor time |
        """
        own = {"": Part("target", "number", self.matrix, self.signed, self.x, self.observed)}
        frames = []
        for number, item in enumerate(self.items):
            for name, part in (self.parts or own).items():
                columns: dict[str, Any] = {"item": item} | self._places(part, number)
                rows = len(self.steps)
                columns |= {
                    "value": np.tile(part.values[number], rows),
                    "observed": np.tile(part.observed[number], rows),
                    "importance": part.matrix[number].reshape(-1),
                }
                if part.signed is not None:
                    columns["signed"] = part.signed[number].reshape(-1)
                if self.parts:
                    columns |= {"channel": name, "role": part.role}
                frames.append(pd.DataFrame(columns))
        return pd.concat(frames, ignore_index=True)

    def _places(self, part: Part, number: int) -> dict[str, Any]:
        """Columns of `to_frame` that say which step and which input an entry of a part is of."""
        length = part.values.shape[1]
        step, position = np.repeat(self.steps, length), np.tile(np.arange(length) - self.lookback, len(self.steps))
        known, static = self.times[number], part.role == "static"
        forecast_time: Any = pd.Series(pd.NaT, index=range(len(step)), dtype="datetime64[ns]")
        input_time = forecast_time
        if known is not None:
            forecast_time = known.forecasts[step - 1]
        if known is not None and not static:
            input_time = known.inputs.append(known.forecasts)[position + self.lookback]
        columns = {"step": step, "forecast_time": forecast_time, "input_time": input_time}
        if static:
            return columns | {"position": np.nan, "lag": np.nan}
        return columns | {"position": position, "lag": step - 1 - position}

    def save(self, path: str | Path) -> Path:
        """Writes arrays, names, times and settings to one NPZ file, without the model. Returns its path."""
        check_target(path := Path(path), "save")
        about = {
            "hrx_explanation": _FORMAT,
            **{name: getattr(self, name) for name in ("steps", "items", "seasons", "scales", "windows", "notes")},
            "zones": [None if times is None else _stored_times(times.inputs)[0] for times in self.times],
            "model": asdict(self.model),
            "method": self.method._asdict(),
            **{name: getattr(self, name) for name in ("output", "targets", "variances")},
            "levels": list(self.quantiles),
            "parts": [[name, part.role, part.kind, part.labels] for name, part in self.parts.items()],
            "effects": [[one.as_dict() for one in effects] for effects in self.effects],
        }
        arrays: dict[str, Any] = {name: getattr(self, name) for name in _ARRAYS}
        if self.signed is not None:
            arrays["signed"] = self.signed
        arrays |= {f"quantile_{number}": values for number, values in enumerate(self.quantiles.values())}
        for number, part in enumerate(self.parts.values()):
            arrays |= {f"{name}_{number}": getattr(part, name) for name in _PART_ARRAYS}
            if part.signed is not None:
                arrays[f"signed_{number}"] = part.signed
        for number, times in enumerate(self.times):
            if times is not None:
                arrays[f"times_{number}"] = _stored_times(times.inputs.append(times.forecasts))[1]
        buffer = io.BytesIO()
        np.savez_compressed(buffer, about=np.array(json.dumps(about)), **arrays)
        with atomic_write(path) as file:
            file.write(buffer.getvalue())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a file that `save` wrote; that executes nothing."""
        try:
            with np.load(io.BytesIO(read_file(path := Path(path), MOST_TABLE)), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            about = json.loads(str(arrays["about"]))
            if about["hrx_explanation"] != _FORMAT:
                raise HrxError(f"{path} has format {about['hrx_explanation']}; this version of hrx reads {_FORMAT}.")
            lookback = arrays["x"].shape[1]
            times: list[ExplainedTimes | None] = []
            for number, zone in enumerate(about["zones"]):
                numbers = arrays.get(f"times_{number}")
                index = None if numbers is None else _read_times(numbers, zone)
                times.append(None if index is None else ExplainedTimes(index[:lookback], index[lookback:]))
            shape = (len(about["items"]), len(about["steps"]), lookback)
            if arrays["matrix"].shape != shape or len(times) != shape[0]:
                raise ValueError(f"its matrix has the shape {arrays['matrix'].shape}, not {shape}")
            plain: dict[str, Any] = {one: tuple(about[one]) for one in ("steps", "items", "seasons", "notes")}
            return cls(
                **{name: arrays[name] for name in _ARRAYS},
                **plain,
                signed=arrays.get("signed"),
                times=tuple(times),
                scales=tuple(None if scale is None else (scale[0], scale[1]) for scale in about["scales"]),
                model=ExplainedModel(**about["model"]),
                method=Method(**about["method"]),
                windows=about["windows"],
                output=about["output"],
                targets=tuple(about["targets"]),
                variances=tuple(about["variances"]),
                quantiles={level: arrays[f"quantile_{number}"] for number, level in enumerate(about["levels"])},
                parts={
                    name: Part(
                        role=role,
                        kind=kind,
                        labels=tuple(labels),
                        signed=arrays.get(f"signed_{number}"),
                        **{array: arrays[f"{array}_{number}"] for array in _PART_ARRAYS},
                    )
                    for number, (name, role, kind, labels) in enumerate(about["parts"])
                },
                effects=tuple(tuple(ChannelEffect.from_dict(one) for one in effects) for effects in about["effects"]),
            )
        except HrxError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise HrxError(
                f"{path} is not a valid explanation: {describe_error(error)}. Give a file that Explanation.save wrote."
            ) from error


def show_time(time: Any) -> str:
    """A time without what every time of a day has in common: midnight, seconds, and the zone."""
    if not isinstance(time, pd.Timestamp):
        return str(time)
    text = time.strftime("%Y-%m-%d %H:%M:%S")
    return text.removesuffix(" 00:00:00").removesuffix(":00") if text.endswith(":00") else text


def _stored_times(index: pd.Index) -> tuple[str, Any]:
    """Zone and numbers of times: nanoseconds since 1970, in UTC where they have a zone; `number` for whole numbers."""
    if not isinstance(index, pd.DatetimeIndex):
        return "number", index.to_numpy(dtype=np.int64)
    plain = index.tz_convert("UTC").tz_localize(None) if index.tz else index
    return str(index.tz or ""), plain.as_unit("ns").to_numpy().astype(np.int64)


def _read_times(numbers: Any, zone: str) -> pd.Index:
    if zone == "number":
        return pd.Index(np.asarray(numbers, dtype=np.int64))
    times = pd.DatetimeIndex(numbers.astype("datetime64[ns]"))
    return pd.DatetimeIndex(times.tz_localize("UTC").tz_convert(zone)) if zone else times
