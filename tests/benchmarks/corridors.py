"""Counts the calls from file to file in one audit: how far a reader has to follow it through the code.

    python tests/benchmarks/corridors.py [OPTION OF hrx audit …]

Runs `hrx audit bolt-mini --workers 0` with these options and counts the different pairs of functions of hrx in
different files of which one calls the other, and the files that are passed through. Below, the pairs of files with the
most calls.
"""

import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import hrx
from hrx.cli.main import main

ROOT = Path(hrx.__file__).parents[1]


class Function(NamedTuple):
    """A function of hrx and the file that it is in."""

    file: str
    name: str


class Corridors:
    """The calls between functions of different files; a profile function for `sys.setprofile`."""

    def __init__(self) -> None:
        self.calls: set[tuple[Function, Function]] = set()
        self.files: set[str] = set()
        self._functions: dict[CodeType, Function | None] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or (callee := self._function(frame.f_code)) is None:
            return
        self.files.add(callee.file)
        caller = self._function(frame.f_back.f_code) if frame.f_back else None
        if caller is not None and caller.file != callee.file:
            self.calls.add((caller, callee))

    def _function(self, code: CodeType) -> Function | None:
        """The function of hrx that a frame runs; looked up once, since every call of every library passes here."""
        if code not in self._functions:
            self._functions[code] = _named(code)
        return self._functions[code]


def _named(code: CodeType) -> Function | None:
    """A comprehension counts as the function that it is in; None for other code than functions of hrx."""
    path = code.co_filename
    if not path.startswith(f"{ROOT}/") or "/.venv/" in path or "/tests/" in path or code.co_name == "<module>":
        return None
    return Function(path.removeprefix(f"{ROOT}/"), code.co_qualname.partition(".<locals>.<")[0])


def corridors() -> Corridors:
    """Measures one audit, in the threads of hrx too."""
    counted = Corridors()
    with tempfile.TemporaryDirectory() as folder:
        threading.setprofile(counted)
        sys.setprofile(counted)
        try:
            main(["audit", "bolt-mini", "--workers", "0", "--out", folder, *sys.argv[1:]])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    return counted


if __name__ == "__main__":
    counted = corridors()
    print(f"{len(counted.calls)} calls from file to file, through {len(counted.files)} files")
    pairs = Counter(f"{caller.file} → {callee.file}" for caller, callee in counted.calls)
    for pair, count in pairs.most_common(40):
        print(f"{count:4}  {pair}")
