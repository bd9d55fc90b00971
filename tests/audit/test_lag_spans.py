"""Grouped Shapley values and WinIT against closed forms and slow loops by definition."""

from itertools import permutations

import numpy as np
import pytest
import torch
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import from_module
from hrx.audit import explain
from hrx.audit.attribution import AttributionTask
from hrx.audit.attribution.perturbation import replacements_of, sampled_coalitions
from hrx.audit.memory import MemoryBudget

HORIZON, LOOKBACK, STEPS = 5, 22, [1, 3, 5]
SPANS = [range(16, 22), range(10, 16), range(4, 10), range(4)]
"""Positions of four segments of 22 positions, the latest first: ⌈22 / 4⌉ = 6 each, the rest in the oldest."""
AXES = [("step", STEPS), ("whole", None)]


def curved(x: Tensor) -> Tensor:
    """A forecast in which the segments interact."""
    recent, old = x[:, 14:].sum(dim=1), x[:, :9].sum(dim=1)
    return torch.stack([torch.tanh(recent * 0.3) * old + h * x[:, 3 * h] ** 2 for h in range(HORIZON)], dim=1)


def explained(x: Tensor, step: int | None) -> float:
    y = curved(x[None])[0]
    return float(y.sum() if step is None else y[step - 1])


def draws_of(x: Tensor, replacement: str, count: int) -> Tensor:
    task = AttributionTask(from_module(curved), x, HORIZON, (0,), MemoryBudget())
    return replacements_of(task, replacement, 0, count)


def slow_shapley(x: Tensor, drawn: Tensor, step: int | None) -> list[float]:
    """The mean marginal contribution of each segment over all orders and draws, one forecast at a time."""
    totals = [0.0] * len(SPANS)
    orders = list(permutations(range(len(SPANS))))
    for draw in drawn:
        for order in orders:
            window = draw.clone()
            value = explained(window, step)
            for segment in order:
                window[list(SPANS[segment])] = x[list(SPANS[segment])]
                joined = explained(window, step)
                totals[segment] += joined - value
                value = joined
    return [abs(total) / len(orders) / len(drawn) for total in totals]


def slow_winit(x: Tensor, drawn: Tensor, step: int | None) -> list[float]:
    """The distance when everything from a span on is replaced, less the distance when everything after it is."""

    def distance(first: int) -> float:
        changes = []
        for draw in drawn:
            window = x.clone()
            window[first:] = draw[first:]
            changes.append(abs(explained(window, step) - explained(x, step)))
        return float(np.mean(changes))

    return [max(0.0, distance(span[0]) - distance(span[-1] + 1)) for span in SPANS]


def spread(values: list[float]) -> list[float]:
    """A value for each position from a value for each segment."""
    return [next(value for value, span in zip(values, SPANS, strict=True) if t in span) for t in range(LOOKBACK)]


@pytest.mark.parametrize(("axis", "steps"), AXES)
@pytest.mark.parametrize(("name", "slow"), [("shapley_segments", slow_shapley), ("winit", slow_winit)])
@pytest.mark.parametrize("replacement", ["rearranged", "mean"])
def test_an_estimator_by_lag_segments_is_its_definition(
    name: str, slow: object, axis: str, steps: list[int] | None, replacement: str
) -> None:
    x = series(2, LOOKBACK).double()
    count = "segments" if name == "shapley_segments" else "spans"
    settings = f'{{"{count}": 4, "draws": 2, "replacement": "{replacement}"}}'
    ours = explain(from_module(curved), x, HORIZON, estimator=name, axis=axis, steps=steps, settings=settings)
    drawn = draws_of(x, replacement, 2)
    theirs = [[spread(slow(x[w], drawn[w], step)) for step in steps or [None]] for w in range(2)]
    torch.testing.assert_close(ours, torch.tensor(theirs, dtype=torch.float64), rtol=1e-6, atol=1e-7)
    assert ours.amax() > 0


@pytest.mark.parametrize("coalitions", [16, 12])
def test_the_segment_values_of_a_linear_model_are_its_closed_form_exact_or_sampled(coalitions: int) -> None:
    weight = torch.randn(HORIZON, LOOKBACK, generator=torch.Generator().manual_seed(1))
    x = series(2, LOOKBACK)
    settings = f'{{"segments": 4, "coalitions": {coalitions}, "replacement": "mean"}}'
    ours = explain(
        from_module(lambda w: w @ weight.T), x, HORIZON, estimator="shapley_segments", settings=settings, steps=STEPS
    )
    away = weight[[step - 1 for step in STEPS]] * (x - x.mean(dim=1, keepdim=True))[:, None]
    for span in SPANS:
        expected = away[:, :, list(span)].sum(dim=-1, keepdim=True).abs().expand(-1, -1, len(span))
        torch.testing.assert_close(ours[:, :, list(span)], expected, rtol=1e-4, atol=1e-5)


def test_sampled_segment_values_converge_to_the_exact_ones() -> None:
    x, model = series(1, LOOKBACK), from_module(curved)

    def values(coalitions: int) -> Tensor:
        settings = f'{{"segments": 11, "coalitions": {coalitions}}}'
        return explain(model, x, HORIZON, estimator="shapley_segments", settings=settings)

    exact = values(2**11)
    few, many = ((values(count) - exact).norm() / exact.norm() for count in (24, 1500))
    assert 0 < many < min(0.1, few / 2)


def test_sampled_coalitions_share_out_exactly_the_change_from_nothing_to_everything() -> None:
    game = sampled_coalitions(7, 40, np.random.default_rng(0))
    value = torch.randn(2**7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    of = value[(game.kept * 2 ** torch.arange(7)).sum(dim=1)]
    torch.testing.assert_close((game.weight @ of).sum(), value[-1] - value[0])


def test_winit_ignores_positions_that_the_forecast_does_not_use() -> None:
    model = from_module(lambda w: w[:, 10:12].repeat(1, 3)[:, :HORIZON])
    matrix = explain(model, series(2, LOOKBACK), HORIZON, estimator="winit", settings='{"spans": 22}')
    assert matrix[:, :, 10:12].amax() > 0
    assert matrix[:, :, :10].amax() == 0
    assert matrix[:, :, 12:].amax() == 0
