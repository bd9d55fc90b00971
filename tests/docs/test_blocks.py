"""Every block of code in the documentation, run in order as a reader would.

A block that cannot run here stands below a comment that says why: `<!-- not run: needs the hub -->`; one that needs a
library, `<!-- needs: sklearn -->`, runs where that is installed. The README runs
with the installed `hrx`, which audits in worker processes; the other pages with programs that start without the
seconds that every start spends on imports.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.warm import WarmPrograms

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(
    r"(?:<!-- (?:not run: (?P<reason>[^>]+)|needs: (?P<needs>\w+)) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.S | re.M,
)
RUN = {"sh", "python"}
SHOWN = {"", "toml", "yaml", "json", "text", "console", "csv", "md"}


class Block(NamedTuple):
    language: str
    code: str
    reason: str | None


def blocks(page: Path) -> list[Block]:
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(m["language"], m["code"], m["reason"] or _missing(m["needs"])) for m in found]


def _missing(library: str | None) -> str | None:
    return f"needs {library}" if library and find_spec(library) is None else None


def test_blocks_are_found_and_reasons_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n```sh\nhrx a\nhrx b\n```\n\n<!-- not run: needs a GPU -->\n```python\nx = 1\n```\n\n```\nseen\n```\n"
        "<!-- needs: numpy -->\n```python\nx = 2\n```\n<!-- needs: nosuchlibrary -->\n```python\nx = 3\n```\n"
    )
    assert blocks(page) == [
        Block("sh", "hrx a\nhrx b\n", None),
        Block("python", "x = 1\n", "needs a GPU"),
        Block("", "seen\n", None),
        Block("python", "x = 2\n", None),
        Block("python", "x = 3\n", "needs nosuchlibrary"),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_is_in_a_language_that_is_run_or_only_shown(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= RUN | SHOWN


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmPrograms]:
    with tempfile.TemporaryDirectory() as folder:
        programs = WarmPrograms(Path(folder))
        yield programs
        programs.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.language in RUN and not b.reason for b in blocks(p))], ids=lambda p: p.name
)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    installed = Path(sys.executable).parent
    programs = installed if page.name == "README.md" else request.getfixturevalue("warm").folder
    environment = os.environ | {
        "PATH": os.pathsep.join([str(programs), str(installed), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
    }
    for number, block in enumerate(blocks(page)):
        if block.reason or block.language not in RUN:
            continue
        command = ["bash", "-euo", "pipefail", "-c", block.code]
        if block.language == "python":
            named = re.match(r"# (\w+\.py)\n", block.code)
            script = tmp_path / (named[1] if named else f"block{number}.py")
            script.write_text(block.code, encoding="utf-8")
            command = [str(programs / "python"), str(script)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{page.name}:\n{block.code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
