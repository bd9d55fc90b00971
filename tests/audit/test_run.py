"""One run from its windows to its record: every column that the measurement fills."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import series

from hrx.adapters import Forecaster, Identity, from_module
from hrx.audit import Protocol, score
from hrx.audit.memory import MemoryBudget
from hrx.audit.runner.plan import Run, Setting
from hrx.audit.runner.run import measure_run
from hrx.gift_eval import Dataset, Series
from hrx.records.ledger import Ledger
from hrx.records.quantities import DISTANCES, GAINS, QUANTITIES, TRUNCATIONS, Quantities
from hrx.records.reading import Reading
from hrx.records.record import DONE, EXCLUDED, NAMES, Record

HORIZON = 64


def linear() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(40, HORIZON)


def planned(protocol: Protocol, seed: int = 0) -> Run:
    one = Series("synthetic/H", "one", "H", 24, "", series(1, 600)[0].double().numpy(), 0)
    dataset = Dataset("synthetic/H", "H", 24, "", 1, row=lambda index: None)  # type: ignore[arg-type, return-value]
    identity = Identity("linear", "module", "linear", "0", "torch")
    return Run(identity, dataset, one, 0, Setting(40, HORIZON), seed, 2, protocol)


def measured(protocol: Protocol) -> tuple[Record, Run]:
    run = planned(protocol)
    record = measure_run(from_module(linear(), scale="standardised"), run, MemoryBudget()).record
    assert record.status == DONE, record.reason
    return record, run


def windows(run: Run) -> torch.Tensor:
    return torch.as_tensor(run.cut_windows().x, dtype=torch.float32)


def scored(record: Record, run: Run, protocol: Protocol) -> Quantities:
    """The same windows scored directly, under the variance of the record."""
    model = from_module(linear(), scale="standardised")
    return score(model, windows(run), HORIZON, protocol=protocol, stream=run.stream, variance=record.variance)


def number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def test_every_quantity_of_the_score_is_stored_with_its_raw_value_and_its_error() -> None:
    record, run = measured(Protocol(draws=4))
    q = scored(record, run, Protocol(draws=4))
    for name in QUANTITIES:
        values = [getattr(record, column) for column in (name, f"{name}_raw", f"{name}_se")]
        assert values == [number(getattr(kind, name)) for kind in (q.normalised, q.raw, q.error)], name
    assert (record.rank, record.rank_entropy, record.rank_dropped) == (q.rank, q.rank_entropy, q.rank_dropped)
    assert (record.p_margin, record.flat_windows) == (q.p_margin, 0)
    assert (record.shared_rows, record.support, record.sparse) == (q.shared_rows, q.support, int(q.sparse))
    assert (record.variance, record.draws_used, record.forecasts) == (q.variance, q.draws, q.forecasts)
    assert record.device == "cpu"


def test_sweeps_fill_their_columns_with_the_numbers_of_the_score() -> None:
    protocol = Protocol(draws=4, truncation=True, distance=True, fine=True)
    record, run = measured(protocol)
    q = scored(record, run, protocol)
    assert [getattr(record, f"g_own_rank_{r}") for r in TRUNCATIONS] == q.truncated.tolist()
    assert [getattr(record, f"g_distance_{d}") for d in DISTANCES] == q.distant.tolist()
    assert record.g_own_rank_1 == 0
    assert q.fine is not None
    assert q.fine_error is not None
    for name in GAINS:
        fine = getattr(record, f"{name}_fine"), getattr(record, f"{name}_fine_se")
        assert fine == (getattr(q.fine, name), getattr(q.fine_error, name))
    assert (record.gap_own, record.gap_shared) == (q.gap_own, q.gap_shared)
    assert record.effective_lookback == q.effective_lookback
    assert json.loads(str(record.effective_lookback_steps)) == q.effective_lookback_steps.tolist()
    assert q.gap_own - q.gap_shared == pytest.approx(record.g_own)
    reading = Reading.from_text(str(record.reading))
    assert reading.steps == tuple((q.scored_steps + 1).tolist())
    assert (reading.lookback, reading.horizon) == (record.lookback, record.horizon)
    np.testing.assert_allclose(reading.rows.sum(axis=-1), 1, rtol=1e-3)


def test_without_sweeps_and_channels_their_columns_stay_empty() -> None:
    record, _ = measured(Protocol(draws=2))
    for name in NAMES:
        if name.startswith(("g_own_rank", "g_distance")) or "channel" in name or "_fine" in name:
            assert getattr(record, name) is None, name
    assert record.gap_shared is not None


def test_the_record_holds_every_setting_of_the_estimator_and_the_time_of_its_stages() -> None:
    record, _ = measured(Protocol(draws=2, estimator="integrated_gradients", estimator_settings='{"points": 8}'))
    assert json.loads(str(record.estimator_settings)) == {"points": 8}
    refused = planned(Protocol(draws=2, estimator="occlusion")).record(EXCLUDED, "why")
    assert set(json.loads(str(refused.estimator_settings))) == {"spans", "replacement", "draws"}
    times: list[Any] = [record.forward_seconds, record.matrix_seconds, record.seconds]
    assert min(times) > 0
    assert max(times) == record.seconds


def test_with_one_row_for_the_whole_forecast_the_record_has_the_plain_gap_and_no_gain() -> None:
    record, _ = measured(Protocol(draws=2, estimator="saliency", axis="whole", truncation=True, distance=True))
    assert (record.g_own, record.g_shuffled, record.g_margin, record.g_own_rank_2) == (0, 0, 0, 0)
    assert record.gap_shared == pytest.approx(record.gap_own)
    assert record.g_distance_1 is None
    assert len(json.loads(str(record.effective_lookback_steps))) == 8


def test_the_example_of_a_run_holds_its_first_window_its_matrix_and_its_curves(tmp_path: Path) -> None:
    model, run = from_module(linear(), scale="standardised"), planned(Protocol(draws=2))
    result = measure_run(model, run, MemoryBudget())
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(result.record, result.example)
        (stored,) = ledger.examples([run.key])
        (record,) = ledger.records()
    np.testing.assert_allclose(stored.x, run.cut_windows().x[0], rtol=1e-6)
    np.testing.assert_allclose(stored.matrix, model.predictor.weight.abs().numpy(), rtol=1e-6)  # type: ignore[union-attr]
    assert stored.curves is not None
    assert stored.curves.shape == (3, 2, 9)
    gaps = [np.trapezoid(morf - lerf, dx=1 / 8) for morf, lerf in stored.curves.astype(np.float64)]
    assert gaps[0] - gaps[1] == pytest.approx(record.g_own, abs=1e-6)
    assert gaps[2] - gaps[1] == pytest.approx(record.g_shuffled, abs=1e-6)


def test_a_record_holds_the_zeros_that_the_library_puts_before_its_lookback() -> None:
    model = from_module(linear(), scale="standardised")
    assert measure_run(model, planned(Protocol()), MemoryBudget()).record.padded == 0
    model.limits = replace(model.limits, padded_to=100)
    assert measure_run(model, planned(Protocol()), MemoryBudget()).record.padded == 100 - 40
    model.limits = replace(model.limits, padded_to=30)
    assert measure_run(model, planned(Protocol()), MemoryBudget()).record.padded == 0


def test_flat_windows_of_a_run_are_counted_and_all_else_is_of_the_others() -> None:
    model, protocol = from_module(linear(), scale="standardised"), Protocol(draws=4)
    run = replace(planned(protocol), windows=3)
    all_starts = run.cut_windows().starts
    values = run.series.values.copy()
    values[all_starts[0] - 40 : all_starts[0]] = 1.5
    run = replace(run, series=replace(run.series, values=values))
    result = measure_run(model, run, MemoryBudget())
    record, example = result.record, result.example
    assert (record.status, record.flat_windows, record.windows) == (DONE, 1, 3)
    assert json.loads(str(record.starts)) == all_starts[1:].tolist()
    kept = windows(run)[1:]
    q = score(model, kept, HORIZON, protocol=protocol, stream=run.stream, variance=record.variance)
    assert (record.g_own, record.g_margin, record.rank) == (q.g_own, q.g_margin, q.rank)
    assert q.degrees == 2
    np.testing.assert_allclose(example.x, kept[0], rtol=1e-6)
    values[:] = np.where(np.arange(600) < 400, values, 1.5)
    everywhere = replace(run, series=replace(run.series, values=values))
    reason = measure_run(model, everywhere, MemoryBudget()).record.reason
    assert str(reason).startswith("flat windows: the same value at every position")


def test_runs_of_later_seeds_have_no_example() -> None:
    assert measure_run(from_module(linear()), planned(Protocol(draws=2), seed=1), MemoryBudget()).example is None


class Worn(torch.nn.Module):
    """Adds `wear` to its forecasts after a call of more than 40 windows, as the deletion sweep makes."""

    def __init__(self, wear: float):
        super().__init__()
        self.layer, self.wear, self.added = linear(), wear, 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.added = self.wear if len(x) > 40 else self.added
        return self.layer(x) + self.added


def test_a_model_whose_forecasts_drift_over_calls_is_excluded_with_the_figure() -> None:
    run = planned(Protocol(draws=2))
    kept = measure_run(from_module(Worn(0.0), scale="standardised"), run, MemoryBudget()).record
    assert kept.status == DONE
    record = measure_run(from_module(Worn(0.5), scale="standardised"), run, MemoryBudget()).record
    assert (record.status, record.check_failed) == (EXCLUDED, "determinism")
    figure, limit = re.match(r"determinism: (\S+) against (\S+) ", str(record.reason)).groups()  # type: ignore[union-attr]
    first = linear()(windows(run)).abs().max().item()
    assert (float(figure), float(limit)) == (pytest.approx(0.5 / first, rel=1e-2), 1e-5)


def test_a_run_forecasts_its_windows_once_without_gradients_and_once_more_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = planned(Protocol(draws=2))
    own, model, calls = windows(run), from_module(linear(), scale="standardised"), list[bool]()
    forward = type(model).forward

    def counted(self: Forecaster, x: torch.Tensor, horizon: int) -> torch.Tensor:
        if x.shape == own.shape and torch.equal(x, own):
            calls.append(x.requires_grad)
        return forward(self, x, horizon)

    monkeypatch.setattr(type(model), "forward", counted)
    assert measure_run(model, run, MemoryBudget()).record.status == DONE
    assert calls == [False, True, True, False]  # the forecast; with gradients parity and the matrix; the drift check


@pytest.mark.parametrize("scale", ["raw", "standardised", (9.0, 4.0)])
def test_a_plain_module_reads_the_unit_that_it_states(scale) -> None:
    layer, run = linear(), planned(Protocol(draws=2))
    run = replace(run, series=replace(run.series, values=50 + 7 * run.series.values))
    past = run.series.values[:480]  # the last fifth of 600 is the test region
    mean, std = past.mean(), past.std()
    read_mean, read_std = {"raw": (0.0, 1.0), "standardised": (mean, std)}.get(scale, scale)

    def bent(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(layer(x)) + 1

    def by_hand(z: torch.Tensor) -> torch.Tensor:
        read = (z * std + mean - read_mean) / read_std
        return (bent(read) * read_std + read_mean - mean) / std

    record = measure_run(from_module(bent, scale=scale), run, MemoryBudget()).record
    q = score(from_module(by_hand), windows(run), HORIZON, protocol=run.protocol, stream=run.stream)
    assert record.g_margin_raw == pytest.approx(q.raw.g_margin, rel=1e-3)
    assert record.g_own_raw == pytest.approx(q.raw.g_own, rel=1e-3)
    assert record.rank == pytest.approx(q.rank, rel=1e-3)
