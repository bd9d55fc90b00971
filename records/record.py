# ruff: noqa: RUF009 (each default is a dataclass field that carries its meaning, made by one function)
"""Record, one flat, typed row per run, and the other rows of a ledger. Schema, exports and docs are made from them.

A record holds everything that decides the numbers, so a table can be made from records alone, and a stale row is
distinguishable from a fresh one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

from hrx.records.quantities import Floats

Text = str | None
Whole = int | None
Number = float | None
Value = str | int | float | None

DONE, EXCLUDED, FAILED = "done", "excluded", "failed"
DECLARED, POSSIBLE = "declared", "possible"
"""Values of `leakage` that a table must show."""
LARGEST = 1e100
"""Squares of single-precision forecasts stay far below it; sums of larger numbers can overflow."""


def _column(meaning: str) -> Any:
    return field(default=None, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run. A field without a value is NULL in the ledger; an unknown field is a `TypeError`."""

    key: str = field(metadata={"meaning": "sha256 of everything that decides the numbers"})
    status: str = field(
        metadata={"meaning": "done, excluded (a result: it must not be scored) or failed (an error: it is retried)"}
    )
    reason: Text = _column("why the run was excluded or failed")

    # The model
    model: Text = _column("name the user gave the model")
    family: Text = _column("family of the adapter")
    checkpoint: Text = _column("hub id or directory name of the weights")
    revision: Text = _column("commit of the hub snapshot")
    fingerprint: Text = _column("sha256 of configuration and weights")
    weights_dtype: Text = _column("number types of the stored weights, which are loaded as float32")
    backbone: Text = _column("class of a model that was trained on a benchmark; empty for a zero-shot model")
    depth: Whole = _column("its number of layers; NULL where the class has no such setting")
    training_seed: Whole = _column("seed of its training")
    training: Text = _column("JSON: how it was trained, and what is unknown of it; empty for a zero-shot model")
    library: Text = _column("distribution and version that ran the model")
    adapter_version: Text = _column("version of hrx's adapters")

    # The data
    dataset: Text = _column("dataset, with its frequency")
    domain: Text = _column("domain of the dataset, empty where unknown")
    frequency: Text = _column("frequency of the series")
    season: Whole = _column("season of the frequency, or as given, in steps")
    series: Text = _column("name of the series within its dataset")
    series_fingerprint: Text = _column("sha256 of the values")
    missing: Whole = _column("missing values, each replaced by the last observed one")
    lookback: Whole = _column("lookback L, in steps")
    horizon: Whole = _column("horizon H, in steps")
    seed: Whole = _column("seed of the run; it shifts the windows")
    windows: Whole = _column("windows requested")
    padded: Whole = _column("zeros that the library puts before the lookback and the model reads as observed values")
    leakage: Text = _column("declared, possible, none declared or unknown: was the model trained on the dataset")
    flat_windows: Whole = _column("windows that hold one value only: left out of every mean, and of starts")
    starts: Text = _column("JSON: position of each window's first forecast step in the series")

    # The protocol
    protocol_version: Text = _column("version of the measurement's definition")
    estimator: Text = _column("estimator of the matrix")
    estimator_settings: Text = _column("JSON: every setting of the estimator")
    estimator_package: Text = _column("package and version of the estimator, or its file's sha256; NULL if built in")
    axis: Text = _column("step: one row per forecast step; whole: one row for the whole forecast, as published")
    truncation: Whole = _column("1 if truncations of the matrix were scored")
    distance: Whole = _column("1 if rows at fixed distances were scored")
    fine: Whole = _column("1 if the gains over few deleted positions were measured")
    context: Whole = _column("1 if the needed context was measured")
    context_bound: Number = _column("largest change, as a share of the variance, for the needed context")
    context_windows: Whole = _column("windows over the test region behind the needed context, at most")
    draws: Whole = _column("draws requested")
    draws_kind: Text = _column("antithetic, paired or independent")
    precision: Number = _column("Monte Carlo error requested, if any")
    max_draws: Whole = _column("limit on the draws for a requested precision")
    scored: Whole = _column("number of scored steps, at most")
    fractions: Whole = _column("deleted fractions on [0, 1]")
    area: Text = _column("gap (MoRF less LeRF) or morf")
    permutations: Whole = _column("random permutations behind g_shuffled_permuted")
    variance_windows: Text = _column("forecasts behind variance and errors: a number over the test region, or run")
    protocol_seed: Whole = _column("seed of the draws")
    max_missing: Number = _column("share of filled-in values of test region or lookback beyond which a run is excluded")

    # Quantities
    g_own: Number = _column("g_own, normalised: divided by the variance of the forecasts")
    g_own_raw: Number = _column("g_own, not divided")
    g_own_se: Number = _column("Monte Carlo standard error of g_own")
    g_shuffled: Number = _column("g_shuffled, normalised: divided by the variance of the forecasts")
    g_shuffled_raw: Number = _column("g_shuffled, not divided")
    g_shuffled_se: Number = _column("Monte Carlo standard error of g_shuffled")
    g_margin: Number = _column("g_margin, normalised: divided by the variance of the forecasts")
    g_margin_raw: Number = _column("g_margin, not divided")
    g_margin_se: Number = _column("Monte Carlo standard error of g_margin")
    g_shuffled_permuted: Number = _column("g_shuffled_permuted, normalised: divided by the variance of the forecasts")
    g_shuffled_permuted_raw: Number = _column("g_shuffled_permuted, not divided")
    g_shuffled_permuted_se: Number = _column("Monte Carlo standard error of g_shuffled_permuted")
    g_own_morf: Number = _column("g_own_morf, normalised: divided by the variance of the forecasts")
    g_own_morf_raw: Number = _column("g_own_morf, not divided")
    g_own_morf_se: Number = _column("Monte Carlo standard error of g_own_morf")
    g_shuffled_morf: Number = _column("g_shuffled_morf, normalised: divided by the variance of the forecasts")
    g_shuffled_morf_raw: Number = _column("g_shuffled_morf, not divided")
    g_shuffled_morf_se: Number = _column("Monte Carlo standard error of g_shuffled_morf")
    g_margin_morf: Number = _column("g_margin_morf, normalised: divided by the variance of the forecasts")
    g_margin_morf_raw: Number = _column("g_margin_morf, not divided")
    g_margin_morf_se: Number = _column("Monte Carlo standard error of g_margin_morf")
    comprehensiveness: Number = _column("comprehensiveness, normalised: divided by the variance of the forecasts")
    comprehensiveness_raw: Number = _column("comprehensiveness, not divided")
    comprehensiveness_se: Number = _column("Monte Carlo standard error of comprehensiveness")
    aopc: Number = _column("aopc, normalised: divided by the variance of the forecasts")
    aopc_raw: Number = _column("aopc, not divided")
    aopc_se: Number = _column("Monte Carlo standard error of aopc")
    sufficiency: Number = _column("sufficiency, normalised: divided by the variance of the forecasts")
    sufficiency_raw: Number = _column("sufficiency, not divided")
    sufficiency_se: Number = _column("Monte Carlo standard error of sufficiency")
    insertion: Number = _column("insertion, a ratio of errors")
    insertion_raw: Number = _column("the same: insertion is not divided by the variance")
    insertion_se: Number = _column("Monte Carlo standard error of insertion")
    p_margin: Number = _column("share of all assignments of scored rows to scored steps that explain at least as well")

    # Sweeps: `--sweeps truncation,distance,fine`
    g_own_rank_1: Number = _column("g_own of the matrix truncated to rank 1, normalised")
    g_own_rank_2: Number = _column("g_own of the matrix truncated to rank 2, normalised")
    g_own_rank_4: Number = _column("g_own of the matrix truncated to rank 4, normalised")
    g_own_rank_8: Number = _column("g_own of the matrix truncated to rank 8, normalised")
    g_distance_1: Number = _column("g of the row 1 step away against the shared vector, normalised")
    g_distance_2: Number = _column("g of the row 2 steps away against the shared vector, normalised")
    g_distance_4: Number = _column("g of the row 4 steps away against the shared vector, normalised")
    g_distance_8: Number = _column("g of the row 8 steps away against the shared vector, normalised")
    g_distance_16: Number = _column("g of the row 16 steps away against the shared vector, normalised")
    g_distance_32: Number = _column("g of the row 32 steps away against the shared vector, normalised")

    g_own_fine: Number = _column("g_own by the mean error after 1, 2, 4, … deletions below the grid, normalised")
    g_own_fine_se: Number = _column("Monte Carlo standard error of g_own_fine")
    g_shuffled_fine: Number = _column("g_shuffled in the same way")
    g_shuffled_fine_se: Number = _column("Monte Carlo standard error of g_shuffled_fine")
    g_margin_fine: Number = _column("g_margin in the same way")
    g_margin_fine_se: Number = _column("Monte Carlo standard error of g_margin_fine")

    # The needed context: `--sweeps context`
    context_needed: Whole = _column("shortest context that is enough, in steps; the lookback where none is shorter")
    context_change: Number = _column("change of the forecasts there, older values replaced, as a share of the variance")
    context_shortest_cut: Whole = _column("shortest lookback that can really be cut to; NULL where no cut is possible")
    context_lookback: Whole = _column("lookback that the check cut to, from context_needed on; NULL: no check")
    context_cut_change: Number = _column("change of the forecasts by that cut, as a share of the variance")
    context_mse: Number = _column("mean squared error from the whole lookback, over the windows of the check")
    context_cut_mse: Number = _column("the same from the cut lookback")
    context_mase: Number = _column("MASE from the whole lookback, over the windows of the check")
    context_cut_mase: Number = _column("the same from the cut lookback")
    context_time_ratio: Number = _column("time of a forecast from the cut lookback over that from the whole one")
    context_windows_used: Whole = _column("windows over the test region that there are")
    context_padded_to: Whole = _column("length to which the library fills a shorter window with zeros, if it does")
    context_refusal: Text = _column("why the model did not forecast from a shorter lookback")
    context_curves: Text = _column("JSON: contexts, changes, lookbacks, and changes, mse and MASE by cutting to them")
    context_seconds: Text = _column("JSON: wall time of a pass at each cut lookback, and of the whole one beside it")

    # The channel axis: `--channels`
    channels: Whole = _column("variates or channels of the window; NULL for a univariate one")
    channels_forecast: Whole = _column("variates that the model forecasts, and that mse and mae count")
    g_own_channel: Number = _column("g_own on the channel axis, normalised")
    g_shuffled_channel: Number = _column("g_shuffled on the channel axis, normalised")
    g_margin_channel: Number = _column("g_margin on the channel axis, normalised")
    rank_channel: Number = _column("participation ratio of the channel axis")

    # Covariates and outputs: docs/covariates.md
    output: Text = _column("which number of each step is explained: point, mean, a quantile, or two: their spread")
    roles: Text = _column("JSON: names of the channels that the model read, by role; NULL without covariates")
    channels_left_out: Text = _column("JSON: covariates that the model does not take, with the reason")
    channel_effects: Text = _column(
        "JSON: of each channel effect, error, share and sensitivity at the scored steps, and the errors with and "
        "without it"
    )

    # What else the sweep and the matrix give
    shared_rows: Whole = _column("rows whose mean is the shared vector")
    support: Whole = _column("positions that hold 99 % of the shared vector's sum, the most of any window")
    sparse: Whole = _column("1 if the first deleted fraction holds them all, so that g_own says nothing")
    gap_own: Number = _column("area between MoRF and LeRF of a step under its own row, normalised")
    gap_shared: Number = _column("area between MoRF and LeRF of a step under the shared vector, normalised")
    effective_lookback: Number = _column("positions from the end that hold 90 % of a row's mass, mean of the rows")
    effective_lookback_steps: Text = _column("JSON: the same at each scored step, mean of the windows")
    reading: Text = _column("JSON: rows of scored steps by lag bin, lag profile and forecasts (hrx.records.reading)")
    scored_steps: Text = _column("JSON: the scored steps, from 0")
    g_own_steps: Text = _column("JSON: g_own at each scored step")
    g_shuffled_steps: Text = _column("JSON: g_shuffled at each scored step")
    g_margin_steps: Text = _column("JSON: g_margin at each scored step")
    insertion_dropped: Whole = _column("scored steps left out of insertion: deleting everything changed nothing")
    rank: Number = _column("participation ratio of the matrix, mean of the windows that have one")
    rank_entropy: Number = _column("entropy rank of the matrix, mean of the same windows")
    rank_dropped: Whole = _column("windows without a rank: their matrix is all zero")
    variance: Number = _column("variance of the forecasts that the quantities are divided by")
    variance_run: Number = _column("variance of the forecasts of the run's own windows")
    series_windows: Whole = _column("forecasts of the series behind variance and errors; NULL for the run's own")
    variance_span: Number = _column("horizons from the first to the last of them; below 5 the variance is too small")
    draws_used: Whole = _column("draws made")
    forecasts: Whole = _column("perturbed forecasts evaluated")

    # Skill against the truth, on the standardised scale, over the same forecasts as `variance`
    mse: Number = _column("mean squared error")
    mae: Number = _column("mean absolute error")
    mse_zero: Number = _column("mean squared error of predicting zero")
    mse_last: Number = _column("mean squared error of repeating the last observed value")
    mse_seasonal: Number = _column("mean squared error of repeating the last season")
    beats_naive: Whole = _column("1 if mse is below mse_zero and mse_last")
    mase: Number = _column("mean absolute error over the seasonal-naive one before the test region, NULL where it is 0")
    naive_mase: Number = _column("the same of repeating the last observed value")
    seasonal_mase: Number = _column("the same of repeating the last season")

    # How the run was computed
    check_failed: Text = _column("admission check that excluded the run")
    parity: Number = _column(
        "max|a−b| / max|b| of forward and official call on the run's windows, or in a scored batch"
    )
    official_call: Text = _column("public call of the library that parity compares the forward with")
    device: Text = _column("device of the model: cpu, cuda or mps")
    rewrites: Text = _column("JSON: operations replaced to keep the gradient, as [operation, place, count]")
    hrx_version: Text = _column("version of hrx")
    torch_version: Text = _column("version of torch")
    forward_seconds: Number = _column("wall time of one forward pass of the run's windows")
    matrix_seconds: Number = _column("wall time of estimating the matrix")
    seconds: Number = _column("wall time of the run")
    created: Text = _column("UTC time of writing")
    request: Text = _column("digest of the settings that made the run: the key of a row of the table audits")

    def updated(self, **values: Value) -> Record:
        """Return the record with some fields replaced."""
        return replace(self, **values)  # type: ignore[arg-type]  # checked by name, and by type where a ledger is read


class RecordColumn(NamedTuple):
    """A column of the table `runs`."""

    name: str
    kind: Literal["TEXT", "INTEGER", "REAL"]
    """Type in SQLite."""
    meaning: str


_KINDS: dict[str, Literal["TEXT", "INTEGER", "REAL"]] = {
    "str": "TEXT", "Text": "TEXT", "Whole": "INTEGER", "Number": "REAL",
}  # fmt: skip
COLUMNS: tuple[RecordColumn, ...] = tuple(
    RecordColumn(column.name, _KINDS[str(column.type)], column.metadata["meaning"]) for column in fields(Record)
)
NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)


class StoredCheck(NamedTuple):
    """One admission check and the model, versions and windows it was made with."""

    fingerprint: str
    library: str
    adapter_version: str
    torch_version: str
    model: str
    setting: str
    check: str
    passed: bool
    figure: float
    limit: float
    note: str
    windows: str = ""
    """sha256 of the windows."""


class StoredExample(NamedTuple):
    """First window of a run with its matrix, for heat maps."""

    key: str
    x: Floats
    """`(L,)`, standardised."""
    truth: Floats
    forecast: Floats
    matrix: Floats
    """`(H, L)`."""
    curves: Floats | None = None
    """`(3, 2, K)`: mean deletion curves under a step's own row, the shared vector and all rows; MoRF, then LeRF."""


class StoredAudit(NamedTuple):
    """Settings of one audit."""

    created: str
    """UTC time at which these settings were first used."""
    hrx_version: str
    settings: str
    """JSON: the effective settings, without file paths."""

    @property
    def digest(self) -> str:
        """Name of these settings under this version of hrx: the column `request` of the runs they made."""
        return hashlib.sha256(f"{self.hrx_version}\n{self.settings}".encode()).hexdigest()[:16]


class StoredPlan(NamedTuple):
    """Runs that an audit planned for one model, stored before the first of them is measured."""

    digest: str
    """sha256 of `until` and `keys`."""
    model: str
    fingerprint: str
    until: str
    """`decided` where the order is random and the audit stops when a sign is decided; empty otherwise."""
    keys: bytes
    """Key of every run, 32 bytes each, in the order of the plan."""
    created: str
    """UTC time at which this plan was first made."""

    @classmethod
    def of(cls, model: str, fingerprint: str, until: str, keys: Sequence[str], created: str) -> StoredPlan:
        """Make the plan of the runs with these keys, each counted once."""
        packed = b"".join(map(bytes.fromhex, dict.fromkeys(keys)))
        return cls(hashlib.sha256(until.encode() + packed).hexdigest(), model, fingerprint, until, packed, created)

    @property
    def run_keys(self) -> list[str]:
        """Keys as records have them."""
        return [self.keys[at : at + 32].hex() for at in range(0, len(self.keys), 32)]
