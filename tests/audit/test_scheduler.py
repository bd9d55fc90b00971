"""The scheduling loop and an audit in it: what is measured, stored, excluded, failed and resumed."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.damage import change
from helpers.records import replace_record, without_times
from helpers.small import SETTINGS, StoredSeries, dataset, linear

from hrx.adapters import Forecaster, Identity, Limits, ModelError, from_module
from hrx.audit import Protocol
from hrx.audit.memory import GIBIBYTE
from hrx.audit.runner.plan import ModelKey, Run, Setting, in_random_order, plan
from hrx.audit.runner.run import RunResult
from hrx.audit.runner.scheduler import execute, in_order, recheck, run_tasks
from hrx.audit.runner.worker import (
    Admit,
    EstimateCosts,
    ExecutorLost,
    InProcessExecutor,
    LoadModel,
    MeasureRun,
    Task,
    TaskFailed,
    TaskResult,
    WorkerContext,
    WorkerDied,
    WorkerSettings,
    packed,
    perform,
    unpacked,
)
from hrx.gift_eval import Dataset, cut, cut_region
from hrx.records.ledger import Ledger, LedgerWarning
from hrx.records.record import Record


class PreparedModel:
    """A located model that is in memory already, or that raises when it is loaded."""

    def __init__(self, model: Forecaster | Exception, identity: Identity | None = None):
        self._model = model
        self.identity = identity or model.identity  # type: ignore[union-attr]

    def load(self) -> Forecaster:
        if isinstance(self._model, Exception):
            raise self._model
        return self._model


class CountingExecutor(InProcessExecutor):
    """Runs tasks in this process and keeps a list of them."""

    def __init__(self, models: list[PreparedModel]):
        super().__init__(WorkerSettings({ModelKey.of(model.identity): model for model in models}, 2 * GIBIBYTE))
        self.tasks: list[Task] = []

    def submit(self, worker: int, task: Task) -> None:
        self.tasks.append(task)
        super().submit(worker, task)

    def count(self, kind: type[Task]) -> int:  # type: ignore[valid-type]
        return sum(isinstance(task, kind) for task in self.tasks)


class SmallAudit:
    """Models, datasets and settings, and the ledger of their runs."""

    def __init__(
        self, models: list[PreparedModel], datasets: list[Dataset], path: Path, settings: tuple[Setting, ...] = SETTINGS
    ):
        self.models, self.path, self.executor = models, path, CountingExecutor(models)
        identities = [model.identity for model in models]
        self.runs = plan(identities, datasets, settings, series=3, seeds=2, windows=5, protocol=Protocol(draws=2))
        self.progress: list[str] = []
        """Keys in the order in which they were stored."""

    def execute(self, stopping: Callable[[], bool] = lambda: False, *, until_decided: bool = False) -> list[Record]:
        """Runs what is missing; returns all records of the ledger."""
        with Ledger.open(self.path) as ledger:
            execute(
                self.runs, ledger, self.executor,
                progress=lambda run, record: self.progress.append(record.key), stopping=stopping,
                until_decided=until_decided,
            )  # fmt: skip
            return ledger.records()


def run_all(
    models: list[PreparedModel], datasets: list[Dataset], path: Path, settings: tuple[Setting, ...] = SETTINGS
) -> tuple[list[Record], list[Run]]:
    audit = SmallAudit(models, datasets, path, settings)
    return audit.execute(), audit.runs


def test_a_record_identifies_its_run_and_holds_what_was_measured(tmp_path: Path) -> None:
    model = linear()
    records, runs = run_all([PreparedModel(model)], [dataset()], tmp_path / "ledger.db")
    assert [record.status for record in records] == ["done"] * 4
    record, run = records[0], runs[0]
    windows = cut(run.series, 32, 8, 5, run.seed)  # type: ignore[arg-type]
    assert json.loads(record.starts) == windows.starts.tolist()
    windows = cut_region(run.series, 32, 8, 64)  # type: ignore[arg-type]
    forecast = model.official(torch.as_tensor(windows.x, dtype=torch.float32), 8).numpy()
    assert record.mse == pytest.approx(np.mean((forecast - windows.y) ** 2), rel=1e-5)
    assert record.mse_last == pytest.approx(np.mean((windows.x[:, -1:] - windows.y) ** 2), rel=1e-9)
    assert record.mse_zero == pytest.approx(np.mean(windows.y**2), rel=1e-9)
    assert record.beats_naive == int(record.mse < min(record.mse_zero, record.mse_last))
    assert record.g_margin == record.g_own - record.g_shuffled
    assert record.parity <= 1e-6
    assert record.fingerprint == model.identity.fingerprint
    assert record.dataset == "waves/H"
    assert json.loads(record.scored_steps) == list(range(8))
    assert np.mean(json.loads(record.g_own_steps)) == pytest.approx(record.g_own, rel=1e-9)


def test_a_second_audit_measures_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    first, _ = run_all([PreparedModel(linear())], [dataset(count=1)], path)
    larger = SmallAudit([PreparedModel(linear())], [dataset(count=2)], path)
    second = larger.execute()
    assert len(first) == 2
    assert second[:2] == first
    assert len(larger.progress) == len(second) - 2 == 2
    again = SmallAudit([PreparedModel(linear())], [dataset(count=2)], path)
    assert again.execute() == second
    assert again.executor.tasks == []


def test_an_audit_that_is_stopped_finishes_the_running_task_and_resumes_with_the_same_digits(tmp_path: Path) -> None:
    whole, _ = run_all([PreparedModel(linear())], [dataset(count=3)], tmp_path / "whole.db")
    halves = SmallAudit([PreparedModel(linear())], [dataset(count=3)], tmp_path / "halves.db")
    stopped = halves.execute(stopping=lambda: len(halves.progress) >= 2)
    assert [record.key for record in stopped] == [run.key for run in halves.runs[:2]]
    resumed = SmallAudit([PreparedModel(linear())], [dataset(count=3)], tmp_path / "halves.db")
    assert without_times(resumed.execute()) == without_times(whole)
    assert resumed.progress == [run.key for run in resumed.runs[2:]]


def test_an_audit_until_decided_stops_after_the_same_runs_of_each_model_and_stops_at_once_when_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hrx.audit.runner.scheduler.sign_of", lambda *_: 1)
    models = [PreparedModel(linear(0)), PreparedModel(linear(1))]
    first = SmallAudit(models, [dataset(count=3), dataset("more/H", count=3)], tmp_path / "l.db")
    first.runs = in_random_order(first.runs)
    stored = [record.key for record in first.execute(until_decided=True)]
    keys = [[run.key for run in first.runs if run.identity == model.identity] for model in models]
    assert [len(one) for one in keys] == [12, 12]
    assert stored == [*keys[0][:6], *keys[1][:6]]
    again = SmallAudit(models, [dataset(count=3), dataset("more/H", count=3)], tmp_path / "l.db")
    again.runs = in_random_order(again.runs)
    assert [record.key for record in again.execute(until_decided=True)] == stored
    assert again.executor.tasks == []


def test_admission_results_are_stored_once_and_used_by_a_resumed_audit(tmp_path: Path) -> None:
    models, path = [PreparedModel(linear())], tmp_path / "l.db"
    first = SmallAudit(models, [dataset()], path)
    first.execute(stopping=lambda: len(first.progress) >= 1)
    assert (first.executor.count(LoadModel), first.executor.count(Admit)) == (1, 1)
    with Ledger.open(path, create=False) as ledger:
        stored = ledger.checks()
    resumed = SmallAudit(models, [dataset()], path)
    resumed.execute()
    assert (resumed.executor.count(LoadModel), resumed.executor.count(Admit)) == (1, 0)
    assert resumed.executor.count(MeasureRun) == len(resumed.runs) - 1
    with Ledger.open(path, create=False) as ledger:
        assert ledger.checks() == stored != []


def test_a_resumed_audit_measures_a_damaged_run_again_and_repeats_an_admission_that_lost_a_check(
    tmp_path: Path,
) -> None:
    path = tmp_path / "l.db"
    whole = SmallAudit([PreparedModel(linear())], [dataset()], path).execute()
    change(path, "UPDATE runs SET g_own = g_own + 1e-12 WHERE key = ?", whole[1].key)
    change(path, "UPDATE checks SET passed = 0 WHERE \"check\" = 'derivative'")
    resumed = SmallAudit([PreparedModel(linear())], [dataset()], path)
    with pytest.warns(LedgerWarning, match="2 in all"):
        resumed.execute()
    assert resumed.progress == [whole[1].key]
    assert resumed.executor.count(Admit) == 1
    with Ledger.open(path, create=False) as ledger:
        assert without_times(ledger.records()) == without_times(whole)
        assert [one.passed for one in ledger.checks()] == [True] * 6
        assert ledger.damaged == []


def test_the_same_plan_in_two_ledgers_gives_the_same_digits(tmp_path: Path) -> None:
    one, two = (run_all([PreparedModel(linear())], [dataset()], tmp_path / f"{i}.db")[0] for i in range(2))
    assert without_times(one) == without_times(two)


def test_a_setting_the_model_cannot_take_is_excluded_and_the_others_go_on(tmp_path: Path) -> None:
    model = linear(limits=Limits(lookbacks=(32,)))
    records, _ = run_all([PreparedModel(model)], [dataset()], tmp_path / "l.db", (Setting(32, 8), Setting(40, 8)))
    by_lookback = {record.lookback: record for record in records}
    assert by_lookback[32].status == "done"
    assert by_lookback[40].status == "excluded"
    assert "takes a lookback of 32 only, not 40" in by_lookback[40].reason


def test_a_single_model_that_can_take_none_of_the_settings_is_a_model_error(tmp_path: Path) -> None:
    model = linear(limits=Limits(shortest_lookback=64))
    with pytest.raises(ModelError, match="needs a lookback of at least 64, not 32"):
        run_all([PreparedModel(model)], [dataset()], tmp_path / "l.db")


def test_a_failed_check_excludes_the_runs_of_its_setting_with_its_figure(tmp_path: Path) -> None:
    sampled = from_module(lambda x: x[:, :8] + 0.1 * torch.randn(len(x), 8), name="sampled")
    records, _ = run_all([PreparedModel(sampled)], [dataset()], tmp_path / "l.db")
    assert {record.status for record in records} == {"excluded"}
    assert {record.check_failed for record in records} == {"equivalence"}
    assert all("against 1e-05" in record.reason for record in records)
    with Ledger.open(tmp_path / "l.db", create=False) as ledger:
        failed = {check.check for check in ledger.checks() if not check.passed}
    assert "determinism" in failed


def test_every_run_checks_parity_on_its_own_windows(tmp_path: Path) -> None:
    class Unequal(type(linear())):  # type: ignore[misc]
        def official(self, x: torch.Tensor, horizon: int) -> torch.Tensor:
            y = super().official(x, horizon)
            # Equal on the admission windows (one of each series), unequal on a run's own five.
            return y * 1.001 if len(x) == 5 else y

    model = linear()
    model.__class__ = Unequal
    records, _ = run_all([PreparedModel(model)], [dataset()], tmp_path / "l.db")
    assert {record.status for record in records} == {"excluded"}
    assert all(record.parity == pytest.approx(1e-3, rel=0.01) for record in records)


def test_series_that_cannot_be_used_are_recorded_and_the_rest_go_on(tmp_path: Path) -> None:
    def row(index: int) -> StoredSeries:
        values = np.sin(np.arange(200) / 3)
        return StoredSeries(f"T{index}", [values, np.full(200, np.nan), values[:20], np.ones(200)][index])

    mixed = Dataset("mixed/H", "H", 24, "", 2, row)
    short = Dataset("short/H", "H", 24, "", 1, lambda index: row(2))
    constant = Dataset("constant/H", "H", 24, "", 1, lambda index: row(3))
    broken = Dataset.damaged("broken/H", "data.arrow is cut short")
    records, _ = run_all([PreparedModel(linear())], [mixed, short, constant, broken], tmp_path / "l.db")
    by_series = {(record.dataset, record.series): record for record in records}
    assert by_series["mixed/H", "T0"].status == "done"
    assert "all 200 values are missing" in by_series["mixed/H", "#1"].reason
    assert "needs at least 40" in by_series["short/H", "T2"].reason
    assert "constant before its test region" in by_series["constant/H", "T3"].reason
    assert {by_series[k].status for k in [("mixed/H", "#1"), ("short/H", "T2"), ("constant/H", "T3")]} == {"excluded"}
    assert by_series["broken/H", "#0"].status == "failed"
    assert by_series["broken/H", "#0"].reason == "data.arrow is cut short"


class Unreliable(torch.nn.Module):
    """Linear, but raises or returns NaN on windows that start high."""

    def __init__(self, fault: str):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.fault = torch.nn.Linear(32, 8), fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 5 and x[0, 0] > 0:
            if self.fault == "raises":
                raise KeyError("deep inside the library")
            return self.layer(x) * float("nan")
        return self.layer(x)


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [("raises", "failed", "KeyError at tests.audit.test_scheduler:"), ("nan", "excluded", "non-finite forecast")],
)
def test_a_model_that_fails_on_some_windows_loses_only_those_runs(
    tmp_path: Path, fault: str, status: str, reason: str
) -> None:
    records, runs = run_all([PreparedModel(from_module(Unreliable(fault)))], [dataset(count=3)], tmp_path / "l.db")
    starts_high = [cut(run.series, 32, 8, 5, run.seed).x[0, 0] > 0 for run in runs]  # type: ignore[arg-type]
    assert 0 < sum(starts_high) < len(runs)
    for record, high in zip(records, starts_high, strict=True):
        assert record.status == (status if high else "done")
        assert (record.reason or "").startswith(reason if high else "")


def test_only_failed_runs_are_retried(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    records, _ = run_all([PreparedModel(from_module(Unreliable("raises"), name="m"))], [dataset(count=3)], path)
    failures = sum(record.status == "failed" for record in records)
    again = SmallAudit([PreparedModel(from_module(Unreliable("raises"), name="m"))], [dataset(count=3)], path)
    again.execute()
    assert len(again.progress) == failures > 0
    assert set(again.progress) == {record.key for record in records if record.status == "failed"}


def test_a_model_that_does_not_load_fails_its_runs_and_the_others_go_on(tmp_path: Path) -> None:
    absent = Identity("absent", "ttm", "absent", "0" * 64, "granite-tsfm 1")
    models = [PreparedModel(ModelError("model.safetensors is damaged"), absent), PreparedModel(linear())]
    records, _ = run_all(models, [dataset()], tmp_path / "l.db")
    assert {(r.model, r.status) for r in records} == {("absent", "failed"), ("linear-0", "done")}
    with pytest.raises(ModelError, match="is damaged"):
        run_all(models[:1], [dataset()], tmp_path / "alone.db")


def test_records_hold_no_path_and_no_user_name(tmp_path: Path) -> None:
    records, _ = run_all([PreparedModel(linear())], [dataset()], tmp_path / "l.db")
    text = str(records)
    assert str(Path.home()) not in text
    assert str(tmp_path) not in text
    assert str(Path(__file__).parent) not in text


def test_one_run_of_a_dataset_keeps_its_first_window_and_its_matrix(tmp_path: Path) -> None:
    model = linear()
    _, runs = run_all([PreparedModel(model)], [dataset()], tmp_path / "l.db")
    best = max((run for run in runs if run.seed == 0), key=lambda run: run.example_rank)
    with Ledger.open(tmp_path / "l.db", create=False) as ledger:
        (stored,) = ledger.examples([run.key for run in runs])
    assert stored.key == best.key
    np.testing.assert_allclose(stored.matrix, model.predictor.weight.abs().numpy(), rtol=1e-6)  # type: ignore[attr-defined]
    assert stored.x.shape == (32,)
    assert stored.forecast.shape == stored.truth.shape == (8,)


def test_the_example_of_a_dataset_is_of_its_largest_setting_that_was_scored(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 8)
    model = from_module(lambda x: layer(x[:, -24:]), name="m", limits=Limits(longest_lookback=32))
    settings = (Setting(24, 8), Setting(32, 8), Setting(40, 8))
    _, runs = run_all([PreparedModel(model)], [dataset("one/H"), dataset("two/H")], tmp_path / "l.db", settings)
    with Ledger.open(tmp_path / "l.db", create=False) as ledger:
        kept = [run for run in runs if run.key in ledger.example_keys()]
    assert {(run.dataset.name, str(run.setting), run.index, run.seed) for run in kept} == {
        ("one/H", "32x8", 0, 0), ("two/H", "32x8", 0, 0),
    }  # fmt: skip
    assert len(kept) == 2


def test_a_model_that_depends_on_the_season_is_admitted_and_measured_for_each(tmp_path: Path) -> None:
    class Seasonal(type(linear())):  # type: ignore[misc]
        def for_season(self, season: int) -> Forecaster:
            torch.manual_seed(season)
            model = from_module(torch.nn.Linear(32, 8), name=self.identity.model, scale="standardised")
            model.identity = self.identity
            return model

    model = linear()
    model.__class__ = Seasonal
    hourly, daily = dataset("hourly/H", count=1), replace(dataset("daily/D", count=1), frequency="D", season=7)
    records, _ = run_all([PreparedModel(model)], [hourly, daily], tmp_path / "l.db")
    with Ledger.open(tmp_path / "l.db", create=False) as ledger:
        assert len({check.windows for check in ledger.checks()}) == 2
    for record, series in zip(records[::2], (hourly.read(0), daily.read(0)), strict=True):
        windows = cut_region(series, 32, 8, 64)
        torch.manual_seed(int(str(record.season)))
        layer = torch.nn.Linear(32, 8)
        forecast = layer(torch.as_tensor(windows.x, dtype=torch.float32)).detach().numpy()
        assert record.mse == pytest.approx(np.mean((forecast - windows.y) ** 2), rel=1e-5)


@pytest.mark.parametrize("debug", ["0", "1"])
def test_reasons_in_records_have_the_text_of_a_library_only_for_debugging_and_never_its_paths(
    tmp_path: Path, debug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRX_DEBUG", debug)

    def predict(x: torch.Tensor) -> torch.Tensor:
        raise OSError(f"cannot read {tmp_path}/secret place/weights.bin or /home/alice/x.bin of owner/name")

    records, _ = run_all([PreparedModel(from_module(predict, name="m"))], [dataset()], tmp_path / "l.db")
    assert {record.status for record in records} == {"failed"}
    assert str(tmp_path) not in str(records)
    assert "alice" not in str(records)
    text = "OSError: cannot read weights.bin or" if debug == "1" else "OSError at tests.audit.test_scheduler:"
    assert all(f"admission: {text}" in record.reason for record in records)
    assert all(("cannot read" in record.reason) is (debug == "1") for record in records)


def test_flat_windows_do_not_exclude_a_model_that_divides_by_their_spread(tmp_path: Path) -> None:
    class Normalised(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            spread = (x.var(dim=1, keepdim=True, correction=0)).sqrt()
            return self.layer((x - x.mean(1, keepdim=True)) / torch.where(spread == 0, 1.0, spread)) * spread

    values = np.sin(np.arange(200) / 3)
    flat_at_the_end = np.concatenate([values[:120], np.zeros(80)])
    flat = Dataset("flat/H", "H", 24, "", 1, lambda index: StoredSeries("T0", flat_at_the_end))
    records, _ = run_all([PreparedModel(from_module(Normalised()))], [flat, dataset(count=1)], tmp_path / "l.db")
    status = {record.dataset: record.status for record in records}
    assert status == {"flat/H": "excluded", "waves/H": "done"}
    assert all("flat windows" in r.reason for r in records if r.dataset == "flat/H")


def test_other_data_is_admitted_anew_in_the_same_ledger(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    run_all([PreparedModel(linear())], [dataset("one/H", count=1)], path)
    run_all([PreparedModel(linear())], [dataset("two/H", count=2)], path)
    with Ledger.open(path, create=False) as ledger:
        assert len({check.windows for check in ledger.checks()}) == 2


def test_a_resumed_audit_whose_missing_runs_are_all_refused_is_not_a_model_error(tmp_path: Path) -> None:
    model = linear(limits=Limits(lookbacks=(32,)))
    path = tmp_path / "l.db"
    run_all([PreparedModel(model)], [dataset()], path, (Setting(32, 8),))
    records, _ = run_all([PreparedModel(model)], [dataset()], path, (Setting(32, 8), Setting(40, 8)))
    assert {(r.lookback, r.status) for r in records} == {(32, "done"), (40, "excluded")}


def test_a_larger_setting_that_is_audited_later_replaces_the_example(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 8)
    models, path = [PreparedModel(from_module(lambda x: layer(x[:, -24:]), name="m"))], tmp_path / "l.db"
    for settings in ((Setting(32, 8),), (Setting(24, 8), Setting(32, 8), Setting(40, 8))):
        _, runs = run_all(models, [dataset()], path, settings)
        with Ledger.open(path, create=False) as ledger:
            (kept,) = [run for run in runs if run.key in ledger.example_keys()]
        assert (kept.setting, kept.index, kept.seed) == (settings[-1], 0, 0)


def test_a_model_that_cannot_be_loaded_is_reported_once_per_audit_and_loaded_again_by_the_next(tmp_path: Path) -> None:
    absent = Identity("absent", "ttm", "absent", "0" * 64, "granite-tsfm 1")
    damaged = PreparedModel(ModelError("model.safetensors is damaged"), absent)
    models = [damaged, PreparedModel(linear())]
    first = SmallAudit(models, [dataset()], tmp_path / "l.db")
    first.execute()
    assert first.executor.count(LoadModel) == 2
    again = SmallAudit(models, [dataset()], tmp_path / "l.db")
    again.execute()
    assert (again.executor.count(LoadModel), again.executor.count(MeasureRun)) == (1, 0)
    assert len(again.progress) == len(again.runs) / 2


def test_runs_are_measured_model_by_model_in_the_order_of_the_plan(tmp_path: Path) -> None:
    audit = SmallAudit(
        [PreparedModel(linear(0)), PreparedModel(linear(1))], [dataset("a/H"), dataset("b/H")], tmp_path / "l.db"
    )
    audit.execute()
    assert audit.progress == [run.key for run in audit.runs]
    assert [task.model for task in audit.executor.tasks if isinstance(task, LoadModel)] == list(
        dict.fromkeys(run.model_key for run in audit.runs)
    )


def test_a_recheck_measures_evenly_spaced_runs_again_and_names_the_column_that_differs(tmp_path: Path) -> None:
    audit = SmallAudit([PreparedModel(linear())], [dataset(count=3), dataset("b/H")], tmp_path / "l.db")
    before = audit.execute()
    with Ledger.open(audit.path) as ledger:
        results = list(recheck(audit.runs, ledger, audit.executor, 3))
        first, middle, last = (audit.runs.index(one.run) for one in results)
        assert (first, last) == (0, len(audit.runs) - 1)
        assert abs(middle - last / 2) <= 0.5
        assert all(one.same for one in results)
        assert ledger.records() == before
        (stored,) = ledger.records([audit.runs[-1].key])
        replace_record(ledger, stored.updated(rank=(stored.rank or 0.0) * 1.001))
        results = list(recheck(audit.runs, ledger, audit.executor, 3))
    assert [one.same for one in results] == [True, True, False]
    assert [difference.column for difference in results[-1].differences] == ["rank"]


def test_a_recheck_of_a_model_that_cannot_be_loaded_any_more_has_an_error(tmp_path: Path) -> None:
    audit = SmallAudit([PreparedModel(linear())], [dataset()], tmp_path / "l.db")
    audit.execute()
    gone = PreparedModel(ModelError("model.safetensors is damaged"), audit.models[0].identity)
    with Ledger.open(audit.path) as ledger:
        (result,) = recheck(audit.runs, ledger, CountingExecutor([gone]), 1)
    assert not result.same
    assert result.error == "model.safetensors is damaged"


class DyingExecutor:
    """Two workers; the tasks of `deadly` models kill theirs as many times as given."""

    size: int = 2
    timeout: float | None = None

    def __init__(self, deadly: dict[str, int]):
        self.deadly = deadly
        self.stopped: list[int] = []
        self.submitted: list[tuple[int, str]] = []
        self.ready: list[tuple[int, TaskResult]] = []

    def submit(self, worker: int, task: Task) -> None:
        name = task.model.fingerprint
        self.submitted.append((worker, name))
        dies = self.deadly.get(name, 0) > 0
        self.deadly[name] = self.deadly.get(name, 0) - dies
        self.ready.append((worker, WorkerDied("SIGKILL") if dies else TaskFailed(f"result of {name}")))

    def results(self, seconds: float | None) -> list[tuple[int, TaskResult]]:
        ready, self.ready = self.ready, []
        return ready

    def stop(self, worker: int) -> None:
        self.stopped.append(worker)

    def close(self) -> None:
        pass


def run_named(names: str, executor: DyingExecutor, stopping: Callable[[], bool] = lambda: False) -> dict[str, str]:
    """The results of one task for each name, in the order of completion."""
    results: dict[str, str] = {}

    tasks = (LoadModel(ModelKey("f", name), frozenset()) for name in names)
    for task, result in run_tasks(in_order(tasks), executor, stopping):
        assert isinstance(result, TaskFailed)
        results[task.model.fingerprint] = result.reason
    return results


def test_a_task_whose_worker_dies_is_submitted_once_more_and_fails_if_it_dies_again() -> None:
    executor = DyingExecutor({"b": 1, "c": 2})
    results = run_named("abcd", executor)
    assert {name: results[name] for name in "abd"} == {name: f"result of {name}" for name in "abd"}
    assert "died twice (SIGKILL)" in results["c"]
    assert sorted(name for _, name in executor.submitted) == list("abbccd")


def test_a_task_and_a_result_that_cannot_be_sent_become_the_reason_why() -> None:
    context = WorkerContext(WorkerSettings({}, GIBIBYTE))
    result = perform(unpacked(packed(EstimateCosts(ModelKey("f", "a"), {Setting(8, 8): lambda: None}))), context)  # type: ignore[dict-item]
    assert isinstance(result, TaskFailed)
    assert "pickle" in result.shown
    assert unpacked(packed(result)) == result
    assert isinstance(unpacked(packed(lambda: None)), TaskFailed)
    assert isinstance(unpacked(b"no pickle"), TaskFailed)


def test_once_stopping_no_task_is_started_and_none_of_a_dead_worker_is_retried() -> None:
    executor = DyingExecutor({"a": 2, "b": 2})
    assert run_named("abcd", executor, stopping=lambda: len(executor.submitted) == 2) == {}
    assert [name for _, name in executor.submitted] == ["a", "b"]


def test_a_task_over_its_time_is_stopped_and_fails_and_the_others_are_done() -> None:
    class HangingTask(DyingExecutor):
        timeout = 0.05

        def submit(self, worker: int, task: Task) -> None:
            if task.model.fingerprint != "b":
                super().submit(worker, task)

    executor = HangingTask({})
    results = run_named("abcd", executor)
    assert results.pop("b") == "took longer than 0.05 s, the limit of --timeout, and was stopped"
    assert results == {name: f"result of {name}" for name in "acd"}
    assert len(executor.stopped) == 1


def test_an_executor_without_workers_ends_the_loop() -> None:
    class LostExecutor(DyingExecutor):
        def results(self, seconds: float | None) -> list[tuple[int, TaskResult]]:
            raise ExecutorLost("The cluster is gone.")

    with pytest.raises(ExecutorLost, match=r"The cluster is gone\."):
        run_named("ab", LostExecutor({}))


def test_a_record_of_another_key_is_a_failed_run(tmp_path: Path) -> None:
    """A worker whose versions differ computes other keys, which no report of this audit would show."""

    class OtherVersions(CountingExecutor):
        def results(self, seconds: float | None) -> list[tuple[int, TaskResult]]:
            return [(worker, self._of_another_key(result)) for worker, result in super().results(seconds)]

        @staticmethod
        def _of_another_key(result: TaskResult) -> TaskResult:
            return (
                result._replace(record=replace(result.record, key="0" * 64))
                if isinstance(result, RunResult)
                else result
            )

    audit = SmallAudit([PreparedModel(linear())], [dataset()], tmp_path / "ledger.db")
    audit.executor = OtherVersions(audit.models)
    records = audit.execute()
    assert {record.key for record in records} == {run.key for run in audit.runs}
    assert {record.status for record in records} == {"failed"}
    assert all("other versions" in str(record.reason) for record in records)


class Intruding(torch.nn.Module):
    """Changes what every model of its process relies on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        torch.set_grad_enabled(False)
        os.chdir("/")
        print("something")
        sys.exit(0)


def test_a_model_that_intrudes_and_exits_leaves_the_next_one_as_it_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = SmallAudit([PreparedModel(linear())], [dataset()], tmp_path / "alone.db").execute()
    both = [PreparedModel(from_module(Intruding(), name="intruding")), PreparedModel(linear())]
    records = SmallAudit(both, [dataset()], tmp_path / "both.db").execute()
    intruding = [record for record in records if record.model == "intruding"]
    assert {record.status for record in intruding} == {"failed"}
    assert all(str(record.reason).startswith("admission: SystemExit") for record in intruding)
    assert without_times([record for record in records if record.model != "intruding"]) == without_times(alone)
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.are_deterministic_algorithms_enabled()
    assert Path.cwd() == tmp_path
    assert capsys.readouterr().out == ""


def test_the_precision_that_a_caller_has_set_changes_no_number_and_is_kept(tmp_path: Path) -> None:
    alone = SmallAudit([PreparedModel(linear())], [dataset()], tmp_path / "alone.db").execute()
    torch.set_float32_matmul_precision("medium")
    try:
        records = SmallAudit([PreparedModel(linear())], [dataset()], tmp_path / "medium.db").execute()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert without_times(records) == without_times(alone)
