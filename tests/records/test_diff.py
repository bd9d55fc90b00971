"""Whether two records of one run agree."""

import pytest
from helpers.records import record

from hrx.records.merge import differences
from hrx.records.record import DONE, EXCLUDED


@pytest.mark.parametrize("other", [0.5, float("inf"), float("-inf"), 1e308, None])
def test_a_number_that_is_not_finite_agrees_with_nothing_not_even_itself(other: float | None) -> None:
    for first, second in ((float("inf"), other), (other, float("inf"))):
        found = differences(record("a", g_own=first), record("a", g_own=second))
        assert [one.column for one in found] == ["g_own"]


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [
        ("[0.5, null]", "[0.5, null]", True),
        ("[0.5, null]", "[0.500001, null]", True),
        ("[0.5, null]", "[0.5, 0.0]", False),
        ("[0.5]", "[0.5, 0.5]", False),
        ("[Infinity]", "[Infinity]", False),
        ("[Infinity]", "[0.5]", False),
        ("[NaN]", "[NaN]", False),
        ("[NaN]", "[null]", False),
        ("[1e400]", "[1e400]", False),
        ("[0.5", "[0.5", False),
        ('"text"', '"text"', False),
        ("5", "5", False),
    ],
)
def test_step_lists_agree_where_numbers_do_and_a_missing_step_is_missing_in_both(
    first: str, second: str, agree: bool
) -> None:
    found = differences(record("a", g_own_steps=first), record("a", g_own_steps=second))
    assert [one.column for one in found] == ([] if agree else ["g_own_steps"])


def test_an_infinite_parity_that_excluded_a_run_in_both_is_not_a_contradiction() -> None:
    values = {"check_failed": "equivalence", "parity": float("inf")}
    assert differences(record("a", EXCLUDED, **values), record("a", EXCLUDED, **values)) == []
    assert [one.column for one in differences(record("a", DONE, **values), record("a", DONE, **values))] == ["parity"]
