"""Models between the units of a series and standardised values: `InUnits` and its inverse, `Standardising`.

A pretrained model scales its windows itself, so it forecasts standardised ones as well as any. A model that was trained
on a series may expect its level: standardised windows are mapped back to the units of the series before it reads them,
and its forecast is standardised again. So gains and errors have the same scale for all models.

A model that was trained on standardised values gets such, also where the values of a user are in their own units.
"""

from collections.abc import Sequence
from typing import Self

from torch import Tensor

from hrx.adapters.contract import Convert, Forecaster


class InUnits(Forecaster):
    """`base` on windows that were standardised by `mean` and `std`, each one number or one per variate."""

    how = "in the units of the series"
    """What the wrapper adds to the name of the official call."""

    def __init__(self, base: Forecaster, mean: Sequence[float], std: Sequence[float]):
        self.identity = base.identity
        self.limits = base.limits
        self.official_call = f"{base.official_call}, {self.how}"
        self._base, self.mean, self.std = base, tuple(mean), tuple(std)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        mean, std = self._tensors(x)
        return (self._base.predict(x * std + mean, horizon) - mean) / std

    def official(self, x: Tensor, horizon: int) -> Tensor:
        mean, std = self._tensors(x)
        return (self._base.official(x * std + mean, horizon) - mean) / std

    def _tensors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_tensor(self.mean), x.new_tensor(self.std)

    def _around(self, base: Forecaster | None) -> Self | None:
        return None if base is None else type(self)(base, self.mean, self.std)

    def multivariate(self) -> Forecaster | None:
        together = self._base.multivariate()
        return self if together is self._base else self._around(together)

    def converted(self, convert: Convert) -> Forecaster | None:
        return self._around(self._base.converted(convert))

    def double(self) -> Forecaster | None:
        return self._around(self._base.double())

    def reload(self) -> Forecaster | None:
        return self._around(self._base.reload())

    def unloaded(self) -> tuple[str, ...]:
        return self._base.unloaded()


class Standardising(InUnits):
    """`base`, which reads values standardised by `mean` and `std`, on windows in the units of the series."""

    how = "on values standardised as in its training"
    reads_units = True

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        mean, std = self._tensors(x)
        return self._base.predict((x - mean) / std, horizon) * std + mean

    def official(self, x: Tensor, horizon: int) -> Tensor:
        mean, std = self._tensors(x)
        return self._base.official((x - mean) / std, horizon) * std + mean


def standardising(model: Forecaster) -> Forecaster:
    """The model on values in the units of a series, where its training scale is stored; else the model itself."""
    scale = model.training_scale
    if scale is None or scale.mean is None or scale.std is None:
        return model
    return Standardising(model, [scale.mean], [scale.std])
