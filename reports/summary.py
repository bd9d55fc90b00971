"""What the runs of a ledger show about each model: numbers, and a verdict in one sentence.

The gains are the normalised ones. Seeds are folded before anything is aggregated, so `n` counts configurations. A gain
is meaningful only where the run beats naive, so each group of gains is given twice, over all scored runs and over those
that beat naive. The verdict uses the second, with one value per source (`hrx.reports.statistics.Evidence`).
docs/reading-a-report.md lists the verdicts with their rules.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hrx.records.quantities import GAINS, Floats
from hrx.records.record import DECLARED, DONE, EXCLUDED, FAILED, POSSIBLE, StoredCheck, StoredPlan
from hrx.reports.context import DatasetContext, dataset_contexts
from hrx.reports.covariates import channels_line, other_outputs
from hrx.reports.lags import LagReading, read_lags
from hrx.reports.runs import (
    LONGEST_REASON,
    NO_REASON,
    PlanProgress,
    beats_naive,
    beats_seasonal,
    count_reasons,
    fold_seeds,
    impossible_remark,
    mask_short,
    pooled,
    progress,
    remarks,
    scored_runs,
    too_short,
)
from hrx.reports.statistics import FEW_TEXT, Evidence, evidence, finite, fraction_positive, is_few, median
from hrx.reports.text import clean, counted, listed, number_or_none, percent, shorten
from hrx.reports.trust import UNSCORED, Trust, trust
from hrx.reports.verdict import EQUIVALENCE_BOUND, Claim, Finding, two

GAIN_HEADS = ("gain", "median", "95 % interval", "positive", "sign test p")
_LONGEST_NOTE = 40
EQUIVALENCE = "equivalence"
"""Admission check whose figure is a parity."""


@dataclass(frozen=True)
class GainGroup:
    """Gains over some of a model's scored runs."""

    runs: int
    """Before folding."""
    folded: pd.DataFrame = field(repr=False, compare=False)
    """One row per configuration, with a value or without."""

    @cached_property
    def _kept(self) -> pd.DataFrame:
        return self.folded[~self.folded["short"]]

    @cached_property
    def gains(self) -> dict[str, Floats]:
        """Values of each gain, without the configurations that are too short."""
        return {name: finite(self._kept[name]) for name in GAINS}

    @cached_property
    def evidence(self) -> dict[str, Evidence]:
        """Each gain with one value per source, without the configurations that are too short."""
        places = self._kept["dataset"], self._kept["series"]
        return {name: evidence(self._kept[name], *places) for name in GAINS}

    @property
    def size(self) -> str:
        """How many runs it holds, and whether they are few."""
        if not self.runs:
            return "none"
        n = len(self.gains["g_margin"])
        size = f"{FEW_TEXT}, n={n}" if is_few(n) else f"n={n}"
        folded = "" if len(self.folded) == self.runs else f", seeds of {counted(self.runs, 'run')} folded"
        return f"{size}{folded}, {self.evidence['g_margin'].counted}"

    def as_json(self) -> dict[str, object]:
        """Of each gain the median over configurations, as the published tables have it, and its `evidence`."""
        return {
            name: {
                "median": number_or_none(median(values)),
                "positive": number_or_none(fraction_positive(values)),
                "n": len(values),
                "evidence": self.evidence[name].as_json(),
            }
            for name, values in self.gains.items()
        }


class SeasonalRuns(NamedTuple):
    """How many of some runs have an error below that of seasonal naive, among those where both errors are known."""

    beating: int
    known: int

    @property
    def share(self) -> float:
        """From 0 to 1; NaN where nothing is known."""
        return self.beating / self.known if self.known else math.nan


class DatasetRow(NamedTuple):
    """A dataset on the first screen: medians over its scored configurations, `g_margin` over the usable ones."""

    dataset: str
    mase: float
    seasonal_mase: float
    g_margin: float
    lags: LagReading
    note: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Dataset, errors, gain, lags and note as text."""
        errors = ("-" if math.isnan(value) else f"{value:.2f}" for value in (self.mase, self.seasonal_mase))
        return (clean(self.dataset), *errors, two(self.g_margin), self.lags.shown, self.note)

    def as_json(self) -> dict[str, object]:
        """Entry of `datasets` in `hrx audit --json`."""
        numbers = {name: number_or_none(getattr(self, name)) for name in ("mase", "seasonal_mase", "g_margin")}
        lags = [lag._asdict() for lag in self.lags.lags]
        about = {"season": self.lags.season, "rhythm": self.lags.rhythm, "says": self.lags.sentence}
        return {"dataset": self.dataset, **numbers, "main_lags": lags, **about, "note": self.note}


class MedianMase(NamedTuple):
    """Medians over the scored configurations that have a MASE; NaN without any."""

    model: float
    naive: float
    seasonal: float

    def __str__(self) -> str:
        if math.isnan(self.model):
            return "unknown: these records have none"
        model, naive, seasonal = (f"{mase:.2f}" if mase >= 0.1 else f"{mase:.2g}" for mase in self)
        return f"{model} (median); last value {naive}, seasonal naive {seasonal}"


@dataclass(frozen=True)
class ModelSummary:
    """Results of one checkpoint."""

    model: str
    checkpoint: str
    fingerprint: str
    admitted: bool | None
    """Whether a run passed the admission checks; None where no run was scored and none failed a check."""
    runs: int
    """All of them: scored, excluded and failed."""
    excluded: int
    failed: int
    exclusions: dict[str, int]
    """How many runs were excluded for which reason, most frequent first."""
    failures: dict[str, int]
    beats_naive: float
    """Share of the scored runs, 0 to 1; NaN without any."""
    seasonal: SeasonalRuns
    """Of all scored runs. Seasonal naive is reported beside the naive forecasts and decides no verdict."""
    seasonal_beating_naive: SeasonalRuns
    """Of the runs that beat naive."""
    mase: MedianMase
    scored: GainGroup
    beating_naive: GainGroup
    rank: float
    """Median over the scored configurations."""
    parity: float
    """`worst_parity` of its runs and checks."""
    tone: str
    """What the verdict amounts to: yes, partly, no, contrary, few or none."""
    headline: str
    because: str
    """Figures behind the headline, and what limits it."""
    backbone: str = ""
    """Class of a trained model."""
    plan: PlanProgress | None = None
    """Stored part of what was planned; None where that is not known."""
    contexts: tuple[DatasetContext, ...] = ()
    """Needed context by dataset and setting, where it was measured."""
    claims: tuple[Claim, ...] = ()
    """What the first screen says, each with what decides it; none where no run is usable."""
    trust: Trust = UNSCORED
    datasets: tuple[DatasetRow, ...] = ()
    figures: str = ""
    """Figures behind the headline alone."""
    padded: tuple[str, ...] = ()
    """Settings of scored runs before whose lookback the library puts zeros."""
    unpadded: tuple[str, ...] = ()
    """Settings of the others."""
    channels: str = ""
    """What the covariates do, or why the model does not read them; empty without any."""
    output: str = ""
    """Outputs that were explained, where any is not the point forecast."""

    @property
    def verdict(self) -> str:
        return f"{self.headline}: {self.because}"

    @property
    def done(self) -> int:
        return self.scored.runs

    @property
    def title(self) -> str:
        """Its names and the first characters of its weights."""
        model, checkpoint = clean(self.model), clean(self.checkpoint)
        weights = f"weights {clean(self.fingerprint)[:12]}"
        return f"{model} ({weights})" if model == checkpoint else f"{model} ({checkpoint}, {weights})"

    @property
    def facts(self) -> dict[str, str]:
        """What is said above the gains, each by its label."""
        worst = "" if math.isnan(self.parity) else f", worst parity {self.parity:.1e}"
        found = {
            "admitted": _ADMITTED[self.admitted] + worst,
            "runs": f"{self.runs}: {self.done} scored, {self.excluded} excluded, {self.failed} failed",
        }
        if self.done:
            beating = self.beating_naive.runs
            beat = "beats" if 1 in (beating, self.done) else "beat"
            of = counted(self.done, "scored run")
            found["naive"] = f"{beating} of {of} {beat} both naive forecasts ({percent(self.beats_naive)})"
            found["seasonal"] = self._seasonal_fact
            found["MASE"] = str(self.mase)
        return found | ({} if math.isnan(self.rank) else {"rank": f"{self.rank:.2f} (median)"})

    @property
    def _seasonal_fact(self) -> str:
        found, among = self.seasonal, self.seasonal_beating_naive
        if not found.known:
            return "unknown: these records have no error of seasonal naive"
        of = counted(found.known, "scored run")
        beat = "beats" if 1 in (found.beating, found.known) else "beat"
        missing = f", unknown for {self.done - found.known} more" if found.known < self.done else ""
        both = f"; {among.beating} of the {among.known} that beat naive" if among.known else ""
        return f"{found.beating} of {of} {beat} seasonal naive ({percent(found.share)}){missing}{both}"

    @property
    def groups(self) -> tuple[tuple[str, GainGroup], ...]:
        return ("all scored runs", self.scored), ("runs that beat naive", self.beating_naive)

    def as_json(self) -> dict[str, object]:
        """Object of `hrx audit --json`, with null for a missing number."""
        return {
            **{name: getattr(self, name) for name in ("model", "checkpoint", "admitted", "runs", "excluded", "failed")},
            "beats_naive": number_or_none(self.beats_naive),
            "beats_seasonal": number_or_none(self.seasonal.share),
            **self.scored.as_json(),
            "rank": number_or_none(self.rank),
            "parity": number_or_none(self.parity),
            "verdict": self.verdict,
            "beating_naive": {
                "runs": self.beating_naive.runs,
                "beats_seasonal": number_or_none(self.seasonal_beating_naive.share),
                **self.beating_naive.as_json(),
            },
            "mase": {name: number_or_none(value) for name, value in self.mase._asdict().items()},
            "finding": [claim._asdict() for claim in self.claims],
            "trust": {"level": self.trust.level, "weaknesses": list(self.trust.weaknesses)},
            "datasets": [row.as_json() for row in self.datasets],
            "channels": self.channels or None,
            "plan": None if self.plan is None else self.plan.as_json(),
            "context": [one.as_json() for one in self.contexts],
            "exclusions": self.exclusions,
            "failures": self.failures,
        }


_ADMITTED = {True: "yes", False: "no", None: "unknown: no run was scored, and none failed a check"}


def summarise(
    frame: pd.DataFrame, checks: Sequence[StoredCheck], plans: Sequence[StoredPlan] = ()
) -> list[ModelSummary]:
    """One summary per model and fingerprint, in the order of the frame's rows."""
    groups, bound = frame.groupby(["model", "fingerprint"], sort=False, dropna=False), equivalence_bound(frame)
    return [summarise_runs(runs, checks, progress(runs, plans), bound) for _, runs in groups]


def equivalence_bound(frame: pd.DataFrame) -> float:
    """Bound within which gains are called about as well, as the audit of these runs gave it."""
    return float(frame.attrs.get("equivalence", EQUIVALENCE_BOUND))


def summarise_runs(
    runs: pd.DataFrame, checks: Sequence[StoredCheck], plan: PlanProgress | None, bound: float = EQUIVALENCE_BOUND
) -> ModelSummary:
    """One summary of the runs of one or several models, each a configuration of its own; named by the first."""
    done = scored_runs(runs)
    beats = beats_naive(done)
    versions = runs[["fingerprint", "library", "adapter_version", "torch_version"]]
    about = set(versions.itertuples(index=False, name=None))
    mine = [check for check in checks if check[:4] in about]  # made with the weights and versions of some run
    scored, beating = _group(done), _group(done[beats])
    tone, headline, figures, claims = _verdict(runs, mine, scored, beating, bound)
    output = other_outputs(done)
    margin = beating.evidence["g_margin"]
    padded = (done["padded"] > 0).fillna(False).to_numpy(dtype=bool)
    seasonal, among_beating = _seasonal(done), _seasonal(done[beats])
    medians = fold_seeds(done, ["mase", "naive_mase", "seasonal_mase", "rank"])
    first = runs.iloc[0]
    return ModelSummary(
        model=str(first["model"]),
        checkpoint=str(first["checkpoint"]),
        fingerprint=str(first["fingerprint"]),
        admitted=True if len(done) else False if runs["check_failed"].notna().any() else None,
        runs=len(runs),
        excluded=int((runs["status"] == EXCLUDED).sum()),
        failed=int((runs["status"] == FAILED).sum()),
        exclusions=count_reasons(runs, EXCLUDED),
        failures=count_reasons(runs, FAILED),
        beats_naive=float(beats.mean()) if len(done) else math.nan,
        seasonal=seasonal,
        seasonal_beating_naive=among_beating,
        mase=MedianMase(*(median(medians[name]) for name in ("mase", "naive_mase", "seasonal_mase"))),
        scored=scored,
        beating_naive=beating,
        rank=median(medians["rank"]),
        parity=worst_parity(mine, runs["parity"]),
        tone=tone,
        headline=f"{headline} ({output})" if output else headline,
        because=" ".join([figures, *(plan.sentences() if plan else ()), *_remarks(runs, among_beating)]),
        backbone="" if pd.isna(first["backbone"]) else str(first["backbone"]),
        plan=plan,
        contexts=tuple(dataset_contexts(runs)),
        claims=claims,
        trust=trust(runs, plan, margin.source if beating.runs and margin.unit == "series" else ""),
        datasets=tuple(dataset_rows(runs)),
        figures=figures,
        padded=_settings(done[padded]),
        unpadded=_settings(done[~padded]),
        channels=channels_line(done),
        output=output,
    )


def _settings(runs: pd.DataFrame) -> tuple[str, ...]:
    pairs = sorted(set(zip(runs["lookback"], runs["horizon"], strict=True)))
    return tuple(f"{lookback}x{horizon}" for lookback, horizon in pairs)


def dataset_rows(runs: pd.DataFrame) -> Iterator[DatasetRow]:
    """One row for each dataset of the runs of a model, by name."""
    for name, mine in runs.groupby("dataset", sort=True):
        done = scored_runs(mine)
        usable = mask_short(done[beats_naive(done)])
        errors = fold_seeds(done, ["mase", "seasonal_mase"])
        lags = read_lags(done)
        note = lags.note
        if done.empty:
            note = shorten(clean(str(mine["reason"].iloc[0] or NO_REASON)), _LONGEST_NOTE)
        elif usable.empty:
            note = "loses to naive"
        elif usable["g_margin"].isna().all():
            note = "short test region"
        margin = median(fold_seeds(usable, ["g_margin"])["g_margin"])
        yield DatasetRow(str(name), median(errors["mase"]), median(errors["seasonal_mase"]), margin, lags, note)


def _seasonal(runs: pd.DataFrame) -> SeasonalRuns:
    beats = beats_seasonal(runs)
    return SeasonalRuns(int((beats == 1).sum()), int((~np.isnan(beats)).sum()))


def _group(runs: pd.DataFrame) -> GainGroup:
    folded = fold_seeds(runs.assign(short=too_short(runs).astype(np.float64)), (*GAINS, "short"))
    folded["short"] = folded["short"] > 0
    return GainGroup(len(runs), folded)


def worst_parity(checks: Iterable[Any], of_runs: Iterable[float] = ()) -> float:
    """Parity of a model: the largest `max|a−b| / max|b|` of its forecast and the official call, NaN where unknown.

    Over the windows of the admission check "equivalence", stored or just made, and over those of every run, excluded
    ones too. Summary, page and `hrx verify` show this number.
    """
    seen = [check.figure for check in checks if check.check == EQUIVALENCE]
    return float(pd.Series([*of_runs, *seen], dtype="float64").max())


def _verdict(
    runs: pd.DataFrame, checks: Sequence[StoredCheck], scored: GainGroup, group: GainGroup, bound: float
) -> tuple[str, str, str, tuple[Claim, ...]]:
    """Tone, the headline, the figures behind it, and the claims."""
    if not scored.runs:
        return "none", "Not audited", f"{_refusal(runs, checks)}.", ()
    if not group.runs:
        few = f" ({FEW_TEXT})" if is_few(len(scored.gains["g_margin"])) else ""
        return "few", "No gain is meaningful", f"no run beats both naive forecasts{few}.", ()
    found = Finding(group.evidence["g_own"], group.evidence["g_margin"], int(group.folded["short"].sum()), bound)
    figures = found.figures
    if left_out := len(scored.folded) - len(group.folded):
        of = f"{left_out} of {counted(len(scored.folded), 'configuration')}"
        lose = "loses to naive and is" if left_out == 1 else "lose to naive and are"
        figures += f" {of} {lose} left out; with them g_margin is {scored.evidence['g_margin']}."
    return *found.headline, figures, found.claims


def _refusal(runs: pd.DataFrame, checks: Sequence[StoredCheck]) -> str:
    """Why nothing was scored: failed checks where there are any, else the most frequent reason."""
    failed: dict[str, list[StoredCheck]] = {}
    for check in checks:
        if not check.passed:
            failed.setdefault(check.check, []).append(check)
    if failed:
        figures = {name: f"{found[0].figure:.3g}".replace("nan", "not a number") for name, found in failed.items()}
        return "; ".join(
            f"{name} failed ({figures[name]}, limit {found[0].limit:.3g}) at {listed(one.setting for one in found)}"
            for name, found in failed.items()
        )
    statuses = runs["status"].fillna("without a status").value_counts()
    summed = listed(f"{count} {status}" for status, count in statuses.items())
    reason = next(iter(count_reasons(runs, str(statuses.index[0]))), NO_REASON)
    shown = shorten(clean(reason).rstrip("."), LONGEST_REASON)
    return f"no run could be scored ({summed}), most often because: {shown}"


def _remarks(runs: pd.DataFrame, beating: SeasonalRuns) -> Iterator[str]:
    """Sentences after the verdict: what limits it. `beating` are the runs that beat naive."""
    done = runs[runs["status"] == DONE]
    lost, known = beating.known - beating.beating, beating.known
    if 2 * lost > known:
        lose = "loses" if lost == 1 else "lose"
        yield f"But {lost} of {counted(known, 'run')} that beat naive {lose} to seasonal naive."
    if len(done):
        settled = set(zip(done["lookback"], done["horizon"], strict=True))
        asked = dict.fromkeys(zip(runs["lookback"], runs["horizon"], strict=True))
        if missing := [f"{lookback}x{horizon}" for lookback, horizon in asked if (lookback, horizon) not in settled]:
            yield f"No run could be scored at {listed(missing)}."
    for leakage, words in ((DECLARED, "is declared to have seen"), (POSSIBLE, "may have seen, as far as is declared,")):
        if seen := int((done["leakage"] == leakage).sum()):
            where = f"{seen} of {counted(len(done), 'scored run')} {'is' if seen == 1 else 'are'} on datasets that it"
            yield f"{where} {words} in training."
    said = remarks(done)
    yield from (said[name] for name in ("rows", "padded", "sparse") if name in said)
    if failed := int((runs["status"] == FAILED).sum()):
        yield f"Incomplete: {failed} of {counted(len(runs), 'run')} failed."
    if differing := pooled(done):
        yield f"Pools runs that differ in {listed(differing)}."
    if impossible := impossible_remark(done):
        yield impossible
