"""Runs of a ledger as a pandas frame: what decides their numbers, which of them count, and their seeds folded.

Seeds are folded before anything is counted. The columns are described in `hrx.records.record`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from hrx.errors import HrxError
from hrx.records import record
from hrx.records.ledger import Ledger
from hrx.records.quantities import Bools, Floats
from hrx.reports.coverage import attach
from hrx.reports.text import counted, listed

BY_HRX = "hrx train"
"""`by` among the facts of a training that `hrx train` did."""


VERSIONS = ("library", "adapter_version", "torch_version")
PROTOCOL = (
    "windows", "protocol_version", "estimator", "estimator_settings", "estimator_package", "axis", "draws",
    "draws_kind", "precision", "max_draws", "scored", "fractions", "area", "permutations", "variance_windows",
)  # fmt: skip
TASK = ("dataset", "series_fingerprint", "season", "channels", "lookback", "horizon", *PROTOCOL)
"""What is measured and how, for any model. Sweeps that are scored in addition change none of these numbers."""
CONFIGURATION = ("model", "fingerprint", *VERSIONS, "series", *TASK)
"""Everything that decides a run's numbers except its seeds."""
SEEDS = ("seed", "protocol_seed")
"""The seed of the windows and the seed of the draws."""
LARGEST = record.LARGEST
# The precision is a setting, and an infinite parity must stay visible as the worst one.
_MEASURED = [c.name for c in record.COLUMNS if c.kind == "REAL" and c.name not in ("precision", "parity")]
_MOST_NAMED = 8


def read(ledger_path: str | Path) -> pd.DataFrame:
    """One row per run, in the order of writing, with all columns of the record; JSON columns stay text.

    A column has the same type in every ledger, also in an empty one. A record that is not as it was written is left
    out, and a `LedgerWarning` names it; `attrs["damaged"]` is their number. `attrs["plans"]` says how
    many of the planned runs of each model are stored.

        runs = hrx.read("my-audit/ledger.db")
        runs.groupby("dataset")["g_margin"].median()
    """
    with Ledger.open(ledger_path, create=False) as ledger:
        rows = ledger.rows()
        damaged = len(ledger.damaged)
        plans = ledger.plans()
    columns = zip(*rows, strict=True) if rows else ((),) * len(record.COLUMNS)
    frame = pd.DataFrame({c.name: _typed(c.kind, values) for c, values in zip(record.COLUMNS, columns, strict=True)})
    frame.attrs["damaged"] = damaged
    attach(frame, plans)
    return frame


def require_runs(frame: object, name: str) -> None:
    """Refuses what is not a frame of `read`."""
    if not isinstance(frame, pd.DataFrame) or not {"model", "status", "fingerprint"} <= set(frame.columns):
        raise HrxError(f"{name} is not a frame of runs but a {type(frame).__name__}. Read a ledger: hrx.read(LEDGER).")


def _typed(kind: str, values: Sequence[record.Value]) -> pd.Series:
    """A missing value is None in a text column, <NA> in an integer column, NaN in a float column."""
    column = pd.Series(np.array(values, dtype=object), dtype="object")
    if kind == "REAL":
        return column.astype("float64")
    return column.astype("Int64") if kind == "INTEGER" else column


def mask_impossible(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs with NaN for each number that is infinite or beyond `LARGEST`; the same frame if there is none."""
    impossible = _impossible(frame)
    return frame.assign(**{name: frame[name].mask(at) for name, at in impossible.items()}) if impossible else frame


def impossible_remark(frame: pd.DataFrame) -> str:
    """How many scored runs hold numbers that `mask_impossible` removes, and how many an infinite parity; else empty.

    JSON has no infinite number, so there an infinite parity appears in this sentence only.
    """
    sentences = []
    if impossible := _impossible(frame):
        runs, names = int(np.any(list(impossible.values()), axis=0).sum()), list(impossible)
        if len(names) > _MOST_NAMED:
            names = [*names[: _MOST_NAMED - 2], f"{len(names) - _MOST_NAMED + 2} more columns"]
        what = f"impossible numbers (infinite, or beyond {LARGEST:g})"
        holding = f"{runs:,} of {counted(len(frame), 'scored run')} {'holds' if runs == 1 else 'hold'}"
        sentences.append(f"{holding} {what}, in {listed(names)}: these are left out.")
    if "parity" in frame and (infinite := int(np.isinf(frame["parity"]).sum())):
        have = "has" if infinite == 1 else "have"
        sentences.append(f"{infinite:,} of {counted(len(frame), 'scored run')} {have} an infinite parity.")
    return " ".join(sentences)


def padded_remark(frame: pd.DataFrame) -> str:
    """How many scored runs have zeros before their lookback that the model reads as values; empty where none has."""
    padded = (frame["padded"] > 0).fillna(False)
    if not (runs := int(padded.sum())):
        return ""
    lookbacks = listed(sorted(set(frame.loc[padded, "lookback"])))
    have = "has" if runs == 1 else "have"
    return (
        f"{runs:,} of {counted(len(frame), 'scored run')} {have} a lookback below the context ({lookbacks}): the "
        "library puts zeros before it, which the model reads as observed values, so forecasts and gains there are "
        "those of the padded window."
    )


def training_facts(text: object) -> dict[str, object]:
    """The facts of the column `training`; empty where a record has none, or another program wrote it."""
    try:
        facts = json.loads(text) if isinstance(text, str) and text else {}
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def trained_by_hrx(frame: pd.DataFrame) -> Bools:
    """Whether `hrx train` trained the model of each run; not where a record does not state it."""
    known = np.array([training_facts(text).get("by") == BY_HRX for text in frame["training"]], dtype=bool)
    return known & (frame["backbone"].fillna("") != "").to_numpy(dtype=bool)


def unknown_rows_remark(frame: pd.DataFrame) -> str:
    """How many scored runs are of a trained model that may have been trained on their windows; empty where none is."""
    trained = (frame["backbone"].fillna("") != "").to_numpy(dtype=bool)
    stated = [isinstance(training_facts(text).get("training_rows"), int) for text in frame["training"]]
    unknown = trained & ~np.array(stated, dtype=bool)
    if not (runs := int(unknown.sum())):
        return ""
    of = f"{runs:,} of {counted(len(frame), 'scored run')} {'is' if runs == 1 else 'are'} of a model"
    return f"{of} whose training rows are unknown: the audited windows may be among them."


def _impossible(frame: pd.DataFrame) -> dict[str, pd.Series[bool]]:
    masks = {name: frame[name].abs() > LARGEST for name in _MEASURED if name in frame}
    return {name: mask for name, mask in masks.items() if mask.any()}


def scored_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """The scored runs, without impossible numbers."""
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
