"""Two checkpoints on the same runs: which runs pair, how far each quantity moved, and whether the gates pass.

Runs are paired by everything that decides a number except the model: dataset, series, windows, setting, seeds,
estimator and protocol. Differences are taken within a pair, the seeds of a configuration are folded to their mean, and
the bootstrap resamples configurations. Base, new and difference of a quantity come from the same pairs; those of a gain
are the pairs in which both runs beat naive. `hrx.reports.comparison` has the result.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hrx.errors import HrxError, unknown
from hrx.records.quantities import Bools, Floats, Ints
from hrx.records.record import DONE, EXCLUDED, FAILED
from hrx.reports.comparison import MIN_PAIRS, CheckpointComparison, ComparedModel, QuantityChange
from hrx.reports.gates import (
    GATED,
    DatasetChange,
    Gate,
    Judged,
    Leniency,
    estimate_of,
    judge,
    judge_datasets,
    parse,
    too_few,
)
from hrx.reports.runs import (
    SEEDS,
    TASK,
    impossible_remark,
    mask_impossible,
    require_runs,
    stored_progress,
)
from hrx.reports.statistics import Interval, finite
from hrx.reports.text import clean, counted, listed, shorten

PAIRING = (*TASK, *SEEDS, "starts")
"""What two runs must have in common. The key of a record contains the weights, so it cannot pair them."""
_SHORTEST_PREFIX = 6
_LONGEST_REASON = 160
_MOST_NAMED = 3
_MOST_MODELS = 12
_NOTHING = Interval(math.nan, math.nan, math.nan)


def compare(
    base: pd.DataFrame,
    new: pd.DataFrame,
    gates: Sequence[str] | str = (),
    *,
    base_model: str | None = None,
    new_model: str | None = None,
    strict: bool = False,
    informational: bool = False,
    min_pairs: int = MIN_PAIRS,
    undecided: Leniency | None = None,
) -> CheckpointComparison:
    """Compares one model of each frame of `read`: the only one, the named one, or all models of a named backbone.

    Each gate is a bound on the change of a quantity; it passes, fails, or is undecided.

        base, new = hrx.read("my-audit/ledger.db"), hrx.read("my-audit/ledger.db")
        hrx.compare(base, new, ["g_margin >= -0.02"]).verdict
    """
    for side, frame in (("base", base), ("new", new)):
        require_runs(frame, side)
    # Records that were exported by an earlier hrx have no column of the backbone.
    base, new = (frame if "backbone" in frame else frame.assign(backbone="") for frame in (base, new))
    parsed = [parse(text) for text in ([gates] if isinstance(gates, str) else gates)]
    ours = choose(base, base_model, "BASE", "--base-model")
    theirs = choose(new, new_model, "NEW", "--new-model")
    left, right = _scored(ours), _scored(theirs)
    paired = left.merge(right, on=list(PAIRING), suffixes=("_base", "_new"))
    ids = np.asarray(paired.groupby(list(TASK), sort=False, dropna=False).ngroup(), dtype=np.int64)
    changes = {name: _change(_valued(paired, ids, name), name) for name in GATED if GATED[name] != "worst"}
    changes |= {name: _worst(left, right, name) for name in GATED if GATED[name] == "worst"}
    judged = [_judged(gate, changes[gate.quantity], len(paired), min_pairs, strict) for gate in parsed]
    lost = _lost(left, theirs, paired)
    return CheckpointComparison(
        base=_compared_model(ours, base_model, len(left) - len(paired)),
        new=_compared_model(theirs, new_model, len(right) - len(paired)),
        pairs=len(paired),
        both_beat_naive=int(_both_beat_naive(paired).sum()),
        configurations=len(np.unique(ids)),
        quantities=changes,
        gates=tuple(
            judge_datasets(one, _dataset_changes(paired, ids, one.gate.quantity), lost, strict=strict)
            if one.gate.relative
            else one
            for one in judged
        ),
        datasets=_by_dataset(paired, ids),
        min_pairs=min_pairs,
        strict=strict,
        informational=informational,
        undecided=undecided,
        apart=() if len(paired) else _apart(left, right),
    )


def choose(frame: pd.DataFrame, wanted: str | None, side: str, option: str) -> pd.DataFrame:
    """Runs of one model: the only one, or the one with this name, checkpoint or prefix of the weights' hash.

    A backbone names all models that were trained of it: a training is one model of one series, setting and seed.
    """
    about = frame[["model", "checkpoint", "fingerprint", "backbone"]].fillna("")
    models = about.drop_duplicates(["model", "fingerprint"])
    if models.empty:
        raise HrxError(f"{side} holds no runs. Give a ledger that `hrx audit` wrote.")
    if wanted is not None:
        by_weights = models["fingerprint"].str.startswith(wanted) & (len(wanted) >= _SHORTEST_PREFIX)
        named = (models["model"] == wanted) | (models["checkpoint"] == wanted) | by_weights
        models = models[named] if named.any() else models[models["backbone"] == wanted]
        if models.empty:
            known = [clean(name) for name in dict.fromkeys([*about["backbone"], *about["model"]]) if name]
            raise HrxError(f"{side}: {unknown('model', wanted, known)}")
    if len(models) > 1 and (models["backbone"].nunique() > 1 or not models["backbone"].iloc[0]):
        raise HrxError(_several(models, side, option))
    own = ["model", "fingerprint"]
    chosen: pd.DataFrame = frame[pd.MultiIndex.from_frame(about[own]).isin(pd.MultiIndex.from_frame(models[own]))]
    if len(models) > 1:
        _refuse_ambiguous(chosen, side)
    return chosen


def _several(models: pd.DataFrame, side: str, option: str) -> str:
    """Sentence on a ledger of several models: which there are, and how one, or a backbone, is chosen."""
    if (models["backbone"] != "").all():
        known = listed(map(clean, sorted(models["backbone"].unique())))
        return f"{side} holds {len(models)} models of several backbones: {known}. Choose a backbone with {option}."
    names = [f"{clean(row.model)} (weights {clean(row.fingerprint)[:12]})" for row in models.itertuples()]
    names = [*names[:_MOST_MODELS], *([f"{len(names) - _MOST_MODELS} more"] if len(names) > _MOST_MODELS else [])]
    how = "the name, or the first characters of the weights where names agree"
    return f"{side} holds several models: {listed(names)}. Choose one with {option}: {how}."


def _refuse_ambiguous(runs: pd.DataFrame, side: str) -> None:
    """Raises where two models of a backbone have a run of the same series, setting and seed: either could pair."""
    done = runs[runs["status"] == DONE].drop_duplicates([*PAIRING, "fingerprint"])
    alike = done.groupby(list(PAIRING), sort=False, dropna=False)["model"]
    if names := next(([clean(name) for name in models.iloc[:2]] for _, models in alike if len(models) > 1), None):
        raise HrxError(
            f"{side}: {listed(names)} have a run on the same series, setting and seed, so it is open which of them "
            "pairs. Audit one depth and one training of a backbone to a ledger of its own."
        )


def _scored(runs: pd.DataFrame) -> pd.DataFrame:
    """Scored runs with the pairing and compared columns. Of runs that differ only in versions the last one counts."""
    done = runs[runs["status"] == DONE].drop_duplicates(list(PAIRING), keep="last")
    return mask_impossible(done[[*PAIRING, *GATED]]).astype(dict.fromkeys(GATED, "float64"))


def _compared_model(runs: pd.DataFrame, wanted: str | None, unpaired: int) -> ComparedModel:
    first, status = runs.iloc[0], runs["status"]
    several = runs["fingerprint"].nunique() > 1
    # Of a backbone that was asked for, only one model may have a run yet.
    of_backbone = several or (wanted == first.get("backbone") and wanted not in (first["model"], first["checkpoint"]))
    of_group = "".join(sorted(runs["fingerprint"].unique())).encode() if several else b""
    return ComparedModel(
        model=f"{first['backbone']}, {runs['fingerprint'].nunique()} trained models"
        if several
        else str(first["model"]),
        checkpoint=str(first["backbone"] if several else first["checkpoint"]),
        fingerprint=hashlib.sha256(of_group).hexdigest() if several else str(first["fingerprint"]),
        scored=int((status == DONE).sum()),
        excluded=int((status == EXCLUDED).sum()),
        failed=int((status == FAILED).sum()),
        unpaired=unpaired,
        impossible=impossible_remark(runs.loc[status == DONE, list(GATED)]),
        failed_checks=_failed_checks(runs),
        plan=stored_progress(runs, str(first["backbone"]) if of_backbone else ""),
    )


def _failed_checks(runs: pd.DataFrame) -> tuple[str, ...]:
    """`equivalence: 0.3 against 1e-05 (…) at 96x24 (14 runs excluded)`, for each reason; the reason has the figure."""
    refused = runs[(runs["status"] == EXCLUDED) & runs["check_failed"].notna()]
    settings = refused["lookback"].astype(str) + "x" + refused["horizon"].astype(str)
    reasons = refused["reason"].fillna(refused["check_failed"])
    return tuple(
        f"{shorten(clean(reason), _LONGEST_REASON)} at {listed(dict.fromkeys(at))} ({counted(len(at), 'run')} excluded)"
        for reason, at in settings.groupby(reasons, sort=False)
    )


def _lost(left: pd.DataFrame, theirs: pd.DataFrame, paired: pd.DataFrame) -> dict[str, str]:
    """Datasets that base was scored on, and on which new was tried and has no pair: why not."""
    tried = theirs[theirs["status"] != DONE].groupby("dataset", sort=False)
    lost = set(left["dataset"]) - set(paired["dataset"])
    return {str(name): _why(runs) for name, runs in tried if name in lost}


def _why(runs: pd.DataFrame) -> str:
    first = runs.iloc[0]
    reason = shorten(clean(first["reason"] or "no reason was recorded"), _LONGEST_REASON)
    return f"no pair: {counted(len(runs), 'run')} of new {first['status']}, such as: {reason}"


def _worst(left: pd.DataFrame, right: pd.DataFrame, name: str) -> QuantityChange:
    """Over all runs of each model: a run without a partner must not hide its parity."""
    base, new = (estimate_of(name, side[name].to_numpy(np.float64)).point for side in (left, right))
    moved = Interval(new - base, math.nan, math.nan)
    return QuantityChange(base, new, moved, _NOTHING, len(right), len(right), 0, int(new > base), int(new < base))


def _valued(paired: pd.DataFrame, ids: Ints, name: str) -> pd.DataFrame:
    """`base` and `new` of each pair that has a value on both sides, indexed by configuration.

    A gain is meaningful only where the forecasts beat naive ones, so it counts where both runs of a pair do.
    """
    both = pd.DataFrame({side: paired[f"{name}_{side}"].to_numpy(np.float64) for side in ("base", "new")}, index=ids)
    kept = np.isfinite(both.to_numpy(np.float64)).all(axis=1)
    if GATED[name] == "signed":
        kept &= _both_beat_naive(paired)
    valued: pd.DataFrame = both[kept]
    return valued


def _both_beat_naive(paired: pd.DataFrame) -> Bools:
    beating = paired[["beats_naive_base", "beats_naive_new"]].to_numpy(np.float64) == 1
    return np.asarray(beating.all(axis=1), dtype=np.bool_)


def _fold(both: pd.DataFrame) -> pd.DataFrame:
    """Mean of each configuration's seeds."""
    folded: pd.DataFrame = both.groupby(level=0, sort=False).mean()
    return folded


def _change(both: pd.DataFrame, name: str) -> QuantityChange:
    centre = np.mean if GATED[name] == "share" else np.median
    base, new = _fold(both).to_numpy(np.float64).T
    # Seed by seed, so that a checkpoint compared with itself has a difference of exactly zero.
    difference = (both["new"] - both["base"]).groupby(level=0, sort=False).mean().to_numpy(np.float64)
    relative = _relative(base, new) if GATED[name] == "positive" else np.empty(0)
    return QuantityChange(
        base=float(centre(base)) if len(base) else math.nan,
        new=float(centre(new)) if len(new) else math.nan,
        difference=estimate_of(name, difference),
        relative=estimate_of(name, relative),
        pairs=len(both),
        n=len(base),
        relative_n=len(finite(relative)),
        rose=int((difference > 0).sum()),
        fell=int((difference < 0).sum()),
    )


def _relative(base: Floats, new: Floats) -> Floats:
    """Of folded values: the mean of the seeds' ratios would rise where one seed doubles and another halves."""
    ratio: Floats = np.full(len(base), np.nan)
    with np.errstate(over="ignore"):
        np.divide(new, base, out=ratio, where=base > 0)
    return np.where(np.isfinite(ratio), ratio - 1, np.nan)


def _judged(gate: Gate, change: QuantityChange, pairs: int, min_pairs: int, strict: bool) -> Judged:
    kind = GATED[gate.quantity]
    if kind == "worst":
        return judge(gate, Interval(change.new, change.new, change.new), change.n)
    scope = f"over {change.pairs} of {counted(pairs, 'pair')}: both sides beat naive" if kind == "signed" else ""
    estimate, n = (change.relative, change.relative_n) if gate.relative else (change.difference, change.n)
    if change.pairs < min_pairs:
        return too_few(gate, estimate, n, change.pairs, "pair", min_pairs)._replace(scope=scope)
    return judge(gate, estimate, n, strict=strict)._replace(scope=scope)


def _dataset_changes(paired: pd.DataFrame, ids: Ints, name: str) -> dict[str, DatasetChange]:
    """Relative changes of a quantity on each dataset that has a value."""
    folded = _fold(_valued(paired, ids, name))
    datasets = paired["dataset"].groupby(ids).first().reindex(folded.index)
    return {
        str(dataset): DatasetChange.of(one["base"].to_numpy(np.float64), one["new"].to_numpy(np.float64))
        for dataset, one in folded.groupby(datasets, sort=True)
    }


def _by_dataset(paired: pd.DataFrame, ids: Ints) -> pd.DataFrame:
    """Each dataset, the largest rise of `mse` first; seeds are folded, and gains count where both runs beat naive."""
    datasets = paired["dataset"].groupby(ids).first()
    moved = {}
    for name in ("mse", "g_margin", "g_own", "beats_naive"):
        folded = _fold(_valued(paired, ids, name))
        base, new = folded.to_numpy(np.float64).T
        moved[name] = pd.Series(_relative(base, new) if name == "mse" else new - base, index=folded.index)
    groups = pd.DataFrame(moved, index=datasets.index).groupby(datasets)
    changes = groups.median().assign(
        mean=pd.Series({name: one.mean for name, one in _dataset_changes(paired, ids, "mse").items()}, dtype="float64"),
        beats_naive=groups["beats_naive"].mean(),
        gains=groups["g_margin"].count(),
        n=groups.size(),
        pairs=paired.groupby("dataset").size(),
    )
    return changes.sort_values("mse", ascending=False, kind="stable", na_position="last")


def _apart(left: pd.DataFrame, right: pd.DataFrame) -> tuple[str, ...]:
    """Columns in which the two share no value."""
    if left.empty or right.empty:
        return ("scored runs",)
    values = {name: (set(left[name].dropna()), set(right[name].dropna())) for name in PAIRING}
    return tuple(name for name, (ours, theirs) in values.items() if (ours or theirs) and not ours & theirs)
