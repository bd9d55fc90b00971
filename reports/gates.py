"""Gates: bounds such as `g_margin >= -0.02` for CI, parsed and judged.

In a comparison a gate bounds the paired difference, new less base; in an audit it bounds the audit's own figure.
`parity` is always that of the worst run. A percentage means points for a share (`beats_naive >= -5%`), and a relative
change for a quantity that is always positive (`mse <= +2%`). A gate fails only when the whole interval lies on the
wrong side; a strict gate fails when the estimate does.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from hrx.errors import Exit, HrxError, unknown
from hrx.reports.runs import Interval, fold_seeds, mean_interval, median_interval, scored_runs

Kind = Literal["signed", "positive", "share", "worst"]
GATED: dict[str, Kind] = {
    "g_own": "signed", "g_shuffled": "signed", "g_margin": "signed", "comprehensiveness": "signed", "aopc": "signed",
    "sufficiency": "signed", "insertion": "signed", "rank": "positive", "rank_entropy": "positive",
    "effective_lookback": "positive", "mse": "positive", "mae": "positive", "beats_naive": "share", "parity": "worst",
}  # fmt: skip
"""The quantities that a gate can bound. A relative change is defined only for positive ones."""
EXAMPLES = ("g_margin >= -0.02", "beats_naive >= -5%", "mse <= +2%", "parity <= 1e-5")
_GRAMMAR = (
    (re.compile(r"\s*(\w+)"), "a quantity"),
    (re.compile(r"\s*(>=|<=)"), "'>=' or '<='"),
    (re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"), "a number"),
    (re.compile(r"\s*(%?)"), "a percent sign"),
    (re.compile(r"\s*()$"), "the end"),
)
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


class Judged(NamedTuple):
    """A gate with its outcome."""

    gate: Gate
    passed: bool | None
    """None where too few runs have a value."""
    estimate: Interval
    """All three alike for a worst run; NaN where there is no value."""


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
    _refuse_meaningless(text, quantity, relative, absolute)
    return Gate(" ".join(text.split()), quantity, operator == ">=", bound, relative)


def _wrong(text: str, at: int, expected: str) -> HrxError:
    found = repr(text[at:][:20]) if at < len(text) else "the end"
    return HrxError(
        f"The gate {text!r} is not valid: expected {expected} at position {at + 1}, not {found}. "
        f"Examples: {', '.join(repr(example) for example in EXAMPLES)}."
    )


def _refuse_meaningless(text: str, quantity: str, relative: bool, absolute: bool) -> None:
    if relative and GATED[quantity] == "signed":
        raise HrxError(
            f"The gate {text!r} asks for a percentage of {quantity}, which may be zero or negative. "
            f"Give a difference, for example '{quantity} >= -0.02'."
        )
    if relative and GATED[quantity] == "worst":
        raise HrxError(f"The gate {text!r} asks for a percentage of {quantity}. Give its bound: 'parity <= 1e-5'.")
    if relative and absolute:
        raise HrxError(
            f"The gate {text!r} asks for a relative change, but an audit has nothing to compare with. "
            f"Give a bound, for example '{quantity} <= 0.5', or use `hrx compare`."
        )


def judge(gate: Gate, estimate: Interval, *, strict: bool = False) -> Judged:
    """Fails where the whole interval, or if `strict` the estimate, lies on the wrong side of the bound."""
    if math.isnan(estimate.point):
        return Judged(gate, None, estimate)
    best = estimate.high if gate.at_least else estimate.low
    judged = estimate.point if strict or not math.isfinite(best) else best
    slack = _SLACK * max(1.0, abs(gate.bound))
    passed = judged >= gate.bound - slack if gate.at_least else judged <= gate.bound + slack
    return Judged(gate, passed, estimate)


def estimate_of(quantity: str, folded: np.ndarray, runs: np.ndarray | None = None) -> Interval:
    """The figure of a quantity that is gated: a median, the mean of a share, the worst parity of all runs."""
    kind = GATED[quantity]
    if kind == "worst":
        values = folded if runs is None else runs
        kept = values[~np.isnan(values)]
        worst = float(kept.max()) if len(kept) else math.nan
        return Interval(worst, worst, worst)
    return Interval(*(mean_interval(folded) if kind == "share" else median_interval(folded)))


def judge_audit(gates: Sequence[str], frame: pd.DataFrame, *, strict: bool = False) -> list[ModelJudged]:
    """Gates of an audit on each model's own figures over its scored runs: medians with seeds folded, shares, parity."""
    parsed = [parse(text, absolute=True) for text in gates]
    names = list(dict.fromkeys(gate.quantity for gate in parsed))
    judged = []
    for (model, fingerprint), runs in frame.groupby(["model", "fingerprint"], sort=False, dropna=False):
        done = scored_runs(runs).astype(dict.fromkeys(names, "float64"))
        folded = fold_seeds(done, names)
        for gate in parsed:
            name = gate.quantity
            estimate = estimate_of(name, folded[name].to_numpy(np.float64), done[name].to_numpy(np.float64))
            judged.append(ModelJudged(str(model), str(fingerprint), judge(gate, estimate, strict=strict)))
    return judged


def exit_code(judged: Iterable[Judged]) -> Exit:
    """The exit code of several gates: failed if one failed, else not comparable if one could not be judged."""
    outcomes = {one.passed for one in judged}
    if False in outcomes:
        return Exit.GATE_FAILED
    return Exit.NOT_COMPARABLE if None in outcomes else Exit.DONE
