"""Devices: their names, what a moved model computes where, and what a machine without one answers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import series
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hrx.adapters import Forecaster, ModelError, from_module, load, on_device, resolve_device
from hrx.adapters.device import OnDevice
from hrx.errors import HrxError

CPU = torch.device("cpu")


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
def model() -> Forecaster:
    return from_module(Recorder())


def as_second_device(model: Forecaster, device: torch.device = CPU) -> OnDevice:
    """The model on a device; the CPU can stand in for a second one."""
    moved = model.converted(lambda module: module.to(device))
    assert moved is not None
    return OnDevice(model, moved, device)


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


def test_on_the_cpu_a_model_is_itself(model: Forecaster) -> None:
    assert on_device(model, CPU) is model


def test_a_model_is_copied_to_the_device_and_the_original_stays_on_the_cpu(model: Any) -> None:
    moved: Any = on_device(model, torch.device("meta"))
    assert {p.device.type for p in moved._moved.predictor.parameters()} == {"meta"}
    assert {p.device.type for p in model.predictor.parameters()} == {"cpu"}


def test_input_and_new_tensors_are_on_the_device_inside_and_the_forecast_is_on_that_of_the_windows(
    model: Any,
) -> None:
    meta = torch.device("meta")
    moved: Any = on_device(model, meta)
    moved._moved.predictor.calls.clear()
    with torch.no_grad():
        assert moved.predict(torch.ones(2, 32, device=meta), 8).device == meta
    assert moved._moved.predictor.calls == [(meta, meta)]
    assert torch.empty(0).device == CPU
    assert model.predictor.calls == []


def test_forecasts_gradients_and_the_official_call_are_those_of_the_model(model: Any) -> None:
    moved, x = as_second_device(model), series(3, 32)
    rows = []
    for forecaster in (model, moved):
        leaf = x.clone().requires_grad_()
        rows.append(torch.autograd.grad(forecaster.forward(leaf, 8).sum(), leaf)[0])
    assert torch.equal(*rows)
    model.predictor.calls.clear()
    official = moved.official(x, 8)
    assert len(model.predictor.calls) == 1  # the original on the CPU, not the copy
    assert torch.equal(official, model.official(x, 8))
    assert (moved.identity, moved.limits) == (model.identity, model.limits)
    assert moved.unloaded() == ()
    assert moved.reload() is None
    twin, expected = moved.double(), model.double()
    assert twin is not None
    assert expected is not None
    assert torch.equal(twin.official(x.double(), 8), expected.official(x.double(), 8))


def test_a_callable_without_a_module_cannot_be_moved_and_the_error_says_so() -> None:
    with pytest.raises(ModelError, match="a function has no torch module that can be moved to meta"):
        on_device(from_module(lambda x: x[:, :8], name="a function"), torch.device("meta"))


def test_the_multivariate_model_stays_on_the_device(checkpoints: dict[str, Path]) -> None:
    base = load(str(checkpoints["chronos-2"]))
    moved = as_second_device(base)
    together, expected = moved.multivariate(), base.multivariate()
    assert isinstance(together, OnDevice)
    assert expected is not None
    assert together.device == CPU
    assert together.limits.multivariate
    assert together.multivariate() is not None
    x = series(6, 96).reshape(2, 3, 96).transpose(1, 2)
    assert torch.equal(together.forward(x, 24), expected.forward(x, 24))
    assert torch.equal(together.official(x, 24), expected.official(x, 24))
    assert as_second_device(from_module(Recorder())).multivariate() is None
    again = moved.reload()
    assert again is not None
    assert torch.equal(again.official(series(2, 96), 24), base.official(series(2, 96), 24))


def test_the_model_of_a_season_stays_on_the_device() -> None:
    class Seasonal(torch.nn.Module):
        def __init__(self, season: int = 1) -> None:
            super().__init__()
            self.season = season

        def forward(self, x: Tensor) -> Tensor:
            return x[:, -self.season :].mean(dim=1, keepdim=True).expand(-1, 8)

    def for_season(self: Any, season: int) -> Forecaster:
        return self if season == self.predictor.season else type(self)(Seasonal(season), self.identity, self.limits)

    base = from_module(Seasonal())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(base), "for_season", for_season)
        moved, x = as_second_device(base), series(2, 32)
        weekly = moved.for_season(7)
        assert isinstance(weekly, OnDevice)
        assert moved.for_season(1) is moved
        assert torch.equal(weekly.forward(x, 8), base.for_season(7).forward(x, 8))
        assert torch.equal(weekly.official(x, 8), base.for_season(7).official(x, 8))


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
    moved: Any = on_device(load(str(checkpoints[family])), torch.device("meta"))
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
