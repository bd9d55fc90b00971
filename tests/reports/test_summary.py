"""What is said about a model, and when."""

import html
import json
import math
import statistics as standard
import warnings

import numpy as np
import pytest

from hrx.records.ledger import Ledger
from hrx.records.record import StoredAudit
from hrx.reports import read, summarise, tables
from hrx.reports.audit_summary import render
from hrx.reports.page.report import render_report
from hrx.reports.runs import mask_short
from hrx.reports.summary import worst_parity

KEYS = [
    "model", "checkpoint", "admitted", "runs", "excluded", "failed", "beats_naive", "beats_seasonal",
    "g_own", "g_shuffled", "g_margin", "rank", "parity", "verdict",
]  # fmt: skip
AROUND = np.linspace(-0.01, 0.01, 12)


@pytest.fixture
def of_sources(record, frame):
    """of_sources(own, margin, **changes): the summary of one run per pair of gains, each of a source of its own."""

    def give(own, margin, **changes):
        pairs = enumerate(zip(own, margin, strict=True))
        return summarise(
            frame(record(dataset=f"s{i}/D", g_own=o, g_margin=m, g_shuffled=o - m, **changes) for i, (o, m) in pairs),
            [],
        )[0]

    return give


@pytest.fixture
def verdict(of_sources):
    """verdict(own, margin, n): the verdict on `n` sources around these gains."""
    return lambda own, margin, n=12, **changes: of_sources(own + AROUND[:n], margin + AROUND[:n], **changes).verdict


def test_the_json_is_the_object_of_the_design(record, frame):
    summary = summarise(frame([record(), record(status="excluded", reason="r")]), [])[0]
    found = json.loads(json.dumps(summary.as_json(), allow_nan=False))
    assert list(found)[: len(KEYS)] == KEYS
    of_series = {"median": 0.12, "low": None, "high": None, "p": 1.0, "positive": 1, "clusters": 1, "unit": "series"}
    assert found["g_own"] == {"median": 0.12, "positive": 1.0, "n": 1, "evidence": of_series}
    assert list(found["beating_naive"]) == ["runs", "beats_seasonal", "g_own", "g_shuffled", "g_margin"]
    assert found["beats_seasonal"] is None
    assert found["mase"] == {"model": None, "naive": None, "seasonal": None}
    assert (found["runs"], found["excluded"], found["failed"]) == (2, 1, 0)
    assert found["exclusions"] == {"r": 1}
    assert found["failures"] == {}


def test_medians_and_shares_are_those_of_runs_with_their_seeds_folded(record, frame):
    rng = np.random.default_rng(0)
    records = [
        record(series=f"T{i}", seed=seed, g_margin=rng.normal(), rank=rng.uniform(1, 5), beats_naive=int(i < 11))
        for i in range(15)
        for seed in range(2)
    ]
    by_series = {}
    for one in records:
        by_series.setdefault(one.series, []).append(one)
    margins = [(a.g_margin + b.g_margin) / 2 for a, b in by_series.values()]
    summary = summarise(frame(records), [])[0]
    assert summary.scored.as_json()["g_margin"]["median"] == pytest.approx(standard.median(margins))
    assert summary.scored.as_json()["g_margin"]["positive"] == pytest.approx(sum(m > 0 for m in margins) / 15)
    assert summary.beating_naive.as_json()["g_margin"]["median"] == pytest.approx(standard.median(margins[:11]))
    assert (summary.beating_naive.runs, len(summary.beating_naive.gains["g_margin"])) == (22, 11)
    assert summary.beats_naive == pytest.approx(22 / 30)
    assert summary.rank == pytest.approx(standard.median((a.rank + b.rank) / 2 for a, b in by_series.values()))
    assert summary.beating_naive.evidence["g_margin"].values == pytest.approx(sorted(margins[:11]))


def test_the_bound_of_an_equivalence_is_that_of_the_last_audit_that_gave_one(record, ledger, tmp_path):
    gains = [-0.03, -0.02, -0.01, 0.0, 0.0, 0.01, 0.02, 0.03]
    path = ledger([record(dataset=f"d{i}/H", g_own=own, g_margin=0.3) for i, own in enumerate(gains)])
    begins = "Rows belong to their steps"
    assert "about as well" in summarise(read(path), [])[0].headline
    for day, settings in enumerate(["{}", '{"equivalence": 0.5}', '{"equivalence": 0.01}', "{}"]):
        with Ledger.open(path) as opened:
            opened.write_audit(StoredAudit(f"2026-01-0{day + 1}", "0.1.0", settings))
    assert read(path).attrs["equivalence"] == 0.01
    found = summarise(read(path), [])[0]
    assert found.headline == f"{begins}; whether they explain it better than one vector is not decided"
    page, _ = render_report(path, read(path), [])
    assert html.escape(found.headline) in page


def test_there_is_one_summary_per_model_and_fingerprint_in_the_order_of_the_ledger(record, frame):
    records = [record(model="b"), record(model="a"), record(model="b", fingerprint="g"), record(model="b", seed=1)]
    found = summarise(frame(records), [])
    assert [(s.model, s.fingerprint[0], s.runs) for s in found] == [("b", "f", 2), ("a", "f", 1), ("b", "g", 1)]


def test_an_empty_ledger_has_no_summaries(frame):
    assert summarise(frame([]), []) == []


def test_gains_above_zero_mean_that_steps_read_different_inputs(verdict):
    said = verdict(0.12, 0.3)
    assert said.startswith("Reads different inputs for different steps: g_margin +0.300 [+0.2")
    assert "positive in 12 of 12 sources, p = 0.00049; g_own +0.120 [" in said
    assert said.endswith("Each source counts once, by the median of its series and settings.")


def test_a_margin_without_an_own_gain_means_that_one_vector_would_do(verdict):
    begins = "Rows belong to their steps, but one shared vector explains the forecast"
    assert verdict(0.0, 0.3).startswith(f"{begins} about as well: ")
    assert "All of g_own's interval lies within ±0.05, which counts as equal." in verdict(0.0, 0.3)
    assert verdict(-0.2, 0.3).startswith(f"{begins} better: ")


def test_a_large_own_gain_whose_interval_touches_zero_is_not_called_equal(of_sources):
    own = [-0.02, -0.01, 0.0, 0.55, 0.56, 0.57, 0.58, 0.59]
    found = of_sources(own, 0.3 + AROUND[:8])
    assert found.tone == "partly"
    assert found.headline == (
        "Rows belong to their steps; whether they explain it better than one vector is not decided"
    )
    assert "would decide the sign of g_own." in found.because


def test_a_margin_within_the_bound_does_not_depend_on_the_step_and_a_wide_one_is_not_decided(verdict, of_sources):
    assert verdict(0.1, 0.0).startswith("What is read does not depend on the forecast step: ")
    wide = of_sources([0.1] * 12, np.linspace(-0.5, 0.5, 12))
    assert (wide.tone, wide.headline) == ("few", "Not decided whether what is read depends on the forecast step")
    assert "If further sources are alike, more than 1000 sources would decide the sign of g_margin." in wide.because


def test_equal_values_and_values_of_zero_decide_what_they_say(of_sources):
    zero = of_sources([0.0] * 12, [0.0] * 12)
    assert zero.headline == "What is read does not depend on the forecast step"
    assert "g_margin 0.000 [0.000, 0.000], positive in 0 of 12 sources, p = 1;" in zero.because
    equal = of_sources([0.2] * 12, [0.3] * 12)
    assert equal.headline == "Reads different inputs for different steps"
    assert "g_margin +0.300 [+0.300, +0.300]" in equal.because


def test_half_of_the_values_zero_decide_no_sign(of_sources):
    half = [0.0] * 8 + list(np.linspace(0.2, 0.4, 7))
    found = of_sources(half, half)
    assert found.headline == "Not decided whether what is read depends on the forecast step"
    assert "positive in 7 of 15 sources, p = 0.016" in found.because


def test_a_margin_below_zero_is_contrary(verdict):
    said = verdict(0.1, -0.3)
    assert said.startswith("Contrary: a step is explained better by another step's row than by its own: g_margin")
    assert "positive in 0 of 12 sources, p = 0.00049" in said


def test_fewer_than_six_sources_give_no_verdict_on_the_sign(verdict):
    said = verdict(0.12, 0.3, n=5)
    assert said.startswith(
        "Too few sources to tell: g_margin +0.294 [+0.290, +0.297] (range, 94 %), positive in 5 of 5"
    )
    assert said.endswith("A verdict needs 6 sources with runs that beat naive: audit more with --data.")
    assert "(range [+0.290, +0.294]), positive in 3 of 3 sources; g_own" in verdict(0.12, 0.3, n=3)
    assert not verdict(0.12, 0.3, n=6).startswith("Too few")


def test_one_source_counts_its_series_and_says_nothing_about_other_data(many, frame):
    said = summarise(frame(many(0.1 + AROUND, 0.3 + AROUND, dataset="ett/H")), [])[0].verdict
    assert said.startswith("Reads different inputs for different steps: ")
    assert "positive in 12 of 12 series, p" in said
    assert said.endswith("Each series of ett counts once: this says nothing about other data.")
    few = summarise(frame(many([0.1], [0.3], dataset="ett/H")), [])[0].verdict
    assert few.startswith("Too few series to tell: g_margin +0.300, positive in 1 of 1 series; g_own +0.100. ")
    assert few.endswith("A verdict needs 6 series with runs that beat naive: audit more with --data.")


def test_settings_and_series_of_a_source_add_no_evidence(record, frame):
    def found(series, settings):
        runs = [
            record(dataset=f"s{d}/H", series=f"T{s}", series_fingerprint=f"{d} {s}", lookback=96 + i, g_margin=gain)
            for d, gain in enumerate([0.3, 0.4, -0.1, 0.2]) for s in range(series) for i in range(settings)
        ]  # fmt: skip
        return summarise(frame(runs), [])[0]

    repeated = found(3, 4)
    assert repeated.beating_naive.evidence["g_margin"] == found(1, 1).beating_naive.evidence["g_margin"]
    assert repeated.headline == "Too few sources to tell"
    in_json = repeated.as_json()["beating_naive"]["g_margin"]
    assert in_json == {
        "median": 0.25, "positive": 0.75, "n": 48,
        "evidence": {
            "median": 0.25, "low": -0.1, "high": 0.4, "p": 0.625, "positive": 3, "clusters": 4, "unit": "source",
        },
    }  # fmt: skip


def test_a_run_with_a_short_test_region_is_left_out_and_said(record, frame):
    def found(**of_last):
        runs = [record(dataset=f"s{i}/D", g_own=0.1, g_margin=0.3, variance_span=20.0) for i in range(7)]
        return summarise(frame([*runs, record(dataset="s7/D", g_own=9.0, g_margin=9.0, **of_last)]), [])[0]

    short = found(variance_span=4.9)
    assert short.beating_naive.evidence["g_margin"].values == (0.3,) * 7
    sentence = "1 configuration is left out: less than 5 horizons of test region make the variance too small."
    assert sentence in short.because
    assert "positive in 7 of 7 sources" in short.because
    for known in (found(variance_span=5.0), found(variance_span=None)):
        assert "left out" not in known.because
        assert "positive in 8 of 8 sources" in known.because


def test_runs_whose_model_reads_too_few_values_are_counted(record, frame):
    runs = [record(dataset=f"s{i}/D", g_own=0.0, g_margin=0.3, sparse=int(i < 2)) for i in range(7)]
    sentence = "In 2 of 7 scored runs the first deleted fraction holds all that the model reads"
    assert sentence in summarise(frame(runs), [])[0].because
    assert "first deleted fraction" not in summarise(frame(runs[2:]), [])[0].because


def test_tables_leave_out_gains_over_a_short_test_region_and_say_so(record, frame):
    runs = [record(dataset=f"s{i}/D", g_own=0.1, g_margin=0.3, mse=0.5, variance_span=20.0) for i in range(7)]
    runs.append(record(dataset="s7/D", g_own=9.0, g_margin=9.0, mse=0.9, variance_span=4.9))
    kept = mask_short(frame(runs))
    assert kept["g_own"].isna().tolist() == kept["g_margin"].isna().tolist() == [False] * 7 + [True]
    assert kept["mse"].tolist() == [0.5] * 7 + [0.9]
    (table,) = tables(frame(runs), ["models"])
    assert "1 of 8 scored runs has a test region of less than 5 horizons" in str(table)


def test_a_table_of_estimators_says_which_rows_make_the_shared_vectors(record, frame):
    both = [record(dataset="s/D", g_own=0.1, estimator=name) for name in ("input_gradient", "saliency")]
    sentence = "The shared vector of input_gradient is the mean of all rows"
    assert sentence in tables(frame(both), ["estimators"])[0].note
    assert sentence not in tables(frame(both[:1]), ["estimators"])[0].note


def test_records_without_the_span_of_an_earlier_export_count(record, frame):
    runs = frame(record(dataset=f"s{i}/D", g_own=0.1, g_margin=0.3) for i in range(7)).drop(columns="variance_span")
    assert "positive in 7 of 7 sources" in summarise(runs, [])[0].verdict


def test_the_runs_that_lose_to_naive_are_counted_and_what_all_give_is_said(record, frame):
    beating = [record(dataset=f"s{i}/D", g_own=0.1, g_margin=0.3) for i in range(7)]
    losing = [record(dataset=f"s{i}/D", g_own=0.1, g_margin=-0.5, beats_naive=0) for i in range(7, 16)]
    found = summarise(frame([*beating, *losing]), [])[0]
    assert found.headline == "Reads different inputs for different steps"
    assert "9 of 16 configurations lose to naive and are left out; with them g_margin is -0.500 [" in found.because


def test_no_gain_is_meaningful_where_no_run_beats_naive(verdict):
    assert verdict(0.12, 0.3, beats_naive=0) == "No gain is meaningful: no run beats both naive forecasts."
    assert "n<10: few runs" in verdict(0.12, 0.3, n=3, beats_naive=0)


def test_the_verdict_reads_only_runs_that_beat_naive(many, frame):
    good, bad = many(0.1 + AROUND, 0.3 + AROUND), many([-9.0] * 30, [-9.0] * 30, beats_naive=0, dataset="other")
    summary = summarise(frame(good + bad), [])[0]
    assert summary.verdict.startswith("Reads different inputs")
    assert summary.scored.as_json()["g_margin"]["median"] == -9.0


def test_a_model_without_a_scored_run_is_not_audited_and_the_check_is_named(record, frame, check):
    runs = [record(status="excluded", reason="equivalence: …", seed=s, check_failed="equivalence") for s in range(2)]
    checks = [
        check("equivalence", False, 0.0123, 1e-5),
        check("equivalence", False, 0.5, 1e-5, "512x96"),
        check("gradient path", False, math.nan, 1e-6),
        check("determinism", True, 0.0, 0.0),
    ]
    summary = summarise(frame(runs), checks)[0]
    assert summary.verdict == (
        "Not audited: equivalence failed (0.0123, limit 1e-05) at 96x24 and 512x96; "
        "gradient path failed (not a number, limit 1e-06) at 96x24."
    )
    found = json.loads(json.dumps(summary.as_json(), allow_nan=False))
    assert not found["admitted"]
    assert found["parity"] == 0.5
    assert found["beats_naive"] is found["rank"] is found["g_own"]["median"] is found["g_own"]["positive"] is None


def test_without_a_failed_check_the_most_frequent_reason_is_given(record, frame):
    runs = [record(status="excluded", reason="the series is too short.", seed=s) for s in range(3)]
    runs.append(record(status="failed", reason="boom"))
    said = summarise(frame(runs), [])[0].verdict
    assert said.startswith("Not audited: no run could be scored (3 excluded and 1 failed), most often because: the ser")
    assert said.endswith("too short. Incomplete: 1 of 4 runs failed.")


def test_checks_of_other_weights_or_versions_are_not_held_against_a_model(record, frame, check):
    failed = check("equivalence", False, 1.0, 1e-5)
    others = [failed._replace(fingerprint="0"), failed._replace(library="other 1"), failed._replace(torch_version="1")]
    runs = frame([record(status="excluded", reason="the series is constant")])
    assert "equivalence" not in summarise(runs, others)[0].verdict
    assert "equivalence" in summarise(runs, [failed])[0].verdict


def test_settings_without_a_scored_run_failed_runs_and_pooled_protocols_are_reported(many, record, frame):
    runs = [
        *many(0.1 + AROUND, 0.3 + AROUND),
        record(status="excluded", reason="derivative: 0.3", lookback=512, horizon=192),
        record(status="excluded", reason="derivative: 0.3", lookback=512, horizon=96),
        record(status="failed", reason="boom"),
        record(draws=8, library="other 1"),
    ]
    summary = summarise(frame(runs), [])[0]
    assert summary.admitted
    assert "No run could be scored at 512x192 and 512x96." in summary.verdict
    assert "Incomplete: 1 of 16 runs failed." in summary.verdict
    assert summary.verdict.endswith("Pools runs that differ in library and draws.")


@pytest.mark.parametrize(
    ("changes", "admitted", "shown"),
    [
        ({}, True, "admitted  yes"),
        ({"status": "excluded", "reason": "derivative: 0.3", "check_failed": "derivative"}, False, "admitted  no"),
        ({"status": "excluded", "reason": "the series is too short"}, None, "admitted  unknown"),
    ],
)
def test_a_model_is_not_admitted_where_a_check_failed_and_unknown_where_none_was_made(
    changes, admitted, shown, record, frame
):
    (summary,) = summarise(frame([record(**changes)]), [])
    assert summary.admitted is admitted
    assert shown in render([summary])


def test_runs_of_two_protocols_are_not_pooled_in_silence(many, record, frame):
    def remark(**old):
        runs = [*many(0.1 + AROUND, 0.3 + AROUND, protocol_version="3"), record(series="old", **old)]
        return summarise(frame(runs), [])[0].verdict.partition("Pools runs that differ in ")[2]

    assert remark(protocol_version="2", variance_windows=None) == "protocol_version and variance_windows."
    assert remark(protocol_version="3", variance_windows="run") == "variance_windows."
    assert remark(protocol_version="3") == ""


def test_parity_is_the_worst_over_the_windows_of_every_run_and_of_the_equivalence_check(record, frame, check):
    runs = [record(parity=1e-7), record(seed=1, parity=4e-6), record(seed=2, parity=None)]
    derivative = check("derivative", True, 0.5, 1e-2)
    assert summarise(frame(runs), [derivative])[0].parity == 4e-6
    assert summarise(frame(runs), [derivative, check("equivalence", True, 7e-6, 1e-5)])[0].parity == 7e-6
    refused = record(status="excluded", reason="equivalence: …", seed=3, parity=0.1)
    assert summarise(frame([*runs, refused]), [])[0].parity == 0.1
    assert math.isnan(worst_parity([derivative], [math.nan]))


def test_a_missing_gain_is_not_counted(record, frame):
    runs = [record(), record(series="T2", g_own=None, beats_naive=None, rank=None, parity=None)]
    summary = summarise(frame(runs), [])[0]
    assert (summary.scored.as_json()["g_own"]["n"], summary.scored.as_json()["g_margin"]["n"], summary.beats_naive) == (
        1,
        2,
        0.5,
    )


def test_impossible_numbers_count_like_missing_ones_and_are_reported(many, record, frame):
    def stored(gain, margin, rank):
        good = many(0.1 + AROUND, 0.3 + AROUND)
        bad = [record(series="T90", g_own=gain), record(series="T91", g_margin=margin), record(series="T92", rank=rank)]
        seeds = [record(series="T93", seed=0, g_own=gain), record(series="T93", seed=1, g_own=0.7)]
        return frame([*good, *bad, *seeds, record(series="T94", g_own=gain and -1.7e308)])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = summarise(stored(1.7e308, 1e200, np.inf), [])
    (missing,) = summarise(stored(None, None, None), [])
    for group, expected in ((found.scored, missing.scored), (found.beating_naive, missing.beating_naive)):
        assert group.as_json() == expected.as_json()
    assert found.rank == missing.rank == 3.0
    assert found.scored.as_json()["g_own"]["median"] == pytest.approx(np.median([*(0.1 + AROUND), 0.12, 0.12, 0.7]))
    remark = "impossible numbers (infinite, or beyond 1e+100), in g_own, g_margin and rank: these are"
    assert found.verdict == f"{missing.verdict} 5 of 18 scored runs hold {remark} left out."
    json.dumps(found.as_json(), allow_nan=False)


def test_a_run_that_lost_its_number_is_not_taken_for_a_folded_seed(many, frame):
    summary = summarise(frame(many([*(0.1 + AROUND), 0.1], [*(0.3 + AROUND), np.inf])), [])[0]
    assert (
        summary.beating_naive.runs,
        len(summary.beating_naive.folded),
        len(summary.beating_naive.gains["g_margin"]),
    ) == (13, 13, 12)
    assert "positive in 12 of 12 series" in summary.verdict


def test_an_infinite_parity_is_the_worst_and_said_where_json_has_no_number_for_it(record, frame):
    summary = summarise(frame([record(), record(seed=1, parity=np.inf), record(seed=2, parity=None)]), [])[0]
    assert summary.parity == math.inf
    found = json.loads(json.dumps(summary.as_json(), allow_nan=False))
    assert found["parity"] is None
    assert found["verdict"].endswith("1 of 3 scored runs has an infinite parity.")


def test_an_infinite_figure_of_a_failed_check_is_said(record, frame, check):
    runs = frame([record(status="excluded", reason="equivalence: …", parity=np.inf)])
    summary = summarise(runs, [check("equivalence", False, math.inf, 1e-5)])[0]
    assert summary.verdict == "Not audited: equivalence failed (inf, limit 1e-05) at 96x24."
    assert summary.parity == math.inf


def test_the_verdict_counts_the_runs_on_datasets_that_were_seen_in_training(record, frame):
    leakage = ["declared", "declared", "possible", "none declared", "unknown"]
    said = summarise(frame([record(series=f"T{i}", leakage=kind) for i, kind in enumerate(leakage)]), [])[0].verdict
    assert "2 of 5 scored runs are on datasets that it is declared to have seen in training." in said
    assert "1 of 5 scored runs is on datasets that it may have seen, as far as is declared, in training." in said
    clean = summarise(frame([record(leakage="none declared")]), [])[0].verdict
    assert "training" not in clean


def test_runs_with_zeros_before_their_lookback_are_reported_by_verdict_and_tables(record, frame):
    runs = [record(series=f"T{i}", lookback=96, padded=zeros) for i, zeros in enumerate([416, 416, 0, None])]
    said = "2 of 4 scored runs have a lookback below the context (96): the library puts zeros before it"
    assert said in summarise(frame(runs), [])[0].verdict
    (table,) = tables(frame(runs), ["models"])
    assert said in table.note
    assert "zeros" not in summarise(frame(runs[2:]), [])[0].verdict


def test_both_counts_are_shown_and_the_verdict_says_where_most_runs_that_beat_naive_lose_to_the_season(many, frame):
    def seasonal(errors, beats=1):
        runs = many(0.12 + AROUND, 0.3 + AROUND, beats_naive=beats)
        found = [one.updated(mse=0.5, mse_seasonal=error, mase=0.9) for one, error in zip(runs, errors, strict=True)]
        return summarise(frame(found), [])[0]

    lost = seasonal([0.4] * 7 + [0.6] * 5)
    assert "But 7 of 12 runs that beat naive lose to seasonal naive." in lost.verdict
    shown = " ".join(render([lost]).split())
    assert "12 of 12 scored runs beat both naive forecasts (100 %)" in shown
    assert "5 of 12 scored runs beat seasonal naive (42 %); 5 of the 12 that beat naive" in shown
    assert lost.as_json()["beats_seasonal"] == lost.as_json()["beating_naive"]["beats_seasonal"] == 5 / 12
    assert lost.as_json()["mase"]["model"] == 0.9
    assert "seasonal naive" not in seasonal([0.4] * 6 + [0.6] * 6).verdict
    assert "seasonal naive" not in seasonal([0.4] * 12, beats=0).verdict


def test_an_unknown_error_of_the_season_is_said_to_be_unknown_and_counts_on_neither_side(many, frame):
    runs = many(0.12 + AROUND, 0.3 + AROUND, mse=0.5)
    old = summarise(frame(runs), [])[0]
    shown = " ".join(render([old]).split())
    assert "seasonal unknown: these records have no error of seasonal naive" in shown
    assert "MASE unknown" in shown
    assert "seasonal naive" not in old.verdict
    mixed = [one.updated(mse_seasonal=0.4) if i < 2 else one for i, one in enumerate(runs)]
    shown = " ".join(render(summarise(frame(mixed), [])).split())
    assert "0 of 2 scored runs beat seasonal naive (0 %), unknown for 10 more; 0 of the 2 that beat naive" in shown
    assert "But 2 of 2 runs that beat naive lose to seasonal naive." in shown


@pytest.mark.parametrize(
    ("beating", "others", "sentence"),
    [
        (0, 1, "0 of 1 scored run beats both"),
        (1, 2, "1 of 3 scored runs beats both"),
        (0, 2, "0 of 2 scored runs beat"),
    ],
)
def test_the_verb_agrees_with_the_runs(record, frame, beating: int, others: int, sentence: str):
    records = [record(seed=seed, beats_naive=int(seed < beating)) for seed in range(beating + others)]
    assert sentence in render(summarise(frame(records), []))
