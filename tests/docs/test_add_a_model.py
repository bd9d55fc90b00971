"""The examples of docs/add-a-model.md pass the checks that the page describes; its guide is adapters/families/t0.py."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hrx.cli import main
from hrx.cli.new_adapter import skeleton

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "add-a-model.md"
BLOCKS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
BUILD = re.compile(r"part of the test[^\n]* -->\n```python\n(.*?)```", re.S)


def test_the_page_has_two_complete_examples() -> None:
    assert [name for name, _ in BLOCKS] == ["mine.py", "wrapped.py"]


@pytest.mark.parametrize(("name", "code"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_an_example_of_the_page_is_admitted(
    name: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(code.splitlines()) <= 35
    (tmp_path / name).write_text(code)
    factory = "make" if name == "mine.py" else "Wrapped"
    assert main(["verify", f"module:{tmp_path / name}:{factory}", "--settings", "96x24"]) == 0, capsys.readouterr().out


def methods(code: str) -> list[str]:
    """The methods of the only class in a file, in order."""
    (found,) = (node for node in ast.parse(code).body if isinstance(node, ast.ClassDef))
    return [node.name for node in found.body if isinstance(node, ast.FunctionDef)]


def test_the_guide_is_the_skeleton_filled_in_for_t0() -> None:
    filled = (ROOT / "adapters" / "families" / "t0.py").read_text(encoding="utf-8")
    assert "<!-- code: adapters/families/t0.py -->" in PAGE.read_text(encoding="utf-8"), "the builder puts it there"
    empty = methods(next(iter(skeleton("t0", in_clone=True).values())))
    in_place = [name.removesuffix("_window") for name in methods(filled)]  # of windows with covariates
    assert in_place[: len(empty)] == empty == ["open_library", "read_limits", "predict", "official"]


@pytest.mark.slow
def test_the_test_of_the_skeleton_passes_for_t0_and_finds_a_mistake(tmp_path: Path) -> None:
    (adapter, _), (test, test_text) = skeleton("t0", in_clone=False).items()
    (build,) = BUILD.findall(PAGE.read_text(encoding="utf-8"))
    unfilled = re.compile(r"def build.*?to path\"\)\n", re.S)
    assert unfilled.search(test_text)
    (tmp_path / test).write_text(unfilled.sub(lambda _: build, test_text))
    filled = (ROOT / "adapters" / "families" / "t0.py").read_text(encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test.name]
    wrong = filled.replace("index(level) for", "index(level) + 1 for")
    for code, selected, expected in ((filled, "", 0), (wrong, "every_check", 1)):
        (tmp_path / adapter).write_text(code)
        done = subprocess.run([*command, "-k", selected], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == expected, done.stdout
    assert "computes another forecast than the library" in done.stdout
