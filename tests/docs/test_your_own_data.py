"""The tutorial on one's own data, followed as a reader would."""

import re
import shlex
from pathlib import Path

import pytest

from hrx.cli import main

GUIDE = (Path(__file__).parents[2] / "docs" / "your-own-data.md").read_text(encoding="utf-8")


def session() -> list[tuple[str, str]]:
    """Every command of the guide, and what it is said to print; nothing where the guide does not show it."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", GUIDE, re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


def test_the_commands_of_the_guide_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", GUIDE, re.S):
        exec(compile(code, "your-own-data.md", "exec"), made)
    assert len(session()) == 8
    for command, printed in session():
        assert main(shlex.split(command)[1:]) == 0, command
        shown = capsys.readouterr().out
        if printed:
            assert [line.rstrip() for line in shown.split("\n")] == printed.split("\n"), command
