"""Weight files that are not what the model is: refused when they are loaded, in every family and format."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_neuralforecast, tiny_tslib
from helpers.tiny import families
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from hrx.adapters import ModelError, load
from hrx.adapters.checkpoint import Checkpoint, Stored, read_state
from hrx.adapters.formats.backbones import CNN
from hrx.cli.main import main

FAMILIES = families()
STRICT = ("tirex-2", "toto-2", "timestral", "timesfm-2.5", "hrx-trained", "tslib", "neuralforecast", "visionts")
"""Models whose library itself refuses other names than its own, or whose adapter loads the weights strictly."""
UNNAMED = ("timesfm-2.5", "visionts")
"""Those of them whose sentence names no tensor, or the first of all."""
REFUSED_TYPES = ("int8", "bool", "float8_e4m3fn", "complex64")
REAL = Path(__file__).parents[2] / "adapters" / "bolt_mini"
CO2 = Path(__file__).parents[2] / "gift_eval" / "sample" / "co2.csv"
Weights = dict[str, Tensor]


def trained(path: Path) -> Path:
    path.mkdir()
    settings = {"hrx_trained": 1, "backbone": "CNN", "lookback": 32, "horizon": 8, "depth": 2}
    (path / "config.json").write_text(json.dumps(settings))
    save_file(CNN(32, 8, 2).state_dict(), path / "model.safetensors", metadata={"format": "pt"})
    return path


def trained_by_neuralforecast(path: Path) -> Path:
    return tiny_neuralforecast.save(path, [tiny_neuralforecast.build("DLinear")])


def trained_by_tslib(path: Path) -> Path:
    tiny_tslib.train(tiny_tslib.checkout(path), "Marked")
    return path


FORMATS: dict[str, Callable[[Path], Path]] = {"hrx-trained": trained}
if not {"visionts", "timer"} >= set(FAMILIES):  # the main environment
    FORMATS |= {"neuralforecast": trained_by_neuralforecast, "tslib": trained_by_tslib}


@pytest.fixture(scope="module", params=[*FAMILIES, *FORMATS])
def family(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param in FORMATS:
        yield request.param
        return
    with FAMILIES[request.param].context():
        yield request.param


@pytest.fixture(scope="module")
def original(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = FORMATS[family] if family in FORMATS else FAMILIES[family].build
    return build(tmp_path_factory.mktemp("original") / family)


def weight_file(path: Path) -> Path:
    found = [file for pattern in ("*.safetensors", "*.pth", "checkpoints/*/*.pth") for file in path.glob(pattern)]
    (file,) = (file for file in found if not file.name.startswith(("configuration", "dataset")))
    return file


def opened(path: Path) -> Any:
    file = weight_file(path)
    return load(f"tslib:{path}:{file.parent.name}" if file.name == "checkpoint.pth" else str(path))


def with_weights(original: Path, copy: Path, change: Callable[[Weights], None]) -> Path:
    """A copy of a checkpoint with other weights, in the format of its file."""
    file = weight_file(Path(shutil.copytree(original, copy)))
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as tensors:
            metadata = tensors.metadata()
            weights = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
        change(weights)
        save_file(weights, file, metadata=metadata)
        return copy
    weights = read_state(file)
    change(weights)
    torch.save({"model": weights} if file.name.startswith("mae") else weights, file)
    return copy


def floating(weights: Weights) -> list[str]:
    return [name for name, tensor in weights.items() if tensor.is_floating_point()]


def test_the_original_is_loaded_and_its_header_has_the_types_and_shapes_of_its_tensors(original: Path) -> None:
    model = opened(original)
    assert model.unloaded() == ()
    held = {
        name: Stored(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in model.checkpoint.tensors()
    }
    assert model.checkpoint.stored == held


@pytest.mark.parametrize("kind", REFUSED_TYPES)
@pytest.mark.parametrize("every", [True, False], ids=["every tensor", "one tensor"])
def test_a_type_that_is_not_floating_point_is_refused_by_name(
    original: Path, tmp_path: Path, kind: str, every: bool
) -> None:
    def cast(weights: Weights) -> None:
        names = floating(weights)
        for name in names if every else names[len(names) // 2 :][:1]:
            weights[name] = weights[name].to(getattr(torch, kind))

    copy = with_weights(original, tmp_path / "cast", cast)
    with pytest.raises(ModelError, match=rf"stores \S+ as {kind}, not as floating-point numbers\. Give"):
        opened(copy)


def test_a_layer_of_the_file_that_the_model_does_not_have_is_refused(
    family: str, original: Path, tmp_path: Path
) -> None:
    def plant(weights: Weights) -> None:
        like = next((name for name in floating(weights) if re.search(r"\d", name)), floating(weights)[0])
        more = re.sub(r"\d+", "99", like, count=1)
        weights[more if more != like else f"{like}.99"] = weights[like].clone()

    copy = with_weights(original, tmp_path / "more layers", plant)
    sentence = "99" if family in STRICT else r"holds tensors that the model does not use \(1, first \S*99"
    with pytest.raises(ModelError, match="does not hold the weights" if family in UNNAMED else sentence):
        opened(copy)


def test_a_tensor_of_the_model_that_the_file_lacks_is_refused_by_its_name(
    family: str, original: Path, tmp_path: Path
) -> None:
    removed: list[str] = []

    def remove(weights: Weights) -> None:
        names = floating(weights)
        removed.append(names[len(names) // 2])
        del weights[removed[0]]

    copy = with_weights(original, tmp_path / "fewer tensors", remove)
    with pytest.raises(ModelError) as raised:
        opened(copy)
    if family not in STRICT:
        assert f"lacks tensors of the model (1, first {removed[0]}), which would keep random values" in str(
            raised.value
        )
    elif family not in UNNAMED:
        assert removed[0] in str(raised.value)


def test_half_precision_is_loaded(original: Path, tmp_path: Path) -> None:
    def halve(weights: Weights) -> None:
        weights |= {name: weights[name].to(torch.bfloat16) for name in floating(weights)}

    assert opened(with_weights(original, tmp_path / "half", halve)).unloaded() == ()


def edited(path: Path, **changes: Any) -> Path:
    copy = Path(shutil.copytree(REAL, path))
    config = json.loads((copy / "config.json").read_text()) | changes
    (copy / "config.json").write_text(json.dumps(config))
    return copy


@pytest.mark.parametrize("verb", ["verify", "audit", "explain"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda path: edited(path, num_layers=0), "holds tensors that the model does not use ("),
        (lambda path: edited(path, num_layers=5), "lacks tensors of the model ("),
        (lambda path: with_weights(REAL, path, as_int8), "as int8, not as floating-point numbers. Give weights"),
    ],
    ids=["no layers", "more layers", "int8"],
)
def test_every_command_ends_with_the_sentence_and_writes_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    change: Callable[[Path], Path],
    sentence: str,
) -> None:
    path, out = change(tmp_path / "bolt"), tmp_path / "out"
    more = {"audit": ["--workers", "0", "--out", str(out)]}
    more["explain"] = ["--series", str(CO2), "--lookback", "96", "--horizon", "24", "--out", str(out)]
    assert main([verb, str(path), *more.get(verb, [])]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not out.exists() or not list(out.rglob("*"))


def as_int8(weights: Weights) -> None:
    weights |= {name: weights[name].to(torch.int8) for name in floating(weights)}


def test_pickled_weights_are_read_for_their_types_only(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(REAL, tmp_path / "pickled"))
    with safe_open(copy / "model.safetensors", framework="pt") as tensors:
        weights = {name: tensors.get_tensor(name).to(torch.int8) for name in tensors.keys()}  # noqa: SIM118
    (copy / "model.safetensors").unlink()
    torch.save({"state_dict": weights}, copy / "pytorch_model.bin")
    assert {one.kind for one in Checkpoint(copy, "n", "s").stored.values()} == {"int8"}


def test_tables_that_older_transformers_stored_are_ignored(tmp_path: Path) -> None:
    def add(weights: Weights) -> None:
        weights["encoder.block.0.layer.0.SelfAttention.rotary_emb.inv_freq"] = torch.ones(4)

    assert load(str(with_weights(REAL, tmp_path / "tables", add))).unloaded() == ()
