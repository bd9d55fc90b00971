"""The three mask methods: recovery of planted positions, their budget, and solving together against alone."""

import json

import numpy as np
import pytest
import torch
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import Forecaster, from_module, load
from hrx.audit import Protocol, explain
from hrx.audit.attribution import AttributionTask
from hrx.audit.attribution.explanation import estimate
from hrx.audit.attribution.masks import PerturbationNetwork, excess, gru_states
from hrx.audit.attribution.perturbation import replacements_of
from hrx.audit.memory import MemoryBudget

METHODS = [pytest.param(name, marks=pytest.mark.slow) for name in ("dynamask", "extremalmask", "contralsp")]
LOOKBACK, HORIZON, BLOCKS, POSITIONS = 96, 24, 4, 4


def sparseband(seed: int = 0) -> Tensor:
    """`(H, L)`: `y_h = w(h) · x[S(h)]`, one set of positions per block of steps, the last one in all; unit norm."""
    rng = np.random.default_rng(seed)
    weight = np.zeros((HORIZON, LOOKBACK))
    sets = rng.permutation(LOOKBACK - 1)[: BLOCKS * (POSITIONS - 1)].reshape(BLOCKS, -1)
    for h in range(HORIZON):
        own = np.append(sets[h * BLOCKS // HORIZON], LOOKBACK - 1)
        values = rng.uniform(0.5, 1.5, POSITIONS) * rng.choice([-1, 1], POSITIONS)
        weight[h, own] = values / np.linalg.norm(values)
    return torch.as_tensor(weight, dtype=torch.float32)


def linear(weight: Tensor) -> torch.nn.Linear:
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        module.weight.copy_(weight)
    return module


def windows(count: int, lookback: int = LOOKBACK) -> Tensor:
    """Gaussian series whose neighbours correlate by a half."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((count, lookback))
    for t in range(1, lookback):
        x[:, t] = 0.5 * x[:, t - 1] + 0.75**0.5 * x[:, t]
    return torch.as_tensor(x, dtype=torch.float32)


def average_precision(scores: Tensor, truth: Tensor) -> float:
    """By definition: precision at every threshold that occurs, weighted by the recall it adds."""
    total, before = 0.0, 0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        chosen = scores >= threshold
        hits = int((chosen & truth).sum())
        total += (hits - before) * hits / int(chosen.sum())
        before = hits
    return total / int(truth.sum())


@pytest.mark.parametrize("name", METHODS)
def test_a_mask_method_finds_planted_positions_and_its_shared_vector_does_not(name: str) -> None:
    weight = sparseband()
    result = estimate(from_module(linear(weight)), windows(2), HORIZON, Protocol(estimator=name))
    matrix, vector = [], []
    for rows in result.matrix:
        for row, step in zip(rows, result.steps, strict=True):
            matrix.append(average_precision(row, weight[step - 1] != 0))
            vector.append(average_precision(rows.mean(dim=0), weight[step - 1] != 0))
    assert np.mean(matrix) >= 0.7
    assert np.mean(matrix) >= np.mean(vector) + 0.2


@pytest.mark.parametrize("name", METHODS)
def test_without_the_axis_one_mask_keeps_the_positions_of_all_steps(name: str) -> None:
    weight = sparseband()
    matrix = explain(
        from_module(linear(weight)), windows(2), HORIZON, estimator=name, axis="whole", settings='{"area": 0.14}'
    )
    assert matrix.shape == (2, 1, LOOKBACK)
    precision = [average_precision(row, (weight != 0).any(dim=0)) for row in matrix[:, 0]]
    assert np.mean(precision) >= 0.7


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("area", [0.05, 0.25])
def test_the_budget_holds_for_a_model_that_uses_every_position(name: str, area: float) -> None:
    torch.manual_seed(0)
    dense = from_module(torch.nn.Linear(60, 4))
    settings = f'{{"area": {area}}}'
    kept = explain(dense, windows(2, 60), 4, estimator=name, settings=settings).mean(dim=-1)
    assert (kept <= area + 1e-5).all()
    assert kept.mean() >= 0.6 * area


class OneAtATime(MemoryBudget):
    """Memory for a single problem."""

    def rows(self, model: Forecaster, window: Tensor, horizon: int, most: int) -> int:
        return 1


@pytest.mark.parametrize("name", METHODS)
def test_solving_problems_together_is_solving_each_alone(name: str) -> None:
    model, x = from_module(linear(sparseband())).double(), windows(2).double()
    assert model is not None
    settings, steps = '{"iterations": 30}', [1, 8, 24]
    together = explain(model, x, HORIZON, estimator=name, settings=settings, steps=steps)
    alone = explain(model, x, HORIZON, estimator=name, settings=settings, steps=steps, budget=OneAtATime())
    assert (together - alone).abs().max() <= 1e-6
    for row, step in enumerate(steps):
        only = explain(model, x, HORIZON, estimator=name, settings=settings, steps=[step])
        assert (only[:, 0] - together[:, row]).abs().max() <= 1e-6


@pytest.mark.parametrize("name", METHODS)
def test_masks_are_the_same_bits_on_repetition_and_depend_on_seed_and_stream(name: str) -> None:
    model, x = from_module(linear(sparseband())), windows(1)
    settings = '{"iterations": 20}'
    before = torch.get_rng_state()
    first = explain(model, x, HORIZON, estimator=name, settings=settings)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert torch.equal(explain(model, x, HORIZON, estimator=name, settings=settings), first)
    for other in ({"seed": 1}, {"stream": 1}):
        assert not torch.equal(explain(model, x, HORIZON, estimator=name, settings=settings, **other), first)


@pytest.mark.parametrize("name", METHODS)
def test_the_scale_of_the_forecast_does_not_matter(name: str) -> None:
    weight, x, settings = sparseband(), windows(1), '{"iterations": 20}'
    one, eight = (
        explain(from_module(linear(scale * weight)), x, HORIZON, estimator=name, settings=settings) for scale in (1, 8)
    )
    torch.testing.assert_close(one, eight, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_without_inputs_gets_finite_values_and_does_not_affect_the_others(name: str) -> None:
    weight, x, settings = sparseband(), windows(1), '{"iterations": 30}'
    silent = weight.clone()
    silent[0] = 0
    with_silent = explain(from_module(linear(silent)), x, HORIZON, estimator=name, settings=settings)
    without = explain(from_module(linear(weight)), x, HORIZON, estimator=name, settings=settings)
    assert torch.isfinite(with_silent).all()
    torch.testing.assert_close(with_silent[:, 1:], without[:, 1:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_a_window_without_a_finite_gradient_does_not_affect_the_others(name: str) -> None:
    weight, x, settings = sparseband(), windows(2), '{"iterations": 10}'
    far = torch.cat([x[:1], x[1:] + 100])

    def broken(window: Tensor) -> Tensor:
        return window @ weight.T * torch.where(window.mean(dim=1, keepdim=True) > 50, torch.nan, 1.0)

    steps = [1, 13, 24]
    result = explain(from_module(broken), far, HORIZON, estimator=name, settings=settings, steps=steps)
    sound = explain(from_module(linear(weight)), x, HORIZON, estimator=name, settings=settings, steps=steps)
    torch.testing.assert_close(result[0], sound[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_what_a_mask_keeps_of_a_trained_model_preserves_its_step_better_than_chance(name: str) -> None:
    model, x, steps = load("bolt-mini"), series(1, 96), [1, 24]
    settings = {"iterations": 40} | ({"halvings": 0} if name == "dynamask" else {})
    matrix = explain(model, x, 24, estimator=name, settings=json.dumps(settings), steps=steps)[0]
    draws = replacements_of(AttributionTask(model, x, 24, (), MemoryBudget(), seed=9), "rearranged", 0, 16)[0]
    generator = torch.Generator().manual_seed(0)

    def error(row: Tensor, step: int) -> float:
        kept = row >= row.sort(descending=True).values[18]
        with torch.no_grad():
            y = model.forward(torch.where(kept, x, draws), 24)[:, step - 1]
            return float(torch.square(y - model.forward(x, 24)[:, step - 1]).mean())

    own = np.mean([error(row, step) for row, step in zip(matrix, steps, strict=True)])
    chance = np.mean([error(torch.rand(96, generator=generator), step) for step in steps for _ in range(8)])
    assert own < 0.8 * chance


def test_each_problems_network_is_torchs_gru_with_a_linear_layer() -> None:
    z = torch.randn(3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    networks = PerturbationNetwork(z, [np.random.default_rng(i) for i in range(3)])
    recurrent, last = (parameter.detach() for parameter in networks.parameters)
    for p in range(3):
        gru, head = torch.nn.GRU(1, 1, bidirectional=True).double(), torch.nn.Linear(2, 1).double()
        with torch.no_grad():
            for direction, suffix in enumerate(("", "_reverse")):
                for i, name in enumerate(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")):
                    weight = getattr(gru, name + suffix)
                    weight.copy_(recurrent[i, :, direction, p].reshape(weight.shape))
            head.weight.copy_(last[None, :2, p])
            head.bias.copy_(last[2, p])
            expected = head(gru(z[p][:, None])[0])[:, 0]
        torch.testing.assert_close(networks(z)[p].detach(), expected)


def test_the_networks_derivatives_agree_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 3, 2, 2), (3, 2, 2), (3, 2, 2)]
    given = [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]
    assert torch.autograd.gradcheck(gru_states, given)


def test_the_budget_is_kept_by_the_nearest_mask_within_it() -> None:
    mask = 1.5 * torch.rand(4, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.2
    projected = (mask - excess(mask, 0.3)).clamp(0, 1)
    torch.testing.assert_close(projected.sum(dim=-1), torch.full((4,), 9.0, dtype=torch.float64))
    # The projection p of m onto a convex set is the point with (m − p)·(q − p) ≤ 0 for every q of the set.
    others = torch.rand(4, 500, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    others = others * (9.0 / others.sum(dim=-1, keepdim=True)).clamp(max=1)
    slope = ((mask - projected)[:, None] * (others - projected[:, None])).sum(dim=-1)
    assert slope.max() <= 1e-9
    assert excess(mask, 1.0).abs().max() == 0


@pytest.mark.parametrize("method", METHODS)
def test_problems_that_do_not_fit_in_memory_are_solved_in_smaller_batches(method: str) -> None:
    module, x, most = linear(sparseband()), windows(2), [10**9]

    def predict(x: Tensor) -> Tensor:
        if len(x) > most[0]:
            raise MemoryError
        y: Tensor = module(x)
        return y

    def masks() -> Tensor:
        return explain(from_module(predict, name="m"), x, HORIZON, estimator=method, settings='{"iterations": 5}')

    expected = masks()
    most[0] = 5
    torch.testing.assert_close(masks(), expected, rtol=1e-4, atol=1e-5)
