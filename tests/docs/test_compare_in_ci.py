"""The action and the GitLab template: valid, with commands that hrx takes, and run for real in another repository."""

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
import yaml
from helpers.noisy import noisy_bolt_mini

from hrx.cli.main import parser
from hrx.reports.gates import parse

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "compare" / "action.yml"
GUIDES = [ROOT / "docs" / "compare-in-ci.md", ROOT / "docs" / "tables.md"]
DEFINITION = yaml.safe_load(ACTION.read_text())
CHECK, INSTALL, AUDIT, COMPARE = DEFINITION["runs"]["steps"]
WORKFLOW, PIPELINE = (
    yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", GUIDES[0].read_text(encoding="utf-8"), re.S)
)


def commands(script: str) -> list[list[str]]:
    """The hrx commands of a shell script, as the words that the program receives."""
    lines = [line.strip() for line in script.splitlines()]
    found = [line.split("||")[0] for line in lines if re.match(r"hrx \w", line)]
    # Shell variables are replaced by an example value.
    examples = {'"${options[@]}"': '--gate "g_margin >= 0"', '"$SETTINGS"': "96x24", '"$SERIES"': "3", '"$SEEDS"': "2"}
    for variable, value in (examples | {"$AUDIT": PIPELINE["compare"]["variables"]["AUDIT"]}).items():
        found = [line.replace(variable, value) for line in found]
    return [shlex.split(line)[1:] for line in found]


def accepted(words: list[str]) -> None:
    options = parser().parse_args(words)
    for gate in getattr(options, "gate", None) or []:
        parse(gate)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_every_command_of_the_guides_is_one_that_hrx_takes(guide: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", guide.read_text(encoding="utf-8"), re.S)
    found = [words for block in blocks for words in commands(block)]
    assert found
    for words in found:
        accepted(words)


def test_the_action_runs_commands_that_hrx_takes_and_passes_inputs_as_variables_only() -> None:
    assert DEFINITION["runs"]["using"] == "composite"
    steps = DEFINITION["runs"]["steps"]
    assert all("${{" not in step["run"] for step in steps)
    assert all(step["shell"] == "bash" for step in steps)
    found = [words for step in steps for words in commands(step["run"])]
    assert [words[0] for words in found] == ["audit", "compare"]
    for words in found:
        accepted(words)
    for gate in DEFINITION["inputs"]["gates"]["default"].splitlines():
        parse(gate)


def test_the_workflow_gives_the_action_inputs_that_it_has_and_the_guide_lists_them_all() -> None:
    (step,) = [step for step in WORKFLOW["jobs"]["compare"]["steps"] if "actions/compare" in step["uses"]]
    assert set(step["with"]) <= set(DEFINITION["inputs"])
    for gate in step["with"]["gates"].splitlines():
        parse(gate)
    table = GUIDES[0].read_text(encoding="utf-8").split("| input |")[1].split("\n\n")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name for cell in first_cells for name in re.findall(r"`([\w-]+)`", cell)} == set(DEFINITION["inputs"])


def test_the_gitlab_template_runs_commands_that_hrx_takes() -> None:
    job = PIPELINE["compare"]
    found = commands("\n".join(job["script"]))
    assert [words[0] for words in found] == ["audit", "audit", "compare"]
    for words in found:
        accepted(words)
    assert job["artifacts"]["reports"]["junit"] == "junit.xml"
    assert job["allow_failure"] == {"exit_codes": 4}


class StepRun(NamedTuple):
    """What a step of the action left behind."""

    code: int
    outputs: dict[str, str]
    summary: str
    text: str


def run_step(step: Mapping[str, Any], folder: Path, path: str, **inputs: str) -> StepRun:
    """A step as a runner executes it: inputs as variables, `bash -eo pipefail`, files for outputs and summary."""
    given = {name: one.get("default", "") for name, one in DEFINITION["inputs"].items()} | {
        name.replace("_", "-"): value for name, value in inputs.items()
    }
    given["toJSON"] = json.dumps(given)
    variables = {
        name: re.sub(r"\$\{\{ (?:inputs\.([\w-]+)|(toJSON)\(inputs\)) \}\}", lambda m: given[m[1] or m[2]], value)
        for name, value in step["env"].items()
    }
    assert not any("${{" in value for value in variables.values())
    files = {name: folder / f".{name.lower()}" for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    runner = {name: str(file) for name, file in files.items()} | {"GITHUB_ACTION_PATH": str(ACTION.parent)}
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment = {"HOME": str(folder), "OMP_NUM_THREADS": "1", "PATH": path, **offline, **runner, **variables}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    lines = files["GITHUB_OUTPUT"].read_text().splitlines()
    outputs = dict(line.split("=", 1) for line in lines)
    return StepRun(done.returncode, outputs, files["GITHUB_STEP_SUMMARY"].read_text(), done.stdout + done.stderr)


def fake(folder: Path, program: str, script: str) -> str:
    """A program that appends its arguments to the file `arguments` and then runs the script. Returns a PATH."""
    file = folder / "bin" / program
    file.parent.mkdir(exist_ok=True)
    file.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> arguments\n{script}\n')
    file.chmod(0o755)
    return f"{file.parent}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("hrx", "expected"),
    [
        ("", f"{ROOT}[ttm,gift-eval]"),
        ("0.1.0", "hrx[ttm,gift-eval]==0.1.0"),
        ("git+https://example.com/hrx.git@main", "hrx[ttm,gift-eval] @ git+https://example.com/hrx.git@main"),
        ("vendor/hrx", "{folder}/vendor/hrx[ttm,gift-eval]"),
    ],
)
def test_the_action_installs_its_own_version_or_that_version_path_or_url(
    hrx: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "vendor" / "hrx").mkdir(parents=True)
    path = fake(tmp_path, "python", "exit 0")
    assert run_step(INSTALL, tmp_path, path, hrx=hrx, extras="ttm,gift-eval").code == 0
    *_, end, package = (tmp_path / "arguments").read_text().splitlines()
    assert end == "--"
    assert package == expected.format(folder=tmp_path)
    assert INSTALL["if"] == "inputs.hrx != 'installed'"


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 0), (3, 0), (2, 2), (130, 130)])
def test_the_action_goes_on_after_an_incomplete_audit_and_stops_after_a_wrong_request(
    code: int, ends: int, tmp_path: Path
) -> None:
    path = fake(tmp_path, "hrx", f"exit {code}")
    assert run_step(AUDIT, tmp_path, path, base="a", new="b", series="7", seeds="5").code == ends
    given = (tmp_path / "arguments").read_text().splitlines()
    assert given.count("audit") == (2 if ends == 0 else 1)
    assert [given[given.index(name) + 1] for name in ("--series", "--seeds")] == ["7", "5"]


def test_the_action_does_not_audit_a_base_whose_ledger_is_stored(tmp_path: Path) -> None:
    path = fake(tmp_path, "hrx", "exit 0")
    assert run_step(AUDIT, tmp_path, path, new="b", base_ledger="stored.db").code == 0
    given = (tmp_path / "arguments").read_text().splitlines()
    assert given.count("audit") == 1
    assert given[-2:] == ["--", "b"]


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"out": "out\nreport=/etc/passwd"}, r'The input out, "out\nreport=/etc/passwd", holds a control character'),
        ({"out": "a\r::set-env name=PATH::/x"}, "holds a control character"),
        ({"out": ""}, "is not a directory"),
        ({"base_ledger": "stored.db\n::warning::all is well"}, "holds a control character"),
        ({"base_ledger": "absent.db"}, 'The input base-ledger, "absent.db", is not a file'),
        ({"base": ""}, "Give the input base (a checkpoint) or base-ledger"),
        ({"new": "--config=elsewhere.toml"}, "begins with a dash and would be taken for an option"),
        ({"base": " --out=/tmp"}, "begins with a dash"),
        ({"data": "--debug"}, "begins with a dash"),
        ({"gates": "mse <= +2%\n--informational"}, "begins with a dash"),
        ({"extras": "ttm] @ https://example.com/other.whl #"}, "is not extras"),
        ({"extras": "ttm,other @ git+https://example.com/x"}, "is not extras"),
        ({"hrx": "1.0 --index-url=https://example.com"}, "is not a version, an existing path, a URL or `installed`"),
        ({"hrx": "other-package"}, "is not a version"),
        ({"series": "3 --workers 99"}, "is not a whole number"),
        ({"seeds": "0"}, "is not a whole number"),
        ({"min_pairs": "1e9"}, "is not a whole number"),
        ({"strict": "yes"}, "is not true or false"),
        ({"undecided": "pass\n"}, "holds a control character"),
    ],
)
def test_the_action_refuses_inputs_that_are_options_lines_of_their_own_or_other_packages(
    inputs: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    done = run_step(CHECK, tmp_path, os.environ["PATH"], **{"base": "bolt-mini", "new": "b"} | inputs)
    assert done.code == 2
    (line,) = done.text.splitlines()
    assert line.startswith("::error::")
    assert sentence.replace("%", "%25") in line
    assert done.outputs == {}


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"hrx": "installed", "extras": "", "undecided": "fail", "strict": "true"},
        {"hrx": "git+https://example.com/hrx.git@main", "extras": "ttm,gift-eval", "base": "ttm:./a b"},
        {"hrx": "0.1.0.dev3+g12", "data": "csv:a.csv?decimal=,", "gates": "\n  mse <= +2%\n\n$(touch hacked)\n"},
        {"base": "", "base_ledger": "stored ledger.db", "out": "ergebnis ä"},
    ],
)
def test_the_action_takes_every_valid_input(inputs: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "stored ledger.db").touch()
    done = run_step(CHECK, tmp_path, os.environ["PATH"], **{"base": "bolt-mini", "new": "b"} | inputs)
    assert (done.code, done.text) == (0, "")
    assert not (tmp_path / "hacked").exists()


def test_the_script_of_the_action_turns_inputs_into_options_and_keeps_the_exit_code(tmp_path: Path) -> None:
    path = fake(tmp_path, "hrx", "mkdir -p out\necho report > out/summary.md\nexit 4")
    gates = "g_margin >= -0.02\n\n  mse <= +2%\n$(touch hacked)\n"
    more = {"strict": "true", "undecided": "fail", "min_pairs": "8", "base_ledger": "stored.db", "base": "old"}
    done = run_step(COMPARE, tmp_path, path, gates=gates, out="out", **more)
    assert done.code == 4
    given = (tmp_path / "arguments").read_text().splitlines()
    assert [given[i + 1] for i, word in enumerate(given) if word == "--gate"] == [
        "g_margin >= -0.02", "  mse <= +2%", "$(touch hacked)",
    ]  # fmt: skip
    assert (given[0], *given[-3:]) == ("compare", "--", "stored.db", "out/new/ledger.db")
    options = {name: given[given.index(name) + 1] for name in ("--undecided", "--min-pairs", "--base-model")}
    assert options == {"--undecided": "fail", "--min-pairs": "8", "--base-model": "old"}
    assert "--strict" in given
    assert not (tmp_path / "hacked").exists()
    assert done.summary == "report\n"
    assert done.outputs == {"report": "out/report.json", "junit": "out/junit.xml", "base-ledger": "stored.db"}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of somebody else: a noisy checkpoint, a wheel of hrx, and an environment without hrx."""
    folder = tmp_path_factory.mktemp("elsewhere")
    noisy_bolt_mini(folder / "checkpoints", 50)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "dist"]
    subprocess.run([*pip, str(ROOT)], check=True, cwd=folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (own,) = (folder / "venv").glob("lib/python*/site-packages")
    # A plain path, so that the editable installation of hrx in it is not activated; its libraries are seen.
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (own / "libraries.pth").write_text("\n".join(dict.fromkeys([*libraries, sysconfig.get_path("purelib")])) + "\n")
    return folder


@pytest.mark.slow
def test_the_action_and_the_gitlab_template_run_for_real_in_another_repository(elsewhere: Path) -> None:
    path = f"{elsewhere / 'venv' / 'bin'}:{os.environ['PATH']}"
    (wheel,) = elsewhere.glob("dist/*.whl")

    installed = run_step(INSTALL, elsewhere, path, hrx=str(wheel.relative_to(elsewhere)))
    assert installed.code == 0, installed.text
    assert (elsewhere / "venv" / "bin" / "hrx").exists()

    both, data = {"base": "bolt-mini", "new": "./checkpoints/noise50"}, "sample:co2,elnino,seattle,sf_temps"
    audited = run_step(AUDIT, elsewhere, path, data=data, settings="48x12", series="4", seeds="1", **both)
    assert audited.code == 0, audited.text
    broken = run_step(COMPARE, elsewhere, path, min_pairs="8", **both)
    assert broken.code == 1, broken.text
    assert "**FAILED**" in broken.summary
    assert broken.summary.startswith("### hrx compare: failed: ")

    # The stored ledger as base, and gates that even this checkpoint passes.
    stored = {"base_ledger": broken.outputs["base-ledger"], "gates": "parity <= 1e-5\nrank <= +900%"}
    passed = run_step(COMPARE, elsewhere, path, min_pairs="4", strict="true", **stored)
    assert passed.code == 0, passed.text
    assert passed.summary.startswith("### hrx compare: passed: all 2 gates; over 8 pairs of runs in 4 sources.")
    assert (elsewhere / passed.outputs["junit"]).exists()

    job = PIPELINE["compare"]
    variables = job["variables"] | {"HRX": f"{wheel}[chronos-bolt]", "NEW": "./checkpoints/noise50"}
    variables |= {
        "AUDIT": f"--data {data} --settings 48x12 --series 4 --seeds 1 --workers 0",
        "PATH": path,
        "HOME": str(elsewhere),
    }
    variables |= {"PIP_NO_INDEX": "1", "OMP_NUM_THREADS": "1"}
    command = ["bash", "-eo", "pipefail", "-c", "\n".join(job["script"])]
    done = subprocess.run(command, cwd=elsewhere, env=variables, capture_output=True, text=True, timeout=300)
    # Four sources are fewer than the five of a gate, but a dataset that broke fails it alone; parity and admission need
    # none of them.
    assert done.returncode == 1, done.stdout + done.stderr
    suite = ElementTree.parse(elsewhere / "junit.xml").getroot()[0]
    tags = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert tags == {
        "admission": [], "pairs": ["failure"], "g_margin >= -0.02": ["failure"], "mse <= +2%": ["failure"],
        "parity <= 1e-5": [],
    }  # fmt: skip
