"""`Explanation`: forecasts of some series, and what each step of them reads. It is made of arrays and needs no torch.

`hrx.explain` makes one. The figures are in `hrx.reports.explained_figures`, the file format in `explanation_file`.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from hrx.errors import HrxError, unknown
from hrx.records.quantities import Bools, Floats
from hrx.text import ComputedText

if TYPE_CHECKING:
    from anywidget import AnyWidget
    from matplotlib.figure import Figure

    from hrx.adapters import Forecaster
    from hrx.audit.protocol import Protocol
    from hrx.records.quantities import Quantities
    from hrx.reports.explained_figures import ShownForecast

_MOST_SHOWN = 3
"""Series of several that a notebook shows by themselves."""


@dataclass(frozen=True)
class ExplainedModel:
    """The model of an explanation."""

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
    """The times of one series: of its lookback `(L,)` and of its forecast `(H,)`."""

    inputs: pd.Index
    forecasts: pd.Index


@dataclass(frozen=True, eq=False)
class Explanation:
    """What each step of a forecast reads, for one or several series.

        x = hrx.explain("bolt-mini", "sample:elnino/M", horizon=12, lookback=96)
        x.matrix.shape                     # (1, 12, 96)
        x.to_frame()                       # one row per series, step and input
        x.plot(), x.plot_steps([1, 12])    # matplotlib figures; in a notebook x shows itself
        x.score().g_margin                 # measured by deletion, with its error

    Forecast steps count from 1. An explanation of several series is indexed by name or position, `x["T1"]`, `x[0]`,
    and gives an explanation of one.
    """

    matrix: Floats
    """`(B, R, L)`, non-negative: importance of each input for each explained step."""
    signed: Floats | None
    """`(B, R, L)`: the rows before their magnitudes were taken; None where the estimator has no sign.

    Slopes (input gradient, saliency, SmoothGrad) are the change of the forecast per unit of the input; contributions
    (gradient × input, integrated gradients) are in the unit of the forecast."""
    forecast: Floats
    """`(B, H)`, in the unit of the series."""
    x: Floats
    """`(B, L)`: the values that the model read, in the unit of the series."""
    observed: Bools
    """`(B, L)`: false where a missing value repeats the one before it."""
    steps: tuple[int, ...]
    """The forecast steps of the `R` rows, from 1."""
    items: tuple[str, ...]
    """The names of the `B` series."""
    times: tuple[ExplainedTimes | None, ...]
    """Of each series; None where it has none."""
    seasons: tuple[int, ...]
    """Values per season of each series; 1 where it is not known."""
    model: ExplainedModel
    method: Method
    windows: bool = False
    """Whether the rows of `x` came as one array: windows of one run, which are scored together."""
    notes: tuple[str, ...] = ()
    """What a reader has to know: missing values that were filled in."""
    forecaster: Forecaster | None = field(default=None, repr=False)
    """The model, where the explanation was not read from a file."""

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

    def __iter__(self) -> Iterator[Explanation]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, item: str | int) -> Explanation:
        at = slice(place := self._place(item), place + 1)
        return replace(
            self,
            matrix=self.matrix[at],
            signed=None if self.signed is None else self.signed[at],
            forecast=self.forecast[at],
            x=self.x[at],
            observed=self.observed[at],
            items=self.items[at],
            times=self.times[at],
            seasons=self.seasons[at],
        )

    def __repr__(self) -> str:
        return f"<Explanation of {self._about()}>"

    def _about(self) -> str:
        series = f"series {self.items[0]!r}" if len(self) == 1 else f"{len(self)} series"
        some = f"{len(self.steps)} of " if len(self.steps) < self.horizon else ""
        size = f"{some}{self.horizon} steps × {self.lookback} inputs"
        return f"{self.model.name} on {series} by {self.method.estimator}: {size}"

    def _place(self, item: str | int | None) -> int:
        """The position of a series; without a name, the first."""
        if item is None:
            return 0
        if isinstance(item, str):
            if item not in self.items:
                raise HrxError(unknown("series", item, self.items))
            return self.items.index(item)
        if not -len(self) <= item < len(self):
            raise IndexError(f"This explanation holds {len(self)} series; there is no number {item}.")
        return item % len(self)

    def to_frame(self) -> pd.DataFrame:
        """One row per series, explained step and input.

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
        """
        return pd.concat([self._frame_of(number) for number in range(len(self))], ignore_index=True)

    def _frame_of(self, number: int) -> pd.DataFrame:
        rows, lookback = self.matrix.shape[1:]
        step, position = np.repeat(self.steps, lookback), np.tile(np.arange(-lookback, 0), rows)
        times = self.times[number]
        unknown_time = pd.Series(pd.NaT, index=range(rows * lookback), dtype="datetime64[ns]")
        columns: dict[str, Any] = {
            "item": self.items[number],
            "step": step,
            "forecast_time": unknown_time if times is None else times.forecasts[step - 1],
            "input_time": unknown_time if times is None else times.inputs[position + lookback],
            "position": position,
            "lag": step - 1 - position,
            "value": np.tile(self.x[number], rows),
            "observed": np.tile(self.observed[number], rows),
            "importance": self.matrix[number].reshape(-1),
        }
        if self.signed is not None:
            columns["signed"] = self.signed[number].reshape(-1)
        return pd.DataFrame(columns)

    def score(self, model: Forecaster | None = None, *, protocol: Protocol | None = None) -> Quantities:
        """Whether a step's own row explains it better than a shared one: `g_own`, `g_shuffled`, `g_margin` and `rank`.

        Measured by deletion on the explained windows, with the Monte Carlo error of each quantity. Series are runs of
        their own and are scored one at a time, `x["T1"].score()`; the rows of one array are windows of one run. An
        explanation that was read from a file needs its `model`. One window is an indication: `hrx.run_audit` measures
        many.
        """
        from hrx.api.explain import score_explanation

        return score_explanation(self, model or self.forecaster, protocol)

    def quantities(self) -> Quantities:
        """`score()` under the default protocol."""
        return self.score()

    def plot(self, item: str | int | None = None) -> Figure:
        """The heat map of one series, by default the first: window and forecast, and what each step reads."""
        from hrx.reports.explained_figures import heatmap_figure

        return heatmap_figure(self._shown(item), "; ".join(self.notes))

    def plot_steps(self, steps: Sequence[int], item: str | int | None = None) -> Figure:
        """The rows of some forecast steps, counted from 1, below the series: `x.plot_steps([1, 12, 24])`."""
        from hrx.reports.explained_figures import steps_figure

        return steps_figure(self._shown(item), steps)

    def plot_profile(self, item: str | int | None = None) -> Figure:
        """Importance by lag, the distance from an input to the forecast step, with the season marked where known."""
        from hrx.reports.explained_figures import profile_figure

        return profile_figure(self._shown(item))

    def plot_waterfall(self, step: int, item: str | int | None = None, *, top: int = 10) -> Figure:
        """How the largest `top` contributions of inputs add up to the forecast of one step, counted from 1.

        It needs an estimator with a sign. Contributions of integrated gradients add up from the forecast of a flat
        window at the mean. A slope is multiplied by the input's distance from the mean of the window, a first-order
        contribution: what they leave over is the base.
        """
        from hrx.reports.explained_figures import waterfall_figure

        shown, number = self._shown(item), self._place(item)
        row, base = shown.row(step), "forecast less the contributions"
        if self.signed is None:
            raise HrxError(
                f"A waterfall needs contributions with a sign, and {self.method.estimator} has none. Explain with "
                "estimator='integrated_gradients', or with the input gradient."
            )
        contributions = np.asarray(self.signed[number, row], dtype=np.float64)
        if self.method.sign == "slope":
            contributions = contributions * (self.x[number] - self.x[number].mean())
        elif self.method.estimator == "integrated_gradients":
            base = "forecast of a flat window at the mean"
        return waterfall_figure(shown, step, contributions, base, top)

    def widget(self) -> AnyWidget:
        """The interactive heat map of the report page, for a notebook; it needs anywidget, the extra `notebook`.

        Its traits `series`, `step` and `position` follow the cell that the reader chooses.
        """
        from hrx.reports.explained_figures import show_time
        from hrx.reports.page.widget import ShownItem, heatmap_widget

        title = f"What each step of the forecast reads, by {self.method.estimator}"
        return heatmap_widget(
            [
                ShownItem(
                    model=self.model.name,
                    name=name,
                    x=self.x[number],
                    forecast=self.forecast[number],
                    matrix=self.matrix[number],
                    steps=self.steps,
                    labels=None if times is None else [show_time(time) for time in times.inputs],
                    title=f"{title}. {'. '.join((*self.notes, ''))}".strip(),
                )
                for number, (name, times) in enumerate(zip(self.items, self.times, strict=True))
            ]
        )

    def _shown(self, item: str | int | None) -> ShownForecast:
        """What the figures take of one series."""
        from hrx.reports.explained_figures import ShownForecast

        number = self._place(item)
        times = self.times[number]
        which = f", series {number + 1} of {len(self)}" if len(self) > 1 else ""
        return ShownForecast(
            title=f"{self.model.name} on {self.items[number]}{which}, by {self.method.estimator}",
            x=self.x[number],
            forecast=self.forecast[number],
            matrix=self.matrix[number],
            steps=np.asarray(self.steps, dtype=np.int64),
            times=None if times is None else times.inputs.append(times.forecasts),
            season=self.seasons[number],
        )

    def save(self, path: str | Path) -> Path:
        """Writes arrays, names, times and settings to one NPZ file, without the model. Returns its path."""
        from hrx.records.explanation_file import write_explanation

        return write_explanation(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Explanation:
        """Reads a file that `save` wrote."""
        from hrx.records.explanation_file import read_explanation

        return read_explanation(Path(path))

    def _repr_html_(self) -> str:
        """The heat maps of the first series, for a notebook."""
        parts = [f"<p><b>Explanation</b> of {html.escape(self._about())}</p>"]
        parts += [f"<p>{html.escape(note)}</p>" for note in self.notes]
        parts += [_picture(self.plot(number)) for number in range(min(len(self), _MOST_SHOWN))]
        if len(self) > _MOST_SHOWN:
            parts.append(f"<p>and {len(self) - _MOST_SHOWN} more series: <code>x.plot(name)</code></p>")
        return f"<div>{''.join(parts)}</div>"


def _picture(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img alt="heat map" style="max-width:100%" src="data:image/png;base64,{data}">'
