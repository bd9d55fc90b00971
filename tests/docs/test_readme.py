"""The README does what it says."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_python_of_the_readme_runs_as_it_stands() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    matrix = names["E"]
    assert tuple(matrix.shape) == (4, 24, 96)  # type: ignore[attr-defined]


def test_every_link_of_the_documents_leads_to_a_file() -> None:
    for document in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / document).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), target
