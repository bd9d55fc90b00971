"""The record: one flat, self-describing row per run, and what its columns mean.

Everything that decides the numbers is in it, so a table can be made again from records alone, and a stale row can be
told from a fresh one. Knows neither models nor files.
"""

from __future__ import annotations

from typing import NamedTuple

from hrx.audit.scoring.quantities import QUANTITIES

Value = str | int | float | None
Record = dict[str, Value]

DONE, EXCLUDED, FAILED = "done", "excluded", "failed"
DECLARED, POSSIBLE = "declared", "possible"
"""Leakage that a table must show."""


class Column(NamedTuple):
    """A column of the record."""

    name: str
    kind: str
    """SQLite's type."""
    meaning: str


_IDENTITY = (
    Column("key", "TEXT", "sha256 of everything that decides the numbers"),
    Column("status", "TEXT", "done, excluded (a result: it may not be scored) or failed (an error: tried again)"),
    Column("reason", "TEXT", "why it was excluded or failed"),
    Column("model", "TEXT", "what the user called the model"),
    Column("family", "TEXT", "family of the adapter"),
    Column("checkpoint", "TEXT", "hub id or directory name of the weights"),
    Column("revision", "TEXT", "commit of the hub snapshot"),
    Column("fingerprint", "TEXT", "sha256 of configuration and weights"),
    Column("library", "TEXT", "distribution and version that ran the model"),
    Column("adapter_version", "TEXT", "version of hrx's adapters"),
    Column("dataset", "TEXT", "dataset, with its frequency"),
    Column("domain", "TEXT", "domain of the dataset, empty where unknown"),
    Column("frequency", "TEXT", "frequency of the series"),
    Column("season", "INTEGER", "steps of the frequency's season"),
    Column("series", "TEXT", "name of the series within its dataset"),
    Column("series_fingerprint", "TEXT", "sha256 of the values"),
    Column("missing", "INTEGER", "values that were missing and repeat the last observed one"),
    Column("lookback", "INTEGER", "L"),
    Column("horizon", "INTEGER", "H"),
    Column("seed", "INTEGER", "shifts the windows"),
    Column("windows", "INTEGER", "windows asked for"),
    Column(
        "leakage", "TEXT", "declared, possible, none declared or unknown: whether the model is declared to have seen it"
    ),
    Column("starts", "TEXT", "JSON: position of each window's first forecast step in the series"),
)
_PROTOCOL = (
    Column("protocol_version", "TEXT", "version of the measurement's definition"),
    Column("estimator", "TEXT", "what filled the matrix"),
    Column("estimator_settings", "TEXT", "JSON: every setting of the estimator"),
    Column("axis", "TEXT", "step: a row for each forecast step; whole: one row for the whole forecast, as published"),
    Column("truncation", "INTEGER", "1 if truncations of the matrix were scored too"),
    Column("distance", "INTEGER", "1 if rows at fixed distances were scored too"),
    Column("draws", "INTEGER", "draws asked for"),
    Column("draws_kind", "TEXT", "antithetic, paired or independent"),
    Column("precision", "REAL", "Monte Carlo error that was asked for, if any"),
    Column("max_draws", "INTEGER", "most draws that a wanted precision may take"),
    Column("scored", "INTEGER", "steps scored at most"),
    Column("fractions", "INTEGER", "deleted fractions on [0, 1]"),
    Column("area", "TEXT", "gap (MoRF less LeRF) or morf"),
    Column("permutations", "INTEGER", "random permutations behind g_shuffled_permuted"),
    Column("protocol_seed", "INTEGER", "seed of the draws"),
)
_MEASURED = tuple(
    column
    for name in QUANTITIES
    for column in (
        Column(name, "REAL", f"{name}, divided by the variance of the forecasts"),
        Column(f"{name}_raw", "REAL", f"{name}, undivided"),
        Column(f"{name}_se", "REAL", f"Monte Carlo standard error of {name}"),
    )
)
TRUNCATIONS = (1, 2, 4, 8)
DISTANCES = (1, 2, 4, 8, 16, 32)
_SWEEPS = (
    *(Column(f"g_own_rank_{r}", "REAL", f"g_own of the matrix truncated to rank {r}, normalised") for r in TRUNCATIONS),
    *(
        Column(f"g_distance_{d}", "REAL", f"the row {d} steps away against the shared vector, normalised")
        for d in DISTANCES
    ),
)
_CHANNELS = (
    Column("channels", "INTEGER", "variates of the window; NULL where it has one"),
    Column("g_own_channel", "REAL", "g_own on the channel axis, normalised"),
    Column("g_shuffled_channel", "REAL", "g_shuffled on the channel axis, normalised"),
    Column("g_margin_channel", "REAL", "g_margin on the channel axis, normalised"),
    Column("rank_channel", "REAL", "participation ratio of the channel axis"),
)
_REST = (
    Column("gap_own", "REAL", "area between MoRF and LeRF of a step under its own row, normalised"),
    Column("gap_shared", "REAL", "area between MoRF and LeRF of a step under the shared vector, normalised"),
    Column("effective_lookback", "REAL", "positions from the end that hold 90 % of a row's mass, mean of the rows"),
    Column("effective_lookback_steps", "TEXT", "JSON: the same at each scored step, mean of the windows"),
    Column("scored_steps", "TEXT", "JSON: the scored steps, from 0"),
    Column("g_own_steps", "TEXT", "JSON: g_own at each scored step"),
    Column("g_shuffled_steps", "TEXT", "JSON: g_shuffled at each scored step"),
    Column("g_margin_steps", "TEXT", "JSON: g_margin at each scored step"),
    Column(
        "insertion_dropped",
        "INTEGER",
        "scored steps left out of insertion: deleting everything changed nothing",
    ),
    Column("rank", "REAL", "participation ratio of the matrix, mean of the windows that have one"),
    Column("rank_entropy", "REAL", "entropy rank of the matrix, mean of the same windows"),
    Column("rank_dropped", "INTEGER", "windows without a rank: their matrix is all zero"),
    Column("variance", "REAL", "variance of the forecasts over windows and steps"),
    Column("draws_used", "INTEGER", "draws that were made"),
    Column("forecasts", "INTEGER", "perturbed forecasts that were evaluated"),
    Column("mse", "REAL", "mean squared error against the truth, standardised scale"),
    Column("mae", "REAL", "mean absolute error against the truth, standardised scale"),
    Column("mse_zero", "REAL", "of predicting zero"),
    Column("mse_last", "REAL", "of repeating the last observed value"),
    Column("mse_seasonal", "REAL", "of repeating the last season"),
    Column("beats_naive", "INTEGER", "1 if mse is below mse_zero and mse_last"),
    Column("check_failed", "TEXT", "admission check that excluded the run"),
    Column("parity", "REAL", "max|a−b| / max|b| of forward and official call on the run's own windows"),
    Column("rows_strategy", "TEXT", "how the rows of the matrix were had"),
    Column("accelerations", "TEXT", "what computed it beside fp32 on the processor: cuda, bf16, compile; else empty"),
    Column("probe", "TEXT", "JSON: seconds of a window's rows by strategy, and what became of each acceleration"),
    Column("rewrites", "TEXT", "JSON: what the gradient mechanics met: [operation, place, count]"),
    Column("hrx_version", "TEXT", "version of hrx"),
    Column("torch_version", "TEXT", "version of torch"),
    Column("forward_seconds", "REAL", "wall time of one forward pass of the run's windows"),
    Column("matrix_seconds", "REAL", "wall time of estimating the matrix"),
    Column("seconds", "REAL", "wall time of the run"),
    Column("created", "TEXT", "UTC time of writing"),
)
COLUMNS: tuple[Column, ...] = _IDENTITY + _PROTOCOL + _MEASURED + _SWEEPS + _CHANNELS + _REST
NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)
