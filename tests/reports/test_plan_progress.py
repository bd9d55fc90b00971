"""How much of a plan a ledger holds."""

import hashlib
import json

import pandas as pd

from hrx.records.decision import Decision
from hrx.records.ledger import Ledger, StoredPlan
from hrx.records.merge import merge
from hrx.reports import compare, read
from hrx.reports.runs import PlanProgress, overall_progress, progress, without_runs


def keys(*numbers):
    return [hashlib.sha256(str(number).encode()).hexdigest() for number in numbers]


def plan(numbers, model="bolt-mini", until="", fingerprint="f" * 64):
    return StoredPlan.of(model, fingerprint, until, keys(*numbers), "2026-01-01")


def runs(record, frame, numbers, **changes):
    return frame([record(series=key, **changes).updated(key=key) for key in keys(*numbers)])


def test_runs_of_several_plans_count_once_and_runs_beside_the_plans_not_at_all(record, frame):
    stored = runs(record, frame, [1, 2, 3, 9])
    plans = [plan([1, 2, 3, 4]), plan([3, 4, 5]), plan([6, 7], model="other")]
    assert progress(stored, plans) == PlanProgress(3, 5)
    assert overall_progress(stored, plans) == PlanProgress(3, 7)
    assert without_runs(stored, plans) == {"other": 2}
    assert progress(stored, plans[2:]) is None
    assert overall_progress(stored, []) is None
    assert list(PlanProgress(3, 5).sentences()) == ["Rests on 3 of 5 planned runs."]
    assert list(PlanProgress(5, 5).sentences()) == []


def test_the_decision_uses_the_order_of_the_plan_up_to_its_first_missing_run(record, frame):
    stored = runs(record, frame, [8, 7, 6, 5, 4, 3, 2, 1], g_margin=-0.1)
    assert progress(stored, [plan(range(1, 13), until="decided")]).decisions == (Decision("negative", 6, 12),)
    gap = progress(stored, [plan([1, 2, 99, *range(3, 12)], until="decided")])
    assert gap.decisions == (Decision(None, 2, 12),)
    assert list(gap.sentences()) == [
        "Rests on 8 of 12 planned runs.",
        "Which sign of g_margin most runs of the plan have is not decided after 2 of 12 planned runs.",
    ]  # fmt: skip
    naive = runs(record, frame, range(1, 9), g_margin=-0.1, beats_naive=0)
    assert progress(naive, [plan(range(1, 13), until="decided")]).decisions == (Decision(None, 8, 12),)


def test_a_comparison_says_which_side_is_a_stopped_audit_in_every_form(record, ledger, tmp_path):
    records = [record(series=key).updated(key=key) for key in keys(1, 2, 3)]
    stopped, whole = ledger(records), ledger(records)
    for path, planned in ((stopped, range(1, 9)), (whole, range(1, 4))):
        with Ledger.open(path) as opened:
            opened.write_all([plan(planned, fingerprint=records[0].fingerprint)])
    base, new = read(stopped), read(whole)
    compared = compare(base[base["status"] == "done"], new, min_pairs=1)
    assert compared.verdict.endswith("Planned runs that are stored: base 3 of 8.")
    assert compared.as_json()["base"]["plan"] == {"stored": 3, "planned": 8, "until_decided": None}
    for shown in (compared.to_text(200), compared.to_markdown()):
        sides = [line for line in shown.splitlines() if "3 scored, 0 excluded, 0 failed" in line]
        assert ["Rests on 3 of 8 planned runs." in line for line in sides] == [True, False]
    base.to_parquet(tmp_path / "runs.parquet")
    assert json.loads(pd.read_parquet(tmp_path / "runs.parquet").attrs["plans"])[0]["planned"] == 8


def test_a_merge_keeps_the_plans_of_every_ledger_once(tmp_path):
    for name, numbers in (("a", [1, 2]), ("b", [2, 3]), ("c", [1, 2])):
        with Ledger.open(tmp_path / f"{name}.db") as ledger:
            ledger.write_all([plan(numbers)])
            ledger.write_all([plan(numbers)])
    merge([tmp_path / f"{name}.db" for name in "abc"], tmp_path / "all.db")
    with Ledger.open(tmp_path / "all.db", create=False) as ledger:
        assert [one.run_keys for one in ledger.plans()] == [keys(1, 2), keys(2, 3)]
