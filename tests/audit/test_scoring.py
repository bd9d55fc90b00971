import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import by_definition
from helpers.tiny import series
from scipy.stats import chi2

from hrx.adapters import Forecaster, ModelError, from_module, load
from hrx.audit import Protocol, explain, score
from hrx.audit.memory import MemoryBudget
from hrx.audit.scoring.deletion import replacements
from hrx.audit.scoring.quantities import Unscorable
from hrx.audit.scoring.score import moving
from hrx.errors import HrxError
from hrx.records.quantities import QUANTITIES


def linear(lookback: int = 40, horizon: int = 12, seed: int = 0) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(lookback, horizon)


def one_forecast(model: Forecaster, horizon: int):
    def forecast(window: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model.forward(torch.as_tensor(window)[None], horizon)[0].numpy()

    return forecast


def test_the_matrix_of_a_linear_model_is_the_magnitude_of_its_weights() -> None:
    module = linear()
    matrix = explain(from_module(module), series(3, 40), horizon=12)
    assert torch.equal(matrix, module.weight.abs().expand(3, -1, -1))


def test_steps_choose_rows_of_the_same_matrix() -> None:
    model, x = from_module(linear()), series(2, 40)
    assert torch.equal(explain(model, x, 12, steps=[1, 6, 12]), explain(model, x, 12)[:, [0, 5, 11]])


def test_the_matrix_of_a_multivariate_model_sums_output_channels_before_and_input_channels_after() -> None:
    from hrx.adapters import Limits

    weight = torch.randn(5, 2, 7, 3, generator=torch.Generator().manual_seed(0))
    model = from_module(lambda x: torch.einsum("hclk,blk->bhc", weight, x), limits=Limits(multivariate=True))
    matrix = explain(model, torch.randn(4, 7, 3), horizon=5)
    expected = weight.sum(dim=1).abs().sum(dim=-1)
    torch.testing.assert_close(matrix, expected.expand(4, -1, -1))


@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm"])
def test_the_matrix_equals_one_backward_pass_per_step(checkpoints: dict[str, Path], family: str) -> None:
    model, x = load(str(checkpoints[family])), series(2, 96)
    from hrx.adapters import GradientPath

    with GradientPath():
        slow = by_definition.gradient_rows(lambda window: model.forward(window, 24), x)
    fast = explain(model, x, 24)
    # One pass per step of this random Chronos-2 is itself 2.2e-6 from the rows in float64: see test_jacobian.py.
    assert (fast - slow).abs().max() <= (2e-6 if family == "chronos-2" else 1e-6) * slow.abs().max()


def test_a_rank_one_model_has_rank_one_and_exactly_no_gain() -> None:
    module = linear(64, 24)
    with torch.no_grad():
        module.weight.copy_(torch.outer(torch.rand(24) + 0.5, torch.randn(64)))
    q = score(from_module(module), series(4, 64), 24)
    assert q.rank == pytest.approx(1, abs=1e-6)
    assert (q.g_own, q.g_shuffled, q.g_margin) == (0.0, 0.0, 0.0)


class Rectified(torch.nn.Module):
    """A linear model of the positive part: a window without positive values has a zero gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.relu())


def test_a_window_whose_matrix_is_zero_is_left_out_of_the_rank_and_counted() -> None:
    module, x = Rectified(), series(4, 40)
    x[1] = -x[1].abs() - 0.1
    q = score(from_module(module), x, 12)
    weight = module.linear.weight.detach().abs().numpy()
    matrices = [weight * (window > 0).numpy() for window in x]
    ranks = [by_definition.participation_ratio(matrix) for matrix in matrices if matrix.any()]
    assert len(ranks) == 3
    assert q.rank == pytest.approx(np.mean(ranks), rel=1e-6)
    assert q.rank_entropy >= q.rank
    assert q.rank_dropped == 1


def test_a_run_whose_matrices_are_all_zero_has_no_rank() -> None:
    q = score(from_module(Rectified()), -series(3, 40).abs() - 0.1, 12)
    assert np.isnan([q.rank, q.rank_entropy]).all()
    assert q.rank_dropped == 3
    assert (q.g_own, q.g_shuffled, q.g_margin) == (0.0, 0.0, 0.0)


def test_scaling_the_forecast_leaves_normalised_quantities_unchanged_and_squares_into_raw_ones() -> None:
    module, x = linear(), series(3, 40)
    small = score(from_module(module), x, 12)
    scaled = linear()
    with torch.no_grad():
        scaled.weight.mul_(8)
        scaled.bias.mul_(8)
    large = score(from_module(scaled), x, 12)
    np.testing.assert_allclose(large.normalised, small.normalised, rtol=1e-6)
    np.testing.assert_allclose(large.raw[:-1], 64 * np.array(small.raw[:-1]), rtol=1e-6)


def test_the_margin_is_exactly_the_difference_of_the_two_gains() -> None:
    q = score(from_module(linear()), series(3, 40), 12)
    assert q.g_margin == q.g_own - q.g_shuffled
    assert q.raw.g_margin == q.raw.g_own - q.raw.g_shuffled
    assert q.normalised.g_margin_morf == q.normalised.g_own_morf - q.normalised.g_shuffled_morf


def disagreements(model: Forecaster, x: torch.Tensor, horizon: int, draws: int) -> list[str]:
    """The quantities that differ from a literal implementation of the definitions."""
    protocol = Protocol(draws=draws)
    q = score(model, x, horizon, protocol=protocol, stream=7)
    drawn = replacements(x, protocol, stream=7, first=0, count=draws, variants=1)[:, 0].numpy()
    run = by_definition.Run(one_forecast(model, horizon), x.numpy(), explain(model, x, horizon).numpy(), drawn, 9)
    agrees = {"variance": q.variance == pytest.approx(run.variance, rel=1e-6)}
    for name, raw in run.quantities().items():
        scale = 1 if name == "insertion" else run.variance
        agrees[name] = getattr(q.normalised, name) == pytest.approx(raw / scale, rel=1e-6, abs=1e-6)
        agrees[f"{name} raw"] = getattr(q.raw, name) == pytest.approx(raw, rel=1e-6, abs=1e-6 * scale)
    ranks = [by_definition.participation_ratio(matrix) for matrix in run.matrix]
    agrees["rank"] = q.rank == pytest.approx(np.mean(ranks), rel=1e-6)
    return [name for name, same in agrees.items() if not same]


@pytest.mark.parametrize(("lookback", "horizon"), [(40, 12), (33, 5)])
def test_score_agrees_with_the_definitions_on_a_linear_model(lookback: int, horizon: int) -> None:
    assert disagreements(from_module(linear(lookback, horizon)), series(3, lookback), horizon, draws=4) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", ["chronos-bolt", "ttm"])
def test_score_agrees_with_the_definitions_on_a_library_model(checkpoints: dict[str, Path], family: str) -> None:
    # In float64: a step that deletion hardly moves makes insertion a ratio of two roundings in fp32.
    double = load(str(checkpoints[family])).double()
    assert disagreements(double, series(2, 96).double(), 24, draws=2) == []


def test_a_reported_permutation_gain_is_the_mean_over_all_permutations() -> None:
    model, x = from_module(linear(24, 4)), series(2, 24)
    q = score(model, x, 4, protocol=Protocol(draws=2))
    drawn = replacements(x, Protocol(draws=2), stream=0, first=0, count=2, variants=1)[:, 0].numpy()
    run = by_definition.Run(one_forecast(model, 4), x.numpy(), explain(model, x, 4).numpy(), drawn, 9)
    gains = [
        run.average(lambda w, d, h, pi=pi: run.area(w, d, h, pi[h]) - run.area(w, d, h, None))
        for pi in itertools.permutations(range(4))
    ]
    assert q.raw.g_shuffled == pytest.approx(np.mean(gains), rel=1e-6)
    assert min(gains) <= q.raw.g_shuffled_permuted <= max(gains)


def seasonal(lookback: int, horizon: int, season: int) -> torch.nn.Linear:
    """Forecasts each step from the same phase of earlier seasons, the later the more, and a little from elsewhere."""
    module = torch.nn.Linear(lookback, horizon, bias=False)
    t, h = torch.arange(lookback), torch.arange(horizon)[:, None]
    same_phase = ((t - h - lookback) % season == 0) * 0.8 ** ((lookback - t) / season)
    with torch.no_grad():
        module.weight.copy_(
            same_phase + 0.02 * torch.rand(horizon, lookback, generator=torch.Generator().manual_seed(0))
        )
    return module


@pytest.mark.slow
def test_the_three_kinds_of_draws_agree_in_mean_and_antithetic_ones_spread_least() -> None:
    noise = torch.randn(2, 96, generator=torch.Generator().manual_seed(1))
    x = torch.sin(torch.arange(96) * 2 * torch.pi / 12 + torch.arange(2)[:, None]) + 0.3 * noise
    model = from_module(seasonal(96, 24, 12))
    gains = {
        kind: np.array([score(model, x, 24, protocol=Protocol(draws_kind=kind, seed=s)).g_own for s in range(60)])
        for kind in ("antithetic", "paired", "independent")
    }
    spread = {kind: values.std(ddof=1) for kind, values in gains.items()}
    assert spread["antithetic"] < 0.6 * min(spread["paired"], spread["independent"])
    reference = gains["antithetic"]
    for kind, values in gains.items():
        error = np.hypot(spread[kind], spread["antithetic"]) / np.sqrt(60)
        assert abs(values.mean() - reference.mean()) < 4 * error, kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["antithetic", "paired", "independent"])
def test_the_stored_error_is_the_spread_over_repeats(kind: str) -> None:
    model, x = from_module(linear(48, 16)), series(4, 48)
    repeats = [score(model, x, 16, protocol=Protocol(draws=8, draws_kind=kind, seed=s)) for s in range(80)]
    for name in ("g_own", "g_shuffled", "g_margin", "sufficiency", "insertion"):
        seen = np.std([getattr(q.normalised, name) for q in repeats], ddof=1)
        stored = np.sqrt(np.mean([getattr(q.error, name) ** 2 for q in repeats]))
        assert stored == pytest.approx(seen, rel=0.3), name


def test_a_single_pair_of_draws_has_no_error_estimate() -> None:
    assert np.isnan(score(from_module(linear()), series(2, 40), 12, protocol=Protocol(draws=2)).error.g_own)


def test_precision_draws_until_the_error_is_small_enough() -> None:
    model, x = from_module(linear()), series(4, 40)
    coarse = score(model, x, 12)
    target = coarse.error.g_own / 2
    fine = score(model, x, 12, protocol=Protocol(precision=target, max_draws=400))
    limit = np.sqrt(fine.degrees / chi2.ppf(0.05, fine.degrees))
    assert limit * max(fine.error.g_own, fine.error.g_shuffled, fine.error.g_margin) <= target
    assert fine.draws > coarse.draws
    assert fine.draws % 2 == 0


def test_precision_stops_at_max_draws() -> None:
    q = score(from_module(linear()), series(2, 40), 12, protocol=Protocol(precision=1e-9, max_draws=10))
    assert q.draws == 10


def test_draws_made_in_several_rounds_equal_draws_made_at_once() -> None:
    model, x = from_module(linear()), series(2, 40)
    at_once = score(model, x, 12, protocol=Protocol(draws=8))
    in_turn = score(model, x, 12, protocol=Protocol(draws=2, precision=1e-9, max_draws=8))
    np.testing.assert_allclose(at_once.normalised, in_turn.normalised, rtol=1e-12)


def test_a_model_that_writes_into_its_input_is_scored_like_its_out_of_place_version() -> None:
    weight = torch.randn(40, 12, generator=torch.Generator().manual_seed(0))

    def in_place(x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=1, keepdim=True)
        x -= mean
        x *= 3
        return torch.tanh(x @ weight) + mean

    def out_of_place(x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=1, keepdim=True)
        return torch.tanh(((x - mean) * 3) @ weight) + mean

    x = series(3, 40)
    before = x.clone()
    one, two = score(from_module(in_place), x, 12), score(from_module(out_of_place), x, 12)
    assert torch.equal(x, before)
    np.testing.assert_allclose(one.normalised, two.normalised, rtol=1e-6)


def test_an_odd_max_draws_is_rounded_down_to_whole_pairs() -> None:
    q = score(from_module(linear()), series(2, 40), 12, protocol=Protocol(precision=1e-9, max_draws=7))
    assert q.draws == 6


def repeats(x: torch.Tensor) -> torch.Tensor:
    """`(B, L) -> (B, 1)`: whether a window holds a value twice, as every perturbed one does."""
    return (x.sort(dim=1).values.diff(dim=1) == 0).any(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (lambda x: torch.ones(len(x), 12) + 0 * x[:, :12], "constant forecast"),
        (lambda x: x[:, :12] / 0, "non-finite forecast"),
        (lambda x: x[:, :12] * 1e-42, r"subnormal forecast: no value is larger than \d\S*e-4\d, where float32"),
        (lambda x: x[:, :12].double() * 1e200, "the variance of the forecasts is inf"),
        (lambda x: x[:, :12] / (~repeats(x)), r"non-finite perturbed forecast: .* \d+\.\d% of the changes"),
        (lambda x: x[:, :12].double() * (1 + 1e200 * repeats(x).double()), "non-finite perturbed forecast"),
    ],
)
def test_a_model_without_a_forecast_to_explain_is_not_scored(module, reason: str) -> None:
    with pytest.raises(Unscorable, match=reason):
        score(from_module(module), series(2, 40), 12)


@pytest.mark.parametrize(
    ("x", "horizon", "reason"),
    [
        (torch.full((2, 40), 3.0), 12, "flat windows: the same value at every position"),
        (series(1, 40), 1, "one forecast step: .* Give a horizon of at least 2"),
        (series(2, 40), 1, "one forecast step"),
    ],
)
def test_a_gain_that_can_only_be_zero_is_not_measured(x: torch.Tensor, horizon: int, reason: str) -> None:
    model = from_module(lambda x: torch.linspace(1, 2, horizon) + x[:, :1])
    with pytest.raises(Unscorable, match=reason):
        score(model, x, horizon)


def test_a_flat_window_is_left_out_of_every_mean_and_counted() -> None:
    model, x = from_module(linear()), series(4, 40)
    x[2] = 3.0
    q, others = score(model, x, 12), score(model, x[[0, 1, 3]], 12)
    assert (q.flat_windows, q.windows, others.flat_windows) == (1, 3, 0)
    assert (q.normalised, q.error, q.rank) == (others.normalised, others.error, others.rank)
    assert (q.variance, q.effective_lookback) == (others.variance, others.effective_lookback)
    assert "1 flat window is left out." in str(q)
    with pytest.raises(HrxError, match=r"the value at \[3, 0\] is inf"):
        score(model, torch.cat([x[:3], torch.full((1, 40), float("inf"))]), 12)


def test_a_window_of_several_channels_is_flat_where_all_of_them_are() -> None:
    x = torch.stack([series(3, 20), series(3, 20)], dim=2)
    x[0, :, 0], x[1] = 2.0, 5.0
    assert moving(x).tolist() == [True, False, True]
    x[1, 3, 1] = float("nan")
    assert moving(x).tolist() == [True, True, True]  # a missing value is left to the model


def test_insertion_divides_the_means_over_draws_and_not_each_draw() -> None:
    model, x = from_module(linear(33, 5)), series(2, 33)
    q = score(model, x, 5, protocol=Protocol(draws=4))
    drawn = replacements(x, Protocol(draws=4), stream=0, first=0, count=4, variants=1)[:, 0].numpy()
    run = by_definition.Run(one_forecast(model, 5), x.numpy(), explain(model, x, 5).numpy(), drawn, 9)
    of_means, of_draws = [], []
    for w, h in itertools.product(range(2), run.steps):
        own, shared = (np.array([run.retention(w, d, h, row) for d in range(4)]) for row in (h, None))
        everything = own[:, 0]
        of_means.append(1 - own.mean(axis=0) / everything.mean() - (1 - shared.mean(axis=0) / everything.mean()))
        of_draws.append(1 - own / everything[:, None] - (1 - shared / everything[:, None]))
    assert q.normalised.insertion == pytest.approx(np.mean(of_means), rel=1e-5)
    assert abs(np.mean(of_draws) - np.mean(of_means)) > 0.01


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool])
def test_a_forecast_that_is_not_real_is_refused(dtype: torch.dtype) -> None:
    model = from_module(lambda x: x[:, :12].to(dtype))
    with pytest.raises(ModelError, match=f"returned {dtype}, not real floating-point numbers"):
        score(model, series(2, 40), 12)


def test_a_step_that_no_deletion_can_change_is_dropped_from_insertion_and_counted() -> None:
    module = linear()
    with torch.no_grad():
        module.weight[0] = 0
    q = score(from_module(module), series(3, 40), 12)
    assert q.insertion_dropped == 3
    assert np.isnan(q.steps["insertion"][0])
    assert np.isfinite(q.normalised.insertion)


class Small(MemoryBudget):
    """A budget that admits a fixed number of perturbed forecasts at once, and every block of gradient rows."""

    def __init__(self, rows: int):
        super().__init__()
        self._rows = rows

    def fastest(self, model: Forecaster, window: torch.Tensor, horizon: int, most: int) -> int:
        return min(self._rows, most)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm"])
def test_batch_size_and_thread_count_change_quantities_by_less_than_one_in_ten_thousand(
    checkpoints: dict[str, Path], family: str
) -> None:
    model, x = load(str(checkpoints[family])), series(4, 96)
    reference = score(model, x, 24, protocol=Protocol(draws=2), budget=Small(512))
    threads = torch.get_num_threads()
    for rows, used in ((7, 1), (64, 2)):
        torch.set_num_threads(used)
        again = score(model, x, 24, protocol=Protocol(draws=2), budget=Small(rows))
        torch.set_num_threads(threads)
        for name in QUANTITIES:
            a, b = getattr(reference.normalised, name), getattr(again.normalised, name)
            assert b == pytest.approx(a, rel=1e-4, abs=1e-6), name
        ranks = again.rank, again.rank_entropy
        assert ranks == pytest.approx((reference.rank, reference.rank_entropy), rel=0 if used == threads else 1e-4)


def test_the_same_call_twice_gives_the_same_digits(checkpoints: dict[str, Path]) -> None:
    model, x = load(str(checkpoints["ttm"])), series(2, 96)
    first, second = (score(model, x, 24, protocol=Protocol(draws=2)) for _ in range(2))
    assert first.normalised == second.normalised
    assert first.rank == second.rank


@pytest.mark.parametrize("call", [explain, score])
def test_an_infinite_value_in_the_windows_is_refused_with_its_place(call: object) -> None:
    x = series(2, 40)
    x[1, 7] = float("inf")
    with pytest.raises(HrxError, match=r"the value at \[1, 7\] is inf: a value lies between"):
        call(from_module(linear()), x, 12)  # type: ignore[operator]
