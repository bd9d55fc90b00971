import hashlib
import re
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.records import overwrite_a_page_of_runs, record

from hrx import __version__
from hrx.cli import main
from hrx.records.ledger import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    Ledger,
    LedgerError,
    LedgerWarning,
    StoredAudit,
    StoredCheck,
    StoredExample,
    create_tables,
    prepare,
)
from hrx.records.record import DONE, EXCLUDED, FAILED

WRITER = """
import sys
from hrx.records.record import Record
from hrx.records.ledger import Ledger
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    path, count = line.split()
    with Ledger.open(path) as ledger:
        for number in range(int(count)):
            ledger.write(Record(key=f"{sys.argv[1]}{number}", status="done"))
    print("written", flush=True)
"""


def example(key: str, size: int = 2) -> StoredExample:
    ones = np.ones(size, np.float32)
    return StoredExample(key, ones, ones, ones, np.eye(size, dtype=np.float32))


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = record("a", g_own=0.1 + 0.2, starts="[1, 2]", beats_naive=1, device="cpu", reason="ŷ ≠ y")
    with Ledger.open(tmp_path / "deep" / "ledger.db") as ledger:
        ledger.write(written)
        assert ledger.records() == [written]
        assert ledger.rows() == [tuple(asdict(written).values())]


def test_only_failed_runs_are_unfinished_and_their_record_is_replaced(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        for key, status in (("a", DONE), ("b", EXCLUDED), ("c", FAILED)):
            ledger.write(record(key, status))
        assert ledger.finished(["a", "b", "c", "absent"]) == {"a", "b"}
        ledger.write(record("c", DONE))
        assert ledger.finished("abc") == {"a", "b", "c"}
        assert len(ledger.records()) == 3
        assert [r.key for r in ledger.records(["b", "c"])] == ["b", "c"]


def test_a_finished_run_is_never_replaced_and_the_order_of_first_writing_is_kept(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(record("a", FAILED))
        ledger.write(record("b", DONE, g_own=1.0))
        ledger.write(record("a", DONE))
        ledger.write(record("b", FAILED))
        assert [(r.key, r.status) for r in ledger.records()] == [("a", DONE), ("b", DONE)]
        assert ledger.records()[1].g_own == 1.0


def test_checks_and_examples_come_back_as_they_were_written(tmp_path: Path) -> None:
    check = StoredCheck("f", "lib 1", "1", "2.0", "m", "96x24", "derivative", False, float("nan"), 1e-2, "note", "w")
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    curves = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    ones = np.ones(3, np.float32)
    stored = StoredExample("a", ones, np.zeros(2, np.float32), np.full(2, 0.5, np.float32), matrix, curves)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(record("a"), stored)
        ledger.write_all([check])
        ledger.write_all([check._replace(figure=0.5)])
    with Ledger.open(tmp_path / "ledger.db", create=False) as ledger:
        assert ledger.checks() == [check._replace(figure=0.5)]
        (loaded,) = ledger.examples(["a", "absent"])
    assert loaded.key == "a"
    for back, given in zip(loaded[1:], stored[1:], strict=True):
        np.testing.assert_array_equal(back, given)


def test_an_example_replaces_those_that_the_writer_names_and_no_others(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        for key in "abc":
            ledger.write(record(key), example(key))
        ledger.write(record("d"), example("d"), replacing=["a", "c"])
        assert ledger.example_keys() == ["b", "d"]
        assert [r.key for r in ledger.records()] == ["a", "b", "c", "d"]
        ledger.write(record("e"), replacing=["b"])  # without an example there is nothing to replace it with
        assert ledger.example_keys() == ["b", "d"]


def test_a_figure_that_is_nan_comes_back_as_nan(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write_all([StoredCheck("f", "l", "1", "2", "m", "96x24", "c", False, float("nan"), 0.0, "")])
        assert np.isnan(ledger.checks()[0].figure)


def test_the_settings_of_an_audit_are_stored_once_per_version_of_hrx(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        for created, version in (("2026-01-02", "0.1"), ("2026-01-03", "0.1"), ("2026-01-01", "0.2")):
            ledger.write_audit(StoredAudit(created, version, "{}"))
        assert [(audit.created, audit.hrx_version) for audit in ledger.audits()] == [
            ("2026-01-01", "0.2"), ("2026-01-02", "0.1"),
        ]  # fmt: skip


def test_each_run_names_the_request_that_made_it_and_an_earlier_run_keeps_its_own(tmp_path: Path) -> None:
    first, second = StoredAudit("2026-01-01", "0.1", '{"series": 1}'), StoredAudit("2026-01-02", "0.1", "{}")
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(record("none"))
        ledger.write_audit(first)
        ledger.write(record("a"))
        ledger.write(record("failed", FAILED))
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write_audit(second)
        ledger.write(record("a"))
        ledger.write(record("failed"))
        requests = {audit.digest: audit for audit in ledger.audits()}
        made = {one.key: requests.get(one.request or "") for one in ledger.records()}
    assert made == {"none": None, "a": first, "failed": second}
    digest = hashlib.sha256(b'0.1\n{"series": 1}').hexdigest()[:16]
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        joined = "SELECT digest, settings FROM audits JOIN runs ON request = digest WHERE key = 'a'"
        assert connection.execute(joined).fetchall() == [(digest, first.settings)]


def test_many_keys_are_read_at_once_and_come_in_the_order_of_writing(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        with ledger.transaction():
            for number in range(2500):
                ledger.put(record(f"k{number}"))
        keys = [f"k{number}" for number in range(2400, 100, -1)]
        assert [r.key for r in ledger.records([*keys, "absent", *keys])] == keys[::-1]


def test_a_file_that_is_not_a_ledger_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to look like one " * 40)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE theirs (x)")
    newer, older = tmp_path / "newer.db", tmp_path / "older.db"
    with Ledger.open(newer):
        pass
    with closing(sqlite3.connect(newer)) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("UPDATE meta SET hrx_version = '7.8.9'")
        connection.commit()
    with closing(sqlite3.connect(older)) as connection:
        connection.execute("CREATE TABLE runs (key TEXT PRIMARY KEY)")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 6")
    empty = tmp_path / "empty.db"
    empty.touch()
    before = {path: path.read_bytes() for path in (text, other, newer, older, empty)}
    for path, create, sentence in (
        (text, True, "is not a ledger"),
        (other, True, "is not a ledger of hrx"),
        (newer, True, f"schema 99, of hrx 7.8.9; hrx {__version__} reads schema {SCHEMA_VERSION}. Read it with that"),
        (newer, False, "schema 99, of hrx 7.8.9"),
        (older, True, "schema 6, of another version of hrx;"),
        (empty, False, "is not a ledger of hrx"),
        (tmp_path, True, "is a directory"),
        (tmp_path / "absent.db", False, "does not exist"),
    ):
        with pytest.raises(LedgerError, match=sentence), Ledger.open(path, create=create):
            pass
    assert {path: path.read_bytes() for path in before} == before
    assert not (tmp_path / "absent.db").exists()


def test_a_write_that_fails_leaves_nothing_half_written(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(record("old"), example("old"))
        broken = StoredExample("a", *[np.zeros(1, np.float32)] * 3, "not an array")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="could not convert"):
            ledger.write(record("a"), broken, replacing=["old"])
        assert [r.key for r in ledger.records()] == ["old"]
        assert ledger.example_keys() == ["old"]
        ledger.write(record("a"))
        assert len(ledger.records()) == 2


def test_a_ledger_opened_for_reading_refuses_to_write(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(record("a"))
    with (
        pytest.raises(LedgerError, match=r"ledger\.db cannot be used: attempt to write a readonly database"),
        Ledger.open(tmp_path / "ledger.db", create=False) as ledger,
    ):
        ledger.write(record("b"))
    with Ledger.open(tmp_path / "ledger.db", create=False) as ledger:
        assert [r.key for r in ledger.records()] == ["a"]


@pytest.fixture
def writers() -> "list[subprocess.Popen[str]]":
    """Four processes; each writes runs of its own to the ledgers that it receives by path and number of runs."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for name in "abcd"
    ]
    assert [process.stdout.readline() for process in processes if process.stdout] == ["ready\n"] * 4
    yield processes
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0, 0]


def write_together(writers: "list[subprocess.Popen[str]]", path: Path, count: int) -> None:
    for writer in writers:
        assert writer.stdin
        writer.stdin.write(f"{path} {count}\n")
    assert [writer.stdout.readline() for writer in writers if writer.stdout] == ["written\n"] * len(writers)


def test_several_processes_write_one_ledger(writers: "list[subprocess.Popen[str]]", tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    write_together(writers, path, 40)
    with Ledger.open(path, create=False) as ledger:
        assert {one.key for one in ledger.records()} == {f"{name}{number}" for name in "abcd" for number in range(40)}
        assert ledger.integrity() == []


@pytest.mark.slow
def test_processes_that_create_one_ledger_at_the_same_moment_all_write_it(
    writers: "list[subprocess.Popen[str]]", tmp_path: Path
) -> None:
    for path in (tmp_path / f"{number}.db" for number in range(30)):
        write_together(writers, path, 1)
        with Ledger.open(path, create=False) as ledger:
            assert {one.key for one in ledger.records()} == {"a0", "b0", "c0", "d0"}


def test_a_new_ledger_waits_for_another_process_that_is_creating_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, waiting, found = tmp_path / "ledger.db", threading.Event(), list[str]()

    class Watched(sqlite3.Connection):
        def execute(self, statement: str, *arguments: object) -> sqlite3.Cursor:  # type: ignore[override]
            if statement == "BEGIN IMMEDIATE":
                waiting.set()
            return super().execute(statement, *arguments)

    def write() -> None:
        with Ledger.open(path) as ledger:
            ledger.write(record("a"))
            found.extend(one.key for one in ledger.records())

    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("hrx.records.ledger.sqlite3.connect", partial(sqlite3.connect, factory=Watched))
        writer = threading.Thread(target=write)
        writer.start()
        # The lock is released only once the writer is about to take it.
        assert waiting.wait(60)
        assert found == []
        holder.execute("ROLLBACK")
        writer.join()
    assert found == ["a"]


def test_a_ledger_that_another_process_keeps_locked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hrx.records.ledger.BUSY_SECONDS", 0.2)
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=r"ledger\.db cannot be used: database is locked"), Ledger.open(path):
            pass


def test_a_ledger_that_appears_while_it_is_opened_is_not_mistaken_for_another_database(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    class Interrupted(sqlite3.Connection):
        """Another process creates the ledger as soon as it can once this one has read something of the file."""

        has_read = created = False

        def execute(self, statement: str, *arguments: object) -> sqlite3.Cursor:  # type: ignore[override]
            if self.has_read and not self.created:
                with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other, suppress(sqlite3.Error):
                    create_tables(other)
                    self.created = True
            self.has_read = self.has_read or statement != "BEGIN"
            return super().execute(statement, *arguments)

    with closing(sqlite3.connect(path, isolation_level=None, factory=Interrupted)) as connection:
        prepare(connection, path, create=True)
        assert connection.created
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


@pytest.mark.parametrize("blob", [None, b"not compressed", b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_a_damaged_example_is_named_and_the_runs_can_still_be_read(tmp_path: Path, blob: bytes | None) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(record("a"), example("a"))
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
        connection.execute("UPDATE matrices SET x = ?", (blob,))

    def examples_and_runs() -> tuple[int, int]:
        with Ledger.open(tmp_path / "ledger.db", create=False) as ledger:
            return len(ledger.examples(["a"])), len(ledger.records())

    with pytest.warns(LedgerWarning, match=r"example \(key a\): it is not as it was written"):
        assert examples_and_runs() == (0, 1)


def test_a_ledger_without_its_tables_is_reported_as_damaged(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(record("a"))
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.execute("ALTER TABLE checks DROP COLUMN checksum")
        connection.execute("DROP TABLE runs")
    for create in (True, False):
        with (
            pytest.raises(LedgerError, match="is damaged: its tables runs, checks have lost columns"),
            Ledger.open(tmp_path / "ledger.db", create=create),
        ):
            pass


def test_of_a_torn_ledger_every_run_outside_the_lost_page_is_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    written = {f"k{number:03}": record(f"k{number:03}", reason="r" * 500, g_own=number) for number in range(60)}
    with Ledger.open(path) as ledger:
        for one in written.values():
            ledger.write(one)
    overwrite_a_page_of_runs(path)
    with Ledger.open(path, create=False, warn=False) as ledger:
        assert ledger.integrity()
        readable = {one.key: one for one in ledger.records()}
        lost = [damage for damage in ledger.damaged if damage.table == "runs"]
        by_key = {one.key: one for one in ledger.records(written)}
    assert 0 < len(readable) < len(written)
    assert len(readable) + len(lost) == len(written)
    assert readable == by_key == {key: written[key] for key in readable}


def test_one_audit_reads_the_table_of_runs_whole_at_most_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = list[str]()
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr("hrx.records.ledger.sqlite3.connect", traced)
    plan = ["--data", "sample:co2", "--settings", "32x8", "--windows", "2", "--draws", "2", "--workers", "0"]
    for seeds, expected in (("1", 1), ("2", 2), ("2", 2)):  # from nothing, resumed, and with nothing left to measure
        statements.clear()
        assert main(["audit", "bolt-mini", *plan, "--seeds", seeds, "--out", str(tmp_path)]) == 0
        read = [text for text in statements if re.match(r"SELECT .*g_own.* FROM runs\b", text)]
        assert sum("WHERE key" not in text for text in read) == 1
        written = [text for text in statements if text.startswith("INSERT INTO runs")]
        with Ledger.open(tmp_path / "ledger.db", create=False) as ledger:
            assert len(ledger.records()) == expected
    assert written == []


def test_a_ledger_in_the_mode_of_another_program_is_read_without_files_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.write(record("a"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    before = path.read_bytes()
    with Ledger.open(path, create=False) as ledger:
        assert [one.key for one in ledger.records()] == ["a"]
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    held = sqlite3.connect(path)
    held.execute("UPDATE runs SET checksum = 'x'")
    held.commit()  # it is in the log beside the file as long as the other program has it open
    assert path.read_bytes() == before
    with Ledger.open(path, create=False, warn=False) as ledger:
        assert (ledger.records(), len(ledger.damaged)) == ([], 1)
    held.close()
