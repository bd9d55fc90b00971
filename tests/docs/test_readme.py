"""The README does what it says."""

import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]


def test_the_python_of_the_readme_runs_as_it_stands_and_prints_what_it_shows(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert blocks
    for code, shown in blocks:
        exec(compile(code, "README.md", "exec"), {})
        printed = capsys.readouterr().out
        number = r"[+-]?\d+\.\d+"
        assert re.sub(number, "#", printed).split() == re.sub(number, "#", shown).split()
        values = ([float(found) for found in re.findall(number, text)] for text in (printed, shown))
        np.testing.assert_allclose(*values, rtol=0.02, atol=0.002)


def test_every_link_of_the_documents_leads_to_a_file() -> None:
    for document in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / document).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), target
