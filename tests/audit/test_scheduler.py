import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.small import SETTINGS, Given, dataset, linear

from hrx.adapters import Forecaster, Identity, Limits, ModelError, from_module
from hrx.audit import Protocol
from hrx.audit.ledger.diff import VOLATILE
from hrx.audit.ledger.store import Ledger
from hrx.audit.memory import GIBIBYTE
from hrx.audit.runner.executors.in_process import Here
from hrx.audit.runner.plan import Run, Setting, plan
from hrx.audit.runner.scheduler import execute
from hrx.audit.runner.worker import WorkerContext
from hrx.gift_eval import Dataset, cut
from hrx.gift_eval.series import Row


def run_all(
    models: list[Given], datasets: list[Dataset], path: Path, settings: tuple[Setting, ...] = SETTINGS
) -> tuple[list[dict], list[Run]]:
    runs = plan(
        [m.identity for m in models], datasets, settings, series=3, seeds=2, windows=5, protocol=Protocol(draws=2)
    )
    said: list[str] = []
    with Ledger.open(path) as ledger:
        crew = Here(WorkerContext(models, 2 * GIBIBYTE))
        execute(runs, models, ledger, crew, progress=lambda run, record: said.append(run.key))
        records = ledger.records()
    run_all.said = said  # type: ignore[attr-defined]
    return records, runs


def test_a_record_holds_what_the_run_was_and_what_it_measured(tmp_path: Path) -> None:
    model = linear()
    records, runs = run_all([Given(model)], [dataset()], tmp_path / "ledger.db")
    assert [record["status"] for record in records] == ["done"] * 4
    record, run = records[0], runs[0]
    windows = cut(run.series, 32, 8, 5, run.seed)  # type: ignore[arg-type]
    assert json.loads(record["starts"]) == windows.starts.tolist()
    forecast = model.official(torch.as_tensor(windows.x, dtype=torch.float32), 8).numpy()
    assert record["mse"] == pytest.approx(np.mean((forecast - windows.y) ** 2), rel=1e-5)
    assert record["mse_last"] == pytest.approx(np.mean((windows.x[:, -1:] - windows.y) ** 2), rel=1e-9)
    assert record["mse_zero"] == pytest.approx(np.mean(windows.y**2), rel=1e-9)
    assert record["beats_naive"] == int(record["mse"] < min(record["mse_zero"], record["mse_last"]))
    assert record["g_margin"] == record["g_own"] - record["g_shuffled"]
    assert record["parity"] == 0
    assert record["fingerprint"] == model.identity.fingerprint
    assert record["dataset"] == "waves/H"
    assert json.loads(record["scored_steps"]) == list(range(8))
    assert np.mean(json.loads(record["g_own_steps"])) == pytest.approx(record["g_own"], rel=1e-9)


def test_a_second_call_does_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    first, _ = run_all([Given(linear())], [dataset(count=1)], path)
    second, _ = run_all([Given(linear())], [dataset(count=2)], path)
    assert len(first) == 2
    assert second[:2] == first
    assert len(run_all.said) == len(second) - 2 == 2  # type: ignore[attr-defined]


def test_the_same_plan_in_two_ledgers_gives_the_same_digits(tmp_path: Path) -> None:
    one, two = (run_all([Given(linear())], [dataset()], tmp_path / f"{i}.db")[0] for i in range(2))
    for a, b in zip(one, two, strict=True):
        assert {k: v for k, v in a.items() if k not in VOLATILE} == {k: v for k, v in b.items() if k not in VOLATILE}


def test_a_setting_the_model_cannot_take_is_excluded_and_the_others_go_on(tmp_path: Path) -> None:
    model = linear(limits=Limits(lookbacks=(32,)))
    records, _ = run_all([Given(model)], [dataset()], tmp_path / "l.db", (Setting(32, 8), Setting(40, 8)))
    by_lookback = {record["lookback"]: record for record in records}
    assert by_lookback[32]["status"] == "done"
    assert by_lookback[40]["status"] == "excluded"
    assert "takes a lookback of 32 only, not 40" in by_lookback[40]["reason"]


def test_a_model_that_can_take_no_setting_at_all_is_a_wrong_request(tmp_path: Path) -> None:
    model = linear(limits=Limits(shortest_lookback=64))
    with pytest.raises(ModelError, match="needs a lookback of at least 64, not 32"):
        run_all([Given(model)], [dataset()], tmp_path / "l.db")


def test_a_failed_check_excludes_the_runs_of_its_setting_with_its_figure(tmp_path: Path) -> None:
    sampled = from_module(lambda x: x[:, :8] + 0.1 * torch.randn(len(x), 8), name="sampled")
    records, _ = run_all([Given(sampled)], [dataset()], tmp_path / "l.db")
    assert {record["status"] for record in records} == {"excluded"}
    assert {record["check_failed"] for record in records} == {"equivalence"}
    assert all("against 1e-05" in record["reason"] for record in records)
    with Ledger.open(tmp_path / "l.db", create=False) as ledger:
        failed = {check.check for check in ledger.checks() if not check.passed}
    assert "determinism" in failed


def test_every_run_checks_parity_on_its_own_windows(tmp_path: Path) -> None:
    class Unequal(type(linear())):  # type: ignore[misc]
        def official(self, x: torch.Tensor, horizon: int) -> torch.Tensor:
            y = super().official(x, horizon)
            # Honest on the windows of admission (one of each series), wrong on a run's own five.
            return y * 1.001 if len(x) == 5 else y

    model = linear()
    model.__class__ = Unequal
    records, _ = run_all([Given(model)], [dataset()], tmp_path / "l.db")
    assert {record["status"] for record in records} == {"excluded"}
    assert all(record["parity"] == pytest.approx(1e-3, rel=0.01) for record in records)


def test_series_that_cannot_be_used_are_recorded_and_the_rest_go_on(tmp_path: Path) -> None:
    def row(index: int) -> Row:
        values = np.sin(np.arange(200) / 3)
        return Row(f"T{index}", [values, np.full(200, np.nan), values[:20], np.ones(200)][index])

    mixed = Dataset("mixed/H", "H", 24, "", 3, row)
    constant = Dataset("constant/H", "H", 24, "", 1, lambda index: row(3))
    broken = Dataset.damaged("broken/H", "data.arrow is cut short")
    records, _ = run_all([Given(linear())], [mixed, constant, broken], tmp_path / "l.db")
    found = {(record["dataset"], record["series"]): record for record in records}
    assert found["mixed/H", "T0"]["status"] == "done"
    assert "all 200 values are missing" in found["mixed/H", "#1"]["reason"]
    assert "needs at least 40" in found["mixed/H", "T2"]["reason"]
    assert "constant before its test region" in found["constant/H", "T3"]["reason"]
    assert {found[k]["status"] for k in [("mixed/H", "#1"), ("mixed/H", "T2"), ("constant/H", "T3")]} == {"excluded"}
    assert found["broken/H", "#0"]["status"] == "failed"
    assert found["broken/H", "#0"]["reason"] == "data.arrow is cut short"


class Moody(torch.nn.Module):
    """Linear, but raises or returns NaN on windows that start high."""

    def __init__(self, mood: str):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.mood = torch.nn.Linear(32, 8), mood

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 5 and x[0, 0] > 0:
            if self.mood == "raises":
                raise KeyError("deep inside the library")
            return self.layer(x) * float("nan")
        return self.layer(x)


@pytest.mark.parametrize(
    ("mood", "status", "reason"),
    [("raises", "failed", "KeyError: 'deep inside the library'"), ("nan", "excluded", "non-finite forecast")],
)
def test_a_model_that_fails_on_some_windows_loses_only_those_runs(
    tmp_path: Path, mood: str, status: str, reason: str
) -> None:
    records, runs = run_all([Given(from_module(Moody(mood)))], [dataset(count=3)], tmp_path / "l.db")
    starts_high = [cut(run.series, 32, 8, 5, run.seed).x[0, 0] > 0 for run in runs]  # type: ignore[arg-type]
    assert 0 < sum(starts_high) < len(runs)
    for record, high in zip(records, starts_high, strict=True):
        assert record["status"] == (status if high else "done")
        assert (record["reason"] or "").startswith(reason if high else "")


def test_a_failed_run_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    records, _ = run_all([Given(from_module(Moody("raises"), name="m"))], [dataset(count=3)], path)
    failures = sum(record["status"] == "failed" for record in records)
    run_all([Given(from_module(Moody("raises"), name="m"))], [dataset(count=3)], path)
    assert len(run_all.said) == failures > 0  # type: ignore[attr-defined]


def test_a_model_that_does_not_load_fails_its_runs_and_the_others_go_on(tmp_path: Path) -> None:
    absent = Identity("absent", "ttm", "absent", "0" * 64, "granite-tsfm 1")
    models = [Given(ModelError("model.safetensors is damaged"), absent), Given(linear())]
    records, _ = run_all(models, [dataset()], tmp_path / "l.db")
    assert {(r["model"], r["status"]) for r in records} == {("absent", "failed"), ("linear-0", "done")}
    with pytest.raises(ModelError, match="is damaged"):
        run_all(models[:1], [dataset()], tmp_path / "alone.db")


def test_records_hold_no_path_and_no_user_name(tmp_path: Path) -> None:
    records, _ = run_all([Given(linear())], [dataset()], tmp_path / "l.db")
    text = json.dumps(records)
    assert str(Path.home()) not in text
    assert str(tmp_path) not in text
    assert str(Path(__file__).parent) not in text


def test_the_first_window_of_a_pictured_run_is_kept_with_its_matrix(tmp_path: Path) -> None:
    model = linear()
    _, runs = run_all([Given(model)], [dataset()], tmp_path / "l.db")
    pictured = max((run for run in runs if run.pictured), key=lambda run: run.size)
    with Ledger.open(tmp_path / "l.db", create=False) as ledger:
        (stored,) = ledger.examples([run.key for run in runs])
    assert stored.key == pictured.key
    np.testing.assert_allclose(stored.matrix, model.predictor.weight.abs().numpy(), rtol=1e-6)  # type: ignore[attr-defined]
    assert stored.x.shape == (32,)
    assert stored.forecast.shape == stored.truth.shape == (8,)


def test_a_dataset_whose_largest_setting_is_refused_is_pictured_at_the_largest_that_was_scored(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 8)
    model = from_module(lambda x: layer(x[:, -24:]), name="m", limits=Limits(longest_lookback=32))
    settings = (Setting(24, 8), Setting(32, 8), Setting(40, 8))
    _, runs = run_all([Given(model)], [dataset("one/H"), dataset("two/H")], tmp_path / "l.db", settings)
    with Ledger.open(tmp_path / "l.db", create=False) as ledger:
        pictured = [run for run in runs if run.key in ledger.example_keys()]
    assert [(run.dataset.name, str(run.setting), run.index) for run in pictured] == [
        ("one/H", "32x8", 0), ("two/H", "32x8", 0),
    ]  # fmt: skip


def test_a_model_that_depends_on_the_season_is_admitted_and_measured_for_each(tmp_path: Path) -> None:
    class Seasonal(type(linear())):  # type: ignore[misc]
        def for_season(self, season: int) -> Forecaster:
            torch.manual_seed(season)
            model = from_module(torch.nn.Linear(32, 8), name=self.identity.model)
            model.identity = self.identity
            return model

    model = linear()
    model.__class__ = Seasonal
    hourly, daily = dataset("hourly/H", count=1), replace(dataset("daily/D", count=1), frequency="D", season=7)
    records, _ = run_all([Given(model)], [hourly, daily], tmp_path / "l.db")
    with Ledger.open(tmp_path / "l.db", create=False) as ledger:
        assert len({check.windows for check in ledger.checks()}) == 2
    for record, series in zip(records[::2], (hourly.read(0), daily.read(0)), strict=True):
        windows = cut(series, 32, 8, 5, 0)
        torch.manual_seed(record["season"])
        own = torch.nn.Linear(32, 8)
        forecast = own(torch.as_tensor(windows.x, dtype=torch.float32)).detach().numpy()
        assert record["mse"] == pytest.approx(np.mean((forecast - windows.y) ** 2), rel=1e-5)


def test_reasons_in_records_name_files_and_not_where_they_are(tmp_path: Path) -> None:
    def predict(x: torch.Tensor) -> torch.Tensor:
        raise OSError(f"cannot read {tmp_path}/secret place/weights.bin or /home/alice/x.bin of owner/name")

    records, _ = run_all([Given(from_module(predict, name="m"))], [dataset()], tmp_path / "l.db")
    assert {record["status"] for record in records} == {"failed"}
    assert str(tmp_path) not in str(records)
    assert "alice" not in str(records)
    assert all("x.bin of owner/name" in record["reason"] for record in records)


def test_flat_windows_are_no_ground_to_refuse_a_model_that_divides_by_their_spread(tmp_path: Path) -> None:
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
    flat = Dataset("flat/H", "H", 24, "", 1, lambda index: Row("T0", flat_at_the_end))
    records, _ = run_all([Given(from_module(Normalised()))], [flat, dataset(count=1)], tmp_path / "l.db")
    status = {record["dataset"]: record["status"] for record in records}
    assert status == {"flat/H": "excluded", "waves/H": "done"}
    assert all("flat windows" in r["reason"] for r in records if r["dataset"] == "flat/H")


def test_other_data_is_admitted_anew_in_the_same_ledger(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    run_all([Given(linear())], [dataset("one/H", count=1)], path)
    run_all([Given(linear())], [dataset("two/H", count=2)], path)
    with Ledger.open(path, create=False) as ledger:
        assert len({check.windows for check in ledger.checks()}) == 2


def test_a_resumed_audit_does_not_mistake_what_is_left_for_a_wrong_request(tmp_path: Path) -> None:
    model = linear(limits=Limits(lookbacks=(32,)))
    path = tmp_path / "l.db"
    run_all([Given(model)], [dataset()], path, (Setting(32, 8),))
    records, _ = run_all([Given(model)], [dataset()], path, (Setting(32, 8), Setting(40, 8)))
    assert {(r["lookback"], r["status"]) for r in records} == {(32, "done"), (40, "excluded")}
