"""Truncations, distances, curves and effective lookback, all from one sweep."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import by_definition
from helpers.tiny import series
from hypothesis import given, settings
from hypothesis import strategies as st

from hrx.adapters import Forecaster, from_module, load
from hrx.audit import Protocol, explain, score
from hrx.audit.protocol import fine_counts, scored_steps
from hrx.audit.scoring.deletion import orderings, ranks, replacements, truncate
from hrx.audit.scoring.quantities import effective_lookback, measure, rank
from hrx.audit.scoring.score import ScoredRun
from hrx.errors import ProtocolError
from hrx.gift_eval import cut, open_source
from hrx.records.quantities import DISTANCES, RANK_BINS, TRUNCATIONS

SWEPT = Protocol(draws=2, truncation=True, distance=True)


def linear(lookback: int = 40, horizon: int = 64, seed: int = 0) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(lookback, horizon)


def slow_run(model: Forecaster, x: torch.Tensor, horizon: int, matrix: np.ndarray, draws: int = 2) -> by_definition.Run:
    def forecast(window: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model.forward(torch.as_tensor(window)[None], horizon)[0].numpy()

    drawn = replacements(x, SWEPT, stream=3, first=0, count=draws, variants=1)[:, 0].numpy()
    return by_definition.Run(forecast, x.numpy(), matrix, drawn, 9)


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(2, 12), st.integers(1, 12), st.integers(0, 2**16))
def test_a_truncation_is_the_sum_of_the_leading_outer_products(rows: int, columns: int, kept: int, seed: int) -> None:
    matrix = torch.rand(1, rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = by_definition.truncation(matrix[0].numpy(), kept)
    result = truncate(matrix, kept)[0].numpy()
    if kept == 1 < min(rows, columns):
        weights = np.linalg.norm(expected, axis=1, keepdims=True) / np.linalg.norm(result, axis=1, keepdims=True)
        result = weights * result
    np.testing.assert_allclose(result, expected, atol=1e-12)


def test_positions_that_no_row_reads_stay_tied_at_zero_in_every_truncation() -> None:
    matrix = torch.rand(2, 12, 30, dtype=torch.float64)
    matrix[:, :, [3, 17, 29]] = 0
    for kept in TRUNCATIONS:
        assert (truncate(matrix, kept)[:, :, [3, 17, 29]] == 0).all()


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**16), st.sampled_from(["dense", "a zero row", "equal singular values", "nearly rank one"]))
def test_rank_one_reads_exactly_nothing_whatever_the_matrix(seed: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(16, 24, generator=generator)
    if kind == "a zero row":
        weight[5] = 0
    elif kind == "equal singular values":
        weight = torch.eye(24)[:16]
    elif kind == "nearly rank one":
        weight = torch.outer(weight[:, 0], weight[0]) + 1e-7 * weight
    model = from_module(lambda x: x @ weight.T)
    q = score(model, series(2, 24, seed), 16, protocol=Protocol(draws=2, truncation=True))
    assert q.truncated[0] == 0.0
    assert q.truncated.shape == (4,)


def test_truncations_and_distances_agree_with_the_definitions() -> None:
    model, x = from_module(linear()), series(2, 40)
    matrix = explain(model, x, 64).numpy()
    q = score(model, x, 64, protocol=SWEPT, stream=3)
    for place, kept in enumerate(TRUNCATIONS[1:], start=1):
        slow = slow_run(model, x, 64, np.stack([by_definition.truncation(one, kept) for one in matrix]))
        assert q.truncated[place] == pytest.approx(slow.quantities()["g_own"] / slow.variance, rel=1e-6, abs=1e-6)
    slow = slow_run(model, x, 64, matrix)
    for result, distance in zip(q.distant, DISTANCES, strict=True):
        assert result == pytest.approx(slow.distance_gain(distance) / slow.variance, rel=1e-6, abs=1e-6)


def test_a_truncation_that_the_matrix_cannot_exceed_has_the_gain_of_the_matrix() -> None:
    q = score(from_module(linear(24, 6)), series(2, 24), 6, protocol=Protocol(draws=2, truncation=True))
    assert q.truncated[-1] == q.g_own != 0


def test_further_sweeps_do_not_change_the_other_quantities() -> None:
    model, x = from_module(linear()), series(2, 40)
    plain, swept = score(model, x, 64, protocol=Protocol(draws=2)), score(model, x, 64, protocol=SWEPT)
    np.testing.assert_allclose(swept.normalised, plain.normalised, rtol=1e-9)
    assert plain.truncated.size == plain.distant.size == 0
    assert (plain.rank, plain.effective_lookback) == (swept.rank, swept.effective_lookback)


def test_orderings_list_each_different_row_once() -> None:
    matrix, steps = torch.rand(2, 64, 40, dtype=torch.float64), scored_steps(64, 8)
    ordered = orderings(matrix, np.arange(64), steps, SWEPT)
    # Eight rows and their mean; one vector of rank one; nine for each of three more ranks; the rows at distances.
    away = {int(h) + side * d for h in steps for d in DISTANCES for side in (1, -1)} & set(range(64))
    assert ordered.importance.shape == (2, 9 + 1 + 27 + len(away - set(steps.tolist())), 40)
    assert torch.equal(ordered.importance[:, ordered.matrix[:-1]], matrix[:, steps])
    assert (ordered.truncated[0] == ordered.truncated[0, 0]).all()
    for place, distance in enumerate(DISTANCES):
        for side, sign in enumerate((1, -1)):
            for s, h in enumerate(steps):
                row = int(h) + sign * distance
                index = ordered.distant[place, side, s]
                assert (index < 0) == (not 0 <= row < 64)
                if index >= 0:
                    assert torch.equal(ordered.importance[:, index], matrix[:, row])


@pytest.mark.parametrize("lookback", [40, 96])
def test_the_fine_gains_agree_with_the_definition_and_leave_the_others_as_they_are(lookback: int) -> None:
    model, x = from_module(linear(lookback, 24)), series(2, lookback)
    protocol = replace(SWEPT, truncation=False, distance=False, draws=4)
    q = score(model, x, 24, protocol=replace(protocol, fine=True), stream=3)
    slow = slow_run(model, x, 24, explain(model, x, 24).numpy(), draws=4)
    assert q.fine is not None
    assert q.fine_error is not None
    for name, expected in slow.fine_gains().items():
        assert getattr(q.fine, name) == pytest.approx(expected / slow.variance, rel=1e-5, abs=1e-7)
        assert 0 < getattr(q.fine_error, name) < abs(q.plus_minus(f"{name}_fine"))
    plain = score(model, x, 24, protocol=protocol, stream=3)
    assert (plain.normalised, plain.error) == (q.normalised, q.error)
    counts = fine_counts(lookback, 9).tolist()
    assert counts == [1, 2, 4, 8][: 3 if lookback == 40 else 4]
    # At most nine orderings, each count, in every draw of every window.
    assert 0 < q.forecasts - plain.forecasts <= 9 * len(counts) * 4 * 2


def test_a_reader_of_few_values_is_recognised_and_only_the_fine_gains_tell_its_rows_apart() -> None:
    seasonal = from_module(lambda x: x[:, -24:])
    q = score(seasonal, series(2, 512), 24, protocol=Protocol(fine=True))
    assert (q.support, q.first_deleted, q.g_own) == (24, 64, 0.0)
    assert q.sparse
    assert q.fine is not None
    assert q.fine.g_own > 0 > q.fine.g_shuffled
    assert "The model reads few values: 24 hold 99% of the shared vector, and the first fraction deletes 64." in str(q)
    assert "g_own_fine deletes fewer" in str(q)
    short = score(seasonal, series(2, 96), 24)
    assert (short.support, short.first_deleted, short.sparse, short.fine) == (24, 12, False, None)
    assert "few values" not in str(short)
    assert short.g_own > 0
    unread = score(from_module(lambda x: torch.relu(x[:, -24:])), -series(2, 96).abs(), 24, variance=1.0)
    assert (unread.support, unread.sparse) == (0, False)


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(3, 33))
def test_fine_counts_double_up_to_the_first_fraction(lookback: int, fractions: int) -> None:
    counts = fine_counts(lookback, fractions).tolist()
    first = int(lookback / (fractions - 1) + 0.5)
    assert counts[0] == 1
    assert all(b == 2 * a for a, b in pairwise(counts))
    assert counts[-1] <= max(first, 1) < 2 * counts[-1]


@pytest.mark.parametrize(
    ("options", "rows", "sentence"),
    [
        ({}, 64, "the mean of all 64 rows"),
        ({"estimator": "saliency"}, 8, "the mean of the 8 scored rows"),
        ({"axis": "whole"}, 1, "One row serves all steps"),
    ],
)
def test_the_result_says_which_rows_make_the_shared_vector(options: dict[str, Any], rows: int, sentence: str) -> None:
    q = score(from_module(linear()), series(2, 40), 64, protocol=Protocol(draws=2, **options))
    assert q.shared_rows == rows
    assert sentence in str(q)


def test_a_distance_without_a_row_for_some_scored_step_is_nan() -> None:
    q = score(from_module(linear(40, 24)), series(2, 40), 24, protocol=SWEPT)
    # Of 24 steps, the twelfth has no row 16 or 32 away.
    assert np.isnan(q.distant).tolist() == [False, False, False, False, True, True]


def test_rows_at_a_distance_come_from_the_estimated_steps_only() -> None:
    steps = np.array([0, 3, 7])
    protocol = Protocol(estimator="saliency", distance=True)
    distant = orderings(torch.rand(1, 3, 20), steps, steps, protocol).distant
    # Among the steps 1, 4 and 8 only 4 and 8 are four apart, and none is one, two or eight.
    assert distant[DISTANCES.index(4)].tolist() == [[-1, 2, -1], [-1, -1, 1]]
    assert (np.delete(distant, DISTANCES.index(4), axis=0) == -1).all()


def test_a_matrix_of_scored_rows_has_truncations_and_no_distances() -> None:
    protocol = Protocol(estimator="saliency", draws=2, truncation=True, distance=True)
    result = ScoredRun(from_module(linear()), series(2, 40), 64, protocol, stream=3)
    assert result.explanation.matrix.shape == (2, 8, 40)
    assert result.quantities.truncated[0] == 0 != result.quantities.truncated[1]
    assert np.isnan(result.quantities.distant).all()


def test_the_shared_vector_of_scored_rows_is_their_mean() -> None:
    model, x = from_module(linear()), series(2, 40)
    result = score(model, x, 64, protocol=Protocol(estimator="saliency", draws=2), stream=3)
    matrix = explain(model, x, 64).numpy()
    slow = slow_run(model, x, 64, matrix)
    shared = matrix[:, slow.steps].astype(np.float64).mean(axis=1)
    for w in range(2):
        slow._orderings[w, None] = sorted(range(40), key=lambda t, w=w: (-shared[w][t], t))
    assert result.g_own == pytest.approx(slow.quantities()["g_own"] / slow.variance, rel=1e-6)


@pytest.mark.parametrize("kind", ["antithetic", "paired", "independent"])
def test_with_the_axis_removed_every_gain_is_zero_and_the_gap_is_that_of_the_one_vector(kind: str) -> None:
    model, x = from_module(linear()), series(2, 40)
    protocol = Protocol(estimator="saliency", axis="whole", draws=2, draws_kind=kind)
    q = score(model, x, 64, protocol=protocol, stream=3)
    assert (q.g_own, q.g_shuffled, q.g_margin) == (0.0, 0.0, 0.0)
    assert q.gap_own == pytest.approx(q.gap_shared, rel=1e-12)
    assert q.rank == pytest.approx(1)
    if kind == "antithetic":
        one = explain(model, x, 64, estimator="saliency", axis="whole").numpy()
        slow = slow_run(model, x, 64, np.repeat(one, 64, axis=1))
        gap = slow.average(lambda w, d, h: slow.area(w, d, h, None))
        assert q.gap_shared == pytest.approx(gap / slow.variance, abs=1e-6)


def test_sweeps_refuse_draws_that_cannot_be_paired() -> None:
    protocol = Protocol(draws_kind="independent", truncation=True)
    with pytest.raises(ProtocolError, match="same replacements"):
        score(from_module(linear()), series(2, 40), 64, protocol=protocol)


def test_curves_and_gaps_agree_with_the_definitions_and_with_the_gains() -> None:
    model, x = from_module(linear()), series(2, 40)
    q = score(model, x, 64, protocol=Protocol(draws=2), stream=3)
    slow = slow_run(model, x, 64, explain(model, x, 64).numpy())
    rows_of_step = (lambda h: [h], lambda h: [None], lambda h: slow.steps)
    expected = [[slow.mean_curve(rows, first) for first in (True, False)] for rows in rows_of_step]
    np.testing.assert_allclose(q.curves, np.array(expected) / slow.variance, rtol=1e-6, atol=1e-9)
    gaps = [np.trapezoid(morf - lerf, dx=1 / 8) for morf, lerf in q.curves]
    assert (q.gap_own, q.gap_shared) == pytest.approx(gaps[:2])
    assert (q.g_own, q.g_shuffled) == pytest.approx((gaps[0] - gaps[1], gaps[2] - gaps[1]))


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any), st.sampled_from([0.5, 0.9, 1.0]))
def test_the_effective_lookback_counts_positions_from_the_end_that_hold_the_mass(row: list[int], mass: float) -> None:
    result = effective_lookback(torch.tensor([[row]], dtype=torch.float32), mass)
    assert result.item() == by_definition.positions_from_the_end([float(value) for value in row], mass)


def test_a_zero_row_has_no_effective_lookback_and_is_left_out_of_the_mean() -> None:
    weight = torch.zeros(8, 20)
    weight[1:, 15] = 1.0
    q = score(from_module(lambda x: x @ weight.T), series(2, 20), 8, protocol=Protocol(draws=2))
    assert np.isnan(q.effective_lookback_steps[0])
    assert q.effective_lookback_steps[1:].tolist() == [5.0] * 7
    assert q.effective_lookback == 5.0


def permuted_gain(stream: int, permutations: int = 3) -> np.ndarray:
    """`g_shuffled_permuted` of synthetic errors that differ for every step and row."""
    errors = np.zeros((1, 2, 9, 2, 9, 8))
    errors[:, :, :8, 0, 1:8] = np.random.default_rng(0).random((8, 8))[:, None, :]
    return measure(errors, Protocol(permutations=permutations), stream)["g_shuffled_permuted"]


def test_permutations_depend_on_the_stream_and_many_of_them_give_the_expectation() -> None:
    np.testing.assert_array_equal(permuted_gain(stream=1), permuted_gain(stream=1))
    assert len({permuted_gain(stream).tobytes() for stream in range(4)}) == 4
    rows = np.random.default_rng(0).random((8, 8)).mean(axis=0) * 7 / 8
    np.testing.assert_allclose(permuted_gain(0, permutations=40000)[0, 0], rows, atol=0.01)


def test_the_published_bins_follow_one_another_and_their_gains_rise() -> None:
    for before, after in pairwise(RANK_BINS):
        assert before.high == after.low
        assert before.g_own < after.g_own
        assert before.positive < after.positive


def test_the_rank_one_truncation_of_a_real_checkpoint_on_real_series_has_no_gain(real_data: Path) -> None:
    model = load(str(real_data / "checkpoints" / "ttm-r2"))
    for dataset in open_source(str(real_data / "gift_eval")):
        if dataset.name == "m4_hourly":
            x = torch.as_tensor(cut(dataset.read(0), 512, 96, 1, 0).x, dtype=torch.float32)
            q = score(model, x, 96, protocol=Protocol(draws=2, truncation=True))
            assert q.truncated[0] == 0.0
            assert (q.truncated[1:] != 0).all()


def test_a_truncation_orders_the_lookback_like_its_right_singular_vector() -> None:
    matrix = torch.rand(1, 12, 30, dtype=torch.float64)
    leading = torch.linalg.svd(matrix[0]).Vh[0].abs()
    assert torch.equal(ranks(truncate(matrix, 1))[0], ranks(leading).expand(12, -1))
    assert rank(truncate(matrix, 1)).participation.item() == pytest.approx(1)
