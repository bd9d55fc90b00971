import csv
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers.records import record

from hrx.cli import main
from hrx.errors import NotWritten
from hrx.records.ledger import Ledger
from hrx.records.merge import export
from hrx.records.record import COLUMNS, EXCLUDED, NAMES, Record


def ledger(path: Path, *records: Record) -> Path:
    with Ledger.open(path) as opened:
        for one in records:
            opened.write(one)
    return path


def test_csv_holds_every_digit(tmp_path: Path) -> None:
    path = ledger(tmp_path / "l.db", record("a", g_own=-0.1 - 0.2, starts="[1, 2]"), record("b"))
    assert main(["export", str(path), "--format", "csv"]) == 0
    with (tmp_path / "l.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(NAMES)
    assert float(rows[0]["g_own"]) == -0.1 - 0.2
    assert rows[0]["starts"] == "[1, 2]"
    assert rows[1]["g_own"] == ""
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".tmp")]


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1", "-1 x", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_a_text_that_a_spreadsheet_would_evaluate_gets_an_apostrophe_in_csv(tmp_path: Path, text: str) -> None:
    path = ledger(tmp_path / "l.db", record("a", reason=text, model=text, g_own=-0.5))
    export(path, tmp_path / "l.csv", "csv")
    with (tmp_path / "l.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["reason"], row["model"]) == (f"'{text}", f"'{text}")
    assert row["g_own"] == "-0.5"


def test_parquet_holds_the_records_with_types_and_meanings(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    path = ledger(tmp_path / "l.db", record("a", g_own=0.1 + 0.2, reason="=1"), record("b", EXCLUDED, reason="short"))
    assert main(["export", str(path), "--format", "parquet", "--out", str(tmp_path / "out.parquet")]) == 0
    table = parquet.read_table(tmp_path / "out.parquet")
    with Ledger.open(path, create=False) as opened:
        assert table.to_pylist() == [asdict(one) for one in opened.records()]
    assert [table.schema.field(c.name).metadata[b"meaning"].decode() for c in COLUMNS] == [c.meaning for c in COLUMNS]
    kinds = {"TEXT": "string", "INTEGER": "int64", "REAL": "double"}
    assert [str(table.schema.field(c.name).type) for c in COLUMNS] == [kinds[c.kind] for c in COLUMNS]


def test_an_export_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    path = ledger(tmp_path / "l.db", record("a"))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(NotWritten, match=r"cannot create .*/file: File exists\. Choose a writable"):
        export(path, tmp_path / "file" / "l.csv", "csv")
    export(path, tmp_path / "new" / "l.csv", "csv")
    assert (tmp_path / "new" / "l.csv").is_file()


def test_an_export_that_fails_leaves_the_earlier_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = ledger(tmp_path / "l.db", record("a")), tmp_path / "l.csv"
    out.write_text("earlier")

    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("hrx.files.os.fsync", full)
    with pytest.raises(NotWritten, match="No space left on device"):
        export(path, out, "csv")
    assert out.read_text() == "earlier"
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".tmp")]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_record_that_another_program_changed_is_named_and_left_out(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    path, out = ledger(tmp_path / "l.db", record("a"), record("b")), tmp_path / f"out.{form}"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE runs SET g_own = 'high' WHERE key = 'b'")
    assert main(["export", str(path), "--format", form, "--out", str(out)]) == 3
    output, errors = capsys.readouterr()
    assert output == f"{out}: 1 run.\n"
    assert "run m d/H T0 96x24 seed 0 (key b): it is not as it was written" in errors
