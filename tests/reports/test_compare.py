"""Two checkpoints on the same runs: what pairs, changes of clusters by definition, verdicts and reports."""

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers.compared import side
from helpers.constructed import runs
from scipy import stats

from hrx.errors import Exit, HrxError
from hrx.reports import compare
from hrx.reports.compare import PAIRING
from hrx.reports.comparison import quantities
from hrx.reports.gates import GATED


def test_a_comparison_with_itself_is_exactly_zero_and_passes_every_gate() -> None:
    one = side("a")
    gates = [f"{name} {sign} 0" for name in GATED if name not in ("parity",) for sign in (">=", "<=")]
    measured = {"comprehensiveness": 0.1, "aopc": 0.2, "sufficiency": 0.3, "insertion": 0.4}
    one = one.assign(**measured, rank_entropy=3.0, effective_lookback=50.0)
    same = compare(one, one, [*gates, "mse <= +0%", "beats_naive >= -0%", "parity <= 1e-5"], strict=True)
    assert same.pairs == 30
    for name, change in same.quantities.items():
        assert change.difference.point == 0, name
        if name != "parity":
            assert change.difference == (0, 0, 0)
            assert change.base == change.new
    assert {gate.outcome for gate in same.gates} == {"passed"}
    assert same.exit == Exit.DONE
    assert same.verdict.startswith("passed: all 29 gates")


def by_definition(frame: pd.DataFrame, change: pd.Series) -> list[float]:
    """One value per source: the median over its series of the median over the settings of each."""
    sources = frame["dataset"].str.split("/").str[0]
    found = []
    for source in sources.unique():
        mine = frame[sources == source]
        items = (mine["dataset"] + mine["series_fingerprint"]).unique()
        of_series = [change[mine.index[mine["dataset"] + mine["series_fingerprint"] == item]] for item in items]
        found.append(float(np.median([np.median(one) for one in of_series])))
    return sorted(found)


def test_a_change_is_one_value_per_source_with_the_inverted_sign_test_as_its_interval() -> None:
    noise = np.random.default_rng(3).standard_normal(60) / 10
    base, new = (pd.concat([side(mark), side(mark, lookback=48)], ignore_index=True) for mark in "ab")
    new["g_margin"] = base["g_margin"] - 0.2 + noise
    change = compare(base, new).quantities["g_margin"]
    values = by_definition(base, new["g_margin"] - base["g_margin"])
    assert change.differences.values == pytest.approx(values)
    assert (change.n, change.differences.counted) == (60, "10 sources")
    assert change.difference.point == pytest.approx(np.median(values))
    # Of ten values the second and the ninth cover 97.85 %, the third and the eighth 89.06 %.
    assert values[1] <= change.difference.low <= values[2]
    assert values[7] <= change.difference.high <= values[8]
    assert stats.binomtest(1, 10).pvalue < 0.05 < stats.binomtest(2, 10).pvalue
    assert change.base == pytest.approx(np.median(by_definition(base, base["g_margin"])))
    assert change.new == pytest.approx(np.median(by_definition(new, new["g_margin"])))


def test_relative_changes_are_taken_pair_by_pair_and_shares_in_points() -> None:
    base, new = side("a"), side("b", scale=1.5)
    new.loc[new["dataset"].isin(["d0/H", "d1/H", "d2/H"]), "beats_naive"] = 0
    new.loc[3, "beats_naive"] = 0  # one of three series of its source
    compared = compare(base, new)
    assert compared.quantities["mse"].relative == pytest.approx((0.5, 0.5, 0.5))
    share = compared.quantities["beats_naive"]
    assert (share.base, share.new) == (1.0, 0.7)
    assert share.differences.values == pytest.approx((-1, -1, -1, -1 / 3, 0, 0, 0, 0, 0, 0))
    assert math.isnan(compared.quantities["g_own"].relative.point)


def test_seeds_are_folded_before_anything_is_resampled() -> None:
    def with_seeds(fingerprint: str, shifts: tuple[float, float]) -> pd.DataFrame:
        return pd.concat([side(fingerprint, shift).assign(seed=i, starts=f"[{i}]") for i, shift in enumerate(shifts)])

    compared = compare(with_seeds("a", (0.0, 0.0)), with_seeds("b", (0.1, 0.5)))
    assert (compared.pairs, compared.configurations) == (60, 30)
    assert compared.quantities["g_own"].difference == pytest.approx((0.3, 0.3, 0.3))
    assert compared.quantities["g_own"].pairs == 60


@pytest.mark.parametrize("column", PAIRING)
def test_runs_that_differ_in_what_pairs_them_are_not_paired(column: str) -> None:
    base, new = side("a"), side("b")
    others = {"starts": "[1]", "channels": 3, "precision": 0.5}
    kind = str(base[column].dtype)
    other = others.get(column, 99 if kind == "Int64" else 0.5 if kind == "float64" else "other")
    new.loc[:14, column] = other
    compared = compare(base, new)
    assert compared.pairs == 15
    assert compared.base.unpaired == 15


@pytest.mark.parametrize("column", ["key", "library", "torch_version", "truncation", "series", "checkpoint"])
def test_what_belongs_to_the_model_or_its_environment_does_not_hinder_pairing(column: str) -> None:
    base, new = side("a"), side("b")
    new[column] = 1 if column == "truncation" else [f"x{i}" for i in range(30)]
    assert compare(base, new).pairs == 30


def test_only_scored_runs_pair_and_the_rest_is_counted() -> None:
    new = side("b")
    new.loc[:4, "status"] = "excluded"
    new.loc[5:6, "status"] = "failed"
    compared = compare(side("a"), new)
    assert compared.pairs == 23
    assert (compared.new.scored, compared.new.excluded, compared.new.failed) == (23, 5, 2)
    assert compared.base.unpaired == 7
    assert "7 scored without a partner" in compared.to_text(120)


def test_a_gate_is_undecided_within_its_interval_unless_it_is_strict() -> None:
    base, new = side("a"), side("b")
    new["g_own"] = base["g_own"] - 0.07 + 0.01 * (np.arange(30) % 10)  # -0.07 to +0.02, the median -0.025
    between = compare(base, new, ["g_own >= -0.02"])
    assert between.exit == Exit.NOT_DECIDED
    assert between.verdict == "undecided: g_own >= -0.02; over 30 pairs of runs in 10 sources."
    assert compare(base, new, ["g_own >= -0.02"], strict=True).exit == Exit.GATE_FAILED
    worse = compare(base, side("b", -0.5), ["g_own >= -0.02", "mse <= +2%"])
    assert [gate.outcome for gate in worse.gates] == ["failed", "passed"]
    assert worse.exit == Exit.GATE_FAILED
    assert worse.verdict == "failed: g_own >= -0.02; passed: mse <= +2%; over 30 pairs of runs in 10 sources."
    assert compare(base, side("b", -0.5), ["g_own >= -0.02"], informational=True).exit == Exit.DONE


def test_the_parity_of_a_run_without_a_partner_counts() -> None:
    new = side("b")
    new.loc[0, "parity"] = 1e-3
    new.loc[0, "starts"] = "[7]"
    compared = compare(side("a"), new, ["parity <= 1e-5"])
    assert compared.quantities["parity"].new == 1e-3
    assert compared.exit == Exit.GATE_FAILED


def test_too_few_sources_are_undecided_and_say_why() -> None:
    base, few = side("a"), side("a").query("dataset < 'd4'")
    found = compare(few, side("b"), ["g_own >= 0"])
    assert found.exit == Exit.NOT_DECIDED
    assert found.verdict == "undecided: 12 pairs of runs in 4 sources, at least 5 sources are needed."
    assert found.gates[0].reason == "4 sources: a gate needs at least 5 sources"
    assert compare(few, side("b"), min_pairs=4).exit == Exit.DONE
    # Fewer than five have no interval, whatever is asked for; the estimate of a strict gate needs none.
    assert compare(few, side("b"), ["g_own >= 0"], min_pairs=1).exit == Exit.NOT_DECIDED
    assert compare(few, side("b"), ["g_own >= 0"], min_pairs=1, strict=True).exit == Exit.DONE
    assert compare(base, side("b"), ["g_own >= 0"], min_pairs=11).exit == Exit.NOT_DECIDED
    # A wrong ledger must not pass, whatever undecided gates count as.
    assert compare(base[:1], side("b"), ["g_own >= 0"], undecided="pass").exit == Exit.NOT_DECIDED
    one = compare(base[:1], side("b")).verdict
    assert one == "undecided: 1 pair of runs in 1 series, at least 5 series are needed."
    none = compare(base, side("b").assign(lookback=48, estimator="tsr"))
    assert none.verdict.endswith("They have no lookback and estimator in common.")
    assert none.exit == Exit.NOT_DECIDED
    assert "scored runs" in compare(base, side("b").assign(status="failed")).verdict


def test_a_gate_on_a_quantity_without_values_is_undecided() -> None:
    compared = compare(side("a"), side("b"), ["insertion >= -1"])
    assert (compared.gates[0].outcome, compared.gates[0].reason) == ("undecided", "no value")
    assert compared.exit == Exit.NOT_DECIDED


def test_eight_configurations_of_four_series_are_four_values_and_decide_nothing() -> None:
    """Two settings of a series, correlated 0.97, are no two observations."""
    names = [f"T{i // 2}" for i in range(8)]
    both = {"dataset": "d/H", "series": names, "series_fingerprint": names, "lookback": [48, 96] * 4}
    base = runs(8, fingerprint="a" * 64, mse=1.0, **both)
    found = compare(base, runs(8, fingerprint="b" * 64, mse=1.05, **both), ["mse <= +2%"])
    assert found.verdict == "undecided: 8 pairs of runs in 4 series, at least 5 series are needed."
    assert found.gates[0].reason == "4 series: a gate needs at least 5 series"
    assert "+5.00% [+5.00%, +5.00%] (range), 4 series of d" in found.to_text(120)


def test_a_number_has_one_interval_on_every_screen() -> None:
    base, new = side("a"), side("b")
    new["mse"] = base["mse"] * np.exp(np.random.default_rng(0).standard_normal(30) / 20)
    found = compare(base, new, ["mse <= +2%", "mse <= 0.1"])
    relative, absolute = found.gates
    assert relative.estimate == found.quantities["mse"].relative
    assert absolute.estimate == found.quantities["mse"].difference
    row = found.as_json()["quantities"]["mse"]
    assert (row["low"], row["high"]) == absolute.estimate[1:]


@pytest.mark.parametrize(
    ("keep", "sentence"),
    [
        (slice(0, 1), "1 pair of runs in 1 series, at least 5 series are needed."),
        (slice(0, 2), "2 pairs of runs in 2 sources, at least 5 sources are needed."),
        (slice(0, 5), "passed: the gate; over 5 pairs of runs in 5 sources."),
    ],
)
def test_one_pair_two_sources_and_five_have_their_sentence(keep: slice, sentence: str) -> None:
    found = compare(side("a")[keep], side("b", mse=1.0)[keep].assign(mse=side("a")["mse"]), ["mse <= +2%"])
    assert found.verdict.endswith(sentence)
    ends = {1: "+0.00%, 1 series of d0, no interval", 2: "(range), 2 sources", 5: "(range, 94 %), 5 sources"}
    assert ends[len(side("a")[keep])] in found.to_text(120)


def test_with_one_source_its_series_count_and_their_frequencies_do_not() -> None:
    """Eight series at two frequencies: eight values, and every sentence says of which source."""
    names = [f"item{i}" for i in range(8)] * 2
    both = {"dataset": ["d/H"] * 8 + ["d/D"] * 8, "series": names, "series_fingerprint": [f"s{i}" for i in range(16)]}
    base = runs(16, fingerprint="a" * 64, mse=1.0, **both)
    found = compare(base, runs(16, fingerprint="b" * 64, mse=1.01, **both), ["mse <= +2%"])
    assert (found.clusters.counted, found.gates[0].outcome) == ("8 series", "passed")
    shown = " ".join(found.to_text().split())
    assert "+1.00% [+1.00%, +1.00%], 8 series of d" in shown
    assert "Each series of d counts once: this says nothing about other data." in shown
    assert shown.endswith("passed: the gate; over 16 pairs of runs in 8 series.")


@pytest.mark.parametrize(("wish", "code"), [(None, 4), ("pass", 0), ("fail", 1)])
def test_what_undecided_counts_as_decides_the_code_and_the_verdict_still_names_it_first(wish, code: int) -> None:
    gates = ["insertion >= -1", "g_own >= -0.02"]
    compared = compare(side("a"), side("b"), gates, undecided=wish)
    assert compared.exit == code
    counts = f" (counts as {wish}ed)" if wish else ""
    expected = f"undecided: insertion >= -1{counts}; passed: g_own >= -0.02; over 30 pairs of runs in 10 sources."
    assert compared.verdict == expected


def test_a_gain_counts_where_base_beats_naive_and_where_new_no_longer_does_it_is_beyond_the_bound() -> None:
    """Gains rise by 0.1 in seven sources; in three, NEW stops beating naive and its gains rise too."""
    base, new = side("a"), side("b", 0.1)
    lost = new["dataset"].isin(["d0/H", "d1/H", "d2/H"])
    new.loc[lost, "beats_naive"] = 0
    base.loc[29, "beats_naive"] = 0
    new.loc[29, "g_own"] = -9.0  # base does not beat naive there, so no gain of it counts
    found = compare(base, new, ["g_own >= 0.05", "g_own <= 0.2", "mse <= +2%"])
    row = found.quantities["g_own"]
    assert row.pairs == found.both_beat_naive == 20
    assert row.difference == pytest.approx((0.1, 0.1, 0.1))
    rose, bounded, error = found.gates
    assert rose.clusters.values == pytest.approx((-math.inf,) * 3 + (0.1,) * 7)
    assert bounded.clusters.values == pytest.approx((0.1,) * 7 + (math.inf,) * 3)
    assert (rose.outcome, bounded.outcome, error.outcome) == ("undecided", "undecided", "passed")
    stopped = "in 9 of them NEW no longer does, which counts as beyond the bound"
    assert rose.scope == f"over 29 of 30 pairs: BASE beats naive; {stopped}"
    assert "3 decide" not in rose.reason
    assert "10 decide with a power of " in rose.reason
    assert sorted(one[:5] for one in rose.datasets) == [
        (f"d{i}/H", "beyond", pytest.approx(0.1), 3, 3) for i in range(3)
    ]
    assert error.scope == ""


def test_pairs_whose_variance_is_too_small_count_for_no_gain() -> None:
    short = {"variance_span": [1.0] * 3 + [9.0] * 27}
    found = compare(side("a", **short), side("b", -5.0, **short).assign(g_own=side("a")["g_own"]), ["g_own >= -0.02"])
    assert found.quantities["g_own"].pairs == 27
    assert found.gates[0].scope.endswith(
        "BASE beats naive; 3 of them left out, with less than 5 horizons of test region"
    )
    assert found.quantities["mse"].pairs == 30


def test_base_new_and_difference_come_from_the_same_pairs_and_a_row_that_seems_not_to_add_up_says_why() -> None:
    """Medians 1 -> 2 over three pairs, of which two fell: (0, 3), (3, 2), (1, 0)."""
    pairs = {"series_fingerprint": ["a", "b", "c"], "rank": 1.0}
    base = runs(3, fingerprint="a" * 64, g_own=[0.0, 3.0, 1.0], **pairs)
    new = runs(3, fingerprint="b" * 64, g_own=[3.0, 2.0, 0.0], **pairs)
    found = compare(base, new, min_pairs=1)
    change = found.quantities["g_own"]
    assert (change.base, change.new, change.difference.point) == (1.0, 2.0, -1.0)
    assert (change.n, change.differences.positive, change.differences.negative, change.disagrees) == (3, 1, 2, True)
    assert not found.quantities["rank"].disagrees
    (row,) = [row for row in quantities(found).rows if row.key == "g_own"]
    assert row.cells[0].text == "g_own (median higher, yet 2 of 3 series fell)"
    assert row.cells[1].text == "3"


def test_a_model_that_fails_admission_fails_the_comparison_and_its_check_is_named() -> None:
    reason = "equivalence: 0.3 against 1e-05 (relative difference of the forecasts)"
    excluded = {"status": "excluded", "check_failed": "equivalence", "reason": reason}
    compared = compare(side("a"), side("b", **excluded), ["g_own >= 0"], undecided="pass")
    assert compared.exit == Exit.GATE_FAILED
    assert compared.new.failed_checks == (f"{reason} at 96x24 (30 runs excluded)",)
    assert compared.verdict.startswith(f"failed: new fails {reason} at 96x24 (30 runs excluded); undecided: 0 pairs")
    assert compare(side("a", **excluded), side("b")).verdict.startswith("failed: base fails equivalence: 0.3")
    # A run that is excluded for another reason is no failed check.
    flat = compare(side("a"), side("b", status=["excluded"] + ["done"] * 29, reason="flat windows"), ["g_own >= -1"])
    assert (flat.exit, flat.failed_checks) == (Exit.DONE, [])


def test_failed_runs_leave_a_passed_comparison_incomplete() -> None:
    status = ["failed"] + ["done"] * 29
    compared = compare(side("a"), side("b", status=status), ["g_own >= -0.02"])
    assert compared.exit == Exit.INCOMPLETE
    assert "passed: the gate; incomplete: 1 run failed; over 29 pairs of runs in 10 sources" in compared.verdict
    assert compare(side("a"), side("b", status=status), ["insertion >= 0"]).exit == Exit.NOT_DECIDED


def test_of_several_models_one_must_be_named() -> None:
    both = pd.concat([side("a").assign(model="old"), side("b", 1.0).assign(model="young")], ignore_index=True)
    with pytest.raises(HrxError, match=r"BASE holds several models: old \(weights a{12}\) and young .* --base-model"):
        compare(both, both)
    named = compare(both, both, base_model="old", new_model="young")
    assert named.quantities["g_own"].difference.point == pytest.approx(1.0)
    by_weights = compare(both, both, base_model="b" * 8, new_model="a" * 64)
    assert by_weights.quantities["g_own"].difference.point == pytest.approx(-1.0)
    with pytest.raises(HrxError, match=r"NEW: Unknown model 'yung'\. Did you mean 'young'"):
        compare(both, both, base_model="old", new_model="yung")
    alike = both.assign(model="same")
    with pytest.raises(HrxError, match="first characters of the weights"):
        compare(alike, alike, base_model="same", new_model="same")
    with pytest.raises(HrxError, match="BASE holds no runs"):
        compare(runs(0), both)


def test_the_seeds_of_a_dataset_are_folded_before_its_median(record, frame):
    """One configuration with nine seeds that lost, two with one seed each that did not: the median is theirs."""

    def side(lost: float) -> list[dict[str, object]]:
        many = [record(seed=seed, g_margin=0.5 - lost) for seed in range(9)]
        return [*many, *(record(series_fingerprint=mark, g_margin=0.5) for mark in ("s2", "s3"))]

    found = compare(frame(side(0.0)), frame(side(0.3))).datasets.squeeze()
    assert found.pairs == 11
    assert found["g_margin"] == 0.0


def test_a_seed_that_doubles_and_one_that_halves_an_error_are_folded_before_the_ratio(record, frame):
    """Means 1.5 and 1.5 of an error: no change, though the two ratios are 2 and 1/2."""

    def side(errors: tuple[float, float]) -> list[dict[str, object]]:
        marks = [f"s{i}" for i in range(6)]
        return [record(series_fingerprint=m, seed=seed, mse=mse) for m in marks for seed, mse in enumerate(errors)]

    found = compare(frame(side((1.0, 2.0))), frame(side((2.0, 1.0))), ["mse <= +2%"])
    assert found.quantities["mse"].relative == (0.0, 0.0, 0.0)
    assert found.datasets["mse"].item() == 0.0
    assert found.exit == Exit.DONE


def strange(missing: bool = False) -> pd.DataFrame:
    """A side with numbers that cannot have been measured, or with nothing in their place."""
    gains, errors = side("b")["g_own"].to_numpy(copy=True), side("b")["mse"].to_numpy(copy=True)
    gains[:5] = np.nan if missing else [np.inf, -np.inf, 1e200, 1.7e308, np.nan]
    errors[3:7] = np.nan if missing else 1.7e308
    return side("b", g_own=gains, mse=errors)


def test_impossible_numbers_count_like_missing_ones_and_are_reported_of_their_side() -> None:
    gates = ["g_own >= -0.02", "mse <= +2%"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare(side("a"), strange(), gates)
        shown = found.to_text(200)
    missing = compare(side("a"), strange(missing=True), gates)
    for name, change in found.quantities.items():
        np.testing.assert_equal(tuple(vars(change).values()), tuple(vars(missing.quantities[name]).values()))
    pd.testing.assert_frame_equal(found.datasets, missing.datasets)
    assert found.gates == missing.gates
    assert (found.quantities["g_own"].pairs, found.quantities["mse"].pairs) == (25, 26)
    remark = (
        "7 of 30 scored runs hold impossible numbers (infinite, or beyond 1e+100), "
        "in g_own and mse: these are left out."
    )
    assert (found.base.impossible, found.new.impossible) == ("", remark)
    assert missing.new.impossible == ""
    _, _, base, new, *_ = shown.splitlines()
    assert base.endswith("30 scored, 0 excluded, 0 failed")
    assert new.endswith(f"30 scored, 0 excluded, 0 failed. {remark}")
    assert "in g\\_own and mse: these are left out." in found.to_markdown()
    loaded = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert (loaded["base"]["impossible"], loaded["new"]["impossible"]) == ("", remark)


def test_a_seed_without_a_value_on_one_side_is_left_out_of_its_datasets_change_on_both(record, frame):
    """Of two seeds, 0.1 and 0.5, one has no number in the base: the other one did not move."""

    def side(first: float) -> list[dict[str, object]]:
        return [record(seed=0, g_margin=first, mse=0.1), record(seed=1, g_margin=0.5, mse=0.1)]

    found = compare(frame(side(np.inf)), frame(side(0.1))).datasets.squeeze()
    assert found.pairs == 2
    assert found["g_margin"] == 0.0


def test_a_ratio_too_large_for_a_number_is_a_rise_beyond_any_bound(record, frame):
    base, new = frame([record(mse=5e-324)]), frame([record(mse=0.5)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare(base, new, ["mse <= +500%"])
        shown = found.to_text(200)
    assert found.quantities["mse"].relative.point == math.inf
    assert found.datasets["mse"].item() == math.inf
    (gate,) = found.gates
    assert gate.reason.startswith("this series of us_births/D fails it alone: its configuration lies beyond the bound")
    assert "from 0" in shown
    json.dumps(found.as_json(), allow_nan=False)
