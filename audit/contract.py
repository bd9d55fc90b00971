"""Contract of a forecaster: every property of `hrx.audit.properties`, in an order in which each verdict is fair.

A forecaster that depends on seeds or on earlier calls has no other property that could be measured; one that depends
on its batch is called with one window at a time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from torch import Tensor

from hrx.adapters.contract import Limits
from hrx.audit import channel_properties, difficult_windows, properties
from hrx.audit.official_call import OfficialCall, Stopped
from hrx.audit.properties import Outcome
from hrx.errors import HrxError, describe_error, unknown
from hrx.records.contract import Contract, Finding


class Property(NamedTuple):
    """One property: how it is measured, what is expected, and the calls that it takes, for an estimate."""

    measure: Callable[[OfficialCall, Tensor, int], Outcome]
    expectation: str
    calls: int
    required: bool = False
    """Every forecaster must have it."""
    compares: bool = True
    """It compares forecasts, which says nothing where they depend on seeds or on earlier calls."""


PROPERTIES: Mapping[str, Property] = {
    "repeatable": Property(properties.repeatable, "relative difference of calls at most 1e-6", 5, True, False),
    "seed-free": Property(properties.seed_free, "relative difference between seeds at most 1e-6", 3, compares=False),
    "history": Property(properties.history, "relative difference after other calls at most 1e-6", 11, True, False),
    "process": Property(properties.process, "relative difference to another process at most 1e-6", 2, True),
    "isolation": Property(properties.isolation, "relative difference in a batch at most 1e-5", 11, True),
    "untouched": Property(properties.untouched, "nothing of the caller's changes", 2, True, False),
    "origin": Property(properties.origin, "relative difference at most 1e-6 under other later values", 2, True),
    "reach": Property(properties.reach, "share of positions that are read: a fact", 0),
    "prefix": Property(properties.prefix, "relative difference to a longer forecast at most 1e-5", 8),
    "units": Property(properties.units, "f(ax + b) = a f(x) + b within 1e-3 standard deviations", 5),
    "sign": Property(properties.sign, "f(-x) = -f(x) within 1e-3 standard deviations", 2),
    "precision": Property(properties.precision, "float32 within 1e-3 standard deviations of float64", 2),
    "finite": Property(difficult_windows.finite, "no ordinary window without a finite forecast", 7, True, False),
    "extremes": Property(difficult_windows.extremes, "no extreme window with NaN or infinity", 9, compares=False),
    "missing": Property(difficult_windows.missing, "no gap that is read as zero", 17),
    "quantiles": Property(difficult_windows.quantiles, "share of crossings is zero", 1),
    "future-reach": Property(channel_properties.future_reach, "each value known ahead moves its own step", 8),
    "two-valued": Property(channel_properties.two_valued, "relative difference under noise of 1e-6 at most 1e-3", 4),
    "channel-order": Property(channel_properties.channel_order, "relative difference at most 1e-5", 10),
    "channel-isolation": Property(
        channel_properties.channel_isolation, "relative difference in a batch at most 1e-5", 4, True
    ),
    "empty-channel": Property(channel_properties.empty_channel, "relative difference to none at most 1e-5", 4),
    "gradients": Property(properties.gradients, "no admission check fails", properties.ADMISSION_CALLS),
    "cost": Property(properties.cost, "seconds of one window: a fact", 29, compares=False),
}
CHANNEL_PROPERTIES = ("future-reach", "two-valued", "channel-order", "channel-isolation", "empty-channel")
"""They apply to models that take covariates or several targets."""
BASES = ("repeatable", "seed-free", "history")
"""Without them two forecasts cannot be compared."""


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of properties, all of them if none is given; raise on an unknown one."""
    for name in names:
        if name not in PROPERTIES:
            raise HrxError(unknown("property", name, PROPERTIES))
    return tuple(name for name in PROPERTIES if not names or name in names)


class Examination:
    """Findings about one forecaster at one setting, each made when it is first asked for.

    found = Examination(OfficialCall(hrx.load("bolt-mini")), windows(96), 24)
    found.finding("isolation").verdict    # "holds"
    """

    def __init__(self, f: OfficialCall, x: Tensor, horizon: int, promises: Sequence[str] = ()):
        self.f, self.x, self.horizon = f, x, horizon
        self.required = {name for name in PROPERTIES if PROPERTIES[name].required} | set(promises)
        self.found: dict[str, Finding] = {}
        self.reach: Tensor | None = None
        with suppress(Stopped):
            f(x, horizon)  # an error on an ordinary window is the caller's to see

    def finding(self, name: str) -> Finding:
        """Measure a property, after those that it rests on."""
        if name not in self.found:
            obstacle = self._obstacle(name)
            start, calls = self.f.clock(), self.f.calls
            outcome = obstacle or self._measure(name)
            spent = self.f.calls - calls, self.f.clock() - start
            expectation, required = PROPERTIES[name].expectation, name in self.required
            self.found[name] = Finding(name, *outcome[:2], expectation, outcome.says, required, *spent)
            if outcome.reach is not None:
                self.reach = outcome.reach
        return self.found[name]

    def _obstacle(self, name: str) -> Outcome | None:
        """Measure what a property rests on; return why it cannot be measured, or None."""
        compares = PROPERTIES[name].compares
        for base in BASES if compares else BASES[: BASES.index(name)] if name in BASES else ():
            if (verdict := self.finding(base).verdict) == "not run":
                return Outcome("not run", math.nan, f"It needs {base}, which was not run.")
            if verdict in ("does not hold", "does not apply"):
                return Outcome("does not apply", math.nan, f"Forecasts cannot be compared: {base} {verdict}.")
        if name not in (*BASES, "process", "isolation") and (compares or name in ("finite", "extremes")):
            bases = all(self.finding(base).verdict == "holds" for base in BASES)
            self.f.alone = bases and self.finding("isolation").verdict != "holds"
        return None

    def _measure(self, name: str) -> Outcome:
        try:
            return PROPERTIES[name].measure(self.f, self.x, self.horizon)
        except Stopped:
            return Outcome("not run", math.nan, "Its calls or its time ended before.")
        except Exception as error:  # a model may raise anything
            return Outcome("not run", math.nan, f"The call raised an error: {describe_error(error)}.")

    def contract(self, only: Sequence[str] = ()) -> Contract:
        """Return the findings about these properties, or about all."""
        findings = [self.finding(name) for name in check_names(only)]
        model, length = self.f.model, self.x.shape[1]
        if model:
            about = model.identity.model, model.identity.library, model.official_call
        else:
            about = getattr(self.f.function, "__name__", type(self.f.function).__name__), "", "the function"
        reach = () if self.reach is None else _rounded(self.reach)
        return Contract(*about, length, self.horizon, findings, self.f.calls, reach)

    def estimate(self, only: Sequence[str] = ()) -> tuple[int, float]:
        """Return about how many calls and seconds these properties take, from two timed calls."""
        takes = bool(channel_properties.roles_of(self.f))
        names = [name for name in check_names(only) if takes or name not in CHANNEL_PROPERTIES]
        rows = 2 * len(properties.REPLACED) * self.x.shape[1]
        batches = min(properties.REACH_CALLS, math.ceil(rows / properties.REACH_ROWS)) if "reach" in names else 0
        few = many = 0.0
        with suppress(Stopped):
            few = properties.seconds(self.f, self.x, self.horizon)
            many = (
                properties.seconds(self.f, self.x[:1].repeat(properties.REACH_ROWS, 1), self.horizon)
                if batches
                else 0.0
            )
        calls = sum(PROPERTIES[name].calls for name in names)
        return calls + batches, calls * 1.5 * few + batches * many


def _rounded(changes: Tensor) -> tuple[tuple[float, ...], ...]:
    """Three digits are enough for a picture; what is read stays above zero."""
    return tuple(tuple(float(f"{value:.2e}") for value in row) for row in changes.tolist())


def fitting_setting(limits: Limits, horizon: int = 24) -> tuple[int, int]:
    """Return a setting that a model takes, 96x24 if it can."""
    horizons = (horizon, limits.longest_horizon or horizon, 1)
    for lookback in (96, *(limits.lookbacks or ()), 192, 512, limits.shortest_lookback, limits.longest_lookback or 96):
        for steps in horizons:
            if limits.refusal(lookback, steps) is None:
                return lookback, steps
    raise HrxError("No setting near 96x24 fits this model. Give one with --settings, as in --settings 512x96.")
