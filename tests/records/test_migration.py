"""Ledgers of earlier schemas. `data/ledger_schema_2.db` is an audit of one run by the last hrx of schema 2."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.records import record, replace_record

from hrx.adapters import locate
from hrx.audit import Protocol
from hrx.audit.memory import GIBIBYTE
from hrx.audit.runner.plan import Setting, plan
from hrx.audit.runner.scheduler import recheck
from hrx.audit.runner.worker import InProcessExecutor, WorkerSettings
from hrx.gift_eval import open_source
from hrx.records.database import APPLICATION_ID, SCHEMA_VERSION, schema_version
from hrx.records.export import check
from hrx.records.ledger import Ledger, LedgerError, StoredAudit, StoredExample
from hrx.records.merge import merge
from hrx.records.record import COLUMNS, DONE, NAMES
from hrx.reports import read

STORED = Path(__file__).parents[1] / "data" / "ledger_schema_2.db"
TABLES = ("runs", "checks", "matrices", "audits")


@pytest.fixture
def schema_2(tmp_path: Path) -> Path:
    return Path(shutil.copy(STORED, tmp_path / "schema_2.db"))


def content(path: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table by column name."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")]


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return schema_version(connection)


def test_a_ledger_of_schema_2_is_read_without_being_changed(schema_2: Path) -> None:
    (stored,) = content(schema_2, "runs")
    before = schema_2.read_bytes()
    with Ledger.open(schema_2, create=False) as ledger:
        (loaded,) = ledger.records()
        assert ledger.finished(["old", "bad", *(one.key for one in ledger.records())]) == {loaded.key}
        assert [check.check for check in ledger.checks()] == [
            "equivalence", "determinism", "gradient path", "trained head", "derivative",
        ]  # fmt: skip
        assert [audit.hrx_version for audit in ledger.audits()] == ["0.1.0"]
        (example,) = ledger.examples([loaded.key])
    assert {name: getattr(loaded, name) for name in NAMES if name in stored} == {
        name: stored[name] for name in NAMES if name in stored
    }
    assert loaded.device is None
    assert example.matrix.shape == (24, 96)
    assert len(read(schema_2)) == 1
    assert schema_2.read_bytes() == before
    assert version_of(schema_2) == 2


def test_a_ledger_of_schema_2_is_migrated_by_its_first_writer_and_keeps_every_value(schema_2: Path) -> None:
    before = {table: content(schema_2, table) for table in TABLES}
    with Ledger.open(schema_2) as ledger:
        (loaded,) = ledger.records()
        assert loaded.device == "cpu"
        assert set(NAMES) <= ledger.columns
    assert version_of(schema_2) == SCHEMA_VERSION == 6
    for table in TABLES:
        after = content(schema_2, table)
        kept = [{name: row[name] for name in old} for row, old in zip(after, before[table], strict=True)]
        assert kept == before[table], table
        assert before[table]
    with closing(sqlite3.connect(schema_2)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {*TABLES, "plans"}


def test_a_run_that_schema_2_computed_with_cuda_gets_that_device(schema_2: Path) -> None:
    with closing(sqlite3.connect(schema_2)) as connection, connection:
        connection.execute("UPDATE runs SET accelerations = 'cuda,compile'")
    with Ledger.open(schema_2) as ledger:
        assert [one.device for one in ledger.records()] == ["cuda"]


def test_the_example_of_a_migrated_ledger_can_be_read(schema_2: Path) -> None:
    with Ledger.open(schema_2) as ledger:
        (example,) = ledger.examples(ledger.example_keys())
    assert example.x.shape == (96,)
    assert example.truth.shape == example.forecast.shape == (24,)
    assert example.matrix.shape == (24, 96)
    assert example.curves is not None
    assert example.curves.shape == (3, 2, 9)
    (stored,) = content(schema_2, "runs")
    gaps = [np.trapezoid(morf - lerf, dx=1 / 8) for morf, lerf in example.curves.astype(np.float64)]
    assert gaps[0] - gaps[1] == pytest.approx(stored["g_own"], abs=1e-6)


def test_the_run_of_a_migrated_ledger_has_the_same_numbers_when_it_is_measured_again(schema_2: Path) -> None:
    model = locate("bolt-mini")
    (run,) = plan(
        [model.identity], open_source("sample:co2"), (Setting(96, 24),),
        series=1, seeds=1, windows=4, protocol=Protocol(variance_windows="run"),
    )  # fmt: skip
    with Ledger.open(schema_2) as ledger:
        (stored,) = ledger.records()
        versions = (run.record(DONE).library, run.record(DONE).adapter_version, run.record(DONE).torch_version)
        if (stored.library, stored.adapter_version, stored.torch_version) == versions:
            assert run.key == stored.key
        # Under other versions of the libraries the run has another key; its numbers must agree all the same.
        replace_record(ledger, stored.updated(key=run.key))
        executor = InProcessExecutor(WorkerSettings((model,), GIBIBYTE))
        (result,) = recheck([run], ledger, executor, 1, on_result=lambda result: None)
    assert result.same, [str(difference) for difference in result.differences] + [result.error]


def test_ledgers_of_schema_2_and_4_merge(schema_2: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "new.db") as ledger:
        ledger.write(record("a"))
    assert merge([schema_2], tmp_path / "new.db") == (1, 0, ())
    assert version_of(schema_2) == 2
    with Ledger.open(tmp_path / "new.db", create=False) as ledger:
        assert len(ledger.records()) == 2
        assert len(ledger.checks()) == 5
        assert len(ledger.examples(ledger.example_keys())) == 1


def write_schema_1(path: Path) -> None:
    """A ledger as the first hrx wrote it: fewer columns, no audits."""
    later = {"leakage", "g_own_rank_1", "rank_channel", "gap_own", "matrix_seconds", "device"}
    columns = ", ".join(f'"{c.name}" {c.kind}' for c in COLUMNS if c.name not in later)
    with closing(sqlite3.connect(path)) as connection, connection:
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


def test_a_ledger_of_schema_1_is_read_unchanged_and_migrated_by_its_first_writer(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    write_schema_1(path)
    before = path.read_bytes()
    frame = read(path)
    assert frame.loc[0, ["key", "g_own", "rank"]].tolist() == ["old", 0.25, 1.5]
    assert frame["gap_own"].isna().all()
    assert path.read_bytes() == before
    ones = np.ones(2, np.float32)
    example = StoredExample("new2", ones, ones, ones, np.eye(2, dtype=np.float32), np.ones((3, 2, 9)))
    with Ledger.open(path) as ledger:
        ledger.write(record("new", gap_own=0.75, leakage="unknown"))
        ledger.write_audit(StoredAudit("2026-01-01", "0.1", "{}"))
        ledger.write(record("new2"), example)
        assert ledger.examples(["new2"])[0].curves is not None
        by_key = {one.key: one for one in ledger.records()}
        assert ledger.columns == set(NAMES)
    assert (by_key["old"].g_own, by_key["old"].gap_own, by_key["new"].gap_own) == (0.25, None, 0.75)
    assert version_of(path) == SCHEMA_VERSION


def test_a_column_that_an_older_ledger_does_not_have_is_not_a_contradiction(tmp_path: Path) -> None:
    write_schema_1(tmp_path / "old.db")
    absent = dict.fromkeys(("model", "dataset", "series", "lookback", "horizon", "seed"))
    with Ledger.open(tmp_path / "new.db") as ledger:
        ledger.write(record("old", g_own=0.25, rank=1.5, gap_own=0.5, **absent))
    assert merge([tmp_path / "old.db"], tmp_path / "new.db") == (0, 1, ())


def test_rows_without_checksums_are_not_called_sound_and_keep_the_time_of_their_migration(schema_2: Path) -> None:
    before = check(schema_2)
    assert before.verdict == "not protected"
    assert [(one.sound, one.unprotected) for one in before.tables] == [(0, 1), (0, 5), (0, 1), (0, 1), (0, 0)]
    with Ledger.open(schema_2) as ledger:
        ledger.write(record("new"))
        since = {one.key: one.protected_since for one in ledger.records()}
    assert since.pop("new") is None
    after = check(schema_2)
    assert after.verdict == "sound"
    assert [(one.sound, one.unprotected, one.protected_later) for one in after.tables] == [
        (2, 0, 1), (5, 0, 5), (1, 0, 1), (1, 0, 1), (0, 0, 0),
    ]  # fmt: skip
    assert {after.tables[0].since} == set(since.values())
    merge([schema_2], schema_2.with_name("merged.db"))  # the time goes with the row
    assert check(schema_2.with_name("merged.db")).tables == after.tables


def test_a_row_that_was_bad_before_its_migration_gets_no_checksum(tmp_path: Path) -> None:
    write_schema_1(tmp_path / "old.db")
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection, connection:
        connection.execute("INSERT INTO runs (key, status, g_own) VALUES ('bad', 'done', 'much')")
    with Ledger.open(tmp_path / "old.db", warn=False) as ledger:
        assert ledger.finished(["old", "bad", *(one.key for one in ledger.records())]) == {"old"}
        ledger.write(record("bad", g_own=0.5))  # measured again, it replaces the bad row
        assert ledger.finished(["old", "bad", *(one.key for one in ledger.records())]) == {"old", "bad"}


def test_a_ledger_of_schema_4_that_has_lost_its_checksums_is_refused(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.db") as ledger:
        ledger.write(record("a"))
    with closing(sqlite3.connect(tmp_path / "l.db")) as connection, connection:
        connection.execute("ALTER TABLE runs DROP COLUMN checksum")
    for create in (True, False):
        with (
            pytest.raises(LedgerError, match="lost their checksums"),
            Ledger.open(tmp_path / "l.db", create=create),
        ):
            pass
