import math

import numpy as np
import pytest
import torch
from helpers.by_definition import participation_ratio
from hypothesis import given
from hypothesis import strategies as st

from hrx.audit.scoring.quantities import rank, skill


def test_rank_of_equal_singular_values_counts_them() -> None:
    assert rank(torch.eye(5)[None]).participation.item() == pytest.approx(5, abs=1e-12)
    assert rank(torch.eye(5)[None]).entropy.item() == pytest.approx(5, abs=1e-12)


def test_rank_of_an_outer_product_is_one() -> None:
    matrix = torch.outer(torch.rand(7) + 0.1, torch.rand(9))[None]
    assert rank(matrix).participation.item() == pytest.approx(1, abs=1e-9)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**16))
def test_rank_agrees_with_eigenvalues_and_never_exceeds_the_entropy_rank(rows: int, columns: int, seed: int) -> None:
    matrix = torch.rand(1, rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    result = rank(matrix)
    assert result.participation.item() == pytest.approx(participation_ratio(matrix[0].numpy()), rel=1e-9)
    sigma = np.linalg.svd(matrix[0].numpy(), compute_uv=False)
    p = [s / sum(sigma) for s in sigma if s > 0]
    assert result.entropy.item() == pytest.approx(math.exp(-sum(q * math.log(q) for q in p)), rel=1e-9)
    assert result.entropy.item() >= result.participation.item() - 1e-9


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(0, 2**16))
def test_windows_have_their_own_rank_and_none_where_the_matrix_is_zero(zero: list[bool], seed: int) -> None:
    matrix = torch.rand(len(zero), 5, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    matrix[torch.tensor(zero)] = 0
    result = rank(matrix)
    ratios = [participation_ratio(one.numpy()) for one in matrix if one.any()]
    entropies = []
    for one in (one for one in matrix if one.any()):
        sigma = np.linalg.svd(one.numpy(), compute_uv=False)
        share = sigma / sigma.sum()
        entropies.append(math.exp(-sum(p * math.log(p) for p in share)))
    assert result.participation.isnan().tolist() == zero
    kept = ~result.participation.isnan()
    assert result.participation[kept].tolist() == pytest.approx(ratios, rel=1e-9)
    assert result.entropy[kept].tolist() == pytest.approx(entropies, rel=1e-9)


def test_beating_naive_means_zero_and_the_last_value_but_not_the_seasonal_forecast() -> None:
    truth = np.array([[1.0, 2.0], [0.0, -1.0]])
    forecast = np.array([[1.0, 1.0], [0.0, 0.0]])
    scale = np.array([0.5, 2.0])
    result = skill(forecast, truth, last=np.array([2.0, 1.0]), seasonal=truth, seasonal_error=scale)
    assert result.mse == 0.5
    assert result.mae == 0.5
    assert result.mse_zero == 1.5
    assert result.mse_last == (1 + 0 + 1 + 4) / 4
    assert result.mse_seasonal == 0
    assert result.beats_naive
    assert not result.beats_seasonal
    assert result.mase == (0 / 0.5 + 1 / 0.5 + 0 / 2 + 1 / 2) / 4
    assert result.naive_mase == (1 / 0.5 + 0 / 0.5 + 1 / 2 + 2 / 2) / 4
    assert result.seasonal_mase == 0


@pytest.mark.parametrize("scale", [[0.0], [math.nan]])
def test_where_the_past_repeats_its_season_exactly_there_is_no_mase(scale: list[float]) -> None:
    truth = np.array([[0.5, 0.7, -0.2]])
    result = skill(truth, truth, last=np.array([1.0]), seasonal=truth, seasonal_error=np.array(scale))
    assert result.mse == 0
    assert all(math.isnan(figure) for figure in (result.mase, result.naive_mase, result.seasonal_mase))


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_forecast_that_equals_a_naive_one_does_not_beat_it(shift: float) -> None:
    truth = np.array([[0.5, 0.7, -0.2]])
    naive = np.full_like(truth, shift)
    assert not skill(naive, truth, np.array([1.0]), seasonal=truth, seasonal_error=np.ones(1)).beats_naive
