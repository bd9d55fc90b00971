"""Runs of a ledger as a pandas frame: what decides their numbers, which of them count, and what was planned.

Seeds are folded before anything is counted. The columns are described in `hrx.records.record`. A ledger stores what was
planned before the first run is measured: a plan names its model but not the backbone, so that of a model without a
stored run is known from the name only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from hrx.errors import HrxError
from hrx.records import record
from hrx.records.decision import Decision, PlanTest, sign_of
from hrx.records.ledger import Ledger
from hrx.records.quantities import SHORTEST_SPAN, Bools, Floats
from hrx.records.record import StoredPlan
from hrx.reports.text import clean, counted, listed, shorten

BY_HRX = "hrx train"
"""`by` among the facts of a training that `hrx train` did."""


VERSIONS = ("library", "adapter_version", "torch_version")
PROTOCOL = (
    "windows", "protocol_version", "estimator", "estimator_settings", "estimator_package", "axis", "draws",
    "draws_kind", "precision", "max_draws", "scored", "fractions", "area", "permutations", "variance_windows", "output",
)  # fmt: skip
TASK = ("dataset", "series_fingerprint", "season", "channels", "roles", "lookback", "horizon", *PROTOCOL)
"""What is measured and how, for any model. Sweeps that are scored in addition change none of these numbers."""
CONFIGURATION = ("model", "fingerprint", *VERSIONS, "series", *TASK)
"""Everything that decides a run's numbers except its seeds."""
SEEDS = ("seed", "protocol_seed")
"""Seed of the windows and the seed of the draws."""
LARGEST = record.LARGEST
# The precision is a setting, and an infinite parity must stay visible as the worst one.
_MEASURED = [c.name for c in record.COLUMNS if c.kind == "REAL" and c.name not in ("precision", "parity")]
_DIVIDED = [name for name in _MEASURED if re.match("g_|gap_|compre|aopc|suffi", name) and not name.endswith("_raw")]
"""Columns that are divided by the variance of the series' forecasts."""
_MOST_NAMED = 8
NO_REASON = "no reason was recorded"
LONGEST_REASON = 200
_TRAINED_NAME = re.compile(r"([^-]+)-.+-\d+x\d+-seed\d+")
"""`BACKBONE-DATASET-LxH-seedN`, the name that `hrx train` gives a model."""
NOT_CORRECTED = "The intervals are not corrected for this stop."


def read(ledger_path: str | Path) -> pd.DataFrame:
    """One row per run, in the order of writing, with all columns of the record; JSON columns stay text.

    A column has the same type in every ledger, also in an empty one. A record that is not as it was written is left
    out, and a `LedgerWarning` names it; `attrs["damaged"]` is their number. `attrs["plans"]` says how
    many of the planned runs of each model are stored, `attrs["equivalence"]` the bound of the last audit that gave one.

        runs = hrx.read("my-audit/ledger.db")
        runs.groupby("dataset")["g_margin"].median()
    """
    with Ledger.open(ledger_path, create=False) as ledger:
        return frame_of(ledger)


def frame_of(ledger: Ledger) -> pd.DataFrame:
    """Return what `read` returns, of a ledger that is open."""
    rows = ledger.rows()
    damaged = len(ledger.damaged)
    columns = zip(*rows, strict=True) if rows else ((),) * len(record.COLUMNS)
    frame = pd.DataFrame({c.name: _typed(c.kind, values) for c, values in zip(record.COLUMNS, columns, strict=True)})
    planned = [one._asdict() | one.plan.as_json() for one in planned_models(frame, ledger.plans())]
    frame.attrs["damaged"] = damaged
    # Text, which pandas writes with a Parquet file: it copies attributes deeply with each column that is taken.
    stated = [json.loads(audit.settings).get("equivalence") for audit in ledger.audits()]
    if bounds := [bound for bound in stated if bound is not None]:
        frame.attrs["equivalence"] = bounds[-1]
    frame.attrs["plans"] = json.dumps([{name: one[name] for name in one if name != "plan"} for one in planned])
    return frame


def as_runs(given: pd.DataFrame | str | Path, name: str) -> pd.DataFrame:
    """Return a frame of `read`: the given one, or that of the ledger at a path; refuses anything else."""
    if isinstance(given, str | Path):
        return read(given)
    if not isinstance(given, pd.DataFrame) or not {"model", "status", "fingerprint"} <= set(given.columns):
        raise HrxError(f"{name} is not a frame of runs but a {type(given).__name__}. Read a ledger: hrx.read(LEDGER).")
    return given


def _typed(kind: str, values: Sequence[record.Value]) -> pd.Series:
    """A missing value is None in a text column, <NA> in an integer column, NaN in a float column."""
    column = pd.Series(np.array(values, dtype=object), dtype="object")
    if kind == "REAL":
        return column.astype("float64")
    return column.astype("Int64") if kind == "INTEGER" else column


def mask_impossible(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs with NaN for each number that is infinite or beyond `LARGEST`; the same frame if there is none."""
    impossible = _impossible(frame)
    return frame.assign(**{name: frame[name].mask(at) for name, at in impossible.items()}) if impossible else frame


def impossible_remark(frame: pd.DataFrame) -> str:
    """How many scored runs hold numbers that `mask_impossible` removes, and how many an infinite parity; else empty.

    JSON has no infinite number, so there an infinite parity appears in this sentence only.
    """
    sentences, of = [], counted(len(frame), "scored run")
    if impossible := _impossible(frame):
        runs, names = int(np.any(list(impossible.values()), axis=0).sum()), list(impossible)
        if len(names) > _MOST_NAMED:
            names = [*names[: _MOST_NAMED - 2], f"{len(names) - _MOST_NAMED + 2} more columns"]
        hold = f"{'holds' if runs == 1 else 'hold'} impossible numbers (infinite, or beyond {LARGEST:g})"
        sentences.append(f"{runs:,} of {of} {hold}, in {listed(names)}: these are left out.")
    if "parity" in frame and (infinite := int(np.isinf(frame["parity"]).sum())):
        sentences.append(f"{infinite:,} of {of} {'has' if infinite == 1 else 'have'} an infinite parity.")
    return " ".join(sentences)


def too_short(runs: pd.DataFrame) -> Bools:
    """Whether medians leave out the gains of each run, because the forecasts behind its variance span too little.

    Records that an earlier hrx exported do not state the span, so they count.
    """
    if "variance_span" not in runs:
        return np.zeros(len(runs), dtype=np.bool_)
    return np.asarray(runs["variance_span"].astype("float64") < SHORTEST_SPAN, dtype=np.bool_)


def mask_short(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs with NaN for the gains of those that `too_short` marks; the same frame if there is none."""
    short = too_short(frame)
    masked = {name: frame[name].mask(short) for name in _DIVIDED if name in frame}
    return frame.assign(**masked) if short.any() else frame


def training_facts(text: object) -> dict[str, object]:
    """Facts of the column `training`; empty where a record has none, or another program wrote it."""
    try:
        facts = json.loads(text) if isinstance(text, str) and text else {}
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def trained_by_hrx(frame: pd.DataFrame) -> Bools:
    """Whether `hrx train` trained the model of each run; not where a record does not state it."""
    known = np.array([training_facts(text).get("by") == BY_HRX for text in frame["training"]], dtype=bool)
    return known & (frame["backbone"].fillna("") != "").to_numpy(dtype=bool)


def unknown_training_rows(frame: pd.DataFrame) -> Bools:
    """Whether each run is of a trained model that may have been trained on its windows."""
    trained = (frame["backbone"].fillna("") != "").to_numpy(dtype=bool)
    stated = np.array([isinstance(training_facts(text).get("training_rows"), int) for text in frame["training"]], bool)
    return np.asarray(trained & ~stated, dtype=np.bool_)


def remarks(frame: pd.DataFrame) -> dict[str, str]:
    """Sentences on scored runs by what they are about; only those that apply.

    `rows`: a trained model may have been trained on its windows. `padded`: zeros before the lookback are read as
    values. `short`: `mask_short` removes the gains. `sparse`: the model reads too few values for the published grid.
    """
    padded = (frame["padded"] > 0).fillna(False).to_numpy(dtype=bool)
    lookbacks = listed(sorted(set(frame.loc[padded, "lookback"])))
    sparse = (frame["sparse"] == 1).fillna(False) if "sparse" in frame else np.zeros(len(frame), dtype=bool)
    known = {
        "rows": (unknown_training_rows(frame), "{n} {are} of a model whose training rows are unknown: the audited "
                 "windows may be among them."),
        "padded": (padded, f"{{n}} {{have}} a lookback below the context ({lookbacks}): the library puts zeros before "
                   "it, which the model reads as observed values, so forecasts and gains there are those of the padded "
                   "window."),
        "short": (too_short(frame), f"{{n}} {{have}} a test region of less than {SHORTEST_SPAN} horizons, where the "
                  "variance is too small: their gains are left out."),
        "sparse": (sparse, "In {n} the first deleted fraction holds all that the model reads, so g_own is near 0 "
                   "whatever the rows are: --sweeps fine measures g_own_fine."),
    }  # fmt: skip
    found = {}
    for name, (mask, sentence) in known.items():
        if runs := int(np.sum(mask)):
            are, have = ("is", "has") if runs == 1 else ("are", "have")
            found[name] = sentence.format(n=f"{runs:,} of {counted(len(frame), 'scored run')}", are=are, have=have)
    return found


def _impossible(frame: pd.DataFrame) -> dict[str, pd.Series[bool]]:
    masks = {name: frame[name].abs() > LARGEST for name in _MEASURED if name in frame}
    return {name: mask for name, mask in masks.items() if mask.any()}


def scored_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Scored runs, without impossible numbers."""
    return mask_impossible(frame[frame["status"] == record.DONE])


def beats_naive(frame: pd.DataFrame) -> Bools:
    """Whether each run is known to beat both naive forecasts."""
    return (frame["beats_naive"] == 1).fillna(False).to_numpy(dtype=bool)


def beats_seasonal(frame: pd.DataFrame) -> Floats:
    """For each run 1 or 0: is its squared error below that of repeating the last season; NaN where either is unknown.

    It is reported beside `beats_naive` and is not part of it.
    """
    error, seasonal = (frame[name].to_numpy(dtype=np.float64) for name in ("mse", "mse_seasonal"))
    return np.where(np.isnan(error) | np.isnan(seasonal), np.nan, error < seasonal)


def pooled(frame: pd.DataFrame, but: Collection[str] = ()) -> list[str]:
    """Versions and protocol settings, except `but`, in which the runs differ."""
    return [name for name in (*VERSIONS, *PROTOCOL) if name not in but and frame[name].nunique(dropna=False) > 1]


def fold_seeds(frame: pd.DataFrame, quantities: Sequence[str]) -> pd.DataFrame:
    """One row per configuration: the mean of each quantity over its seeds, and `seeds`, the number of seeds.

    As in the paper, so that every configuration has the same weight. A missing value is left out of its mean. A run
    that is stored twice, with a sweep and without, is one run.
    """
    ids = frame.groupby(list(CONFIGURATION), sort=False, dropna=False).ngroup().rename("configuration")
    runs = frame[list(quantities)].groupby([ids, *(frame[seed] for seed in SEEDS)], sort=False, dropna=False).mean()
    by_configuration = runs.groupby(level="configuration", sort=False)
    folded = by_configuration.mean()
    folded["seeds"] = by_configuration.size()
    known = frame[list(CONFIGURATION)].set_axis(pd.Index(ids), axis=0)
    known = known[~known.index.duplicated()]
    return known.join(folded).reset_index(drop=True)


class PlanProgress(NamedTuple):
    """Stored part of the plan of a model, or of all models of a backbone."""

    stored: int
    """Planned runs that the ledger holds: scored, excluded or failed."""
    planned: int
    decisions: tuple[Decision, ...] = ()
    """One for each plan that ends when the sign of `g_margin` is decided."""
    unassigned: int = 0
    """Of a backbone: further planned runs of models without a stored run, whose names do not state their backbone."""

    def as_json(self) -> dict[str, object]:
        decided = [decision._asdict() for decision in self.decisions]
        found: dict[str, object] = {"stored": self.stored, "planned": self.planned, "until_decided": decided or None}
        return found | ({"unassigned": self.unassigned} if self.unassigned else {})

    @property
    def complete(self) -> bool:
        return self.stored == self.planned and not self.unassigned

    def sentences(self) -> Iterator[str]:
        """What a reader of the verdict must know; nothing where every planned run is stored and none was to stop."""
        if self.stored != self.planned:
            yield f"{rests_on(self.stored, self.planned)}."
        if self.unassigned:
            more = counted(self.unassigned, "further planned run")
            yield f"The backbone of {more}, of models without a stored run, is not known."
        for decision in self.decisions:
            yield str(decision)
            if decision.sign and not self.complete:
                yield NOT_CORRECTED


def rests_on(stored: int, planned: int) -> str:
    return f"Rests on {stored} of {counted(planned, 'planned run')}"


def progress(runs: pd.DataFrame, plans: Sequence[StoredPlan]) -> PlanProgress | None:
    """Progress of the plans of the models of `runs`, a frame of records; None without one."""
    models = set(zip(runs["model"], runs["fingerprint"], strict=True))
    return overall_progress(runs, [plan for plan in plans if (plan.model, plan.fingerprint) in models])


def overall_progress(runs: pd.DataFrame, plans: Sequence[StoredPlan]) -> PlanProgress | None:
    """Progress of all plans, also of models without a stored run; a run of several plans counts once."""
    if not plans:
        return None
    keys = {key for plan in plans for key in plan.run_keys}
    decisions = tuple(_decision(runs, plan) for plan in plans if plan.until)
    return PlanProgress(int(runs["key"].isin(keys).sum()), len(keys), decisions)


class PlannedModel(NamedTuple):
    """A model that was planned, with what is stored of its plan."""

    model: str
    fingerprint: str
    has_runs: bool
    plan: PlanProgress


def planned_models(frame: pd.DataFrame, plans: Sequence[StoredPlan]) -> list[PlannedModel]:
    """Every model that has a plan: those with a run in the order of the frame's rows, then those without any."""
    by_model: dict[tuple[str, str], list[StoredPlan]] = {}
    for plan in plans:
        by_model.setdefault((plan.model, plan.fingerprint), []).append(plan)
    groups = {model: runs for model, runs in frame.groupby(["model", "fingerprint"], sort=False) if model in by_model}
    found = [(model, overall_progress(groups.get(model, frame[:0]), by_model[model])) for model in groups | by_model]
    return [PlannedModel(*model, model in groups, plan) for model, plan in found if plan]


def backbone_progress(planned: Sequence[PlannedModel], runs: pd.DataFrame, backbone: str) -> PlanProgress | None:
    """Progress of the models of `runs`, all of one backbone, and of its models without a run; None without a plan.

    `planned` holds the models of the whole ledger. It has no decisions: an audit stops model by model.
    """
    models = set(zip(runs["model"], runs["fingerprint"], strict=True))
    mine = [one.plan for one in planned if (one.model, one.fingerprint) in models]
    if not mine:
        return None
    unassigned = 0
    for one in planned:
        stated = None if one.has_runs else _TRAINED_NAME.fullmatch(one.model)
        if stated and stated[1] == backbone:
            mine.append(one.plan)
        elif not (one.has_runs or stated):
            unassigned += one.plan.planned
    return PlanProgress(sum(plan.stored for plan in mine), sum(plan.planned for plan in mine), (), unassigned)


def stored_progress(runs: pd.DataFrame, backbone: str = "") -> PlanProgress | None:
    """Progress of the model or backbone of `runs` in the ledger that they were read from; None where not known."""
    planned = []
    for one in json.loads(runs.attrs.get("plans", "[]")):
        decisions = tuple(Decision(**decision) for decision in one["until_decided"] or ())
        plan = PlanProgress(one["stored"], one["planned"], decisions)
        planned.append(PlannedModel(one["model"], one["fingerprint"], one["has_runs"], plan))
    if backbone:
        return backbone_progress(planned, runs, backbone)
    own = tuple(runs.iloc[0][["model", "fingerprint"]])
    return next((one.plan for one in planned if (one.model, one.fingerprint) == own), None)


def without_runs(runs: pd.DataFrame, plans: Sequence[StoredPlan]) -> dict[str, int]:
    """Models that were planned and have no stored run, with the number of planned runs."""
    absent: dict[str, int] = {}
    for one in planned_models(runs, plans):
        if not one.has_runs:
            absent[one.model] = absent.get(one.model, 0) + one.plan.planned
    return absent


def _decision(runs: pd.DataFrame, plan: StoredPlan) -> Decision:
    """What the test says of the stored runs, in the order of the plan."""
    keys = plan.run_keys
    test = PlanTest(keys)
    planned = runs[runs["key"].isin(keys)]
    columns = (planned[name] for name in ("key", "status", "beats_naive", "g_margin"))
    for key, status, beats, margin in zip(*columns, strict=True):
        test.add(key, sign_of(status, None if pd.isna(beats) else int(beats), margin))
    return test.decision


def count_reasons(runs: pd.DataFrame, status: str) -> dict[str, int]:
    """How many runs of a status have which reason, most frequent first."""
    reasons = runs.loc[runs["status"] == status, "reason"].fillna(NO_REASON)
    return {str(reason): int(count) for reason, count in reasons.value_counts().items()}


class ReasonKind(NamedTuple):
    """Reasons that agree up to their first colon."""

    kind: str
    runs: int
    example: str
    """Most frequent of them, shortened, and how many others there are."""


def reason_kinds(reasons: dict[str, int]) -> list[ReasonKind]:
    """Kinds of the reasons, most frequent first."""
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        kinds.setdefault(reason.partition(":")[0], []).append(reason)
    found = []
    for kind, alike in kinds.items():
        more = f" (and {len(alike) - 1} more like it)" if len(alike) > 1 else ""
        runs = sum(reasons[reason] for reason in alike)
        found.append(ReasonKind(kind, runs, shorten(clean(alike[0]), LONGEST_REASON) + more))
    return sorted(found, key=lambda one: -one.runs)
