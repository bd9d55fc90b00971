"""Bad inputs: exit code 2, one sentence, no traceback, nothing written, no waiting. `helpers.bad_inputs` lists them."""

import os
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from faults.conftest import sample
from helpers.bad_inputs import Case, every_case

from hrx.cli import main

HANGING = 600
"""Seconds after which a command counts as hanging."""
LEAST = 450
CASES = every_case()
IN_A_PROCESS = [case for case in CASES if case.kind in ("kind of a file", "settings file")][:: len(CASES) // 8]


def test_there_are_at_least_450_bad_inputs() -> None:
    assert len({str(case) for case in CASES}) >= LEAST


@pytest.mark.parametrize("case", sample(CASES, 70), ids=str)
def test_a_bad_input_gets_exit_code_2_and_one_sentence_and_leaves_no_file(
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    figure: Callable[..., None],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GIFT_EVAL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no cache"))
    arguments = [str(word) for word in case.build(tmp_path)]
    before = listing(tmp_path)
    with no_longer_than(HANGING):
        try:
            code = main(arguments)
        except SystemExit as ended:  # argparse
            code = int(str(ended.code))
    output, errors = capfd.readouterr()
    assert code == 2, errors
    assert_one_sentence(errors)
    assert output == ""
    assert listing(tmp_path) == before
    figure("bad inputs", case.kind, made=1, handled=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_A_PROCESS, ids=str)
def test_a_process_of_its_own_ends_alike(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [str(word) for word in case.build(tmp_path)]
    before = listing(tmp_path)
    command = [sys.executable, "-m", "hrx.cli", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANGING, check=False)
    assert ended.returncode == 2, ended.stderr
    assert_one_sentence(ended.stderr)
    assert listing(tmp_path) == before


def assert_one_sentence(errors: str) -> None:
    """One line that names the verb, without a traceback or a character that a terminal would execute."""
    lines = errors.splitlines()
    assert len(lines) == 1, errors
    assert errors.startswith("hrx")
    assert "Traceback" not in errors
    assert not [c for c in lines[0] if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]
    assert len(lines[0]) < 2100


def listing(folder: Path) -> list[tuple[str, int, int]]:
    """Every path below the folder with its type, size and time of change; links are not followed."""
    found = []
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root) / name
            about = path.lstat()
            found.append((str(path.relative_to(folder)), about.st_mode, about.st_size))
    return sorted(found)


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Raises in a command that waits for ever."""

    def hanging(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"the command was still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, hanging)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
