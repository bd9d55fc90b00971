"""A model that reads values in their own units, on standardised windows.

A pretrained model scales its windows itself, so it forecasts standardised ones as well as any. A model that was trained
on a series may expect its level: standardised windows are mapped back to the units of the series before it reads them,
and its forecast is standardised again. So gains and errors have the same scale for all models.
"""

from collections.abc import Sequence

from torch import Tensor

from hrx.adapters.contract import Forecaster


class InUnits(Forecaster):
    """`base` on windows that were standardised by `mean` and `std`, each one number or one per variate."""

    def __init__(self, base: Forecaster, mean: Sequence[float], std: Sequence[float]):
        self.identity = base.identity
        self.limits = base.limits
        self.official_call = f"{base.official_call}, in the units of the series"
        self._base, self._mean, self._std = base, tuple(mean), tuple(std)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        mean, std = self._statistics(x)
        return (self._base.predict(x * std + mean, horizon) - mean) / std

    def official(self, x: Tensor, horizon: int) -> Tensor:
        mean, std = self._statistics(x)
        return (self._base.official(x * std + mean, horizon) - mean) / std

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_tensor(self._mean), x.new_tensor(self._std)

    def multivariate(self) -> Forecaster | None:
        together = self._base.multivariate()
        return self if together is self._base else together and InUnits(together, self._mean, self._std)

    def double(self) -> Forecaster | None:
        double = self._base.double()
        return double and InUnits(double, self._mean, self._std)

    def reload(self) -> Forecaster | None:
        again = self._base.reload()
        return again and InUnits(again, self._mean, self._std)

    def unloaded(self) -> tuple[str, ...]:
        return self._base.unloaded()
