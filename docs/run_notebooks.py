"""Runs the notebooks when the site is built, in build/notebooks, and makes a page of each."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import CellExecutionError, ExecutePreprocessor
from properdocs.exceptions import PluginError
from properdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "build" / "notebooks"
PACKAGES = ("adapters", "api", "audit", "cli", "common", "gift_eval", "records", "reports")
LONGEST = 600
"""Seconds that one cell may take."""


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for each notebook, with its pictures; the notebook itself is on the site too."""
    for path in notebooks():
        results = RESULTS / path.stem
        with _alone():
            if not _current(path, results / "page.md"):
                _make(path, results)
        for made in sorted(results.iterdir()):
            if made.suffix in (".md", ".png"):
                name = f"notebooks/{path.stem}.md" if made.suffix == ".md" else f"notebooks/{made.name}"
                files.append(File.generated(config, name, abs_src_path=str(made)))
    return files


@contextmanager
def _alone() -> Iterator[None]:
    """Two builds of the site at once share the results: the second waits for the first."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        yield


def notebooks() -> list[Path]:
    """The notebooks, by name."""
    return sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def _current(path: Path, page: Path) -> bool:
    """Whether the page is newer than the notebook and the code."""
    sources = [path, *(source for name in PACKAGES for source in (ROOT / name).rglob("*.*"))]
    return page.exists() and page.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def _make(path: Path, results: Path) -> None:
    """Runs a notebook in an empty folder and writes its page and its pictures."""
    shutil.rmtree(results, ignore_errors=True)
    work = results / "work"
    work.mkdir(parents=True)
    notebook = nbformat.read(path, as_version=4)
    # The kernel's debugger warns about frozen modules, and libraries show progress bars as widgets.
    os.environ.update(PYDEVD_DISABLE_FILE_VALIDATION="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    try:
        ExecutePreprocessor(timeout=LONGEST).preprocess(notebook, {"metadata": {"path": str(work)}})
    except CellExecutionError as error:
        raise PluginError(f"docs/notebooks/{path.name}: {error}") from error
    for cell in notebook.cells:
        # Progress bars of libraries; what a cell shows is on its standard output.
        cell["outputs"] = [one for one in cell.get("outputs", []) if one.get("name") != "stderr"]
    text, resources = MarkdownExporter().from_notebook_node(
        notebook, {"unique_key": path.stem, "output_files_dir": "."}
    )
    for name, picture in resources["outputs"].items():
        (results / Path(name).name).write_bytes(picture)
    link = f"[This page as a notebook]({path.name})\n\n"
    head, _, rest = text.partition("\n\n")
    (results / "page.md").write_text(f"{head}\n\n{link}{rest}", encoding="utf-8")
