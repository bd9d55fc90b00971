"""A path whose file another process replaces between the check and the opening."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.conftest import sample
from faults.test_bad_inputs import HANGING, no_longer_than

import hrx.files
import hrx.records.ledger
from hrx.errors import HrxError
from hrx.files import open_regular, read_file, read_json
from hrx.gift_eval import open_series, open_source
from hrx.gift_eval.catalogue import DATA_FILE, STATE_FILE
from hrx.records.explanation import Explanation
from hrx.records.ledger import Ledger


def _opened(path: Path) -> None:
    with open_regular(path):
        pass


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))


READERS: dict[str, Callable[[Path], object]] = {
    "open_regular": _opened,
    "read_file": read_file,
    "read_json": read_json,
    "a CSV source": lambda path: open_source(f"csv:{path}"),
    "a Parquet source": lambda path: open_source(f"parquet:{path}"),
    "a series": lambda path: open_series(str(path)),
    "an explanation": Explanation.load,
}
SWAPS: dict[str, Callable[[Path], object]] = {"a FIFO": os.mkfifo, "a directory": Path.mkdir, "a socket": _socket}
CASES = [(reader, swap) for reader in READERS for swap in SWAPS]


@pytest.mark.parametrize(("reader", "swap"), sample(CASES, 7))
def test_a_path_that_is_swapped_after_its_check_is_refused_without_waiting(
    reader: str, swap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.csv"
    path.write_text("date,v\n2024-01-01,1\n")
    check = hrx.files.regular_file

    def swapped(checked: Path, limit: int | None = None) -> Path:
        found = check(checked, limit)
        path.unlink()
        SWAPS[swap](path)
        return found

    monkeypatch.setattr(hrx.files, "regular_file", swapped)
    with no_longer_than(HANGING), pytest.raises(HrxError, match=r"x\.csv (is a|cannot be read)"):
        READERS[reader](path)
    figure("swapped paths", f"{swap} in place of a file that was checked: refused at once", made=1, handled=1)


@pytest.mark.parametrize("swap", SWAPS)
def test_a_dataset_whose_file_is_swapped_is_the_one_that_was_checked(
    swap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[..., None]
) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed (pip install 'hrx[gift-eval]')")
    monkeypatch.chdir(tmp_path)
    rows = {"item_id": ["a"], "start": ["2024-01-01"], "freq": ["D"], "target": [[1.0, 2.0]]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "d"))
    assert {DATA_FILE, STATE_FILE} <= {file.name for file in (tmp_path / "d").iterdir()}
    path, read = tmp_path / "d" / DATA_FILE, datasets.Dataset.from_file

    def swapped(name: str) -> object:
        path.unlink()
        SWAPS[swap](path)
        return read(name)

    monkeypatch.setattr(datasets.Dataset, "from_file", swapped)
    with no_longer_than(HANGING):
        (dataset,) = open_source(str(tmp_path / "d"))
    assert dataset.damage == ""
    figure("swapped paths", f"{swap} in place of a dataset's file: the checked one is read", made=1, handled=1)


@pytest.mark.parametrize("create", [False, True], ids=["to read", "to write"])
@pytest.mark.parametrize("file", ["ledger.db", "ledger.db-journal"])
def test_a_fifo_in_place_of_a_ledger_is_refused_without_waiting(
    file: str, create: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[..., None]
) -> None:
    path, connect = tmp_path / "ledger.db", hrx.records.ledger.sqlite3.connect
    with Ledger.open(path):
        pass

    def swapped(*arguments: object, **options: object) -> object:
        (tmp_path / file).unlink(missing_ok=True)
        os.mkfifo(tmp_path / file)
        return connect(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(hrx.records.ledger.sqlite3, "connect", swapped)
    with (
        no_longer_than(HANGING),
        pytest.raises(HrxError, match=r"ledger\.db"),
        Ledger.open(path, create=create) as ledger,
    ):
        ledger.write_all([])
    figure("swapped paths", "a FIFO in place of a ledger or its journal: refused", made=1, handled=1)
