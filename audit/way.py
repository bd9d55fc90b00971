"""How a model is computed at a setting: chosen once by a short probe, kept in the ledger, and told in every record.

Two things are chosen. Which strategy has the rows of the Jacobian (`attribution.jacobian`): the fastest on real windows
among those that give the same rows. And which of the accelerations that the user asked for stay on
(`hrx.audit.trial`).

`batched` and `bare` have the same bits, so a clock may choose between them. The other strategies differ from them in
the last bits, which decide between positions that are nearly tied. So they are taken only where they are faster by more
than a busy machine makes up, and a ledger keeps to what it has chosen: a resumed audit does not mix them.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.adapters.acceleration import Accelerated, Acceleration, obstacle
from hrx.adapters.contract import Strategy
from hrx.adapters.gradients import relative_difference
from hrx.audit.attribution.jacobian import Rows, jacobian
from hrx.audit.memory import Budget
from hrx.audit.trial import try_out

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
ALIKE = frozenset[Strategy]({"batched", "bare"})
"""Strategies with the same bits."""
CLEARLY = 1.5
"""How many times faster a strategy with other bits must be to be taken."""
AGREEMENT = 1e-5
"""How far the rows of two strategies may be apart, relative to the largest entry: rounding."""
TRIED: tuple[Strategy, ...] = ("batched", "bare", "replicas")
"""What `auto` chooses among. `loop` is never the fastest; where nothing else works it takes their place by itself."""
REPLICAS_PROBED = 32
"""Rows of one window, from which the time of all follows."""
TURNS, LONG_ENOUGH = 3, 1.0
"""Turns of the probe, and the seconds after which it takes no further one."""


@dataclass(frozen=True)
class Wanted:
    """What the user asked for."""

    rows: Strategy | Literal["auto"] = "auto"
    accelerations: tuple[Acceleration, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.rows, *self.accelerations))


@dataclass(frozen=True)
class Way:
    """How a model is computed."""

    rows: Strategy | None = None
    """None: as the model declares."""
    accelerations: tuple[Acceleration, ...] = ()
    probe: str | None = None
    """JSON: seconds of all rows of a window by strategy, and what became of each acceleration."""
    notes: tuple[str, ...] = ()
    """What was asked for and is not used, and why: a sentence each."""

    def of(self, model: Forecaster) -> Forecaster:
        """The model as it is computed this way."""
        return with_rows(Accelerated(model, self.accelerations) if self.accelerations else model, self.rows)

    def here(self) -> Way:
        """Without the accelerations that this machine does not have: another one may have chosen them.

        Each passed on top of those before it, so that behind a missing one the others go, too.
        """
        device = "cuda" if "cuda" in self.accelerations else "cpu"
        kept = takewhile(lambda one: not obstacle(one, device), self.accelerations)
        return replace(self, accelerations=tuple(kept))


DECLARED = Way()


class Choice(NamedTuple):
    """A way, and the model on it."""

    way: Way
    model: Forecaster


def choose(model: Forecaster, x: Tensor, horizon: int, wanted: Wanted, budget: Budget) -> Choice:
    """The way of a model on real windows `x` `(W, L)`, or `(W, L, C)`, of one setting."""
    tried = try_out(model, x, horizon, wanted.accelerations, budget)
    probed = probe_rows(tried.model, x, horizon, budget, None if wanted.rows == "auto" else wanted.rows)
    kept = tuple(trial.acceleration for trial in tried.trials if trial.kept)
    notes = [f"{trial.acceleration} is off: {trial.note}." for trial in tried.trials if not trial.kept]
    rows = fastest(probed.seconds, model.rows)
    notes += [f"{name} rows are off: {reason}." for name, reason in probed.refused.items() if name == wanted.rows]
    measured: dict[str, Any] = {"rows": probed.seconds}
    if tried.trials:
        measured["accelerations"] = [trial._asdict() for trial in tried.trials]
    return Choice(Way(rows, kept, json.dumps(measured, allow_nan=False), tuple(notes)), with_rows(tried.model, rows))


def fastest(seconds: Mapping[Strategy, float], declared: Strategy) -> Strategy:
    """The strategy to take; one with other bits than the declared one only where it is clearly faster."""
    same = [name for name in seconds if _same_bits(name, declared)]
    best = min(seconds, key=lambda name: seconds[name], default=declared)
    if not same:
        return best
    alike = min(same, key=lambda name: seconds[name])
    return best if CLEARLY * seconds[best] <= seconds[alike] else alike


def _same_bits(one: Strategy, other: Strategy) -> bool:
    return one == other or {one, other} <= ALIKE


class Probed(NamedTuple):
    """What the probe of the strategies found out."""

    seconds: dict[Strategy, float]
    """Of all rows of one window, by every strategy that gives the model's rows."""
    refused: dict[Strategy, str]
    """Why a strategy does not, in a clause."""


def probe_rows(model: Forecaster, x: Tensor, horizon: int, budget: Budget, only: Strategy | None = None) -> Probed:
    """Times the strategies, or only one, on the windows `x`, after a look at whether it gives the same rows."""
    began = time.perf_counter()
    own = jacobian(model, x, horizon, budget=budget)
    timed: dict[Strategy, _Share] = {}
    refused: dict[Strategy, str] = {}
    for name in TRIED if only is None else (only,):
        if name == "bare" and own.rewrites:
            refused[name] = f"the model cuts the gradient or overwrites what it needs ({own.rewrites[0].place})"
            continue
        share = _share(model, x, horizon, name)
        found = share.rows(budget)
        apart = relative_difference(found.jacobian, own.jacobian[: len(share.x), : share.count])
        if found.strategy != name:
            refused[name] = "an operation of the model cannot be differentiated that way"
        elif not apart <= (0.0 if _same_bits(name, model.rows) else AGREEMENT):
            refused[name] = f"they are other rows, by {apart:.2g} of the largest entry"
        else:
            timed[name] = share
    seconds = _seconds(timed, budget, until=began + LONG_ENOUGH)
    if not _same_bits(fastest(seconds, model.rows), model.rows):
        # A disturbed turn must not decide over bits: it is confirmed by all turns.
        again = _seconds(timed, budget)
        seconds = {name: min(seconds[name], again[name]) for name in again}
    return Probed(seconds, refused)


def with_rows(model: Forecaster, rows: Strategy | None) -> Forecaster:
    """The same model with another strategy, or with its own."""
    made = copy.copy(model)
    made.rows = rows or model.rows
    return made


@dataclass(frozen=True)
class _Share:
    """What a strategy is probed on: the first rows of some windows."""

    model: Forecaster
    x: Tensor
    horizon: int
    count: int

    def rows(self, budget: Budget) -> Rows:
        return jacobian(self.model, self.x, self.horizon, np.arange(self.count), budget)

    def seconds(self, budget: Budget) -> float:
        """Of all rows of one window."""
        # The time of the process is not stretched by others, but it knows nothing of a GPU.
        on_gpu = isinstance(self.model, Accelerated) and "cuda" in self.model.accelerations
        clock = time.perf_counter if on_gpu else time.process_time
        began = clock()
        self.rows(budget)
        return (clock() - began) * self.horizon / self.count / len(self.x)


def _share(model: Forecaster, x: Tensor, horizon: int, name: Strategy) -> _Share:
    """All rows of all windows, which are differentiated together as in a run; fewer of the slow strategies."""
    count = min(horizon, REPLICAS_PROBED) if name == "replicas" else horizon
    return _Share(with_rows(model, name), x if name in ALIKE else x[:1], horizon, count)


def _seconds(shares: Mapping[Strategy, _Share], budget: Budget, until: float = np.inf) -> dict[Strategy, float]:
    """Seconds of all rows of a window; the strategies take turns, and the fastest turn of each counts.

    After the time `until` there is no further turn.
    """
    best: dict[Strategy, float] = {}
    for _ in range(TURNS):
        for name, share in shares.items():
            best[name] = min(best.get(name, np.inf), share.seconds(budget))
        if time.perf_counter() > until:
            break
    return best
