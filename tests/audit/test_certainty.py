"""How sure the quantities of one run are: `p_margin`, the ± over draws, and the precision that draws are made for."""

import itertools
import math

import numpy as np
import pytest
import torch
from helpers import by_definition
from helpers.tiny import series
from scipy import stats

from hrx.adapters import from_module
from hrx.audit import Protocol, explain, score
from hrx.audit.scoring.deletion import replacements
from hrx.audit.scoring.quantities import assignment_share, moments
from hrx.records.quantities import GAINS, Quantities, error_limit, t_quantile


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


def noise(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Errors of draws around zero."""
    rng = np.random.default_rng(0)
    return rng.normal(size=shape) if kind == "normal" else rng.standard_t(3, size=shape)


@pytest.mark.parametrize("kind", ["normal", "t3"])
@pytest.mark.parametrize(("windows", "units"), [(1, 2), (1, 4), (1, 8), (4, 2), (4, 4), (8, 2)])
@pytest.mark.parametrize("unequal", [1, 4])
def test_plus_minus_covers_at_least_nine_in_ten_where_it_promises_nineteen_in_twenty(
    kind: str, windows: int, units: int, unequal: float
) -> None:
    spread = np.geomspace(1, unequal, windows)[None, :, None, None]
    repeats = 3 + noise(kind, (2000, windows, units, 1)) * spread
    found = [moments(samples) for samples in repeats]
    wide = t_quantile(windows * (units - 1))
    inside = np.mean([abs(one.mean - 3) <= wide * one.error for one in found])
    assert 0.9 <= inside <= 0.975
    # Twice the error covers far less where a window has a single pair to spare.
    assert units > 2 or windows > 1 or np.mean([abs(one.mean - 3) <= 2 * one.error for one in found]) < 0.75


@pytest.mark.parametrize("degrees", [1, 3, 4, 30])
def test_the_quantile_and_the_limit_of_an_error_are_those_of_scipy(degrees: int) -> None:
    assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-9)
    spread = np.random.default_rng(degrees).normal(size=(4000, degrees + 1)).std(axis=1, ddof=1)
    assert np.mean([error_limit(one, degrees) >= 1 for one in spread]) == pytest.approx(0.95, abs=0.012)
    assert math.isnan(t_quantile(0))
    assert math.isnan(error_limit(0.1, 0))


def scored(draws: int, windows: int = 2, **settings: object) -> Quantities:
    torch.manual_seed(0)
    model = from_module(torch.nn.Linear(40, 12))
    return score(model, series(windows, 40), 12, protocol=Protocol(draws=draws, **settings))  # type: ignore[arg-type]


def test_plus_minus_is_the_error_by_its_degrees_of_freedom_and_is_shown_with_what_it_covers() -> None:
    q = scored(draws=6)
    assert (q.windows, q.units, q.degrees) == (2, 3, 4)
    for name in GAINS:
        half = stats.t.ppf(0.975, 4) * getattr(q.error, name)
        assert q.plus_minus(name) == pytest.approx(half, rel=1e-9)
        assert f"{name} {getattr(q, name):+.3f} ± {half:.3f}" in str(q)
        assert f"± {half:.3f}" in q._repr_html_()
    covers = (
        "± is a 95 % interval over random draws for these 2 windows, with 4 degrees of freedom; it covers nothing else."
    )
    assert covers in str(q)
    assert covers in q._repr_html_()
    assert scored(draws=6, draws_kind="paired").degrees == 10
    assert "this window, with 1 degree of" in str(scored(draws=4, windows=1))


@pytest.mark.slow
@pytest.mark.parametrize(("windows", "draws"), [(1, 4), (4, 4), (2, 8)])
def test_plus_minus_of_real_draws_covers_the_value_of_many_draws(windows: int, draws: int) -> None:
    repeats = [scored(draws, windows, seed=seed) for seed in range(1, 201)]
    exact = scored(800, windows)
    for name in GAINS:
        near = [abs(getattr(q, name) - getattr(exact, name)) <= q.plus_minus(name) for q in repeats]
        assert np.mean(near) >= 0.9, name


def test_a_single_pair_shows_no_plus_minus() -> None:
    q = scored(draws=2)
    assert math.isnan(q.plus_minus("g_own"))
    gains, covers, _ = str(q).split("\n")
    assert "±" not in gains
    assert covers == "2 draws of a window have no ±: its degrees of freedom are windows × (pairs − 1)."
    assert "± nan" not in q._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize("needed", [6, 12, 20])
def test_a_run_that_stops_by_precision_has_a_larger_error_in_at_most_seven_percent(needed: int) -> None:
    """The error is looked at after every two pairs, each time with 95 % confidence."""
    exact = scored(800, windows=1)
    spread = max(getattr(exact.error, name) for name in GAINS) * exact.units**0.5
    precision = spread / needed**0.5
    repeats = [scored(4, windows=1, precision=precision, seed=seed) for seed in range(1, 301)]
    wrong = [q.draws < 64 and spread / q.units**0.5 > precision for q in repeats]
    assert np.mean(wrong) <= 0.07
    assert np.mean([q.draws < 64 for q in repeats]) > (0.5 if needed < 20 else 0.1)


def test_the_precision_is_judged_from_four_pairs_on() -> None:
    loose = scored(draws=2, precision=1e6)
    assert (loose.draws, loose.units) == (8, 4)
    assert scored(draws=2, precision=1e6, draws_kind="paired").draws == 4
    assert scored(draws=2, precision=1e6, max_draws=6).draws == 6
    once = scored(draws=10)
    reached = error_limit(max(getattr(once.error, name) for name in GAINS), once.degrees)
    assert scored(draws=10, precision=reached * 1.001).draws == 10
    assert scored(draws=10, precision=reached * 0.999).draws == 20
