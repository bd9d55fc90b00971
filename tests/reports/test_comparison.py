"""A comparison as text, Markdown, JUnit XML and JSON."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.compared import side
from helpers.constructed import runs

from hrx.errors import Exit, HrxError
from hrx.reports import compare
from hrx.reports.compare import CheckpointComparison


def failing() -> CheckpointComparison:
    return compare(
        side("a"), side("b", -0.5, scale=2.0), ["g_own >= -0.02", "rank <= +5%", "mse <= +2%", "parity <= 1e-5"]
    )


def test_json_has_what_the_design_promises() -> None:
    loaded = json.loads(json.dumps(failing().as_json(), allow_nan=False))
    assert loaded["pairs"] == 30
    assert {"base", "new", "difference", "low", "high"} <= set(loaded["quantities"]["g_margin"])
    assert loaded["quantities"]["parity"]["low"] is None
    assert [(gate["gate"], gate["outcome"]) for gate in loaded["gates"]] == [
        ("g_own >= -0.02", "failed"), ("rank <= +5%", "passed"), ("mse <= +2%", "failed"), ("parity <= 1e-5", "passed"),
    ]  # fmt: skip
    gate = loaded["gates"][2]
    assert {name: gate[name] for name in ("difference", "low", "high", "clusters", "unit", "reason", "power")} == {
        "difference": 1, "low": 1, "high": 1, "clusters": 10, "unit": "source",
        "reason": "the interval lies beyond the bound", "power": None,
    }  # fmt: skip
    assert [one["dataset"] for one in gate["datasets"]] == [f"d{i}/H" for i in range(10)]
    assert (loaded["clusters"], loaded["quantities"]["mse"]["clusters"]) == (10, 10)
    assert loaded["verdict"].startswith("failed: g_own >= -0.02 and mse <= +2%; passed: rank")
    assert loaded["exit"] == 1


def test_junit_is_valid_xml_with_a_case_for_every_gate() -> None:
    root = ElementTree.fromstring(failing().to_junit().encode())
    (suite,) = root
    assert root.tag == "testsuites"
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "6", "failures": "2", "errors": "0",
    }  # fmt: skip
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases == {
        "admission": [], "pairs": [], "g_own >= -0.02": ["failure"], "rank <= +5%": [], "mse <= +2%": ["failure"],
        "parity <= 1e-5": [],
    }  # fmt: skip


@pytest.mark.parametrize(("wish", "tag"), [(None, "skipped"), ("pass", "skipped"), ("fail", "failure")])
def test_an_undecided_gate_never_looks_passed_in_junit(wish, tag: str) -> None:
    compared = compare(side("a"), side("b"), ["insertion >= 0"], undecided=wish)
    suite = ElementTree.fromstring(compared.to_junit().encode())[0]
    (case,) = [case for case in suite.iter("testcase") if case.get("name") == "insertion >= 0"]
    assert [child.tag for child in case] == [tag]
    assert "undecided" in case[0].get("message")
    assert (suite.get("skipped"), suite.get("failures")) == (("1", "0") if tag == "skipped" else ("0", "1"))


def test_hostile_names_are_text_in_every_report() -> None:
    hostile = "<b>\x1b[1m|`@all`\x00\u202e]]>&\ud800 https://evil.example\n# x"
    compared = compare(
        side("a").assign(model=hostile, dataset=hostile), side("b").assign(model=hostile, dataset=hostile)
    )
    shown = compared.to_text()
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    summary = compared.to_markdown()
    assert "<b>" not in summary
    assert "https:" not in summary
    ElementTree.fromstring(compared.to_junit().encode())
    json.dumps(compared.as_json(), allow_nan=False)


def test_the_summary_stays_below_the_hosts_limit_and_says_what_it_cut() -> None:
    names = [f"d{i:05}/" + "数" * 60 for i in range(600)]
    two = [runs(600, fingerprint=mark, series_fingerprint=names, dataset=names, g_margin=0.1) for mark in "ab"]
    summary = compare(*two, ["g_margin >= 0"]).to_markdown()
    assert len(summary.encode()) <= 65_536
    assert "Cut here" in summary
    assert "| g\\_margin &gt;= 0 | passed |" in summary
    lines = summary.split("Cut here")[0].rstrip().splitlines()
    assert lines[-1].startswith("| ")
    assert lines[-1].endswith(" |")
    assert "Cut here" not in failing().to_markdown()


def test_the_text_names_both_sides_the_gates_and_the_verdict_last() -> None:
    shown = failing().to_text()
    assert "base: m (weights aaaaaaaaaaaa): 30 scored" in shown
    assert "FAILED     mse <= +2%: the interval lies beyond the bound\n" in shown
    assert " +100.00% [+100.00%, +100.00%], 10 sources\n" in shown
    assert shown.rstrip().split("\n\n")[-1].startswith("Verdict: failed:")


def test_an_infinite_parity_fails_its_gate_and_is_seen_in_every_report() -> None:
    base, new = side("a"), side("b")
    new.loc[3, "parity"] = np.inf
    found = compare(base, new, ["parity <= 1e-5"])
    assert found.exit == Exit.GATE_FAILED
    assert (found.quantities["parity"].base, found.quantities["parity"].new) == (1e-7, math.inf)
    assert "FAILED     parity <= 1e-5: the worst run lies beyond the bound\n             worst inf\n" in found.to_text()
    assert "| **FAILED** | the worst run lies beyond the bound<br>worst inf |" in found.to_markdown()
    loaded = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert loaded["quantities"]["parity"]["new"] is None
    assert loaded["gates"][0]["outcome"] == "failed"
    assert loaded["new"]["impossible"] == "1 of 30 scored runs has an infinite parity."
    both = compare(new, new, ["parity <= 1e-5"])
    assert math.isnan(both.quantities["parity"].difference.point)
    assert both.exit == Exit.GATE_FAILED


def test_hostile_names_are_harmless_in_the_sentence_that_lists_models(record, frame):
    two = frame([record(model="a\x1b[31m"), record(model="b\u202e")])
    with pytest.raises(HrxError, match="several models") as caught:
        compare(two, two)
    assert not {"\x1b", "\u202e"} & set(str(caught.value))
