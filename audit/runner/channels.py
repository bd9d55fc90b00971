"""Runs whose series has covariates, or that explain another output than the point forecast.

The model is bound to the channels that it takes, in their own units; errors and variances are then put on the scale
that standardises the target, as those of every other run.
"""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster
from hrx.adapters.inputs import POINT, ROLES, Inputs, Layout, RoleName, Window
from hrx.adapters.wrapped import Bound
from hrx.audit.attribution import Estimate
from hrx.audit.covariates import (
    BLOCKS,
    channel_effects,
    channel_errors,
    effect_forecasts,
    replaced_rows,
    standardised,
    with_sensitivity,
)
from hrx.audit.memory import MemoryBudget
from hrx.audit.runner.plan import Run
from hrx.audit.scoring.quantities import Unscorable, effective_lookback
from hrx.gift_eval.covariates import Arrays, ChannelWindows, CovariateSeries
from hrx.gift_eval.series import MultivariateSeries, Series
from hrx.gift_eval.windows import statistics, test_start
from hrx.records.channels import TREATMENTS, to_json
from hrx.records.quantities import Floats, Ints, Quantities
from hrx.records.record import Value


def bind(model: Forecaster, run: Run) -> "BoundRun | None":
    """Bind a model to a run's channels and output; None for a run of one series and the point forecast.

    Raises where the model needs a channel that the series lacks, or does not give the output.
    """
    if not run.bound:
        return None
    assert isinstance(run.series, Series)
    data, horizon = CovariateSeries(run.series), run.setting.horizon
    left_out = covariates_left_out(model, run)
    window = _window(data.region(run.setting.lookback, horizon, 1).arrays, data, left_out)
    if refusal := model.inputs.refusal(window.names, window.categorical) or model.outputs.refusal(run.output):
        raise Unscorable(f"{model.identity.model} {refusal}")
    layout = Layout.of(window, horizon, data.kinds)
    if len(layout.channels) == 1 and run.output == POINT:
        return None
    return BoundRun(Bound(model, layout, 0, run.output), run, data, left_out)


def covariates_left_out(model: Forecaster, run: Run) -> dict[str, str]:
    """Covariates of a run that its model does not read, with the reason."""
    if run.series is None or not run.series.covariates:
        return {}
    data, found = CovariateSeries(run.series), dict[str, str]()
    for role in ROLES[1:]:
        names, taken = data.names.get(role, ()), getattr(model.inputs, role)
        if isinstance(run.series, MultivariateSeries):
            found |= dict.fromkeys(names, "runs of several variates read no covariates")
            continue
        if taken.categorical == "no":
            found |= {name: "categorical, and the model takes numbers only" for name in names if name in data.labels}
        own = tuple(name for name in names if name not in found)
        one_role: dict[str, Any] = {role: taken}
        if own and (refusal := Inputs(**one_role).refusal({"target": data.names["target"], role: own})):
            found |= dict.fromkeys(own, refusal)
    return found


@dataclass(frozen=True)
class BoundRun:
    """A model bound to the channels of a run that it takes."""

    model: Bound
    run: Run
    data: CovariateSeries
    left_out: Mapping[str, str]
    """Covariates that the model does not take, with the reason."""

    @property
    def layout(self) -> Layout:
        return self.model.layout

    @cached_property
    def point(self) -> Bound:
        """The same model, explaining its point forecast: errors and variances are those of it, for every output."""
        return self.model.giving(POINT)

    @cached_property
    def scale(self) -> tuple[float, float]:
        """Mean and standard deviation that standardise the target."""
        (mean,), (std,) = statistics(self.data.series, self.layout.horizon)
        return mean, std

    @cached_property
    def blocks(self) -> dict[str, Floats]:
        """Blocks of each channel from before the test region."""
        end = test_start(self.data.series, self.layout.horizon)
        return {one.name: self.data.blocks(one.name, one.length, end) for one in self.layout.channels}

    def windows(self, starts: Ints) -> Tensor:
        """`(W, P)`: the run's windows whose forecasts begin at `starts`."""
        cut = self.data.windows(self.layout.lookback, self.layout.horizon, self.run.windows, self.run.seed)
        return self._packed(cut)[np.isin(cut.starts, starts)]

    def region(self, count: int) -> Tensor:
        """`(n, P)`: at most `count` windows, evenly spaced over the test region."""
        return self._packed(self.data.region(self.layout.lookback, self.layout.horizon, count))

    def _packed(self, cut: ChannelWindows) -> Tensor:
        """Windows of the channels; raises where one lacks values that the model needs."""
        x = self.layout.pack(_window(cut.arrays, self.data, self.left_out))
        if refusal := self.model.refusal_of_missing(x):
            raise Unscorable(f"{self.model.identity.model} {refusal}")
        return x

    def standard(self, forecast: Tensor) -> Tensor:
        """Point forecasts on the scale of the target; of another output its change."""
        mean, std = self.scale
        return (forecast.double() - mean) / std

    def matrix(self, explanation: Estimate, x: Tensor, budget: MemoryBudget) -> Tensor:
        """`(W, R, P)`: changes of the forecast per standard deviation of each channel."""
        if not explanation.steps:
            raise Unscorable("several channels are explained step by step: drop --axis whole")
        rows = replaced_rows(self.model, x, self.blocks, seed=self.run.protocol.seed, budget=budget)
        scales = self.data.scales(self.layout.horizon)
        return standardised(self.model, explanation.matrix, scales, rows, explanation.steps)

    def of_target(self, quantities: Quantities, matrix: Tensor, steps: Sequence[int]) -> Quantities:
        """Quantities with the variance, and what is not divided by it, on the scale of the target, and with how far
        back its rows reach."""
        unit = self.scale[1] ** 2
        raw = {name: value / (1 if name == "insertion" else unit) for name, value in quantities.raw._asdict().items()}
        lags = effective_lookback(matrix[..., : self.layout.lookback])
        rows = np.searchsorted(np.array(steps) - 1, quantities.scored_steps)
        return replace(
            quantities,
            variance=quantities.variance / unit,
            raw=quantities.raw._replace(**raw),
            effective_lookback=float(lags.nanmean()),
            effective_lookback_steps=lags[:, rows].nanmean(dim=0).numpy(),
        )

    def columns(
        self, x: Tensor, matrix: Tensor, truth: Floats, variance: float, steps: Ints, budget: MemoryBudget
    ) -> dict[str, Value]:
        """Columns of the record: effects at the scored `steps`, and errors against `truth` `(W, H)`, standardised."""
        shared: dict[str, Any] = {"seed": self.run.protocol.seed, "stream": self.run.stream, "budget": budget}
        effects = channel_effects(self.model, x, self.blocks, variance, **shared)
        mean, std = self.scale
        treated = channel_errors(self.point, x, torch.as_tensor(truth) * std + mean, std, **shared)
        means = {name: {how: float(at.mean()) for how, at in own.items()} for name, own in treated.items()}
        found = [replace(one, errors=means.get(one.name)) for one in with_sensitivity(effects, self.model, matrix)]
        return {
            "channels": len(self.layout.channels),
            "channels_forecast": 1,
            "roles": json.dumps({role: list(names) for role, names in self.layout.names.items()}),
            "channel_effects": to_json([one.at(steps) for one in found]),
        }

    @property
    def forecasts(self) -> int:
        """Forecasts per window at most, beyond those of the sweep."""
        replaced = sum(one.length for one in self.layout.channels if not one.has_slope)
        treated = (len(self.layout.channels) - 1) * (BLOCKS + len(TREATMENTS) - 1)
        return effect_forecasts(self.model) + replaced + treated


def _window(arrays: Arrays, data: CovariateSeries, left_out: Container[str]) -> Window:
    """Window of the channels that are not left out."""
    values: dict[str, Any] = {}
    names: dict[RoleName, tuple[str, ...]] = {}
    for role, every in data.names.items():
        kept = [place for place, name in enumerate(every) if name not in left_out]
        if kept:
            values[role] = torch.as_tensor(arrays[role][..., kept], dtype=torch.float32)
            names[role] = tuple(every[place] for place in kept)
    codes = frozenset(name for own in names.values() for name in own if name in data.labels)
    return Window(**values, names=names, categorical=codes)
