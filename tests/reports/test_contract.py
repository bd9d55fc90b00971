"""A contract as text, JUnit, page and file, and two of them compared."""

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hrx.errors import HrxError
from hrx.records.contract import Contract, Finding, Verdict, read_contract
from hrx.reports.contract import (
    compare_contracts,
    comparison_exit,
    comparison_json,
    comparison_text,
    contract_junit,
    contract_markdown,
    contract_page,
    contract_text,
    summary,
)


def finding(name: str, verdict: Verdict, figure: float = 0.0, *, required: bool = False) -> Finding:
    return Finding(name, verdict, figure, f"expected of {name}", f"What {name} means.", required, 3, 0.5)


def contract(*findings: Finding, reach: tuple[tuple[float, ...], ...] = ((0.0, 1.0, 2.0), (0.0, 0.0, 3.0))) -> Contract:
    return Contract("some <model>", "library 1.0", "Some.predict", 3, 2, findings, 15, reach)


CLEAN = contract(
    finding("repeatable", "holds", required=True),
    finding("sign", "does not hold", 0.5),
    finding("quantiles", "does not apply", math.nan),
    finding("reach", "not stated", 2 / 3),
)
LEAKING = replace(CLEAN, findings=(*CLEAN.findings, finding("isolation", "does not hold", math.inf, required=True)))
STOPPED = replace(CLEAN, findings=(*CLEAN.findings, finding("missing", "not run", math.nan)))


def test_the_exit_code_tells_a_failure_a_fact_and_an_unfinished_contract_apart() -> None:
    assert [one.exit for one in (CLEAN, LEAKING, STOPPED)] == [0, 1, 3]


def test_a_file_holds_the_whole_contract(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps(CLEAN.as_json(), allow_nan=False))
    again = read_contract(file)
    assert math.isnan(again.findings[2].figure)
    nan = replace(CLEAN.findings[2], figure=again.findings[2].figure)
    assert again == replace(CLEAN, findings=(*CLEAN.findings[:2], nan, CLEAN.findings[3]))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot be read as a contract"),
        ("[]", "is not a contract of format 1"),
        ('{"contract": 2}', "is not a contract of format 1"),
        ('{"contract": 1}', "is damaged: KeyError"),
        (json.dumps(CLEAN.as_json()).replace("holds", "is fine"), "is damaged: ValueError"),
    ],
)
def test_another_file_is_refused_with_the_command_that_writes_one(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(HrxError, match=sentence) as error:
        read_contract(file)
    assert "hrx verify MODEL --contract --json > FILE.json" in str(error.value)


def test_the_text_shouts_only_what_is_required_and_ends_with_a_summary() -> None:
    text = contract_text(LEAKING)
    assert text.count("DOES NOT HOLD") == 1
    assert "sign        does not hold" in text
    assert " ".join(text.split()).endswith(summary(LEAKING))
    assert summary(LEAKING) == (
        "some <model> at 3x2, 15 official calls (Some.predict): Required and does not hold: isolation. "
        "Facts to know: sign does not hold, by choice."
    )
    assert "Not run: missing." in summary(STOPPED)


def test_junit_fails_what_is_required_and_skips_facts_and_what_was_not_run() -> None:
    root = ElementTree.fromstring(contract_junit(replace(LEAKING, findings=(*LEAKING.findings, STOPPED.findings[-1]))))
    assert {name: root.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "6",
        "failures": "1",
        "skipped": "3",
    }
    failed = [case.get("name") for case in root.iter("testcase") if case.find("failure") is not None]
    assert failed == ["isolation"]


def test_the_page_shows_every_property_and_the_picture() -> None:
    page = contract_page(LEAKING)
    for one in LEAKING.findings:
        assert f"What {one.name} means." in page
    assert "some &lt;model&gt;" in page
    assert page.count("data:image/png;base64,") == 1
    assert 'data-tone="contrary"' in page
    assert "<image" not in contract_page(replace(LEAKING, reach=()))


def test_the_section_of_a_model_card_has_a_row_per_property() -> None:
    piped = replace(LEAKING, findings=(*LEAKING.findings, replace(CLEAN.findings[0], name="units", says="a | b")))
    lines = contract_markdown(piped).splitlines()
    assert lines[0] == "## Contract"
    assert "Required and does not hold: isolation." in lines[3]
    table = lines[5:]
    assert table[:2] == ["| property | verdict | figure | what it means |", "| --- | --- | --- | --- |"]
    assert [row.split(" | ")[0] for row in table[2:]] == [f"| `{one.name}`" for one in piped.findings]
    assert table[-1].endswith(r"| a \| b |")


def test_unread_cells_of_the_picture_are_grey_and_read_ones_are_not() -> None:
    import base64
    import io
    import re

    from matplotlib.image import imread

    encoded = re.search(r"data:image/png;base64,([^\"]+)", contract_page(CLEAN))
    assert encoded
    pixels = imread(io.BytesIO(base64.b64decode(encoded[1])))[..., :3]
    assert pixels.shape == (2, 3, 3)
    grey = pixels.max(axis=-1) - pixels.min(axis=-1) < 0.1
    assert grey.tolist() == [[True, False, False], [True, True, False]]


def test_a_contract_compared_with_itself_has_no_differences() -> None:
    assert not any(one.differs for one in compare_contracts(LEAKING, LEAKING))
    assert comparison_exit(LEAKING, LEAKING) == 0


def test_what_held_and_does_not_hold_any_more_fails_whether_it_is_required_or_not() -> None:
    base = contract(finding("units", "holds", 1e-7), finding("sign", "does not hold", 0.5))
    new = contract(finding("units", "does not hold", 0.2), finding("sign", "holds", 0.0))
    assert comparison_exit(base, new) == 1
    assert comparison_exit(new, base) == 1
    assert [one.name for one in compare_contracts(base, new) if one.broken] == ["units"]
    text = comparison_text(base, new)
    assert "units held and does not hold any more; 2 of 2 properties differ" in text
    assert "0.2" in text
    assert comparison_json(base, new)["changes"] == [
        {
            "name": "units",
            "base": {"verdict": "holds", "figure": 1e-7},
            "new": {"verdict": "does not hold", "figure": 0.2},
            "broken": True,
            "note": "",
        },
        {
            "name": "sign",
            "base": {"verdict": "does not hold", "figure": 0.5},
            "new": {"verdict": "holds", "figure": 0.0},
            "broken": False,
            "note": "",
        },
    ]


def test_what_was_not_run_or_is_missing_differs_and_breaks_nothing() -> None:
    base = contract(finding("units", "holds"), finding("sign", "holds"))
    new = contract(finding("units", "not run", math.nan))
    assert [(one.name, one.differs, one.broken) for one in compare_contracts(base, new)] == [
        ("units", True, False),
        ("sign", True, False),
    ]


def test_figures_differ_beyond_rounding_and_times_never() -> None:
    def differs(name: str, first: float, second: float) -> bool:
        base, new = contract(finding(name, "not stated", first)), contract(finding(name, "not stated", second))
        return compare_contracts(base, new)[0].differs

    assert not differs("isolation", 1e-7, 3e-7)
    assert differs("isolation", 0.1, 0.2)
    assert differs("isolation", 0.1, math.inf)
    assert not differs("isolation", math.inf, math.inf)
    assert not differs("cost", 0.1, 5.0)


def test_a_reach_of_the_same_size_at_other_places_differs() -> None:
    base = contract(finding("reach", "not stated", 2 / 3))
    new = replace(base, reach=((1.0, 0.0, 2.0), (0.0, 0.0, 3.0)))
    (change,) = compare_contracts(base, new)
    assert change.differs
    assert change.note == "2 of 6 pairs of step and input"
