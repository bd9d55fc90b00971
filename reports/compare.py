"""Two checkpoints on the same runs: which runs pair, how far each quantity moved, and whether the gates pass.

Runs are paired by everything that decides a number except the model: dataset, series, windows, setting, seeds,
estimator and protocol. Differences are taken within a pair, the seeds of a configuration are folded to their mean, and
the bootstrap resamples configurations. `hrx.reports.compare_report` writes the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hrx.audit.ledger.record import DONE, EXCLUDED, FAILED
from hrx.errors import Exit, HrxError, unknown
from hrx.reports.gates import GATED, Gate, Judged, estimate_of, exit_code, judge, parse
from hrx.reports.runs import SEEDS, TASK, Interval, impossible_remark, mask_impossible
from hrx.reports.text import clean, listed

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

MIN_PAIRS = 10
PAIRING = (*TASK, *SEEDS, "starts")
"""What two runs must have in common. The key of a record contains the weights, so it cannot pair them."""
_SHORTEST_PREFIX = 6
_NOTHING = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class ComparedModel:
    """One of the two checkpoints, with the counts of its runs."""

    model: str
    checkpoint: str
    fingerprint: str
    scored: int
    excluded: int
    failed: int
    unpaired: int
    """Scored runs without a partner."""
    impossible: str
    """A sentence about impossible numbers of its scored runs; empty where there are none."""


@dataclass(frozen=True)
class QuantityChange:
    """The change of one quantity. NaN where there is no value."""

    base: float
    new: float
    difference: Interval
    """Median of the paired differences; for a share their mean, for parity that of the worst runs."""
    relative: Interval
    """Median of the configurations' relative changes, for quantities that are always positive."""
    pairs: int
    """Pairs of runs in which both have a value."""


@dataclass(frozen=True)
class CheckpointComparison:
    """Everything that a report shows."""

    base: ComparedModel
    new: ComparedModel
    pairs: int
    configurations: int
    quantities: dict[str, QuantityChange]
    gates: tuple[Judged, ...]
    datasets: pd.DataFrame
    """For each dataset its `pairs` and the medians of paired differences, that of `mse` relative."""
    min_pairs: int = MIN_PAIRS
    strict: bool = False
    informational: bool = False
    apart: tuple[str, ...] = ()
    """Where nothing pairs: the columns in which the two share no value."""

    @property
    def comparable(self) -> bool:
        return self.pairs >= self.min_pairs

    @property
    def exit(self) -> Exit:
        """0 passed, 1 a gate failed, 4 not comparable; always 0 where it is for information only."""
        if self.informational:
            return Exit.DONE
        return exit_code(self.gates) if self.comparable else Exit.NOT_COMPARABLE

    @property
    def verdict(self) -> str:
        """One sentence that begins with `passed`, `failed`, `not comparable` or `informational`."""
        if not self.comparable:
            why = f" They have no {listed(self.apart)} in common." if self.apart else ""
            return f"not comparable: {self.pairs} pairs of runs, at least {self.min_pairs} are needed.{why}"
        failed = [one.gate.text for one in self.gates if one.passed is False]
        open_ones = [one.gate.text for one in self.gates if one.passed is None]
        over = f"over {self.pairs} pairs of runs"
        if failed:
            return f"failed: {listed(failed)}, {over}."
        if open_ones:
            return f"not comparable: too few pairs have a value to judge {listed(open_ones)}."
        if not self.gates:
            return f"informational: no gate was given; compared {over}."
        return f"passed: {'the gate' if len(self.gates) == 1 else f'all {len(self.gates)} gates'}, {over}."


def compare(
    base: pd.DataFrame,
    new: pd.DataFrame,
    gates: Sequence[str] = (),
    *,
    base_model: str | None = None,
    new_model: str | None = None,
    strict: bool = False,
    informational: bool = False,
    min_pairs: int = MIN_PAIRS,
) -> CheckpointComparison:
    """Compares one model of each frame of `read`: the only one, or the named one."""
    parsed = [parse(text) for text in gates]
    ours = choose(base, base_model, "BASE", "--base-model")
    theirs = choose(new, new_model, "NEW", "--new-model")
    left, right = _scored(ours), _scored(theirs)
    paired = left.merge(right, on=list(PAIRING), suffixes=("_base", "_new"))
    ids = np.asarray(paired.groupby(list(TASK), sort=False, dropna=False).ngroup(), dtype=np.int64)
    changes = {name: _change(paired, ids, name) for name in GATED if GATED[name] != "worst"}
    changes |= {name: _worst(left, right, name) for name in GATED if GATED[name] == "worst"}
    return CheckpointComparison(
        base=_compared_model(ours, len(left) - len(paired)),
        new=_compared_model(theirs, len(right) - len(paired)),
        pairs=len(paired),
        configurations=len(np.unique(ids)),
        quantities=changes,
        gates=tuple(_judged(gate, changes[gate.quantity], min_pairs, strict) for gate in parsed),
        datasets=_by_dataset(paired, ids),
        min_pairs=min_pairs,
        strict=strict,
        informational=informational,
        apart=() if len(paired) else _apart(left, right),
    )


def choose(frame: pd.DataFrame, wanted: str | None, side: str, option: str) -> pd.DataFrame:
    """The runs of one model: the only one, or the one with this name, checkpoint or prefix of the weights' hash."""
    about = frame[["model", "checkpoint", "fingerprint"]].fillna("")
    models = about.drop_duplicates(["model", "fingerprint"])
    if wanted is not None:
        by_weights = models["fingerprint"].str.startswith(wanted) & (len(wanted) >= _SHORTEST_PREFIX)
        models = models[(models["model"] == wanted) | (models["checkpoint"] == wanted) | by_weights]
        if models.empty:
            known = [clean(model) for model in about["model"].unique()]
            raise HrxError(f"{side}: {unknown('model', wanted, known)}")
    names = [f"{clean(row.model)} (weights {clean(row.fingerprint)[:12]})" for row in models.itertuples()]
    if not names:
        raise HrxError(f"{side} holds no runs. Give a ledger that `hrx audit` wrote.")
    if len(names) > 1:
        how = "the name, or the first characters of the weights where names agree"
        raise HrxError(f"{side} holds several models: {listed(names)}. Choose one with {option}: {how}.")
    one = models.iloc[0]
    chosen: pd.DataFrame = frame[(about["model"] == one["model"]) & (about["fingerprint"] == one["fingerprint"])]
    return chosen


def _scored(runs: pd.DataFrame) -> pd.DataFrame:
    """Scored runs with the pairing and compared columns. Of runs that differ only in versions the last one counts."""
    done = runs[runs["status"] == DONE].drop_duplicates(list(PAIRING), keep="last")
    return mask_impossible(done[[*PAIRING, *GATED]]).astype(dict.fromkeys(GATED, "float64"))


def _compared_model(runs: pd.DataFrame, unpaired: int) -> ComparedModel:
    first, status = runs.iloc[0], runs["status"]
    return ComparedModel(
        model=str(first["model"]),
        checkpoint=str(first["checkpoint"]),
        fingerprint=str(first["fingerprint"]),
        scored=int((status == DONE).sum()),
        excluded=int((status == EXCLUDED).sum()),
        failed=int((status == FAILED).sum()),
        unpaired=unpaired,
        impossible=impossible_remark(runs.loc[status == DONE, list(GATED)]),
    )


def _worst(left: pd.DataFrame, right: pd.DataFrame, name: str) -> QuantityChange:
    """Over all runs of each model: a run without a partner must not hide its parity."""
    base, new = (estimate_of(name, side[name].to_numpy(np.float64)).point for side in (left, right))
    moved = Interval(new - base, math.nan, math.nan)
    return QuantityChange(base, new, moved, _NOTHING, pairs=len(right))


def _change(paired: pd.DataFrame, ids: Ids, name: str) -> QuantityChange:
    base, new = (paired[f"{name}_{side}"].to_numpy(np.float64) for side in ("base", "new"))
    both = np.isfinite(base) & np.isfinite(new)
    base, new, ids = base[both], new[both], ids[both]
    pairs, centre = len(base), np.mean if GATED[name] == "share" else np.median
    base, new, difference = (_folded(values, ids) for values in (base, new, new - base))
    return QuantityChange(
        base=float(centre(base)) if pairs else math.nan,
        new=float(centre(new)) if pairs else math.nan,
        difference=estimate_of(name, difference),
        relative=estimate_of(name, _relative(base, new)) if GATED[name] == "positive" else _NOTHING,
        pairs=pairs,
    )


def _relative(base: Floats, new: Floats) -> Floats:
    """Of folded values: the mean of the seeds' ratios would rise where one seed doubles and another halves."""
    ratio: Floats = np.full(len(base), np.nan)
    with np.errstate(over="ignore"):
        np.divide(new, base, out=ratio, where=base > 0)
    return np.where(np.isfinite(ratio), ratio - 1, np.nan)


def _folded(values: Floats, ids: Ids) -> Floats:
    """The mean of each configuration's seeds."""
    return np.asarray(pd.Series(values).groupby(ids, sort=False).mean(), dtype=np.float64)


def _judged(gate: Gate, change: QuantityChange, min_pairs: int, strict: bool) -> Judged:
    if GATED[gate.quantity] == "worst":
        return judge(gate, Interval(change.new, change.new, change.new), strict=strict)
    estimate = change.relative if gate.relative else change.difference
    return Judged(gate, None, estimate) if change.pairs < min_pairs else judge(gate, estimate, strict=strict)


def _by_dataset(paired: pd.DataFrame, ids: Ids) -> pd.DataFrame:
    """Each dataset, the largest loss of `g_margin` first; seeds are folded here too."""
    names = ("g_own", "g_margin", "beats_naive", "mse")
    datasets = paired["dataset"].groupby(ids).first()
    moved = pd.DataFrame({name: _moved(paired, ids, name) for name in names}, index=datasets.index)
    groups = moved.groupby(datasets)
    pairs = paired.groupby("dataset").size()
    changes = groups.median().assign(beats_naive=groups["beats_naive"].mean(), pairs=pairs)
    return changes.sort_values("g_margin", kind="stable", na_position="last")


def _moved(paired: pd.DataFrame, ids: Ids, name: str) -> pd.Series[float]:
    """The change of each configuration's mean over the pairs in which both have a value; that of `mse` relative."""
    both = paired[[f"{name}_base", f"{name}_new"]].dropna()
    folded = both.groupby(ids[both.index]).mean()
    base, new = folded.to_numpy(np.float64).T
    return pd.Series(_relative(base, new) if name == "mse" else new - base, index=folded.index)


def _apart(left: pd.DataFrame, right: pd.DataFrame) -> tuple[str, ...]:
    """Columns in which the two share no value."""
    if left.empty or right.empty:
        return ("scored runs",)
    values = {name: (set(left[name].dropna()), set(right[name].dropna())) for name in PAIRING}
    return tuple(name for name, (ours, theirs) in values.items() if (ours or theirs) and not ours & theirs)
