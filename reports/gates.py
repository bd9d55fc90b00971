"""Gates: bounds such as `g_margin >= -0.02` for CI, parsed and judged.

In a comparison a gate bounds the change, new less base; in an audit it bounds the audit's own figure. A percentage
means points for a share (`beats_naive >= -5%`), and a relative change for a quantity that is always positive
(`mse <= +2%`). `parity` is always that of the worst run.

Each cluster, a source or a series of the only source, has one value (`hrx.reports.statistics.Evidence`). A gate passes
or fails where the interval of the median cluster lies on one side of the bound, from five clusters on, and is undecided
where it contains the bound. Datasets beyond the bound are listed. They do not change the outcome, unless all
configurations of one are beyond the bound and its change exceeds ten times the bound: it fails the gate alone.
docs/error-rates.md has the simulated error rates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from statistics import median as fmedian
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from hrx.errors import Exit, HrxError, unknown
from hrx.records.quantities import SHORTEST_SPAN, Bools, Floats
from hrx.reports.runs import beats_naive, fold_seeds, scored_runs, too_short, trained_by_hrx
from hrx.reports.statistics import (
    FEWEST_INTERVAL,
    MOST_CLUSTERS,
    POWER,
    Evidence,
    Interval,
    Power,
    by_series,
    evidence,
    power_to_decide,
)
from hrx.reports.text import clean, counted, listed, number_or_none

Outcome = Literal["passed", "failed", "undecided"]
WORDS: dict[Outcome, str] = {"passed": "passed", "failed": "FAILED", "undecided": "undecided"}
Leniency = Literal["pass", "fail"]
"""What `--undecided` makes of undecided gates."""
Kind = Literal["signed", "positive", "share", "worst", "pair"]
GATED: dict[str, Kind] = {
    "g_own": "signed", "g_shuffled": "signed", "g_margin": "signed", "comprehensiveness": "signed", "aopc": "signed",
    "sufficiency": "signed", "insertion": "signed", "rank": "positive", "rank_entropy": "positive",
    "effective_lookback": "positive", "mse": "positive", "mae": "positive", "beats_naive": "share", "parity": "worst",
}  # fmt: skip
"""Quantities of a run that a gate can bound. A relative change is defined only for positive ones."""
OF_PAIRS: dict[str, Kind] = {"forecast_shift": "pair", "reading_overlap": "pair"}
"""Quantities of a pair of runs, which a gate of a comparison bounds as they are."""
EXAMPLES = ("g_margin >= -0.02", "beats_naive >= -5%", "mse <= +2%", "parity <= 1e-5", "forecast_shift <= 5%")
_GRAMMAR = (
    (re.compile(r"\s*(\w+)"), "a quantity"),
    (re.compile(r"\s*(>=|<=)"), "'>=' or '<='"),
    (re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"), "a number"),
    (re.compile(r"\s*(%?)"), "a percent sign"),
    (re.compile(r"\s*()$"), "the end"),
)
_SLACK = 1e-12
"""Differences of shares are not exact in binary: -0.05 must pass `>= -5%`."""
GUARD = 10
"""Times the bound that the change of a dataset must exceed to fail a gate alone."""
LEAST_BOUND = 0.02
"""Bound that the guard takes at least, where a gate bounds by zero: 2 % of an error or rank, 0.02 of a gain."""
_MOST_NAMED = 10


class Gate(NamedTuple):
    """A bound on one quantity."""

    text: str
    quantity: str
    at_least: bool
    bound: float
    """Percentages as fractions."""
    relative: bool
    """Whether the bound is on the relative change."""
    absolute: bool = False
    """Whether it bounds an audit's own figure, not a change."""

    @property
    def kind(self) -> Kind:
        return (GATED | OF_PAIRS)[self.quantity]


def average_of(quantity: str) -> Callable[[Iterable[float]], float]:
    """Average of the values of a series, and of the series of a cluster."""
    return fmean if GATED.get(quantity) == "share" else fmedian


class DatasetJudged(NamedTuple):
    """A dataset beyond the bound of a gate, or without a pair."""

    dataset: str
    outcome: Literal["failed", "beyond", "undecided"]
    """Whether it fails the gate alone, is only listed, or is not known."""
    change: float
    """Median over series of the median over settings, of a share the means; NaN where nothing is known."""
    beyond: int
    """Configurations beyond the bound, of `n`."""
    n: int
    series: int
    reason: str = ""
    """Why it fails the gate alone, or is not known."""


@dataclass(frozen=True)
class Judged:
    """A gate with its outcome."""

    gate: Gate
    outcome: Outcome
    reason: str
    """What decided, or why nothing does."""
    estimate: Interval
    """Of the median cluster, or of the share of clusters; all three alike for a worst run."""
    clusters: Evidence
    """One value per cluster; none for a worst run."""
    datasets: tuple[DatasetJudged, ...] = ()
    """Those beyond the bound, the largest first, and those without a pair."""
    tested: int = 0
    """Datasets with a value or a loss."""
    power: Power | None = None
    """Where the interval contains the bound."""
    scope: str = ""
    """Which pairs or runs count, where not all do."""
    model: str = ""
    """Model of an audit; empty in a comparison."""
    fingerprint: str = ""


def parse(text: str, *, absolute: bool = False) -> Gate:
    """Parses `QUANTITY >= NUMBER[%]` or `QUANTITY <= NUMBER[%]`. `absolute`: the gate is of an audit."""
    at, parts = 0, []
    for pattern, expected in _GRAMMAR:
        match = pattern.match(text, at)
        if match is None or (expected == "a number" and not math.isfinite(float(match[1]))):
            at = len(text) - len(text[at:].lstrip())
            found = repr(text[at:][:20]) if at < len(text) else "the end"
            raise HrxError(
                f"The gate {text!r} is not valid: expected {expected} at position {at + 1}, not {found}. "
                f"Examples: {', '.join(repr(example) for example in EXAMPLES)}."
            )
        known = GATED if absolute else GATED | OF_PAIRS
        if expected == "a quantity" and match[1] not in known:
            pairs = " It compares two checkpoints: use `hrx compare`." if match[1] in OF_PAIRS else ""
            raise HrxError(
                f"The gate {text!r} names an unknown quantity. {unknown('quantity', match[1], known)}{pairs}"
            )
        parts.append(match[1])
        at = match.end()
    quantity, operator, number, percent, _ = parts
    bound, kind = float(number) / (100 if percent else 1), known[quantity]
    relative, share_of = percent == "%" and kind not in ("share", "pair"), f"asks for a percentage of {quantity}"
    alone = "asks for a relative change, but an audit has nothing to compare with. Give a bound, for example"
    for refused, why in (
        (kind == "signed", f"{share_of}, which may be zero or negative. Give a difference: '{quantity} >= -0.02'."),
        (kind == "worst", f"{share_of}. Give its bound: 'parity <= 1e-5'."),
        (bound <= -1, "bounds a relative change at -100 % or below. Give a bound above -100%."),
        (absolute, f"{alone} '{quantity} <= 0.5', or use `hrx compare`."),
    ):
        if relative and refused:
            raise HrxError(f"The gate {text!r} {why}")
    return Gate(" ".join(text.split()), quantity, operator == ">=", bound, relative, absolute)


def is_beyond(gate: Gate, value: float) -> bool:
    """Whether the value lies on the wrong side of the bound."""
    slack = _SLACK * max(1.0, abs(gate.bound))
    return value < gate.bound - slack if gate.at_least else value > gate.bound + slack


def judge(
    gate: Gate,
    values: npt.ArrayLike,
    datasets: Collection[object],
    series: Collection[object],
    *,
    stopped: npt.ArrayLike | None = None,
    level: float = 1.0,
    least: int = FEWEST_INTERVAL,
    strict: bool = False,
    lost: Mapping[str, str] | None = None,
) -> Judged:
    """Judge the values `(n,)` of configurations: changes in a comparison, figures in an audit.

    `stopped` marks those in which the new model no longer beats naive, which lie beyond any bound. `level` is the
    figure of base, the unit of a bound that is no percentage. `strict` decides by the estimate instead of its interval.
    `lost`: datasets without a pair, and why.
    """
    measured = np.asarray(values, dtype=np.float64)
    out = np.zeros(len(measured), dtype=bool) if stopped is None else np.asarray(stopped, dtype=bool)
    counting = np.where(out, -math.inf if gate.at_least else math.inf, measured)
    found = evidence(counting, datasets, series, average=average_of(gate.quantity))
    estimate = found.share if gate.kind == "share" and gate.absolute else found.interval
    outcome, reason, power = _decide(gate, estimate, found, least, strict)
    listing = _beyond(gate, measured, counting, datasets, series, level)
    losses = [DatasetJudged(name, "undecided", math.nan, 0, 0, 0, why) for name, why in (lost or {}).items()]
    if outcome != "failed" and (alone := [one for one in listing if one.outcome == "failed"]):
        outcome, reason, power = "failed", alone[0].reason, None
    elif outcome != "failed" and losses:
        outcome, reason, power = "undecided", f"{losses[0].dataset} has {losses[0].reason}", None
    tested = len({str(name) for name, value in zip(datasets, measured, strict=True) if not math.isnan(value)})
    return Judged(gate, outcome, reason, estimate, found, (*listing, *losses), tested + len(losses), power)


def judge_worst(gate: Gate, worst: float) -> Judged:
    """Judge the figure of the worst run; NaN where there is none."""
    outside, figure = is_beyond(gate, worst), Interval(worst, worst, worst)
    if math.isnan(worst):
        return Judged(gate, "undecided", "no value", figure, Evidence(()))
    reason = f"the worst run lies {'beyond' if outside else 'within'} the bound"
    return Judged(gate, "failed" if outside else "passed", reason, figure, Evidence(()))


def _decide(
    gate: Gate, estimate: Interval, found: Evidence, least: int, strict: bool
) -> tuple[Outcome, str, Power | None]:
    """Outcome by the clusters alone, the reason, and the power where the interval contains the bound."""
    if not found.n:
        return "undecided", "no value", None
    least = least if strict else max(least, FEWEST_INTERVAL)
    if found.n < least:
        return "undecided", f"{found.counted}: a gate needs at least {least} {found.units}", None
    ends = {is_beyond(gate, end) for end in ((estimate.point,) if strict else estimate[1:])}
    if len(ends) == 1:
        outside = ends.pop()
        what = "the estimate (strict)" if strict else "the interval"
        return "failed" if outside else "passed", f"{what} lies {'beyond' if outside else 'within'} the bound", None
    if gate.kind == "share" and gate.absolute:
        power = power_to_decide(round(estimate.point * found.n), found.n, min(max(gate.bound, 0.0), 1.0))
    else:
        power = power_to_decide(sum(is_beyond(gate, value) for value in found.values), found.n)
    enough = f"about {power.needed:,}" if power.needed else f"more than {MOST_CLUSTERS:,}"
    now = f"{found.n} decide with a power of {100 * power.now:.0f} %, {enough} with {100 * POWER:.0f} %"
    return "undecided", f"the interval contains the bound; if further {found.units} are alike, {now}", power


def _beyond(
    gate: Gate, measured: Floats, counting: Floats, datasets: Iterable[object], series: Iterable[object], level: float
) -> list[DatasetJudged]:
    """Datasets beyond the bound: those that fail the gate alone first, then the largest change."""
    datasets, series, average = list(datasets), list(series), average_of(gate.quantity)
    judged, shown = by_series(counting, datasets, series), by_series(measured, datasets, series)
    listing = []
    for name, found in judged.items():
        values = [value for one in found.values() for value in one]
        outside = sum(is_beyond(gate, value) for value in values)
        if not is_beyond(gate, average([average(of_series) for of_series in found.values()])):
            continue
        change = average([average(of_series) for of_series in shown[name].values()])
        one = DatasetJudged(name, "beyond", change, outside, len(values), len(found))
        listing.append(_guarded(gate, one, level))
    return sorted(listing, key=lambda one: (one.outcome != "failed", -_wrong_way(gate, one.change)))


def _guarded(gate: Gate, one: DatasetJudged, level: float) -> DatasetJudged:
    """The dataset, failed if its change alone fails the gate.

    A share changes by whole runs: it must fall by more than half, over at least two configurations. An audit's own
    figure differs between datasets by nature, so no dataset fails its gate alone.
    """
    share, smallest = gate.kind == "share", LEAST_BOUND * (1.0 if gate.relative else level)
    reach = 0.5 if share else GUARD * max(abs(gate.bound), smallest)
    if gate.absolute or one.beyond < one.n or one.n <= share or _wrong_way(gate, one.change) <= reach + _SLACK:
        return one
    limit = (1 / (1 + reach) - 1 if gate.relative else -reach) if gate.at_least else reach
    of = f"this series of {one.dataset}" if one.series == 1 else one.dataset
    every = "its configuration lies" if one.n == 1 else f"all its {one.n} configurations lie"
    times = f"{GUARD} times the bound" if not share and abs(gate.bound) >= smallest else "the least that counts alone"
    change = f"its change ({amount(gate, one.change)}) exceeds {amount(gate, limit)}, {times}"
    return one._replace(outcome="failed", reason=f"{of} fails it alone: {every} beyond the bound, and {change}")


def _wrong_way(gate: Gate, change: float) -> float:
    """How far a change goes in the direction that the gate bounds; a fall to a half is as far as a rise to double."""
    if gate.relative and gate.at_least:
        return 1 / (1 + change) - 1 if change > -1 else math.inf
    return -change if gate.at_least else change


def judge_audit(
    gates: Sequence[str], frame: pd.DataFrame, *, strict: bool = False, by_backbone: bool = False
) -> list[Judged]:
    """Gates of an audit on each model's own figures, one value per cluster, seeds folded; parity over all runs.

    Gains count over the runs that beat naive and are not too short, all else over the scored ones. `by_backbone` judges
    the models of `hrx train` of a backbone together, each a configuration of its own.
    """
    parsed = [parse(text, absolute=True) for text in gates]
    pooled = trained_by_hrx(frame) & by_backbone
    names, weights = frame["model"].mask(pooled, frame["backbone"]), frame["fingerprint"].mask(pooled, "")
    judged = []
    for (model, fingerprint), runs in frame.groupby([names, weights], sort=False, dropna=False):
        done = scored_runs(runs)
        for gate in parsed:
            one = _judge_model(gate, done.astype({gate.quantity: "float64"}), strict)
            judged.append(replace(one, model=str(model), fingerprint=str(fingerprint)))
    return judged


def _judge_model(gate: Gate, done: pd.DataFrame, strict: bool) -> Judged:
    if gate.kind == "worst":
        return judge_worst(gate, float(done[gate.quantity].max()))
    scope = ""
    if gate.kind == "signed":
        beating, short = beats_naive(done), too_short(done)
        scope = f"over {beating.sum()} of {counted(len(done), 'run')}: those that beat naive{left_out(short[beating])}"
        done = done[beating & ~short]
    folded = fold_seeds(done, [gate.quantity])
    found = judge(gate, folded[gate.quantity], folded["dataset"], folded["series"], strict=strict)
    return replace(found, scope=scope)


def left_out(short: Bools) -> str:
    """Part of a scope: how many runs or pairs count for no gain because their variance is too small."""
    less = f"less than {SHORTEST_SPAN} horizons of test region"
    return f"; {short.sum()} of them left out, with {less}" if short.any() else ""


def exit_code(judged: Iterable[Judged], undecided: Leniency | None = None) -> Exit:
    """Exit code of several gates: failed over undecided, which `undecided` may turn into passed or failed."""
    outcomes = {one.outcome for one in judged}
    if "failed" in outcomes or ("undecided" in outcomes and undecided == "fail"):
        return Exit.GATE_FAILED
    return Exit.NOT_DECIDED if "undecided" in outcomes and undecided is None else Exit.DONE


def describe_gate(judged: Judged) -> list[str]:
    """What decided or why nothing did, the figure with what it counts, and the datasets beyond the bound."""
    known = not math.isnan(judged.estimate.point)
    lines = [judged.reason, ", ".join(part for part in (_figure(judged) if known else "", judged.scope) if part)]
    listing = [one for one in judged.datasets if one.outcome != "undecided"]
    named = [f"{clean(one.dataset)} {_listed_change(judged.gate, one)} ({one.beyond} of {one.n})" for one in listing]
    more = [counted(len(named) - _MOST_NAMED, "more dataset")] if len(named) > _MOST_NAMED else []
    beyond = f"{len(named)} of {counted(judged.tested, 'dataset')} beyond the bound (of their configurations)"
    lines.append(f"{beyond}: {listed([*named[:_MOST_NAMED], *more])}" if named else "")
    lost = [f"{clean(one.dataset)} has {one.reason}" for one in judged.datasets if one.outcome == "undecided"]
    return [line for line in (*lines, listed(lost[:_MOST_NAMED])) if line]


def _listed_change(gate: Gate, one: DatasetJudged) -> str:
    """Change of a dataset beyond the bound; a change within it is beyond because NEW no longer beats naive."""
    stopped = gate.kind == "signed" and not is_beyond(gate, one.change)
    return amount(gate, math.inf if stopped else one.change)


def amount(gate: Gate, value: float) -> str:
    """A change or figure in the unit of its gate: `+1.60%`, `-5.00 pt`, `-0.0200`; `from 0` where base is zero.

    A change of a gain that is infinite stands for a new model that no longer beats naive.
    """
    if gate.relative:
        return relative_text(value)
    if gate.kind == "signed" and math.isinf(value):
        return "no longer beats naive"
    if gate.kind == "pair":
        return written(100 * value, ".2f", "%")
    scale, decimals, unit = (100, 2, "%" if gate.absolute else " pt") if gate.kind == "share" else (1, 4, "")
    return written(scale * value + 0.0, f"{'' if gate.absolute else '+'}.{decimals}f", unit)


def _figure(judged: Judged) -> str:
    point, low, high = judged.estimate
    gate, found = judged.gate, judged.clusters
    if gate.kind == "worst":
        return f"worst {point:.1e}"
    over = f"{found.counted}{f' of {found.source}' if found.unit == 'series' else ''}"
    if math.isnan(low):
        return f"{amount(gate, point)}, {over}, no interval"
    exact = gate.kind == "share" and gate.absolute
    kind = "" if exact or found.n > FEWEST_INTERVAL else " (range, 94 %)" if found.n == FEWEST_INTERVAL else " (range)"
    return f"{amount(gate, point)} [{amount(gate, low)}, {amount(gate, high)}]{kind}, {over}"


def gate_json(judged: Judged) -> dict[str, object]:
    """A gate in the JSON of `hrx compare` and `hrx audit`."""
    return {
        "gate": judged.gate.text,
        "outcome": judged.outcome,
        "reason": judged.reason,
        **interval_json(judged.estimate),
        "figure": "" if math.isnan(judged.estimate.point) else _figure(judged),  # null for a number has its reason here
        "clusters": judged.clusters.n,
        "unit": judged.clusters.unit,
        "power": judged.power and number_or_none(judged.power.now),
        "needed": judged.power and judged.power.needed,
        "scope": judged.scope,
        "datasets": [
            one._asdict() | {"change": number_or_none(one.change), "figure": _listed_change(judged.gate, one)}
            for one in judged.datasets
        ],
    }


def interval_json(interval: Interval) -> dict[str, float | None]:
    return dict(zip(("difference", "low", "high"), map(number_or_none, interval), strict=True))


def relative_text(change: float) -> str:
    """A relative change; `from 0` where base is zero."""
    return "from 0" if math.isinf(change) else written(100 * change, "+.2f", "%")


def written(value: float, format: str, unit: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:{format}}{unit}"
