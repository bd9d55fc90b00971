import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from hrx.audit.ledger.database import prepare
from hrx.audit.ledger.record import DONE, EXCLUDED, FAILED, NAMES
from hrx.audit.ledger.schema import SCHEMA_VERSION, bring_forward, version
from hrx.audit.ledger.store import Ledger, LedgerError, StoredCheck, StoredExample


def record(key: str, status: str = DONE, **values: object) -> dict:
    return {"key": key, "status": status, "model": "m", **values}


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "deep" / "ledger.db") as ledger:
        ledger.write(record("a", g_own=0.1 + 0.2, starts="[1, 2]", beats_naive=1, precision=None))
        (found,) = ledger.records()
    assert found["g_own"] == 0.1 + 0.2
    assert found["beats_naive"] == 1
    assert found["precision"] is None
    assert set(found) == set(NAMES)


def test_only_failed_runs_are_tried_again_and_their_record_is_replaced(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        for key, status in (("a", DONE), ("b", EXCLUDED), ("c", FAILED)):
            ledger.write(record(key, status))
        assert ledger.finished() == {"a", "b"}
        ledger.write(record("c", DONE))
        assert ledger.finished() == {"a", "b", "c"}
        assert len(ledger.records()) == 3
        assert [r["key"] for r in ledger.records(["b", "c"])] == ["b", "c"]


def test_a_finished_run_is_never_replaced_and_the_order_of_first_writing_is_kept(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(record("a", FAILED))
        ledger.write(record("b", DONE, g_own=1.0))
        ledger.write(record("a", DONE))
        ledger.write(record("b", FAILED))
        assert [(r["key"], r["status"]) for r in ledger.records()] == [("a", DONE), ("b", DONE)]
        assert ledger.records()[1]["g_own"] == 1.0


def test_checks_and_pictures_come_back_as_they_were_written(tmp_path: Path) -> None:
    check = StoredCheck("f", "lib 1", "1", "2.0", "m", "96x24", "derivative", False, float("nan"), 1e-2, "note")
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    stored = StoredExample("a", np.ones(3, np.float32), np.zeros(2, np.float32), np.full(2, 0.5, np.float32), matrix)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(record("a"), stored)
        ledger.write_checks([check])
        ledger.write_checks([check._replace(figure=0.5)])
    with Ledger.open(tmp_path / "ledger.db", create=False) as ledger:
        assert ledger.checks() == [check._replace(figure=0.5)]
        (found,) = ledger.examples(["a", "absent"])
    assert found.key == "a"
    for back, given in zip(found[1:], stored[1:], strict=True):
        np.testing.assert_array_equal(back, given)


def test_a_figure_that_is_not_a_number_comes_back_as_one(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write_checks([StoredCheck("f", "l", "1", "2", "m", "96x24", "c", False, float("nan"), 0.0, "")])
        assert np.isnan(ledger.checks()[0].figure)


def test_what_is_not_a_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to look like one " * 40)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    newer = tmp_path / "newer.db"
    with Ledger.open(newer):
        pass
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    empty = tmp_path / "empty.db"
    empty.touch()
    for path, create, sentence in (
        (text, True, "is not a ledger"),
        (other, True, "is not a ledger of hrx"),
        (newer, True, "schema 99"),
        (empty, False, "is not a ledger of hrx"),
        (tmp_path, True, "is a directory"),
        (tmp_path / "absent.db", False, "does not exist"),
    ):
        with pytest.raises(LedgerError, match=sentence), Ledger.open(path, create=create):
            pass
    assert text.read_text().startswith("not a database")
    assert not (tmp_path / "absent.db").exists()
    assert empty.stat().st_size == 0


def test_a_write_that_fails_leaves_nothing_half_written(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        broken = StoredExample("a", *[np.zeros(1, np.float32)] * 3, "no array")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="could not convert"):
            ledger.write(record("a"), broken)
        assert ledger.records() == []
        ledger.write(record("a"))
        assert len(ledger.records()) == 1


def test_two_processes_write_one_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    code = (
        "import sys; from hrx.audit.ledger.store import Ledger\n"
        "with Ledger.open(sys.argv[1]) as ledger:\n"
        "    for i in range(40): ledger.write({'key': sys.argv[2] + str(i), 'status': 'done'})\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    with Ledger.open(path, create=False) as ledger:
        assert ledger.finished() == {f"{name}{i}" for name in "ab" for i in range(40)}


def test_a_new_ledger_waits_for_another_process_that_is_making_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    code = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE'); print('held', flush=True)\n"
        "sys.stdin.readline(); connection.execute('COMMIT')\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    release = threading.Timer(0.5, holder.communicate, ["\n"])
    release.start()
    with Ledger.open(path) as ledger:
        ledger.write(record("a"))
        assert len(ledger.records()) == 1
    release.join()
    assert holder.returncode == 0


def test_a_ledger_that_another_process_never_lets_go_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hrx.audit.ledger.database.BUSY_SECONDS", 0.2)
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=r"ledger\.db cannot be used: database is locked"), Ledger.open(path):
            pass


def test_processes_that_make_one_ledger_at_the_same_moment_all_write_it(tmp_path: Path) -> None:
    code = (
        "import sys; from hrx.audit.ledger.store import Ledger\n"
        "print('ready', flush=True)\n"
        "for path in iter(sys.stdin.readline, ''):\n"
        "    with Ledger.open(path.strip()) as ledger: ledger.write({'key': sys.argv[1], 'status': 'done'})\n"
        "    print('written', flush=True)\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for name in "abcd"
    ]
    answers = [writer.stdout.readline() for writer in writers if writer.stdout]
    for path in (tmp_path / f"{k}.db" for k in range(30)):
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(f"{path}\n")
        answers += [writer.stdout.readline() for writer in writers if writer.stdout]
        with Ledger.open(path, create=False) as ledger:
            assert ledger.finished() == set("abcd")
    for writer in writers:
        writer.communicate()
    assert answers == 4 * ["ready\n"] + 30 * 4 * ["written\n"]
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0]


def test_a_ledger_that_appears_while_it_is_opened_is_not_taken_for_another_database(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    class Interrupted(sqlite3.Connection):
        """Another process makes the ledger as soon as it can once this one has read something of the file."""

        read = made = False

        def execute(self, statement: str, *arguments: object) -> sqlite3.Cursor:  # type: ignore[override]
            if self.read and not self.made:
                with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other, suppress(sqlite3.Error):
                    bring_forward(other)
                    self.made = True
            self.read = self.read or statement != "BEGIN"
            return super().execute(statement, *arguments)

    with closing(sqlite3.connect(path, isolation_level=None, factory=Interrupted)) as connection:
        prepare(connection, path, create=True)
        assert connection.made
        assert version(connection) == SCHEMA_VERSION


def test_reading_a_ledger_does_not_import_torch(tmp_path: Path) -> None:
    code = "import sys, hrx.audit.ledger.store; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("blob", [None, b"not compressed", b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_a_damaged_picture_is_named_and_the_runs_are_still_there(tmp_path: Path, blob: bytes | None) -> None:
    matrix = np.ones((2, 3), dtype=np.float32)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(record("a"), StoredExample("a", matrix[0], matrix[0, :2], matrix[0, :2], matrix))
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE matrices SET x = ?", (blob,))
    with Ledger.open(tmp_path / "ledger.db", create=False) as ledger:
        with pytest.raises(LedgerError, match=r"ledger\.db: the picture of run a is damaged"):
            ledger.examples(["a"])
        assert len(ledger.records()) == 1


def test_a_ledger_without_its_tables_is_called_damaged(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(record("a"))
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("DROP TABLE runs")
    with pytest.raises(LedgerError, match="is damaged"), Ledger.open(tmp_path / "ledger.db", create=False) as ledger:
        ledger.records()
