"""Sanity checks of explanations: randomised parameters and small noise."""

import math
from pathlib import Path

import pytest
import torch
from helpers.tiny import series
from scipy.stats import spearmanr

from hrx.adapters import from_module, load
from hrx.audit.admission import parameters, rank_correlation, sanity


def by_name(model, x: torch.Tensor, horizon: int) -> dict:
    return {check.check: check for check in sanity(model, x, horizon)}


def test_rank_correlation_is_spearmans_mean_over_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(2, 3, 20, generator=generator), torch.rand(2, 3, 20, generator=generator)
    expected = [spearmanr(a[w, r], b[w, r]).statistic for w in range(2) for r in range(3)]
    assert rank_correlation(a, b) == pytest.approx(sum(expected) / 6)
    assert rank_correlation(a, a) == 1
    assert rank_correlation(a, -a) == -1
    assert math.isnan(rank_correlation(a, b * torch.nan))


@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm", "moirai-2"])
def test_the_parameters_of_a_family_are_found_randomised_and_restored(
    checkpoints: dict[str, Path], family: str
) -> None:
    model, x = load(str(checkpoints[family])), series(2, 96)
    before = [parameter.clone() for parameter in parameters(model)]
    forecast = model.forward(x, 24)
    result = by_name(model, x, 24)
    assert list(result) == ["randomised parameters", "stable size", "stable order"]
    assert result["randomised parameters"].figure < 0.5
    assert all(check.passed and check.setting == "96x24" for check in result.values())
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(model), strict=True))
    assert torch.equal(model.forward(x, 24), forecast)


def test_parameters_are_restored_when_the_randomised_model_raises() -> None:
    module = torch.nn.Linear(40, 12)

    def fragile(x: torch.Tensor) -> torch.Tensor:
        if not torch.equal(module.weight, kept):
            raise RuntimeError("these are not my weights")
        return module(x)

    class Fragile(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return fragile(x)

    kept = module.weight.detach().clone()
    with pytest.raises(RuntimeError, match="not my weights"):
        sanity(from_module(Fragile(), copy=False), series(2, 40), 12)
    assert torch.equal(module.weight, kept)


class LastValues(torch.nn.Module):
    """Forecasts from the last values whatever its parameters are, which only move the level."""

    def __init__(self) -> None:
        super().__init__()
        self.level = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -12:].cumsum(dim=1) + self.level


def test_an_explanation_that_ignores_the_parameters_fails() -> None:
    check = by_name(from_module(LastValues()), series(2, 40), 12)["randomised parameters"]
    assert not check.passed
    assert check.figure == 1
    assert "hardly depends on the learned parameters" in check.note


def test_a_model_without_parameters_fails_with_the_reason() -> None:
    weight = torch.rand(40, 12)
    check = by_name(from_module(lambda x: x @ weight), series(2, 40), 12)["randomised parameters"]
    assert not check.passed
    assert math.isnan(check.figure)
    assert "no parameters were found" in check.note


def test_a_gradient_that_jumps_under_noise_fails_and_a_linear_one_is_exactly_stable() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(40, 12)
    calm = by_name(from_module(linear), series(2, 40), 12)
    assert calm["stable size"].figure == 0
    assert calm["stable order"].figure == 1

    class Rippled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(torch.sin(1e5 * x))

    wild = by_name(from_module(Rippled()), series(2, 40), 12)
    assert not wild["stable size"].passed
    assert not wild["stable order"].passed
