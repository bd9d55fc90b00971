"""`hrx.evaluate`: the leaderboard's windows and metrics, by gluonts; the file goes on where it ended."""

import csv
import json
import math
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import hrx
from hrx.adapters import Forecaster, Identity, Limits
from hrx.adapters.inputs import Outputs
from hrx.cli import main
from hrx.errors import HrxError
from hrx.gift_eval import open_source
from hrx.records.evaluation import LEVELS, METRICS, Evaluation

pytest.importorskip("gluonts", reason="gluonts is not installed")


class Naive(Forecaster):
    """Repeats the last value; with `spread`, its quantiles are that far apart."""

    official_call = "naive"

    def __init__(self, spread: float = 0.0, limits: Limits | None = None):
        self.identity = Identity("naive", "helpers", "generated", fingerprint="1" * 64, library="torch")
        self.limits, self.spread, self.windows = limits or Limits(longest_lookback=8), spread, 0
        self.outputs = Outputs(LEVELS if spread else ())

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        self.windows += len(x)
        return x[:, -1:].expand(-1, horizon)

    official = predict

    def official_window(self, window, horizon, columns) -> Tensor:
        levels = torch.tensor([level - 0.5 for level in columns])
        return self.official(window.target[..., 0], horizon)[:, :, None, None] + self.spread * levels


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """us_births/W and us_births/M, in GIFT-Eval's format, of random walks."""
    from datasets import Dataset, Features, Sequence, Value

    text, numbers = Value("string"), Sequence(Value("float32"))
    kinds = Features({"item_id": text, "start": Value("timestamp[s]"), "freq": text, "target": numbers})
    for name, frequency, length in (("W", "W-TUE", 200), ("M", "M", 120)):
        values = np.random.default_rng(length).normal(size=length).cumsum() + 50
        row = {"item_id": "T1", "start": datetime(2000, 1, 1), "freq": frequency, "target": values.tolist()}
        Dataset.from_list([row], features=kinds).save_to_disk(tmp_path / "gift" / "us_births" / name)
    return tmp_path / "gift"


def pinball(folder: Path, horizon: int, spread: float) -> tuple[float, float, float]:
    """MSE, MASE and weighted quantile loss of the naive quantiles on the weekly series, window by window."""
    values = open_source(str(folder))
    (series,) = [one.read(0).values for one in values if one.name == "us_births/W"]
    windows = math.ceil(0.1 * len(series) / horizon)
    squared, scaled, losses, total = [], [], [], 0.0
    for number in range(windows, 0, -1):
        start = len(series) - number * horizon
        past, truth = series[:start], series[start : start + horizon]
        error = truth - past[-1]
        squared += (error**2).tolist()
        scaled += (np.abs(error) / np.abs(np.diff(past)).mean()).tolist()
        for q in LEVELS:
            missed = error - spread * (q - 0.5)
            losses.append(2 * np.maximum(q * missed, (q - 1) * missed).sum())
        total += np.abs(truth).sum()
    return float(np.mean(squared)), float(np.mean(scaled)), float(np.sum(losses) / total / len(LEVELS))


def test_scores_are_those_of_the_definitions_and_the_file_goes_on(folder: Path, tmp_path: Path) -> None:
    model, out = Naive(spread=2.0), tmp_path / "e.json"
    found = hrx.evaluate(model, str(folder), out=out)
    assert {row.config for row in found.rows} == {"us_births/W/short", "us_births/M/short"}
    (row,) = [row for row in found.rows if row.config == "us_births/W/short"]
    mse, mase, loss = pinball(folder, 8, 2.0)
    assert row.metrics["MSE[0.5]"] == pytest.approx(mse, rel=1e-5)
    assert row.metrics["MASE[0.5]"] == pytest.approx(mase, rel=1e-5)
    assert row.metrics["mean_weighted_sum_quantile_loss"] == pytest.approx(loss, rel=1e-5)
    assert (row.windows, row.instances, row.domain, row.num_variates) == (3, 3, "Healthcare", 1)
    assert row.seasonal_mase == pytest.approx(mase, rel=1e-5)  # weekly data have no season
    table = found.to_frame()
    assert len(table.columns) == 15
    assert table.columns[2] == "eval_metrics/MSE[mean]"
    assert Evaluation.load(out).rows == found.rows
    done = model.windows
    assert hrx.evaluate(model, str(folder), out=out).rows == found.rows
    assert model.windows == done  # nothing is forecast twice
    assert json.loads(out.read_text())["rows"][0]["metrics"].keys() == set(METRICS)


def test_without_quantiles_the_metrics_that_need_them_are_missing(folder: Path) -> None:
    found = hrx.evaluate(Naive(), str(folder))
    assert not found.quantiles
    for row in found.rows:
        assert math.isnan(row.metrics["MSIS"])
        assert row.metrics["MSE[mean]"] == row.metrics["MSE[0.5]"]


def test_a_setting_that_the_model_does_not_take_is_a_reason_and_the_others_are_scored(folder: Path, tmp_path) -> None:
    found = hrx.evaluate(Naive(limits=Limits(longest_horizon=8)), str(folder))
    reasons = {row.config: row.reason for row in found.rows}
    assert reasons["us_births/W/short"] == ""
    assert "forecasts at most 8 steps, not 12" in reasons["us_births/M/short"]
    with pytest.raises(HrxError, match="holds no dataset of GIFT-Eval"):
        hrx.evaluate(Naive(), "sample")
    hrx.evaluate(Naive(), str(folder), out=tmp_path / "e.json")
    other = Naive()
    other.identity = Identity("other", "helpers", "generated", fingerprint="2" * 64, library="torch")
    with pytest.raises(HrxError, match=r"holds an evaluation of naive .*, not of these weights"):
        hrx.evaluate(other, str(folder), out=tmp_path / "e.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(HrxError, match="is not a valid evaluation"):
        Evaluation.load(tmp_path / "bad.json")


def test_the_command_prints_the_scores_and_says_what_is_missing(folder: Path, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "last.py").write_text(
        "import torch\n\nclass Last(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x[:, -1:].repeat(1, 8)\n\ndef make():\n    return Last()\n"
    )
    words = ["evaluate", f"module:{tmp_path}/last.py:make", "--data", str(folder)]
    code = main([*words, "--json"])
    found = json.loads(capsys.readouterr().out)
    by_name = {row["config"]: row for row in found["configurations"]}
    assert by_name["us_births/W/short"]["MSE[mean]"] == pytest.approx(pinball(folder, 8, 1.0)[0], rel=1e-5)
    assert code == (3 if by_name["us_births/M/short"]["reason"] else 0)
    assert main(["evaluate", f"module:{tmp_path}/last.py:make", "--data", "sample"]) == 2


@pytest.mark.slow
def test_on_real_data_a_naive_forecaster_has_the_official_naive_scores(real_data: Path) -> None:
    found = {row.config: row for row in hrx.evaluate(Naive(), str(real_data / "gift_eval")).rows}
    with (real_data / "reference" / "gift_eval_naive.csv").open(newline="") as lines:
        published = list(csv.DictReader(lines))
    assert {line["config"] for line in published} == set(found)
    for line in published:
        row = found[line["config"]]
        assert (row.windows, row.instances) == (int(line["windows"]), int(line["instances"]))
        assert row.metrics["MSE[mean]"] == pytest.approx(float(line["naive_mse"]), rel=1e-6), line["config"]
        assert row.metrics["MAE[0.5]"] == pytest.approx(float(line["naive_mae"]), rel=1e-6), line["config"]
