"""Parts of a revision: closed forms, statsmodels' news, adding up, Shapley values, and what one costs."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from hrx.adapters import Forecaster, Identity, Limits
from hrx.audit.revision import PRECISION, revise

L, H = 12, 6


class Function(Forecaster):
    """A forecaster that is a function of its windows; it counts what it is asked."""

    official_call = "function"

    def __init__(self, function: Callable[[Tensor], Tensor], limits: Limits | None = None):
        self.identity = Identity("function", "helpers", "generated", fingerprint="0" * 64, library="torch")
        self.limits, self.function = limits or Limits(lookbacks=(L,)), function
        self.forwards = self.backwards = 0

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        y = self.function(x)
        self.forwards += len(x)
        if y.requires_grad:
            y.register_hook(self._count)
        return y

    def _count(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)

    official = predict


def without_derivative(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same through Python's numbers, as a model of another language or a service."""
    return lambda x: torch.tensor(function(torch.tensor(x.tolist(), dtype=x.dtype)).tolist(), dtype=x.dtype)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape))


def network(seed: int, width: int = 8) -> Callable[[Tensor], Tensor]:
    first, second, bias = drawn(seed, L, width) / L**0.5, drawn(seed + 1, width, H), drawn(seed + 2, width)
    return lambda x: torch.tanh(x @ first + bias) @ second


@pytest.mark.parametrize("change", [lambda f: f, without_derivative])
def test_of_a_linear_model_a_new_value_contributes_its_weight_times_its_surprise(change) -> None:
    weights, history, arrived = drawn(1, L, H), drawn(2, L), drawn(3, 4)
    parts = revise(Function(change(lambda x: x @ weights)), history, arrived, H)
    old = history @ weights
    expected = (weights[-4:, : H - 4] * (arrived - old[:4])[:, None]).T
    np.testing.assert_allclose(parts.news, expected, atol=1e-6)
    np.testing.assert_allclose(parts.expected, old[:4])
    quiet = torch.cat([history[4:], old[:4]]) @ weights
    np.testing.assert_allclose(parts.drift, (quiet[: H - 4] - old[4:]), atol=1e-12)
    np.testing.assert_allclose(parts.new, (torch.cat([history[4:], arrived]) @ weights)[: H - 4])
    np.testing.assert_allclose(parts.remainder, 0, atol=1e-12)
    assert parts.dropped is None


def test_what_the_dropped_history_changes_stands_apart_where_the_model_takes_the_longer_window() -> None:
    history, arrived = drawn(1, L), drawn(2, 2)
    parts = revise(Function(lambda x: x.sum(dim=1, keepdim=True).expand(-1, H), Limits()), history, arrived, H)
    total = float(history.sum())
    np.testing.assert_allclose(parts.drift, 2 * total)  # its forecasts are that sum, and it adds two of them
    assert parts.dropped is not None
    np.testing.assert_allclose(parts.dropped, -float(history[:2].sum()))
    np.testing.assert_allclose(parts.news, np.tile((arrived - total).numpy(), (H - 2, 1)))


AR = (0.55, 0.3, -0.25)
AR_HISTORY = (0.8, -0.4, 1.1, 0.3, -0.9, 0.2, 0.7, 1.4, -0.1, 0.5, -1.2, 0.6)
AR_ARRIVED = (1.5, -0.7)
STATSMODELS = ((0.4965, -0.6021125), (-0.140675, -0.65958687), (0.07157875, -0.26971903), (-0.12695919, -0.1956934))
"""`impact` by date and new value, of `news` in statsmodels 0.15.0 on these values: the test below prints it."""


def autoregressive(x: Tensor) -> Tensor:
    for _ in range(H):
        x = torch.cat([x, (x[:, [-1, -2, -3]] * torch.tensor(AR, dtype=x.dtype)).sum(dim=1, keepdim=True)], dim=1)
    return x[:, -H:]


def test_an_autoregressive_model_has_the_news_of_statsmodels_and_no_drift() -> None:
    statsmodels = pytest.importorskip("statsmodels.tsa.arima.model", reason="statsmodels is not installed")
    values = np.array(AR_HISTORY + AR_ARRIVED)
    model = statsmodels.ARIMA(values, order=(3, 0, 0), trend="n")
    whole = model.smooth([*AR, 1.0])
    before = statsmodels.ARIMA(values[:L], order=(3, 0, 0), trend="n").smooth([*AR, 1.0])
    news = whole.news(before, start=L + 2, end=L + H - 1, comparison_type="previous")
    table = news.details_by_impact.reset_index()
    impacts = table.pivot_table(index="impact date", columns="update date", values="impact").to_numpy()
    np.testing.assert_allclose(autoregressive_parts().news, impacts, atol=1e-6)


def autoregressive_parts():
    history, arrived = torch.tensor(AR_HISTORY).double(), torch.tensor(AR_ARRIVED).double()
    return revise(Function(autoregressive), history, arrived, H)


def test_an_autoregressive_model_has_the_news_that_statsmodels_printed_and_no_drift() -> None:
    parts = autoregressive_parts()
    np.testing.assert_allclose(parts.news, STATSMODELS, atol=1e-6)
    np.testing.assert_allclose(parts.drift, 0, atol=1e-12)


@pytest.mark.slow
def test_contributions_and_drift_add_up_to_the_revision_in_a_thousand_random_cases() -> None:
    rng, cases = np.random.default_rng(0), 0
    for seed in range(1000):
        model = network(seed)
        k = int(rng.integers(1, H))
        forecaster = Function(model if seed % 2 else without_derivative(model), Limits() if seed % 3 else None)
        forecaster.function = lambda x, model=forecaster.function: model(x[:, -L:])
        parts = revise(forecaster, drawn(seed + 5000, L), drawn(seed + 9000, k), H)
        whole = parts.old + parts.drift + parts.news.sum(axis=1) + (0 if parts.dropped is None else parts.dropped)
        np.testing.assert_allclose(whole, parts.new, atol=PRECISION * float(np.abs(parts.new - parts.old).max()))
        assert (parts.dropped is None) == (seed % 3 == 0)
        assert (parts.points == 0) == (seed % 2 == 0)
        cases += 1
    assert cases == 1000


def test_one_revision_leaves_over_less_than_one_percent_and_costs_at_most_sixty_passes() -> None:
    smooth = Function(network(3))
    parts = revise(smooth, drawn(6, L), 3 * drawn(7, H - 1), H)  # of one date
    assert abs(parts.remainder[0]) < PRECISION * abs(parts.new[0] - parts.old[0])
    assert (smooth.forwards, smooth.backwards) == (3 + parts.points, parts.points)
    first, second = drawn(4, L, 64) / L**0.5, drawn(5, 64, H)
    rough = Function(lambda x: torch.relu(x[:, -L:] @ first) @ second, Limits())
    assert revise(rough, drawn(6, L), 3 * drawn(7, H - 1), H).points == 24  # the finest at this precision
    assert (rough.forwards, rough.backwards) == (32, 28)


def test_a_finer_precision_refines_the_path() -> None:
    rough = drawn(4, L, 64) / L**0.5, drawn(5, 64, H)
    model = Function(lambda x: torch.relu(x @ rough[0]) @ rough[1])
    coarse = revise(model, drawn(6, L), 3 * drawn(7, 3), H)
    fine = revise(model, drawn(6, L), 3 * drawn(7, 3), H, precision=1e-4)
    assert fine.points > coarse.points
    assert np.abs(fine.remainder).max() < np.abs(coarse.remainder).max()


def test_without_derivatives_new_values_have_their_shapley_values() -> None:
    model, history, arrived = network(8), drawn(9, L), drawn(10, 3)
    found = revise(Function(without_derivative(model)), history, arrived, H).news
    own = torch.cat([history[3:], model(history[None])[0, :3]])
    shares = np.zeros((H - 3, 3))
    for order in permutations(range(3)):  # the mean of what a value adds as it joins, over all orders
        window = own.clone()
        for joined in order:
            before = model(window[None])[0, : H - 3]
            window[L - 3 + joined] = arrived[joined]
            shares[:, joined] += (model(window[None])[0, : H - 3] - before).numpy() / 6
    np.testing.assert_allclose(found, shares, atol=1e-12)


def test_more_than_eight_new_values_are_sampled_and_still_add_up() -> None:
    long = 24
    weights, history, arrived = drawn(1, L, long), drawn(2, L), drawn(3, 10)
    linear = revise(Function(without_derivative(lambda x: x @ weights)), history, arrived, long)
    surprise = arrived - (history @ weights)[:10]
    np.testing.assert_allclose(linear.news, (weights[-10:, : long - 10] * surprise[:, None]).T, atol=1e-9)
    bent = revise(Function(without_derivative(lambda x: torch.tanh(x @ weights))), history, arrived, long)
    np.testing.assert_allclose(bent.remainder, 0, atol=1e-9)


def test_of_more_new_values_than_a_window_holds_only_the_last_contribute() -> None:
    long = 20
    weights, history, arrived = drawn(1, L, long) / 10, drawn(2, L), drawn(3, 15)
    parts = revise(Function(lambda x: x @ weights), history, arrived, long)
    assert (parts.news[:, :3] == 0).all()
    np.testing.assert_allclose(parts.new, (arrived[-L:] @ weights)[:5])
    np.testing.assert_allclose(parts.remainder, 0, atol=1e-12)
