"""`hrx train`: its splits and loop against slow computations, its directories, and the audit of what was trained."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small import train
from torch import nn

from hrx.adapters import load, locate, locate_each
from hrx.api.audit import AuditResult
from hrx.audit.runner.plan import Setting
from hrx.audit.training import DEPTH_ARGUMENT, Recipe, build, mean_squared_error
from hrx.audit.training.train import Splits, TrainingTask, cut_splits, fit_splits, is_trained, worker_tasks
from hrx.cli.main import main
from hrx.errors import HrxError
from hrx.gift_eval import Series, cut
from hrx.gift_eval.catalogue import tslib_sets
from hrx.gift_eval.series import OfficialSplit
from hrx.reports import read

LOOKBACK, HORIZON = 12, 4
CPU = torch.device("cpu")
QUICK = ["--settings", f"{LOOKBACK}x{HORIZON}", "--epochs", "2", "--batches", "30"]


@pytest.fixture(scope="module")
def ett(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins of ETTh1 and ETTh2: a daily wave with noise, of the official length."""
    root = tmp_path_factory.mktemp("ett")
    (root / "ETT-small").mkdir()
    for seed, each in enumerate(one for one in tslib_sets() if one.name in ("ETTh1", "ETTh2")):
        rows = np.arange(each.rows or 0)
        values = 20 + 5 * np.sin(rows * 2 * np.pi / 24) + np.random.default_rng(seed).standard_normal(rows.size)
        lines = [f"2016-07-01 00:00:00,{value:.4f}" for value in values]
        (root / each.file).write_text("date,OT\n" + "\n".join(lines) + "\n")
    return root


@pytest.fixture(scope="module")
def series() -> Series:
    """A noisy wave with a short official split."""
    values = np.sin(np.arange(400) / 3) + 0.3 * np.random.default_rng(3).standard_normal(400) + 7
    return Series("Toy", "OT", "H", 24, "", values, 0, official=OfficialSplit(train=240, test=320, end=400))


@pytest.fixture(scope="module")
def splits(series: Series) -> Splits:
    return cut_splits(series, LOOKBACK, HORIZON)


@pytest.mark.parametrize("inside", [False, True])
def test_the_windows_are_those_of_the_librarys_training_and_validation_borders(series: Series, inside: bool) -> None:
    official = replace(series, official=OfficialSplit(240, 320, 400, lookback_inside=inside))
    found = cut_splits(official, LOOKBACK, HORIZON)
    scaled = (series.values - series.values[:240].mean()) / series.values[:240].std()
    borders = {"train": (0, 240), "validation": (240 if inside else 240 - LOOKBACK, 320)}
    for name, (first, last) in borders.items():
        rows = scaled[first:last]
        count = len(rows) - LOOKBACK - HORIZON + 1
        x = np.stack([rows[i : i + LOOKBACK] for i in range(count)])
        y = np.stack([rows[i + LOOKBACK : i + LOOKBACK + HORIZON] for i in range(count)])
        np.testing.assert_allclose(getattr(found, name).x, x, atol=1e-6)
        np.testing.assert_allclose(getattr(found, name).y, y, atol=1e-6)


def slow_fit(module: nn.Module, splits: Splits, recipe: Recipe, seed: int) -> tuple[list[float], int, dict[str, Any]]:
    """The loop in plain steps: every epoch is run and its state kept, and the best one is chosen afterwards."""
    optimiser = torch.optim.Adam(module.parameters(), lr=recipe.learning_rate)
    order = torch.Generator().manual_seed(seed)
    errors, states = [], []
    for epoch in range(recipe.epochs):
        optimiser.param_groups[0]["lr"] = recipe.learning_rate / (1 if epoch < 2 else 2 ** (epoch - 1))
        places = torch.randperm(len(splits.train.x), generator=order)
        for start in range(0, len(places), recipe.batch):
            at = places[start : start + recipe.batch]
            optimiser.zero_grad()
            nn.functional.mse_loss(module(splits.train.x[at]), splits.train.y[at]).backward()
            optimiser.step()
        with torch.no_grad():
            difference = module(splits.validation.x).double() - splits.validation.y.double()
        errors.append(float((difference**2).mean()))
        states.append({name: tensor.clone() for name, tensor in module.state_dict().items()})
    best = 0
    for epoch in range(1, recipe.epochs):
        if epoch - best > recipe.patience:
            break
        best = epoch if errors[epoch] <= errors[best] else best
    return errors, best, states[best]


@pytest.mark.parametrize("stops_early", [False, True])
def test_training_keeps_the_best_epoch_of_a_slow_loop_and_stops_after_three_without_a_lower_error(
    splits: Splits, stops_early: bool
) -> None:
    recipe = Recipe(1e-3)
    if stops_early:  # what is learned makes the forecast of the negative worse
        splits = splits._replace(validation=splits.validation._replace(y=-splits.validation.y))
    module, slow = (build("Linear", LOOKBACK, HORIZON, None, 5, {}) for _ in range(2))
    fitted = fit_splits(module, splits, recipe, 5, CPU)
    errors, best, state = slow_fit(slow, splits, recipe, 5)
    run = len(fitted.validation_mse)
    assert fitted.validation_mse == pytest.approx(errors[:run], rel=1e-5)
    assert fitted.best_epoch == best + 1
    assert (run < recipe.epochs) == stops_early
    assert run == min(recipe.epochs, fitted.best_epoch + recipe.patience)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, state[name])


def test_the_learning_rate_is_halved_after_every_epoch_from_the_second() -> None:
    assert [Recipe(0.8).rate(epoch) for epoch in range(1, 6)] == [0.8, 0.8, 0.4, 0.2, 0.1]


def test_a_linear_backbone_reaches_the_least_squares_solution(splits: Splits) -> None:
    module = build("Linear", LOOKBACK, HORIZON, None, 0, {})
    first = mean_squared_error(module, splits.train, CPU)
    for seed in range(25):  # each call starts the schedule of the learning rate again
        fit_splits(module, Splits(splits.train, splits.train), Recipe(0.02), seed, CPU)
    x = np.column_stack([splits.train.x.double().numpy(), np.ones(len(splits.train.x))])
    y = splits.train.y.double().numpy()
    solution, *_ = np.linalg.lstsq(x, y, rcond=None)
    least = float(((x @ solution - y) ** 2).mean())
    assert least <= mean_squared_error(module, splits.train, CPU) <= 1.02 * least < first / 2


def task(series: Series, backbone: str, **changes: Any) -> TrainingTask:
    recipe = Recipe(1e-3, epochs=2, batches=3)
    return TrainingTask(backbone, series, False, Setting(LOOKBACK, HORIZON), None, 0, replace(recipe, **changes))


@pytest.mark.parametrize("backbone", ["CNN", "DLinear"])
def test_a_seed_decides_the_weights_and_the_saved_model_forecasts_as_the_trained_one(
    tmp_path: Path, series: Series, splits: Splits, backbone: str
) -> None:
    if backbone in DEPTH_ARGUMENT:
        pytest.importorskip("neuralforecast", reason="needs the extra neuralforecast")
    one = task(series, backbone)
    for out, each in (("a", one), ("b", one), ("c", replace(one, seed=1))):
        train(each, tmp_path / out)
    a, b, c = (load(str(next((tmp_path / out).iterdir()))) for out in "abc")
    module = build(backbone, LOOKBACK, HORIZON, None, 0, {})
    fit_splits(module, splits, one.recipe, 0, CPU)
    assert a.identity.fingerprint == b.identity.fingerprint != c.identity.fingerprint
    past = series.values[:240]
    assert a.scale == (pytest.approx(past.mean()), pytest.approx(past.std()))
    assert not a.reads_units
    x = splits.validation.x[:5]
    assert torch.equal(a.official(x, HORIZON), b.official(x, HORIZON))
    assert not torch.equal(a.official(x, HORIZON), c.official(x, HORIZON))
    with torch.no_grad():
        torch.testing.assert_close(a.official(x, HORIZON), module(x))


def test_a_complete_directory_is_not_trained_again_and_other_settings_are_refused(
    tmp_path: Path, series: Series
) -> None:
    one = task(series, "Linear")
    assert not is_trained(one, tmp_path)
    train(one, tmp_path)
    assert is_trained(one, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["Linear-Toy-12x4-seed0"]
    with pytest.raises(HrxError, match=r"has epochs 2, not 7\. Give another --out, or remove"):
        is_trained(task(series, "Linear", epochs=7), tmp_path)
    (tmp_path / one.name / "training.json").write_text("[]")
    with pytest.raises(HrxError, match=r"is not a file of hrx train\. Remove its directory"):
        is_trained(one, tmp_path)


def test_an_audit_of_the_directory_takes_each_model_at_its_own_series_setting_and_seed(
    tmp_path: Path, ett: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, data = str(tmp_path / "out"), f"tslib:{ett}"
    assert main(["train", "Linear", "CNN", "--data", data, *QUICK, "--seeds", "3", "--out", out]) == 0
    before = {path: path.stat().st_mtime_ns for path in Path(out).rglob("*.safetensors")}
    assert main(["train", "Linear", "CNN", "--data", data, *QUICK, "--seeds", "3", "--out", out]) == 0
    assert len(before) == 12
    assert {path: path.stat().st_mtime_ns for path in Path(out).rglob("*.safetensors")} == before
    assert f"Audit: hrx audit {out} --data {data}" in capsys.readouterr().out
    again = ["--out", str(tmp_path / "audit"), "--seeds", "1", "--workers", "0"]
    assert main(["audit", out, "bolt-mini", "--data", f"{data}:ETTh1", *again]) == 2
    assert "was trained on ETTh2 series OT, which is not among the series of" in capsys.readouterr().err
    assert main(["audit", out, "--data", data, "--settings", "24x4", *again]) == 2
    assert "was trained at these settings. Drop --settings, or give some of 12x4." in capsys.readouterr().err
    assert main(["audit", out, "--data", data, *again]) == 0
    frame = read(tmp_path / "audit" / "ledger.db")
    assert set(frame["status"]) == {"done"}
    for _, run in frame.iterrows():
        stated = json.loads((Path(out) / run["model"] / "training.json").read_text())
        for name in ("dataset", "series", "series_fingerprint", "lookback", "horizon", "seed"):
            assert run[name] == stated[name]
        facts = json.loads(run["training"])
        assert facts["validation_mse"] == stated["validation_mse"][stated["best_epoch"] - 1]
        assert (facts["batches_per_epoch"], facts["training_rows"]) == (stated["batches"], 8640)
        for name in ("optimiser", "learning_rate", "batch", "epochs", "patience", "loss", "arguments", "best_epoch"):
            assert facts[name] == stated[name]
    assert sorted(frame["model"]) == sorted(path.name for path in Path(out).iterdir())
    shown = capsys.readouterr().out
    assert shown.startswith("12 trained models of 2 backbones · 12 runs · 2 datasets\n")
    assert "training rows are unknown" not in shown
    assert main(["audit", out, "--data", data, *again, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["model"] for one in document["models"]] == list(frame["model"])
    for one in document["backbones"]:
        mine = frame[frame["backbone"] == one["backbone"]]
        assert (one["models"], one["runs"], one["mse"]) == (6, 6, pytest.approx(mine["mse"].median()))
        assert [cell["models"] for cell in one["cells"]] == [3, 3]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "No backbone is given. Known: Linear, CNN, DLinear"),
        (["Liner"], "Unknown backbone 'Liner'. Did you mean 'Linear'"),
        (["dlinear"], "Unknown backbone 'dlinear'. Did you mean 'DLinear'? Known"),
        (["Linear", "--depth", "2"], "Linear has no depth. Drop --depth, or train Linear by a command of its own."),
        (["Linear", "--settings", "9000x24"], "its training split has 8640 values, too few for 9000x24."),
        (["Linear", "--preset", "paper-small"], "--preset paper-small decides BACKBONE itself. Drop BACKBONE"),
        (["--preset", "paper-smal"], "Unknown preset 'paper-smal'. Did you mean 'paper-small'"),
        (["Linear", "--device", "tpu"], "Unknown device 'tpu'"),
    ],
)
def test_a_wrong_request_gets_one_sentence_and_writes_nothing(
    tmp_path: Path, ett: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    out = tmp_path / "out"
    assert main(["train", *words, "--data", f"tslib:{ett}:ETTh1", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert not out.exists()


@pytest.fixture(scope="module")
def own_series() -> Series:
    """A noisy wave of the user's own, with a length that no share divides."""
    values = np.sin(np.arange(403) / 3) + 0.3 * np.random.default_rng(4).standard_normal(403) + 7
    return Series("sales", "north", "D", 7, "", values, 0)


@pytest.mark.parametrize(("horizon", "training", "validation"), [(4, 281, 41), (50, 272, 50), (100, 203, 100)])
def test_without_an_official_split_the_windows_lie_before_the_test_region_of_an_audit(
    own_series: Series, horizon: int, training: int, validation: int
) -> None:
    """T = 403: the test region is the last 81 values (or a horizon), the validation split 41 of the 322 before it."""
    found = cut_splits(own_series, LOOKBACK, horizon)
    end = training + validation
    values = own_series.values.tolist()
    mean = sum(values[:end]) / end
    deviation = (sum((value - mean) ** 2 for value in values[:end]) / end) ** 0.5
    scaled = [(value - mean) / deviation for value in values]
    borders = {"train": (LOOKBACK, training), "validation": (training, end)}
    for name, (first, last) in borders.items():
        starts = [start for start in range(len(values)) if first <= start and start + horizon <= last]
        x = [[scaled[row] for row in range(start - LOOKBACK, start)] for start in starts]
        y = [[scaled[row] for row in range(start, start + horizon)] for start in starts]
        np.testing.assert_allclose(getattr(found, name).x, x, atol=1e-6)
        np.testing.assert_allclose(getattr(found, name).y, y, atol=1e-6)
    audited = cut(own_series, LOOKBACK, horizon, windows=3, seed=0)
    assert audited.starts.min() == end
    np.testing.assert_allclose(audited.y[0], scaled[end : end + horizon])


@pytest.mark.parametrize("official", [None, OfficialSplit(train=240, test=322, end=403)])
def test_no_value_of_the_test_region_enters_the_weights(own_series: Series, official: OfficialSplit | None) -> None:
    before = replace(own_series, official=official)
    values = before.values.copy()
    values[322:] = 1e6 * np.random.default_rng(5).standard_normal(81)
    changed = [replace(before, values=values)]
    values = before.values.copy()
    values[321] += 0.5  # the last validation value decides the scaling or the best epoch
    changed.append(replace(before, values=values))
    first, same, other = (worker_tasks([task(one, "CNN")])[0].run_on(CPU) for one in (before, *changed))
    assert same.files == first.files
    assert same.fitted == first.fitted
    assert other.fitted != first.fitted


@pytest.mark.slow
def test_models_of_a_users_table_are_audited_on_the_standardised_test_region(tmp_path: Path) -> None:
    """DLinear is saved by a library whose models read values in their own units, unless hrx train trained them."""
    pytest.importorskip("neuralforecast", reason="needs the extra neuralforecast")
    rng, rows = np.random.default_rng(6), np.arange(500)
    days = np.datetime64("2020-01-01") + rows
    names = [f"shop {number}/a" for number in range(4)]
    columns = [1000 * number + 50 * np.sin(rows * 2 * np.pi / 7) + rng.standard_normal(500) for number in range(4)]
    lines = [",".join([str(day), *(f"{one[row]:.5f}" for one in columns)]) for row, day in enumerate(days)]
    (tmp_path / "sales.csv").write_text(",".join(["date", *names]) + "\n" + "\n".join(lines) + "\n")
    data, out = ["--data", f"csv:{tmp_path}/sales.csv", "--series", "2"], tmp_path / "out"
    assert main(["train", "Linear", "DLinear", *data, *QUICK, "--seeds", "1", "--out", str(out)]) == 0
    assert main(["audit", str(out), *data, "--out", str(tmp_path / "audit")]) == 0
    frame = read(tmp_path / "audit" / "ledger.db").set_index("model")
    assert set(frame["status"]) == {"done"}
    assert set(frame["backbone"]) == {"Linear", "DLinear"}
    assert len(frame) == 4
    for name, number in ((name, number) for name in ("Linear", "DLinear") for number in (0, 3)):
        model = f"{name}-sales_D-shop {number}_a-12x4-seed0"
        scaled = (columns[number] - columns[number][:400].mean()) / columns[number][:400].std()
        x = torch.tensor(np.stack([scaled[at - LOOKBACK : at] for at in range(400, 497)]), dtype=torch.float32)
        y = np.stack([scaled[at : at + HORIZON] for at in range(400, 497)])
        error = float(((load(str(out / model)).official(x, HORIZON).numpy() - y) ** 2).mean())
        assert frame.loc[model, "series"] == names[number]
        assert frame.loc[model, "mse"] == pytest.approx(error, rel=0.1)  # of at most 64 windows


def test_a_series_that_cannot_be_trained_is_named_and_the_others_are_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    days = np.datetime64("2020-01-01") + np.arange(300)
    first, last = np.random.default_rng(7).standard_normal((2, 300))
    lines = [f"{day},{a:.4f},5,{c:.4f}" for day, a, c in zip(days, first, last, strict=True)]
    (tmp_path / "sales.csv").write_text("date,A,B,C\n" + "\n".join(lines) + "\n")
    out, data = tmp_path / "out", ["--data", f"csv:{tmp_path}/sales.csv"]
    assert main(["train", "Linear", *data, *QUICK, "--seeds", "1", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert "sales/D series B: the series is constant before its test region" in captured.err
    assert "2 models in" in captured.err
    stated = json.loads((out / "Linear-sales_D-C-12x4-seed0" / "training.json").read_text())
    assert stated["training_rows"] + stated["validation_rows"] == stated["scaling_rows"] == 240
    assert stated["validation_rows"] == 30
    assert main(["train", "Linear", *data, "--settings", "500x24", "--out", str(tmp_path / "none")]) == 2
    assert "too few for 500x24. Give shorter --settings." in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_series_that_no_setting_can_use_are_named_with_their_reason_and_not_as_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    days = np.datetime64("2020-01-01") + np.arange(300)
    (tmp_path / "flat.csv").write_text("date,A\n" + "".join(f"{day},5\n" for day in days))
    words = ["--data", f"csv:{tmp_path}/flat.csv", "--settings", "28x7,56x14", "--out", str(tmp_path / "out")]
    assert main(["train", "Linear", *words]) == 2
    error = capsys.readouterr().err
    assert "constant" in error
    assert "hold no series" not in error


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"workers": None, "timeout": 7200.0, "engine": "local", "address": "auto", "gpus": 0.0}),
        (
            ["--workers", "2", "--timeout", "400h", "--engine", "ray", "--address", "a:1", "--gpus", "0.5"],
            {"workers": 2, "timeout": 1440000.0, "engine": "ray", "address": "a:1", "gpus": 0.5},
        ),
    ],
)
def test_the_audit_of_a_preset_gets_the_engine_of_the_training(
    tmp_path: Path, ett: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: dict[str, Any]
) -> None:
    """Without options they are those of `hrx audit`."""
    seen: list[Any] = []
    monkeypatch.setattr("hrx.api.checkpoints.is_trained", lambda task, out: True)
    monkeypatch.setattr(
        "hrx.api.checkpoints.perform", lambda request, **_: seen.append(request) or AuditResult((), tmp_path, 0)
    )
    command = ["train", "--preset", "paper-small", "--data", f"tslib:{ett}", *words, "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert {name: getattr(seen[0], name) for name in expected} == expected


def test_a_model_whose_last_epoch_was_its_best_is_counted_as_not_converged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", "sample:sf_temps", "--settings", "24x8", "--batches", "20", "--seeds", "2", "--workers", "0"]
    for epochs, rate in (("2", "1e-4"), ("8", "0.3")):
        out = tmp_path / epochs
        words = ["--epochs", epochs, "--learning-rate", rate, "--out", str(out)]
        assert main(["train", "Linear", *data, *words]) == 0
        stated = [json.loads(file.read_text()) for file in out.glob("*/training.json")]
        last = sum(int(np.argmin(one["validation_mse"])) == int(epochs) - 1 for one in stated)
        error = capsys.readouterr().err
        assert (f"{last} of 2 models had the lowest validation error in the last epoch" in error) == (last > 0)
        assert ("lowest validation error" in error) == (last > 0)


@pytest.mark.parametrize(
    "verb", [["verify"], ["explain", "--series", "sample:sf_temps", "--lookback", "12", "--horizon", "4"]]
)
def test_a_verb_for_one_model_counts_the_trained_ones_of_all_formats(
    tmp_path: Path, series: Series, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    pytest.importorskip("neuralforecast", reason="needs the extra neuralforecast")
    out = tmp_path / "out"
    train(task(series, "DLinear"), out)
    assert locate(str(out)).identity.fingerprint == locate(str(out / "DLinear-Toy-12x4-seed0")).identity.fingerprint
    for seed in range(3):
        train(replace(task(series, "Linear"), seed=seed), out)
    assert main([verb[0], str(out), *verb[1:]]) == 2
    names = "DLinear-Toy-12x4-seed0, Linear-Toy-12x4-seed0, Linear-Toy-12x4-seed1 and 1 more"
    expected = f"{out} holds 4 trained models: {names}. Name one: {out}/DLinear-Toy-12x4-seed0."
    assert expected in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("backbone", ["Linear", "DLinear"])
def test_a_trained_directory_without_weights_is_to_be_trained_again(
    tmp_path: Path, series: Series, backbone: str
) -> None:
    if backbone in DEPTH_ARGUMENT:
        pytest.importorskip("neuralforecast", reason="needs the extra neuralforecast")
    train(task(series, backbone), tmp_path)
    folder = tmp_path / f"{backbone}-Toy-12x4-seed0"
    for file in folder.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(HrxError, match=f"Train it again: remove {folder} and repeat hrx train"):
        _ = locate_each(str(tmp_path), [], as_trained=True)[0].located.identity


def test_an_audit_names_what_it_leaves_out_and_refuses_two_models_of_the_same_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    days, values = np.datetime64("2020-01-01") + np.arange(200), np.random.default_rng(8).standard_normal(200)
    lines = [f"{day},{value:.4f},{value:.4f}\n" for day, value in zip(days, values, strict=True)]
    (tmp_path / "twins.csv").write_text("date,A,B\n" + "".join(lines))
    data, out = ["--data", f"csv:{tmp_path}/twins.csv", "--workers", "0"], tmp_path / "out"
    assert main(["train", "Linear", *data, *QUICK, "--seeds", "1", "--out", str(out)]) == 0
    audit = ["audit", str(out), *data, "--dry-run", "--out", str(tmp_path / "audit")]
    first, second = sorted(path.name for path in out.iterdir())
    capsys.readouterr()
    assert main(audit) == 2
    assert f"{first} and {second} have the same weights" in capsys.readouterr().err
    (out / second / "training.json").unlink()
    (out / "notes").mkdir()
    assert main(audit) == 0
    error = capsys.readouterr().err
    assert f"{second} has no training.json and is not audited" in error
    assert "notes" not in error
