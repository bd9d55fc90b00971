"""The six generators against their definitions in the paper."""

import numpy as np
import pytest
import torch

from hrx.audit.generators import (
    BANDS,
    PERSISTENCE,
    POSITIONS,
    Generator,
    generate,
    inputs,
    plant_rank,
)  # fmt: skip
from hrx.audit.scoring.quantities import rank
from hrx.errors import HrxError
from hrx.records.calibration import GENERATORS

L, H = 96, 48


def sets(generator: Generator) -> list[frozenset[int]]:
    """`S(h)` of every step, from the weights one by one."""
    return [frozenset(t for t in range(L) if row[t] != 0) for row in generator.weights]


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_step_uses_few_positions_and_always_the_last(name: str, seed: int) -> None:
    generator = generate(name, L, H, seed)
    assert generator.weights.shape == (H, L)
    for one in sets(generator):
        assert L - 1 in one
        assert len(one) == POSITIONS


@pytest.mark.parametrize("name", [name for name in GENERATORS if name != "sparsenull"])
def test_weights_have_unit_norm(name: str) -> None:
    generator = generate(name, L, H, 0)
    for row in generator.weights:
        assert sum(value * value for value in row) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", ["sparsenull", "sparsesplit", "sparseband"])
def test_weights_move_smoothly_while_the_set_stays(name: str) -> None:
    generator = generate(name, L, 480, 0)
    positions = sets(generator)
    stays = [h for h in range(479) if positions[h] == positions[h + 1]]
    assert len(stays) > 400
    change = max(np.abs(generator.weights[h + 1] - generator.weights[h]).max() for h in stays)
    assert 0 < change < 0.02


def test_a_seed_always_gives_the_same_weights_and_another_seed_others() -> None:
    one, again, other = (generate("sparseband", L, H, seed).weights for seed in (3, 3, 4))
    assert (one == again).all()
    assert (one != other).any()


def test_sparsenull_is_one_vector_scaled() -> None:
    generator = generate("sparsenull", L, H, 0)
    assert generator.rank == pytest.approx(1, abs=1e-12)
    scale = generator.weights[:, -1:]
    assert np.allclose(generator.weights / scale, generator.weights[0] / scale[0], atol=1e-12)
    assert scale.max() / scale.min() > 2


def test_sparsesplit_has_two_sets_by_half_with_nothing_but_the_last_position_in_common() -> None:
    positions = sets(generate("sparsesplit", L, H, 0))
    assert len({*positions[: H // 2]}) == len({*positions[H // 2 :]}) == 1
    assert positions[0] & positions[-1] == {L - 1}


def test_sparseband_has_one_set_for_each_block() -> None:
    positions = sets(generate("sparseband", L, H, 0))
    changes = [h for h in range(1, H) if positions[h] != positions[h - 1]]
    assert changes == [H * block // BANDS for block in range(1, BANDS)]


def test_sparseshift_slides_left_and_keeps_its_form() -> None:
    positions = [sorted(one - {L - 1}) for one in sets(generate("sparseshift", L, H, 0))]
    moved = [positions[0][0] - one[0] for one in positions]
    assert moved[0] == 0
    assert moved[-1] == L // 16
    assert moved == sorted(moved)
    assert all([t + shift for t in one] == positions[0] for one, shift in zip(positions, moved, strict=True))


def test_lagmix_uses_whole_periods_before_each_step() -> None:
    period = L // 4
    for h, one in enumerate(sets(generate("lagmix", L, H, 0))):
        # Step h is at L + h, so a lag of whole periods has the remainder of L + h.
        assert all((L + h - t) % period == 0 for t in one - {L - 1})
        assert all(t < L for t in one)


@pytest.mark.parametrize("planted", range(1, 17))
def test_a_planted_rank_is_exact(planted: int) -> None:
    generator = plant_rank(planted, L, H, 0)
    measured = rank(torch.from_numpy(np.abs(generator.weights))[None]).participation
    assert generator.rank == pytest.approx(planted, rel=1e-10)
    assert float(measured) == pytest.approx(planted, rel=1e-10)


def test_the_tables_plantrank_is_a_point_of_the_curve() -> None:
    assert (generate("plantrank", L, H, 2).weights == plant_rank(8, L, H, 2).weights).all()


def test_inputs_are_stationary_with_the_stated_correlation() -> None:
    x = inputs(np.random.default_rng(0), 40_000, 12).astype(np.float64)
    covariance = x.T @ x / len(x)
    lag = np.abs(np.arange(12)[:, None] - np.arange(12))
    assert np.abs(covariance - PERSISTENCE**lag).max() < 0.03


def test_a_shape_too_small_for_the_planted_rank_is_refused_with_the_least_size() -> None:
    with pytest.raises(HrxError, match="lookback of at least 52"):
        plant_rank(16, 48, 96, 0)
    with pytest.raises(HrxError, match="horizon of at least 17"):
        plant_rank(16, 96, 12, 0)
    with pytest.raises(HrxError, match="rank of 0"):
        plant_rank(0, 96, 12, 0)
    with pytest.raises(HrxError, match="Did you mean 'sparseband'"):
        generate("sparsebands", L, H, 0)
