"""The action, the workflow and the snippets are valid YAML, and every command in them is one that hrx takes."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from hrx.cli.verbs import parser
from hrx.reports.gates import parse

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "compare" / "action.yml"
GUIDES = [ROOT / "docs" / "compare-in-ci.md", ROOT / "docs" / "tables.md"]


def blocks(guide: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", guide.read_text(encoding="utf-8"), re.S)


def commands(script: str) -> list[list[str]]:
    """The hrx commands of a shell script, as the words that the program receives."""
    lines = [line.strip() for line in script.splitlines()]
    found = [line.split("||")[0] for line in lines if re.match(r"hrx \w", line)]
    # Shell variables are replaced by an example value.
    filled = [line.replace('"${gates[@]}"', '--gate "g_margin >= 0"').replace('"$SETTINGS"', "96x24") for line in found]
    return [shlex.split(line)[1:] for line in filled]


def accepted(words: list[str]) -> None:
    options = parser().parse_args(words)
    for gate in getattr(options, "gate", None) or []:
        parse(gate)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_every_command_of_the_guides_is_one_that_hrx_takes(guide: Path) -> None:
    found = [words for block in blocks(guide, "sh") for words in commands(block)]
    assert found
    for words in found:
        accepted(words)


def test_the_action_runs_commands_that_hrx_takes_and_passes_inputs_as_variables_only() -> None:
    action = yaml.safe_load(ACTION.read_text())
    assert {"base", "new", "data", "settings", "gates"} <= set(action["inputs"])
    assert action["runs"]["using"] == "composite"
    scripts = [step["run"] for step in action["runs"]["steps"]]
    assert all("${{" not in script for script in scripts)
    assert all(step["shell"] == "bash" for step in action["runs"]["steps"])
    found = [words for script in scripts for words in commands(script)]
    assert [words[0] for words in found] == ["audit", "audit", "compare"]
    for words in found:
        accepted(words)
    for gate in action["inputs"]["gates"]["default"].splitlines():
        parse(gate)


def test_the_workflow_gives_the_action_inputs_that_it_has() -> None:
    workflow, pipeline = map(yaml.safe_load, blocks(GUIDES[0], "yaml"))
    (step,) = [step for step in workflow["jobs"]["compare"]["steps"] if step["uses"] == "./.github/actions/compare"]
    assert set(step["with"]) <= set(yaml.safe_load(ACTION.read_text())["inputs"])
    for gate in step["with"]["gates"].splitlines():
        parse(gate)
    for words in commands("\n".join(pipeline["compare"]["script"])):
        accepted(words)
    assert pipeline["compare"]["artifacts"]["reports"]["junit"] == "junit.xml"


def test_the_script_of_the_action_turns_lines_into_gates_and_keeps_the_exit_code(tmp_path: Path) -> None:
    """The comparing step in a real shell, with a fake hrx that records its arguments and fails."""
    script = yaml.safe_load(ACTION.read_text())["runs"]["steps"][2]["run"]
    fake = tmp_path / "bin" / "hrx"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > arguments\nmkdir -p out\necho report > out/summary.md\nexit 1\n')
    fake.chmod(0o755)
    variables = {
        "PATH": f"{fake.parent}:{os.environ['PATH']}",
        "GATES": "g_margin >= -0.02\n\n  mse <= +2%\n$(touch hacked)\n",
        "OUT": "out",
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=tmp_path, env=variables, check=False)
    assert done.returncode == 1
    given = (tmp_path / "arguments").read_text().splitlines()
    assert [given[i + 1] for i, word in enumerate(given) if word == "--gate"] == [
        "g_margin >= -0.02", "  mse <= +2%", "$(touch hacked)",
    ]  # fmt: skip
    assert not (tmp_path / "hacked").exists()
    assert (tmp_path / "summary").read_text() == "report\n"
    assert "junit=out/junit.xml" in (tmp_path / "outputs").read_text()
