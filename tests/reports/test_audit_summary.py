"""Trained models by backbone: numbers, verdicts, text, page and comparison."""

import html
import json
import statistics as standard

import pytest

from hrx.errors import Exit, HrxError
from hrx.records.ledger import Ledger, StoredPlan
from hrx.reports import compare, read, summarise
from hrx.reports.audit_summary import MOST_CELLS, AuditSummary, render_audit, summarise_backbones
from hrx.reports.gates import judge_audit
from hrx.reports.page.report import render_report
from hrx.reports.runs import BY_HRX as BY

BY_HRX = json.dumps({"by": BY, "training_rows": 8640, "learning_rate": 0.0001, "best_epoch": 3})


@pytest.fixture
def trained(record):
    """trained(backbone, gains, …): one model for each gain, on three series in turns, at one setting."""

    def make(backbone, gains, training=BY_HRX, **changes):
        return [
            record(
                model=f"{backbone}-{i}", checkpoint=f"{backbone}-{i}", fingerprint=f"{backbone}{i}".ljust(64, "x"),
                backbone=backbone, training=training, training_seed=i // 3, seed=i // 3, dataset=f"ETT{i % 3}",
                series="OT", series_fingerprint=f"s{i % 3}", g_own=gain, g_margin=gain, **changes,
            )
            for i, gain in enumerate(gains)
        ]  # fmt: skip

    return make


def text(frame):
    return render_audit(summarise(frame, []), summarise_backbones(frame, []))


def test_the_numbers_of_a_backbone_are_medians_over_its_models(trained, frame):
    gains = [0.1 + 0.01 * i for i in range(12)]
    runs = frame([*trained("Linear", gains), *trained("CNN", [-g for g in gains], beats_naive=0)])
    linear, cnn = summarise_backbones(runs, [])
    assert (linear.total.models, linear.total.scored, linear.total.beating_naive) == (12, 12, 12)
    assert linear.total.g_margin == pytest.approx(standard.median(gains))
    assert [cell.g_own for cell in linear.cells] == [pytest.approx(standard.median(gains[i::3])) for i in range(3)]
    assert linear.summary.headline == "Too few sources to tell"
    assert "positive in 3 of 3 sources" in linear.summary.verdict
    assert cnn.summary.headline == "No gain is meaningful"
    found = json.loads(json.dumps(linear.as_json(), allow_nan=False))
    assert found["g_margin"]["median"] == pytest.approx(standard.median(gains))
    assert [(cell["dataset"], cell["scored"]) for cell in found["cells"]] == [("ETT0", 4), ("ETT1", 4), ("ETT2", 4)]


def test_one_series_has_no_interval_and_decides_nothing(trained, frame):
    runs = frame([one.updated(dataset="ETT", series_fingerprint="s") for one in trained("Linear", [0.2] * 12)])
    (linear,) = summarise_backbones(runs, [])
    assert linear.summary.headline == "Too few series to tell"
    assert "g_margin +0.200, positive in 1 of 1 series; " in linear.summary.verdict


def test_the_text_has_a_row_for_each_backbone_names_what_was_not_scored_and_keeps_other_verdicts(
    trained, record, frame
):
    refused = trained("CNN", [0.1])[0].updated(key="f" * 64, status="excluded", reason="flat windows", model="CNN-bad")
    other = record(model="bolt-mini", backbone="", training="")
    shown = text(frame([*trained("Linear", [0.2] * 3), *trained("CNN", [0.1, 0.3, 0.2]), refused, other]))
    assert "7 trained models of 2 backbones, 7 runs: 6 scored, 1 excluded, 0 failed." in shown.replace("\n", " ")
    assert [line.split()[:3] for line in shown.splitlines() if line.startswith(("CNN ", "Linear "))][:2] == [
        ["Linear", "3", "+0.200"], ["CNN", "4", "+0.200"],
    ]  # fmt: skip
    assert "excluded: CNN-bad: flat windows" in shown
    assert shown.count("Verdict: ") == 1
    assert shown.index("Linear: ") < shown.index("bolt-mini (")


def test_models_of_different_backbones_keep_a_verdict_each(trained, frame):
    runs = frame([*trained("Linear", [0.2]), *trained("CNN", [0.2])])
    assert summarise_backbones(runs, []) == []
    assert text(runs).count("Verdict: ") == 2


def test_a_long_table_is_left_to_the_page(trained, frame):
    runs = [one.updated(lookback=96 + i) for i, one in enumerate(trained("Linear", [0.2] * (MOST_CELLS + 1)))]
    shown = text(frame(runs))
    assert f"By dataset and setting there are {MOST_CELLS + 1} rows: see the page, or hrx tables." in shown
    assert "dataset  setting" not in shown


@pytest.mark.parametrize(
    ("training", "unknown"),
    [
        (BY_HRX, False),
        (json.dumps({"by": BY, "training_rows": "unknown"}), True),
        (json.dumps({"by": "neuralforecast", "training_rows": "unknown"}), True),
        ("", True),
        (None, True),
        ("not JSON", True),
    ],
)
def test_a_verdict_says_where_the_training_rows_are_unknown(trained, frame, training, unknown):
    runs = frame(trained("Linear", [0.2, 0.3], training))
    sentence = "1 of 1 scored run is of a model whose training rows are unknown: the audited windows may be among them."
    assert all((sentence in one.verdict) == unknown for one in summarise(runs, []))
    of_group = "2 of 2 scored runs are of a model whose training rows are unknown"
    assert all((of_group in one.summary.verdict) == unknown for one in summarise_backbones(runs, []))


@pytest.mark.parametrize("training", [json.dumps({"by": "neuralforecast"}), "", None, "not JSON"])
def test_models_that_hrx_did_not_train_keep_their_names_verdicts_gates_and_cards(trained, ledger, training):
    own = [
        one.updated(model=f"saved:{name}")
        for one, name in zip(trained("NHITS", [0.1, 0.3], training), "ab", strict=True)
    ]
    path = ledger([*own, *trained("DLinear", [0.2], training)])
    alone = read(path)
    assert summarise_backbones(alone, []) == []
    assert text(alone).count("Verdict: ") == 3
    judged = judge_audit(["g_margin >= 0"], alone, by_backbone=True)
    assert [one.model for one in judged] == ["saved:a", "saved:b", "DLinear-0"]
    path = ledger([*own, *trained("NHITS", [0.5, 0.7])])
    mixed = read(path)
    (nhits,) = summarise_backbones(mixed, [])
    assert (nhits.total.models, nhits.total.g_margin) == (2, pytest.approx(0.6))
    shown = text(mixed)
    assert shown.count("Verdict: ") == 2
    assert all(f"saved:{name} (" in shown for name in "ab")
    judged = judge_audit(["g_margin >= 0"], mixed, by_backbone=True)
    assert [one.model for one in judged] == ["saved:a", "saved:b", "NHITS"]
    page = render_report(path, mixed, [])[0]
    members = page[page.index('<details class="members">') :]
    members = members[: members.index("</div></details>")]
    assert (members.count('data-by="model"'), "saved:" in members) == (2, False)
    assert "NHITS, trained elsewhere" in page


def test_the_medians_of_a_table_fold_window_seeds_as_the_verdict_does(trained, frame):
    pairs = [(0.1, 0.2), (0.5, 0.9), (0.3, 0.3), (0.0, 0.8)]
    runs = [
        one.updated(
            key=f"{seed}{i}".ljust(64, "0"), seed=seed, g_margin=gains[seed], g_own=gains[seed], mse=gains[seed]
        )
        for i, (one, gains) in enumerate(zip(trained("Linear", [0.0] * 4), pairs, strict=True))
        for seed in (0, 1)
    ]
    (linear,) = summarise_backbones(frame(runs), [])
    expected = standard.median(standard.mean(pair) for pair in pairs)
    assert expected != pytest.approx(standard.median(gain for pair in pairs for gain in pair))
    assert (linear.total.g_margin, linear.total.mse) == (pytest.approx(expected), pytest.approx(expected))
    assert linear.summary.scored.as_json()["g_margin"]["median"] == pytest.approx(expected)
    first = next(cell for cell in linear.cells if cell.dataset == "ETT0")
    assert first.g_own == pytest.approx(standard.median([0.15, 0.4]))
    assert (first.scored, first.beating_naive) == (4, 4)


def planned(runs, backbone, seeds):
    """Plans of one run each of models of `hrx train` without a stored run, after those of `runs`."""
    stored = [StoredPlan.of(one.model, one.fingerprint, "", [one.key], "2026-01-01") for one in runs]
    absent = [
        StoredPlan.of(f"{backbone}-ETTh1-96x24-seed{n}", f"{backbone}{n}", "", [f"{n:x}".rjust(64, "e")], "2026-01-01")
        for n in seeds
    ]
    return [*stored, *absent]


def test_a_backbone_rests_on_the_plans_of_all_its_models_also_of_those_without_a_run(trained, ledger):
    runs = trained("DLinear", [0.1, 0.2, 0.3, 0.4, 0.5])
    plans = [*planned(runs, "DLinear", range(100, 107)), *planned([], "Linear", range(200, 212))]
    path = ledger(runs)
    with Ledger.open(path) as opened:
        opened.write_all(plans)
    stored = read(path)
    (dlinear,) = summarise_backbones(stored, [], plans)
    assert "Rests on 5 of 12 planned runs." in dlinear.summary.verdict
    assert dlinear.as_json()["plan"] == {"stored": 5, "planned": 12, "until_decided": None}
    assert "Rests on 5 of 12 planned runs." in render_report(path, stored, [])[0]
    whole = summarise_backbones(stored, [], planned(runs, "Linear", range(200, 212)))
    assert "Rests on" not in whole[0].summary.verdict
    compared = compare(stored, stored, new_model="DLinear", min_pairs=1)
    assert compared.verdict.endswith("Planned runs that are stored: base 5 of 12 and new 5 of 12.")
    first = ledger(runs[:1])
    with Ledger.open(first) as opened:
        opened.write_all(plans)
    assert compare(read(first), stored, base_model="DLinear", min_pairs=1).base.plan[:2] == (1, 8)


def test_a_planned_model_whose_name_states_no_backbone_leaves_the_coverage_open(trained, ledger):
    runs = trained("DLinear", [0.1, 0.2])
    plans = [*planned(runs, "", ()), StoredPlan.of("renamed", "r" * 64, "", ["e" * 64, "d" * 64], "2026-01-01")]
    path = ledger(runs)
    with Ledger.open(path) as opened:
        opened.write_all(plans)
    (dlinear,) = summarise_backbones(read(path), [], plans)
    sentence = "The backbone of 2 further planned runs, of models without a stored run, is not known."
    assert sentence in dlinear.summary.verdict
    assert dlinear.as_json()["plan"] == {"stored": 2, "planned": 2, "until_decided": None, "unassigned": 2}
    compared = compare(read(path), read(path), min_pairs=1)
    assert "base 2 of 2 or more" in compared.verdict


def test_text_and_notebook_have_a_row_for_each_backbone_and_each_other_model(trained, record, frame, tmp_path):
    refused = trained("CNN", [0.1])[0].updated(key="f" * 64, status="excluded", reason="flat <b>", model="CNN-bad")
    runs = frame([*trained("Linear", [0.2] * 4), *trained("CNN", [0.1] * 3), refused, record(model="zero<b>shot")])
    models, backbones = tuple(summarise(runs, [])), tuple(summarise_backbones(runs, []))
    found = AuditSummary(models, tmp_path / "ledger.db", Exit.DONE, backbones)
    names = ["Linear", "CNN", "zero<b>shot"]
    assert [row[0] for row in found.screen.rows] == names
    assert all(name in str(found) for name in names)
    shown = found._repr_html_()
    assert all(html.escape(name) in shown for name in names)
    assert "<b>shot" not in shown
    verbose = found.to_text(verbose=True)
    assert verbose.startswith(str(found))
    assert "excluded: CNN-bad: flat <b>" in verbose


@pytest.mark.parametrize("model", [None, "Linear"])
def test_a_comparison_with_a_ledger_without_runs_says_so_whichever_model_is_named(trained, frame, model):
    with pytest.raises(HrxError, match=r"BASE holds no runs\. Give a ledger"):
        compare(frame([]), frame(trained("Linear", [0.1])), base_model=model)


def test_different_recipes_of_a_backbone_are_not_pooled_in_silence(trained, frame):
    other = json.loads(BY_HRX) | {"learning_rate": 0.01, "best_epoch": 9}
    runs = trained("Linear", [0.2] * 4)
    (same,) = summarise_backbones(frame(runs), [])
    changed = [one.updated(training=json.dumps(other)) if i == 3 else one for i, one in enumerate(runs)]
    (mixed,) = summarise_backbones(frame(changed), [])
    assert "Pools trainings" not in same.summary.verdict
    assert "Pools trainings that differ in learning_rate." in mixed.summary.verdict


def test_the_page_has_a_card_of_each_backbone_and_its_models_behind_it(trained, ledger):
    path = ledger([*trained("Linear", [0.2] * 4), *trained("CNN", [0.1] * 4)])
    page = render_report(path, read(path), [])[0]
    verdicts = page[page.index('<div class="verdicts">') : page.index("How to read these numbers")]
    assert verdicts.count('data-by="backbone"') == 2
    assert verdicts.count('data-by="model"') == 8
    assert "<summary>4 trained models of CNN</summary>" in verdicts
    assert '"groupings": ["backbone", "model"' in page or '"groupings":["backbone","model"' in page
    assert "hrx train" in page[page.index("verdicts") :]


def test_a_backbone_is_compared_over_all_its_models_paired_by_series_setting_and_seed(trained, frame):
    gains = [0.1 + 0.01 * i for i in range(12)]
    base = frame([*trained("Linear", gains), *trained("CNN", gains)])
    new = frame([one.updated(fingerprint=one.fingerprint[::-1], g_own=0.5) for one in trained("Linear", gains)])
    with pytest.raises(
        HrxError, match=r"BASE holds 24 models of several backbones: CNN and Linear\. Choose a backbone"
    ):
        compare(base, new)
    found = compare(base, new, base_model="Linear")
    assert (found.base.model, found.new.model) == ("Linear, 12 trained models", "Linear, 12 trained models")
    assert (found.pairs, found.base.unpaired) == (12, 0)
    folded = [standard.mean(0.5 - gain for gain in gains[i::3]) for i in range(3)]
    assert found.quantities["g_own"].difference.point == pytest.approx(standard.median(folded))


def test_two_trainings_that_could_both_pair_are_refused(trained, frame):
    runs = trained("CNN", [0.1, 0.2, 0.3])
    deeper = [one.updated(key="d" * 63 + str(i), model=f"{one.model}-deep", fingerprint="d" * 63 + str(i), depth=4)
              for i, one in enumerate(runs)]  # fmt: skip
    with pytest.raises(HrxError, match="CNN-0 and CNN-0-deep have a run on the same series, setting and seed"):
        compare(frame([*runs, *deeper]), frame(runs))


def test_a_gate_judges_the_models_of_a_backbone_together(trained, record, frame):
    gains = [0.1 + 0.01 * i for i in range(12)]
    both = [trained("Linear", gains), trained("CNN", [-g for g in gains])]
    six = [one.updated(dataset=f"d{i % 6}") for models in both for i, one in enumerate(models)]
    runs = frame([*six, record(model="zero-shot")])
    judged = judge_audit(["g_margin >= 0"], runs, by_backbone=True)
    assert [(one.model, one.outcome, one.clusters.counted) for one in judged] == [
        ("Linear", "passed", "6 sources"), ("CNN", "failed", "6 sources"), ("zero-shot", "undecided", "1 series"),
    ]  # fmt: skip
    assert judged[0].clusters.values == pytest.approx([standard.mean(gains[i::6]) for i in range(6)])
    apart = judge_audit(["g_margin >= 0"], runs)
    assert len(apart) == 25
    assert {one.outcome for one in apart} == {"undecided"}
