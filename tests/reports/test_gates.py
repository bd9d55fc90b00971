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
from scipy import stats

from hrx.errors import Exit, HrxError
from hrx.reports.gates import (
    EXAMPLES,
    GATED,
    Judged,
    describe_gate,
    exit_code,
    gate_json,
    judge,
    judge_audit,
    judge_worst,
    parse,
)
from hrx.reports.statistics import cluster_interval, share_interval


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


def judged(text: str, values: list[float], **options: object) -> Judged:
    """A gate on one value for each of several sources."""
    return judge(parse(text), values, [f"d{i}/H" for i in range(len(values))], ["T1"] * len(values), **options)


@pytest.mark.parametrize(
    ("text", "values", "outcome", "strictly"),
    [
        ("g_margin >= -0.02", [-0.05] * 4 + [-0.03] * 4, "failed", "failed"),
        ("g_margin >= -0.02", [-0.05] * 5 + [0.03] * 3, "undecided", "failed"),
        ("g_margin >= -0.02", [-0.05] * 3 + [0.03] * 5, "undecided", "passed"),
        ("g_margin >= -0.02", [-0.01] * 4 + [0.03] * 4, "passed", "passed"),
        ("mse <= +2%", [0.01] * 3 + [0.05] * 5, "undecided", "failed"),
        ("mse <= +2%", [0.03, 0.05, 0.05, 0.05, 0.09], "failed", "failed"),
        ("mse <= +2%", [-0.03, 0.0, 0.01, 0.01, 0.02], "passed", "passed"),
        ("beats_naive >= -5%", [-0.05 - 1e-16] * 9, "passed", "passed"),
        ("rank >= -10%", [-0.11] * 9, "failed", "failed"),
    ],
)
def test_a_gate_is_decided_by_the_side_of_its_interval_and_a_strict_one_by_the_estimate(
    text: str, values: list[float], outcome: str, strictly: str
) -> None:
    found = judged(text, values)
    assert found.outcome == outcome
    assert found.estimate == cluster_interval(values)
    assert judged(text, values, strict=True).outcome == strictly
    expected = {"passed": "the interval lies within the bound", "failed": "the interval lies beyond the bound"}
    assert found.reason.startswith(expected.get(outcome, "the interval contains the bound; if further sources are"))


@pytest.mark.parametrize("least", [1, 5, 8])
def test_a_gate_needs_five_clusters_or_as_many_as_are_asked_for(least: int) -> None:
    for n in range(1, 10):
        found = judged("mse <= +2%", [0.0] * n, least=least)
        assert found.outcome == ("passed" if n >= max(5, least) else "undecided")
        if n < max(5, least):
            unit = "sources" if n > 1 else "series"  # the only source: its series count
            assert found.reason == f"{n} {unit}: a gate needs at least {max(5, least)} {unit}"


def test_an_undecided_gate_says_its_power_and_the_sources_that_would_decide() -> None:
    """Of 12 sources 9 lie within the bound, so a further one does with a chance of 10 in 14."""
    found = judged("mse <= +2%", [0.0] * 9 + [0.1] * 3)

    def power(n: int) -> float:
        tolerated = max((k for k in range(n) if stats.binom.cdf(k, n, 0.5) <= 0.025), default=-1)
        return float(stats.binom.cdf(tolerated, n, 4 / 14))

    needed = next(n for n in range(6, 200) if power(n) >= 0.8)
    assert found.power == (pytest.approx(power(12)), needed)
    shown = f"12 decide with a power of {100 * power(12):.0f} %, about {needed} with 80 %"
    assert found.reason == f"the interval contains the bound; if further sources are alike, {shown}"
    assert "more than 1,000 with 80 %" in judged("mse <= +2%", [0.0] * 6 + [0.1] * 6).reason


def test_failed_comes_before_undecided_and_undecided_before_passed() -> None:
    open_one, passed, failed = (judged("g_own >= 0", [x] * 9) for x in (math.nan, 1.0, -1.0))
    assert (open_one.outcome, open_one.reason) == ("undecided", "no value")
    assert exit_code([]) == exit_code([passed]) == Exit.DONE
    assert exit_code([passed, open_one]) == Exit.NOT_DECIDED
    assert exit_code([open_one, failed, passed]) == Exit.GATE_FAILED
    assert [exit_code([passed, open_one], wish) for wish in ("pass", "fail")] == [Exit.DONE, Exit.GATE_FAILED]
    assert exit_code([failed, open_one], "pass") == Exit.GATE_FAILED
    assert exit_code([passed], "fail") == Exit.DONE


def audited(fingerprint: str, number: int = 40, **columns: object) -> pd.DataFrame:
    """Runs of ten sources, one series each."""
    about = {"dataset": [f"d{i % 10}/H" for i in range(number)], "series": [f"T{i % 10}" for i in range(number)]}
    return runs(number, fingerprint=fingerprint, **(about | columns))


def test_gates_of_an_audit_read_each_models_own_figures() -> None:
    rng = np.random.default_rng(0)
    gains = 0.1 + 0.02 * rng.standard_normal(40)
    beats = ([1] * 9 + [0]) * 4  # all but the last source
    good = audited("a", g_margin=gains, beats_naive=beats, parity=[1e-7] * 39 + [3e-5])
    bad = audited("b", g_margin=-gains, beats_naive=0)
    failed = audited("c", 5, status="failed", beats_naive=None, parity=None)
    frame = pd.concat([good, bad, failed], ignore_index=True)
    found = judge_audit(["g_margin >= 0.05", "beats_naive >= 55%", "parity <= 1e-5"], frame)
    outcomes = {(one.fingerprint, one.gate.quantity): one for one in found}
    names = ("g_margin", "beats_naive", "parity")
    assert [outcomes["a", name].outcome for name in names] == ["passed", "passed", "failed"]
    # None of b's runs beats naive, so no gain of it counts.
    assert [outcomes["b", name].outcome for name in names] == ["undecided", "failed", "passed"]
    assert outcomes["b", "g_margin"].scope == "over 0 of 40 runs: those that beat naive"
    assert {outcomes["c", name].outcome for name in names} == {"undecided"}
    margin = outcomes["a", "g_margin"]
    by_source = [float(np.median(gains[i::10])) for i in range(9)]
    assert margin.clusters.values == pytest.approx(sorted(by_source))
    assert (margin.scope, margin.clusters.counted) == ("over 36 of 40 runs: those that beat naive", "9 sources")
    assert outcomes["a", "beats_naive"].estimate == share_interval(9, 10)
    assert outcomes["a", "parity"].estimate == (3e-5, 3e-5, 3e-5)


def test_a_share_of_an_audit_has_the_exact_interval_of_clopper_and_pearson() -> None:
    low, high = (stats.binomtest(8, 10).proportion_ci(0.95, "exact"))[:]
    frame = audited("a", 10, beats_naive=[1] * 8 + [0] * 2)
    (found,) = judge_audit(["beats_naive >= 60%"], frame)
    assert found.estimate == pytest.approx((0.8, low, high))
    assert found.outcome == "undecided"
    chance, power = 9 / 12, found.power
    assert power is not None

    def decides(n: int) -> float:
        lows = [stats.binomtest(k, n).proportion_ci(0.95, "exact").low for k in range(n + 1)]
        return float(sum(stats.binom.pmf(k, n, chance) for k in range(n + 1) if lows[k] > 0.6))

    assert power.now == pytest.approx(decides(10))
    assert power.needed is not None
    assert decides(power.needed) >= 0.8 > decides(power.needed - 1)


@pytest.mark.parametrize(("number", "outcome"), [(4, "undecided"), (5, "passed")])
def test_an_audit_of_fewer_than_five_sources_decides_no_gate_but_that_of_parity(number: int, outcome: str) -> None:
    gain, parity = judge_audit(["g_own >= 0", "parity <= 1e-5"], audited("a", number, g_own=0.5, parity=1e-7))
    assert (gain.outcome, parity.outcome) == (outcome, "passed")
    if outcome == "undecided":
        assert gain.reason == "4 sources: a gate needs at least 5 sources"


def test_runs_of_an_audit_whose_variance_is_too_small_count_for_no_gain() -> None:
    frame = audited("a", g_own=[-1.0] * 20 + [1.0] * 20, variance_span=[1.0] * 20 + [50.0] * 20)
    (gain,) = judge_audit(["g_own >= 0"], frame)
    assert gain.outcome == "passed"
    assert gain.scope.endswith("those that beat naive; 20 of them left out, with less than 5 horizons of test region")


def test_an_infinite_parity_is_the_worst_and_fails_its_gate() -> None:
    gate = parse("parity <= 1e-5")
    assert judge_worst(gate, math.inf).outcome == "failed"
    assert judge_worst(gate, 1e-5).outcome == "passed"
    (found,) = judge_audit(["parity <= 1e-5"], runs(3, parity=[1e-7, math.inf, math.nan]))
    assert (found.outcome, found.estimate.point) == ("failed", math.inf)
    assert exit_code([found]) == Exit.GATE_FAILED
    (unknown,) = judge_audit(["parity <= 1e-5"], runs(3, parity=math.nan))
    assert unknown.outcome == "undecided"


def test_gates_of_an_audit_leave_out_impossible_numbers() -> None:
    good = [0.1 + 0.01 * i for i in range(10)]
    gains = [*good, 1e200, 1.7e308, 1.7e308, math.inf, math.nan]
    marks = [f"s{i}" for i in range(15)]
    other = runs(15, series_fingerprint=marks, series=marks, seed=1, g_own=[math.inf, *[math.nan] * 14])
    frame = pd.concat([runs(15, series_fingerprint=marks, series=marks, g_own=gains), other], ignore_index=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = judge_audit(["g_own <= 0.2"], frame)
    assert (found.outcome, found.clusters.counted) == ("passed", "10 series")
    assert found.clusters.values == pytest.approx(good)
    assert found.estimate.point == pytest.approx(0.145)


def test_a_source_that_no_longer_beats_naive_is_named_so_and_never_shown_with_its_gain() -> None:
    gate, places = parse("g_margin >= -0.02"), [f"d{i}/H" for i in range(8)]
    judged = judge(gate, [0.01] * 8, places, ["a"] * 8, stopped=[True, *[False] * 7])
    text = " ".join(describe_gate(judged))
    assert "d0/H no longer beats naive (1 of 1)" in text
    assert "[no longer beats naive, +0.0100]" in text
    assert "inf" not in text
    found = gate_json(judged)
    assert found["low"] is None
    assert "[no longer beats naive, +0.0100]" in str(found["figure"])
    assert next(one["figure"] for one in found["datasets"]) == "no longer beats naive"  # type: ignore[attr-defined]
