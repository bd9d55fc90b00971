"""Statistics of a bound over few pairs: the exact sign test, Holm's correction, power, and the pairs that are needed.

The sign test is exact for every number of pairs and every distribution, tests the median, which is the figure that is
shown, and reads as a count: 6 of 6 pairs lie beyond the bound. Its power has a closed form.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from hrx.reports.runs import Interval

LEVEL = 0.05
POWER = 0.8
MOST_PAIRS = 1_000
"""Where more are needed, the number is not stated."""
_INTERVAL_Z = NormalDist().inv_cdf(0.975)
_POWER_Z = NormalDist().inv_cdf(POWER)


class Power(NamedTuple):
    """How likely a decision is, if further pairs behave like those that were measured."""

    now: float
    """With as many pairs as there are, 0 to 1."""
    needed: int | None
    """Pairs for a power of 80 %; None where `MOST_PAIRS` do not suffice."""


def sign_test_beyond(beyond: int, n: int) -> float:
    """One-sided p of at least `beyond` of `n` pairs beyond a bound that the median does not exceed.

    A pair on the bound counts as within it, which never makes p smaller.
    """
    from scipy.stats import binom  # takes most of a second to import

    return float(binom.sf(beyond - 1, n, 0.5))


def holm(values: Sequence[float]) -> list[float]:
    """The p values after Holm's step-down correction, in the order given."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    corrected, worst = [0.0] * len(values), 0.0
    for place, index in enumerate(order):
        worst = max(worst, min(1.0, (len(values) - place) * values[index]))
        corrected[index] = worst
    return corrected


def sign_test_power(beyond: int, n: int, tests: int) -> Power:
    """Power of the sign test on one of `tests` datasets, at the level that Holm's correction gives the smallest p.

    The chance that a further pair lies beyond the bound is taken as `(beyond + 1) / (n + 2)`, Laplace's rule, so that
    three of three do not count as certain.
    """
    from scipy.stats import binom

    sizes = np.arange(1, MOST_PAIRS + 1)
    # isf gives the smallest k with P(X > k) at or below the level under a chance of one half.
    critical = binom.isf(LEVEL / tests, sizes, 0.5)
    power = binom.sf(critical, sizes, (beyond + 1) / (n + 2))
    enough = np.flatnonzero(power >= POWER)
    return Power(float(power[n - 1]), int(sizes[enough[0]]) if len(enough) else None)


def interval_power(estimate: Interval, bound: float, n: int) -> Power:
    """Power of a 95 % interval over `n` values to exclude the bound, where the estimate is the true value.

    The estimate is taken as normal with the standard error that the interval's width implies, which falls with √n.
    """
    error, distance = (estimate.high - estimate.low) / (2 * _INTERVAL_Z), abs(estimate.point - bound)
    if error == 0 or distance == 0:
        return Power(0.0, None)
    now = NormalDist().cdf(distance / error - _INTERVAL_Z)
    needed = n * ((_INTERVAL_Z + _POWER_Z) * error / distance) ** 2
    return Power(now, math.ceil(needed) if needed <= MOST_PAIRS else None)
