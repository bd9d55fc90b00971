"""Ledgers with flipped bits, cut files, cut journals: what every reader says, and that nothing changes in silence."""

import csv
import json
import os
import random
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from faults.conftest import sample
from helpers.damage import (
    Interrupted,
    Rows,
    contents,
    flip,
    interrupted_writer,
    is_part,
    place_of_number,
    small_ledger,
)
from helpers.records import record

from hrx.cli import main
from hrx.records.ledger import TABLES, Ledger, LedgerError
from hrx.records.merge import check
from hrx.records.record import Record

SUITE = "torn ledgers"
RUNS = 40
Figure = Callable[..., None]


class Original:
    """A sound ledger and what it holds."""

    def __init__(self, folder: Path):
        self.path = folder / "ledger.db"
        self.records: list[Record] = small_ledger(self.path, RUNS)
        self.data = self.path.read_bytes()
        self.contents: Rows = contents(self.path)
        assert main(["export", str(self.path), "--format", "csv"]) == 0
        self.exported = self.path.with_suffix(".csv").read_text(encoding="utf-8")

    def copy(self, folder: Path) -> Path:
        return Path(shutil.copy(self.path, folder / "ledger.db"))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("original"))


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures for print take most of a report's time, and read nothing that the page does not."""
    monkeypatch.setattr("hrx.reports.page.report.figures", lambda ledger, out, frame: [])


def only_file(path: Path) -> bool:
    """Whether nothing is left beside a ledger."""
    return not [file for file in path.parent.iterdir() if file.name.startswith(f"{path.name}-") or "tmp" in file.name]


def keys_of_csv(path: Path) -> set[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return {row["key"] for row in csv.DictReader(file)}


@pytest.mark.parametrize("case", sample(range(60), 5))
def test_a_bit_flipped_in_a_stored_number_is_found_by_every_reader(
    case: int, original: Original, tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Figure
) -> None:
    rng = random.Random(case)
    scored = [one for one in original.records if one.status == "done"]
    run = rng.choice(scored)
    number = getattr(run, rng.choice(["g_own", "g_margin", "g_shuffled", "rank", "mse", "g_own_se"]))
    path = original.copy(tmp_path)
    flip(path, place_of_number(original.data, number) + rng.randrange(8), rng.randrange(8))
    label = f"{run.model} {run.dataset} {run.series} {run.lookback}x{run.horizon} seed {run.seed}"
    verbs = {
        "export": ["export", str(path), "--format", "csv"],
        "merge": ["merge", str(path), "--into", str(tmp_path / "merged.db")],
        "tables": ["tables", str(path), "--format", "json", "--out", str(tmp_path / "tables.json")],
        "check": ["check", str(path)],
    }
    if case % 20 == 0:
        verbs["report"] = ["report", str(path), "--out", str(tmp_path / "page")]
    for verb, arguments in verbs.items():
        assert main(arguments) == 3, verb
        output, errors = capsys.readouterr()
        assert label in output + errors, verb
        assert "Traceback" not in errors
    others = {one.key for one in original.records if one.key != run.key}
    assert keys_of_csv(path.with_suffix(".csv")) == others
    assert json.loads((tmp_path / "tables.json").read_text())["tables"]
    assert check(tmp_path / "merged.db").verdict == "sound"
    assert {row[0] for row in contents(tmp_path / "merged.db")["runs"].values()} == others
    with Ledger.open(path, warn=False) as ledger:  # a resumed audit measures the run again, and its row is replaced
        assert ledger.finished([run.key]) == set()
        ledger.write(run)
        assert ledger.finished([run.key]) == {run.key}
    assert check(path).verdict == "sound"
    assert contents(path)["runs"] == original.contents["runs"]
    assert only_file(path)
    figure(SUITE, "a bit flipped inside a stored number: every reader names the run", made=1, handled=1)


FAULTS = [(table, column) for table, columns in {
    "runs": ("key", "reason", "scored_steps", "checksum"),
    "checks": ("fingerprint", "check", "note", "figure", "checksum"),
    "matrices": ("key", "x", "matrix", "curves", "checksum"),
    "audits": ("created", "settings", "checksum"),
}.items() for column in columns]  # fmt: skip


@pytest.mark.parametrize("case", sample(range(3 * len(FAULTS)), 6))
def test_a_bit_flipped_in_a_text_a_blob_or_a_checksum_is_named(
    case: int, original: Original, tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Figure
) -> None:
    table, column = FAULTS[case % len(FAULTS)]
    path = original.copy(tmp_path)
    flip_in_cell(path, table, column, random.Random(case))
    assert main(["check", str(path)]) == 3
    said = capsys.readouterr().out
    assert main(["merge", str(path), "--into", str(tmp_path / "merged.db")]) == 3
    errors = capsys.readouterr().err
    merged = contents(tmp_path / "merged.db")
    if (table, column) == ("matrices", "key"):  # the index has the right key, so that nothing is lost
        assert "missing from index" in said
        assert merged == original.contents
    else:
        assert f"DAMAGED {TABLES[table].word} " in said
        assert f"{path}: {TABLES[table].word} " in errors
        assert is_part(merged, original.contents)
        assert len(merged[table]) == len(original.contents[table]) - 1
    assert check(tmp_path / "merged.db").verdict == "sound"
    figure(SUITE, "a bit flipped inside a text, blob or checksum: named, left out, the rest kept", made=1, handled=1)


def flip_in_cell(path: Path, table: str, column: str, rng: random.Random) -> None:
    """Inverts a bit of a stored cell; the bytes are found by the change of one row, not in an index or free space."""
    select = f'SELECT CAST("{column}" AS BLOB), "{column}" FROM {table} ORDER BY rowid'
    with closing(sqlite3.connect(path)) as connection:
        cells = connection.execute(select).fetchall()
    stored, value = rng.choice(cells)
    wanted = struct.pack(">d", value) if isinstance(value, float) else stored[:32]
    data = path.read_bytes()
    offset, bit = rng.randrange(len(wanted)), rng.randrange(7 if isinstance(value, str) else 8)
    for place in (match.start() for match in re.finditer(re.escape(wanted), data)):
        path.write_bytes(data)
        flip(path, place + offset, bit)
        with closing(sqlite3.connect(path)) as connection:
            changed = connection.execute(select).fetchall()
        if sum(one != other for one, other in zip(changed, cells, strict=True)) == 1:
            return
    raise AssertionError(f"no bit of {table}.{column} changes one row")


def assert_nothing_changed_in_silence(path: Path, original: Original, capsys: pytest.CaptureFixture[str]) -> int:
    """Readers return rows that were written, or name what they leave out; returns the exit code of check."""
    code = main(["check", str(path)])
    output, errors = capsys.readouterr()
    assert code in (0, 2, 3)
    assert "Traceback" not in output + errors
    exported = main(["export", str(path), "--format", "csv"])
    said = capsys.readouterr().err
    assert exported in (0, 2, 3)
    written = path.with_suffix(".csv")
    if exported == 0:
        assert written.read_text(encoding="utf-8") == original.exported
    elif exported == 3:
        assert set(written.read_text(encoding="utf-8").splitlines()) <= set(original.exported.splitlines())
        assert "left out" in said
    else:
        assert not written.exists()
        assert said.count("\n") == 1
        assert str(path) in said
    if code == 0:
        assert contents(path) == original.contents
    if exported == 3:
        assert code == 3
    assert only_file(path)
    return code


@pytest.mark.parametrize("case", sample(range(150), 10))
def test_a_bit_flipped_anywhere_changes_nothing_in_silence(
    case: int, original: Original, tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Figure
) -> None:
    rng = random.Random(case)
    path = original.copy(tmp_path)
    # The header of the file and the heads of its pages first, where a bit means most.
    page = 4096
    pages = len(original.data) // page
    byte = (case * 2 if case < 50 else rng.randrange(pages) * page + rng.randrange(12)) if case < 90 else None
    flip(path, rng.randrange(len(original.data)) if byte is None else byte, rng.randrange(8))
    assert_nothing_changed_in_silence(path, original, capsys)
    figure(SUITE, "a bit flipped anywhere in the file: nothing changes in silence", made=1, handled=1)


@pytest.mark.parametrize("case", sample(range(40), 4))
def test_a_file_that_is_cut_short_or_has_a_lost_page_loses_nothing_in_silence(
    case: int, original: Original, tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Figure
) -> None:
    path, page = original.copy(tmp_path), 4096
    pages = len(original.data) // page
    if case % 2:
        path.write_bytes(original.data[: case * len(original.data) // 40])
    else:
        lost = 1 + case * (pages - 1) // 40
        path.write_bytes(original.data[: lost * page] + bytes(page) + original.data[(lost + 1) * page :])
    code = assert_nothing_changed_in_silence(path, original, capsys)
    saved = tmp_path / "saved.db"
    merged = main(["merge", str(path), "--into", str(saved)])
    errors = capsys.readouterr().err
    assert merged in (0, 2, 3)
    assert "Traceback" not in errors
    if merged == 2:
        assert not saved.exists()
    else:
        assert is_part(contents(saved), original.contents)
        assert check(saved).verdict == "sound"
        lost_rows = sum(len(original.contents[table]) - len(contents(saved)[table]) for table in TABLES)
        assert not lost_rows or (merged, code) == (3, 3)
    figure(SUITE, "a file cut short or with a lost page: merge saves what can be read", made=1, handled=1)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    return interrupted_writer(tmp_path_factory.mktemp("interrupted"))


def test_what_a_killed_writer_left_half_written_is_left_out_by_readers_and_undone_by_the_next_writer(
    interrupted: Interrupted, tmp_path: Path
) -> None:
    copied = interrupted.copy(tmp_path)
    files = {file: file.read_bytes() for file in (copied.path, copied.journal)}
    for _ in range(2):
        assert main(["check", str(copied.path)]) == 0
        assert contents(copied.path) == interrupted.before
        assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(copied.path)
    assert contents(link) == interrupted.before
    shutil.rmtree(link.parent)
    with Ledger.open(copied.path):
        pass
    assert only_file(copied.path)
    assert contents(copied.path) == interrupted.before


@pytest.mark.parametrize("case", sample(range(60), 8))
def test_no_row_is_read_that_was_not_written_where_the_journal_was_cut_or_lost(
    case: int, interrupted: Interrupted, tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Figure
) -> None:
    copied, rng = interrupted.copy(tmp_path), random.Random(case)
    data = copied.journal.read_bytes()
    if case == 0:
        copied.journal.unlink()
    elif case % 2:
        copied.journal.write_bytes(data[: rng.randrange(len(data))])
    else:
        flip(copied.journal, rng.randrange(len(data)), rng.randrange(8))
    checked, exported = main(["check", str(copied.path)]), main(["export", str(copied.path), "--format", "csv"])
    said = capsys.readouterr()
    assert {checked, exported} <= {0, 2, 3}
    assert "Traceback" not in said.out + said.err
    if checked != 2:
        found = contents(copied.path)
        assert is_part(found, interrupted.during)
        assert checked == 3 or is_part(interrupted.before, found)
    merged = main(["merge", str(copied.path), "--into", str(tmp_path / "saved.db")])
    assert merged in (0, 2, 3)
    if merged != 2:
        assert is_part(contents(tmp_path / "saved.db"), interrupted.during)
        assert check(tmp_path / "saved.db").verdict == "sound"
        assert merged == 3 or checked == 0
    figure(SUITE, "a journal cut, lost or with a flipped bit: only what was written is read", made=1, handled=1)


WRITER = """
import sys
from helpers.crowd import records
from hrx.records.ledger import Ledger
with Ledger.open(sys.argv[1]) as ledger:
    for one in records(10_000):
        ledger.write(one)
        print(one.key, flush=True)
"""


@pytest.mark.parametrize("case", sample(range(20), 2))
def test_kill_9_loses_no_stored_run(case: int, tmp_path: Path, figure: Figure) -> None:
    path, rng = tmp_path / "ledger.db", random.Random(case)
    command = [sys.executable, "-c", WRITER, str(path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout
        keys = [writer.stdout.readline().strip() for _ in range(rng.randrange(1, 60))]
        writer.kill()
        keys += writer.stdout.read().split()
    assert check(path).verdict == "sound"
    stored = list(contents(path)["runs"])
    assert stored[: len(keys)] == [repr((key,)) for key in keys]
    assert len(stored) <= len(keys) + 1  # the one that was stored, but not yet printed
    with Ledger.open(path) as ledger:  # a journal that was only begun stays until the next writer
        ledger.write(record("next"))
    assert only_file(path)
    figure(SUITE, "kill -9 of a writer: no stored run is lost", made=1, handled=1)


def test_a_ledger_leaves_one_file_after_every_verb(original: Original, tmp_path: Path) -> None:
    path = original.copy(tmp_path)
    for arguments in (
        ["check", str(path)],
        ["export", str(path), "--format", "csv"],
        ["tables", str(path), "--out", str(tmp_path / "tables.txt")],
        ["compare", str(path), "--base-model", "model-0", "--new-model", "model-1", "--informational"],
        ["merge", str(path), "--into", str(tmp_path / "merged.db")],
        ["report", str(path), "--out", str(tmp_path / "page")],
    ):
        main(arguments)
        assert only_file(path), arguments
        assert path.read_bytes() == original.data, arguments
    assert only_file(tmp_path / "merged.db")


def test_what_is_not_a_ledger_is_exit_code_2_beside_sound_ones(
    original: Original, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to look like one " * 40)
    assert main(["check", str(original.path), str(text), "--json"]) == 2
    output, errors = capsys.readouterr()
    documents = json.loads(output)
    assert [document["verdict"] for document in documents] == ["sound", "not a ledger"]
    assert documents[0]["tables"]["runs"] == {"sound": RUNS}
    assert errors.count("\n") == 1
    with pytest.raises(LedgerError, match="does not exist"):
        check(tmp_path / "absent.db")
