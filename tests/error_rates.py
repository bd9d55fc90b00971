"""Simulates audits and comparisons with nested effects, counts errors and power, and writes docs/error-rates.md.

The value of a run is the sum of an effect of its source, of its series and of its setting. `make calibration` runs the
whole table; tests/reports/test_error_rates.py runs a part of it with fixed seeds.
"""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hrx.reports.gates import judge, parse
from hrx.reports.statistics import Evidence, cluster_interval

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.md"
CORRELATIONS = ((0.30, 0.50), (0.42, 0.75), (0.80, 0.90))
"""Between two series of a source, and between two settings of a series; the middle one is that of `log mse`."""
MEASURED, STRONGEST = CORRELATIONS[1:]
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
DRAWS: dict[str, Draw] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "t3": lambda rng, size: rng.standard_t(3, size) / math.sqrt(3),
    "exponential": lambda rng, size: rng.exponential(size=size) - math.log(2),
    "lognormal": lambda rng, size: (rng.lognormal(size=size) - 1) / math.sqrt((math.e - 1) * math.e),
}
"""Effects of sources, each of variance one and median zero."""


class Shape(NamedTuple):
    """Size of a simulated audit: one dataset a source."""

    series: tuple[int, ...]
    """Series of each source."""
    settings: int

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """Dataset and series of each run, in the order of the simulated values."""
        items = [(f"d{source}/H", f"s{item}") for source, n in enumerate(self.series) for item in range(n)]
        both = [one for one in items for _ in range(self.settings)]
        return [dataset for dataset, _ in both], [item for _, item in both]

    def __str__(self) -> str:
        sizes = sorted(set(self.series))
        return f"{len(self.series)} × {'–'.join(map(str, sizes))} × {self.settings}"


SHAPES = (Shape((1,) * 5, 2), Shape((1,) * 8, 7), Shape((3,) * 8, 7), Shape((3,) * 15, 7), Shape((1, 2, 3) * 10, 3))
SMALL, MEDIUM, LARGE = SHAPES[0], SHAPES[2], SHAPES[3]
CLUSTERS = (3, 4, 5, 6, 8, 11, 15, 30)


def simulate(
    rng: np.random.Generator, audits: int, shape: Shape, draw: Draw, correlations: tuple[float, float]
) -> np.ndarray:
    """Values `(audits, series, settings)` of runs with variance one."""
    of_series, of_settings = correlations
    source = np.repeat(draw(rng, (audits, len(shape.series))), shape.series, axis=1)[..., None]
    item = rng.standard_normal((audits, sum(shape.series), 1))
    run = rng.standard_normal((audits, sum(shape.series), shape.settings))
    return math.sqrt(of_series) * source + math.sqrt(of_settings - of_series) * item + math.sqrt(1 - of_settings) * run


def of_sources(values: np.ndarray, shape: Shape) -> np.ndarray:
    """One value per source, `(audits, sources)`: the median over series of the median over settings."""
    medians = np.split(np.median(values, axis=2), np.cumsum(shape.series)[:-1], axis=1)
    return np.stack([np.median(one, axis=1) for one in medians], axis=1)


def true_median(shape: Shape, draw: Draw, correlations: tuple[float, float]) -> float:
    """Of the sources of the population, which have these numbers of series in equal parts."""
    rng = np.random.default_rng(99)
    return float(np.median(of_sources(simulate(rng, 40_000 // len(shape.series), shape, draw, correlations), shape)))


def coverage(shape: Shape, draw: Draw, correlations: tuple[float, float], audits: int, seed: int = 7) -> float:
    """How often the interval holds the median source of the population."""
    centre = true_median(shape, draw, correlations)
    sources = of_sources(simulate(np.random.default_rng(seed), audits, shape, draw, correlations), shape)
    intervals = np.array([cluster_interval(one)[1:] for one in sources])
    return float(np.mean((intervals[:, 0] <= centre) & (centre <= intervals[:, 1])))


def claims(
    shape: Shape, draw: Draw, correlations: tuple[float, float], audits: int, shift: float = 0.0, seed: int = 8
) -> float:
    """How often a verdict claims a sign, where the median source is `shift` standard deviations of a run above zero."""
    centre = true_median(shape, draw, correlations)
    sources = of_sources(simulate(np.random.default_rng(seed), audits, shape, draw, correlations), shape)
    sides = [Evidence(tuple(sorted(one))).side for one in (sources - centre + shift).tolist()]
    return 1 - sides.count("undecided") / audits


class Outcomes(NamedTuple):
    """Shares of the comparisons in which a gate passed, failed and was undecided."""

    passed: float
    failed: float
    undecided: float


def noise(
    rng: np.random.Generator, audits: int, shape: Shape, draw: Draw, correlations: tuple[float, float]
) -> np.ndarray:
    """Differences `(audits, series, settings)`, of variance one, between two models that are equally good.

    Each has errors of the given distribution, so their difference is symmetric.
    """
    pair = [simulate(rng, audits, shape, draw, correlations) for _ in range(2)]
    return (pair[0] - pair[1]) / math.sqrt(2)


def error_gate(
    shape: Shape,
    draw: Draw,
    correlations: tuple[float, float],
    size: float,
    audits: int,
    *,
    gate: str = "mse <= +2%",
    rise: float = 0.0,
    broken: float | None = None,
    seed: int = 9,
) -> Outcomes:
    """Outcomes of a gate on relative changes with noise of a run of `size`, where all rise by `rise`.

    `broken`: the rise of the last source, instead of that of all.
    """
    logs = size * noise(np.random.default_rng(seed), audits, shape, draw, correlations) + math.log1p(rise)
    if broken is not None:
        logs[:, -shape.series[-1] :] += math.log1p(broken) - math.log1p(rise)
    return _judged(gate, np.expm1(logs), shape)


def gain_gate(
    shape: Shape,
    draw: Draw,
    correlations: tuple[float, float],
    size: float,
    audits: int,
    *,
    gate: str = "g_margin >= -0.02",
    fall: float = 0.0,
    worse: float = 0.0,
    seed: int = 10,
) -> Outcomes:
    """Outcomes of a gate on a gain that falls by `fall`, or on a share, where errors rise by `worse`.

    `size` is the noise of a gain and of the logarithm of an error. Errors of BASE lie around 0.9 of naive's with a
    spread of 0.4, so that noise alone makes some runs of NEW stop beating naive.
    """
    rng = np.random.default_rng(seed)
    level = math.log(0.9) + 0.4 * simulate(rng, audits, shape, DRAWS["normal"], MEASURED)
    moved = level + math.log1p(worse) + size * noise(rng, audits, shape, draw, correlations)
    beats, still = level < 0, moved < 0
    if gate.startswith("beats_naive"):
        return _judged(gate, still.astype(float) - beats, shape)
    gains = np.where(beats, size * noise(rng, audits, shape, draw, correlations) - fall, math.nan)
    return _judged(gate, gains, shape, beats & ~still)


def _judged(gate: str, changes: np.ndarray, shape: Shape, stopped: np.ndarray | None = None) -> Outcomes:
    parsed, (datasets, series) = parse(gate), shape.names
    flat = changes.reshape(len(changes), -1)
    stops = np.zeros(flat.shape, dtype=bool) if stopped is None else stopped.reshape(flat.shape)
    found = [judge(parsed, one, datasets, series, stopped=stop).outcome for one, stop in zip(flat, stops, strict=True)]
    return Outcomes(*(found.count(name) / len(found) for name in ("passed", "failed", "undecided")))


def smallest_rise(shape: Shape, size: float, audits: int) -> float:
    """Uniform rise that `mse <= +2%` finds in 80 % of all comparisons with normal noise, to a tenth of a percent."""
    low, high = 0.02, 0.30
    while high - low > 0.0005:
        middle = (low + high) / 2
        found = error_gate(shape, DRAWS["normal"], MEASURED, size, audits, rise=middle).failed
        low, high = (low, middle) if found >= 0.8 else (middle, high)
    return high


def shapes_of(clusters: int) -> tuple[Shape, ...]:
    """One series each, three each, and one to three."""
    unequal = (1, 2, 3) * math.ceil(clusters / 3)
    return Shape((1,) * clusters, 7), Shape((3,) * clusters, 7), Shape(unequal[:clusters], 7)


def cells(clusters: int) -> Iterator[tuple[str, tuple[float, float], Shape]]:
    """Every distribution, correlation and shape of a number of clusters."""
    for draw in DRAWS:
        for correlations in CORRELATIONS:
            for shape in shapes_of(clusters):
                yield draw, correlations, shape


HEAD = """# Error rates of intervals, verdicts and gates

```
make calibration
```

simulates audits and comparisons of which the truth is known, and writes this page. A run's value is the sum of an
effect of its source, of its series and of its setting; two series of a source correlate 0.30, 0.42 or 0.80, two
settings of a series 0.50, 0.75 or 0.90 (the middle pair is that of `log mse` in real audits). Effects of sources are
normal, t3, exponential or lognormal. Shapes are sources × series × settings. Where a cell has two numbers they are the
lowest and the highest over the distributions, and in the first two tables over the correlations and over one, three,
and one to three series a source. `tests/reports/test_error_rates.py` holds these rates.

"""


def percents(values: list[float]) -> str:
    """`93–97 %`, or one number where all agree."""
    low, high = 100 * min(values), 100 * max(values)
    return f"{low:.0f} %" if round(low) == round(high) else f"{low:.0f}–{high:.0f} %"


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(audits: int) -> str:
    """The whole page, with this many simulated audits a cell."""
    rows = []
    for clusters in CLUSTERS:
        found = [coverage(shape, DRAWS[draw], correlations, audits) for draw, correlations, shape in cells(clusters)]
        kind = "range, no interval" if clusters < 5 else "range, called 94 %" if clusters == 5 else "interval, 95 %"
        rows.append([str(clusters), kind, percents(found)])
    parts = [f"{HEAD}{audits:,} audits a cell of the first two tables, half as many of the others.\n"]
    parts += ["## Coverage of the median source\n"]
    parts += [table(["sources", "what is shown", "covers"], rows), "\n## Signs that a verdict claims\n"]
    rows = []
    for clusters in (6, 8, 11, 15, 30):
        under_null = [claims(shape, DRAWS[draw], one, audits) for draw, one, shape in cells(clusters)]
        power = [
            [claims(shape, DRAWS[draw], one, audits, shift) for draw, one, shape in cells(clusters)]
            for shift in (0.5, 1.0)
        ]
        rows.append([str(clusters), percents(under_null), *map(percents, power)])
    heads = ["sources", "median is zero", "half a standard deviation of a run", "a whole one"]
    parts += [table(heads, rows), "\n## The gate `mse <= +2%`\n"]
    parts += ["Noise is the standard deviation of a run's relative change between two equally good checkpoints.\n"]
    rows = []
    for size in (0.02, 0.05):
        for correlations in (MEASURED, STRONGEST):
            for shape in SHAPES:
                same, bound, broken, risen = (
                    [error_gate(shape, draw, correlations, size, audits // 2, **what) for draw in DRAWS.values()]
                    for what in ({}, {"rise": 0.02}, {"broken": 0.30}, {"rise": 0.05})
                )
                figures = [[one.passed for one in same], [one.failed for one in same]]
                figures += [[one.failed for one in cell] for cell in (bound, broken, risen)]
                about = [f"{size:.0%}", f"{correlations[0]:.2f}, {correlations[1]:.2f}", str(shape)]
                rows.append([*about, *map(percents, figures)])
    heads = ["noise", "correlations", "shape", "unchanged: passes", "unchanged: fails", "at the bound: fails",
             "one dataset +30 %: fails", "all +5 %: fails"]  # fmt: skip
    parts += [table(heads, rows), GUARDED]
    rows = [
        [str(shape), *(f"{smallest_rise(shape, size, audits // 4):.1%}" for size in (0.02, 0.05))] for shape in SHAPES
    ]
    parts += ["Smallest rise of all sources that the gate finds in 80 % of all comparisons, of normal noise:\n"]
    parts += [table(["shape", "noise 2 %", "noise 5 %"], rows), "\n## Gains and shares\n", GAINS]
    rows = []
    for shape in SHAPES:
        share = {"gate": "beats_naive >= -5%"}
        cells_of = ({}, {"fall": 0.02}, {"fall": 0.06}, share, share | {"worse": 0.5})
        found = [
            [gain_gate(shape, draw, MEASURED, 0.02, audits // 2, **what) for draw in DRAWS.values()]
            for what in cells_of
        ]
        figures = [[one.passed for one in found[0]], *([one.failed for one in cell] for cell in found[:3])]
        figures += [[one.passed for one in found[3]], *([one.failed for one in cell] for cell in found[3:])]
        rows.append([str(shape), *map(percents, figures)])
    heads = ["shape", "gain unchanged: passes", "fails", "at the bound: fails", "falls by 0.06: fails",
             "share unchanged: passes", "fails", "errors +50 %: fails"]  # fmt: skip
    return "\n".join([*parts, table(heads, rows)]) + "\n"


GUARDED = """
More sources let an unchanged checkpoint pass more often. What fails an unchanged checkpoint is mostly the guard, by
which one dataset fails a gate alone: where the noise of a whole source is 5 % and heavy-tailed, a source that moves by
more than 20 % without a reason is no rarity, and the more sources there are, the more often there is one. That is the
price of finding the one dataset among them that is 30 % worse.
"""
GAINS = """`g_margin >= -0.02` and `beats_naive >= -5%`, with noise of 0.02 in a gain and of 2 % in an error. Errors of
BASE lie around 0.9 of naive's, with a standard deviation of 0.4 in their logarithm, so that some runs of an unchanged
NEW stop beating naive.
"""


if __name__ == "__main__":
    PAGE.write_text(page(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000), encoding="utf-8")
