import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.tiny import series

import hrx
from hrx.adapters import Limits, ModelError, from_module
from hrx.adapters.formats.module import fingerprint


def test_a_copy_of_a_module_is_frozen_and_only_the_first_steps_are_read() -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(20, 10))
    model = from_module(module, name="mine")
    x = series(3, 20)
    assert model.identity.model == "mine"
    assert not model.forward(x, 4).requires_grad
    expected = module[1](x)[:, :4].detach()
    assert torch.equal(model.forward(x, 4), expected)
    with torch.no_grad():
        module[1].weight += 1  # as training goes on
    assert torch.equal(model.forward(x, 4), expected)
    from_module(module, copy=False)
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


class Uncopied(torch.nn.Module):
    """Refuses to be copied, as one that holds a result of its last batch, or a lock, does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 10))

    def __deepcopy__(self, memo: object) -> None:
        raise RuntimeError("cannot be copied")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_module_that_cannot_be_copied_is_left_as_it_was_after_each_call(dtype: torch.dtype) -> None:
    module = Uncopied().to(dtype).train()
    module.layers[0].eval()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    model, x = from_module(module), series(3, 20).requires_grad_()
    y = model.forward(x, 4)
    assert not torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.zeros(3, 20))
    assert [part.training for part in module.modules()] == [True, True, False, True, True]
    assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    torch.testing.assert_close(y, module.eval()(x.to(dtype))[:, :4].float())


def test_a_module_is_fingerprinted_once_and_not_before_something_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []

    def counted(module: object) -> str:
        computed.append(module)
        return fingerprint(module)

    monkeypatch.setattr("hrx.adapters.formats.module.fingerprint", counted)
    module = torch.nn.Linear(20, 10)
    model = from_module(module)
    explained = hrx.explain(model, series(1, 60), horizon=5, lookback=20)
    assert computed == []
    explained.save(tmp_path / "explained.npz")
    assert model.identity.fingerprint == hrx.Explanation.load(tmp_path / "explained.npz").model.fingerprint
    assert len(computed) == 1
    assert model.identity.fingerprint == from_module(module).identity.fingerprint


@pytest.mark.parametrize("scale", ["own", (1.0, 0.0), (1.0, float("inf")), (1.0,), None])
def test_a_scale_that_is_none_is_named(scale: object) -> None:
    with pytest.raises(ModelError, match=r"is not a scale\. Give 'raw', 'standardised', or \(mean, std\)"):
        from_module(torch.nn.Linear(20, 5), scale=scale)


def test_a_module_with_a_counter_among_its_buffers_has_a_fingerprint() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(20, 10), torch.nn.BatchNorm1d(10))
    assert len(from_module(module).identity.fingerprint) == 64


def test_a_callable_that_takes_a_horizon_is_given_it() -> None:
    model = from_module(lambda x, horizon: x.mean(dim=1, keepdim=True).expand(-1, horizon))
    assert model.official(series(2, 20), 7).shape == (2, 7)


def test_the_fingerprint_follows_the_weights_and_the_code() -> None:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    assert from_module(first).identity.fingerprint == from_module(first).identity.fingerprint
    assert from_module(first).identity.fingerprint != from_module(second).identity.fingerprint
    prints = {from_module(first, scale=scale).identity.fingerprint for scale in ("raw", "standardised", (0, 1), (0, 2))}
    assert len(prints) == 4


def scaled_by(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: factor * x


class Scaled(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


def through(module: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: module(x)


def seeded(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Linear(4, 2)


def activated(activation: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(seeded(0), activation)


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (scaled_by, 1.0, 2.0),
        (Scaled, 1.0, 2.0),
        (lambda seed: through(seeded(seed)), 0, 1),
        (lambda seed: functools.partial(lambda module, x: module(x), seeded(seed)), 0, 1),
        (lambda activate: activated(activate()), torch.nn.ReLU, torch.nn.Tanh),
        (lambda chosen: (lambda x: 2 * x, lambda x: 3 * x)[chosen], 0, 1),
    ],
    ids=["closure", "attribute", "module in a closure", "partial", "activation", "one line"],
)
def test_models_that_differ_in_anything_they_hold_have_different_fingerprints(make, one, other) -> None:
    first, again, second = (from_module(make(value)).identity.fingerprint for value in (one, one, other))
    assert first == again != second


@pytest.mark.parametrize("shape", [(2, 3), (1, 10), (2, 10, 1)])
def test_a_wrong_output_shape_is_named(shape: tuple[int, ...]) -> None:
    model = from_module(lambda x: torch.zeros(shape), name="mine")
    with pytest.raises(ModelError, match=r"mine returned shape .* Return \(batch, steps\)"):
        model.forward(series(2, 20), 5)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (Limits(shortest_lookback=32), "at least 32, not 20"),
        (Limits(lookback_multiple=16), "a multiple of 16, not 20"),
        (Limits(lookbacks=(96, 512)), "96 or 512 only, not 20"),
        (Limits(longest_horizon=4), "at most 4 steps, not 5"),
    ],
)
def test_limits_are_kept(limits: Limits, sentence: str) -> None:
    model = from_module(torch.nn.Linear(20, 5), limits=limits)
    with pytest.raises(ModelError, match=sentence):
        model.forward(series(1, 20), 5)


def test_in_place_writes_of_a_module_are_undone_and_its_official_call_is_untouched() -> None:
    def normalising(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().mean(dim=1, keepdim=True)
        x /= scale
        return x[:, :5] * scale**2

    model, x = from_module(normalising), series(2, 20)
    expected = (x / x.abs().mean(1, keepdim=True))[:, :5] * x.abs().mean(1, keepdim=True) ** 2
    torch.testing.assert_close(model.official(x, 5), expected)
    torch.testing.assert_close(model.forward(x, 5), expected)
