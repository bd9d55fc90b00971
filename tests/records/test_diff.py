"""Whether two records of one run agree."""

from typing import Any

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


@pytest.mark.parametrize(
    ("changes", "tied"),
    [
        ({"g_own": 0.5008}, True),
        ({"g_own": 0.502}, False),
        ({"g_own": 0.502, "g_own_se": 0.004}, True),
        ({"g_own_raw": 2.0, "variance": 4.0}, False),
        ({"g_own_raw": 1.003, "variance": 4.0}, True),
        ({"insertion_raw": 0.303, "variance": 4.0}, False),
        ({"g_own_steps": "[0.507]"}, True),
        ({"g_own_steps": "[0.51]"}, False),
        ({"gap_own": 0.8009}, True),
        ({"rank": 2.0009}, False),
        ({"mse": 0.3009}, False),
        ({"g_margin": float("nan")}, False),
    ],
)
def test_a_gain_within_its_error_or_1e3_differs_by_near_ties_only(changes: dict[str, Any], tied: bool) -> None:
    values: dict[str, Any] = {
        "g_own": 0.5, "g_own_raw": 1.0, "g_own_steps": "[0.5]", "gap_own": 0.8, "rank": 2.0, "mse": 0.3,
        "insertion_raw": 0.3, "g_margin": 0.7, "variance": 4.0,
    }  # fmt: skip
    error = {"g_own_se": changes.pop("g_own_se", 0.0001)}
    found = differences(record("a", DONE, **values, **error), record("a", DONE, **{**values, **changes}, **error))
    assert [one.tied for one in found] == [tied]


def test_what_near_ties_do_not_explain_is_named_first() -> None:
    one, two = (record("a", DONE, g_own=g_own, mse=mse) for g_own, mse in ((0.5, 0.3), (0.5008, 0.4)))
    assert [difference.column for difference in differences(one, two)] == ["mse", "g_own"]
