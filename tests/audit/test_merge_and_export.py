import csv
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from hrx.audit.ledger.diff import differences
from hrx.audit.ledger.export import ExportError, export
from hrx.audit.ledger.merge import merge
from hrx.audit.ledger.record import COLUMNS, DONE, EXCLUDED, FAILED, NAMES
from hrx.audit.ledger.schema import APPLICATION_ID, SCHEMA_VERSION
from hrx.audit.ledger.store import Ledger, LedgerError, StoredAudit, StoredCheck, StoredExample
from hrx.cli import main
from hrx.reports import read

CHECK = StoredCheck("f", "lib 1", "1", "2.0", "m", "96x24", "derivative", True, 1e-4, 1e-2, "note", "w")


def record(key: str, status: str = DONE, **values: object) -> dict:
    about = {"model": "m", "dataset": "d/H", "series": "T0", "lookback": 96, "horizon": 24, "seed": 0}
    return {"key": key, "status": status, **about, **values}


def ledger(path: Path, *records: dict, check: StoredCheck = CHECK) -> Path:
    with Ledger.open(path) as opened:
        for one in records:
            opened.write(one)
        opened.write_checks([check])
    return path


def test_a_merge_holds_every_finished_run_once_with_checks_pictures_and_settings(tmp_path: Path) -> None:
    one = ledger(tmp_path / "one.db", record("a", g_own=0.5), record("b", FAILED), record("c", EXCLUDED))
    two = ledger(tmp_path / "two.db", record("b", g_own=1.5), record("c", EXCLUDED), record("d", FAILED))
    picture = StoredExample("b", *[np.ones(2, np.float32)] * 3, np.eye(2, dtype=np.float32))
    with Ledger.open(two) as opened:
        opened.write(record("e"), picture._replace(key="e"))
        opened.write_audit(StoredAudit("2026-01-01", "0.1", '{"series": 3}'))
    done = merge([one, two], tmp_path / "all.db")
    assert done == (6, 1, 0)  # a, b as failed, c; then b, which takes its place, d and e; c is known
    with Ledger.open(tmp_path / "all.db", create=False) as merged:
        found = {r["key"]: (r["status"], r["g_own"]) for r in merged.records()}
        assert found == {
            "a": (DONE, 0.5),
            "b": (DONE, 1.5),
            "c": (EXCLUDED, None),
            "d": (FAILED, None),
            "e": (DONE, None),
        }
        assert merged.checks() == [CHECK]
        assert merged.example_keys() == ["e"]
        assert [audit.settings for audit in merged.audits()] == ['{"series": 3}']
    before = (tmp_path / "all.db").read_bytes()
    assert merge([one, two], tmp_path / "all.db").added == 0
    assert (tmp_path / "all.db").read_bytes() == before


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"g_own": 0.5001}, "g_own is 0.5 and 0.5001"),
        ({"g_own": None}, "g_own is 0.5 and not there"),
        ({"status": EXCLUDED}, "status is done and excluded"),
        ({"g_own_steps": "[0.1, 0.3]"}, "g_own_steps is [0.1, 0.2] and [0.1, 0.3]"),
    ],
)
def test_contradictions_are_named_and_nothing_is_written(tmp_path: Path, other: dict, named: str) -> None:
    base = {"g_own": 0.5, "g_own_steps": "[0.1, 0.2]"}
    one = ledger(tmp_path / "one.db", record("a", **base))
    two = ledger(tmp_path / "two.db", record("a", **(base | other)), record("new"))
    with pytest.raises(LedgerError, match="1 of the runs contradict each other") as refused:
        merge([two], one)
    assert named in str(refused.value)
    assert "m d/H T0 96x24 seed 0" in str(refused.value)
    with Ledger.open(one, create=False) as opened:
        assert [r["key"] for r in opened.records()] == ["a"]


def test_a_refused_merge_makes_no_file(tmp_path: Path) -> None:
    sources = [ledger(tmp_path / f"{g}.db", record("a", g_own=g)) for g in (0.5, 0.6)]
    with pytest.raises(LedgerError, match="contradict each other"):
        merge(sources, tmp_path / "new.db")
    assert list(tmp_path.glob("new.db*")) == []


def test_a_check_that_passed_in_one_ledger_only_is_a_contradiction(tmp_path: Path) -> None:
    one = ledger(tmp_path / "one.db")
    two = ledger(tmp_path / "two.db", check=CHECK._replace(passed=False))
    with pytest.raises(LedgerError, match="the check derivative passed in one of them only"):
        merge([two], one)


def test_rounding_is_no_contradiction(tmp_path: Path) -> None:
    one = record("a", g_own=0.5, g_shuffled=1e-9, g_own_steps="[0.1, null]", seconds=1.0, beats_naive=1)
    two = record("a", g_own=0.5 * (1 + 9e-5), g_shuffled=-5e-7, g_own_steps="[0.100001, null]", seconds=9.0)
    assert differences(one, two) == []
    assert [d.column for d in differences(one, two | {"g_own": 0.5 * (1 + 3e-4)})] == ["g_own"]
    assert [d.column for d in differences(one, two | {"g_own_steps": "[0.1]"})] == ["g_own_steps"]


def test_a_ledger_is_not_merged_into_itself_and_a_missing_one_makes_no_file(tmp_path: Path) -> None:
    one = ledger(tmp_path / "one.db")
    with pytest.raises(LedgerError, match="into itself"):
        merge([one], one)
    with pytest.raises(LedgerError, match="does not exist"):
        merge([one, tmp_path / "absent.db"], tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def version_1(path: Path) -> None:
    """A ledger as the first hrx wrote it: fewer columns, no audits."""
    added = {"leakage", "g_own_rank_1", "rank_channel", "gap_own", "matrix_seconds"}
    columns = ", ".join(f'"{c.name}" {c.kind}' for c in COLUMNS if c.name not in added)
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE runs ({columns}, PRIMARY KEY (key))")
        connection.execute(
            "CREATE TABLE checks (fingerprint TEXT, library TEXT, adapter_version TEXT, torch_version TEXT, "
            'model TEXT, setting TEXT, "check" TEXT, passed INTEGER, figure REAL, "limit" REAL, note TEXT, '
            "windows TEXT, PRIMARY KEY "
            '(fingerprint, library, adapter_version, torch_version, setting, "check", windows))'
        )
        connection.execute(
            "CREATE TABLE matrices (key TEXT PRIMARY KEY, x BLOB, truth BLOB, forecast BLOB, matrix BLOB)"
        )
        connection.execute("INSERT INTO runs (key, status, g_own, rank) VALUES ('old', 'done', 0.25, 1.5)")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")


def test_a_ledger_of_schema_1_is_read_as_it_is_and_brought_forward_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    version_1(path)
    before = path.read_bytes()
    frame = read(path)
    assert frame.loc[0, ["key", "g_own", "rank"]].tolist() == ["old", 0.25, 1.5]
    assert frame["gap_own"].isna().all()
    assert path.read_bytes() == before
    with Ledger.open(path) as opened:
        opened.write(record("new", gap_own=0.75, leakage="unknown"))
        opened.write_audit(StoredAudit("2026-01-01", "0.1", "{}"))
        picture = StoredExample("new", *[np.ones(2, np.float32)] * 3, np.eye(2, dtype=np.float32), np.ones((3, 2, 9)))
        opened.write(record("new2"), picture)
        assert opened.examples(["new"])[0].curves is not None
        found = {r["key"]: r for r in opened.records()}
    assert (found["old"]["g_own"], found["old"]["gap_own"], found["new"]["gap_own"]) == (0.25, None, 0.75)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert {row[1] for row in connection.execute("PRAGMA table_info(runs)")} == set(NAMES)


def test_ledgers_of_two_schemas_merge_and_what_one_does_not_know_is_no_contradiction(tmp_path: Path) -> None:
    version_1(tmp_path / "old.db")
    new = ledger(tmp_path / "new.db", record("old", g_own=0.25, rank=1.5, gap_own=0.5, lookback=None, horizon=None))
    with sqlite3.connect(new) as connection:
        connection.execute("UPDATE runs SET model = NULL, dataset = NULL, series = NULL, seed = NULL")
    assert merge([tmp_path / "old.db"], new) == (0, 1, 0)


def test_csv_holds_every_digit_and_no_formula(tmp_path: Path) -> None:
    path = ledger(tmp_path / "l.db", record("a", g_own=-0.1 - 0.2, reason="=HYPERLINK(1)"), record("b", reason="-1 x"))
    assert main(["export", str(path), "--format", "csv"]) == 0
    with (tmp_path / "l.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(NAMES)
    assert float(rows[0]["g_own"]) == -0.1 - 0.2
    assert [row["reason"] for row in rows] == ["'=HYPERLINK(1)", "'-1 x"]
    assert rows[1]["g_own"] == ""
    assert [p.name for p in tmp_path.iterdir() if "tmp" in p.name] == []


def test_parquet_comes_back_as_the_frame_of_the_ledger(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    path = ledger(tmp_path / "l.db", record("a", g_own=0.1 + 0.2, reason="=1"), record("b", EXCLUDED, reason="short"))
    assert main(["export", str(path), "--format", "parquet", "--out", str(tmp_path / "out.parquet")]) == 0
    table = parquet.read_table(tmp_path / "out.parquet")
    with Ledger.open(path, create=False) as opened:
        assert table.to_pylist() == opened.records()
    assert table.schema.field("g_own").metadata[b"meaning"].startswith(b"g_own, divided by")


def test_an_export_that_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    path = ledger(tmp_path / "l.db", record("a"))
    with pytest.raises(ExportError, match="cannot be written"):
        export(path, tmp_path / "absent" / "l.csv", "csv")


def test_a_number_that_another_program_made_a_text_is_told_by_the_parquet_export(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    path = ledger(tmp_path / "l.db", record("a"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET g_own = 'high'")
    with pytest.raises(ExportError, match="--format csv takes it as it is"):
        export(path, tmp_path / "out.parquet", "parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_many_keys_are_asked_for_at_once_and_come_in_the_order_of_writing(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.db") as opened:
        with opened.transaction():
            for number in range(2500):
                opened.put(record(f"k{number}"))
        wanted = [f"k{number}" for number in range(2400, 100, -1)]
        assert [r["key"] for r in opened.records([*wanted, "absent", *wanted])] == wanted[::-1]
        assert set(opened.keys()) == {f"k{number}" for number in range(2500)}
