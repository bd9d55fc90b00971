"""VisionTS against the steps of its library's README, in an environment of its own: torchvision breaks other families.

What it shares with other families is in test_families.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_visionts
from helpers.tiny import HARD, forecast_and_gradient, hard_windows, series
from torch import Tensor

from hrx.adapters import ModelError, gradients, load
from hrx.adapters.gradients import relative_difference
from hrx.audit.admission import admit
from hrx.audit.attribution.gradients import jacobian
from hrx.audit.runner.plan import STAR, Setting

if not tiny_visionts.importable():
    pytest.skip("visionts is not installed in this environment; it is tested in its own", allow_module_level=True)

from visionts import VisionTS
from visionts.model import MAE_ARCH

ODD = (Setting(100, 30), Setting(17, 5), Setting(333, 100), Setting(512, 250))


@pytest.fixture(scope="module", autouse=True)
def known_architecture() -> Iterator[None]:
    with tiny_visionts.tiny_architecture():
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_visionts.visionts(tmp_path_factory.mktemp("visionts"))


@pytest.fixture(scope="module", params=[1, 24], ids=["no period", "period 24"])
def model(request: pytest.FixtureRequest, directory: Path) -> Any:
    return opened(directory, request.param)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the library tried to download a checkpoint")

    monkeypatch.setattr("visionts.util.download_file", refuse)


def opened(directory: Path, periodicity: int = 1) -> Any:
    return load(f"visionts:{directory}").for_season(periodicity)


def by_the_library(directory: Path, x: Tensor, horizon: int, periodicity: int) -> Tensor:
    """Steps of the library's README, weights included."""
    model = VisionTS(tiny_visionts.ARCHITECTURE, ckpt_dir=str(directory)).eval().requires_grad_(False)
    model.update_config(context_len=x.shape[1], pred_len=horizon, periodicity=periodicity)
    return model(x[..., None])[..., 0]


@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize("setting", [*STAR, *ODD], ids=str)
def test_forward_and_the_official_call_equal_the_steps_of_the_readme(
    model: Any, directory: Path, setting: Setting, windows: int
) -> None:
    x = series(windows, setting.lookback)
    reference = by_the_library(directory, x, setting.horizon, model.limits.periodicity)
    assert relative_difference(model.official(x, setting.horizon), reference) <= 1e-6
    assert relative_difference(forecast_and_gradient(model, x, setting.horizon)[0], reference) <= 1e-6


@pytest.mark.parametrize("name", HARD)
def test_hard_windows_keep_parity_and_finite_gradients(model: Any, directory: Path, name: str) -> None:
    x = hard_windows()[name]
    y, gradient = forecast_and_gradient(model, x, 24)
    assert relative_difference(y, by_the_library(directory, x, 24, model.limits.periodicity)) <= 1e-6
    assert torch.isfinite(gradient).all()
    assert gradient.any()


def test_with_the_mean_detached_only_the_derivative_check_fails(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = series(2, 96)
    right = jacobian(model, x, 24)
    assert any(r.operation == "detach" and r.place.startswith("visionts/model.py:") for r in right.rewrites)
    monkeypatch.delitem(gradients._HANDLERS, "detach")
    wrong = jacobian(model, x, 24).jacobian
    assert torch.isfinite(wrong).all()
    assert relative_difference(wrong, right.jacobian) > 0.01
    # A shift of the window shifts the forecast as much, so every row of the true Jacobian sums to one.
    assert torch.allclose(right.jacobian.sum(dim=-1), torch.ones(2, 24), atol=1e-4)
    assert ((wrong.sum(dim=-1) - 1).abs() > 0.5).all()
    assert [check.check for check in admit(model, x, 24) if not check.passed] == ["derivative"]


def test_without_a_period_most_positions_count_through_mean_and_deviation_only(directory: Path) -> None:
    x = series(1, 512)
    swapped = x.clone()
    swapped[:, [0, 1]] = x[:, [1, 0]]  # neither lies beside the middle of one of the 32 columns of 16 steps
    plain, seasonal = opened(directory), opened(directory, 24)
    assert relative_difference(plain.official(swapped, 96), plain.official(x, 96)) <= 1e-6
    assert relative_difference(seasonal.official(swapped, 96), seasonal.official(x, 96)) > 1e-5


def test_without_a_season_the_library_uses_its_own_default(directory: Path) -> None:
    x = series(2, 96)
    library = VisionTS(tiny_visionts.ARCHITECTURE, ckpt_dir=str(directory))
    library.update_config(context_len=96, pred_len=24)
    expected = library(x[..., None])[..., 0].detach()
    assert relative_difference(load(str(directory)).official(x, 24), expected) <= 1e-6


def test_a_period_below_one_is_refused_in_a_sentence(directory: Path) -> None:
    with pytest.raises(ModelError, match="periodicity of 0"):
        opened(directory, 0)


@pytest.mark.parametrize("periodicity", [1, 7])
@pytest.mark.parametrize("lookback", [1, 2, 9])
def test_exactly_what_the_library_cannot_forecast_is_refused(directory: Path, periodicity: int, lookback: int) -> None:
    model, x = opened(directory, periodicity), series(1, lookback)
    room = 13 * (-(-lookback // periodicity) * periodicity)
    assert model.official(x, room).shape == (1, room)
    with pytest.raises(RuntimeError, match="size of tensor"):
        by_the_library(directory, x, room + 1, periodicity)
    with pytest.raises(ModelError, match=f"room for at most {room} steps after a lookback of {lookback}, not"):
        model.forward(x, room + 1)


def damage(file: Path, kind: str) -> None:
    content = file.read_bytes()
    state = torch.load(file)["model"]
    without_bias = {name: value for name, value in state.items() if name != "decoder_pred.bias"}
    match kind:
        case "empty" | "text" | "cut off":
            file.write_bytes({"empty": b"", "text": b"not a checkpoint", "cut off": content[: len(content) // 2]}[kind])
        case "no key" | "no tensors" | "list":
            torch.save({"no key": state, "no tensors": {"model": [1, 2]}, "list": [state]}[kind], file)
        case _:
            torch.save({"model": without_bias if kind == "missing" else state | {"head.bias": torch.zeros(2)}}, file)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        *(
            (kind, f"{tiny_visionts.FILE} cannot be read as weights: .*Restore it")
            for kind in ("empty", "text", "cut off")
        ),
        *((kind, "holds a (dict|list), not a state dict") for kind in ("no tensors", "list")),
        ("no key", "does not hold the weights of mae_tiny: .*could not be loaded"),
        ("missing", "does not hold the weights of mae_tiny: .*decoder_pred.bias"),
        ("additional", "tensors that the model does not use .*head.bias"),
    ],
)
def test_a_file_that_is_not_the_release_is_an_error_and_never_random_weights(
    directory: Path, tmp_path: Path, kind: str, sentence: str
) -> None:
    copy = tmp_path / tiny_visionts.FILE
    copy.write_bytes((directory / tiny_visionts.FILE).read_bytes())
    damage(copy, kind)
    with pytest.raises(ModelError, match=sentence):
        opened(tmp_path)


@pytest.mark.usefixtures("offline")
def test_weights_under_another_architectures_name_are_refused(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = MAE_ARCH[tiny_visionts.ARCHITECTURE][0]
    monkeypatch.setitem(MAE_ARCH, "mae_other", [lambda: tiny(embed_dim=16), "mae_visualize_vit_other.pth"])
    (tmp_path / "mae_visualize_vit_other.pth").symlink_to(directory / tiny_visionts.FILE)
    with pytest.raises(ModelError, match=r"does not hold the weights of mae_other: .*could not be loaded"):
        opened(tmp_path)


@pytest.mark.usefixtures("offline")
def test_a_missing_file_is_an_error_and_never_a_download(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no weights"):
        opened(tmp_path)
    torch.save({}, tmp_path / "visiontspp_model.ckpt")
    with pytest.raises(ModelError, match=r"none of the files that VisionTS reads \(mae_visualize_vit_base.pth, "):
        opened(tmp_path)


def test_two_weight_files_in_one_directory_are_refused(directory: Path, tmp_path: Path) -> None:
    for name in (tiny_visionts.FILE, "mae_visualize_vit_base.pth"):
        (tmp_path / name).symlink_to(directory / tiny_visionts.FILE)
    with pytest.raises(ModelError, match="several weight files"):
        opened(tmp_path)


def test_the_season_is_the_librarys_periodicity(directory: Path) -> None:
    model, x = opened(directory), series(2, 96)
    seasonal = model.for_season(24)
    assert torch.equal(seasonal.official(x, 24), by_the_library(directory, x, 24, 24))
    assert torch.equal(seasonal.forward(x, 24), by_the_library(directory, x, 24, 24))
    assert torch.equal(model.official(x, 24), by_the_library(directory, x, 24, 1))
    assert model.for_season(1) is model
    again = seasonal.reload()
    assert torch.equal(again.official(x, 24), seasonal.official(x, 24))
    assert seasonal.limits.refusal(17, 13 * 24) is None
    assert model.limits.refusal(17, 13 * 24) is not None


@pytest.mark.slow
@pytest.mark.parametrize("season", [7, 24])
def test_with_a_season_the_checks_admit_the_model(directory: Path, season: int) -> None:
    checks = admit(opened(directory, season), series(3, 96), 24)
    assert [check for check in checks if not check.passed] == []
    assert "float64" in checks[-1].note
