"""An environment that withholds something: closed streams, small limits, a read-only /dev/shm, a full disk.

Each command runs as a process of its own in a shell that takes the thing away. What is checked is the exit code, the
sentence, and that every file left behind is whole.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.conftest import sample

from hrx.records.merge import check
from hrx.reports import read

AUDIT = ["audit", "bolt-mini", "--data", "sample:elnino/M", "--settings", "24x8", "--series", "1", "--seeds", "2"]
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
CLOSED = "standard output is closed, so the result is not shown."
SIZES = [4 * number for number in range(1, 17)]
"""KiB: below the 72 that a ledger with a plan needs."""


def run(words: list[str], folder: Path, script: str, shell: tuple[str, ...] = ("sh", "-c")) -> tuple[int, str]:
    """Exit code and standard error of a command that a shell script starts as "$@"."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(folder)}
    command = [*shell, script, "sh", sys.executable, "-m", "hrx.cli", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
    assert "Traceback" not in done.stderr
    assert not list(folder.glob("hrx-crash-*")), done.stderr
    return done.returncode, done.stderr


def namespace(script: str) -> tuple[str, ...]:
    """A shell that may mount; skips where the system gives no user a mount namespace."""
    if subprocess.run([*NAMESPACE, script], capture_output=True).returncode:
        pytest.skip("no mount namespace for users here")
    return tuple(NAMESPACE)


@pytest.mark.parametrize(
    ("words", "streams", "code", "sentence"),
    [
        (["models"], ">&-", 3, f"hrx models: {CLOSED}"),
        (["models"], "2>&-", 0, ""),
        (["models"], "<&- >&- 2>&-", 3, ""),
        (["--help"], ">&-", 0, ""),
        (["models", "--unknown"], "2>&-", 2, ""),
        (["datasets", "--data", "sampel"], "2>/dev/full", 2, ""),
    ],
)
def test_a_closed_or_full_stream_costs_what_it_would_show_and_nothing_else(
    words: list[str], streams: str, code: int, sentence: str, tmp_path: Path, figure: Callable[..., None]
) -> None:
    if "/dev/full" in streams and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    found, errors = run(words, tmp_path, f'exec "$@" {streams}')
    assert (found, errors.strip()) == (code, sentence)
    assert list(tmp_path.iterdir()) == []
    figure("environment", "standard streams closed or full", made=1, handled=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "code"), [(">&-", 3), ("2>&-", 0), ("<&- >&- 2>&-", 3), ("2>/dev/full", 0), (">/dev/full", 3)]
)
def test_an_audit_without_its_streams_stores_every_run(
    streams: str, code: int, tmp_path: Path, figure: Callable[..., None]
) -> None:
    if "/dev/full" in streams and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    found, errors = run(AUDIT, tmp_path, f'exec "$@" {streams}')
    assert found == code, errors
    ledger = tmp_path / "hrx-audit" / "ledger.db"
    assert check(ledger).damaged == ()
    assert set(read(ledger)["status"]) == {"done"}
    assert len(read(ledger)) == 2
    figure("environment", "an audit with standard streams closed or full", made=1, handled=1)


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ("-n 16", "this process may open 16 files and needs 64. Raise the limit, as in ulimit -n 1024."),
        ("-v 524288", "this process may use 512 MiB of address space and needs 1.5 GiB. Raise the limit"),
        ("-v 1048576", "this process may use 1 GiB of address space and needs 1.5 GiB. Raise the limit"),
    ],
)
@pytest.mark.parametrize("verb", ["audit", "explain"])
def test_a_limit_under_which_libraries_end_the_process_is_named_before_anything_is_written(
    verb: str, limit: str, sentence: str, tmp_path: Path, figure: Callable[..., None]
) -> None:
    explain = ["explain", "bolt-mini", "--series", "sample:elnino/M", "--lookback", "24", "--horizon", "8"]
    code, errors = run(AUDIT if verb == "audit" else explain, tmp_path, f'ulimit {limit} && exec "$@"')
    assert code == 3
    assert errors.startswith(f"hrx {verb}: {sentence}")
    assert list(tmp_path.iterdir()) == []
    figure("environment", "small limits of memory and open files", made=1, handled=1)


@pytest.mark.slow
def test_an_audit_in_processes_needs_no_shared_memory(tmp_path: Path, figure: Callable[..., None]) -> None:
    mount = "mount -t tmpfs -o ro none /dev/shm"
    code, errors = run([*AUDIT, "--workers", "2"], tmp_path, f'{mount} && exec "$@"', namespace(mount))
    assert code == 0, errors
    assert set(read(tmp_path / "hrx-audit" / "ledger.db")["status"]) == {"done"}
    figure("environment", "read-only /dev/shm", made=1, handled=1)


@pytest.mark.slow
@pytest.mark.parametrize("size", sample(SIZES, 2))
def test_a_disk_that_is_full_when_the_ledger_is_created_is_said_and_leaves_no_file(
    size: int, tmp_path: Path, figure: Callable[..., None]
) -> None:
    (tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o size={size}k none disk"
    script = f'{mount} && {{ "$@"; code=$?; ls -A disk/out > left; exit $code; }}'
    words = [*AUDIT, "--workers", "0", "--out", "disk/out"]
    code, errors = run(words, tmp_path, script, namespace(f"cd {tmp_path} && {mount}"))
    assert code == 3, errors
    said = "hrx audit: disk/out/ledger.db cannot be written: database or disk is full. Free some space and repeat the"
    assert said in errors
    assert (tmp_path / "left").read_text() == ""
    figure("environment", "a disk that is full when the ledger is created", made=1, handled=1)
