"""Seven generators of constructed ground truth: maps from what a forecast may read to a forecast, with known positions.

Each is a matrix of weights, drawn once from a seed and used for every window: step `h` of the target is
`y_h = w(h) · x[S(h)]`, so its derivative is exactly zero at every position outside `S(h)`. What the paper
leaves open (how many positions, how far they move, which inputs) is chosen here and listed in `docs/calibration.md`.
Nothing here trains or explains a model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from hrx.adapters.inputs import Channel, Layout
from hrx.errors import HrxError, unknown
from hrx.records.calibration import COVMIX, GENERATORS, NEGATIVE_CONTROL, PLANTED
from hrx.records.quantities import Bools, Floats, Ints

POSITIONS = 4
"""Positions in each `S(h)`, the last of the lookback included."""
BANDS = 4
"""Blocks of `sparseband`."""
SHIFT_SHARE = 16
"""`sparseshift` slides left by the lookback divided by this, over the whole horizon."""
PERIODS = 4
"""Periods of `lagmix` in the lookback."""
TABLE_RANK = 8
"""Planted rank of `plantrank` in the table with the other generators."""
SWING = 0.5
"""How far a weight rises and falls around its mean along the horizon, before the row is scaled to unit norm."""
PERSISTENCE = 0.8
"""Correlation of neighbouring inputs."""
SINUSOIDS = ((1.0, (0.25, 1.0)), (0.5, (4.0, 12.0)))
"""Amplitude and range of cycles in a lookback, of the slow and of the fast sinusoid."""
NOISE = 0.2
"""Standard deviation of the noise beside a slow sinusoid of amplitude 1."""


PAST_WEIGHT, FUTURE_WEIGHT = (0.2, 1.2), 0.3
"""Norms of the rows of `covmix` over its past covariate, at the first and the last step, and over the one known ahead;
over its target they are 1."""
IDLE = "idle"
"""Covariate of `covmix` that does nothing."""


@dataclass(frozen=True)
class Generator:
    """A map with a known answer."""

    name: str
    weights: Floats
    """`(H, L)`, or `(H, P)` over several channels: `y = weights @ x`; zero outside the positions."""
    layout: Layout | None = None
    """Channels of `covmix`; None: one lookback."""

    @property
    def sections(self) -> tuple[int, ...]:
        """Lengths of the channels."""
        return self.layout.sections if self.layout else (self.weights.shape[1],)

    @property
    def positions(self) -> Bools:
        """`(H, L)`: whether the position is in `S(h)`."""
        positions: Bools = self.weights != 0
        return positions

    @property
    def lookback(self) -> int:
        return self.sections[0]

    @property
    def horizon(self) -> int:
        return len(self.weights)

    @property
    def rank(self) -> float:
        """Participation ratio of the answer's magnitudes."""
        power = np.linalg.svd(np.abs(self.weights), compute_uv=False) ** 2
        return float(power.sum() ** 2 / (power**2).sum())


def generate(name: str, lookback: int, horizon: int, seed: int) -> Generator:
    """One of the six generators, its positions and weights drawn from the seed."""
    if name == PLANTED:
        return plant_rank(TABLE_RANK, lookback, horizon, seed)
    if name not in GENERATORS:
        raise HrxError(unknown("generator", name, GENERATORS))
    _check_shape(lookback, horizon, BANDS)
    rng = np.random.default_rng([seed, GENERATORS.index(name), lookback, horizon])
    return Generator(name, _WEIGHTS[name](rng, lookback, horizon))


def mix_channels(lookback: int, horizon: int, seed: int) -> Generator:
    """`covmix`: `y_h = w(h) · x[S(h)] + b(h) · u[S_u(h)] + k v[h]`, and a past covariate that does nothing.

    `u` is a past covariate, `v` is known ahead and acts at its own step.
    """
    _check_shape(lookback, horizon, BANDS)
    rng = np.random.default_rng([seed, len(GENERATORS), lookback, horizon])
    own, past = (_by_block(rng, lookback, horizon, 2) for _ in range(2))
    ahead = np.pad(np.eye(horizon), ((0, 0), (lookback, 0)))
    rising = np.linspace(*PAST_WEIGHT, horizon)[:, None]
    weights = np.hstack([own, rising * past, np.zeros_like(past), FUTURE_WEIGHT * ahead])
    channels = (
        Channel("target", "target", "number", 0, lookback),
        Channel("past", "past", "number", lookback, lookback),
        Channel(IDLE, "past", "number", 2 * lookback, lookback),
        Channel("known", "future", "number", 3 * lookback, lookback + horizon),
    )
    return Generator(COVMIX, weights, Layout(lookback, horizon, channels))


def plant_rank(rank: int, lookback: int, horizon: int, seed: int) -> Generator:
    """`plantrank` with a given effective rank, which the answer has exactly."""
    _check_shape(lookback, horizon, rank)
    rng = np.random.default_rng([seed, GENERATORS.index(PLANTED), rank, lookback, horizon])
    return Generator(PLANTED, _planted(rng, lookback, horizon, rank))


def inputs(rng: np.random.Generator, windows: int, lookback: int) -> npt.NDArray[np.float32]:
    """`(windows, lookback)`: stationary Gaussian AR(1) series of unit variance.

    Neighbours are correlated as in a series, but no position is a function of others: with collinear inputs other
    weights would give the same targets.
    """
    shocks = rng.standard_normal((windows, lookback))
    shocks[:, 1:] *= np.sqrt(1 - PERSISTENCE**2)
    reach = np.arange(lookback)
    lag = reach[:, None] - reach
    mixing = np.where(lag >= 0, PERSISTENCE ** np.maximum(lag, 0).astype(np.float64), 0.0)
    return (shocks @ mixing.T).astype(np.float32)


def sinusoids(rng: np.random.Generator, windows: int, lookback: int) -> npt.NDArray[np.float32]:
    """`(windows, lookback)`: a slow and a fast sinusoid of random period and phase, and noise; of unit variance."""
    at = np.arange(lookback) / lookback
    waves = np.zeros((windows, lookback))
    for amplitude, cycles in SINUSOIDS:
        each, phase = rng.uniform(*cycles, (windows, 1)), rng.uniform(0, 1, (windows, 1))
        waves += amplitude * np.sin(2 * np.pi * (each * at + phase))
    scale = (sum(amplitude**2 for amplitude, _ in SINUSOIDS) / 2 + NOISE**2) ** 0.5
    scaled: Floats = (waves + NOISE * rng.standard_normal(waves.shape)) / scale
    return scaled.astype(np.float32)


def _null(rng: np.random.Generator, lookback: int, horizon: int) -> Floats:
    """One set and one vector; only its scale changes along the horizon, so the answer has rank one."""
    row = np.zeros(lookback)
    row[_draw(rng, lookback, 1)[0]] = rng.uniform(1 - SWING, 1 + SWING, POSITIONS)
    return _waves(rng, horizon, 1) * row / np.linalg.norm(row)


def _by_block(rng: np.random.Generator, lookback: int, horizon: int, blocks: int) -> Floats:
    """One set for each block of steps, disjoint but for the last position."""
    return _weigh(rng, _draw(rng, lookback, blocks)[_blocks(horizon, blocks)], lookback)


def _shift(rng: np.random.Generator, lookback: int, horizon: int) -> Floats:
    """One set that slides left in proportion to the step; the last position stays."""
    reach = lookback // SHIFT_SHARE
    moved = np.rint(np.arange(horizon) * reach / max(horizon - 1, 1)).astype(np.int64)
    positions = reach + _draw(rng, lookback - reach, 1) - moved[:, None]
    positions[:, -1] = lookback - 1
    return _weigh(rng, positions, lookback)


def _lagmix(rng: np.random.Generator, lookback: int, horizon: int) -> Floats:
    """Whole periods before the step itself: lags that keep their phase; and the last position."""
    period = lookback // PERIODS
    phase = np.arange(horizon) % period
    # At the last phase one period back is the last position, which is in every set anyway: there it starts at two.
    first = np.where(phase == period - 1, 2, 1)
    positions = lookback + phase[:, None] - period * (first[:, None] + np.arange(POSITIONS))
    positions[:, -1] = lookback - 1
    return _weigh(rng, positions, lookback)


def _planted(rng: np.random.Generator, lookback: int, horizon: int, rank: int) -> Floats:
    """Non-negative rows of unit norm, constant in each block, whose matrix has exactly this participation ratio.

    The last position is in every row, so blocks are never orthogonal, and `rank` blocks would have a lower ratio than
    `rank`. So there is one block more, and the weight `c` of the last position lowers the ratio to `rank`: with blocks
    of `n_k` steps it is `H² / (Σn² + c⁴ (H² − Σn²))`.
    """
    blocks = rank + 1 if rank > 1 else 1
    block = _blocks(horizon, blocks)
    equal = float((np.bincount(block) ** 2).sum())
    last = ((horizon**2 / rank - equal) / (horizon**2 - equal)) ** 0.25 if rank > 1 else 0.5
    others = _draw(rng, lookback, blocks)[:, :-1]
    each = rng.uniform(1 - SWING, 1 + SWING, others.shape)
    rows = np.zeros((blocks, lookback))
    rows[np.arange(blocks)[:, None], others] = each / np.linalg.norm(each, axis=1, keepdims=True)
    rows *= np.sqrt(1 - last**2)
    rows[:, -1] = last
    return rows[block]


_WEIGHTS = MappingProxyType[str, Callable[[np.random.Generator, int, int], Floats]](
    {
        NEGATIVE_CONTROL: _null,
        "sparsesplit": partial(_by_block, blocks=2),
        "sparseband": partial(_by_block, blocks=BANDS),
        "sparseshift": _shift,
        "lagmix": _lagmix,
    }
)


def _blocks(horizon: int, blocks: int) -> Ints:
    """`(H,)`: the block of each step, all of them as equal in length as they can be."""
    return np.arange(horizon) * blocks // horizon


def _draw(rng: np.random.Generator, lookback: int, sets: int) -> Ints:
    """`(sets, POSITIONS)`: sets of positions, in order; the last one is in each, and the others are disjoint."""
    drawn = np.sort(rng.choice(lookback - 1, size=(sets, POSITIONS - 1), replace=False), axis=1).astype(np.int64)
    return np.pad(drawn, ((0, 0), (0, 1)), constant_values=lookback - 1)


def _weigh(rng: np.random.Generator, positions: Ints, lookback: int) -> Floats:
    """Weights of unit norm `(H, L)` at the positions `(H, m)`, each rising and falling smoothly along the horizon."""
    horizon, count = positions.shape
    weights = np.zeros((horizon, lookback))
    weights[np.arange(horizon)[:, None], positions] = _waves(rng, horizon, count)
    scaled: Floats = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    return scaled


def _waves(rng: np.random.Generator, horizon: int, count: int) -> Floats:
    """`(H, count)`: smooth positive waves along the horizon, each with its own phase.

    Positive, since the rank is that of magnitudes: it cannot see what is planted in signs alone.
    """
    phase = rng.uniform(0, 1, count)
    waves: Floats = 1 + SWING * np.sin(2 * np.pi * (np.arange(horizon)[:, None] / horizon + phase))
    return waves


def _check_shape(lookback: int, horizon: int, rank: int) -> None:
    sets = rank + 1
    least = max(sets * (POSITIONS - 1) + 1, SHIFT_SHARE)
    if not 1 <= rank <= horizon - 1 or lookback < least:
        raise HrxError(
            f"A planted rank of {rank} does not fit a lookback of {lookback} and a horizon of {horizon}. Give a rank "
            f"of at least 1, a horizon of at least {sets} and a lookback of at least {least}."
        )
