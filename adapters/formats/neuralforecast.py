"""Models that `neuralforecast` trained, from a directory that `NeuralForecast.save` wrote.

The official call is `NeuralForecast.predict` on a data frame with one series per window. Lightning runs it in inference
mode, so `predict` runs the parts itself: local scaler, window scaler, network, the loss's map to the domain of the
target, and the inverses of both scalers.

A model keeps the statistics of the last window, and the official call a trainer. So the loaded module is never run: two
further objects share its weights, one for each call. The library seeds torch with a stored number before it forecasts,
which would hide a sampled forecast, so the seed is drawn from the caller's random state, and that state is restored.
Informer is the exception: the stored number decides which keys it attends to, whatever the window, and `predict` draws
the same.
"""

import copy
import logging
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import HuberIQLoss, IQLoss
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor

from hrx.adapters.checkpoint import second_module
from hrx.adapters.contract import Forecaster, Limits, ModelError
from hrx.adapters.families import Family
from hrx.adapters.formats.trained import CONFIGURATION, SIDECAR, SavedModel, saved_models, training_scale
from hrx.adapters.inputs import Column, Inputs, Outputs, Role, RoleName, Window
from hrx.adapters.registry import LocatedCheckpoint
from hrx.adapters.windows import WindowForecaster, as_levels

FAMILY = Family(
    "neuralforecast", f"{__name__}:NeuralForecastModel", "neuralforecast", "neuralforecast",
    also=("pytorch-lightning",),
    inputs=Inputs((1, None), past=Role("optional"), future=Role("optional"), static=Role("optional")),
)  # fmt: skip
_SEEDED = ("Informer",)
"""Classes that draw positions of the window while they forecast, by the seed that is stored with the weights."""
_COUPLED = ("TimesNet", "StemGNN", *_SEEDED)
"""Classes whose forecast of a window depends on its batch: they get one window at a time."""
_MEDIANS = ("", "-median", "_ql0.5")
"""What the official call appends to a model's name in the column of its point forecast."""
TRAINER = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
TRAINER |= {"enable_progress_bar": False, "enable_model_summary": False}
"""In place of the stored settings, which may name other hardware, number types and loggers."""


class NeuralForecastModel(WindowForecaster):
    """Forecast of one saved model; its point forecast is the median of a model that forecasts quantiles."""

    official_call = "NeuralForecast.predict"
    ignored = ("__hparams__.*",)  # arrays among the stored arguments
    reads_units = True
    checkpoint: SavedModel

    def open_library(self) -> Any:
        self._saved: Any = _load_alone(self.checkpoint)
        return self._saved.models[0]

    def read_limits(self) -> Limits:
        model = self.module
        if reason := _refusal(model, self._saved):
            return Limits(never=reason)
        lookback, several = int(model.input_size), model.MULTIVARIATE and int(model.n_series) > 1
        count = int(model.n_series) if several else 1
        self.inputs = Inputs((count, count), *(_role(names) for names in _exogenous(model).values()))
        quantiles = getattr(model.loss, "quantiles", None)
        levels = () if quantiles is None or "" in model.loss.output_names else quantiles.tolist()
        median = isinstance(model.loss, IQLoss | HuberIQLoss) or bool(levels)
        self.outputs = Outputs(tuple(sorted(round(level, 6) for level in levels)), point="median" if median else "")
        exogenous = [name for names in _exogenous(model).values() for name in names]
        return Limits(
            lookback, lookback, lookbacks=(lookback,), longest_horizon=int(model.h),
            multivariate=several, channels=count if several else None,
            # A model of several series has one static value for each of them, not for each window.
            alone=type(model).__name__ in _COUPLED or bool(model.MULTIVARIATE and model.stat_exog_list),
            needs=f"reads the exogenous variables {', '.join(exogenous)}, which a series alone does not hold: name "
            "their columns with past=, future= and static=" if exogenous else "",
        )  # fmt: skip

    def prepare(self) -> None:
        self.scale = training_scale(self.checkpoint.path) or "raw"
        self.reads_units = self.scale == "raw"
        if self.limits.never:
            return
        self._second: Any = second_module(self.module)
        if isinstance(self._second.loss, IQLoss | HuberIQLoss):
            self._second.loss.update_quantile(q=[0.5])  # it takes the quantile as an input
        self._official: Any = copy.copy(self._saved)
        self._official.models = [second_module(self.module)]
        self._official.freq = 1  # whole numbers as times: no model reads them
        self._official.models[0].trainer_kwargs = TRAINER | {"max_steps": 1}
        self._seeded = type(self.module).__name__ in _SEEDED
        self._lock = Lock()

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        with self._lock:
            y = self._run(window)[:, :horizon]
        if y.shape[-1] == 1:
            return y.expand(*y.shape[:-1], len(columns))
        trained = self._second.loss.quantiles
        return y[..., [int(torch.argmin((trained - level).abs())) for level in as_levels(columns)]]

    def _run(self, window: Window) -> Tensor:
        """`(B, h, K, Q)`: the network between its scalers."""
        lookback, scaler = window.target.shape[1], self._saved.local_scaler_type
        scaled, shift, scale = window, torch.zeros(()), torch.ones(())
        if scaler:  # each column by its own past
            shift, scale = (one[..., None] for one in _local_statistics(window.target, scaler))
            parts = {
                role: _locally_scaled(values, lookback, scaler) for role, values in window.roles() if role != "static"
            }
            scaled = replace(window, **cast(dict[str, Any], parts))
        with torch.random.fork_rng(devices=(), enabled=self._seeded):
            if self._seeded:  # the state of torch's generator in which the official call runs the network
                torch.manual_seed(self._second.random_seed)
                torch.empty((), dtype=torch.int64).random_()  # the base seed that a DataLoader draws
            y = run_network(self._second, scaled)
        return y * scale + shift if scaler else y

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        # All series of a frame are the variates of one window for a model that reads several.
        parts = window.each() if self.module.MULTIVARIATE else [window]
        with self._lock, isolate_rng(), quiet():
            if not self._seeded:
                self._official.models[0].random_seed = int(torch.randint(2**31, ()))
            return torch.cat([self._forecast_frame(part, columns) for part in parts])[:, :horizon]

    def _forecast_frame(self, window: Window, columns: Sequence[Column]) -> Tensor:
        """`(B, h, K, Q)` by the library's public call; every series of a window has the window's covariates."""
        count, lookback, variates = window.target.shape
        item, time, target = self._official.id_col, self._official.time_col, self._official.target_col
        items, times = np.arange(count * variates), np.arange(lookback + self.module.h)
        frame = pd.DataFrame({item: np.repeat(items, len(times)), time: np.tile(times, len(items))})
        named: dict[str, Tensor] = {}
        for role, values in window.roles():
            named |= zip(window.named(role), values.repeat_interleave(variates, dim=0).unbind(-1), strict=True)
            for name in () if role in ("target", "static") else window.named(role):
                rows = named[name].numpy()
                frame[name] = np.pad(rows, ((0, 0), (0, len(times) - rows.shape[1]))).flatten()
        known, ahead = frame[frame[time] < lookback].copy(), frame[frame[time] >= lookback]
        known[target] = window.target.transpose(1, 2).flatten().numpy()
        more: dict[str, Any] = {}
        if window.future is not None:
            more["futr_df"] = ahead[[item, time, *window.named("future")]]
        if window.static is not None:
            static = {name: named[name].numpy() for name in window.named("static")}
            more["static_df"] = pd.DataFrame({item: items} | static)
        forecast = self._official.predict(known, **more).sort_values([item, time])
        alias = repr(self._official.models[0])
        by_level = {_level(name.removeprefix(alias)): forecast[name] for name in forecast if name.startswith(alias)}
        chosen = [by_level[0.5 if one == "point" else one].to_numpy(copy=True) for one in columns]
        return torch.from_numpy(np.stack(chosen, axis=-1)).reshape(count, variates, -1, len(columns)).transpose(1, 2)


def fitted_models(library: Any) -> list[Forecaster]:
    """Models of a fitted `NeuralForecast`, as it would save and open them; the object itself stays as it is."""
    if not getattr(library, "_fitted", False):
        raise ModelError("This NeuralForecast is not fitted. Call its fit first.")
    directory = TemporaryDirectory(prefix="hrx-")
    with quiet():
        library.save(directory.name, save_dataset=False, overwrite=True)
    found = []
    for saved in saved_models(directory.name):
        alias = saved.name.rpartition(":")[2]
        checkpoint = replace(saved, name=alias, source=alias, directory=directory)
        found.append(LocatedCheckpoint(checkpoint, FAMILY).load())
    return found


def run_network(model: Any, window: Window) -> Tensor:
    """`(B, h, K, Q)`: a model of the library between its window scaler and the inverse of that scaler."""
    lookback, series = window.target.shape[1:]
    values = {"y": torch.nn.functional.pad(window.target, (0, 0, 0, model.h))}
    for role, given in window.roles():
        if role in ("past", "future"):
            whole = torch.nn.functional.pad(given, (0, 0, 0, lookback + model.h - given.shape[1]))
            values |= {name: one[..., None].expand(-1, -1, series) for name, one in _columns(window, role, whole)}
    # The window scaler may have a weight for each column, in an order that the library decides.
    columns = ["y", *model._get_temporal_exogenous_cols(pd.Index([name for name in values if name != "y"]))]
    observed = torch.cat([torch.ones_like(window.target), torch.zeros_like(values["y"][:, lookback:])], dim=1)
    together = torch.stack([values[name] for name in columns], dim=2)
    scaled = model.scaler.transform(x=together, mask=observed[:, :, None])

    def channels(wanted: Sequence[str], length: int) -> Tensor | None:
        """`(B, T, C)`, or `(B, C, T, N)` for a model of several series."""
        if not wanted:
            return None
        chosen: Tensor = scaled[:, :length, [columns.index(name) for name in wanted]]
        return chosen.transpose(1, 2) if model.MULTIVARIATE else chosen[..., 0]

    static = window.static
    if static is not None:
        by_name = dict(_columns(window, "static", static))
        static = torch.stack([by_name[name] for name in model.stat_exog_list], dim=-1)
        static = static.expand(series, -1) if model.MULTIVARIATE else static
    inputs = {
        "insample_y": scaled[:, :lookback, 0], "insample_mask": torch.ones_like(window.target),
        "hist_exog": channels(model.hist_exog_list, lookback), "stat_exog": static,
        "futr_exog": channels(model.futr_exog_list, lookback + model.h),
    }  # fmt: skip
    output = model.loss.domain_map(model(inputs))
    output = output if output.ndim == 4 else output[..., None]  # one forecast, not one per quantile
    shift, scale = (one[:, :, 0, :, None] for one in (model.scaler.x_shift, model.scaler.x_scale))
    return cast(Tensor, model.scaler.inverse_transform(output, shift, scale))


def _columns(window: Window, role: RoleName, values: Tensor) -> Iterator[tuple[str, Tensor]]:
    return zip(window.named(role), values.unbind(-1), strict=True)


def _exogenous(model: Any) -> dict[str, tuple[str, ...]]:
    """Names of the variables of each role; a variable known ahead is not listed as a past one."""
    future = tuple(model.futr_exog_list)
    past = tuple(name for name in model.hist_exog_list if name not in future)
    return {"past": past, "future": future, "static": tuple(model.stat_exog_list)}


def _role(names: tuple[str, ...]) -> Role:
    return Role("required", names) if names else Role()


def _level(suffix: str) -> float | str:
    """Quantile level of a column of the official call; a column without one is the point forecast."""
    if found := re.fullmatch(r"-(lo|hi)-([\d.]+)", suffix):
        return round(0.5 + (float(found[2]) / 200) * (1 if found[1] == "hi" else -1), 6)
    return 0.5 if suffix in _MEDIANS else suffix


def _load_alone(checkpoint: SavedModel) -> Any:
    """Read the directory by the library, with one of its models and without its training data."""
    with TemporaryDirectory() as folder, isolate_rng(), quiet():
        for file in (CONFIGURATION, SIDECAR, checkpoint.file):
            if (checkpoint.path / file).exists():
                os.symlink(checkpoint.path / file, Path(folder) / file)
        return NeuralForecast.load(folder)


def _refusal(model: Any, saved: Any) -> str:
    """Why a model cannot be audited, as a clause; empty if it can."""
    loss = type(model.loss).__name__
    if codes := [*model.hist_cat_exog_list, *model.futr_cat_exog_list, *model.stat_cat_exog_list]:
        return f"reads the categorical variables {', '.join(codes)}, whose codes its library keeps to itself"
    if model.stat_exog_list and saved.local_static_scaler_type:
        return "scales its static variables over all series of a call, so a forecast depends on the other series"
    if model.loss.is_distribution_output:
        return f"was trained with {loss} and samples its forecast, so the forecast has no input gradient"
    if model.RECURRENT:
        return "forecasts step by step from its own forecasts (recurrent=True), which hrx does not run"
    if saved.local_scaler_type == "boxcox":
        return "has the local scaler boxcox, whose exponent is fitted to each window and has no gradient"
    quantiles = getattr(model.loss, "quantiles", None)
    if model.loss.outputsize_multiplier > 1 and (quantiles is None or 0.5 not in quantiles.tolist()):
        return f"was trained with {loss} and forecasts no median"
    return ""


def _locally_scaled(values: Tensor, lookback: int, scaler: str) -> Tensor:
    shift, scale = _local_statistics(values[:, :lookback], scaler)
    return (values - shift) / scale


def _local_statistics(windows: Tensor, scaler: str) -> tuple[Tensor, Tensor]:
    """What is subtracted from windows `(B, L, C)` and what they are divided by, each `(B, 1, C)`.

    The library fits its local scaler anew on the frame that it forecasts from.
    """
    if scaler == "standard":
        shift, scale = windows.mean(dim=1, keepdim=True), windows.var(dim=1, keepdim=True, correction=0).sqrt()
    elif scaler == "minmax":
        shift = windows.amin(dim=1, keepdim=True)
        scale = windows.amax(dim=1, keepdim=True) - shift
    else:
        shift = windows.quantile(0.5, dim=1, keepdim=True)
        if scaler == "robust":
            scale = (windows - shift).abs().quantile(0.5, dim=1, keepdim=True)
        else:
            scale = windows.quantile(0.75, dim=1, keepdim=True) - windows.quantile(0.25, dim=1, keepdim=True)
    return shift, torch.where(scale == 0, 1.0, scale)


@contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's lines about seeds and hardware, and without warnings of the library."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch")]
    levels = {logger: logger.level for logger in loggers}
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
