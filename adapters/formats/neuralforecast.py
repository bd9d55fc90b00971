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
import warnings
from collections.abc import Iterator
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

from hrx.adapters.checkpoint import CheckpointForecaster, second_module
from hrx.adapters.contract import Forecaster, Limits, ModelError
from hrx.adapters.families import Family
from hrx.adapters.formats.trained import CONFIGURATION, SIDECAR, SavedModel, saved_models, training_scale
from hrx.adapters.registry import LocatedCheckpoint

FAMILY = Family(
    "neuralforecast", f"{__name__}:NeuralForecastModel", "neuralforecast", "neuralforecast",
    also=("pytorch-lightning",),
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


class NeuralForecastModel(CheckpointForecaster):
    """Point forecast of one saved model; the median of a model that forecasts quantiles."""

    official_call = "NeuralForecast.predict"
    ignored = ("__hparams__.*",)  # arrays among the stored arguments
    reads_units = True
    checkpoint: SavedModel

    def open_library(self) -> Any:
        self._saved: Any = _load_alone(self.checkpoint)
        return self._saved.models[0]

    def read_limits(self) -> Limits:
        model = self.module
        if reason := _refusal(model, self._saved.local_scaler_type):
            return Limits(never=reason)
        lookback, several = int(model.input_size), model.MULTIVARIATE and int(model.n_series) > 1
        return Limits(
            lookback, lookback, lookbacks=(lookback,), longest_horizon=int(model.h),
            multivariate=several, channels=int(model.n_series) if several else None,
            alone=type(model).__name__ in _COUPLED,
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
        self._official.freq = 1  # whole numbers as times: no model without exogenous variables reads them
        self._official.models[0].trainer_kwargs = TRAINER | {"max_steps": 1}
        self._seeded = type(self.module).__name__ in _SEEDED
        self._lock = Lock()

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        windows = x if self.limits.multivariate else x[..., None]
        with self._lock:
            y = self._run(windows)[:, :horizon]
        return y if self.limits.multivariate else y[..., 0]

    def _run(self, windows: Tensor) -> Tensor:
        """`(B, L, C) -> (B, h, C)`: the network between its scalers."""
        scaler = self._saved.local_scaler_type
        shift, scale = _local_statistics(windows, scaler) if scaler else (0.0, 1.0)
        with torch.random.fork_rng(devices=(), enabled=self._seeded):
            if self._seeded:  # the state of torch's generator in which the official call runs the network
                torch.manual_seed(self._second.random_seed)
                torch.empty((), dtype=torch.int64).random_()  # the base seed that a DataLoader draws
            y = run_network(self._second, (windows - shift) / scale)
        return y * scale + shift

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        windows = x.detach() if self.limits.multivariate else x.detach().unsqueeze(2)
        # All series of a frame are the variates of one window for a model that reads several.
        parts = torch.split(windows, 1) if self.module.MULTIVARIATE else (windows,)
        with self._lock, isolate_rng(), quiet():
            if not self._seeded:
                self._official.models[0].random_seed = int(torch.randint(2**31, ()))
            y = torch.cat([self._forecast_frame(part) for part in parts])
        y = y[:, :horizon]
        return y if self.limits.multivariate else y.squeeze(2)

    def _forecast_frame(self, windows: Tensor) -> Tensor:
        """`(B, L, C) -> (B, h, C)` by the library's public call."""
        count, lookback, variates = windows.shape
        item, time, target = self._official.id_col, self._official.time_col, self._official.target_col
        items, times = np.arange(count * variates), np.arange(lookback)
        frame = pd.DataFrame({item: np.repeat(items, lookback), time: np.tile(times, len(items))})
        frame[target] = windows.transpose(1, 2).flatten().numpy()
        forecast = self._official.predict(frame).sort_values([item, time])
        alias = repr(self._official.models[0])
        column = next(alias + suffix for suffix in _MEDIANS if alias + suffix in forecast)
        y = torch.from_numpy(forecast[column].to_numpy(copy=True))
        return y.reshape(count, variates, -1).transpose(1, 2)


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


def run_network(model: Any, windows: Tensor) -> Tensor:
    """`(B, L, C) -> (B, h, C)`: a model of the library between its window scaler and the inverse of that scaler."""
    ahead = windows.new_zeros(len(windows), model.h, windows.shape[2])
    values = torch.cat([windows, ahead], dim=1)[:, :, None]
    observed = torch.cat([torch.ones_like(windows), ahead], dim=1)[:, :, None]
    scaled = model.scaler.transform(x=values, mask=observed)[:, : model.input_size, 0]
    inputs = {"insample_y": scaled, "insample_mask": torch.ones_like(windows)}
    output = model.loss.domain_map(model(inputs | dict.fromkeys(("futr_exog", "hist_exog", "stat_exog"))))
    if output.ndim == 4:  # one forecast per quantile
        output = output[..., int(torch.argmin((model.loss.quantiles - 0.5).abs()))]
    y = model.scaler.inverse_transform(output, model.scaler.x_shift[:, :, 0], model.scaler.x_scale[:, :, 0])
    return cast(Tensor, y)


def _load_alone(checkpoint: SavedModel) -> Any:
    """Read the directory by the library, with one of its models and without its training data."""
    with TemporaryDirectory() as folder, isolate_rng(), quiet():
        for file in (CONFIGURATION, SIDECAR, checkpoint.file):
            if (checkpoint.path / file).exists():
                os.symlink(checkpoint.path / file, Path(folder) / file)
        return NeuralForecast.load(folder)


def _refusal(model: Any, local_scaler: str | None) -> str:
    """Why a model cannot be audited, as a clause; empty if it can."""
    loss = type(model.loss).__name__
    if exogenous := [*model.futr_exog_list, *model.hist_exog_list, *model.stat_exog_list]:
        return f"reads the exogenous variables {', '.join(exogenous)}, which a window of a series does not hold"
    if model.loss.is_distribution_output:
        return f"was trained with {loss} and samples its forecast, so the forecast has no input gradient"
    if model.RECURRENT:
        return "forecasts step by step from its own forecasts (recurrent=True), which hrx does not run"
    if local_scaler == "boxcox":
        return "has the local scaler boxcox, whose exponent is fitted to each window and has no gradient"
    quantiles = getattr(model.loss, "quantiles", None)
    if model.loss.outputsize_multiplier > 1 and (quantiles is None or 0.5 not in quantiles.tolist()):
        return f"was trained with {loss} and forecasts no median"
    return ""


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
