"""How sure the quantities of one run are: `p_margin` over all assignments of rows to steps."""

import itertools
import math

import numpy as np
import pytest
import torch
from helpers import by_definition
from helpers.tiny import series

from hrx.adapters import from_module
from hrx.audit import Protocol, explain, score
from hrx.audit.scoring.deletion import replacements
from hrx.audit.scoring.quantities import assignment_share


def literal_share(areas: np.ndarray) -> float:
    """Count the permutations that are at least as good as the actual one, one at a time."""
    steps = range(len(areas))
    actual = sum(areas[h][h] for h in steps)
    totals = [sum(areas[row][h] for h, row in zip(steps, rows, strict=True)) for rows in itertools.permutations(steps)]
    return sum(total > actual - 1e-9 for total in totals) / len(totals)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_p_margin_is_the_share_of_permutations_that_are_at_least_as_good(steps: int) -> None:
    for areas in np.random.default_rng(steps).normal(size=(20, steps, steps)):
        assert assignment_share(areas) == pytest.approx(literal_share(areas), rel=1e-12)


def test_p_margin_of_a_score_is_that_of_its_areas_averaged_over_windows_and_draws() -> None:
    torch.manual_seed(0)
    model, x = from_module(torch.nn.Linear(24, 4)), series(2, 24)
    q = score(model, x, 4, protocol=Protocol(draws=2))
    drawn = replacements(x, Protocol(draws=2), stream=0, first=0, count=2, variants=1)[:, 0].numpy()

    def forecast(window: np.ndarray) -> np.ndarray:
        return model.forward(torch.as_tensor(window)[None], 4)[0].detach().numpy()

    run = by_definition.Run(forecast, x.numpy(), explain(model, x, 4).numpy(), drawn, 9)
    areas = [[sum(run.area(w, d, h, row) for w in range(2) for d in range(2)) for h in range(4)] for row in range(4)]
    assert 1 / 24 < literal_share(areas) < 1
    assert q.p_margin == pytest.approx(literal_share(areas), rel=1e-12)


def test_rows_that_order_the_lookback_alike_have_a_p_margin_of_one() -> None:
    module = torch.nn.Linear(40, 24)
    with torch.no_grad():
        module.weight.copy_(torch.outer(torch.rand(24) + 0.5, torch.randn(40)))
    assert score(from_module(module), series(2, 40), 24).p_margin == 1.0
    rng = np.random.default_rng(0)
    alike = np.tile(rng.uniform(size=8), (8, 1))
    assert assignment_share(alike * (1 + 1e-12 * rng.normal(size=(8, 8)))) == 1.0


def test_random_areas_fall_below_a_level_as_often_as_the_level_says() -> None:
    found = np.array([assignment_share(areas) for areas in np.random.default_rng(0).normal(size=(500, 8, 8))])
    assert 0.03 <= np.mean(found < 0.05) <= 0.075  # 0.05, and two standard errors of 500
    assert 0.45 <= np.mean(found < 0.5) <= 0.55


@pytest.mark.parametrize("steps", [8, 9, 12])
def test_rows_that_belong_to_their_steps_have_the_smallest_p_margin_of_eight_factorial_assignments(steps: int) -> None:
    noise = np.random.default_rng(0).normal(size=(steps, steps))
    assert assignment_share(noise + 10 * np.eye(steps)) == pytest.approx(1 / math.factorial(8))
    assert assignment_share(noise - 10 * np.eye(steps)) > 0.95
