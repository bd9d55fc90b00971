"""Merges that run at the same moment, and merges of ledgers that hold bad rows."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.conftest import sample
from helpers.damage import change, contents, is_part, small_ledger
from helpers.records import record

from hrx.cli import main
from hrx.records.ledger import Ledger
from hrx.records.merge import check, merge

SUITE = "merges"
Figure = Callable[..., None]
MERGER = """
import sys
from hrx.records.merge import merge
from hrx.errors import HrxError
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    *sources, into = line.split()
    try:
        merge(sources, into)
        print("merged", flush=True)
    except HrxError as error:
        print("refused" if "contradict" in str(error) else f"failed: {error}".replace("\\n", " "), flush=True)
"""


class Mergers:
    """Processes that each merge what they are given, all at the same moment."""

    def __init__(self, count: int):
        command = [sys.executable, "-c", MERGER]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            for _ in range(count)
        ]
        assert self._read() == ["ready"] * count

    def merge(self, sources: list[list[Path]], into: Path) -> list[str]:
        """What each process says of its merge."""
        for process, own in zip(self._processes, sources, strict=True):
            assert process.stdin
            process.stdin.write(" ".join(map(str, [*own, into])) + "\n")
        return self._read()

    def _read(self) -> list[str]:
        return [process.stdout.readline().strip() for process in self._processes if process.stdout]

    def close(self) -> None:
        for process in self._processes:
            process.communicate()


@pytest.fixture(scope="module")
def mergers() -> Iterator[Mergers]:
    mergers = Mergers(3)
    yield mergers
    mergers.close()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three ledgers that agree, and one that contradicts the first."""
    folder = tmp_path_factory.mktemp("sources")
    found = {}
    for name, own in (("a", 0.5), ("b", 0.5), ("c", 0.5), ("wrong", 0.75)):
        found[name] = folder / f"{name}.db"
        with Ledger.open(found[name]) as ledger:
            with ledger.transaction():
                for number in range(12):
                    ledger.put(record(f"{name}{number}", g_own=0.25))
            ledger.write(record("shared", g_own=own))
    return found


@pytest.mark.parametrize("case", sample(range(60), 12))
def test_merges_into_one_new_file_at_the_same_moment_lose_nothing(
    case: int, mergers: Mergers, sources: dict[str, Path], tmp_path: Path, figure: Figure
) -> None:
    into = tmp_path / "all.db"
    a, b, c, wrong = (sources[name] for name in ("a", "b", "c", "wrong"))
    own = [[a], [b], [c]] if case % 2 else [[a], [b, wrong], [c]]  # every other time, one of them must be refused
    random.Random(case).shuffle(own)
    said = mergers.merge(own, into)
    assert said == ["refused" if wrong in one else "merged" for one in own]
    merged = {name for name in "abc" if case % 2 or name != "b"}
    with Ledger.open(into, create=False) as ledger:
        wanted = {f"{name}{number}" for name in merged for number in range(12)} | {"shared"}
        assert {one.key for one in ledger.records()} == wanted
    assert check(into).verdict == "sound"
    assert list(tmp_path.iterdir()) == [into]
    figure(SUITE, "three merges into one new file at the same moment: nothing is lost", made=1, handled=1)


def test_a_refused_merge_does_not_remove_the_file_that_another_process_published_meanwhile(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "all.db"
    link = shutil.copy

    def published_by_another(temporary: Path, target: Path) -> None:
        link(sources["wrong"], target)
        raise FileExistsError

    monkeypatch.setattr("hrx.records.merge.os.link", published_by_another)
    assert main(["merge", str(sources["a"]), "--into", str(into)]) == 2
    assert into.read_bytes() == sources["wrong"].read_bytes()
    assert list(tmp_path.iterdir()) == [into]


def test_a_file_system_without_hard_links_takes_a_new_ledger_too(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(temporary: Path, target: Path) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr("hrx.records.merge.os.link", unsupported)
    assert merge([sources["a"], sources["b"]], tmp_path / "all.db").added == 25
    assert [path.name for path in tmp_path.iterdir()] == ["all.db"]
    assert check(tmp_path / "all.db").verdict == "sound"


BAD_CELLS = [
    ("runs", "g_own", "much"),
    ("runs", "lookback", 96.5),
    ("runs", "model", b"\xff"),
    ("runs", "seed", b"\x00"),
    ("checks", "figure", "small"),
    ("checks", "passed", "yes"),
    ("checks", "note", b"\xff"),
    ("matrices", "matrix", b"not compressed"),
    ("matrices", "x", b""),
    ("matrices", "truth", 1.5),
    ("audits", "settings", b"{}"),
    ("audits", "created", 2026),
]


@pytest.mark.parametrize(("table", "column", "value"), sample(BAD_CELLS, 6))
def test_a_bad_cell_of_a_source_is_reported_and_skipped_without_poisoning_the_target(
    table: str,
    column: str,
    value: object,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    figure: Figure,
) -> None:
    source, into = tmp_path / "source.db", tmp_path / "into.db"
    small_ledger(source, 8, examples=2)
    whole = contents(source)
    bad = f"rowid = (SELECT min(rowid) FROM {table})"
    if isinstance(value, bytes) and column == "model":  # text that is not UTF-8
        change(source, f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE {bad}", value)
    elif table == "audits":  # a number in a TEXT column would become text
        change(source, f"UPDATE {table} SET {column} = CAST(? AS BLOB) WHERE {bad}", value)
    else:
        change(source, f"UPDATE {table} SET {column} = ? WHERE {bad}", value)
    assert main(["merge", str(source), "--into", str(into)]) == 3
    assert "left out" in capsys.readouterr().err
    merged = contents(into)
    assert is_part(merged, whole)
    assert len(merged[table]) == len(whole[table]) - 1
    assert all(len(merged[name]) == len(whole[name]) for name in whole if name != table)
    assert check(into).verdict == "sound"
    assert main(["merge", str(into), "--into", str(tmp_path / "again.db")]) == 0
    figure(SUITE, "a bad cell in a source: reported, skipped, the target sound", made=1, handled=1)
