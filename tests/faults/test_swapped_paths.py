"""A path whose file another process replaces between the check and the opening."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.conftest import sample
from faults.test_bad_inputs import no_longer_than

import hrx.files
from hrx.errors import HrxError
from hrx.files import open_regular, read_file, read_json
from hrx.gift_eval import open_series, open_source
from hrx.records.explanation import Explanation


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
    with no_longer_than(60), pytest.raises(HrxError, match=r"x\.csv (is a|cannot be read)"):
        READERS[reader](path)
    figure("swapped paths", f"{swap} in place of a file that was checked: refused at once", made=1, handled=1)
