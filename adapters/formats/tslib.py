"""A trained run of a Time-Series-Library checkout, run by the code of that checkout.

The official call is the evaluation step of the checkout's own experiment class, on one batch and with a criterion that
keeps the forecast. `predict` calls the model with what that step feeds it: the window, the end of the window followed
by zeros as decoder input, and the time marks of both. Windows have no dates: all get the marks of one calendar, which
starts on Monday 2018-01-01, in the run's own frequency and encoding.

A checkout names its packages `models`, `layers`, `utils`, `exp`. They are imported in isolation: other modules of these
names stay as they are. Its data loaders are not imported: they need packages that a forecast does not.
"""

import importlib
import random
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from hrx.adapters.checkpoint import CheckpointForecaster, second_module
from hrx.adapters.contract import Limits, ModelError, model_errors
from hrx.adapters.families import Family
from hrx.adapters.formats.tslib_run import ARGUMENTS, CheckoutRun

FAMILY = Family("tslib", f"{__name__}:TimeSeriesLibraryRun", "torch")
"""Its library is a user's checkout, which no package installs."""
_COUPLED = ("TimesNet", "MSGNet")
"""Models whose forecast of a window depends on the other windows of its batch: they get one window at a time."""
_FIRST_DATE = "2018-01-01"
_OFFSETS = {"t": "min", "d": "D", "b": "B", "w": "W", "m": "MS", "a": "YS"}
"""Letters of the library that are not pandas' names of a step."""
_ON_CPU = {"use_gpu": False, "use_multi_gpu": False, "use_amp": False}
_lock = RLock()


class TimeSeriesLibraryRun(CheckpointForecaster):
    """Forecast of one trained run, at the lookback and horizon of the run."""

    official_call = "Exp_Long_Term_Forecast.vali"
    scale = "standardised"  # by its library; a run does not store mean and standard deviation
    checkpoint: CheckoutRun

    def open_library(self) -> Any:
        run = self.checkpoint
        self._configs = Namespace(**(run.arguments | _ON_CPU), device=torch.device("cpu"))
        name, needed = run.arguments["model"], "Install the packages in its requirements.txt that it needs, or correct"
        with _isolated(run.checkout):
            with model_errors(f"{run.checkout} cannot be imported for {name}", f"{needed} the checkout."):
                model = importlib.import_module(f"models.{name}")
                create = model.Model if hasattr(model, "Model") else getattr(model, name)
                self._experiment = importlib.import_module("exp.exp_long_term_forecasting").Exp_Long_Term_Forecast
                time_features = importlib.import_module("utils.timefeatures").time_features
            module = _build(run, create, self._configs)
            self._marks = _calendar(run, time_features)
        _load_weights(run, module, {self.module_name(name): tensor for name, tensor in run.tensors()})
        return module

    def module_name(self, stored: str) -> str:
        return stored.removeprefix("module.")  # a run on several GPUs

    def read_limits(self) -> Limits:
        lookback, horizon = self.checkpoint.setting
        variates = int(self._configs.enc_in)
        several = variates > 1
        predicted = (variates - 1,) if several and self._configs.features == "MS" else None
        return Limits(
            lookback, lookback, lookbacks=(lookback,), longest_horizon=horizon,
            multivariate=several, channels=variates if several else None, predicted=predicted,
            alone=self._configs.model in _COUPLED,
        )  # fmt: skip

    def prepare(self) -> None:
        # The evaluation step ends in training mode, so it gets a module object of its own.
        self._official: Any = self._experiment.__new__(self._experiment)
        self._official.args = self._configs
        self._official.model = second_module(self.module)
        self._official.device = torch.device("cpu")
        if not self.is_converted and self._reads_marks():
            self.official_call = f"{type(self).official_call}, on the calendar from {_FIRST_DATE}"

    def _reads_marks(self) -> bool:
        """Whether the forecast of a wave changes with the time marks."""
        lookback, variates = self.checkpoint.setting[0], int(self._configs.enc_in)
        wave = torch.sin(torch.arange(lookback) / 3.0)[None, :, None].expand(1, lookback, variates)
        calendar, forecasts = self._marks, []
        for marks in (calendar, [torch.zeros_like(mark) for mark in calendar]):
            with torch.no_grad(), torch.random.fork_rng(devices=()):
                torch.manual_seed(0)  # a model that samples draws the same numbers twice
                self._marks = marks
                forecasts.append(self._run(wave.clone()))
        self._marks = calendar
        return not torch.equal(*forecasts)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        windows = x if self.limits.multivariate else x[..., None]
        y = self._run(windows)
        return y[:, :horizon] if self.limits.multivariate else y[:, :horizon, 0]

    def _run(self, windows: Tensor) -> Tensor:
        """`(B, L, C) -> (B, pred_len, K)`."""
        count, lookback, variates = windows.shape
        ahead = windows.new_zeros(count, self._configs.pred_len, variates)
        decoder = torch.cat([windows[:, lookback - self._configs.label_len :], ahead], dim=1)
        known, both = (mark.to(windows).expand(count, -1, -1) for mark in self._marks)
        output = self.module(windows, known, decoder, both)
        last_only = self._configs.features == "MS"
        y = output[:, -self._configs.pred_len :]
        y = y[..., -1:] if last_only else y
        wanted = (count, self._configs.pred_len, 1 if last_only else variates)
        if y.shape != wanted:
            raise ModelError(
                f"{self._configs.model} of {self.checkpoint.checkout} forecasts shape {tuple(output.shape)} of windows "
                f"{tuple(windows.shape)}, not {wanted}. Check c_out in {self.checkpoint.path / ARGUMENTS}."
            )
        return cast(Tensor, y)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        windows = x.detach() if self.limits.multivariate else x.detach().unsqueeze(2)
        y = self._evaluate(windows)
        return y[:, :horizon] if self.limits.multivariate else y[:, :horizon].squeeze(2)

    def _evaluate(self, windows: Tensor) -> Tensor:
        """`(B, L, C) -> (B, pred_len, K)` by the experiment's step on one batch of its loader's shape."""
        settings, forecasts = self._configs, list[Tensor]()

        def criterion(forecast: Tensor, actual: Tensor) -> Tensor:
            forecasts.append(forecast)
            return torch.zeros(())

        # The loader's second item: as many last values of the window as label_len says, and the future, of which the
        # step takes the shape only.
        future = torch.full((len(windows), settings.pred_len, windows.shape[2]), torch.nan, dtype=windows.dtype)
        values = torch.cat([windows, future], dim=1)[:, -(settings.label_len + settings.pred_len) :]
        marks = [torch.stack([mark] * len(windows)) for mark in self._marks]
        with redirect_stdout(sys.stderr):
            self._official.vali(None, [(windows.clone(), values, *marks)], criterion)
        return torch.cat(forecasts)


@contextmanager
def _isolated(checkout: Path) -> Iterator[None]:
    """The checkout is first on the import path, and its modules are removed afterwards."""
    names = {entry.stem for entry in checkout.iterdir() if entry.is_dir() or entry.suffix == ".py"} | {"data_provider"}

    def removed() -> dict[str, ModuleType]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in names}

    with _lock, warnings.catch_warnings(), redirect_stdout(sys.stderr):
        path, hidden = list(sys.path), removed()
        try:
            sys.path.insert(0, str(checkout))
            importlib.invalidate_caches()
            sys.modules |= {module.__name__: module for module in _without_data()}
            yield
        finally:
            removed()
            sys.path[:] = path
            sys.modules |= hidden


def _without_data() -> list[ModuleType]:
    """In place of the checkout's data loaders: a function that the experiment imports and its step does not call."""

    def data_provider(*_: Any, **__: Any) -> None:
        raise ModelError("The model reads its training data when it is built, which hrx does not give it.")

    package, factory = ModuleType("data_provider"), ModuleType("data_provider.data_factory")
    package.__path__ = []
    factory.data_provider = data_provider  # type: ignore[attr-defined]
    package.data_factory = factory  # type: ignore[attr-defined]
    return [package, factory]


def _build(run: CheckoutRun, create: Callable[[Namespace], Any], configs: Namespace) -> torch.nn.Module:
    """Untrained model; the caller's random states stay as they are."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 (the checkout's code draws from it)
    what = f"{configs.model} of {run.checkout} cannot be built with the arguments of {run.name}"
    advice = f"Write arguments that neither run.py nor the folder's name holds to {run.path / ARGUMENTS}."
    try:
        with model_errors(what, advice), torch.random.fork_rng(devices=[]):
            module = create(configs)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{configs.model} of {run.checkout} is a {type(module).__name__}, not a torch.nn.Module.")
    return module


def _load_weights(run: CheckoutRun, module: torch.nn.Module, stored: dict[str, Tensor]) -> None:
    """Loads the state dict; a parameter that does not match is named."""
    built = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    there = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    for name in [*built, *there]:
        if built.get(name) != there.get(name):
            shapes = [f"shape {shapes[name]}" if name in shapes else "absent" for shapes in (there, built)]
            raise ModelError(
                f"{run.weights[0]} does not match {run.arguments['model']} with the arguments of the run: {name} is "
                f"{shapes[0]} in the file and {shapes[1]} in the model. Write arguments that the folder's name "
                f"does not hold, such as enc_in, freq or moving_avg, to {run.path / ARGUMENTS}."
            )
    module.load_state_dict(stored)


def _calendar(run: CheckoutRun, time_features: Callable[..., Any]) -> list[Tensor]:
    """Time marks of a window `(L, F)` and of the decoder's input `(label_len + pred_len, F)`, from the first date on.

    They are encoded as the library's loaders encode dates.
    """
    lookback, horizon = run.setting
    label, freq = run.arguments["label_len"], run.arguments["freq"]
    what = f"{run.checkout} has no time marks of the frequency {freq!r}"
    with model_errors(what, f"Write freq, for example h or t, to {run.path / ARGUMENTS}."):
        dates = pd.date_range(_FIRST_DATE, periods=lookback + horizon, freq=_OFFSETS.get(freq, freq))
        if run.arguments["embed"] == "timeF":
            marks = np.asarray(time_features(dates, freq=freq)).T
        else:
            parts = [dates.month, dates.day, dates.weekday, dates.hour, dates.minute // 15]
            marks = np.stack(parts[: 5 if freq == "t" else 4], axis=1)
    every = torch.as_tensor(np.ascontiguousarray(marks), dtype=torch.float32)
    return [every[:lookback], every[lookback - label :]]
