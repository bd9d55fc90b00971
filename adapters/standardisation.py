"""`Rescaled`: a model between the unit of a series and the scale on which it reads values.

A model reads values in the unit of its series, unless its training says otherwise: `Forecaster.scale`. Errors and gains
of an audit are on standardised values, so that they have the same scale for all series.
"""

from collections.abc import Sequence

from torch import Tensor

from hrx.adapters.contract import Convert, Forecaster

Numbers = float | Sequence[float]


class Rescaled(Forecaster):
    """`base` on values of another scale; its forecast is on that scale too.

    It takes values that were standardised by `mean` and `std`, and `base` reads them in their unit; with `standardise`
    it takes values in their unit, and `base` reads them standardised. `mean` and `std` are one number, or one per
    variate.
    """

    def __init__(self, base: Forecaster, mean: Numbers, std: Numbers, *, standardise: bool = False):
        self.identity = base.identity
        self.limits = base.limits
        how = "on values standardised as in its training" if standardise else "in the units of the series"
        self.official_call = f"{base.official_call}, {how}"
        self._base, self._mean, self._std, self._standardise = base, mean, std, standardise

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self._map(self._base.predict(self._map(x, self._standardise), horizon), not self._standardise)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        return self._map(self._base.official(self._map(x, self._standardise), horizon), not self._standardise)

    def _map(self, values: Tensor, standardise: bool) -> Tensor:
        mean, std = values.new_tensor(self._mean), values.new_tensor(self._std)
        return (values - mean) / std if standardise else values * std + mean

    def _around(self, base: Forecaster | None) -> Forecaster | None:
        return None if base is None else Rescaled(base, self._mean, self._std, standardise=self._standardise)

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


def in_own_unit(model: Forecaster, scale: tuple[float, float] | None) -> Forecaster:
    """Return the model on values in the unit of their series, by the scale that it reads; None: it reads that unit."""
    return model if scale is None else Rescaled(model, *scale, standardise=True)
