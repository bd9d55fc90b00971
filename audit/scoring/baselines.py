"""Naive forecasts on the standardised scale, and whether a run beats them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Skill(NamedTuple):
    """Errors of a run's forecasts beside the naive ones."""

    mse: float
    mae: float
    mse_zero: float
    mse_last: float
    mse_seasonal: float
    """Reported beside the verdict, and not part of it."""

    @property
    def beats_naive(self) -> bool:
        """Only a run whose error is below both naive ones has a gain that may be read."""
        return self.mse < self.mse_zero and self.mse < self.mse_last


def skill(forecast: Floats, truth: Floats, last: Floats, seasonal: Floats) -> Skill:
    """Errors of `forecast` `(W, H)` against `truth`; `last` `(W,)` is repeated, `seasonal` is `(W, H)`."""
    return Skill(
        mse=_mse(forecast, truth),
        mae=float(np.mean(np.abs(forecast - truth))),
        mse_zero=_mse(np.zeros_like(truth), truth),
        mse_last=_mse(last[:, None], truth),
        mse_seasonal=_mse(seasonal, truth),
    )


def _mse(forecast: Floats, truth: Floats) -> float:
    return float(np.mean(np.square(forecast - truth)))
