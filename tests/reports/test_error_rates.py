"""Simulated error rates of intervals, verdicts and gates: a part of `make calibration`, with fixed seeds."""

import math

import numpy as np
import pytest
from error_rates import (
    CORRELATIONS,
    DRAWS,
    LARGE,
    MEASURED,
    MEDIUM,
    SHAPES,
    SMALL,
    STRONGEST,
    Shape,
    cells,
    claims,
    coverage,
    error_gate,
    gain_gate,
    noise,
    of_sources,
    simulate,
)
from helpers.constructed import runs

from hrx.reports import compare
from hrx.reports.statistics import evidence

each_draw = pytest.mark.parametrize("draw", DRAWS)
UNEQUAL = Shape((1, 2, 3, 1, 2, 3, 1, 1), 7)


@pytest.mark.parametrize("correlations", CORRELATIONS)
def test_simulated_runs_correlate_as_they_are_said_to(correlations: tuple[float, float]) -> None:
    values = simulate(np.random.default_rng(0), 100_000, Shape((2,), 2), DRAWS["exponential"], correlations)
    found = np.corrcoef(values.reshape(-1, 4).T)
    assert found[0, 1] == pytest.approx(correlations[1], abs=0.02)
    assert found[0, 2] == pytest.approx(correlations[0], abs=0.02)
    assert values.var() == pytest.approx(1, abs=0.02)


def test_the_values_of_sources_are_those_of_the_product() -> None:
    values = simulate(np.random.default_rng(0), 3, UNEQUAL, DRAWS["normal"], MEASURED)
    for one, sources in zip(values, of_sources(values, UNEQUAL), strict=True):
        assert evidence(one.ravel(), *UNEQUAL.names).values == pytest.approx(sorted(sources))


@each_draw
@pytest.mark.parametrize("clusters", [5, 8, 15, 30])
def test_intervals_cover_the_median_source_in_at_least_90_percent(draw: str, clusters: int) -> None:
    mine = [(correlations, shape) for name, correlations, shape in cells(clusters) if name == draw]
    assert min(coverage(shape, DRAWS[draw], one, 800) for one, shape in mine) >= 0.90


@each_draw
@pytest.mark.parametrize("correlations", [MEASURED, STRONGEST])
def test_under_a_null_a_verdict_claims_a_sign_in_at_most_five_percent(
    draw: str, correlations: tuple[float, float]
) -> None:
    for shape in (UNEQUAL, LARGE):
        found = claims(shape, DRAWS[draw], correlations, 2000)
        assert found <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 2000)


def test_a_verdict_finds_what_is_there() -> None:
    assert claims(LARGE, DRAWS["normal"], MEASURED, 500, 1.0) >= 0.9


@each_draw
@pytest.mark.parametrize("correlations", [MEASURED, STRONGEST])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_unchanged_checkpoint_fails_in_at_most_3_percent(
    draw: str, correlations: tuple[float, float], shape: Shape
) -> None:
    assert error_gate(shape, DRAWS[draw], correlations, 0.02, 300).failed <= 0.03
    assert gain_gate(shape, DRAWS[draw], correlations, 0.02, 300).failed <= 0.03
    assert gain_gate(shape, DRAWS[draw], correlations, 0.02, 300, gate="beats_naive >= -5%").failed <= 0.03


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_unchanged_checkpoint_fails_in_at_most_3_percent_with_normal_noise_of_5_percent(shape: Shape) -> None:
    assert error_gate(shape, DRAWS["normal"], MEASURED, 0.05, 400).failed <= 0.03


@each_draw
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exactly_at_the_bound_a_gate_fails_in_at_most_7_percent(draw: str, shape: Shape) -> None:
    assert error_gate(shape, DRAWS[draw], MEASURED, 0.02, 400, rise=0.02).failed <= 0.07
    assert error_gate(shape, DRAWS[draw], MEASURED, 0.02, 400, gate="mse <= +0%").failed <= 0.07


@each_draw
@pytest.mark.parametrize("shape", [MEDIUM, LARGE], ids=str)
def test_one_dataset_that_is_30_percent_worse_fails_in_at_least_95_percent(draw: str, shape: Shape) -> None:
    for size in (0.02, 0.05):
        assert error_gate(shape, DRAWS[draw], MEASURED, size, 300, broken=0.30).failed >= 0.95


def test_more_sources_let_an_unchanged_checkpoint_pass_more_often() -> None:
    passed = [error_gate(shape, DRAWS["normal"], MEASURED, 0.02, 400).passed for shape in (SMALL, MEDIUM, LARGE)]
    assert passed == sorted(passed)
    assert passed[-1] > 0.9


def test_a_loss_of_gains_that_also_loses_to_naive_does_not_pass() -> None:
    """Gains fall by 0.06 and errors rise by half: leaving out the runs that stop beating naive would pass some."""
    for shape in SHAPES:
        assert gain_gate(shape, DRAWS["normal"], MEASURED, 0.02, 200, fall=0.06, worse=0.5).passed <= 0.02
        share = {"gate": "beats_naive >= -5%", "worse": 0.5}
        assert gain_gate(shape, DRAWS["normal"], MEASURED, 0.02, 200, **share).passed <= 0.02


def test_a_candidate_that_differs_by_noise_alone_hardly_ever_fails_through_compare() -> None:
    """Five datasets of one series, seven settings, correlated as real ones: 22 of 40 failed by runs as evidence."""
    shape = Shape((1,) * 5, 7)
    datasets, series = shape.names
    about = {"dataset": datasets, "series": series, "series_fingerprint": datasets, "lookback": [*range(96, 103)] * 5}
    base = runs(35, fingerprint="a" * 64, mse=1.0, **about)
    changes = np.exp(0.02 * noise(np.random.default_rng(0), 25, shape, DRAWS["normal"], MEASURED))
    outcomes = [
        compare(base, base.assign(fingerprint="b" * 64, mse=mse.ravel()), "mse <= +2%").gates[0].outcome
        for mse in changes
    ]
    assert outcomes.count("failed") <= 1
    assert outcomes.count("passed") >= 5
