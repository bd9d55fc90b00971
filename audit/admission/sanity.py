"""Sanity checks of an explanation: it depends on the learned parameters, and hardly on small noise.

Parameter randomisation is that of Adebayo et al. (2018), all parameters at once. Neither check is part of admission: a
model that fails one may be audited, but its matrix is weaker evidence.
"""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite, nan

import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster
from hrx.audit.admission.checks import Check, at_most
from hrx.audit.attribution.explanation import explain
from hrx.audit.scoring.deletion import ranks

RANDOMISED_LIMIT = 0.5
"""Upper bound on the rank correlation of the order of positions with that of a randomised model."""
NOISE = 1e-3
"""Standard deviation of the noise, relative to that of the window."""
CHANGE_LIMIT = 0.1
"""Upper bound on the relative change of the matrix under the noise: a hundred times the noise."""
ORDER_LIMIT = 0.95
"""Lower bound on the rank correlation of the order of positions with that of the undisturbed window."""
SEEDS = 3
SEARCH_DEPTH = 6


def sanity(model: Forecaster, x: Tensor, horizon: int) -> tuple[Check, ...]:
    """Return the checks on real windows `x` `(W, L)` of one setting, on the input gradient of the scored steps."""
    matrix, setting = _matrix(model, x, horizon), f"{x.shape[1]}x{horizon}"
    return (_randomisation(model, x, horizon, matrix, setting), *_stable(model, x, horizon, matrix, setting))


def _matrix(model: Forecaster, x: Tensor, horizon: int) -> Tensor:
    # The input gradient of the scored steps.
    return explain(model, x, horizon, estimator="saliency").double()


def _randomisation(model: Forecaster, x: Tensor, horizon: int, matrix: Tensor, setting: str) -> Check:
    name, randomised = "randomised parameters", parameters(model)
    if not randomised:
        note = "no parameters were found in this model, so they cannot be randomised"
        return Check(name, setting, False, nan, RANDOMISED_LIMIT, note)
    figures = []
    for seed in range(SEEDS):
        with _randomised_parameters(randomised, seed):
            figures.append(rank_correlation(matrix, _matrix(model, x, horizon)))
    # A randomised model may overflow: that seed is then left out.
    figure = max((value for value in figures if isfinite(value)), default=nan)
    note = f"rank correlation of the matrix with that of randomised parameters, largest of {SEEDS} seeds, at most"
    failure = "the explanation hardly depends on the learned parameters"
    if not isfinite(figure):
        failure = "the randomised model has no finite gradient"
    return at_most(name, setting, figure, RANDOMISED_LIMIT, note, failure)


def _stable(model: Forecaster, x: Tensor, horizon: int, matrix: Tensor, setting: str) -> tuple[Check, Check]:
    generator = torch.Generator().manual_seed(0)
    noise = NOISE * x.std(dim=1, keepdim=True) * torch.randn(x.shape, generator=generator).to(x)
    moved = _matrix(model, x + noise, horizon)
    change = float(torch.linalg.vector_norm(moved - matrix) / torch.linalg.vector_norm(matrix))
    order = rank_correlation(matrix, moved)
    under = f"under noise of {NOISE:g} of the window's standard deviation"
    size_note = f"relative change of the matrix {under}"
    order_note = f"rank correlation of the matrix with itself {under}, at least"
    return (
        Check("stable size", setting, change <= CHANGE_LIMIT, change, CHANGE_LIMIT, size_note),
        Check("stable order", setting, order >= ORDER_LIMIT, order, ORDER_LIMIT, order_note),
    )


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's, mean over the rows of two matrices `(W, R, L)`; NaN where a matrix is not finite.

    Ties are broken by position, as in every ordering of the protocol.
    """
    if not (torch.isfinite(first).all() and torch.isfinite(second).all()):
        return float("nan")
    a, b = ranks(first).double(), ranks(second).double()
    length = a.shape[-1]
    # The variance of the ranks 0 … L − 1 is (L² − 1) / 12.
    return float(1 - 6 * (a - b).square().sum(dim=-1).mean() / (length * (length**2 - 1)))


@contextmanager
def _randomised_parameters(parameters: list[torch.nn.Parameter], seed: int) -> Iterator[None]:
    """Draws every parameter from a normal distribution of its own mean square, and restores it afterwards."""
    generator = torch.Generator().manual_seed(seed)
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn * value.double().square().mean().sqrt())
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)


def parameters(model: Forecaster) -> list[torch.nn.Parameter]:
    """Every floating-point parameter of the modules that a forecaster holds in any attribute."""
    every = (parameter for module in _modules(model, set(), SEARCH_DEPTH) for parameter in module.parameters())
    return list({id(parameter): parameter for parameter in every if parameter.is_floating_point()}.values())


def _modules(holder: object, seen: set[int], depth: int) -> Iterator[torch.nn.Module]:
    """Return the modules that are reached from an object through attributes and containers."""
    if id(holder) in seen or depth < 0 or isinstance(holder, str | bytes | type | types.ModuleType | Tensor):
        return
    seen.add(id(holder))
    if isinstance(holder, torch.nn.Module):
        yield holder
        return
    attributes = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
    for value in holder if isinstance(holder, list | tuple) else list(attributes.values()):
        yield from _modules(value, seen, depth - 1)
