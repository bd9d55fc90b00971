"""The documentation site builds from the repository, without warnings and without anything fetched from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hrx.audit.ledger.record import COLUMNS
from hrx.cli.verbs import parser

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_of_the_repository_is_on_the_site(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists(), page.name
    navigation = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"{page.stem}.html" in navigation or page.stem == "index", page.name


def test_the_reference_names_every_verb_and_every_column(site: Path) -> None:
    commands = (site / "command-line.html").read_text(encoding="utf-8")
    (verbs,) = (action for action in parser()._actions if isinstance(action.choices, dict))
    assert verbs.choices
    for verb in verbs.choices:
        assert f"hrx {verb}" in commands
    record = (site / "record.html").read_text(encoding="utf-8")
    for column in COLUMNS:
        assert f"<code>{column.name}</code>" in record


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.glob("*.html"))
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//[^"]+"', text), page.name
        assert not re.findall(r'<link[^>]+href="(?:https?:)?//[^"]+"', text), page.name
