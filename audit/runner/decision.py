"""Whether the sign of a model's g_margin over its whole plan is decided by the runs so far: `--until decided`.

A test that may be looked at after every run. The runs of the plan are a finite population, measured in a random order;
each counts +1, −1 or 0. If the positive ones are not the majority, the mean of what is left to draw is known up to what
was drawn, so a bet on the next run being positive cannot gain on average, and by Ville's inequality its capital ever
reaches 2/α with probability at most α/2. The same holds for the negative side.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

ERROR = 0.05
"""Probability of a wrong decision, of either sign, over the whole audit."""
_STAKES = np.linspace(0.1, 0.9, 9)
"""Shares of the largest safe bet; the capital is divided evenly among them."""

Sign = Literal[-1, 0, 1]


class SignTest:
    """The two bets on a population of `size` signs."""

    def __init__(self, size: int, error: float = ERROR):
        self._size, self._seen, self._sum = size, 0, 0
        self._needed = 2 / error
        self._capital = {1: np.ones_like(_STAKES), -1: np.ones_like(_STAKES)}
        self.decided: Sign = 0
        """The sign of the majority, once it is decided; it stays."""

    def add(self, sign: Sign) -> None:
        """The next run in the order of the plan."""
        left = self._size - self._seen
        for side in (1, -1):
            # On [0, 1] with 1 for `side`: the mean of the runs left if `side` were not the majority.
            mean = (1 - side * self._sum / left) / 2
            value = (1 + side * sign) / 2
            self._capital[side] *= 1 - _STAKES + (_STAKES * value / mean if mean > 0 else np.inf if value > 0 else 0)
        self._seen, self._sum = self._seen + 1, self._sum + sign
        if not self.decided:
            sides: tuple[Sign, Sign] = (1, -1)
            self.decided = next((side for side in sides if self._surely(side)), 0)

    def _surely(self, side: Sign) -> bool:
        settled = side * self._sum > self._size - self._seen  # the runs that are left cannot change the majority
        return settled or float(self._capital[side].mean()) >= self._needed


class Decision:
    """The test of one model, fed in the order of its plan, whatever order the runs finish in.

    Workers finish short runs first; taken in that order, the sample would not be random.
    """

    def __init__(self, keys: Sequence[str], error: float = ERROR):
        self._keys = list(keys)
        self._known: dict[str, Sign] = {}
        self._next = 0
        self._test = SignTest(len(keys), error)

    def add(self, key: str, sign: Sign) -> None:
        """One finished run."""
        self._known[key] = sign
        while self._next < len(self._keys) and self._keys[self._next] in self._known:
            self._test.add(self._known[self._keys[self._next]])
            self._next += 1

    @property
    def decided(self) -> Sign:
        return self._test.decided
