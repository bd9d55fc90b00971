"""Properties of a forecaster's official call: repeatable, isolated in a batch, what it reads, units, gaps and the like.

Each is a function of a call `f(x, horizon)`, `(B, L) -> (B, H)`, that returns its verdict, its figure and one sentence
for a user. None needs trained weights.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.formats.module import from_module
from hrx.adapters.gradients import relative_difference
from hrx.audit.admission import admit
from hrx.audit.memory import allocated_bytes
from hrx.audit.official_call import GENERATORS, GLOBALS, OfficialCall, kept_globals, seed_generators
from hrx.files import size
from hrx.records.contract import Verdict

REACH_CALLS, REACH_ROWS = 300, 128
"""Most calls that the reach takes, and windows in each of them."""
ADMISSION_CALLS = 44
"""Most official calls that the admission checks make; they are not counted one by one."""
SAME, IN_BATCH, EQUIVARIANT = 1e-6, 1e-5, 1e-3
"""Largest differences of two calls, of a window in another batch (of the forecast's size), and of forecasts in other
units (in standard deviations of the window)."""
ROUNDING = 16
"""Rounding steps of a shifted value that a forecast may be off: means and sums of large values are no more exact."""
REPLACED = (2.0, -3.0, 10.0)
"""Standard deviations by which a value is moved to see what reads it."""
SCALES = tuple(2.0**e for e in (-20, -13, -7, 7, 13, 20))
"""From 1e-6 to 1e6, as powers of two: multiplying by them is exact."""
SHIFTS = (1.0, -1e2, 1e2, -1e4, 1e4, -1e6, 1e6)


class Outcome(NamedTuple):
    """Verdict on one property, its figure, and what it means for a user."""

    verdict: Verdict
    figure: float
    says: str
    reach: Tensor | None = None


def windows(lookback: int) -> Tensor:
    """`(2, L)`: seasonal windows with noise around one and minus one half, which need no data."""
    t = np.arange(lookback)
    noise = np.random.default_rng(0).normal(size=(2, lookback))
    waves = np.stack([1 + np.sin(t / 4), 0.5 * np.cos(t / 7) - 0.5 + 0.3 * np.sin(t / 2)])
    return torch.from_numpy(waves + 0.3 * noise).float()


def judged(figure: float, limit: float, good: str, bad: str) -> Outcome:
    return Outcome("holds", figure, good) if figure <= limit else Outcome("does not hold", figure, bad)


def _of_forecast(figure: float) -> str:
    return f"by {100 * figure:.3g} % of its size" if math.isfinite(figure) else "to NaN or infinity"


def spread_of(x: Tensor) -> Tensor:
    """`(B, 1)`: standard deviation of each window, 1 for a constant one."""
    spread = x.std(dim=1, keepdim=True, correction=0)
    return torch.where(spread > 0, spread, 1.0)


def repeatable(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    f(x, horizon)
    first, *again = (f(x, horizon) for _ in range(4))
    figure = max(relative_difference(one, first) for one in again)
    bad = f"Calls on the same windows differ {_of_forecast(figure)}: no forecast can be reproduced."
    return judged(figure, SAME, "The same windows give the same forecast.", bad)


def seed_free(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    first, *others = (f(x, horizon, seed=seed) for seed in (0, 1, 2))
    figure = max(relative_difference(one, first) for one in others)
    bad = f"The forecast is sampled: it moves {_of_forecast(figure)} with the random seed."
    return judged(figure, SAME, "The forecast does not depend on the random seed.", bad)


def history(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    first, length = f(x, horizon), x.shape[1]
    between = {
        "other windows": (3 * x.flip(1) + 1, horizon),
        "a larger batch": (x.repeat(3, 1) + 0.5, horizon),
        "another horizon": (x + 1, max(1, horizon // 2)),
        "a shorter lookback": (x[:, length // 2 :], horizon),
        "missing values": (x.clone().fill_(torch.nan), horizon),
    }
    figures = {}
    for name, (other, steps) in between.items():
        f.attempt(other, steps)
        figures[name] = relative_difference(f(x, horizon), first)
    worst = max(figures, key=lambda name: figures[name])
    bad = f"The forecast moves {_of_forecast(figures[worst])} after a call on {worst}: it remembers earlier calls."
    return judged(figures[worst], SAME, "The forecast does not depend on earlier calls.", bad)


def process(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    if f.elsewhere is None:
        return Outcome("does not apply", math.nan, "A model in memory has no other process.")
    f.count(1)
    figure = relative_difference(f.elsewhere(x[:1].clone(), horizon), f(x[:1], horizon))
    bad = f"Another process gets a forecast that differs {_of_forecast(figure)}: something random is not in the files."
    return judged(figure, SAME, "Another process loads the same model and gets the same forecast.", bad)


def isolation(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    window, other = x[:1], 2 * x[:1].flip(1) + 1
    alone = f(window, horizon)
    figures: dict[str, float] = {}
    neighbours = {
        "other windows": other,
        "copies of itself": window,
        "a constant window": other * 0 + 3,
        "a huge window": other * 1e6,
        "a window without values": other * torch.nan,
    }
    for name, row in neighbours.items():
        for place in (0, 2):  # first and last
            batch = row.repeat(3, 1)
            batch[place] = window[0]
            together = f.attempt(batch, horizon)
            if isinstance(together, Tensor):
                figures[name] = max(figures.get(name, 0.0), relative_difference(together[place : place + 1], alone))
    if not figures:
        return Outcome("does not apply", math.nan, "It takes one window per call.")
    figure = max(figures.values())
    moved = ", ".join(name for name, one in figures.items() if one > IN_BATCH)
    bad = (
        f"A forecast moves {_of_forecast(figure)} in a batch with {moved}: forecast one series per call, or the others "
        "change it."
    )
    return judged(figure, IN_BATCH, "Series may be forecast together or alone, in any order.", bad)


def untouched(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    touched: dict[str, None] = {}
    after: list[dict[str, Any]] = []
    with kept_globals(), torch.enable_grad():
        for seed in (1, 2):
            seed_generators(seed)
            own, before = x.clone(), {name: read() for name, (read, _) in GLOBALS.items()}
            f.bare(own, horizon)
            if own.shape != x.shape or not torch.equal(own, x) or own.requires_grad:
                touched["the caller's windows"] = None
            touched |= {name: None for name, (read, _) in GLOBALS.items() if read() != before[name]}
            after.append({name: read() for name, read in GENERATORS.items()})
            for name, (_, write) in GLOBALS.items():
                write(before[name])
    # Drawing moves a generator on, from each seed to another state; the same state after two seeds means it was set.
    touched |= {name: None for name in GENERATORS if after[0][name] == after[1][name]}
    bad = f"A call changes {', '.join(touched)}: copy the windows, and restore the state, around each call."
    return judged(len(touched), 0, "Windows, random generators and torch's global state stay as they were.", bad)


def origin(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    forecasts = []
    for later in (0.0, 1e6):
        longer = torch.full((len(x), x.shape[1] + horizon + 8), later, dtype=x.dtype)
        longer[:, : x.shape[1]] = x
        forecasts.append(f(longer[:, : x.shape[1]], horizon, copy=False))
    figure = relative_difference(forecasts[1], forecasts[0])
    bad = f"The forecast moves {_of_forecast(figure)} with values that follow the window: it sees the future."
    return judged(figure, SAME, "Values that follow the window in the caller's array change nothing.", bad)


def reach(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    """What each step reads; `Outcome.reach` holds the changes `(H, L)`."""
    changes = reach_matrix(f, x, horizon)
    read = changes > 0
    used = read.any(dim=0)
    figure, length = float(used.double().mean()), len(used)
    if not used.any():
        return Outcome("not stated", 0.0, "No input moves the forecast: it is a constant.", changes)
    first = int(used.nonzero()[0])
    parts = [f"It reads {int(used.sum())} of {length} positions"]
    if first:
        parts.append(f"the oldest {first} change nothing, so more than {length - first} values are wasted")
    if inner := int((~used[first:]).sum()):
        parts.append(f"{inner} later ones are skipped")
    if blind := int((~read.any(dim=1)).sum()):
        parts.append(f"{blind} of {horizon} steps read nothing")
    elif not (read == read[0]).all():
        parts.append(f"steps read different positions, {int(read.sum(1).min())} to {int(read.sum(1).max())} of them")
    return Outcome("not stated", figure, f"{'; '.join(parts)}.", changes)


def reach_matrix(f: OfficialCall, x: Tensor, horizon: int) -> Tensor:
    """`(H, L)`: largest change of each step when a position is replaced, over windows and replacements; 0: not read.

    In standard deviations of the window. With too few calls left, neighbouring positions are replaced together.
    """
    length, per_call = x.shape[1], 1 if f.alone else REACH_ROWS
    room = per_call * min(REACH_CALLS, f.most_calls - f.calls - 20)
    moves: tuple[float, ...] = REPLACED
    if len(x) * len(moves) * length > room:
        x, moves = x[:1], moves[:1]
    block = max(1, math.ceil(len(x) * len(moves) * length / max(room, 1)))
    changes = torch.zeros(horizon, length, dtype=torch.float64)
    replaced = [(start, move) for start in range(0, length, block) for move in moves]
    for window, spread in zip(x, spread_of(x), strict=True):
        for first in range(0, len(replaced), REACH_ROWS):
            part = replaced[first : first + REACH_ROWS]
            rows = window.repeat(len(part) + 2, 1)  # as it is in the first and in the last row
            for row, (start, move) in enumerate(part, 1):
                rows[row, start : start + block] += move * spread
            y = f(rows, horizon).double()
            moved = (y[1:-1] - y[0]).abs().nan_to_num(nan=torch.inf)
            noise = max(SAME * float(y[0].abs().max()), 10 * float((y[-1] - y[0]).abs().max()))
            moved = torch.where(moved > noise, moved, 0.0) / spread
            for row, (start, _) in enumerate(part):
                places = slice(start, start + block)
                changes[:, places] = torch.maximum(changes[:, places], moved[row, :, None])
    return changes


def prefix(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    figures = {}
    for other in (4 * horizon, 2 * horizon, horizon + 1, max(1, horizon // 2)):
        y = f.attempt(x, other)
        if isinstance(y, Tensor) and other != horizon:
            steps = min(other, horizon)
            figures[other] = relative_difference(y[:, :steps], f(x, horizon)[:, :steps])
    refused = {n: why for n in range(1, 4 * horizon + 1) if (why := f.limits.refusal(x.shape[1], n))}
    more = f" Refused horizons: {_first(refused)} (it {next(iter(refused.values()))})." if refused else ""
    if not figures:
        return Outcome("does not apply", math.nan, f"It forecasts {horizon} steps only.{more}")
    worst = max(figures, key=lambda steps: figures[steps])
    bad = f"The first steps differ {_of_forecast(figures[worst])} where {worst} are asked for: fix the horizon."
    return judged(figures[worst], IN_BATCH, f"A shorter forecast is the beginning of a longer one.{more}", bad + more)


def _first(numbers: Iterable[int]) -> str:
    """The first numbers, and whether there are more."""
    texts = [str(number) for number in numbers]
    return ", ".join(texts[:4]) + (", …" if len(texts) > 4 else "")


def units(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    exact = f.attempt(x.double(), horizon)
    if isinstance(exact, Tensor) and exact.dtype == torch.float64:
        x = x.double()
    x, spread = x[:1], spread_of(x[:1])
    y = f(x, horizon)
    scales, shifts = torch.tensor(SCALES, dtype=x.dtype)[:, None], torch.tensor(SHIFTS, dtype=x.dtype)[:, None] * spread
    scaled = (f(x * scales, horizon) / scales - y).abs().amax(dim=1) / spread[0]
    moved = x + shifts
    # Against the window that is left of the shifted one after rounding.
    off = (f(moved, horizon) - shifts - f(moved - shifts, horizon)).abs().amax(dim=1)
    off = (off - ROUNDING * torch.finfo(y.dtype).eps * shifts[:, 0].abs()).clamp_min(0) / spread[0]
    figures = {f"multiplied by {a:.0e}": float(one) for a, one in zip(SCALES, scaled, strict=True)}
    figures |= {f"shifted by {b:+g} of them": float(one) for b, one in zip(SHIFTS, off, strict=True)}
    figures = {name: math.inf if math.isnan(one) else one for name, one in figures.items()}
    worst = max(figures, key=lambda name: figures[name])
    broken = [name for name, one in figures.items() if one > EQUIVARIANT]
    bad = (
        f"Another unit gives another forecast: off by {figures[worst]:.2g} standard deviations when {worst} "
        f"({len(broken)} of {len(figures)} units); standardise series before."
    )
    return judged(figures[worst], EQUIVARIANT, "Series may be in any unit between 1e-6 and 1e6 and at any level.", bad)


def sign(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    figure = float(((f(-x, horizon) + f(x, horizon)).abs() / spread_of(x)).amax())
    bad = f"The negated series has another forecast, off by {figure:.2g} standard deviations: up and down differ."
    good = "The negated series has the negated forecast."
    return judged(math.inf if math.isnan(figure) else figure, EQUIVARIANT, good, bad)


def precision(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    double = None
    if f.model:
        try:
            double = f.model.double()
        except Exception:  # a module that cannot be copied
            double = None
    call = f if double is None else OfficialCall(double, most_calls=1)
    exact = call.attempt(x.double(), horizon)
    if isinstance(exact, str) or exact.dtype != torch.float64:
        return Outcome("does not apply", math.nan, "The call computes in float32 only.")
    figure = float(((f(x.float(), horizon) - exact).abs() / spread_of(x)).amax())
    bad = f"float32 is off by {figure:.2g} standard deviations from float64: rounding decides the forecast."
    return judged(math.inf if math.isnan(figure) else figure, EQUIVARIANT, "float32 is as good as float64.", bad)


def gradients(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    model = f.model
    if f.alone:
        return Outcome("does not apply", math.nan, "Windows of a batch depend on each other.")
    f.count(ADMISSION_CALLS)
    if model is None:
        leaf = x.clone().requires_grad_()
        with kept_globals(), torch.enable_grad():
            y = None if f.as_numpy else f.call_function(leaf * 1.0, horizon)
        if not (isinstance(y, Tensor) and y.requires_grad):
            return Outcome("does not apply", math.nan, "The call has no derivative: explain it by occlusion.")
        model = from_module(lambda x, horizon: f.call_function(x, horizon))
    with kept_globals():
        failed = [check for check in admit(model, x, horizon) if not check.passed]
    bad = f"{', '.join(check.check for check in failed)} failed: {'; '.join(check.note for check in failed)}."
    return judged(len(failed), 0, "The differentiable forward is the official call, and its gradient is right.", bad)


def cost(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    sizes = {
        "windows": ((x[:1], horizon), (x[:1].repeat(16, 1), horizon), 16),
        "lookback": ((x[:, x.shape[1] // 2 :], horizon), (x, horizon), 2),
        "horizon": ((x, max(1, horizon // 4)), (x, horizon), 4),
    }
    sizes = {axis: size for axis, size in sizes.items() if isinstance(f.attempt(*size[0]), Tensor)}

    def growth(spent: Callable[[Tensor, int], float]) -> str:
        exponents = {
            axis: math.log(max(spent(*large), 1e-9) / max(spent(*small), 1e-9)) / math.log(ratio)
            for axis, (small, large, ratio) in sizes.items()
        }
        return ", ".join(f"{axis}^{exponent:.1f}" for axis, exponent in exponents.items())

    time = growth(lambda x, horizon: min(seconds(f, x, horizon) for _ in range(3)))
    says = f"Time grows about as {time}; one window is the figure."
    if not f.as_numpy:
        created = allocated_bytes(lambda: f(x[:1], horizon))
        memory = growth(lambda x, horizon: allocated_bytes(lambda: f(x, horizon)))
        says += f" Its tensors take {size(created)} and grow about as {memory}."
    return Outcome("not stated", seconds(f, x[:1], horizon), says)


def seconds(f: OfficialCall, x: Tensor, horizon: int) -> float:
    """Time of one call."""
    start = f.clock()
    f(x, horizon)
    return f.clock() - start
