"""docs/contracts.md: every family has its rows, and each script shows what its title says, by the library alone."""

import re
from pathlib import Path

import contracts
import pytest
from helpers import tiny

from hrx.audit.contract import PROPERTIES

PAGE = contracts.PAGE.read_text(encoding="utf-8")
SCRIPTS = contracts.scripts(PAGE)
SHOWS = {
    "the first 24 steps depend on how many are asked for": r"differ by [1-9]",
    "a masked gap at the end is read as the zeros that stand there": r"differ by 0\.0$",
    "a known-future value acts one patch late, and the last patch is never read": (
        r"patch 1 move steps: 17 33\n.*patch 2 move steps: 33\n.*patch 3 move steps:$"
    ),
    "known-future values are not read for the first 64 steps": r"from 65 on$",
    "predict writes into the arrays that it is given": r": 0 of 10$",
    "a series has another forecast when its neighbour in the list has covariates": r"differs by [1-9]",
    "noise of 1e-6 on a 0/1 covariate is a switch": r"moves by [1-9]",
    "a covariate without values differs from none": r"moves by [1-9]",
    "NaN is read as zero": r": True$",
    "a horizon of 47 returns 24 values": r"46 returned\n47 steps asked for, 24 returned\n.* 48 returned$",
    "a constant window has a NaN forecast": r"finite: False$",
}


def test_every_property_and_every_family_of_this_environment_has_its_row() -> None:
    for name in PROPERTIES:
        assert f"\n| `{name}` | " in PAGE
    for family in tiny.families():
        assert len(re.findall(rf"^\| {re.escape(family)} \|", PAGE, re.M)) in (2, 3), family


def test_every_script_of_the_page_is_tested_and_prints_what_its_title_says() -> None:
    assert [script.title for script in SCRIPTS if not re.search(SHOWS[script.title], script.printed, re.S)] == []
    assert {script.title for script in SCRIPTS} == set(SHOWS)


def test_entries_of_families_that_were_not_measured_stay() -> None:
    page = "a\n<!-- facts -->\n- **b**, x: old.\n- **b**, y: old.\n- **c**, x: old.\n<!-- end of facts -->\nz\n"
    merged = contracts.merged(page, "facts", {"b": ["- **b**, x: new."], "a": ["- **a**, y: new."]})
    facts = "- **a**, y: new.\n- **b**, x: new.\n- **c**, x: old.\n"
    assert merged == f"a\n<!-- facts -->\n{facts}<!-- end of facts -->\nz\n"


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda one: f"{one.family}: {one.title}")
def test_a_script_shows_what_its_title_says(script: contracts.Script, tmp_path: Path) -> None:
    families = tiny.families()
    if script.family not in families:
        pytest.skip(f"{script.family} is not in this environment")
    with families[script.family].context():
        path = families[script.family].build(tmp_path / script.family)
        assert re.search(SHOWS[script.title], contracts.run_script(script, path), re.S)
