"""Exit codes beside those of wrong requests: crashes, models that end the process, targets that are full."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from hrx.cli import main
from hrx.errors import Exit, HrxError, NotWritten
from hrx.files import atomic_write, check_depth, check_target, read_file, read_json, regular_file

ESCAPE = "\x1b[31mred\x07"
MODEL = """
import torch

def line():
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 8)
    return lambda x: layer(x[:, -24:])

def leaves():
    raise SystemExit(0)

def leaves_later():
    def predict(x):
        raise SystemExit(0)
    return predict
"""
EXPLAIN = ["explain", "module:model.py:line", "--series", "sample:elnino/M", "--lookback", "24", "--horizon", "8"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, and a temporary directory of its own for crash reports."""
    (tmp_path / "work").mkdir()
    (tmp_path / "reports").mkdir()
    (tmp_path / "work" / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "reports"))
    return tmp_path / "work"


def crash(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def broken(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr("hrx.cli.listing.datasets", broken)


def test_an_unexpected_error_is_exit_code_70_with_one_sentence_and_a_report_without_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(monkeypatch, KeyError(f"secret 42.5 of {folder}"))
    assert main(["datasets"]) == 70
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert errors.startswith("hrx datasets: unexpected error (KeyError: ")
    (report,) = (folder.parent / "reports").iterdir()
    assert str(report) in errors
    text = report.read_text()
    assert re.search(r"^hrx \S+, verb datasets$", text, re.MULTILINE)
    assert re.search(r"^torch \d", text, re.MULTILINE)
    assert "builtins.KeyError\n  hrx.cli.main, line " in text
    assert not any(word in text for word in ("secret", "42.5", str(folder), "/", "PATH"))
    assert report.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("arguments", [["--debug", "datasets"], ["datasets", "--debug"]])
def test_debug_shows_the_traceback_before_or_after_the_verb(
    arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(monkeypatch, KeyError(ESCAPE))
    assert main(arguments) == 70
    errors = capsys.readouterr().err
    assert errors.startswith("Traceback")
    assert "KeyError" in errors
    assert "\x1b" not in errors
    assert list((folder.parent / "reports").iterdir()) == []


def test_debug_does_not_change_the_exit_code_of_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "--data", "sampel", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, None, 1, "done"])
def test_a_library_that_ends_the_process_cannot_choose_the_exit_code(
    code: object, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(monkeypatch, SystemExit(code))
    assert main(["datasets"]) == 70
    assert "a model or library called exit" in capsys.readouterr().err


@pytest.mark.parametrize(("factory", "code"), [("leaves", 2), ("leaves_later", 70)])
def test_a_model_that_ends_the_process_does_not_end_a_verb_with_0(
    factory: str, code: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"module:model.py:{factory}", *EXPLAIN[2:]]) == code
    assert "SystemExit" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_page_that_cannot_be_written_keeps_the_verdict_and_is_exit_code_3(
    number: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("hrx.files.os.replace", full)
    assert main(EXPLAIN) == 3
    output, errors = capsys.readouterr()
    assert "Verdict: " in output
    assert os.strerror(number) in errors
    assert errors.count("\n") == 1
    assert [file.name for file in folder.iterdir() if file.suffix != ".py" and file.name != "__pycache__"] == []


def test_an_audit_whose_heat_maps_cannot_be_written_keeps_its_verdict(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> NoReturn:
        raise NotWritten("out/x.png cannot be written: No space left on device.")

    monkeypatch.setattr("hrx.api.audit.heatmaps", full)
    plan = ["--data", "sample:elnino/M", "--settings", "24x8", "--windows", "1", "--draws", "2", "--seeds", "1"]
    assert main(["audit", "module:model.py:line", *plan, "--out", "out"]) == 3
    output, errors = capsys.readouterr()
    assert "FINDING" in output
    assert "hrx audit: out/x.png cannot be written: No space left on device." in errors


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
def test_a_full_standard_output_is_exit_code_3() -> None:
    command = [sys.executable, "-m", "hrx.cli", "datasets", "--data", "sample"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 3
    assert ended.stderr.startswith("hrx datasets: standard output cannot be written: No space left on device.")
    assert "Traceback" not in ended.stderr


def test_a_reader_that_closes_the_pipe_is_not_an_error() -> None:
    command = [sys.executable, "-m", "hrx.cli", "datasets"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_in_a_table_do_not_reach_the_terminal_as_control_characters(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.csv").write_text(f"day,{ESCAPE}\n" + "".join(f"2023-01-{d:02},{d % 7}\n" for d in range(1, 29)))
    os.rename("a.csv", f"{ESCAPE}.csv")
    assert main(["datasets", "--data", f"csv:{ESCAPE}.csv"]) == 0
    output, errors = capsys.readouterr()
    assert "red" in output
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", output + errors)


def test_a_failed_gate_alone_is_exit_code_1() -> None:
    assert {code.name: int(code) for code in Exit} == {
        "DONE": 0, "GATE_FAILED": 1, "WRONG_REQUEST": 2, "INCOMPLETE": 3, "NOT_DECIDED": 4, "CRASHED": 70,
    }  # fmt: skip
    assert HrxError("x").exit == 2
    assert NotWritten("x").exit == 3


def test_a_file_is_written_whole_beside_its_target_and_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    target = tmp_path / "page.html"
    target.symlink_to("secret")
    with atomic_write(target) as file:
        file.write(b"page")
        assert target.read_text() == "secret"
        (temporary,) = tmp_path.glob(".hrx-*")
        assert temporary.stat().st_mode & 0o077 == 0
    assert not target.is_symlink()
    assert target.read_text() == "page"
    assert (tmp_path / "secret").read_text() == "secret"
    with pytest.raises(RuntimeError), atomic_write(target):
        raise RuntimeError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "secret"]
    assert target.read_text() == "page"


def test_a_file_has_the_permissions_that_the_user_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "x") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_limits_hold_at_the_byte_and_at_the_level(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"12345")
    assert read_file(file, 5) == b"12345"
    with pytest.raises(HrxError, match="has 5 bytes; a file of this kind has at most 4 bytes"):
        regular_file(file, 4)
    level: object = 1
    for _ in range(64):
        level = [level]
    assert check_depth(level) is level
    with pytest.raises(ValueError, match="more than 64 levels"):
        check_depth([level])
    with pytest.raises(HrxError, match="has more than 8 bytes"):
        read_file(Path("/proc/self/status"), 8)  # its size is 0 until it is read
    file.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="more than 64 levels"):
        read_json(file)


def test_checking_a_target_creates_nothing(tmp_path: Path) -> None:
    check_target(tmp_path / "a" / "b" / "page.html", "--out")
    assert list(tmp_path.iterdir()) == []


def test_an_audit_that_its_only_model_refuses_leaves_no_directory(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["--data", "sample:sf_temps", "--settings", "600x8", "--series", "1", "--workers", "0"]
    assert main(["audit", "bolt-mini", *plan, "--out", "new/out"]) == 2
    assert "bolt-mini reads a lookback of at most 512" in capsys.readouterr().err
    assert not Path("new").exists()
    Path("kept").mkdir()
    assert main(["audit", "bolt-mini", *plan, "--out", "kept"]) == 2
    assert list(Path("kept").iterdir()) == []
