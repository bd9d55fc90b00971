"""`hrx.Explanation`: explanations as people hold them, with figures, scores, a page and a widget.

What it holds is plain data, in `hrx.records.explanation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hrx.errors import HrxError, ProtocolError
from hrx.records.explanation import Explanation as ExplanationData
from hrx.records.explanation import Part

if TYPE_CHECKING:
    from anywidget import AnyWidget
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hrx.adapters.contract import Forecaster
    from hrx.audit.protocol import Protocol
    from hrx.audit.runner.run import SeriesForecasts
    from hrx.gift_eval.series import Series
    from hrx.records.quantities import Quantities

_MOST_SHOWN = 3
"""Series of several that a notebook shows by themselves."""


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(ExplanationData):
    """What each step of a forecast reads, for one or several series.

        x = hrx.explain("bolt-mini", "sample:elnino/M", horizon=12, lookback=96)
        x.matrix.shape                     # (1, 12, 96)
        x.to_frame()                       # one row per series, step and input
        x.plot(), x.plot_steps([1, 12])    # matplotlib figures; in a notebook x shows itself
        x.score().g_margin                 # measured by deletion, with its error

    Forecast steps count from 1. An explanation of several series is indexed by name or position, `x["T1"]`, `x[0]`,
    and gives an explanation of one.
    """

    forecaster: Forecaster | None = field(default=None, repr=False)
    """Model, where the explanation was not read from a file."""
    series: tuple[Series, ...] = field(default=(), repr=False)
    """Whole series, where they are known and the explanation was not read from a file."""

    def __getitem__(self, item: str | int) -> Self:
        place = self.place(item)
        return replace(super().__getitem__(place), series=self.series[place : place + 1])

    def score(self, model: Any = None, *, protocol: Protocol | None = None) -> Quantities:
        """Whether a step's own row explains it better than a shared one: `g_own`, `g_shuffled`, `g_margin` and `rank`.

        Measured by deletion on the explained windows, with the Monte Carlo error of each quantity. Gains are divided by
        the variance of 64 forecasts over the test region of the series, as in an audit; where it is not known or too
        short, by that of the explained windows, which the result says. Series are runs of
        their own and are scored one at a time, `x["T1"].score()`; the rows of one array are windows of one run. An
        explanation that was read from a file needs its `model`, as `hrx.explain` takes it. One window is an
        indication: `hrx.run_audit` measures many.
        """
        import torch

        from hrx.audit.attribution import Estimate
        from hrx.audit.protocol import Protocol, scored_steps
        from hrx.audit.scoring.score import ScoredRun, moving
        from hrx.gift_eval.windows import statistics

        if len(self) > 1 and not self.windows:
            raise HrxError(
                f"This explanation holds {len(self)} series, and each is a run of its own. Score one, as in "
                f"x[{self.items[0]!r}].score(), or all: [one.score() for one in x]."
            )
        method = self.method
        if protocol is not None and protocol.estimator not in (method.estimator, Protocol.estimator):
            raise ProtocolError(
                f"The explanation is by {method.estimator}, the protocol by {protocol.estimator}. Explain with it."
            )
        used = replace(
            protocol or Protocol(seed=method.seed), estimator=method.estimator, estimator_settings=method.settings
        )
        scored = scored_steps(self.horizon, used.scored) + 1
        if missing := sorted(set(scored.tolist()) - set(self.steps)):
            raise HrxError(
                f"Step {missing[0]} is scored and has no row in this explanation. Explain without steps=, or with them."
            )
        if self.parts or self.output != "point":
            return self._score_channels(self._forecaster(model), used)
        reader = reads_own_unit(self._forecaster(model), self.seasons[0], self.scales[0])
        with torch.inference_mode(False):
            x = torch.as_tensor(self.x, dtype=torch.float32)
            whole, variance = self._forecasts(reader, used), None
            if whole is not None:
                (std,) = statistics(self.series[0], self.horizon)[1]
                variance = whole.variance * std**2
            run = ScoredRun.of(reader, x, self.horizon, used, variance=variance)
            rows = Estimate(torch.as_tensor(self.matrix)[moving(x)], steps=self.steps, settings=method.settings)
            return run.score(rows) if whole is None else whole.stated(run.score(rows))

    def _score_channels(self, model: Forecaster, protocol: Protocol) -> Quantities:
        """Score of the bound model: positions of all channels in one ordering, values rearranged within a channel."""
        import torch

        from hrx.adapters.inputs import Layout, Output, Window
        from hrx.adapters.wrapped import Bound
        from hrx.audit.scoring.score import ScoredRun, score_joint

        parts = self.parts or {"target": Part("target", "number", self.matrix, None, self.x, self.observed)}
        by_role: dict[Any, Any] = {}
        for name, part in parts.items():
            by_role.setdefault(part.role, {})[name] = torch.as_tensor(part.values, dtype=torch.float32)
        values: dict[str, Any] = {role: torch.stack(list(own.values()), dim=-1) for role, own in by_role.items()}
        if "static" in values:
            values["static"] = values["static"][:, 0]
        names = {role: tuple(own) for role, own in by_role.items()}
        codes = frozenset(name for name, part in parts.items() if part.kind == "categorical")
        window = Window(**values, names=names, categorical=codes)
        layout = Layout.of(window, self.horizon, {name: part.kind for name, part in parts.items()})
        season = self.seasons[0]
        seasonal = model.for_season(season) if season > 1 else model
        explained = layout.names["target"].index(self.targets[0]) if self.parts else 0
        bound = Bound(seasonal, layout, explained, Output.parse(self.output))
        with torch.inference_mode(False):
            matrix = torch.cat([torch.as_tensor(parts[one.name].matrix) for one in layout.channels], dim=-1)
            run = ScoredRun(bound, layout.pack(window), self.horizon, protocol, variance=self.variances[0])
            return score_joint(run, matrix, self.steps).joint

    def _forecasts(self, reader: Forecaster, protocol: Protocol) -> SeriesForecasts | None:
        """Forecasts over the test region of the series, standardised; None where it is not known or cannot be used."""
        from hrx.adapters.wrapped import Rescaled
        from hrx.audit.memory import MemoryBudget
        from hrx.audit.runner.run import forecast_series
        from hrx.audit.scoring.quantities import Unscorable
        from hrx.gift_eval.series import UnusableSeries
        from hrx.gift_eval.windows import statistics

        if not self.series or protocol.variance_windows == "run":
            return None
        (series,), count = self.series, protocol.variance_windows
        try:
            own = Rescaled(reader, *statistics(series, self.horizon))
            return forecast_series(own, series, self.lookback, self.horizon, count, MemoryBudget())
        except (UnusableSeries, Unscorable):
            return None

    def _forecaster(self, model: Any) -> Forecaster:
        """Return the model of this explanation; raises where the given one is another."""
        if model is None and self.forecaster is not None:
            return self.forecaster
        if model is None:
            raise HrxError(
                "This explanation was read from a file, without its model. Give it: x.score(hrx.load(NAME))."
            )
        found = as_forecaster(model)
        if found is not self.forecaster and found.identity.fingerprint != self.model.fingerprint:
            raise HrxError(
                f"{found.identity.model} has other weights than the model of this explanation, {self.model.name} "
                f"(sha256 {self.model.fingerprint[:12]}). Give that model, or explain again."
            )
        return found

    def quantities(self) -> Quantities:
        """`score()` under the default protocol."""
        return self.score()

    def plot(
        self,
        item: str | int | None = None,
        *,
        by_row: bool = False,
        ax: Axes | None = None,
        figsize: tuple[float, float] | None = None,
    ) -> Figure:
        """Draw the heat map of one series, by default the first: window and forecast, and what each step reads.

        `by_row` divides each row by its own maximum; into `ax` goes the matrix alone.

        With covariates one heat map for each channel; that of a channel known ahead runs past the forecast line.
        """
        from hrx.reports.channels import channels_heatmap
        from hrx.reports.heatmap import heatmap_figure

        if self.parts:
            return channels_heatmap(self, self.place(item))
        return heatmap_figure(self, self.place(item), by_row=by_row, ax=ax, figsize=figsize)

    def plot_channels(self, item: str | int | None = None) -> Figure:
        """Draw the effect of each channel with its error, and its share at each step; it needs covariates."""
        from hrx.reports.channels import channels_figure

        return channels_figure(self, self.place(item))

    def plot_steps(
        self, steps: Sequence[int], item: str | int | None = None, *, figsize: tuple[float, float] | None = None
    ) -> Figure:
        """Draw the rows of some forecast steps, counted from 1, below the series: `x.plot_steps([1, 12, 24])`."""
        from hrx.reports.heatmap import steps_figure

        return steps_figure(self, steps, self.place(item), figsize)

    def plot_profile(
        self, item: str | int | None = None, *, ax: Axes | None = None, figsize: tuple[float, float] | None = None
    ) -> Figure:
        """Importance by lag, the distance from an input to the forecast step, with the season marked where known."""
        from hrx.reports.heatmap import profile_figure

        return profile_figure(self, self.place(item), ax, figsize)

    def plot_waterfall(self, step: int, item: str | int | None = None, *, top: int = 10) -> Figure:
        """How the largest `top` contributions of inputs add up to the forecast of one step, counted from 1.

        It needs an estimator with a sign. Contributions of integrated gradients add up from the forecast of a flat
        window at the mean. A slope is multiplied by the input's distance from the mean of the window, a first-order
        contribution: what they leave over is the base.
        """
        from hrx.reports.heatmap import waterfall_figure

        return waterfall_figure(self, step, self.place(item), top)

    def widget(self) -> AnyWidget:
        """Return the interactive heat map of the report page, for a notebook; it needs anywidget, the extra `notebook`.

        Its traits `series`, `step` and `position` follow the cell that the reader chooses.
        """
        from hrx.reports.page.explain import heatmap_widget

        return heatmap_widget(self)

    def write_page(self, path: str | Path) -> Path:
        """Writes the page of `hrx explain`, for one series explained with `held_out=True`. Returns its path."""
        from hrx.reports.page.explain import write_explanation

        if len(self) != 1 or not self.held_out:
            raise HrxError("A page shows one series and its held-out scores: hrx.explain(…, held_out=True)[NAME].")
        return write_explanation(self, path)

    def _repr_html_(self) -> str:
        """Return the heat maps of the first series, for a notebook."""
        from hrx.reports.heatmap import picture
        from hrx.reports.page import render

        return render(
            "explanation.html",
            about=repr(self).removeprefix("<Explanation of ").removesuffix(">"),
            notes=self.notes,
            pictures=[picture(self.plot(number)) for number in range(min(len(self), _MOST_SHOWN))],
            more=len(self) - _MOST_SHOWN,
        )


def as_forecaster(model: Any) -> Forecaster:
    """Return the forecaster of a name, a path, or an object that holds one."""
    from hrx.adapters.formats.module import held_model
    from hrx.adapters.registry import load

    return load(str(model)) if isinstance(model, str | Path) else held_model(model)


def reads_own_unit(model: Forecaster, season: int, scale: tuple[float, float] | None) -> Forecaster:
    """Return the model on values in the unit of a series with that season; 1 where it has none, or none is known."""
    from hrx.adapters.wrapped import in_own_unit

    return in_own_unit(model.for_season(season) if season > 1 else model, scale)
