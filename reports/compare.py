"""Two checkpoints on the same runs: which runs pair, how far each quantity moved, and whether the gates pass.

Runs are paired by everything that decides a number except the model: dataset, series, windows, setting, seeds,
estimator and protocol. Changes are taken within a configuration, the seeds folded to their mean; each cluster (a
source, or a series of the only source) has one value, the median over its series of the median over their settings.
Base, new and change of a quantity come from the same pairs, for a gain those in which both runs beat naive.
`hrx.reports.comparison` has the result.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from hrx.errors import HrxError, unknown
from hrx.records.record import DONE, EXCLUDED, FAILED
from hrx.reports.changed import add_changes
from hrx.reports.comparison import MIN_CLUSTERS, CheckpointComparison, ComparedModel, QuantityChange
from hrx.reports.gates import GATED, Leniency, average_of, judge, judge_worst, left_out, parse
from hrx.reports.runs import (
    NO_REASON,
    SEEDS,
    TASK,
    as_runs,
    beats_naive,
    impossible_remark,
    mask_impossible,
    stored_progress,
    too_short,
)
from hrx.reports.statistics import Evidence, evidence
from hrx.reports.text import clean, counted, listed, shorten

PAIRING = (*TASK, *SEEDS, "starts")
"""What two runs must have in common. The key of a record contains the weights, so it cannot pair them."""
_SHORTEST_PREFIX = 6
_LONGEST_REASON = 160
_MOST_MODELS = 12


def compare(
    base: pd.DataFrame | str | Path,
    new: pd.DataFrame | str | Path,
    gates: Sequence[str] | str = (),
    *,
    base_model: str | None = None,
    new_model: str | None = None,
    strict: bool = False,
    informational: bool = False,
    min_pairs: int = MIN_CLUSTERS,
    undecided: Leniency | None = None,
) -> CheckpointComparison:
    """Compares one model of each ledger, a path or a frame of `read`: the only one, the named one, or all models of a
    named backbone.

    Each gate is a bound on the change of a quantity; it passes, fails, or is undecided. `min_pairs` counts clusters.

        hrx.compare("my-audit/ledger.db", "my-audit/ledger.db", ["g_margin >= -0.02"]).verdict
    """
    base, new = as_runs(base, "base"), as_runs(new, "new")
    # Records that were exported by an earlier hrx have no column of the backbone.
    base, new = (frame if "backbone" in frame else frame.assign(backbone="") for frame in (base, new))
    parsed = [parse(text) for text in ([gates] if isinstance(gates, str) else gates)]
    ours = choose(base, base_model, "BASE", "--base-model")
    theirs = choose(new, new_model, "NEW", "--new-model")
    left, right = _scored(ours), _scored(theirs)
    paired, changed = add_changes(_paired(left, right))
    folded = {name: _folded(paired, name) for name in GATED if GATED[name] != "worst"}
    changes = {name: _change(folded[name], name) for name in folded}
    # Over all runs of each model: a run without a partner must not hide its parity.
    worst = [float(side["parity"].max()) for side in (left, right)]
    moved = Evidence((worst[1] - worst[0],))
    changes["parity"] = QuantityChange(worst[0], worst[1], moved, Evidence(()), len(right), len(right))
    lost = _lost(left, theirs, paired)
    judged = []
    for gate in parsed:
        if gate.kind == "worst":
            judged.append(judge_worst(gate, changes[gate.quantity].new))
            continue
        if gate.kind == "pair":
            of = _of_pairs(paired, gate.quantity)
            judged.append(
                judge(gate, of["value"], of["dataset"], of["series"], least=min_pairs, strict=strict, lost=lost)
            )
            continue
        of = folded[gate.quantity]
        level = abs(changes[gate.quantity].base) if gate.kind == "positive" else 1.0
        one = judge(
            gate, of["relative" if gate.relative else "difference"], of["dataset"], of["series"],
            stopped=of["stopped"], level=level, least=min_pairs, strict=strict, lost=lost,
        )  # fmt: skip
        judged.append(replace(one, scope=_scope(paired) if gate.kind == "signed" else ""))
    configurations = paired.drop_duplicates("configuration")
    return CheckpointComparison(
        base=_compared_model(ours, base_model, len(left) - len(paired)),
        new=_compared_model(theirs, new_model, len(right) - len(paired)),
        pairs=len(paired),
        both_beat_naive=int((paired["beats_base"] & paired["beats_new"]).sum()),
        configurations=len(configurations),
        clusters=evidence(np.zeros(len(configurations)), configurations["dataset"], configurations["item"]),
        quantities=changes,
        gates=tuple(judged),
        changed=changed,
        datasets=_by_dataset(paired, folded),
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
    scored = mask_impossible(done[[*PAIRING, *GATED]]).astype(dict.fromkeys(GATED, "float64"))
    kept = {name: done[name] for name in ("series", "reading", "variance")}
    return scored.assign(**kept, beats=beats_naive(done), short=too_short(done))


def _paired(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """Pairs of runs with the number of their `configuration` and the `item` that is their series.

    The name of a series in base tells items apart, since one item may have several frequencies; the values do where a
    dataset has the name twice.
    """
    paired = left.merge(right, on=list(PAIRING), suffixes=("_base", "_new"))
    values = paired["series_fingerprint"]
    twice = values.groupby([paired["dataset"], paired["series_base"]], dropna=False).transform("nunique") > 1
    ids = paired.groupby(list(TASK), sort=False, dropna=False).ngroup()
    return paired.assign(configuration=ids, item=paired["series_base"].mask(twice, values))


def _compared_model(runs: pd.DataFrame, wanted: str | None, unpaired: int) -> ComparedModel:
    first, status = runs.iloc[0], runs["status"]
    models = runs["fingerprint"].nunique()
    several = models > 1
    # Of a backbone that was asked for, only one model may have a run yet.
    of_backbone = several or (wanted == first.get("backbone") and wanted not in (first["model"], first["checkpoint"]))
    of_group = "".join(sorted(runs["fingerprint"].unique())).encode() if several else b""
    return ComparedModel(
        model=f"{first['backbone']}, {models} trained models" if several else str(first["model"]),
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
    why = {}
    for name, runs in ((str(name), runs) for name, runs in tried if name in lost):
        reason = shorten(clean(runs["reason"].iloc[0] or NO_REASON), _LONGEST_REASON)
        status = runs["status"].iloc[0]
        why[name] = f"no pair: {counted(len(runs), 'run')} of new {status}, such as: {reason}"
    return why


def _folded(paired: pd.DataFrame, name: str) -> pd.DataFrame:
    """Each configuration with a value on both sides: `base` and `new`, their seeds folded, and how far it moved.

    A gain is meaningful only where base beats naive; `stopped` marks the configurations in which new no longer does.
    """
    columns = {"base": f"{name}_base", "new": f"{name}_new"}
    both = paired[["configuration", "dataset", "item"]].rename(columns={"item": "series"})
    both = both.assign(**{side: paired[column] for side, column in columns.items()}, stopped=False)
    kept = both[["base", "new"]].notna().all(axis=1)
    if GATED[name] == "signed":
        both["stopped"] = ~paired["beats_new"]
        kept &= paired["beats_base"] & ~(paired["short_base"] | paired["short_new"])
    groups = both[kept].groupby("configuration", sort=False)
    folded = groups.agg(dataset=("dataset", "first"), series=("series", "first"), base=("base", "mean"),
        new=("new", "mean"), stopped=("stopped", "max"), pairs=("base", "size")).astype({"stopped": bool})  # fmt: skip
    # Of folded values: the mean of the seeds' ratios would rise where one seed doubles and another halves.
    base, new = folded["base"].to_numpy(np.float64), folded["new"].to_numpy(np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # A rise from an error of zero is infinite: not known, and certainly beyond any bound.
        relative = np.where(base == new, 0.0, new / base - 1) if GATED[name] == "positive" else math.nan
    return folded.assign(difference=new - base, relative=relative)


def _of_pairs(paired: pd.DataFrame, name: str) -> pd.DataFrame:
    """Each configuration with a value of a quantity of pairs, its seeds folded."""
    kept = paired[paired[name].notna()].groupby("configuration", sort=False)
    return kept.agg(dataset=("dataset", "first"), series=("item", "first"), value=(name, "mean"))


def _change(folded: pd.DataFrame, name: str) -> QuantityChange:
    kept = folded[~folded["stopped"]]
    of = [
        evidence(kept[column], kept["dataset"], kept["series"], average=average_of(name))
        for column in ("base", "new", "difference", "relative")
    ]
    base, new = ((found.share if GATED[name] == "share" else found.interval).point for found in of[:2])
    return QuantityChange(base, new, of[2], of[3], int(kept["pairs"].sum()), len(kept))


def _scope(paired: pd.DataFrame) -> str:
    """Which pairs count for a gain."""
    beating = paired[paired["beats_base"]]
    lost = int((~beating["beats_new"]).sum())
    stopped = f"; in {lost} of them NEW no longer does, which counts as beyond the bound" if lost else ""
    short = left_out((beating["short_base"] | beating["short_new"]).to_numpy())
    return f"over {len(beating)} of {counted(len(paired), 'pair')}: BASE beats naive{stopped}{short}"


def _by_dataset(paired: pd.DataFrame, folded: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Each dataset, the largest rise of `mse` first: medians over series of medians over settings."""
    found = {}
    for name in ("mse", "g_margin", "g_own", "beats_naive"):
        kept = folded[name][~folded[name]["stopped"]]
        average = "mean" if GATED[name] == "share" else "median"
        by_series = kept.groupby(["dataset", "series"])["relative" if name == "mse" else "difference"].agg(average)
        found[name] = by_series.groupby(level=0).agg(average)
    means = folded["mse"].groupby("dataset")[["base", "new"]].mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (means["new"] / means["base"] - 1).where(means["new"] != means["base"], 0.0)
    pairs = paired.groupby("dataset")
    gains = folded["g_margin"]["dataset"][~folded["g_margin"]["stopped"]].value_counts()
    found |= {"mean": mean, "gains": gains, "n": pairs["configuration"].nunique(), "pairs": pairs.size()}
    changes = pd.DataFrame(found, index=pairs.size().index)
    changes["gains"] = changes["gains"].fillna(0)
    return changes.sort_values("mse", ascending=False, kind="stable", na_position="last")


def _apart(left: pd.DataFrame, right: pd.DataFrame) -> tuple[str, ...]:
    """Columns in which the two share no value."""
    if left.empty or right.empty:
        return ("scored runs",)
    values = {name: (set(left[name].dropna()), set(right[name].dropna())) for name in PAIRING}
    return tuple(name for name, (ours, theirs) in values.items() if (ours or theirs) and not ours & theirs)
