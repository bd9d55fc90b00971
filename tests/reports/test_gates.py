"""Gates: what an expression means, where a wrong one is wrong, and on which side of the interval it fails."""

import contextlib
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers.constructed import runs
from hypothesis import given
from hypothesis import strategies as some

from hrx.errors import Exit, HrxError
from hrx.reports.gates import EXAMPLES, FEWEST_TO_DECIDE, GATED, estimate_of, exit_code, judge, judge_audit, parse
from hrx.reports.statistics import Interval


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g_margin >= -0.02", ("g_margin", True, -0.02, False)),
        ("beats_naive >= -5%", ("beats_naive", True, -0.05, False)),
        ("mse <= +2%", ("mse", False, 0.02, True)),
        ("parity <= 1e-5", ("parity", False, 1e-5, False)),
        ("  rank<=.5 % ", ("rank", False, 0.005, True)),
        ("g_own>=0", ("g_own", True, 0.0, False)),
        ("mae <= 2.", ("mae", False, 2.0, False)),
    ],
)
def test_an_expression_is_a_quantity_a_side_and_a_bound(text: str, expected: tuple) -> None:
    assert parse(text)[1:] == (*expected, False)


@pytest.mark.parametrize(
    ("text", "position", "instead"),
    [
        ("", 1, "the end"),
        (">= 1", 1, "'>= 1'"),
        ("g_margin", 9, "the end"),
        ("g_margin > -0.02", 10, "'> -0.02'"),
        ("g_margin == 0", 10, "'== 0'"),
        ("g_margin >= ", 13, "the end"),
        ("g_margin >= x", 13, "'x'"),
        ("g_margin >= 1e999", 13, "'1e999'"),
        ("g_margin >= nan", 13, "'nan'"),
        ("g_margin >= 0.1 and g_own >= 0", 17, "'and g_own >= 0'"),
        ("mse <= 2%%", 10, "'%'"),
    ],
)
def test_a_wrong_expression_is_answered_with_its_position_and_examples(text: str, position: int, instead: str) -> None:
    with pytest.raises(HrxError) as wrong:
        parse(text)
    assert f"at position {position}, not {instead}." in str(wrong.value)
    assert all(example in str(wrong.value) for example in EXAMPLES)


def test_an_unknown_quantity_gets_near_matches() -> None:
    with pytest.raises(HrxError, match="Did you mean 'g_margin'"):
        parse("g_margn >= 0")


@pytest.mark.parametrize("name", [name for name, kind in GATED.items() if kind in ("signed", "worst")])
def test_a_percentage_of_what_may_be_zero_is_refused(name: str) -> None:
    with pytest.raises(HrxError, match=f"asks for a percentage of {name}"):
        parse(f"{name} >= -5%")


def test_an_audit_has_no_relative_change_but_shares_in_percent() -> None:
    with pytest.raises(HrxError, match="nothing to compare with"):
        parse("mse <= 2%", absolute=True)
    assert parse("beats_naive >= 60%", absolute=True).bound == 0.6


@given(some.text(max_size=30))
def test_any_text_is_a_gate_or_an_answer(text: str) -> None:
    with contextlib.suppress(HrxError):
        assert parse(text).quantity in GATED


def test_a_relative_change_has_no_bound_at_or_below_minus_100_percent() -> None:
    with pytest.raises(HrxError, match="bounds a relative change at -100 % or below"):
        parse("mse <= -100%")


@pytest.mark.parametrize(
    ("text", "estimate", "outcome", "strictly"),
    [
        ("g_margin >= -0.02", (-0.05, -0.09, -0.01), "undecided", "failed"),
        ("g_margin >= -0.02", (-0.05, -0.09, -0.03), "failed", "failed"),
        ("g_margin >= -0.02", (-0.01, -0.09, 0.03), "undecided", "passed"),
        ("g_margin >= -0.02", (0.01, -0.01, 0.03), "passed", "passed"),
        ("mse <= +2%", (0.05, 0.01, 0.09), "undecided", "failed"),
        ("mse <= +2%", (0.05, 0.03, 0.09), "failed", "failed"),
        ("mse <= +2%", (0.01, -0.03, 0.02), "passed", "passed"),
        ("parity <= 1e-5", (2e-5, 2e-5, 2e-5), "failed", "failed"),
        ("parity <= 1e-5", (1e-5, 1e-5, 1e-5), "passed", "passed"),
        ("beats_naive >= -5%", (-0.05 - 1e-16, -0.05 - 1e-16, -0.05 - 1e-16), "passed", "passed"),
    ],
)
def test_a_gate_is_undecided_where_the_interval_contains_the_bound_and_strict_ones_follow_the_estimate(
    text: str, estimate: tuple, outcome: str, strictly: str
) -> None:
    assert judge(parse(text), Interval(*estimate), 20).outcome == outcome
    assert judge(parse(text), Interval(*estimate), 20, strict=True).outcome == strictly


def test_an_undecided_gate_says_its_power_and_the_configurations_it_needs() -> None:
    judged = judge(parse("mse <= +5%"), Interval(0.02, -0.08, 0.12), 25)
    # A standard error of 0.2 / 3.92 = 0.051 against a distance of 0.03.
    assert "n=25 decides with a power of 9 %; 80 % needs about 568 configurations" in judged.reason
    on_it = judge(parse("mse <= +5%"), Interval(0.05, -0.08, 0.12), 25)
    assert "more than 1,000 configurations" in on_it.reason


def test_five_values_cannot_have_a_95_percent_interval_of_their_median() -> None:
    """The widest interval of a median is the range, which covers it in 1 - 2^(1-n): 93.75 % for five values."""
    assert 1 - 2.0 ** (1 - (FEWEST_TO_DECIDE - 1)) < 0.95 < 1 - 2.0 ** (1 - FEWEST_TO_DECIDE)
    beyond = Interval(-1.0, -1.1, -0.9)
    assert judge(parse("g_own >= 0"), beyond, FEWEST_TO_DECIDE).outcome == "failed"
    few = judge(parse("g_own >= 0"), beyond, FEWEST_TO_DECIDE - 1)
    assert (few.outcome, few.reason) == ("undecided", "5 configurations: a 95 % interval needs at least 6")


@pytest.mark.parametrize(("values", "has_interval"), [([0.1], False), ([0.1, 0.2], False), ([0.1, 0.2, 0.3], True)])
def test_an_interval_begins_with_three_values(values: list[float], has_interval: bool) -> None:
    for quantity in ("g_own", "beats_naive"):
        found = estimate_of(quantity, np.array(values))
        assert found.point == pytest.approx(np.median(values))
        assert math.isfinite(found.low) == math.isfinite(found.high) == has_interval


def test_failed_comes_before_undecided_and_undecided_before_passed() -> None:
    nothing = Interval(math.nan, math.nan, math.nan)
    open_one = judge(parse("g_own >= 0"), nothing, 0)
    assert (open_one.outcome, open_one.reason) == ("undecided", "no value")
    passed, failed = (judge(parse("g_own >= 0"), Interval(x, x, x), 20) for x in (1.0, -1.0))
    assert exit_code([]) == exit_code([passed]) == Exit.DONE
    assert exit_code([passed, open_one]) == Exit.NOT_DECIDED
    assert exit_code([open_one, failed, passed]) == Exit.GATE_FAILED
    assert [exit_code([passed, open_one], wish) for wish in ("pass", "fail")] == [Exit.DONE, Exit.GATE_FAILED]
    assert exit_code([failed, open_one], "pass") == Exit.GATE_FAILED
    assert exit_code([passed], "fail") == Exit.DONE


def test_gates_of_an_audit_read_each_models_own_figures() -> None:
    rng = np.random.default_rng(0)
    gains = 0.1 + 0.02 * rng.standard_normal(40)
    good = runs(40, fingerprint="a", g_margin=gains, beats_naive=[1] * 30 + [0] * 10, parity=[1e-7] * 39 + [3e-5])
    bad = runs(40, fingerprint="b", g_margin=-gains, beats_naive=0)
    failed = runs(5, fingerprint="c", status="failed", beats_naive=None, parity=None)
    frame = pd.concat([good, bad, failed], ignore_index=True)
    judged = judge_audit(["g_margin >= 0.05", "beats_naive >= 55%", "parity <= 1e-5"], frame)
    outcomes = {(one.fingerprint, one.judged.gate.quantity): one.judged for one in judged}
    names = ("g_margin", "beats_naive", "parity")
    assert [outcomes["a", name].outcome for name in names] == ["passed", "passed", "failed"]
    # None of b's runs beats naive, so no gain of it counts.
    assert [outcomes["b", name].outcome for name in names] == ["undecided", "failed", "passed"]
    assert outcomes["b", "g_margin"].scope == "over 0 of 40 runs: those that beat naive"
    assert {outcomes["c", name].outcome for name in names} == {"undecided"}
    assert outcomes["a", "g_margin"].estimate.point == np.median(gains[:30])
    assert outcomes["a", "g_margin"].scope == "over 30 of 40 runs: those that beat naive"
    assert outcomes["a", "beats_naive"].estimate.point == 0.75
    assert outcomes["a", "parity"].estimate == (3e-5, 3e-5, 3e-5)


@pytest.mark.parametrize(("number", "outcome"), [(9, "undecided"), (10, "passed")])
def test_an_audit_of_fewer_than_ten_runs_decides_no_gate_but_that_of_parity(number: int, outcome: str) -> None:
    frame = runs(number, g_own=0.5, parity=1e-7)
    gain, parity = judge_audit(["g_own >= 0", "parity <= 1e-5"], frame, strict=True)
    assert (gain.judged.outcome, parity.judged.outcome) == (outcome, "passed")
    if outcome == "undecided":
        assert gain.judged.reason == "9 runs with a value, at least 10 are needed"


def test_an_infinite_parity_is_the_worst_and_fails_its_gate() -> None:
    worst = estimate_of("parity", np.array([1e-7, math.inf, math.nan]))
    assert worst == (math.inf, math.inf, math.inf)
    gate = parse("parity <= 1e-5")
    assert [judge(gate, worst, 3, strict=strict).outcome for strict in (False, True)] == ["failed", "failed"]
    (judged,) = judge_audit(["parity <= 1e-5"], runs(3, parity=[1e-7, math.inf, math.nan]))
    assert judged.judged.outcome == "failed"
    assert exit_code([judged.judged]) == Exit.GATE_FAILED
    (unknown,) = judge_audit(["parity <= 1e-5"], runs(3, parity=math.nan))
    assert unknown.judged.outcome == "undecided"


def test_gates_of_an_audit_leave_out_impossible_numbers() -> None:
    good = [0.1 + 0.01 * i for i in range(10)]
    gains = [*good, 1e200, 1.7e308, 1.7e308, math.inf, math.nan]
    marks = [f"s{i}" for i in range(15)]
    other = runs(15, series_fingerprint=marks, seed=1, g_own=[math.inf, *[math.nan] * 14])
    frame = pd.concat([runs(15, series_fingerprint=marks, g_own=gains), other], ignore_index=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (judged,) = judge_audit(["g_own <= 0.2"], frame)
    assert (judged.judged.outcome, judged.judged.n) == ("passed", 10)
    assert judged.judged.estimate == estimate_of("g_own", np.array(good))
    assert judged.judged.estimate.point == pytest.approx(0.145)
