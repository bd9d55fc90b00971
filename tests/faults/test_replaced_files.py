"""Files of a model or of the data that are replaced while an audit runs: a number belongs to the weights it names.

Either a record holds the number of the weights whose fingerprint it has, or it is failed and says why.
"""

import os
import shutil
from collections.abc import Callable
from itertools import count, product
from pathlib import Path

import pandas as pd
import pytest
from faults.conftest import sample
from helpers.records import VOLATILE
from safetensors.torch import load_file, save_file

import hrx.adapters
from hrx.cli import main
from hrx.errors import Exit
from hrx.records.ledger import Ledger
from hrx.reports import read

PLAN = ["--settings", "32x8", "--draws", "2", "--series", "2", "--seeds", "2", "--workers", "1"]
MOMENTS = {
    "before it is loaded": ("write_all", 1),
    "after it is loaded": ("write_all", 2),
    "between two runs": ("write", 1),
}
"""After which call of a method of the ledger the file is replaced: it gets the plans, the checks, and each run."""
BOLT = Path(hrx.adapters.__file__).parent / "bolt_mini"
LINE = """
import torch
def build():
    torch.manual_seed({seed})
    layer = torch.nn.Linear(32, 8)
    return lambda x: layer(x)
"""


def checkpoint(folder: Path) -> Path:
    shutil.copytree(BOLT, folder / "bolt")
    return folder / "bolt" / "model.safetensors"


def module(folder: Path) -> Path:
    (folder / "line.py").write_text(LINE.format(seed=1))
    return folder / "line.py"


def other_content(file: Path) -> bytes:
    """Another model of the same format and number of bytes."""
    if file.suffix == ".py":
        return LINE.format(seed=2).encode()
    other = file.with_name("other")
    weights = {name: tensor * 1.5 if tensor.ndim > 1 else tensor for name, tensor in load_file(file).items()}
    save_file(weights, other, metadata={"format": "pt"})
    content = other.read_bytes()
    other.unlink()
    return content


def renamed(file: Path, content: bytes) -> None:
    new = file.with_name("new")
    new.write_bytes(content)
    new.replace(file)


def written(file: Path, content: bytes) -> None:
    with file.open("r+b") as stream:
        stream.write(content)


def written_with_its_old_time(file: Path, content: bytes) -> None:
    before = file.stat()
    written(file, content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut_short(file: Path, content: bytes) -> None:
    os.truncate(file, len(content) // 2)


def removed(file: Path, content: bytes) -> None:
    file.unlink()


WAYS = {way.__name__: way for way in (renamed, written, written_with_its_old_time, cut_short, removed)}
WHOLE = ("renamed", "written", "written_with_its_old_time")
"""Those after which the file holds another model."""
CASES = list(product((checkpoint, module), MOMENTS, WAYS))


def numbers(ledger: Path) -> pd.DataFrame:
    """The records by key, without times and settings."""
    return read(ledger).set_index("key").sort_index().drop(columns=[*VOLATILE, "request"], errors="ignore")


def replace_after(moment: str, replacement: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets one call of a method of the ledger be followed by the replacement."""
    method, number = MOMENTS[moment]
    original, calls = getattr(Ledger, method), count(1)

    def wrapped(self: Ledger, *arguments: object, **named: object) -> None:
        original(self, *arguments, **named)
        if next(calls) == number:
            replacement()

    monkeypatch.setattr(Ledger, method, wrapped)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "moment", "way"), sample(CASES, 4))
def test_no_number_is_stored_under_a_fingerprint_that_its_weights_do_not_have(
    kind: Callable[[Path], Path],
    moment: str,
    way: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    figure: Callable[..., None],
) -> None:
    file = kind(tmp_path)
    name = f"module:{file}:build" if file.suffix == ".py" else str(file.parent)
    audit = ["audit", name, "--data", "sample:elnino/M,co2/W", *PLAN]
    assert main([*audit, "--out", str(tmp_path / "before")]) in (Exit.DONE, Exit.GATE_FAILED)
    expected = numbers(tmp_path / "before" / "ledger.db")
    content = other_content(file)
    assert len(content) == file.stat().st_size
    capsys.readouterr()

    with monkeypatch.context() as patch:
        replace_after(moment, lambda: WAYS[way](file, content), patch)
        assert main([*audit, "--out", str(tmp_path / "out")]) == Exit.INCOMPLETE
    assert "Traceback" not in capsys.readouterr().err
    records = numbers(tmp_path / "out" / "ledger.db")
    assert list(records.index) == list(expected.index)
    failed = records[records["status"] == "failed"]
    assert len(failed) == len(records) - (moment == "between two runs")
    sentence = "was changed after the audit was planned" if way in WHOLE else "was changed|cannot be read again"
    assert failed["reason"].str.contains(sentence).all(), list(failed["reason"])
    assert not failed["reason"].str.contains(str(tmp_path)).any()
    kept = records[records["status"] != "failed"]
    pd.testing.assert_frame_equal(
        kept, expected.loc[kept.index], check_dtype=False, check_exact=False, rtol=1e-6, atol=1e-7
    )

    if way in WHOLE:
        assert main([*audit, "--out", str(tmp_path / "out")]) in (Exit.DONE, Exit.GATE_FAILED)
        after = numbers(tmp_path / "out" / "ledger.db")
        assert set(after["fingerprint"]) > set(expected["fingerprint"])
        assert (after[after["fingerprint"] != expected["fingerprint"].iloc[0]]["status"] != "failed").all()
    figure("replaced files", f"{kind.__name__}: {way.replace('_', ' ')}", made=1, handled=1)


@pytest.mark.slow
@pytest.mark.parametrize("moment", sample(list(MOMENTS), 1))
def test_data_that_is_replaced_is_stored_under_its_own_fingerprint(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[..., None]
) -> None:
    file = tmp_path / "sales.csv"
    dates = pd.date_range("2001-01-01", periods=120, freq="MS")

    def write(scale: int) -> None:
        values = [(place % 12) * scale + place % 7 for place in range(len(dates))]
        pd.DataFrame({"date": dates, "sales": values}).to_csv(file, index=False)

    write(1)
    audit = ["audit", "bolt-mini", "--data", f"csv:{file}", *PLAN]
    assert main([*audit, "--out", str(tmp_path / "before")]) == Exit.DONE
    expected = numbers(tmp_path / "before" / "ledger.db")
    with monkeypatch.context() as patch:
        replace_after(moment, lambda: write(3), patch)
        assert main([*audit, "--out", str(tmp_path / "out")]) == Exit.DONE
    records = numbers(tmp_path / "out" / "ledger.db")
    pd.testing.assert_frame_equal(records, expected, check_dtype=False, check_exact=False, rtol=1e-6, atol=1e-7)
    assert main([*audit, "--out", str(tmp_path / "out")]) == Exit.DONE
    after = numbers(tmp_path / "out" / "ledger.db")
    assert len(set(after["series_fingerprint"])) == 2 * len(set(expected["series_fingerprint"]))
    figure("replaced files", "data: written", made=1, handled=1)
