import numpy as np
import pytest
import torch
from helpers.tiny import series
from hypothesis import given
from hypothesis import strategies as st

from hrx.adapters import from_module
from hrx.audit import Protocol
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import deletion_counts
from hrx.audit.scoring.deletion import Sweep, masks, ranks, replacements


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_ranks_put_the_most_important_first_and_break_ties_by_position(values: list[int]) -> None:
    order = sorted(range(len(values)), key=lambda t: (-values[t], t))
    place = ranks(torch.tensor([values], dtype=torch.float64))[0].tolist()
    assert [order[p] for p in place] == list(range(len(values)))


def test_least_relevant_first_is_the_exact_reverse_of_most_relevant_first() -> None:
    place = ranks(torch.tensor([[0.0, 3.0, 3.0, 1.0, 0.0]]))
    deleted = masks(place[:, None], np.arange(6))[0, 0]
    order = torch.argsort(place[0])
    for k in range(6):
        assert set(deleted[0, k].nonzero().flatten().tolist()) == set(order[:k].tolist())
        assert set(deleted[1, k].nonzero().flatten().tolist()) == set(order.flip(0)[:k].tolist())


@pytest.mark.parametrize("kind", ["antithetic", "paired", "independent"])
def test_every_draw_rearranges_the_values_of_its_own_window(kind: str) -> None:
    x = series(3, 21)
    drawn = replacements(x, Protocol(draws_kind=kind), stream=5, first=0, count=4, variants=6)
    assert drawn.shape == (3, 6 if kind == "independent" else 1, 4, 21)
    for w in range(3):
        for one in drawn[w].reshape(-1, 21):
            assert torch.equal(one.sort().values, x[w].sort().values)


def test_the_second_draw_of_a_pair_gives_each_position_the_value_of_the_opposite_rank() -> None:
    x = series(1, 20)
    first, second = replacements(x, Protocol(), stream=0, first=0, count=2, variants=1)[0, 0]
    ordered = x[0].sort().values
    for a, b in zip(first, second, strict=True):
        rank_a, rank_b = int((ordered < a).sum()), int((ordered < b).sum())
        assert rank_a + rank_b == 19


def test_replacements_are_uniform_over_the_window() -> None:
    x = torch.arange(6.0)[None]
    drawn = replacements(x, Protocol(draws=2), stream=0, first=0, count=6000, variants=1)[0, 0]
    counts = torch.stack([(drawn == value).sum(dim=0) for value in range(6)])
    # A cell is binomial(6000, 1/6) at most: six standard deviations either side.
    assert (counts - 1000).abs().max() < 6 * np.sqrt(6000 / 6 * 5 / 6) * 2**0.5


def test_a_draw_does_not_depend_on_how_many_are_drawn_at_once_or_on_the_windows_beside_it() -> None:
    x, protocol = series(4, 30), Protocol()
    together = replacements(x, protocol, stream=3, first=0, count=8, variants=1)
    later = replacements(x, protocol, stream=3, first=6, count=2, variants=1)
    alone = replacements(x[:1], protocol, stream=3, first=0, count=8, variants=1)
    assert torch.equal(together[:, :, 6:], later)
    assert torch.equal(together[:1], alone)
    assert not torch.equal(together, replacements(x, protocol, stream=4, first=0, count=8, variants=1))


class Counting(torch.nn.Module):
    """Linear, and records every input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(16, 12))
        self.inputs: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inputs.append(x.detach().clone())
        return x @ self.weight


def test_a_sweep_evaluates_each_different_deletion_once_and_at_most_127_per_window_and_draw() -> None:
    module = Counting()
    model = from_module(module, copy=False)
    x, steps = series(2, 16), np.array([0, 2, 3, 5, 6, 8, 9, 11])
    importance = torch.rand(2, 9, 16, dtype=torch.float64)
    with torch.no_grad():
        forecast = model.forward(x, 12)
    budget = MemoryBudget()
    budget.rows(model, x[0], 12, 1)
    module.inputs.clear()
    sweep = Sweep(model, x, forecast, importance, steps, Protocol(), budget)
    errors = sweep.errors(first=0, count=4)
    different = set()
    for w in range(2):
        for row in importance[w]:
            order = sorted(range(16), key=lambda t, row=row: (-row[t], t))
            for k in deletion_counts(16, 9)[1:]:
                different |= {(w, frozenset(order[:k])), (w, frozenset(order[::-1][:k]))}
    assert sweep.forecasts == sum(len(batch) - 1 for batch in module.inputs) == 4 * len(different) <= 2 * 4 * 127
    assert all(torch.equal(batch[-1], x[0]) for batch in module.inputs), "an unperturbed window in each batch"
    assert sweep.apart <= 1e-6
    assert errors.shape == (2, 4, 9, 2, 9, 8)


def test_at_both_ends_of_the_grid_all_orderings_agree() -> None:
    model = from_module(Counting())
    x, steps = series(2, 16), np.array([0, 11])
    with torch.no_grad():
        forecast = model.forward(x, 12)
    importance = torch.rand(2, 3, 16, dtype=torch.float64)
    errors = Sweep(model, x, forecast, importance, steps, Protocol(), MemoryBudget()).errors(first=0, count=2)
    assert (errors[..., 0, :] == 0).all()
    assert (errors[..., -1, :] == errors[:, :, :1, :1, -1, :]).all()
