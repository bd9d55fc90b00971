"""A ledger as a frame."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from hrx.records.ledger import LedgerError, LedgerWarning
from hrx.records.record import COLUMNS
from hrx.reports import read


def test_the_frame_has_a_row_per_run_and_every_column_of_the_record(record, ledger):
    records = [record(seed=seed) for seed in range(3)]
    frame = read(ledger(records))
    assert list(frame.columns) == [column.name for column in COLUMNS]
    assert frame["key"].to_list() == [one.key for one in records]
    assert json.loads(frame["starts"][0]) == [100, 120, 140, 160]


def test_columns_have_the_same_types_in_an_empty_a_full_and_a_refused_ledger(record, ledger):
    kinds = {"TEXT": "object", "INTEGER": "Int64", "REAL": "float64"}
    expected = {column.name: kinds[column.kind] for column in COLUMNS}
    for records in ([], [record(status="excluded", reason="r")], [record()]):
        assert read(ledger(records)).dtypes.astype(str).to_dict() == expected


def test_a_path_without_a_ledger_is_named(tmp_path):
    with pytest.raises(LedgerError, match=r"absent\.db does not exist"):
        read(tmp_path / "absent.db")
    (tmp_path / "note.txt").write_text("no database, but a text that is long enough to be looked at\n" * 20)
    with pytest.raises(LedgerError, match=r"note\.txt is not a ledger"):
        read(tmp_path / "note.txt")


@pytest.mark.parametrize(("column", "value"), [("g_own", "much"), ("model", b"\xff"), ("lookback", 96.5)])
def test_a_cell_of_a_wrong_type_is_named_and_its_run_left_out(column, value, record, ledger):
    records = [record(seed=seed) for seed in range(2)]
    path = ledger(records)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE runs SET {column} = ? WHERE seed = 0", (value,))
    with pytest.warns(LedgerWarning, match="it is not as it was written"):
        assert read(path)["key"].to_list() == [records[1].key]


def test_reports_need_neither_torch_nor_a_model_library_and_draw_only_when_asked():
    code = "import sys, hrx.reports; print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
