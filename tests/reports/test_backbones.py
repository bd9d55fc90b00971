"""Trained models by backbone: numbers, verdicts, text, page and comparison."""

import json
import statistics as standard

import pytest

from hrx.errors import HrxError
from hrx.reports import compare, read, summarise
from hrx.reports.backbones import MOST_CELLS, render_audit, summarise_backbones
from hrx.reports.gates import judge_audit
from hrx.reports.page.report import render_report

BY_HRX = json.dumps({"by": "hrx train", "training_rows": 8640, "learning_rate": 0.0001, "best_epoch": 3})


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
    assert linear.summary.headline == "Reads different inputs for different steps"
    assert "3 datasets of one series each" in linear.summary.verdict
    assert cnn.summary.headline == "No gain is meaningful"
    found = json.loads(json.dumps(linear.as_json(), allow_nan=False))
    assert found["g_margin"]["median"] == pytest.approx(standard.median(gains))
    assert [(cell["dataset"], cell["scored"]) for cell in found["cells"]] == [("ETT0", 4), ("ETT1", 4), ("ETT2", 4)]


def test_one_series_has_no_interval_and_decides_nothing(trained, frame):
    runs = frame([one.updated(dataset="ETT", series_fingerprint="s") for one in trained("Linear", [0.2] * 12)])
    (linear,) = summarise_backbones(runs, [])
    assert linear.summary.headline == "Too few series to tell (fewer than 3)"
    assert "(no interval)" in linear.summary.verdict


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
        (json.dumps({"by": "neuralforecast", "training_rows": "unknown"}), True),
        ("", True),
        (None, True),
        ("not JSON", True),
    ],
)
def test_a_verdict_says_where_the_training_rows_are_unknown(trained, frame, training, unknown):
    runs = frame(trained("Linear", [0.2, 0.3], training))
    (linear,) = summarise_backbones(runs, [])
    sentence = (
        "2 of 2 scored runs are of a model whose training rows are unknown: the audited windows may be among them."
    )
    assert (sentence in linear.summary.verdict) == unknown
    assert all(("training rows are unknown" in one.verdict) == unknown for one in summarise(runs, []))


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
    page = render_report(path, read(path), [])
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
    runs = frame([*trained("Linear", gains), *trained("CNN", [-g for g in gains]), record(model="zero-shot")])
    judged = judge_audit(["g_margin >= 0"], runs, by_backbone=True)
    assert [(one.model, one.judged.outcome, one.judged.n) for one in judged] == [
        ("Linear", "passed", 12),
        ("CNN", "failed", 12),
        ("zero-shot", "undecided", 1),
    ]
    assert judged[0].judged.estimate.point == pytest.approx(standard.median(gains))
    apart = judge_audit(["g_margin >= 0"], runs)
    assert len(apart) == 25
    assert {one.judged.outcome for one in apart} == {"undecided"}
