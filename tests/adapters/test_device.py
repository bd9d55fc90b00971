"""Devices: their names, what a moved model computes where, and what a machine without one answers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import forecast_and_gradient, series
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hrx.adapters import Forecaster, Identity, Limits, ModelError, from_module, load, on_device, resolve_device
from hrx.adapters.formats.module import ModuleForecaster
from hrx.adapters.wrapped import OnDevice
from hrx.errors import HrxError

CPU, META = torch.device("cpu"), torch.device("meta")
IDENTITY = Identity("last season", "test", "in memory", "0", "torch")


class Recorder(torch.nn.Module):
    """A linear model that records the device and the default device of every call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(32, 8)
        self.calls: list[tuple[torch.device, torch.device]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((x.device, torch.empty(0).device))
        return self.layer(x)


@pytest.fixture
def model() -> Any:
    return from_module(Recorder())


def as_second_device(model: Any) -> Any:
    """Model on the CPU as if it were another device."""
    return OnDevice(model, model.converted(lambda module: module.to(CPU)), CPU)


@pytest.fixture
def availability(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two CUDA GPUs, an Apple GPU, or neither."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in request.param)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in request.param)


@pytest.mark.parametrize(
    ("availability", "name", "expected"),
    [
        ("", "cpu", "cpu"),
        ("", "auto", "cpu"),
        ("mps", "auto", "mps"),
        ("cuda mps", "auto", "cuda"),
        ("mps", "mps", "mps"),
        ("cuda", "cuda", "cuda"),
        ("cuda", "cuda:1", "cuda:1"),
    ],
    indirect=["availability"],
)
@pytest.mark.usefixtures("availability")
def test_a_name_is_resolved_to_a_device_of_the_machine(name: str, expected: str) -> None:
    assert resolve_device(name) == torch.device(expected)


@pytest.mark.parametrize(
    ("availability", "name", "sentence"),
    [
        ("", "cuda", "The device cuda is not available: torch .* finds no CUDA GPU. Use cpu."),
        ("", "cuda:0", "The device cuda:0 is not available"),
        ("cuda", "cuda:2", "The device cuda:2 is not available: torch finds 2 CUDA GPUs, numbered from 0."),
        ("cuda", "mps", "The device mps is not available: torch .* finds no Apple GPU. Use cpu."),
        ("cuda", "cuda:first", "Unknown device 'cuda:first'"),
        ("cuda", "cpu:0", "Unknown device 'cpu:0'"),
        ("cuda", "gpu", r"Unknown device 'gpu'.* Known: auto, cpu, cuda, mps. A GPU by number is cuda:N."),
    ],
    indirect=["availability"],
)
@pytest.mark.usefixtures("availability")
def test_a_device_that_is_not_available_is_refused_in_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(HrxError, match=sentence):
        resolve_device(name)


def test_on_the_cpu_a_model_is_itself(model: Any) -> None:
    assert on_device(model, CPU) is model


def test_a_copy_computes_on_the_device_and_the_original_stays_on_the_cpu(model: Any) -> None:
    moved: Any = on_device(model, META)
    with torch.no_grad():
        assert moved.predict(torch.ones(2, 32, device=META), 8).device == META
    assert moved._moved.predictor.calls == [(META, META)]
    assert model.predictor.calls == []
    assert {p.device for p in model.predictor.parameters()} == {torch.empty(0).device} == {CPU}


def test_forecasts_gradients_and_the_official_call_equal_those_of_the_model(model: Any) -> None:
    moved, x = as_second_device(model), series(3, 32)
    y, slope = forecast_and_gradient(model, x, 8)
    assert torch.equal(forecast_and_gradient(moved, x, 8)[0], y)
    assert torch.equal(forecast_and_gradient(moved, x, 8)[1], slope)
    model.predictor.calls.clear()
    official = moved.official(x, 8)
    assert len(model.predictor.calls) == 1  # the original on the CPU, not the copy
    assert torch.equal(official, model.official(x, 8))
    assert torch.equal(moved.double().official(x.double(), 8), model.double().official(x.double(), 8))
    assert (moved.identity, moved.limits, moved.unloaded()) == (model.identity, model.limits, ())
    assert moved.reload() is moved.multivariate() is None


def test_a_callable_without_a_module_cannot_be_moved_and_the_error_says_so() -> None:
    with pytest.raises(ModelError, match="a function has no torch module that can be moved to meta"):
        on_device(from_module(lambda x: x[:, :8], name="a function"), META)


def test_the_multivariate_and_the_reloaded_model_stay_on_the_device(checkpoints: dict[str, Path]) -> None:
    base: Any = load(str(checkpoints["chronos-2"]))
    moved = as_second_device(base)
    together, expected = moved.multivariate(), base.multivariate()
    assert (type(together), together.device, together.limits) == (OnDevice, CPU, expected.limits)
    x = series(6, 96).reshape(2, 3, 96).transpose(1, 2)
    assert torch.equal(together.forward(x, 24), expected.forward(x, 24))
    assert torch.equal(together.official(x, 24), expected.official(x, 24))
    again: Any = on_device(base, META).reload()
    assert again.device == META
    assert torch.equal(again.official(series(2, 96), 24), base.official(series(2, 96), 24))


class LastSeason(ModuleForecaster):
    """Repeats the mean of the last season; a library that takes the period as an argument."""

    def __init__(self, season: int = 1) -> None:
        module = torch.nn.AvgPool1d(season)
        super().__init__(lambda x: module(x[:, None, -season:])[:, 0].expand(-1, 8), IDENTITY, Limits())
        self.season = season

    def converted(self, convert: Any) -> Forecaster:
        return LastSeason(self.season)

    def for_season(self, season: int) -> Forecaster:
        return self if season == self.season else LastSeason(season)


def test_the_model_of_a_season_stays_on_the_device() -> None:
    moved, x = as_second_device(LastSeason()), series(2, 32)
    weekly = moved.for_season(7)
    assert isinstance(weekly, OnDevice)
    assert moved.for_season(1) is moved
    for forecast in (weekly.forward(x, 8), weekly.official(x, 8)):
        torch.testing.assert_close(forecast, x[:, -7:].mean(dim=1, keepdim=True).expand(-1, 8))


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices, as a GPU does; a question about a value is answered by 1."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.ndim]
        if func is torch.ops.aten._local_scalar_dense.default:
            return True
        if len({t.device for t in tensors}) > 1 and not any(word in str(func) for word in ("copy", "to")):
            raise AssertionError(f"{func} on tensors of several devices")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm", "moirai-2"])
def test_all_tensors_of_a_family_are_on_the_device(checkpoints: dict[str, Path], family: str) -> None:
    # Tensors on `meta` have a device and no values, so placement is visible without a GPU.
    moved: Any = on_device(load(str(checkpoints[family])), META)
    devices: list[torch.device] = []
    predict = moved._moved.predict

    def recording(x: Tensor, horizon: int) -> Tensor:
        y = predict(x, horizon)
        devices.append(y.device)
        return y

    moved._moved.predict = recording
    # Values are requested at the very end only: by Chronos-Bolt's own library, or to bring the forecast back.
    with OneDevice(), torch.no_grad(), pytest.raises(NotImplementedError, match="no data"):
        moved.forward(torch.ones(3, 96), 24)
    assert [device.type for device in devices] == ([] if family == "chronos-bolt" else ["meta"])
