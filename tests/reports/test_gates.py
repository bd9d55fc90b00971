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
from hrx.reports.gates import EXAMPLES, GATED, estimate_of, exit_code, judge, judge_audit, parse
from hrx.reports.runs import Interval


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
    assert parse(text)[1:] == expected


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


@pytest.mark.parametrize(
    ("text", "estimate", "passed", "strictly"),
    [
        ("g_margin >= -0.02", (-0.05, -0.09, -0.01), True, False),
        ("g_margin >= -0.02", (-0.05, -0.09, -0.03), False, False),
        ("g_margin >= -0.02", (-0.01, -0.09, 0.03), True, True),
        ("mse <= +2%", (0.05, 0.01, 0.09), True, False),
        ("mse <= +2%", (0.05, 0.03, 0.09), False, False),
        ("parity <= 1e-5", (2e-5, 2e-5, 2e-5), False, False),
        ("parity <= 1e-5", (1e-5, 1e-5, 1e-5), True, True),
        ("beats_naive >= -5%", (-0.05 - 1e-16, -0.05 - 1e-16, -0.05 - 1e-16), True, True),
    ],
)
def test_a_gate_fails_when_the_interval_is_beyond_and_a_strict_one_when_the_estimate_is(
    text: str, estimate: tuple, passed: bool, strictly: bool
) -> None:
    assert judge(parse(text), Interval(*estimate)).passed is passed
    assert judge(parse(text), Interval(*estimate), strict=True).passed is strictly


def test_a_gate_without_a_value_is_neither_passed_nor_failed() -> None:
    nothing = Interval(math.nan, math.nan, math.nan)
    judged = judge(parse("g_own >= 0"), nothing)
    assert judged.passed is None
    passed, failed = (judge(parse("g_own >= 0"), Interval(x, x, x)) for x in (1.0, -1.0))
    assert exit_code([]) == exit_code([passed]) == Exit.DONE
    assert exit_code([passed, judged]) == Exit.NOT_COMPARABLE
    assert exit_code([judged, failed, passed]) == Exit.GATE_FAILED


def test_gates_of_an_audit_read_each_models_own_figures() -> None:
    rng = np.random.default_rng(0)
    gains = 0.1 + 0.02 * rng.standard_normal(40)
    good = runs(40, fingerprint="a", g_margin=gains, beats_naive=[1] * 30 + [0] * 10, parity=[1e-7] * 39 + [3e-5])
    bad = runs(40, fingerprint="b", g_margin=-gains, beats_naive=0)
    failed = runs(5, fingerprint="c", status="failed", beats_naive=None, parity=None)
    frame = pd.concat([good, bad, failed], ignore_index=True)
    judged = judge_audit(["g_margin >= 0.05", "beats_naive >= 70%", "parity <= 1e-5"], frame)
    outcomes = {(one.fingerprint, one.judged.gate.quantity): one.judged for one in judged}
    assert [outcomes["a", name].passed for name in ("g_margin", "beats_naive", "parity")] == [True, True, False]
    assert [outcomes["b", name].passed for name in ("g_margin", "beats_naive", "parity")] == [False, False, True]
    assert {outcomes["c", name].passed for name in ("g_margin", "beats_naive", "parity")} == {None}
    assert outcomes["a", "g_margin"].estimate.point == np.median(gains)
    assert outcomes["a", "beats_naive"].estimate.point == 0.75
    assert outcomes["a", "parity"].estimate == (3e-5, 3e-5, 3e-5)


def test_an_infinite_parity_is_the_worst_and_fails_its_gate() -> None:
    worst = estimate_of("parity", np.array([1e-7, math.inf, math.nan]))
    assert worst == (math.inf, math.inf, math.inf)
    gate = parse("parity <= 1e-5")
    assert [judge(gate, worst, strict=strict).passed for strict in (False, True)] == [False, False]
    (judged,) = judge_audit(["parity <= 1e-5"], runs(3, parity=[1e-7, math.inf, math.nan]))
    assert judged.judged.passed is False
    assert exit_code([judged.judged]) == Exit.GATE_FAILED
    (unknown,) = judge_audit(["parity <= 1e-5"], runs(3, parity=math.nan))
    assert unknown.judged.passed is None


def test_gates_of_an_audit_leave_out_impossible_numbers() -> None:
    gains = [0.1, 0.11, 0.12, 0.13, 1e200, 1.7e308, 1.7e308, math.inf, math.nan]
    marks = [f"s{i}" for i in range(9)]
    other = runs(9, series_fingerprint=marks, seed=1, g_own=[math.inf, *[math.nan] * 8])
    frame = pd.concat([runs(9, series_fingerprint=marks, g_own=gains), other], ignore_index=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (judged,) = judge_audit(["g_own <= 0.2"], frame, strict=True)
    assert judged.judged.passed is True
    assert judged.judged.estimate == estimate_of("g_own", np.array(gains[:4]))
    assert judged.judged.estimate.point == pytest.approx(0.115)
