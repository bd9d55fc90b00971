"""`--until decided`: an anytime-valid test of the sign of `g_margin` over the runs that an audit plans for a model.

The population is the plan. Each run has a sign: that of its `g_margin`, or 0 where it has none that counts (not scored,
does not beat naive, exactly zero). The question is which sign has the majority. The runs are measured in a uniform
random order, so the signs seen so far are a sample without replacement, and two bettors bet on the next one:

- One starts with the capital 1 against "positive signs have no majority", the other against "negative ones have none".
- If the hypothesis were exactly true, the mean of x = (1 + sign) / 2 over the runs that are left would be
  m = (1 - S / left) / 2, for S the sum of the signs so far. The bet pays the factor 1 - c + c·x / m: fair on average.
- The capital is the mean over the stakes c = 0.1 … 0.9. By Ville's inequality it ever reaches 40 = 2 / 0.05 with a
  probability of at most 2.5 % where the hypothesis is true, however often it is looked at.

Needs neither torch nor a model: reports repeat the test from the records.
"""

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from hrx.records.record import DONE, LARGEST

Sign = Literal["positive", "negative"]
_DIRECTIONS: dict[Sign, int] = {"positive": 1, "negative": -1}
ERROR = 0.05
"""Largest probability of a stop with a wrong sign, both signs together."""
STAKES = tuple(tenths / 10 for tenths in range(1, 10))


class Decision(NamedTuple):
    """What the test says about a plan."""

    sign: Sign | None
    """Sign of the majority; None while it is not decided."""
    used: int
    """Runs that the test used: the first of the plan, without a gap."""
    planned: int

    def __str__(self) -> str:
        """A sentence."""
        if self.sign is None:
            of = f"{self.used} of {self.planned} planned runs"
            return f"Which sign of g_margin most runs of the plan have is not decided after {of}."
        when = "all were used" if self.used == self.planned else f"decided after {self.used}"
        most = f"Most of the {self.planned} planned runs that count have a {self.sign} g_margin"
        return f"{most} ({when}); this says nothing about other data."


class PlanTest:
    """Two bettors on the signs of a plan, which may arrive in any order and are used in that of the plan."""

    def __init__(self, keys: Iterable[str]):
        self._keys = list(dict.fromkeys(keys))
        self._waiting: dict[str, int] = {}
        self._sum = 0
        self._capitals: dict[Sign, list[float]] = {side: [1.0] * len(STAKES) for side in _DIRECTIONS}
        self.decision = Decision(None, 0, len(self._keys))

    def capital(self, side: Sign) -> float:
        """Capital of the bettor that expects this sign."""
        return math.fsum(self._capitals[side]) / len(STAKES)

    def add(self, key: str, sign: int) -> None:
        """Add the sign of one run: 1, -1 or 0. One that is not the next of the plan waits for those before it."""
        self._waiting[key] = sign
        while (
            not self.decision.sign
            and self.decision.used < len(self._keys)
            and (following := self._keys[self.decision.used]) in self._waiting
        ):
            self._bet(self._waiting.pop(following))

    def _bet(self, sign: int) -> None:
        left = len(self._keys) - self.decision.used
        for side, direction in _DIRECTIONS.items():
            x, m = (1 + direction * sign) / 2, (1 - direction * self._sum / left) / 2
            # Where m is 0, no bet is possible: only opposite signs may be left, and any other settles it.
            pays = x / m if m > 0 else 1.0
            self._capitals[side] = [
                capital * (1 - c + c * pays) for capital, c in zip(self._capitals[side], STAKES, strict=True)
            ]
        self._sum += sign
        decided: Sign | None = next((side for side in _DIRECTIONS if self.capital(side) >= 2 / ERROR), None)
        if abs(self._sum) > left - 1:  # the rest cannot change the majority
            decided = "positive" if self._sum > 0 else "negative"
        self.decision = self.decision._replace(sign=decided, used=self.decision.used + 1)


def sign_of(status: str | None, beats_naive: int | None, g_margin: float | None) -> int:
    """Sign of a stored run: 1, -1, or 0 where it does not count. A missing number is None or NaN."""
    if status != DONE or beats_naive != 1 or g_margin is None or not abs(g_margin) <= LARGEST:
        return 0
    return (g_margin > 0) - (g_margin < 0)
