"""Forecasters without derivatives: a function of arrays, of frames, or a sampler with its seed.

They are called as they are, so there is nothing to compare their forecast with. Estimators that need no gradient
explain them; `label` says in every table what they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster, Identity, Limits, ModelError
from hrx.adapters.formats.module import fingerprint
from hrx.adapters.inputs import Column, Inputs, Role, Window
from hrx.errors import describe_error

NOISE_SEEDS = 5
"""Seeds whose forecasts are compared to state how much a sampler varies."""
_ANY = Role("optional", categorical="native")


class BlackBox(Forecaster):
    """A function called with numbers only: `(B, L) -> (B, H)` without a path for gradients."""

    differentiable = False
    reads_units = True

    def __init__(self, function: Callable[..., Any], label: str, limits: Limits, *, frame: bool, seeded: bool):
        self.function, self.limits, self._frame, self._seeded = function, limits, frame, seeded
        kind = "sampler" if seeded else "black box"
        library = f"numpy {np.__version__}"
        self.identity = Identity(f"{label} ({kind})", "callable", label, fingerprint(function), library)
        self.official_call = f"{label}(x, horizon, seed=0)" if seeded else label
        self.inputs = Inputs(past=_ANY, future=_ANY, static=_ANY) if frame else Inputs()
        self._takes_horizon = not (frame or seeded) and "horizon" in inspect.signature(function).parameters
        self._alone = False
        self._calls_compared = not seeded

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self._forecast(Window(x[..., None]), horizon)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        return self.predict(x, horizon)

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        return self._forecast(window, horizon)[..., None, None].expand(-1, -1, -1, len(columns))

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        return self.predict_window(window, horizon, columns)

    def noise(self, x: Tensor, horizon: int) -> Tensor:
        """`(B, H)`: standard deviation of the forecast over seeds; zero for a function that takes none."""
        if not self._seeded:
            return x.new_zeros(len(x), horizon)
        window = Window(x[..., None])
        return torch.stack([self._forecast(window, horizon, seed) for seed in range(NOISE_SEEDS)]).std(dim=0)

    def _forecast(self, window: Window, horizon: int, seed: int = 0) -> Tensor:
        window = window.map(lambda one: one.detach().cpu())
        if not self._calls_compared:  # the random numbers of a window must not depend on its place in the batch
            twice = self._call(window.map(lambda one: one[[0, 0]]), horizon, seed)
            self._alone, self._calls_compared = not np.array_equal(twice[0], twice[1]), True
        single = [window.map(lambda one, at=at: one[at : at + 1]) for at in range(len(window))]  # type: ignore[misc]
        parts = [self._call(one, horizon, seed) for one in (single if self._alone else [window])]
        return torch.as_tensor(np.concatenate(parts)).to(window.target)

    def _call(self, window: Window, horizon: int, seed: int) -> np.ndarray[Any, Any]:
        """`(B, H)` of one call of the function, which gets objects of its own."""
        given = self._frames(window, horizon) if self._frame else (window.target[..., 0].double().numpy().copy(),)
        more: tuple[Any, ...] = (horizon, seed) if self._seeded else (horizon,) if self._takes_horizon else ()
        name = self.identity.checkpoint
        try:
            returned = self.function(*given, *more)
            y = np.asarray(returned, dtype=np.float64)
        except Exception as error:  # a user's function may raise anything
            raise ModelError(f"{name} failed on {len(window)} windows: {describe_error(error)}.") from error
        if y.size == len(window) * horizon:  # a column of the future frame, say
            y = y.reshape(len(window), horizon)
        if y.ndim != 2 or len(y) != len(window) or y.shape[1] < horizon:
            raise ModelError(
                f"{name} returned shape {y.shape} for {len(window)} windows and a horizon of {horizon}. Return "
                f"({len(window)}, {horizon})."
            )
        if not np.isfinite(y[:, :horizon]).all():
            raise ModelError(f"{name} returned a forecast that is NaN or infinite. Return finite numbers.")
        return y[:, :horizon]

    def _frames(self, window: Window, horizon: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        """One row per window and step: those up to now, from 1 − L to 0, and those ahead, from 1 to H."""
        count, lookback = window.target.shape[:2]
        past, ahead = _index(count, np.arange(1 - lookback, 1)), _index(count, np.arange(1, horizon + 1))
        past[window.names.get("target", ("y",))[0]] = window.target[..., 0].flatten().numpy()
        for role, values in window.roles():
            for name, column in zip(window.named(role), values.unbind(-1), strict=True):
                if role == "past":
                    past[name] = column.flatten().numpy()
                if role == "future":
                    past[name] = column[:, :lookback].flatten().numpy()
                    ahead[name] = column[:, lookback:].flatten().numpy()
                if role == "static":
                    past[name], ahead[name] = (np.repeat(column.numpy(), steps) for steps in (lookback, horizon))
        return past, ahead


def _index(count: int, steps: np.ndarray[Any, Any]) -> pd.DataFrame:
    return pd.DataFrame({"window": np.repeat(np.arange(count), len(steps)), "step": np.tile(steps, count)})


def from_callable(
    function: Callable[..., Any],
    *,
    frame: bool = False,
    seeded: bool = False,
    name: str | None = None,
    limits: Limits | None = None,
) -> BlackBox:
    """Return a forecaster of a function without derivatives, such as trees, a statistical model or a service.

    The function maps an array of windows `(B, L)` to forecasts `(B, H)`; it may take `horizon` as well. With `frame` it
    gets two frames with columns `window`, `step` and the columns of the data: the steps up to now (from 1 − L to 0),
    and the steps ahead (1 to H) with what is known of them; it returns one number for each row of the second. With
    `seeded` it is `f(x, horizon, seed)`, a sampler: all windows are forecast under one seed.

    It is explained by estimators that need no gradient: `occlusion` (the default), `shapley_segments`, `winit`, or a
    function of yours. `hrx.from_module` is for what torch can differentiate.

        import numpy as np
        last_day = hrx.from_callable(lambda x: x[:, -24:], name="seasonal naive")
        x = hrx.explain(last_day, np.random.default_rng(0).normal(size=400), horizon=24, lookback=96)
        x.matrix[0, 0].argmax() // 6 * 6    # 72, where the last day begins
    """
    if not callable(function):
        raise ModelError(f"A {type(function).__name__} is not a function of windows. Give one (B, L) -> (B, H).")
    if frame and seeded:
        raise ModelError("frame=True and seeded=True exclude each other: a sampler is f(x, horizon, seed) of arrays.")
    label = str(name or getattr(function, "__name__", type(function).__name__))
    return BlackBox(function, label, limits or Limits(), frame=frame, seeded=seeded)
