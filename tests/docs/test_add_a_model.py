"""The examples of docs/add-a-model.md pass the checks that the page describes."""

import re
from pathlib import Path

import pytest

from hrx.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "add-a-model.md"
BLOCKS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


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
