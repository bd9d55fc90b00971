"""What the runs of a ledger say about each model, in numbers and in one sentence.

The numbers use the normalised gains. Seeds are folded before anything is aggregated, so `n` counts configurations.
PROTOCOL §5: a gain may be read only where the run beats naive. So each group of gains is given twice, over all
scored runs and over those that beat naive, and the verdict reads the second. The first rule that applies decides:

| rule                                                    | verdict                                              |
| ------------------------------------------------------- | ---------------------------------------------------- |
| no run was scored                                       | Not audited: which check failed, or what else        |
| no scored run beats naive                               | No gain may be read: no run beats both naive …,      |
|                                                         | with (n<10: few runs) where few were scored          |
| fewer than ten configurations that beat naive           | Too few runs to tell (n<10: few runs)                |
| interval of `g_margin` above 0, that of `g_own` too     | Reads different inputs for different steps           |
| interval of `g_margin` above 0, that of `g_own` below   | Rows belong to their steps, but one shared vector    |
|                                                         | explains the forecast better                         |
| interval of `g_margin` above 0, that of `g_own` on it   | … about as well                                      |
| interval of `g_margin` below 0                          | Contrary: another step's row explains better         |
| interval of `g_margin` on 0                             | No evidence that the reading depends on the step     |

After it come, where they apply: settings without a scored run, failed runs, library versions or protocol
settings that were pooled, and numbers that cannot have been measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from hrx.audit.ledger.record import DECLARED, DONE, EXCLUDED, FAILED, POSSIBLE
from hrx.audit.ledger.store import StoredCheck
from hrx.reports.layout import clean, shorten
from hrx.reports.statistics import (
    FEW_TEXT,
    describe,
    fold_seeds,
    impossible_remark,
    is_few,
    median_interval,
    pooled,
    possible,
)
from hrx.reports.words import listed, number_or_none, percent, signed

GAINS = ("g_own", "g_shuffled", "g_margin")
_LONGEST_REASON = 200


@dataclass(frozen=True)
class Gain:
    """One quantity over a group of runs. NaN where the group is empty."""

    median: float
    low: float
    high: float
    positive: float
    """Share of the runs above zero, 0 to 1."""
    negative: float
    p: float
    """Of the two-sided sign test."""
    n: int
    """Configurations: runs with their seeds folded."""

    @property
    def few(self) -> bool:
        return is_few(self.n)

    def as_json(self) -> dict[str, float | None]:
        return {name: number_or_none(getattr(self, name)) for name in ("median", "low", "high", "positive")}

    def __str__(self) -> str:
        return f"{signed(self.median)} [{signed(self.low)}, {signed(self.high)}]"


@dataclass(frozen=True)
class Group:
    """The gains over some of a model's scored runs."""

    runs: int
    """Before folding."""
    configurations: int
    """After it, with a value or without."""
    g_own: Gain
    g_shuffled: Gain
    g_margin: Gain

    @property
    def n(self) -> int:
        return self.g_margin.n

    @property
    def few(self) -> bool:
        return is_few(self.n)

    def as_json(self) -> dict[str, object]:
        return {name: getattr(self, name).as_json() for name in GAINS}


@dataclass(frozen=True)
class ModelSummary:
    """What the ledger says about one checkpoint."""

    model: str
    checkpoint: str
    fingerprint: str
    admitted: bool
    """Whether at least one run was scored."""
    runs: int
    """All of them: scored, excluded and failed."""
    excluded: int
    failed: int
    exclusions: dict[str, int]
    """How many runs were excluded for which reason, most frequent first."""
    failures: dict[str, int]
    beats_naive: float
    """Share of the scored runs, 0 to 1; NaN without any."""
    scored: Group
    beating_naive: Group
    rank: float
    """Median over the scored configurations."""
    parity: float
    """Worst over the scored runs; where there is none, worst that was seen at all."""
    verdict: str

    @property
    def done(self) -> int:
        return self.scored.runs

    def as_json(self) -> dict[str, object]:
        """The object of `hrx audit --json`, with null for what there is no number for."""
        return {
            "model": self.model,
            "checkpoint": self.checkpoint,
            "admitted": self.admitted,
            "runs": self.runs,
            "excluded": self.excluded,
            "failed": self.failed,
            "beats_naive": number_or_none(self.beats_naive),
            **self.scored.as_json(),
            "rank": number_or_none(self.rank),
            "parity": number_or_none(self.parity),
            "verdict": self.verdict,
            "beating_naive": {"runs": self.beating_naive.runs, **self.beating_naive.as_json()},
            "exclusions": self.exclusions,
            "failures": self.failures,
        }


def summarise(frame: pd.DataFrame, checks: Sequence[StoredCheck]) -> list[ModelSummary]:
    """One summary per model and fingerprint, in the order of the frame's rows."""
    groups = frame.groupby(["model", "fingerprint"], sort=False, dropna=False)
    return [_summarise(runs, checks) for _, runs in groups]


def _summarise(runs: pd.DataFrame, checks: Sequence[StoredCheck]) -> ModelSummary:
    stored = runs[runs["status"] == DONE]
    done = possible(stored)
    beats = (done["beats_naive"] == 1).fillna(False).astype(bool)
    mine = _checks_of(runs, checks)
    scored, beating = _group(done), _group(done[beats])
    first = runs.iloc[0]
    return ModelSummary(
        model=str(first["model"]),
        checkpoint=str(first["checkpoint"]),
        fingerprint=str(first["fingerprint"]),
        admitted=len(done) > 0,
        runs=len(runs),
        excluded=int((runs["status"] == EXCLUDED).sum()),
        failed=int((runs["status"] == FAILED).sum()),
        exclusions=_reasons(runs, EXCLUDED),
        failures=_reasons(runs, FAILED),
        beats_naive=float(beats.mean()) if len(done) else math.nan,
        scored=scored,
        beating_naive=beating,
        rank=median_interval(fold_seeds(done, ["rank"])["rank"], resamples=1).median,
        parity=_worst_parity(runs, done, mine),
        verdict=" ".join([_verdict(runs, mine, scored, beating), *_remarks(runs, stored)]),
    )


def _checks_of(runs: pd.DataFrame, checks: Sequence[StoredCheck]) -> list[StoredCheck]:
    """The checks of these weights under the versions that the runs were made with."""
    about = set(runs[["fingerprint", "library", "adapter_version", "torch_version"]].itertuples(index=False, name=None))
    return [check for check in checks if check[:4] in about]


def _group(runs: pd.DataFrame) -> Group:
    folded = fold_seeds(runs, GAINS)
    return Group(len(runs), len(folded), *(Gain(*describe(folded[name])) for name in GAINS))


def _reasons(runs: pd.DataFrame, status: str) -> dict[str, int]:
    reasons = runs.loc[runs["status"] == status, "reason"].fillna("no reason was recorded")
    return {str(reason): int(count) for reason, count in reasons.value_counts().items()}


def _worst_parity(runs: pd.DataFrame, done: pd.DataFrame, checks: Sequence[StoredCheck]) -> float:
    if len(done):
        return float(done["parity"].max())
    seen = [check.figure for check in checks if check.check == "equivalence"]
    return float(pd.Series([*runs["parity"], *seen], dtype="float64").max())


def _verdict(runs: pd.DataFrame, checks: Sequence[StoredCheck], scored: Group, group: Group) -> str:
    if not scored.runs:
        return f"Not audited: {_refusal(runs, checks)}."
    if not group.runs:
        few = f" ({FEW_TEXT})" if scored.few else ""
        return f"No gain may be read: no run beats both naive forecasts{few}."
    own, margin = group.g_own, group.g_margin
    folded = ", seeds folded" if group.configurations < group.runs else ""
    positive = f"positive in {percent(margin.positive)} of {group.n} runs that beat naive{folded}"
    figures = f"g_margin {margin}, {positive}; g_own {own}."
    if group.few:
        return f"Too few runs to tell ({FEW_TEXT}): {figures}"
    return f"{_reading(own, margin)}: {figures}"


def _reading(own: Gain, margin: Gain) -> str:
    if margin.low > 0 and own.low > 0:
        return "Reads different inputs for different steps"
    if margin.low > 0:
        how = "better" if own.high < 0 else "about as well"
        return f"Rows belong to their steps, but one shared vector explains the forecast {how}"
    if margin.high < 0:
        return "Contrary: a step is explained better by another step's row than by its own"
    return "No evidence that what is read depends on the forecast step"


def _refusal(runs: pd.DataFrame, checks: Sequence[StoredCheck]) -> str:
    """Why nothing was scored: failed checks where there are any, else the most frequent reason."""
    failed: dict[str, list[StoredCheck]] = {}
    for check in checks:
        if not check.passed:
            failed.setdefault(check.check, []).append(check)
    if failed:
        return "; ".join(_failure(name, found) for name, found in failed.items())
    statuses = runs["status"].fillna("without a status").value_counts()
    counted = listed(f"{count} {status}" for status, count in statuses.items())
    reason = next(iter(_reasons(runs, str(statuses.index[0]))), "no reason was recorded")
    return (
        f"no run could be scored ({counted}), most often because: {shorten(clean(reason).rstrip('.'), _LONGEST_REASON)}"
    )


def _failure(name: str, failed: Sequence[StoredCheck]) -> str:
    figure = failed[0].figure
    shown = "not a number" if math.isnan(figure) else f"{figure:.3g}"
    return f"{name} failed ({shown}, limit {failed[0].limit:.3g}) at {listed(check.setting for check in failed)}"


def _remarks(runs: pd.DataFrame, done: pd.DataFrame) -> list[str]:
    """What a reader of the verdict must know besides."""
    remarks = []
    if len(done):
        settled = set(zip(done["lookback"], done["horizon"], strict=True))
        asked = dict.fromkeys(zip(runs["lookback"], runs["horizon"], strict=True))
        if missing := [f"{lookback}x{horizon}" for lookback, horizon in asked if (lookback, horizon) not in settled]:
            remarks.append(f"No run could be scored at {listed(missing)}.")
    for leakage, words in ((DECLARED, "is declared to have seen"), (POSSIBLE, "may have seen, as far as is declared,")):
        if seen := int((done["leakage"] == leakage).sum()):
            remarks.append(f"{seen} of {len(done)} scored runs are on datasets that it {words} in training.")
    if failed := int((runs["status"] == FAILED).sum()):
        remarks.append(f"Incomplete: {failed} of {len(runs)} runs failed.")
    if differing := pooled(done):
        remarks.append(f"Pools runs that differ in {listed(differing)}.")
    if impossible := impossible_remark(done):
        remarks.append(impossible)
    return remarks
