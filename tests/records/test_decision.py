"""`--until decided`: the test of the sign by definition, its error and power by simulation, and its use of a plan."""

from fractions import Fraction
from itertools import permutations
from math import nan

import numpy as np
import pytest

from hrx.records.decision import Decision, PlanTest, sign_of

STAKES = [Fraction(tenths, 10) for tenths in range(1, 10)]


def capital_by_definition(signs: tuple[int, ...], planned: int, direction: int) -> Fraction:
    """The mean over the stakes of the product of 1 - c + c·x / m, with m the mean of x over what is left if T = 0."""
    capitals = []
    for c in STAKES:
        capital = Fraction(1)
        for at, sign in enumerate(signs):
            rest = Fraction(-direction * sum(signs[:at]), planned - at)  # mean sign of the rest where all sum to zero
            x, m = Fraction(1 + direction * sign, 2), (1 + rest) / 2
            capital *= 1 - c + c * x / m if m > 0 else 1
        capitals.append(capital)
    return sum(capitals, Fraction(0)) / len(STAKES)


def test_the_capital_is_that_of_its_definition_and_fair_over_all_orders_of_a_balanced_plan() -> None:
    population = (1, 1, -1, -1, 0, 0)
    orders = set(permutations(population))
    for used in range(1, 6):
        total = Fraction(0)
        for order in orders:
            test = PlanTest(map(str, range(len(population))))
            for number, sign in enumerate(order[:used]):
                test.add(str(number), sign)
            assert test.decision.used == used
            exact = capital_by_definition(order[:used], len(population), 1)
            assert test.capital("positive") == pytest.approx(float(exact), rel=1e-12)
            mirrored = capital_by_definition(order[:used], len(population), -1)
            assert test.capital("negative") == pytest.approx(float(mirrored), rel=1e-12)
            total += exact
        assert total == len(orders)  # the mean is exactly 1: nobody gains by betting on a plan without a majority


def run_to_the_end(signs: np.ndarray) -> Decision:
    test = PlanTest(map(str, range(len(signs))))
    for number, sign in enumerate(signs.tolist()):
        test.add(str(number), sign)
        if test.decision.sign:
            break
    return test.decision


@pytest.mark.parametrize("zeros", [0, 20])
def test_at_most_five_percent_of_2000_audits_with_a_median_of_zero_stop(zeros: int) -> None:
    rng = np.random.default_rng(0)
    population = np.repeat([1, -1, 0], [20, 20, zeros])
    stopped = sum(run_to_the_end(rng.permutation(population)).sign is not None for _ in range(2000))
    assert 0 < stopped <= 100


def test_a_small_majority_of_the_other_sign_is_rarely_declared() -> None:
    rng = np.random.default_rng(1)
    population = np.repeat([1, -1], [22, 18])
    found = [run_to_the_end(rng.permutation(population)).sign for _ in range(1000)]
    assert found.count("negative") <= 25
    assert found.count(None) == 0  # the last runs settle a majority


def test_four_fifths_of_positive_signs_are_decided_long_before_the_end() -> None:
    rng = np.random.default_rng(2)
    decisions = [run_to_the_end(rng.permutation(np.repeat([1, -1], [160, 40]))) for _ in range(200)]
    assert {one.sign for one in decisions} == {"positive"}
    assert np.median([one.used for one in decisions]) < 50


def test_signs_are_used_in_the_order_of_the_plan_whenever_they_arrive() -> None:
    keys = list("abcdefghijkl")
    in_order, late = PlanTest(keys), PlanTest(keys)
    for key in keys:
        in_order.add(key, 1)
    for key in reversed(keys[1:]):
        late.add(key, 1)
        assert late.decision == Decision(None, 0, 12)
    late.add("a", 1)
    assert late.decision == in_order.decision
    assert (in_order.decision.sign, in_order.decision.used < 12) == ("positive", True)


def test_what_the_rest_cannot_change_is_decided_and_a_tie_never_is() -> None:
    assert run_to_the_end(np.array([-1, -1, 1])) == Decision("negative", 2, 3)
    assert run_to_the_end(np.array([1, -1, 0])) == Decision(None, 3, 3)
    assert run_to_the_end(np.array([], dtype=int)) == Decision(None, 0, 0)


def test_only_a_scored_run_that_beats_naive_has_a_sign() -> None:
    assert [sign_of("done", 1, gain) for gain in (0.1, -0.1, 0.0, nan, None, 1e300)] == [1, -1, 0, 0, 0, 0]
    assert [sign_of("done", 0, 0.1), sign_of("done", None, 0.1)] == [0, 0]
    assert [sign_of("excluded", None, None), sign_of("failed", 1, 0.1)] == [0, 0]
