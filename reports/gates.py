"""Gates: bounds such as `g_margin >= -0.02` for CI, parsed and judged.

In a comparison a gate bounds the paired difference, new less base; in an audit it bounds the audit's own figure.
`parity` is always that of the worst run. A percentage means points for a share (`beats_naive >= -5%`), and a relative
change for a quantity that is always positive (`mse <= +2%`). A gate passes or fails where the whole 95 % interval lies
on one side of the bound, and is undecided where the interval contains it; a strict gate is judged by the estimate.
Gates on gains count only what beats naive.

A relative change is judged on each dataset too, since a median over all runs hides a dataset that broke. A dataset lies
beyond the bound where the median of its configurations' changes does, or the change of its mean. It fails the gate
where its sign test says so after Holm's correction over the datasets, and leaves it undecided otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from hrx.errors import Exit, HrxError, unknown
from hrx.records.quantities import Floats
from hrx.reports.runs import beats_naive, fold_seeds, scored_runs, trained_by_hrx
from hrx.reports.statistics import (
    FEW,
    FEWEST,
    LEVEL,
    MOST_PAIRS,
    POWER,
    Interval,
    Power,
    finite,
    holm,
    interval_power,
    mean_interval,
    median_interval,
    sign_test_beyond,
    sign_test_power,
)
from hrx.reports.table import Format, ReportTable, TableColumn, TableRow, Value
from hrx.reports.text import counted, listed, number_or_none

Outcome = Literal["passed", "failed", "undecided"]
Leniency = Literal["pass", "fail"]
"""What `--undecided` makes of undecided gates."""
Kind = Literal["signed", "positive", "share", "worst"]
GATED: dict[str, Kind] = {
    "g_own": "signed", "g_shuffled": "signed", "g_margin": "signed", "comprehensiveness": "signed", "aopc": "signed",
    "sufficiency": "signed", "insertion": "signed", "rank": "positive", "rank_entropy": "positive",
    "effective_lookback": "positive", "mse": "positive", "mae": "positive", "beats_naive": "share", "parity": "worst",
}  # fmt: skip
"""Quantities that a gate can bound. A relative change is defined only for positive ones."""
EXAMPLES = ("g_margin >= -0.02", "beats_naive >= -5%", "mse <= +2%", "parity <= 1e-5")
_GRAMMAR = (
    (re.compile(r"\s*(\w+)"), "a quantity"),
    (re.compile(r"\s*(>=|<=)"), "'>=' or '<='"),
    (re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"), "a number"),
    (re.compile(r"\s*(%?)"), "a percent sign"),
    (re.compile(r"\s*()$"), "the end"),
)
FEWEST_TO_DECIDE = 6
"""Smallest n at which an interval of a median can cover 95 %: the range of n values covers 1 - 2^(1-n)."""
_SLACK = 1e-12
"""Differences of shares are not exact in binary: -0.05 must pass `>= -5%`."""


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


class DatasetJudged(NamedTuple):
    """A gate on a relative change on one dataset whose change lies beyond the bound, or is not known."""

    dataset: str
    outcome: Outcome
    median: float
    """Relative change of a configuration; NaN where there is none."""
    mean: float
    """Relative change of the dataset's mean."""
    beyond: int
    """Configurations beyond the bound, of `n`."""
    n: int
    p: float
    """Of the one-sided sign test, after Holm's correction over the datasets."""
    power: Power | None
    """Where the test does not decide."""
    reason: str = ""
    """Why the change is not known."""


class Judged(NamedTuple):
    """A gate with its outcome."""

    gate: Gate
    outcome: Outcome
    estimate: Interval
    """All three alike for a worst run; NaN where there is no value, and an interval of NaN below three values."""
    n: int = 0
    """Values behind the estimate: configurations, or runs for a worst run."""
    reason: str = ""
    """Why the overall figure does not decide."""
    scope: str = ""
    """Which pairs or runs count, where not all do."""
    datasets: tuple[DatasetJudged, ...] = ()
    """Those that lie beyond the bound, or are not known."""
    tested: int = 0
    """Datasets that were judged, where the gate is judged on each."""


class ModelJudged(NamedTuple):
    """A gate of an audit with its outcome for one model."""

    model: str
    fingerprint: str
    judged: Judged


def parse(text: str, *, absolute: bool = False) -> Gate:
    """Parses `QUANTITY >= NUMBER[%]` or `QUANTITY <= NUMBER[%]`. `absolute`: the gate is of an audit."""
    at, parts = 0, []
    for pattern, expected in _GRAMMAR:
        match = pattern.match(text, at)
        if match is None or (expected == "a number" and not math.isfinite(float(match[1]))):
            raise _wrong(text, len(text) - len(text[at:].lstrip()), expected)
        if expected == "a quantity" and match[1] not in GATED:
            raise HrxError(f"The gate {text!r} names an unknown quantity. {unknown('quantity', match[1], GATED)}")
        parts.append(match[1])
        at = match.end()
    quantity, operator, number, percent, _ = parts
    bound = float(number) / (100 if percent else 1)
    relative = percent == "%" and GATED[quantity] != "share"
    _refuse_meaningless(text, quantity, bound, relative, absolute)
    return Gate(" ".join(text.split()), quantity, operator == ">=", bound, relative, absolute)


def _wrong(text: str, at: int, expected: str) -> HrxError:
    found = repr(text[at:][:20]) if at < len(text) else "the end"
    return HrxError(
        f"The gate {text!r} is not valid: expected {expected} at position {at + 1}, not {found}. "
        f"Examples: {', '.join(repr(example) for example in EXAMPLES)}."
    )


def _refuse_meaningless(text: str, quantity: str, bound: float, relative: bool, absolute: bool) -> None:
    if relative and GATED[quantity] == "signed":
        raise HrxError(
            f"The gate {text!r} asks for a percentage of {quantity}, which may be zero or negative. "
            f"Give a difference, for example '{quantity} >= -0.02'."
        )
    if relative and GATED[quantity] == "worst":
        raise HrxError(f"The gate {text!r} asks for a percentage of {quantity}. Give its bound: 'parity <= 1e-5'.")
    if relative and bound <= -1:
        raise HrxError(f"The gate {text!r} bounds a relative change at -100 % or below. Give a bound above -100%.")
    if relative and absolute:
        raise HrxError(
            f"The gate {text!r} asks for a relative change, but an audit has nothing to compare with. "
            f"Give a bound, for example '{quantity} <= 0.5', or use `hrx compare`."
        )


def is_beyond(gate: Gate, value: float) -> bool:
    """Whether the value lies on the wrong side of the bound."""
    slack = _SLACK * max(1.0, abs(gate.bound))
    return value < gate.bound - slack if gate.at_least else value > gate.bound + slack


def judge(gate: Gate, estimate: Interval, n: int, *, strict: bool = False) -> Judged:
    """Judges the interval of `n` values, or if `strict` the estimate; a worst run has no interval."""
    if math.isnan(estimate.point):
        return Judged(gate, "undecided", estimate, n, "no value")
    if strict or GATED[gate.quantity] == "worst":
        return Judged(gate, "failed" if is_beyond(gate, estimate.point) else "passed", estimate, n)
    if n < FEWEST_TO_DECIDE:
        few = f"{counted(n, 'configuration')}: a 95 % interval needs at least {FEWEST_TO_DECIDE}"
        return Judged(gate, "undecided", estimate, n, few)
    ends = {is_beyond(gate, end) for end in (estimate.low, estimate.high)}
    if len(ends) == 1:
        return Judged(gate, "failed" if ends.pop() else "passed", estimate, n)
    power = _describe_power(interval_power(estimate, gate.bound, n), n)
    return Judged(gate, "undecided", estimate, n, f"the interval contains the bound; {power}")


def _describe_power(power: Power, n: int) -> str:
    """How likely a decision is now, and with how many configurations it would be likely."""
    enough = f"about {power.needed:,}" if power.needed else f"more than {MOST_PAIRS:,}"
    now = f"n={n} decides with a power of {100 * power.now:.0f} %"
    return f"if further configurations are alike, {now}; {100 * POWER:.0f} % needs {enough} configurations"


def estimate_of(quantity: str, folded: np.ndarray, runs: np.ndarray | None = None) -> Interval:
    """Figure of a quantity that is gated: a median, the mean of a share, the worst parity of all runs."""
    kind = GATED[quantity]
    if kind == "worst":
        values = folded if runs is None else runs
        kept = values[~np.isnan(values)]
        worst = float(kept.max()) if len(kept) else math.nan
        return Interval(worst, worst, worst)
    found = Interval(*(mean_interval(folded) if kind == "share" else median_interval(folded)))
    return found if len(finite(folded)) >= FEWEST else Interval(found.point, math.nan, math.nan)


def judge_audit(
    gates: Sequence[str], frame: pd.DataFrame, *, strict: bool = False, by_backbone: bool = False
) -> list[ModelJudged]:
    """Gates of an audit on each model's own figures: medians with seeds folded, shares, parity.

    Gains count over the runs that beat naive, all else over the scored ones. Fewer than ten leave a gate undecided.
    `by_backbone` judges the models of `hrx train` of a backbone together, each a configuration of its own.
    """
    parsed = [parse(text, absolute=True) for text in gates]
    judged = []
    pooled = trained_by_hrx(frame) & by_backbone
    names = frame["model"].mask(pooled, frame["backbone"])
    for (model, fingerprint), runs in frame.groupby(
        [names, frame["fingerprint"].mask(pooled, "")], sort=False, dropna=False
    ):
        done = scored_runs(runs)
        judged += [ModelJudged(str(model), str(fingerprint), _judge_model(gate, done, strict)) for gate in parsed]
    return judged


def _judge_model(gate: Gate, done: pd.DataFrame, strict: bool) -> Judged:
    name, scope = gate.quantity, ""
    counted_runs = done.astype({name: "float64"})
    if GATED[name] == "signed":
        counted_runs = counted_runs[beats_naive(done)]
        scope = f"over {len(counted_runs)} of {counted(len(done), 'run')}: those that beat naive"
    folded = fold_seeds(counted_runs, [name])[name].to_numpy(np.float64)
    values = counted_runs[name].to_numpy(np.float64)
    estimate, n = estimate_of(name, folded, values), len(finite(folded))
    if GATED[name] != "worst" and n and len(finite(values)) < FEW:
        judged = too_few(gate, estimate, n, len(finite(values)), "run")
    else:
        judged = judge(gate, estimate, n, strict=strict)
    return judged._replace(scope=scope)


def too_few(gate: Gate, estimate: Interval, n: int, found: int, what: str, least: int = FEW) -> Judged:
    """A gate over fewer runs or pairs than a decision needs."""
    return Judged(gate, "undecided", estimate, n, f"{counted(found, what)} with a value, at least {least} are needed")


def exit_code(judged: Iterable[Judged], undecided: Leniency | None = None) -> Exit:
    """Exit code of several gates: failed over undecided, which `undecided` may turn into passed or failed."""
    outcomes = {one.outcome for one in judged}
    if "failed" in outcomes or ("undecided" in outcomes and undecided == "fail"):
        return Exit.GATE_FAILED
    return Exit.NOT_DECIDED if "undecided" in outcomes and undecided is None else Exit.DONE


class DatasetChange(NamedTuple):
    """Relative changes of a quantity on one dataset, seeds folded."""

    changes: Floats
    """Of each configuration; infinite where an error of zero became positive."""
    mean: float
    """Of the mean over the configurations."""

    @classmethod
    def of(cls, base: Floats, new: Floats) -> DatasetChange:
        """From the values of the configurations, `(n,)` each, all zero or positive."""
        return cls(_relative(base, new), float(_relative(base.mean(), new.mean())) if len(base) else math.nan)

    @property
    def median(self) -> float:
        return float(np.median(self.changes)) if len(self.changes) else math.nan


def _relative(base: Floats, new: Floats) -> Floats:
    """Infinite where base is zero and new is not: the change is unknown, and certainly beyond any bound."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(base == new, 0.0, np.divide(new, base) - 1)


def judge_datasets(
    judged: Judged, changes: Mapping[str, DatasetChange], lost: Mapping[str, str], *, strict: bool = False
) -> Judged:
    """Gate with the datasets that lie beyond its bound. `lost`: datasets without a pair, and why."""
    gate = judged.gate
    beyond = {name: sum(is_beyond(gate, value) for value in one.changes.tolist()) for name, one in changes.items()}
    tests = [sign_test_beyond(beyond[name], len(one.changes)) for name, one in changes.items()]
    p = dict(zip(changes, holm(tests), strict=True))
    found = [
        _judge_dataset(gate, name, one, beyond[name], p[name], len(changes), strict)
        for name, one in changes.items()
        if is_beyond(gate, one.median) or is_beyond(gate, one.mean)
    ]
    found.sort(key=lambda one: (one.outcome != "failed", one.p, -abs(one.median)))
    found += [DatasetJudged(name, "undecided", math.nan, math.nan, 0, 0, 1.0, None, why) for name, why in lost.items()]
    return judged._replace(outcome=_combined(judged, found), datasets=tuple(found), tested=len(changes) + len(lost))


def _judge_dataset(
    gate: Gate, name: str, change: DatasetChange, beyond: int, p: float, tests: int, strict: bool
) -> DatasetJudged:
    n = len(change.changes)
    failed = strict or p <= LEVEL
    power = None if failed else sign_test_power(beyond, n, tests)
    return DatasetJudged(name, "failed" if failed else "undecided", change.median, change.mean, beyond, n, p, power)


def _combined(judged: Judged, datasets: Sequence[DatasetJudged]) -> Outcome:
    outcomes = {judged.outcome, *(one.outcome for one in datasets)}
    return "failed" if "failed" in outcomes else "undecided" if "undecided" in outcomes else "passed"


def describe_gate(judged: Judged) -> list[str]:
    """Figure of a gate, why it is undecided, and how many datasets lie beyond its bound."""
    figure = f"{_figure(judged)}, {judged.scope}" if judged.scope else _figure(judged)
    reason = [judged.reason] if judged.reason and not math.isnan(judged.estimate.point) else []
    broken = [f"beyond the bound on single datasets: {_counts(judged)} of {judged.tested}"] if judged.datasets else []
    return [figure, *reason, *broken]


def _figure(judged: Judged) -> str:
    point, low, high = judged.estimate
    if math.isnan(point):
        return "no value"
    gate = judged.gate
    if GATED[gate.quantity] == "worst":
        return f"worst {point:.1e}"
    scale, decimals, unit = 1.0, 4, ""
    if gate.relative or GATED[gate.quantity] == "share":
        scale, decimals, unit = 100.0, 2, "%" if gate.relative or gate.absolute else " pt"
    plus = "" if gate.absolute else "+"
    shown, *ends = (f"{scale * value + 0.0:{plus}.{decimals}f}" for value in (point, low, high))
    interval = f"[{', '.join(ends)}]" if math.isfinite(low) else "no interval"
    return f"{shown}{unit} {interval}, n={judged.n}"


def gate_json(judged: Judged) -> dict[str, object]:
    """A gate in the JSON of `hrx compare` and `hrx audit`."""
    return {
        "gate": judged.gate.text,
        "outcome": judged.outcome,
        **interval_json(judged.estimate),
        "n": judged.n,
        "reason": judged.reason,
        "scope": judged.scope,
        "datasets": [_dataset_json(one) for one in judged.datasets],
    }


def _dataset_json(one: DatasetJudged) -> dict[str, object]:
    return {
        **{name: getattr(one, name) for name in ("dataset", "outcome", "beyond", "n", "p", "reason")},
        "median": number_or_none(one.median),
        "mean": number_or_none(one.mean),
        "power": one.power and one.power.now,
        "needed": one.power and one.power.needed,
    }


def interval_json(interval: Interval) -> dict[str, float | None]:
    return dict(zip(("difference", "low", "high"), map(number_or_none, interval), strict=True))


def beyond(judged: Judged, most: int | None = None) -> ReportTable:
    """Datasets beyond the bound of a gate, or without a pair, with their tests; those that fail it first."""
    quantity = judged.gate.quantity
    columns = (
        TableColumn("dataset", "dataset"),
        TableColumn("outcome", "outcome"),
        TableColumn("median", quantity),
        TableColumn("mean", f"mean {quantity}"),
        TableColumn("beyond", "beyond"),
        TableColumn("p", "p (Holm)", Format("p")),
        TableColumn("power", "power"),
        TableColumn("needed", "n for 80 %"),
    )
    rows = []
    for one in judged.datasets[:most]:
        if one.reason:
            values: tuple[Value, ...] = (f"{one.dataset} ({one.reason})", one.outcome, *["-"] * 3, None, "-", "-")
        else:
            share = f"{one.beyond} of {one.n}"
            power = ("-", "-") if one.power is None else (f"{100 * one.power.now:.0f}%", _needed(one.power))
            values = (
                one.dataset,
                outcome_word(one),
                relative_text(one.median),
                relative_text(one.mean),
                share,
                one.p,
                *power,
            )
        rows.append(TableRow.of(columns, values))
    rest = len(judged.datasets) - len(rows)
    note = (
        "beyond counts configurations. A dataset fails the gate where its one-sided sign test, corrected over all "
        f"{judged.tested} datasets, has p at most {LEVEL:g}. power: how likely this n decides if further "
        "configurations are alike."
    )
    more = f" {counted(rest, 'more dataset')}: see the Markdown report." if rest else ""
    title = f"Datasets beyond {judged.gate.text}: {_counts(judged)} of {judged.tested}"
    return ReportTable("beyond", title, columns, tuple(rows), note + more)


def _needed(power: Power) -> str:
    return f">{MOST_PAIRS:,}" if power.needed is None else f"{power.needed:,}"


def _counts(judged: Judged) -> str:
    """`2 failed and 3 undecided`."""
    found = [one.outcome for one in judged.datasets]
    return listed(f"{found.count(outcome)} {outcome}" for outcome in ("failed", "undecided") if outcome in found)


def outcome_word(judged: Judged | DatasetJudged) -> str:
    return "FAILED" if judged.outcome == "failed" else judged.outcome


def relative_text(change: float) -> str:
    """A relative change; `from 0` where base is zero."""
    return "from 0" if math.isinf(change) else written(100 * change, "+.2f", "%")


def written(value: float, format: str, unit: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:{format}}{unit}"
