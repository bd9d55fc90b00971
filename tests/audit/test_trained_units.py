"""Models of `hrx train` on values in the units of a series, and the independence of their official call."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.mutated import mutated_class
from helpers.small import train
from safetensors.torch import load_file

import hrx
from hrx.adapters import load
from hrx.adapters.contract import ModelError
from hrx.adapters.registry import locate
from hrx.adapters.wrapped import Rescaled
from hrx.audit.admission import EQUIVALENCE_LIMIT, parity
from hrx.audit.runner.plan import Setting
from hrx.audit.training import Recipe
from hrx.audit.training.train import TrainingTask
from hrx.cli.main import main
from hrx.gift_eval import Series

LOOKBACK, HORIZON = 12, 4
VALUES = 5000 + 300 * np.sin(np.arange(300) / 3) + 20 * np.random.default_rng(3).standard_normal(300)
BEFORE_TEST = VALUES[:240]
FRAME = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=300), "y": VALUES})
SERIES = Series("shop", "units", "D", 7, "", VALUES, 0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small models of a series near 5000, by backbone."""
    out, recipe = tmp_path_factory.mktemp("trained"), Recipe(1e-2, epochs=2)
    tasks = [
        TrainingTask(name, SERIES, False, Setting(LOOKBACK, HORIZON), None, 0, recipe) for name in ("Linear", "CNN")
    ]
    for task in tasks:
        train(task, out)
    return {task.backbone: out / task.name for task in tasks}


def by_hand(directory: Path, values: np.ndarray) -> np.ndarray:
    """The forecast after the end of `values`: W z + b, in the units of the series."""
    weights = {name: tensor.double().numpy() for name, tensor in load_file(directory / "model.safetensors").items()}
    mean, std = BEFORE_TEST.mean(), BEFORE_TEST.std()
    z = (values[-LOOKBACK:] - mean) / std
    return (weights["weight"] @ z + weights["bias"]) * std + mean


def test_python_explains_a_trained_model_in_the_units_of_the_series(trained: dict[str, Path]) -> None:
    directory = trained["Linear"]
    weight = load_file(directory / "model.safetensors")["weight"].numpy()
    for model in (str(directory), load(str(directory))):
        x = hrx.explain(model, FRAME, HORIZON)
        np.testing.assert_allclose(x.forecast[0], by_hand(directory, VALUES), rtol=1e-5)
        np.testing.assert_allclose(x.signed[0], weight, atol=1e-5)
        assert x.notes[-1].startswith(f"{directory.name} read (value - {BEFORE_TEST.mean():.6g}) / ")
    again, at_once = x.score(str(directory)), hrx.score(str(directory), FRAME, HORIZON)
    assert again.g_margin == x.score().g_margin == at_once.g_margin
    wrapped = Rescaled(x.forecaster, *x.scales[0], standardise=True)
    window = torch.as_tensor(VALUES[None, -LOOKBACK:])
    double = wrapped.double()
    assert double is not None
    np.testing.assert_allclose(double.official(window, HORIZON)[0].numpy(), by_hand(directory, VALUES), rtol=1e-12)
    assert parity(wrapped, window.float(), HORIZON) <= EQUIVALENCE_LIMIT


def test_the_command_line_gives_the_forecast_of_python_also_after_the_series_has_grown(
    trained: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = trained["Linear"]
    grown = np.append(VALUES, VALUES[:60] + 900)  # its mean before the test region is another
    for values in (VALUES, grown):
        x = hrx.explain(str(directory), values, HORIZON, lookback=LOOKBACK, held_out=True)
        np.testing.assert_allclose(x.forecast[0], by_hand(directory, values), rtol=1e-5)
        assert not x.held_out[0].failed
    days = pd.date_range("2024-01-01", periods=len(grown))
    pd.DataFrame({"ds": days, "y": grown}).to_csv(tmp_path / "shop.csv", index=False)
    setting = ["--lookback", str(LOOKBACK), "--horizon", str(HORIZON)]
    series, page = ["--series", str(tmp_path / "shop.csv")], ["--out", str(tmp_path / "page.html"), "--json"]
    capsys.readouterr()
    assert main(["explain", str(directory), *series, *setting, *page]) == 0
    printed = json.loads(capsys.readouterr().out)
    x = hrx.explain(str(directory), str(tmp_path / "shop.csv"), HORIZON)
    np.testing.assert_allclose(x.forecast[0], printed["explanations"][0]["forecast"], rtol=1e-5)


def test_a_series_with_mostly_missing_training_or_validation_rows_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 300 rows the first 210 are for training and the next 30 for validation."""
    table = pd.DataFrame({"ds": FRAME["ds"], **dict.fromkeys(("half", "trained", "checked"), VALUES)})
    for name, missing in (("half", range(1, 106)), ("trained", range(1, 107)), ("checked", range(211, 227))):
        table.loc[list(missing), name] = np.nan
    table.to_csv(tmp_path / "gaps.csv", index=False)
    data, out = ["--data", f"csv:{tmp_path}/gaps.csv"], tmp_path / "out"
    setting = ["--settings", f"{LOOKBACK}x{HORIZON}", "--seeds", "1", "--epochs", "1", "--workers", "0"]
    assert main(["train", "Linear", *data, *setting, "--out", str(out)]) == 0
    shown = capsys.readouterr().err
    assert "series trained: 50.5% of its training rows are missing and would be filled in; the limit is 50%." in shown
    assert "series checked: 53.3% of its validation rows are missing and would be filled in; the limit is 50%." in shown
    assert [one.name for one in out.iterdir()] == ["Linear-gaps_D-half-12x4-seed0"]
    stated = json.loads((out / "Linear-gaps_D-half-12x4-seed0" / "training.json").read_text())
    assert stated["missing"] == {"training": 0.5, "validation": 0.0}


def test_a_directory_without_stored_scaling_reads_values_standardised_before_the_test_region_and_says_so(
    trained: dict[str, Path], tmp_path: Path
) -> None:
    directory = tmp_path / "old"
    directory.mkdir()
    for file in trained["Linear"].iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    stated = json.loads((directory / "training.json").read_text())
    assert stated.pop("mean") == pytest.approx(BEFORE_TEST.mean())
    assert stated.pop("std") == pytest.approx(BEFORE_TEST.std())
    (directory / "training.json").write_text(json.dumps(stated))
    x = hrx.explain(str(directory), FRAME, HORIZON)
    assert x.notes[-1].endswith(", mean and std of series y before its test region")
    np.testing.assert_allclose(x.forecast[0], by_hand(directory, VALUES), rtol=1e-5)
    (directory / "training.json").write_text(json.dumps(stated | {"mean": 5000.0, "std": 0}))
    with pytest.raises(ModelError, match=r"mean is 5000\.0 and std 0, which do not standardise"):
        load(str(directory))


@pytest.mark.parametrize(
    ("backbone", "correct", "mistake"),
    [
        ("CNN", "dilation=2**place)", "dilation=3**place)"),
        ("CNN", "nn.functional.gelu(block(hidden))", "nn.functional.gelu(block(hidden), approximate='tanh')"),
        ("Linear", "self.module(x)[:, :horizon]", "self.module(x)[:, :horizon] * 1.0001"),
    ],
)
def test_parity_sees_a_mistake_in_a_backbone(
    trained: dict[str, Path], tmp_path: Path, backbone: str, correct: str, mistake: str
) -> None:
    located = locate(str(trained[backbone]))
    window = torch.as_tensor(VALUES[None, -LOOKBACK:] - 5000, dtype=torch.float32) / 300
    model = located.load()
    assert parity(model, window, HORIZON) <= EQUIVALENCE_LIMIT
    double = model.double()
    torch.testing.assert_close(double.official(window.double(), HORIZON), double.forward(window.double(), HORIZON))
    edited = mutated_class(correct, mistake, located.family.loader, tmp_path)(located.checkpoint, located.identity)
    assert not parity(edited, window, HORIZON) <= EQUIVALENCE_LIMIT
