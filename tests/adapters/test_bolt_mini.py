"""bolt-mini, the embedded checkpoint, and the script that trains it."""

import hashlib
import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

import hrx.adapters
from hrx.adapters import load as load_model
from hrx.audit.runner.plan import QUICK, STAR, Setting
from hrx.gift_eval import cut, open_source, spaced

chronos = pytest.importorskip("chronos")

CHECKPOINT = Path(hrx.adapters.__file__).parent / "bolt_mini"
LOOKBACK = torch.sin(torch.arange(512) / 4).repeat(3, 1) * torch.tensor([[1.0], [2.0], [30.0]])


def load(folder: Path = CHECKPOINT, seed: int = 0):
    torch.manual_seed(seed)
    return chronos.ChronosBoltPipeline.from_pretrained(folder)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def config_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "config.json").read_text())


def train_for_three_steps(out: Path, seed: int) -> Path:
    command = [
        sys.executable,
        Path(__file__).with_name("train_bolt_mini.py"),
        "--out",
        out,
        "--steps",
        "3",
        "--seed",
        str(seed),
    ]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=300)
    return out


def test_the_official_class_loads_the_checkpoint_and_forecasts_its_native_horizon() -> None:
    pipeline = load()
    assert type(pipeline.model).__name__ == "ChronosBoltModelForForecasting"
    assert (pipeline.model_context_length, pipeline.model_prediction_length) == (512, 96)
    _, median = pipeline.predict_quantiles(LOOKBACK, prediction_length=96, quantile_levels=[0.5])
    assert median.shape == (3, 96)
    assert torch.isfinite(median).all()


def test_the_checkpoint_is_small_and_stored_in_fp32() -> None:
    parameters = list(load().model.parameters())
    assert sum(parameter.numel() for parameter in parameters) <= 400_000
    assert {parameter.dtype for parameter in parameters} == {torch.float32}
    assert (CHECKPOINT / "model.safetensors").stat().st_size < 1_700_000


def test_every_tensor_of_the_loaded_model_is_in_the_file() -> None:
    first, second = (load(seed=seed).predict(LOOKBACK, prediction_length=96) for seed in (1, 2))
    assert torch.equal(first, second)
    assert load_model("bolt-mini").unloaded() == ()


def test_the_configuration_contains_no_path() -> None:
    text = (CHECKPOINT / "config.json").read_text()
    assert "_name_or_path" not in text
    assert "/" not in text
    assert "\\" not in text


@pytest.mark.slow
def test_training_writes_a_loadable_checkpoint_is_reproducible_and_depends_on_the_seed(tmp_path: Path) -> None:
    trained, again, other = (
        train_for_three_steps(tmp_path / name, int(name == "other")) for name in ("a", "b", "other")
    )
    assert sorted(path.name for path in trained.iterdir()) == ["config.json", "model.safetensors"]
    assert {**config_of(trained), "transformers_version": ""} == {**config_of(CHECKPOINT), "transformers_version": ""}
    assert load(trained).predict(LOOKBACK, prediction_length=24).shape == (3, 9, 24)
    assert digest(again) == digest(trained) != digest(other)


@pytest.mark.parametrize("settings", [STAR, QUICK], ids=["star", "quick"])
def test_it_beats_both_naive_forecasts_on_more_than_half_of_the_sample_s_runs(settings: tuple[Setting, ...]) -> None:
    model = load_model("bolt-mini")
    wins = []
    for dataset in open_source("sample"):
        for index, setting, seed in product(spaced(dataset.count, 3), settings, range(2)):
            windows = cut(dataset.read(index), setting.lookback, setting.horizon, 4, seed)
            x = torch.as_tensor(windows.x, dtype=torch.float32)
            errors = (model.official(x, setting.horizon).numpy() - windows.y) ** 2
            naive = min((windows.y**2).mean(), ((windows.x[:, -1:] - windows.y) ** 2).mean())
            wins.append(errors.mean() < naive)
    assert len(wins) == 22 * len(settings)
    assert sum(wins) > len(wins) / 2
