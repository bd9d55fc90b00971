"""Runs the commands of gallery.md when the site is built, in build/gallery, and puts their results on the site."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from properdocs.exceptions import PluginError
from properdocs.structure.files import File, Files

from hrx.cli import main

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "build" / "gallery"
PACKAGES = ("adapters", "api", "audit", "cli", "common", "gift_eval", "records", "reports")
SHOWN = {".html", ".css", ".js", ".png"}


def on_files(files: Files, config: Any) -> Files:
    """Adds the results to the pages."""
    if not _current():
        _make()
    for path in sorted(RESULTS.rglob("*")):
        if path.suffix in SHOWN:
            name = f"gallery/{path.relative_to(RESULTS).as_posix()}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def commands() -> list[list[str]]:
    """Commands that the page shows, as the words that hrx receives."""
    (block,) = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8"), re.S)
    return [shlex.split(line)[1:] for line in block.splitlines()]


def _current() -> bool:
    """Whether the last result is newer than the commands and the code."""
    last = RESULTS / commands()[-1][-1]
    sources = [ROOT / "docs" / "gallery.md", *(path for name in PACKAGES for path in (ROOT / name).rglob("*.*"))]
    return last.exists() and last.stat().st_mtime > max(path.stat().st_mtime for path in sources)


def _make() -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    for words in commands():
        printed = io.StringIO()
        with chdir(RESULTS), redirect_stdout(printed), redirect_stderr(printed):
            code = main(words)
        if code:
            raise PluginError(f"hrx {shlex.join(words)} ended with exit code {code}: {printed.getvalue()}")
