"""The sequential sign test: closed forms on small populations, and its error over simulated audits."""

import itertools

import numpy as np
import pytest

from hrx.audit.runner.decision import Decision, Sign, SignTest


def decided_after(signs: list[int]) -> tuple[int, int]:
    """The decision, and after how many runs it fell (0: never)."""
    test = SignTest(len(signs))
    for number, sign in enumerate(signs, 1):
        test.add(sign)  # type: ignore[arg-type]
        if test.decided:
            return test.decided, number
    return 0, 0


@pytest.mark.parametrize("positive", range(4))
def test_over_all_orders_of_a_population_without_a_majority_the_capital_does_not_grow(positive: int) -> None:
    population = [1] * positive + [-1] * positive + [0] * (7 - 2 * positive)
    orders = sorted(set(itertools.permutations(population)))
    for end in range(len(population)):
        capitals = []
        for order in orders:
            test = SignTest(len(population))
            for sign in order[:end]:
                test.add(sign)  # type: ignore[arg-type]
            capitals.append([test._capital[side].mean() for side in (1, -1)])
        assert (np.mean(capitals, axis=0) <= 1 + 1e-12).all(), end


@pytest.mark.parametrize("seed", range(3))
def test_the_capital_is_the_product_of_the_bets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1, 0, 1], size=40)
    test = SignTest(60)
    stakes = [k / 10 for k in range(1, 10)]
    capital = dict.fromkeys(stakes, 1.0)
    for number, sign in enumerate(signs):
        mean = 0.5 - sum(signs[:number]) / (2 * (60 - number))
        for stake in stakes:
            capital[stake] *= 1 + stake / mean * ((1 + sign) / 2 - mean)
        test.add(int(sign))  # type: ignore[arg-type]
    assert float(test._capital[1].mean()) == pytest.approx(sum(capital.values()) / 9, rel=1e-9)


def test_at_most_five_percent_of_audits_without_a_majority_are_decided() -> None:
    rng = np.random.default_rng(0)
    wrong, audits = 0, 2000
    for number in range(audits):
        size = (20, 60, 100, 200)[number % 4]
        zeros = size // 4 if number % 8 < 4 else 0
        half = (size - zeros) // 2
        population = np.array([1] * half + [-1] * half + [0] * (size - 2 * half))
        wrong += decided_after(list(rng.permutation(population)))[0] != 0
    assert wrong <= 0.05 * audits


def test_a_clear_majority_is_decided_early_and_on_the_right_side() -> None:
    rng = np.random.default_rng(1)
    used = []
    for side in (1, -1):
        for _ in range(50):
            population = side * np.array([1] * 320 + [-1] * 80)
            decision, number = decided_after(list(rng.permutation(population)))
            assert decision == side
            used.append(number)
    assert np.median(used) <= 80


def test_a_majority_that_the_remaining_runs_cannot_change_is_decided() -> None:
    assert decided_after([1, 1, 1, -1, -1]) == (1, 3)
    assert decided_after([1, 1, 1, 0, -1]) == (1, 3)
    assert decided_after([-1, -1, -1]) == (-1, 2)
    assert decided_after([1, -1, 1, -1])[0] == 0


def test_runs_count_in_the_order_of_the_plan_whatever_order_they_finish_in() -> None:
    rng = np.random.default_rng(2)
    keys = [f"run{number}" for number in range(60)]
    signs: list[Sign] = [1 if value < 0.85 else -1 for value in rng.random(60)]
    in_order, shuffled = Decision(keys), Decision(keys)
    for key, sign in zip(keys, signs, strict=True):
        in_order.add(key, sign)
    for place in rng.permutation(60):
        shuffled.add(keys[place], signs[place])
    assert in_order.decided == shuffled.decided == 1
    late = Decision(keys)
    for key in keys[1:]:
        late.add(key, 1)
    assert late.decided == 0  # the first run of the plan is not known yet
    late.add(keys[0], -1)
    assert late.decided == 1
