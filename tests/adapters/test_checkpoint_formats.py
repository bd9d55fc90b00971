"""Checkpoints as people save them: shards, pickled weights, half precision, nested directories, LoRA, many channels."""

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import tiny, tiny_generate
from helpers.tiny import series
from safetensors.torch import load_file, save_file

from hrx.adapters import ModelError, load, locate
from hrx.adapters.contract import library_errors
from hrx.audit.admission import admit, admit_channels, parity
from hrx.cli.main import main

X = series(2, 96)


def copied(path: Path, to: Path) -> Path:
    return Path(shutil.copytree(path, to))


def as_shards(path: Path) -> None:
    """Two files and their index, in the format of `save_pretrained` with a `max_shard_size`."""
    tensors = load_file(path / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (path / "model.safetensors").unlink()


def as_pickle(path: Path) -> None:
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    torch.save({"learning_rate": 1e-4}, path / "training_args.bin")
    (path / "model.safetensors").unlink()


def as_half(path: Path, dtype: torch.dtype = torch.float16) -> None:
    tensors = load_file(path / "model.safetensors")
    halved = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file(halved, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"dtype": str(dtype).removeprefix("torch.")}))


@pytest.mark.parametrize("reformat", [as_shards, as_pickle])
@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm"])
def test_shards_and_pickled_weights_are_the_same_model(
    checkpoints: dict[str, Path], tmp_path: Path, family: str, reformat: Callable[[Path], None]
) -> None:
    path = copied(checkpoints[family], tmp_path / "saved-otherwise")
    reformat(path)
    model, original = load(str(path)), load(str(checkpoints[family]))
    assert model.unloaded() == ()
    assert torch.equal(model.official(X, 24), original.official(X, 24))
    assert parity(model, X, 24) <= 1e-6


def test_shards_of_a_family_that_hrx_loads_itself_are_the_same_model(tmp_path: Path) -> None:
    path = tiny_generate.timer(tmp_path / "timer")
    original = load(str(path)).official(series(2, 192), 24)
    as_shards(path)
    assert torch.equal(load(str(path)).official(series(2, 192), 24), original)


def test_a_missing_shard_is_named(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path = copied(checkpoints["ttm"], tmp_path / "sharded")
    as_shards(path)
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks model-00002-of-00002.safetensors, which model.safetensors.index.json"):
        locate(str(path)).identity  # noqa: B018 (the fingerprint reads the files)


def test_code_in_pickled_weights_is_never_run(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path, ran = copied(checkpoints["ttm"], tmp_path / "pickled"), tmp_path / "ran"
    (path / "model.safetensors").unlink()
    torch.save({"weight": RunsWhenLoaded(ran)}, path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="weights"):
        load(str(path)).unloaded()
    assert not ran.exists()


class RunsWhenLoaded:
    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm", "moirai-2"])
def test_half_precision_weights_are_compared_in_float32_and_named_in_the_identity(
    checkpoints: dict[str, Path], tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    path = copied(checkpoints[family], tmp_path / "half")
    as_half(path, dtype)
    model = load(str(path))
    assert model.identity.weights_dtype == str(dtype).removeprefix("torch.")
    assert load(str(checkpoints[family])).identity.weights_dtype == "float32"
    assert model.unloaded() == ()
    assert model.official(X, 24).dtype == torch.float32
    assert parity(model, X, 24) <= 1e-6
    same = tmp_path / "the same values in float32"
    shutil.copytree(path, same)
    as_half(same, torch.float32)
    assert torch.equal(load(str(same)).official(X, 24), model.official(X, 24))


def test_the_only_checkpoint_below_a_directory_is_used(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    copied(checkpoints["ttm"], tmp_path / "my-run" / "checkpoint-500")
    located = locate(str(tmp_path / "my-run"))
    assert (located.identity.family, located.identity.model) == ("ttm", "my-run")
    copied(checkpoints["ttm"], tmp_path / "my-run" / "checkpoint-1000")
    with pytest.raises(ModelError, match=r"holds 2 checkpoints: checkpoint-1000, checkpoint-500. Give the directory"):
        locate(str(tmp_path / "my-run"))


CHANNELS = 31


@pytest.fixture(scope="module")
def many_channels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tune of 31 channels that forecasts the first."""
    path = tmp_path_factory.mktemp("ttm") / "plant"
    return tiny.ttm(
        path, num_input_channels=CHANNELS, decoder_mode="mix_channel", prediction_channel_indices=[0], loss="mse"
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """A wide table of so many variates, as a source."""
    folder = tmp_path_factory.mktemp("tables")

    def make(variates: int) -> str:
        values = np.random.default_rng(variates).normal(size=(800, variates)).cumsum(axis=0)
        frame = pd.DataFrame(values, columns=[f"v{index}" for index in range(variates)])
        frame.insert(0, "ds", pd.date_range("2020-01-01", periods=len(frame), freq="h"))
        frame.to_csv(folder / f"{variates}.csv", index=False)
        return f"csv:{folder / f'{variates}.csv'}"

    return make


@pytest.mark.slow
def test_a_model_of_31_channels_passes_on_data_of_31_variates(
    many_channels: Path, table: Callable[[int], str], capsys: pytest.CaptureFixture[str]
) -> None:
    request = ["verify", str(many_channels), "--settings", "512x96", "--data", table(CHANNELS), "--channels", "--json"]
    assert main(request) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["official_call"] == "TimeSeriesForecastingPipeline"
    assert [check["check"] for check in shown["checks"] if check["passed"]] == [
        "equivalence", "isolation", "determinism", "gradient path", "trained head", "derivative",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("variates", "options", "sentence"),
    [
        (0, [], "plant reads 31 variates together, not one: give data of 31 variates and --channels."),
        (0, ["--channels"], "No dataset of sample has 31 variates. Give other --data."),
        (7, ["--channels"], "plant reads 31 variates together, not 7: give data of 31 variates."),
    ],
)
@pytest.mark.parametrize("verb", ["verify", "audit"])
def test_other_data_get_a_sentence_with_the_number_of_variates(
    many_channels: Path,
    table: Callable[[int], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    variates: int,
    options: list[str],
    sentence: str,
) -> None:
    data = ["--data", table(variates)] if variates else []
    out = ["--out", str(tmp_path)] if verb == "audit" else []
    assert main([verb, str(many_channels), "--settings", "512x96", *data, *options, *out]) == 2
    if verb == "verify" or "No dataset" not in sentence:
        assert sentence in capsys.readouterr().err


def test_the_forecast_channels_are_those_of_the_configuration(tmp_path: Path) -> None:
    predicted = [1, 4]
    config = {"num_input_channels": 5, "decoder_mode": "mix_channel"}
    some = load(str(tiny.ttm(tmp_path / "some", **config, prediction_channel_indices=predicted)))
    every = load(str(tiny.ttm(tmp_path / "every", **config)))
    x = series(10, 512).reshape(2, 5, 512).mT.contiguous()
    y = some.forward(x, 96).detach()
    assert some.limits.predicted == tuple(predicted)
    assert y.shape == (2, 96, 2)
    assert torch.equal(y, every.forward(x, 96).detach()[..., predicted])  # the same seed makes the same weights
    assert some.official_call == "TinyTimeMixerForPrediction.forward"  # the pipeline forecasts the first columns only
    assert [check for check in admit_channels(some, x[:1, -96:], 24) if not check.passed] == []


def test_a_channel_independent_model_of_many_channels_reads_one(tmp_path: Path) -> None:
    model = load(str(tiny.ttm(tmp_path / "independent", num_input_channels=7)))
    assert not model.limits.multivariate
    assert torch.equal(model.official(X, 24), load(str(tiny.ttm(tmp_path / "one"))).official(X, 24))


@pytest.mark.parametrize("horizon", [24, 140])
def test_a_frequency_token_is_given_to_a_model_that_needs_one(tmp_path: Path, horizon: int) -> None:
    path = tiny.ttm(tmp_path / "tuned", resolution_prefix_tuning=True, frequency_token_vocab_size=10)
    assert parity(load(str(path)), X, horizon) <= 1e-6


def test_a_model_that_needs_static_categories_is_refused(tmp_path: Path) -> None:
    path = tiny.ttm(
        tmp_path / "more", num_input_channels=3, decoder_mode="mix_channel", categorical_vocab_size_list=[4]
    )
    with pytest.raises(ModelError, match="needs static categorical values"):
        load(str(path))


@pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed: pip install peft")
@pytest.mark.parametrize(
    ("family", "layers"),
    [("chronos-2", ["q", "v"]), ("ttm", ["fc1", "fc2"]), ("timesfm-2.5-hf", ["fc1", "fc2", "q_proj"])],
)
def test_an_adapter_is_merged_on_request_and_then_passes_every_check(
    tmp_path: Path, family: str, layers: list[str]
) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    torch.manual_seed(1)
    path = tiny.families()[family].build(tmp_path / "base")
    tuned = get_peft_model(opened(path), LoraConfig(r=2, target_modules=layers, init_lora_weights=False))
    tuned.peft_config["default"].base_model_name_or_path = str(path)
    tuned.save_pretrained(str(tmp_path / "lora"))
    with pytest.raises(ModelError, match=r"is an adapter \(LoRA\).*--merge-adapter"):
        locate(str(tmp_path / "lora"))
    merged = load(str(tmp_path / "lora"), merge_adapter=True)
    assert merged.identity.model == "lora"
    unmerged: Any = load(str(path))
    before = unmerged.official(X, 24)
    PeftModel.from_pretrained(unmerged.module, str(tmp_path / "lora"))  # wraps its layers in place
    torch.testing.assert_close(merged.official(X, 24), unmerged.official(X, 24), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(merged.official(X, 24), before, rtol=1e-3)
    assert [check for check in admit(merged, X, 24) if not check.passed] == []


def opened(path: Path) -> Any:
    model: Any = load(str(path))
    return model.module


def test_an_error_of_a_library_becomes_a_sentence_and_a_sentence_stays() -> None:
    expected = r"^torch 2 raised an error while it ran mine: RuntimeError: .*shapes.* Check that the checkpoint"
    with pytest.raises(ModelError, match=expected), library_errors("mine", "torch 2"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    with pytest.raises(ModelError, match=r"^as it was$"), library_errors("mine", "torch 2"):
        raise ModelError("as it was")
